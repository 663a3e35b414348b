//! Gangs that need several transactions, with a farm that dies or an answer that is lost in between.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcfarm::job::writes::mark_of;
use rcfarm_api::audit::Details;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_api::labels::decode_labels;
use rcfarm_api::pod_group::pod_ids::PodIdFormat;
use rcfarm_emulator::{Fate, FaultOutcome, Request};
use serde_json::json;

use crate::harness::{Cluster, RunningFarm, SECOND};
use rcfarm_testing::wait::within;

const MEMBERS: usize = 150;
/// 28 pods in the first transaction of the batched start, the rest in five more; one transaction before it and one
/// after.
const TRANSACTIONS: usize = 9;

fn job() -> Namespaced {
    "default/j".parse().unwrap()
}

/// Farm whose `nth` transaction for the job (and all later ones, if it `dies`) has the outcome `fate`.
fn farm(
    cluster: &Cluster,
    nth: usize,
    fate: FaultOutcome,
    dies: bool,
) -> (RunningFarm, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let made = count.clone();
    let farm = cluster.start_faulty("a", move |request: &Request<'_>| {
        let Request::Txn(ops) = request else { return Fate::DELIVER };
        // Such transactions write the job's status or check it.
        if !ops.iter().any(|op| op.key.starts_with("rcfarm/job_status/")) {
            return Fate::DELIVER;
        }
        match made.fetch_add(1, Ordering::SeqCst) {
            n if n == nth => Fate::of(fate.clone()),
            n if n > nth && dies => Fate::of(FaultOutcome::Lose),
            _ => Fate::DELIVER,
        }
    });
    (farm, count)
}

async fn submit(cluster: &Cluster, suspend: bool) {
    submit_needing(cluster, MEMBERS, suspend).await;
}

async fn submit_needing(cluster: &Cluster, enough: usize, suspend: bool) {
    let task = json!({"name": "w", "replicas": MEMBERS, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}]}}});
    let spec = json!({"spec": {"tasks": [task], "minAvailable": enough, "suspend": suspend}});
    cluster.put(key::job(&job()), spec.to_string()).await;
}

async fn status(cluster: &Cluster) -> JobStatus {
    cluster.read(key::job_status(&job())).await.unwrap_or_default()
}

async fn intents(cluster: &Cluster) -> usize {
    cluster.list(&key::intents()).await.len()
}

/// Waits until each pod exists as its first attempt, created once, and no start is in progress.
async fn all_once(cluster: &Cluster, what: &str) {
    within(60 * SECOND, &format!("all are there: {what}"), || async {
        intents(cluster).await == MEMBERS && !status(cluster).await.is_starting()
    })
    .await;
    let pods = cluster.list(&key::labels(key::LabelKind::Pod)).await;
    let identities = pods.iter().map(|entry| mark_of(&decode_labels(&entry.value).unwrap()));
    let identities: Vec<_> = identities.map(Option::unwrap).collect();
    let slots: BTreeSet<_> = identities.iter().map(|identity| &identity.slot).collect();
    assert_eq!((identities.len(), slots.len()), (MEMBERS, MEMBERS), "{what}");
    assert!(
        identities.iter().all(|identity| (identity.version, identity.attempt) == (0, 0)),
        "{what}"
    );
    let mut added = Vec::new();
    for record in cluster.audit().await {
        if let Details::JobStep(step) = record.details().unwrap() {
            added.extend(step.pods_added);
        }
    }
    assert_eq!(added.len(), MEMBERS, "each stands in the log once: {what}");
    let status = status(cluster).await;
    assert_eq!(status.tasks["w"].started.iter().count(), MEMBERS);
    assert_eq!((status.retry_count, status.tasks["w"].attempts.len()), (0, 0), "{what}");
}

