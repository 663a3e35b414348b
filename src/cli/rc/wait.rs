//! Waits until the owner farm has scheduled the pods of a record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::foreign::{count_pods, owned_elsewhere};
use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cli::output::Progress;
use crate::cluster::snapshot::ClusterSnapshot;
use rcfarm_api::ids::{PodRef, RcId};
use rcfarm_api::key::LabelKind;
use rcfarm_api::node::status::{ExitReason, NodePodPhase, PodStatus, ProcessStatus};
use rcfarm_api::rc::spec::{RcRecord, RcStrategy};
use rcfarm_api::rc::status::{RcConditionType, RcReason, RcStatus, Replicas};
use rcfarm_api::{Stored, key};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Entry, Index, Key, Query, StoreError, may_read};

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

/// A process that has not ended yet has started when it was seen to run for so long.
const STEADY: Duration = Duration::from_secs(2);
/// A process that has ended has started again when it was seen to run for so long.
const STEADY_AGAIN: Duration = Duration::from_secs(10);

/// Since when processes are seen to run, by place and launchable, with their process ids.
#[derive(Default)]
struct SteadyProcesses(BTreeMap<(PodRef, String), (Option<i32>, Instant)>);

impl SteadyProcesses {
    /// What has not run for long enough at `now`.
    fn young(&mut self, pods: &StartedPods, now: Instant) -> Option<String> {
        let mut seen = BTreeMap::new();
        let mut young = None;
        for place in &pods.places {
            let status = pods.status(place).unwrap_or_default();
            let runs = |process: &ProcessStatus| process.phase == NodePodPhase::Running;
            for process in status.processes.into_iter().filter(runs) {
                let id = (place.clone(), process.launchable_id);
                let before = self.0.get(&id).filter(|(pid, _)| *pid == process.pid);
                let since = before.map_or(now, |(_, since)| *since);
                let least = if process.last_exit.is_some() { STEADY_AGAIN } else { STEADY };
                if now < since + least && young.is_none() {
                    let (PodRef { node, pod }, name) = &id;
                    let least = humantime::format_duration(least);
                    young = Some(format!("{pod} on {node}: {name} has not run for {least} yet"));
                }
                seen.insert(id, (process.pid, since));
            }
        }
        self.0 = seen;
        young
    }
}

/// Waits until the pods of a controller have started and go on running, on nodes with an agent of ours.
///
/// # Errors
/// A pod cannot start.
async fn started(context: &CommandContext, id: RcId, give_up: Instant) -> anyhow::Result<()> {
    let (mut waiting, mut steady) = (None, SteadyProcesses::default());
    let mut progress = Progress::default();
    loop {
        // Pods may move meanwhile.
        let read = context.persist(async || StartedPods::read(context, id).await);
        if let Ok(read) = timeout_at(give_up, read).await {
            let read = read?;
            waiting = read.unstarted()?;
            let young = steady.young(&read, monotonic());
            if let Some(why) = &waiting {
                progress.say(why);
            }
            waiting = waiting.or(young);
            if waiting.is_none() {
                return Ok(());
            }
        }
        if monotonic() + STARTED_EVERY > give_up {
            let which =
                waiting.unwrap_or_else(|| "it is not known which pods have started".to_owned());
            return Err(failure(
                format!("gave up waiting: {which}"),
                format!("the change itself is made; see its pods: rcfarm rc explain {id}"),
            ));
        }
        tokio::time::sleep(STARTED_EVERY).await;
    }
}

/// The pods of a controller on nodes with an agent of ours.
struct StartedPods {
    places: Vec<PodRef>,
    statuses: BTreeMap<String, Entry>,
    intents: BTreeMap<String, Entry>,
    /// The token may not read intents: a status counts whatever intent it is about.
    are_intents_hidden: bool,
    /// Whether the farm moves a pod that its node cannot start.
    is_dynamic: bool,
}

fn status_key(place: &PodRef) -> Key {
    key::pod_status(&place.pod, &place.node)
}

fn intent_key(place: &PodRef) -> Key {
    key::intent(&place.node, &place.pod)
}

impl StartedPods {
    async fn read(context: &CommandContext, id: RcId) -> Result<StartedPods, StoreError> {
        let trees = [key::labels(LabelKind::Pod), key::nodes()];
        let seen = ClusterSnapshot::read_once(context.store.as_ref(), trees).await?;
        let places = seen.pods.of_rc(id).map(|(place, _)| place);
        let has_agent = |place: &&PodRef| seen.records.has_live_agent(&place.node);
        let places: Vec<PodRef> = places.filter(has_agent).cloned().collect();
        let record = context.get(&key::rc(id)).await?;
        let record = record.and_then(|entry| RcRecord::decode(&entry.value).ok());
        let is_dynamic =
            record.is_some_and(|one| one.allocation_strategy == RcStrategy::Dynamic.as_str());
        let statuses = context.get_many(places.iter().map(status_key)).await?;
        let intents = context.get_many(places.iter().map(intent_key)).await?;
        let has_intent = |place| intents.contains_key(intent_key(place).as_str());
        let are_intents_hidden = !places.iter().all(has_intent)
            && !may_read(context.store.as_ref(), &key::intents()).await?;
        Ok(StartedPods { places, statuses, intents, are_intents_hidden, is_dynamic })
    }

