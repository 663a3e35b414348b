//! Jobs that get their cells back from jobs that they were lent to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cells::{cluster, devices, group, id, nodes, phase, submit};
use crate::harness::{Cluster, RunningFarm, SECOND};
use rcfarm_api::audit::Details;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_emulator::{Fate, FaultOutcome, Request};
use rcfarm_testing::wait::within;

async fn status(cluster: &Cluster, name: &str) -> JobStatus {
    cluster.read(key::job_status(&id(name))).await.unwrap_or_default()
}

async fn runs(cluster: &Cluster, name: &str) {
    within(600 * SECOND, &format!("{name} runs"), || async {
        phase(cluster, name).await == Some(JobPhase::Running)
    })
    .await;
}

const LENT: &str = "priority: -1";

#[tokio::test(start_paused = true)]
async fn guaranteed_job_evicts_and_says_so_and_the_victim_runs_again() {
    let cluster = cluster().await;
    let (farm, nodes) = (cluster.start("a"), nodes(&cluster));
    submit(&cluster, "lent", "A", &[(4, 4)], LENT).await;
    runs(&cluster, "lent").await;
    submit(&cluster, "own", "B", &[(2, 4)], "priority: 0").await;
    runs(&cluster, "own").await;
    assert_eq!(devices(&cluster, "own").await.len(), 2);
    within(60 * SECOND, "lent waits", || async {
        phase(&cluster, "lent").await == Some(JobPhase::Pending)
    })
    .await;
    let lent = status(&cluster, "lent").await;
    assert_eq!((lent.version, lent.retry_count), (1, 0), "a new attempt that counts as none");
    assert!(lent.state.message.contains("for default/own"), "{:?}", lent.state);
    let told: Vec<String> = cluster.audit().await.into_iter().filter_map(evicted).collect();
    assert_eq!(told, ["default/lent for default/own"]);
    cluster.delete(key::job(&id("own"))).await;
    runs(&cluster, "lent").await;
    let starts = nodes.starts();
    assert_eq!((starts["lent-t0-0"], starts["own-t0-0"]), (2, 1));
    farm.stop().await;
}

/// The eviction in an audit record.
fn evicted(record: rcfarm_api::audit::AuditRecord) -> Option<String> {
    let Details::GroupsOrdered(ordered) = record.details().ok()? else { return None };
    let mut evicted = ordered.groups.iter().filter(|group| {
        group.reason == "Evicted"
            && group.from == group.to
            && group.from.as_deref() != Some("Pending")
    });
    let group = evicted.next()?;
    Some(format!("{} for {}", group.group, group.preemptor.as_ref()?))
}

/// Farm that is cut off from its `deadly`-th transaction of a scheduler or a job on.
fn mortal(cluster: &Cluster, deadly: usize, fate: FaultOutcome) -> (RunningFarm, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let counter = made.clone();
    let farm = cluster.start_faulty("dies", move |request: &Request<'_>| {
        let Request::Txn(ops) = request else { return Fate::DELIVER };
        let of = |prefix: &str| ops.iter().any(|op| op.key.starts_with(prefix));
        if !of("rcfarm/scheduler_status/") && !of("rcfarm/job_status/") {
            return Fate::DELIVER;
        }
        match counter.fetch_add(1, Ordering::SeqCst) {
            n if n < deadly => Fate::DELIVER,
            n if n == deadly => Fate::of(fate.clone()),
            _ => Fate::of(FaultOutcome::Lose),
        }
    });
    (farm, made)
}

/// The next farm finishes what the dead one began: one job is evicted, once, and the other never.
#[tokio::test(start_paused = true)]
async fn farm_that_dies_at_any_transaction_of_a_preemption_evicts_nobody_twice() {
    for fate in [FaultOutcome::Lose, FaultOutcome::LoseReply] {
        for deadly in 0.. {
            let cluster = cluster().await;
            let (farm, nodes) = (cluster.start("a"), nodes(&cluster));
            for name in ["lent-0", "lent-1"] {
                submit(&cluster, name, "A", &[(2, 4)], LENT).await;
                runs(&cluster, name).await;
            }
            farm.stop().await;
            submit(&cluster, "own", "B", &[(1, 4)], "priority: 0").await;
            let (farm, made) = mortal(&cluster, deadly, fate.clone());
            within(600 * SECOND, "its last transaction", || async {
                made.load(Ordering::SeqCst) > deadly
                    || phase(&cluster, "own").await == Some(JobPhase::Running)
            })
            .await;
            farm.kill().await;
            let next = cluster.start("lives");
            runs(&cluster, "own").await;
            within(600 * SECOND, "no eviction is left", || async {
                let [a, b] = [group(&cluster, "lent-0").await, group(&cluster, "lent-1").await];
                a.evicted().is_none() && b.evicted().is_none()
            })
            .await;
            let versions = [
                status(&cluster, "lent-0").await.version,
                status(&cluster, "lent-1").await.version,
            ];
            assert_eq!(versions.iter().sum::<u64>(), 1, "{fate:?} {deadly}: {versions:?}");
            let retries = status(&cluster, "lent-0").await.retry_count
                + status(&cluster, "lent-1").await.retry_count;
            assert_eq!(retries, 0, "{fate:?} {deadly}");
            assert_eq!(nodes.starts()["own-t0-0"], 1, "{fate:?} {deadly}");
            next.stop().await;
            if made.load(Ordering::SeqCst) <= deadly {
                assert!(deadly > 4, "{deadly}: it was never cut off");
                break;
            }
        }
    }
}