#[tokio::test(start_paused = true)]
async fn batched_start_writes_the_status_twice() {
    let cluster = Cluster::new(4).await;
    let (farm, count) = farm(&cluster, usize::MAX, FaultOutcome::Deliver, false);
    tokio::time::sleep(5 * SECOND).await;
    submit(&cluster, false).await;
    all_once(&cluster, "nothing happens").await;
    tokio::time::sleep(5 * SECOND).await;
    let revision = usize::try_from(status(&cluster).await.revision).unwrap();
    assert_eq!((count.load(Ordering::SeqCst), revision), (8, 3), "five of them do not write it");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn next_owner_finishes_a_batched_start() {
    for fate in [FaultOutcome::Lose, FaultOutcome::LoseReply] {
        for nth in 0..TRANSACTIONS {
            let what = format!("{fate:?} of the {nth}th");
            let cluster = Cluster::new(4).await;
            let (farm, count) = farm(&cluster, nth, fate.clone(), true);
            submit(&cluster, false).await;
            within(20 * SECOND, "its last transaction", || async {
                count.load(Ordering::SeqCst) > nth || intents(&cluster).await == MEMBERS
            })
            .await;
            farm.kill().await;
            let heir = cluster.start("b");
            all_once(&cluster, &what).await;
            heir.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn batched_start_reads_back_after_a_lost_answer() {
    let late =
        [1, 20, 60, 120, 3_000].map(std::time::Duration::from_millis).map(FaultOutcome::Late);
    for fate in [FaultOutcome::Lose, FaultOutcome::LoseReply].into_iter().chain(late) {
        for nth in 0..TRANSACTIONS {
            let cluster = Cluster::new(4).await;
            let (farm, _) = farm(&cluster, nth, fate.clone(), false);
            submit(&cluster, false).await;
            all_once(&cluster, &format!("{fate:?} of the {nth}th")).await;
            farm.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn batched_start_of_an_aborted_job_is_rolled_back() {
    for deleted in [true, false] {
        for nth in 1..TRANSACTIONS {
            let what = format!("deleted {deleted}, after the {nth}th");
            let cluster = Cluster::new(4).await;
            let (farm, count) = farm(&cluster, nth, FaultOutcome::Lose, true);
            submit(&cluster, false).await;
            within(20 * SECOND, "its last transaction", || async {
                count.load(Ordering::SeqCst) > nth || intents(&cluster).await == MEMBERS
            })
            .await;
            farm.kill().await;
            match deleted {
                true => cluster.delete(key::job(&job())).await,
                false => submit(&cluster, true).await,
            }
            let heir = cluster.start("b");
            within(60 * SECOND, &format!("nothing is left: {what}"), || async {
                let phase = status(&cluster).await.state.phase;
                let is_over = deleted || phase == JobPhase::Aborted;
                let group = cluster.entry(key::pod_group(&job())).await;
                is_over && intents(&cluster).await == 0 && group.is_none()
            })
            .await;
            if !deleted {
                let last = status(&cluster).await;
                let is_started = last.tasks.get("w").is_some_and(|w| !w.started.is_empty());
                assert!(!is_started && !last.is_starting(), "{what}");
                assert_eq!(last.retry_count, 0, "{what}");
            }
            heir.stop().await;
        }
    }
}

/// A pod of another owner has the id of a member. The others start if they are enough; otherwise none does. The job
/// reports the conflict.
#[tokio::test(start_paused = true)]
async fn conflicting_pod_blocks_its_own_member_or_the_whole_gang() {
    for (enough, started) in [(MEMBERS - 1, MEMBERS - 1), (MEMBERS, 0)] {
        let cluster = Cluster::new(1).await;
        let node = crate::harness::node(0);
        let pod = PodIdFormat::Hashed.pod_id(&job(), "w", 140).unwrap();
        let (labels, intent) = (key::pod_labels(&node, &pod), key::intent(&node, &pod));
        cluster.put(intent.as_str(), format!("id: {pod}\n")).await;
        let farm = cluster.start("a");
        submit_needing(&cluster, enough, false).await;
        within(60 * SECOND, "it says so", || async {
            intents(&cluster).await == started + 1
                && status(&cluster).await.state.reason == "PlaceTaken"
        })
        .await;
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(intents(&cluster).await, started + 1, "{enough} are needed");
        cluster.delete(intent.as_str()).await;
        within(60 * SECOND, "all are there", || async {
            let own = cluster.entry(&labels).await.is_some();
            own && intents(&cluster).await == MEMBERS
        })
        .await;
        farm.stop().await;
    }
}

/// The payload stands in each manifest, so a transaction has few of them.
#[tokio::test(start_paused = true)]
async fn members_with_the_largest_payload_start_in_several_transactions() {
    let cluster = Cluster::new(4).await;
    let (farm, count) = farm(&cluster, usize::MAX, FaultOutcome::Deliver, false);
    // 16 KiB in base64.
    let payload = format!("{}AA==", "A".repeat(21_844));
    let task = json!({"name": "w", "replicas": MEMBERS, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}]}}});
    let document = json!({"metadata": {"annotations": {"rcfarm/payload": payload}},
        "spec": {"tasks": [task]}});
    cluster.put(key::job(&job()), document.to_string()).await;
    all_once(&cluster, "the largest payload").await;
    let manifests = cluster.list(&key::intents()).await;
    let has_payload =
        |value: &[u8]| value.windows(21_844).any(|part| part.iter().all(|b| *b == b'A'));
    assert!(manifests.iter().all(|entry| has_payload(&entry.value)));
    // About 15 pods each: Consul takes 512 KiB, a third more in base64.
    let made = count.load(Ordering::SeqCst);
    assert!((MEMBERS / 17..MEMBERS / 8).contains(&made), "{made} transactions");
    farm.stop().await;
}
