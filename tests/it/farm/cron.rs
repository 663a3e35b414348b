//! CronJobs with farms and fake nodes, in virtual time. Clocks show 2026-01-01T00:00:00Z at the start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rcfarm_api::audit::Details;
use rcfarm_api::cron::{CronReason, CronStatus, RunState};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::key;
use rcfarm_emulator::FaultOutcome;
use rcfarm_testing::fake_nodes::{FakeNodes, FakePod};
use rcfarm_testing::wait::within;
use serde_json::{Value, json};

use crate::harness::{Cluster, SECOND};

/// Minutes from 1970 to the start.
const START: u64 = 29_453_760;

fn id() -> Namespaced {
    "default/c".parse().unwrap()
}

/// Nodes on which pods end with this code at once.
fn nodes(cluster: &Cluster, code: i32) -> FakeNodes {
    let exit_code = move |pod: &FakePod<'_>| (!pod.is_new).then_some(code);
    let store = Arc::new(cluster.store.clone());
    FakeNodes::start(store, cluster.clock.clone(), Box::new(exit_code))
}

fn document(fields: Value) -> Value {
    let task = json!({"name": "t", "replicas": 1, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}]}}});
    let mut spec = json!({"schedule": "*/10 * * * *", "jobTemplate": {"spec": {"tasks": [task]}}});
    for (name, value) in fields.as_object().unwrap() {
        spec[name] = value.clone();
    }
    json!({"kind": "CronJob", "spec": spec})
}

async fn submit(cluster: &Cluster, fields: Value) {
    cluster.put(key::cron_job(&id()), document(fields).to_string()).await;
}

async fn status(cluster: &Cluster) -> CronStatus {
    cluster.read(key::cron_job_status(&id())).await.unwrap_or_default()
}

/// The last segments of the keys of jobs.
async fn jobs(cluster: &Cluster) -> Vec<String> {
    let prefix = key::jobs();
    let keys = cluster.keys(&prefix).await;
    let names = keys.iter().filter(|key| !prefix.is_sentinel(key));
    names.map(|key| key.rsplit('/').next().unwrap().to_owned()).collect()
}

fn name(minutes: u64) -> String {
    format!("c-{}", START + minutes)
}

/// How often each job was created, by the steps of the CronJob and by the changes of jobs.
async fn made(cluster: &Cluster) -> [BTreeMap<String, usize>; 2] {
    let mut made = [BTreeMap::new(), BTreeMap::new()];
    for record in cluster.audit().await {
        match record.details().unwrap() {
            Details::RecordStep(step) => {
                for job in step.jobs_created {
                    *made[0].entry(job).or_default() += 1;
                }
            }
            Details::JobChanged(change) if change.action == "Created" => {
                *made[1].entry(change.job.name.to_string()).or_default() += 1;
            }
            _ => {}
        }
    }
    made
}