    /// What the node of a pod says of its present intent.
    fn status(&self, place: &PodRef) -> Option<PodStatus> {
        let intent = self.intents.get(intent_key(place).as_str()).map(|entry| entry.modify_index);
        let entry = self.statuses.get(status_key(place).as_str())?;
        let status = PodStatus::decode(&entry.value).ok()?;
        (self.are_intents_hidden || status.is_of(intent)).then_some(status)
    }

    /// A pod that has not started yet or is being restarted, and what its node says.
    ///
    /// # Errors
    /// A pod cannot start, and will not be moved to another node.
    fn unstarted(&self) -> anyhow::Result<Option<String>> {
        let mut waiting = None;
        for place in &self.places {
            let PodRef { node, pod } = place;
            let Some(status) = self.status(place) else {
                waiting.get_or_insert_with(|| format!("{pod} on {node} has not started"));
                continue;
            };
            let restarting = restarting(&status);
            let PodStatus { status: launched, phase, message, cannot_start, processes, .. } =
                status;
            let mut exits = processes.iter().filter_map(|process| process.last_exit.as_ref());
            let is_of_the_program = exits.any(|exit| exit.reason == Some(ExitReason::StartError));
            let is_lost = cannot_start.is_some() && (is_of_the_program || !self.is_dynamic);
            let hint = if phase == NodePodPhase::Unfit || is_lost && is_of_the_program {
                Some(format!("correct the manifest: rcfarm rc update {} -f FILE", place.pod))
            } else {
                let see = || {
                    format!("see to the node: rcfarm pod get {} --node {}", place.pod, place.node)
                };
                is_lost.then(see)
            };
            let why = cannot_start.unwrap_or(message);
            if let Some(hint) = hint {
                let what = format!("pod {} cannot start on {}: {why}", place.pod, place.node);
                return Err(failure(what, hint));
            }
            if launched != "launched" {
                let why = if why.is_empty() { why } else { format!(": {why}") };
                waiting.get_or_insert_with(|| format!("{pod} on {node} has not started{why}"));
            } else if let Some(how) = restarting {
                waiting.get_or_insert_with(|| format!("{pod} on {node} is restarted: {how}"));
            }
        }
        Ok(waiting)
    }
}

/// How a process has ended that is restarted again and again, or waits for its restart.
fn restarting(status: &PodStatus) -> Option<String> {
    let waits = || {
        let down = status.processes.iter().find(|one| one.phase == NodePodPhase::Backoff)?;
        Some(format!("{}: {}", down.launchable_id, down.message))
    };
    status.restarting.clone().or_else(waits)
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
    tokio::select! {
        biased;
        updated = until(context, id, index, timeout, is_updated) => updated,
        error = cannot_start(context, id, index) => Err(error),
    }
}

/// Interval at which an update looks for pods that cannot start.
const CANNOT_START_EVERY: Duration = Duration::from_secs(2);

/// Waits until a pod whose intent is newer than `index` cannot start; says why.
async fn cannot_start(context: &CommandContext, id: RcId, index: Index) -> anyhow::Error {
    loop {
        tokio::time::sleep(CANNOT_START_EVERY).await;
        let read = context.persist(async || StartedPods::read(context, id).await).await;
        if let Ok(mut read) = read {
            let StartedPods { places, intents, .. } = &mut read;
            let is_newer = |entry: &Entry| entry.modify_index > index;
            places.retain(|place| intents.get(intent_key(place).as_str()).is_some_and(is_newer));
            if let Err(error) = read.unstarted() {
                return error;
            }
        }
    }
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
            None => {
                let read = context.persist(async || Unseen::read(context, id).await);
                let Ok(unseen) = timeout_at(give_up, read).await else { continue };
                match unseen? {
                    Unseen::Deleted => {
                        let hint = "see which there are: rcfarm rc list";
                        return Err(failure(format!("{id} was deleted"), hint));
                    }
                    Unseen::Elsewhere { current, desired } => {
                        said = format!(
                            "{current} of {desired} pods scheduled, by another program's farm"
                        );
                        progress.say(&said);
                        if current == desired {
                            return Ok(());
                        }
                    }
                    Unseen::Waiting => progress.say(&said),
                }
            }
        }
    }
}

/// A record without a status for its present index.
enum Unseen {
    Deleted,
    /// A farm of p2 owns it, which writes no status.
    Elsewhere {
        current: i64,
        desired: i64,
    },
    Waiting,
}

