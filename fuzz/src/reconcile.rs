//! Records of each kind and what stands beside them, written by anybody, through the whole reconcile of a farm over the
//! model. Nothing panics (libFuzzer's hook ends the process even if the panic is caught), and records that do not depend
//! on them are reconciled as if they were alone.

use std::sync::Arc;
use std::time::Duration;

use rcfarm::daemon::by_labels;
use rcfarm::farm::{Farm, FarmSettings, NODE_GRACE};
use rcfarm::placement::NoDiscovery;
use rcfarm_emulator::{Emulator, Settings};
use rcfarm_store::session::SessionSettings;
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_store::{Env, Key, Prefix, PutMode, Query, Reader as _, Store as _, TxnLimits};
use rcfarm_testing::clock::VirtualClock;
use tokio_util::sync::CancellationToken;

/// Keys that the parts of an input are written to. The first byte of a part chooses: `0` the first, `1` the second, …
/// Append to it: the order is part of every seed.
const KEYS: [&str; 34] = [
    "replication_controllers/f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0",
    "status/replication_controllers/f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0/rcfarm",
    "labels/replication_controller/f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0",
    "rcfarm/jobs/default/a",
    "rcfarm/job_status/default/a",
    "rcfarm/queues/q",
    "rcfarm/queue_status/q",
    "rcfarm/pod_groups/default/g",
    "rcfarm/pod_group_status/default/g",
    "rcfarm/schedulers/other",
    "rcfarm/scheduler_status/other",
    "rcfarm/commands/00000000-0000-4000-8000-000000000001",
    "rcfarm/nodes/n3",
    "labels/node/n3",
    "rcfarm/allocations/n3",
    "labels/pod/n3/x",
    "intent/n3/x",
    "reality/n3/x",
    "status/pods/x/n3",
    "health/x/n3",
    "rcfarm/cron_jobs/default/c",
    "rcfarm/cron_job_status/default/c",
    "rcfarm/job_templates/default/t",
    "rcfarm/job_flows/default/f",
    "rcfarm/job_flow_status/default/f",
    "rcfarm/priority_classes/p",
    "rcfarm/cells/config",
    "labels/job/default/a",
    "rcfarm/commands/default/00000000-0000-4000-8000-000000000002",
    "health/x/n1",
    "rcfarm/jobs/default/b",
    "rcfarm/job_status/default/b",
    "labels/cron_job/default/c",
    "labels/job_flow/default/f",
];

const CALM_RC: &str = "replication_controllers/00000000-0000-4000-8000-00000000ca11";

fn calm_rc(replicas: u32) -> String {
    format!(
        r#"{{"id":"00000000-0000-4000-8000-00000000ca11","manifest":"id: calm\n","node_selector":"pool=calm",
            "pod_labels":{{}},"replicas_desired":{replicas},"disabled":false,"allocation_strategy":"static_strategy"}}"#
    )
}

/// A job beside the fuzzed records.
fn calm_job(name: &str) -> String {
    format!(
        r#"{{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","metadata":{{"name":"{name}"}},"spec":{CALM_SPEC}}}"#
    )
}

const CALM_SPEC: &str = r#"{"queue":"calm","minAvailable":1,"tasks":[{"name":"t","replicas":1,"template":{"spec":
    {"nodeSelector":{"pool":"calm"},"containers":[{"name":"c","command":["true"]}]}}}]}"#;

/// What else must go on beside the fuzzed records: a CronJob that is due each minute, and a flow of one step.
fn calm_others() -> [(&'static str, String); 3] {
    [
        (
            "rcfarm/cron_jobs/calm/cron",
            format!(
                r#"{{"spec":{{"schedule":"* * * * *","jobTemplate":{{"spec":{CALM_SPEC}}}}}}}"#
            ),
        ),
        ("rcfarm/job_templates/calm/step", format!(r#"{{"spec":{CALM_SPEC}}}"#)),
        ("rcfarm/job_flows/calm/flow", r#"{"spec":{"flows":[{"name":"step"}]}}"#.to_owned()),
    ]
}

async fn put(consul: &Emulator, key: &str, value: &[u8]) {
    let key = Key::parse(key).expect("a legal key");
    let value = value.to_vec().into();
    assert!(consul.put(&key, value, 0, PutMode::Set).await.expect("a write"));
}

/// Number of intents for pods whose id begins so.
async fn intents(consul: &Emulator, pod: &str) -> usize {
    let intents = Prefix::parse("intent/").expect("a legal prefix");
    let keys = consul.keys(&intents, None, Query::PLAIN).await.expect("a read").value;
    keys.iter().filter(|key| key.split('/').nth(2).is_some_and(|id| id.starts_with(pod))).count()
}

/// Plays one input, in virtual time.
pub async fn run(input: &[u8]) {
    let ids = Arc::new(IdSource::from_seed(1));
    let consul = Emulator::new(&Settings::default(), &ids);
    for node in ["n1", "n2"] {
        put(&consul, &format!("labels/node/{node}"), br#"{"pool":"calm"}"#).await;
    }
    put(&consul, "labels/node/n3", br#"{"pool":"odd"}"#).await;
    put(&consul, "rcfarm/queues/calm", b"{}").await;
    put(&consul, "rcfarm/jobs/calm/job", calm_job("job").as_bytes()).await;
    put(&consul, CALM_RC, calm_rc(1).as_bytes()).await;
    let settings = FarmSettings {
        name: "f".parse().expect("a name"),
        selector: "".parse().expect("a selector"),
        session: SessionSettings::default(),
        limits: TxnLimits::default(),
        node_grace: NODE_GRACE,
        job_ttl: None,
        ssh_keys: rcfarm_store::sealing::KeySealing::Refused,
        finds_leftovers: true,
    };
    let env = Env::new(Arc::new(consul.clone()), VirtualClock::new(monotonic()), ids);
    let farm = Farm::of_all_kinds(settings, env, by_labels(), Arc::new(NoDiscovery));
    let shutdown = CancellationToken::new();
    let farm = tokio::spawn(farm.run(shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((intents(&consul, "calm").await, intents(&consul, "job-t").await), (1, 1));
    for part in input.split(|byte| *byte == 0).take(8) {
        let Some((which, value)) = part.split_first() else { continue };
        put(&consul, KEYS[usize::from(which.wrapping_sub(b'0')) % KEYS.len()], value).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    put(&consul, CALM_RC, calm_rc(2).as_bytes()).await;
    put(&consul, "rcfarm/jobs/calm/late", calm_job("late").as_bytes()).await;
    for (key, value) in calm_others() {
        put(&consul, key, value.as_bytes()).await;
    }
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!((intents(&consul, "calm").await, intents(&consul, "job-t").await), (2, 1));
    for pod in ["late-t", "flow-step-t", "cron-"] {
        assert_ne!(intents(&consul, pod).await, 0, "no pod {pod}");
    }
    shutdown.cancel();
    farm.await.expect("no panic").expect("an orderly end");
}
