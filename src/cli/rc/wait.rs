//! Waits until the owner farm has scheduled the pods of a record.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::foreign::{count_pods, owned_elsewhere};
use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cli::output::Progress;
use crate::cluster::snapshot::ClusterSnapshot;
use rcfarm_api::ids::{PodRef, RcId};
use rcfarm_api::key::LabelKind;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::rc::spec::RcRecord;
use rcfarm_api::rc::status::{RcConditionType, RcReason, RcStatus, Replicas};
use rcfarm_api::{Stored, key};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Index, Query};

/// Longest wait of one blocking query.
const ONE_WAIT: Duration = Duration::from_secs(20);
/// After this long without a status for the record's index, a note is printed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits until all pods that the record at `index` asks for are scheduled.
pub(super) async fn scheduled(
    context: &CommandContext,
    id: RcId,
    index: Index,
    timeout: Duration,
) -> anyhow::Result<()> {
    let give_up = monotonic() + timeout;
    until(context, id, index, timeout, is_scheduled).await?;
    started(context, id, give_up).await
}

/// Interval at which statuses of pods are read.
const STARTED_EVERY: Duration = Duration::from_millis(300);

/// Waits until the pods of a controller have started, on nodes with an agent of ours.
///
/// # Errors
/// A pod cannot start.
async fn started(context: &CommandContext, id: RcId, give_up: Instant) -> anyhow::Result<()> {
    let trees = [key::labels(LabelKind::Pod), key::nodes()];
    loop {
        // Pods may move meanwhile.
        let seen = ClusterSnapshot::read_once(context.store.as_ref(), trees.clone()).await?;
        let places = seen.pods.of_rc(id).map(|(place, _)| place);
        let has_agent = |place: &&PodRef| seen.records.has_live_agent(&place.node);
        let places: Vec<PodRef> = places.filter(has_agent).cloned().collect();
        let waiting = unstarted(context, &places).await?;
        let Some((place, why)) = waiting else { return Ok(()) };
        if monotonic() + STARTED_EVERY > give_up {
            return Err(failure(
                format!("gave up waiting: {} on {} has not started{why}", place.pod, place.node),
                format!("the change itself is made; see the pod: rcfarm pod get {}", place.pod),
            ));
        }
        tokio::time::sleep(STARTED_EVERY).await;
    }
}

/// A pod that has not started yet, and what its node says.
async fn unstarted(
    context: &CommandContext,
    places: &[PodRef],
) -> anyhow::Result<Option<(PodRef, String)>> {
    let status_key = |place: &PodRef| key::pod_status(&place.pod, &place.node);
    let intent_key = |place: &PodRef| key::intent(&place.node, &place.pod);
    let statuses = context.get_many(places.iter().map(status_key)).await?;
    let intents = context.get_many(places.iter().map(intent_key)).await?;
    let mut waiting = None;
    for place in places {
        let status = statuses.get(status_key(place).as_str());
        let status = status.and_then(|entry| PodStatus::decode(&entry.value).ok());
        let intent = intents.get(intent_key(place).as_str()).map(|entry| entry.modify_index);
        // Older agents do not say which intent a status is about.
        let is_about = |status: &PodStatus| {
            status.intent_index.is_none_or(|about| Some(about.modify_index) == intent)
        };
        let Some(status) = status.filter(is_about) else {
            waiting.get_or_insert_with(|| (place.clone(), String::new()));
            continue;
        };
        let PodStatus { status: launched, phase, message, cannot_start, .. } = status;
        if phase == NodePodPhase::Unfit || cannot_start.is_some() {
            let why = cannot_start.unwrap_or(message);
            return Err(failure(
                format!("pod {} cannot start on {}: {why}", place.pod, place.node),
                format!("correct the manifest: rcfarm rc update {} -f FILE", place.pod),
            ));
        }
        if launched != "launched" {
            let why = if message.is_empty() { message } else { format!(": {message}") };
            waiting.get_or_insert_with(|| (place.clone(), why));
        }
    }
    Ok(waiting)
}