impl Unseen {
    async fn read(context: &CommandContext, id: RcId) -> Result<Unseen, StoreError> {
        let Some(entry) = context.get(&key::rc(id)).await? else { return Ok(Unseen::Deleted) };
        if !owned_elsewhere(context).await?.contains(&id) {
            return Ok(Unseen::Waiting);
        }
        let counted = count_pods(context, &BTreeSet::from([id])).await?;
        let current = counted.get(&id).copied().unwrap_or_default().current.into();
        let record = RcRecord::decode(&entry.value).ok();
        let desired = record.map_or(0, |record| record.replicas_desired);
        Ok(Unseen::Elsewhere { current, desired })
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
        // The message names nodes or numbers that come and go.
        let why = match condition.reason {
            RcReason::PlaceTaken => {
                "PlaceTaken: another record has a pod of this id there".to_owned()
            }
            reason => reason.to_string(),
        };
        text.push_str(&format!(" ({why})"));
    }
    for kind in [RcConditionType::Updated, RcConditionType::Running] {
        if let Some(condition) = status.condition(kind).filter(|c| !c.status) {
            text.push_str(&format!("; {}", condition.message));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_api::Timestamp;
    use rcfarm_api::node::status::LastExit;

    fn unstarted(is_dynamic: bool, status: &PodStatus) -> Result<bool, String> {
        let unstarted = pods(is_dynamic, status).unstarted();
        unstarted.map(|waiting| waiting.is_some()).map_err(|error| format!("{error:#?}"))
    }

    fn pods(is_dynamic: bool, status: &PodStatus) -> StartedPods {
        let place = PodRef { node: "n1".parse().unwrap(), pod: "web".parse().unwrap() };
        let key = status_key(&place).to_string();
        let entry = Entry {
            key: key.clone(),
            value: status.encode(),
            flags: 0,
            session: None,
            lock_index: 0,
            create_index: Index::ZERO,
            modify_index: Index::ZERO,
        };
        let statuses = BTreeMap::from([(key, entry)]);
        StartedPods {
            places: vec![place],
            statuses,
            intents: BTreeMap::new(),
            are_intents_hidden: false,
            is_dynamic,
        }
    }

    /// One that is seen between two ends runs, and has been launched.
    #[test]
    fn pod_that_is_restarted_has_not_started() {
        let exit =
            LastExit { time: Timestamp::default(), exit_code: 1, exit_status: 0, reason: None };
        let process = |phase, last_exit| ProcessStatus {
            launchable_id: "main".to_owned(),
            phase,
            pid: Some(7),
            last_exit,
            message: "exited with 1".to_owned(),
            ..ProcessStatus::default()
        };
        let status = |process| PodStatus {
            status: "launched".to_owned(),
            processes: vec![process],
            ..PodStatus::default()
        };
        let waits = status(process(NodePodPhase::Backoff, Some(exit.clone())));
        assert_eq!(unstarted(true, &waits), Ok(true));
        let again = status(process(NodePodPhase::Running, Some(exit.clone())));
        let looping =
            PodStatus { restarting: Some("main: exited with 1".to_owned()), ..again.clone() };
        assert_eq!(unstarted(true, &looping), Ok(true));

        let now = monotonic();
        for (status, least) in
            [(status(process(NodePodPhase::Running, None)), STEADY), (again, STEADY_AGAIN)]
        {
            let (pods, mut steady) = (pods(true, &status), SteadyProcesses::default());
            assert!(steady.young(&pods, now).is_some_and(|why| why.contains("main has not run")));
            assert!(steady.young(&pods, now + least - STARTED_EVERY).is_some());
            assert_eq!(steady.young(&pods, now + least), None);
            let mut later = pods;
            for entry in later.statuses.values_mut() {
                let mut status = PodStatus::decode(&entry.value).unwrap();
                status.processes[0].pid = Some(8);
                entry.value = status.encode();
            }
            assert!(steady.young(&later, now + least).is_some(), "another process");
        }
    }

    #[test]
    fn only_a_pod_that_stays_where_it_cannot_start_ends_the_wait() {
        let cannot_start = Some("main: no space left on device".to_owned());
        let of_the_node =
            PodStatus { phase: NodePodPhase::Backoff, cannot_start, ..PodStatus::default() };
        assert_eq!(unstarted(true, &of_the_node), Ok(true), "the farm moves it");
        let error = unstarted(false, &of_the_node).unwrap_err();
        assert!(error.contains("no space left") && error.contains("see to the node"), "{error}");
        let exit = LastExit {
            time: Timestamp::default(),
            exit_code: 128,
            exit_status: 0,
            reason: Some(ExitReason::StartError),
        };
        let process = ProcessStatus { last_exit: Some(exit), ..ProcessStatus::default() };
        let of_the_program = PodStatus { processes: vec![process], ..of_the_node };
        let unfit = PodStatus { phase: NodePodPhase::Unfit, ..PodStatus::default() };
        for status in [of_the_program, unfit] {
            let error = unstarted(true, &status).unwrap_err();
            assert!(error.contains("correct the manifest"), "{error}");
        }
        let running = PodStatus { status: "launched".to_owned(), ..PodStatus::default() };
        assert_eq!(unstarted(false, &running), Ok(false));
    }
}