#[tokio::test(start_paused = true)]
async fn cron_makes_jobs_and_keeps_the_newest_that_ended() {
    let cluster = Arc::new(Cluster::new(2).await);
    let _nodes = nodes(&cluster, 0);
    let farm = cluster.start("a");
    submit(&cluster, json!({"successfulJobsHistoryLimit": 2})).await;
    tokio::time::sleep(9 * 60 * SECOND).await;
    assert!(jobs(&cluster).await.is_empty(), "nothing is due yet");
    tokio::time::sleep(42 * 60 * SECOND).await;
    assert_eq!(jobs(&cluster).await, [name(40), name(50)]);
    let status = status(&cluster).await;
    assert_eq!(status.reason, CronReason::Scheduled);
    assert!(status.jobs.iter().all(|run| run.state == RunState::Succeeded), "{status:?}");
    assert_eq!(status.last_schedule_time.unwrap().to_string(), "2026-01-01T00:50:00Z");
    assert!(status.last_successful_time > status.last_schedule_time);
    let [steps, changes] = made(&cluster).await;
    assert_eq!(steps.keys().cloned().collect::<Vec<_>>(), [10, 20, 30, 40, 50].map(name));
    assert_eq!(steps, changes);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn volcanos_example_runs_every_five_minutes() {
    let cluster = Arc::new(Cluster::new(2).await);
    let _nodes = nodes(&cluster, 0);
    let farm = cluster.start("a");
    let text = include_str!("../../../testdata/upstream/volcano-flows/cronjob.yaml");
    let document = rcfarm::job::document::from_yaml(text).unwrap();
    let id: Namespaced = "default/volcano-cronjob-example".parse().unwrap();
    cluster.put(key::cron_job(&id), document.to_string()).await;
    tokio::time::sleep(31 * 60 * SECOND).await;
    let status: CronStatus = cluster.read(key::cron_job_status(&id)).await.unwrap();
    let runs = [2, 3, 4, 5, 6].map(|n| format!("{}-{}", id.name, START + n * 5));
    assert_eq!(jobs(&cluster).await, runs, "five are kept");
    assert!(status.jobs.iter().all(|run| run.state == RunState::Succeeded), "{status:?}");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn policies_decide_while_a_job_is_active() {
    for (policy, left, reason) in [
        ("Allow", vec![name(10), name(20)], CronReason::Scheduled),
        ("Forbid", vec![name(10)], CronReason::JobAlreadyActive),
        ("Replace", vec![name(20)], CronReason::Scheduled),
    ] {
        // No node: jobs wait.
        let cluster = Cluster::new(0).await;
        let farm = cluster.start("a");
        submit(&cluster, json!({"concurrencyPolicy": policy})).await;
        tokio::time::sleep(21 * 60 * SECOND).await;
        assert_eq!(jobs(&cluster).await, left, "{policy}");
        let status = status(&cluster).await;
        assert_eq!((status.reason, status.active().count()), (reason, left.len()), "{policy}");
        if policy == "Forbid" {
            // Its last job goes: the run that waits is made.
            cluster.delete(key::job(&format!("default/{}", left[0]).parse().unwrap())).await;
            tokio::time::sleep(8 * 60 * SECOND).await;
            assert_eq!(jobs(&cluster).await, [name(20)]);
        }
        farm.stop().await;
    }
}

/// Begin, make, note the end, trim the history: each is a transaction at which the farm dies once.
#[tokio::test(start_paused = true)]
async fn killed_farm_makes_each_run_once_at_every_transaction() {
    for fate in [FaultOutcome::Lose, FaultOutcome::LoseReply] {
        for nth in 0..7 {
            let what = format!("{fate:?} of the {nth}th");
            let cluster = Arc::new(Cluster::new(2).await);
            let _nodes = nodes(&cluster, 0);
            let (farm, count) =
                cluster.start_dying(&["rcfarm/cron_job_status/"], nth, fate.clone());
            submit(&cluster, json!({"successfulJobsHistoryLimit": 1})).await;
            within(3600 * SECOND, &what, || async { count.load(Ordering::SeqCst) > nth }).await;
            farm.kill().await;
            let heir = cluster.start("b");
            let long = nth * 5 + 25;
            tokio::time::sleep(60 * SECOND * u32::try_from(long).unwrap()).await;
            let [steps, changes] = made(&cluster).await;
            assert!(
                steps.values().chain(changes.values()).all(|times| *times == 1),
                "{what}: {steps:?}"
            );
            assert_eq!(steps, changes, "{what}");
            let first: u64 = steps.keys().next().unwrap()[2..].parse().unwrap();
            let expected: Vec<String> =
                (0..steps.len()).map(|n| format!("c-{}", first + 10 * n as u64)).collect();
            assert_eq!(
                steps.keys().cloned().collect::<Vec<_>>(),
                expected,
                "{what}: none is left out"
            );
            // The last one may have just been made.
            within(300 * SECOND, &format!("one is kept: {what}"), || async {
                let kept = status(&cluster).await.jobs;
                kept.len() == 1 && jobs(&cluster).await == [kept[0].name.to_string()]
            })
            .await;
            heir.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_takes_the_jobs_and_deletion_by_hand_leaves_them() {
    for by_hand in [false, true] {
        let cluster = Cluster::new(0).await;
        let farm = cluster.start("a");
        submit(&cluster, json!({})).await;
        tokio::time::sleep(21 * 60 * SECOND).await;
        assert_eq!(jobs(&cluster).await.len(), 2);
        if by_hand {
            cluster.delete(key::cron_job(&id())).await;
        } else {
            let mut document = document(json!({}));
            document["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:21:00Z"});
            cluster.put(key::cron_job(&id()), document.to_string()).await;
        }
        within(30 * SECOND, "its keys are gone", || async {
            let keys = [key::cron_job(&id()), key::cron_job_status(&id())];
            cluster.entry(&keys[0]).await.is_none() && cluster.entry(&keys[1]).await.is_none()
        })
        .await;
        within(30 * SECOND, "its jobs are gone or stay", || async {
            jobs(&cluster).await.len() == if by_hand { 2 } else { 0 }
        })
        .await;
        // A new one of the name has nothing of the old one, whose jobs keep their names.
        submit(&cluster, json!({})).await;
        tokio::time::sleep(10 * 60 * SECOND).await;
        assert!(jobs(&cluster).await.contains(&name(30)), "{by_hand}");
        assert_eq!(status(&cluster).await.jobs.len(), 1);
        farm.stop().await;
    }
}

/// No record of the kind is claimed any more, so nothing but the look for leftovers finds it.
#[tokio::test(start_paused = true)]
async fn status_of_a_cron_job_deleted_without_a_farm_is_collected() {
    let cluster = Cluster::new(0).await;
    let farm = cluster.start("a");
    submit(&cluster, json!({})).await;
    let is_there = async || cluster.entry(key::cron_job_status(&id())).await.is_some();
    within(60 * SECOND, "its status", || async { is_there().await }).await;
    farm.stop().await;
    let status = cluster.entry(key::cron_job_status(&id())).await.unwrap();
    cluster.delete(key::cron_job(&id())).await;
    let farm = cluster.start("b");
    within(60 * SECOND, "collected at the start", || async { !is_there().await }).await;
    // As from a backup that has the status alone.
    cluster.put(key::cron_job_status(&id()), status.value).await;
    within(600 * SECOND, "collected by the periodic look", || async { !is_there().await }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_jobs_name_and_a_bad_record_make_no_job() {
    let cluster = Cluster::new(0).await;
    let farm = cluster.start("a");
    let other: Namespaced = format!("default/{}", name(10)).parse().unwrap();
    cluster.put(key::job(&other), "{}").await;
    submit(&cluster, json!({})).await;
    tokio::time::sleep(11 * 60 * SECOND).await;
    let now = status(&cluster).await;
    assert_eq!((now.reason, now.jobs.len()), (CronReason::JobNameTaken, 0), "{}", now.message);
    assert_eq!(cluster.get(key::job(&other)).await.unwrap(), "{}", "it is left as it is");
    submit(&cluster, json!({"schedule": "0 0 30 2 *"})).await;
    tokio::time::sleep(10 * SECOND).await;
    let now = status(&cluster).await;
    assert_eq!(now.reason, CronReason::InvalidRecord);
    assert!(now.message.contains("spec.schedule"), "{}", now.message);
    submit(&cluster, json!({"suspend": true})).await;
    tokio::time::sleep(30 * 60 * SECOND).await;
    let now = status(&cluster).await;
    assert_eq!((now.reason, now.last_error), (CronReason::Suspended, None));
    assert_eq!(jobs(&cluster).await, [name(10)]);
    farm.stop().await;
}

/// Clocks are set: forward, and back over a run that was made.
#[tokio::test(start_paused = true)]
async fn clock_that_is_set_makes_no_run_twice() {
    let mut cluster = Cluster::new(0).await;
    let clock = rcfarm_testing::clock::VirtualClock::new(rcfarm_store::time::monotonic());
    cluster.clock = clock.clone();
    let farm = cluster.start("a");
    submit(&cluster, json!({})).await;
    tokio::time::sleep(11 * 60 * SECOND).await;
    clock.jump(-300);
    tokio::time::sleep(9 * 60 * SECOND).await;
    assert_eq!(jobs(&cluster).await, [name(10)], "00:10 comes again");
    clock.jump(3 * 3600);
    tokio::time::sleep(8 * 60 * SECOND).await;
    let made = jobs(&cluster).await;
    assert_eq!(made, [10, 190, 200].map(name), "the latest of those missed, then the next");
    farm.stop().await;
}

/// A machine was suspended, or its clock was wrong: who sleeps until a time of day looks again within a minute.
#[tokio::test(start_paused = true)]
async fn clock_set_forward_is_noticed_within_a_minute() {
    let mut cluster = Cluster::new(2).await;
    let clock = rcfarm_testing::clock::VirtualClock::new(rcfarm_store::time::monotonic());
    cluster.clock = clock.clone();
    let _nodes = nodes(&cluster, 0);
    let farm = cluster.start("a");
    submit(&cluster, json!({})).await;
    let mut kept = document(json!({}))["spec"]["jobTemplate"].clone();
    kept["spec"]["ttlSecondsAfterFinished"] = json!(7200);
    let ended: Namespaced = "default/ended".parse().unwrap();
    cluster.put(key::job(&ended), kept.to_string()).await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(jobs(&cluster).await, ["ended"]);
    // Nothing is due for nine minutes. Then a run is, and two hours later the end of the job's time to live.
    clock.jump(9 * 60 + 30);
    within(60 * SECOND, "the run that is due", || async {
        jobs(&cluster).await.contains(&name(10))
    })
    .await;
    clock.jump(7200);
    within(60 * SECOND, "the job that is to go", || async {
        !jobs(&cluster).await.contains(&"ended".to_owned())
    })
    .await;
    // Set back, it makes no run again.
    let made = jobs(&cluster).await;
    clock.jump(-3600);
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!(jobs(&cluster).await, made);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cron_jobs_at_rest_cost_no_requests() {
    let mut requests = Vec::new();
    for count in [0, 300] {
        let cluster = Cluster::new(0).await;
        for n in 0..count {
            let id: Namespaced = format!("default/c{n}").parse().unwrap();
            let yearly = document(json!({"schedule": format!("{} 12 1 7 *", n % 60)}));
            cluster.put(key::cron_job(&id), yearly.to_string()).await;
        }
        let (farm, counter) = cluster.start_counted("a");
        tokio::time::sleep(120 * SECOND).await;
        counter.reset();
        tokio::time::sleep(1800 * SECOND).await;
        requests.push(counter.total());
        farm.stop().await;
    }
    let more = requests[1].saturating_sub(requests[0]);
    // Blocking queries of two prefixes, and a periodic comparison of statuses.
    assert!(more <= 180, "{requests:?} requests in half an hour");
}