/// Waits until all pods have the manifest of the record at `index` and are healthy.
pub(super) async fn updated(
    context: &CommandContext,
    id: RcId,
    index: Index,
    timeout: Duration,
) -> anyhow::Result<()> {
    let is_updated = |status: &RcStatus| {
        let Replicas { desired, healthy, .. } = status.replicas;
        // Farms of earlier versions update all pods at once and write no such condition.
        let condition = status.condition(RcConditionType::Updated);
        is_scheduled(status) && healthy >= desired && condition.is_none_or(|c| c.status)
    };
    until(context, id, index, timeout, is_updated).await
}

async fn until(
    context: &CommandContext,
    id: RcId,
    index: Index,
    timeout: Duration,
    is_done: impl Fn(&RcStatus) -> bool,
) -> anyhow::Result<()> {
    let give_up = monotonic() + timeout;
    let status_key = key::rc_status(id);
    let mut progress = Progress::default();
    let mut said = "no farm has looked at the change yet".to_owned();
    let mut query = Query::PLAIN;
    loop {
        let read = context.persist(async || context.store.get(&status_key, query).await);
        let Ok(answer) = timeout_at(give_up, read).await else {
            return Err(failure(
                format!("gave up waiting after {}: {said}", humantime::format_duration(timeout)),
                format!("the change itself is made; what holds it up: rcfarm rc explain {id}"),
            ));
        };
        let answer = answer?;
        let is_first = query.wait.is_none();
        let status = answer.value.and_then(|entry| RcStatus::decode(&entry.value).ok());
        let seen = status.filter(|status| status.observed_index >= index);
        query = Query::after(answer.index, if seen.is_some() { ONE_WAIT } else { PATIENCE });
        match seen {
            Some(status) => {
                said = summary(&status);
                progress.say(&said);
                check_valid(&status)?;
                if is_done(&status) {
                    return Ok(());
                }
            }
            None if is_first => {} // the record was written just now
            None if context.get(&key::rc(id)).await?.is_none() => {
                return Err(failure(
                    format!("{id} was deleted"),
                    "see which there are: rcfarm rc list",
                ));
            }
            // A farm of p2 writes no status.
            None if owned_elsewhere(context).await?.contains(&id) => {
                let counted = count_pods(context, &BTreeSet::from([id])).await?;
                let current = counted.get(&id).copied().unwrap_or_default().current;
                let record = context.get(&key::rc(id)).await?;
                let record = record.and_then(|entry| RcRecord::decode(&entry.value).ok());
                let desired = record.map_or(0, |record| record.replicas_desired);
                said = format!("{current} of {desired} pods scheduled, by another program's farm");
                progress.say(&said);
                if i64::from(current) == desired {
                    return Ok(());
                }
            }
            None => progress.say(&said),
        }
    }
}

fn is_scheduled(status: &RcStatus) -> bool {
    status.replicas.current == status.replicas.desired
        && status.condition(RcConditionType::Scheduled).is_some_and(|condition| condition.status)
}

fn check_valid(status: &RcStatus) -> anyhow::Result<()> {
    let valid = status.condition(RcConditionType::Valid);
    match valid.filter(|condition| condition.reason == RcReason::InvalidRecord) {
        None => Ok(()),
        Some(invalid) => Err(failure(
            format!("the farm cannot work on the record: {}", invalid.message),
            "correct the record, then try again",
        )),
    }
}

/// Progress in one line.
fn summary(status: &RcStatus) -> String {
    let replicas = status.replicas;
    let mut text = format!(
        "{} of {} pods scheduled, {} healthy",
        replicas.current, replicas.desired, replicas.healthy
    );
    let scheduled = status.condition(RcConditionType::Scheduled).filter(|c| !c.status);
    if let Some(condition) = scheduled {
        text.push_str(&format!(" ({})", condition.reason));
    }
    if let Some(condition) = status.condition(RcConditionType::Updated).filter(|c| !c.status) {
        text.push_str(&format!("; {}", condition.message));
    }
    text
}
