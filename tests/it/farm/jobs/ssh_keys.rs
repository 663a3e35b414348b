//! The key pair of a job with the plugin `ssh`: `rcfarm/job_keys/`, and its copies in `rcfarm/peers/`.

use super::*;
use crate::harness::node;
use rcfarm_api::job::peers::PeersRecord;
use rcfarm_api::job::ssh_keys::{JobKeysRecord, PrivateKey, SshKeyPair, sealing_context};
use rcfarm_store::sealing::{KeySealing, SealingKey};

const KEYS: &str = "rcfarm/job_keys/default/j";

fn key_file() -> SealingKey {
    SealingKey::of(&[7; 32]).unwrap()
}

async fn cluster(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new(nodes).await;
    cluster.ssh_keys = KeySealing::With(key_file());
    cluster
}

async fn submit_ssh(cluster: &Cluster, members: u32) {
    let plugins = json!({"ssh": ["--ssh-port=2222"]});
    submit(cluster, "default/j", json!({"plugins": plugins, "tasks": [task("w", members)]})).await;
}

async fn pair(cluster: &Cluster) -> Option<SshKeyPair> {
    Some(cluster.read::<JobKeysRecord>(KEYS).await?.ssh)
}

/// The pairs that the nodes with members have.
async fn copies(cluster: &Cluster) -> Vec<Option<SshKeyPair>> {
    let mut copies = Vec::new();
    for key in keys(cluster, "rcfarm/peers/").await {
        if let Some(record) = cluster.read::<PeersRecord>(&key).await {
            copies.push(record.ssh);
        }
    }
    copies
}

async fn runs(cluster: &Cluster) {
    reaches(cluster, "default/j", JobPhase::Running, 60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn job_keeps_its_pair_until_it_is_deleted() {
    let cluster = Arc::new(cluster(3).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    cluster.put(key::node(&node(2)), r#"{"state": "draining"}"#).await;
    submit_ssh(&cluster, 2).await;
    runs(&cluster).await;
    let record = cluster.read::<JobKeysRecord>(KEYS).await.unwrap();
    let first = record.ssh.clone();
    let PrivateKey::Sealed(text) = &first.private else { panic!("{record:?}") };
    let context = sealing_context(&id("default/j"), record.uid);
    let seed = key_file().open(&context, text).unwrap();
    assert_eq!(seed.len(), 32);
    let said = status(&cluster, "default/j").await.ssh_key.unwrap();
    assert!(said.starts_with("SHA256:"), "{said}");
    assert_eq!(copies(&cluster).await, [Some(first.clone()), Some(first.clone())]);
    let manifest = cluster.value(keys(&cluster, "intent/").await.remove(0)).await;
    assert_eq!(manifest["peers"]["ssh"], json!({"port": 2222}));
    // A member moves; the job is stopped and goes on; another farm takes over.
    cluster.put(key::node(&node(2)), "{}").await;
    cluster.put(key::node(&node(0)), r#"{"state": "draining", "drain_jobs": "evict"}"#).await;
    within(90 * SECOND, "the new node has the pair", || async {
        let key = key::peers(&node(2), &id("default/j"));
        let record = cluster.read::<PeersRecord>(key).await;
        record.is_some_and(|record| record.ssh.as_ref() == Some(&first))
    })
    .await;
    command(&cluster, 1, "default/j", "AbortJob").await;
    reaches(&cluster, "default/j", JobPhase::Aborted, 30 * SECOND).await;
    assert!(copies(&cluster).await.is_empty());
    farm.kill().await;
    let farm = cluster.start("b");
    command(&cluster, 2, "default/j", "ResumeJob").await;
    runs(&cluster).await;
    assert_eq!(pair(&cluster).await.as_ref(), Some(&first));
    assert_eq!(copies(&cluster).await, [Some(first.clone()), Some(first.clone())]);
    // Another job of the name has another pair, and one without the plugin none.
    cluster.delete("rcfarm/jobs/default/j").await;
    submit_ssh(&cluster, 1).await;
    within(60 * SECOND, "another pair", || async {
        let all = copies(&cluster).await;
        let other = pair(&cluster).await.filter(|pair| *pair != first);
        other.is_some() && all == [other]
    })
    .await;
    cluster.delete("rcfarm/jobs/default/j").await;
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    within(60 * SECOND, "no pair", || async {
        pair(&cluster).await.is_none() && keys(&cluster, "intent/").await.len() == 1
    })
    .await;
    assert_eq!(status(&cluster, "default/j").await.ssh_key, None);
    cluster.delete("rcfarm/jobs/default/j").await;
    nothing_is_left(&cluster).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn job_waits_for_a_farm_that_may_store_keys() {
    let mut cluster = Cluster::new(2).await;
    cluster.ssh_keys = KeySealing::Refused;
    let mut cluster = Arc::new(cluster);
    let nodes_run = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    submit_ssh(&cluster, 1).await;
    within(30 * SECOND, "the status says why", || async {
        let state = cluster.read::<JobStatus>("rcfarm/job_status/default/j").await;
        state.is_some_and(|status| status.state.reason == "SshKeysRefused")
    })
    .await;
    let held = status(&cluster, "default/j").await;
    assert_eq!(held.state.phase, JobPhase::Pending);
    assert!(held.state.message.contains("--ssh-key-file"), "{held:?}");
    // It keeps no place, either, and is at rest.
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(keys(&cluster, "rcfarm/pod_groups/").await, Vec::<String>::new());
    assert_eq!(keys(&cluster, "intent/").await, Vec::<String>::new());
    assert_eq!(status(&cluster, "default/j").await.revision, held.revision);
    // A command is carried out, and starts nothing.
    command(&cluster, 1, "default/j", "AbortJob").await;
    reaches(&cluster, "default/j", JobPhase::Aborted, 30 * SECOND).await;
    command(&cluster, 2, "default/j", "ResumeJob").await;
    within(30 * SECOND, "it waits again", || async {
        status(&cluster, "default/j").await.state.reason == "SshKeysRefused"
    })
    .await;
    assert_eq!(keys(&cluster, "intent/").await, Vec::<String>::new());
    assert_eq!(pair(&cluster).await, None);
    farm.stop().await;
    drop(nodes_run);
    Arc::get_mut(&mut cluster).unwrap().ssh_keys = KeySealing::Unencrypted;
    let _nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("b");
    runs(&cluster).await;
    let plain = pair(&cluster).await.unwrap();
    assert!(matches!(plain.private, PrivateKey::Plain { .. }), "{plain:?}");
    assert_eq!(copies(&cluster).await, [Some(plain)]);
    cluster.delete("rcfarm/jobs/default/j").await;
    nothing_is_left(&cluster).await;
    assert_eq!(pair(&cluster).await, None);
    farm.stop().await;
}

/// A farm is killed at the transaction that makes the keys: before it, or after it is applied.
#[tokio::test(start_paused = true)]
async fn killed_farm_leaves_one_pair_or_none() {
    for is_applied in [false, true] {
        let cluster = Arc::new(cluster(2).await);
        let _nodes = nodes(&cluster, |_, _| None);
        let made = Arc::new(AtomicUsize::new(0));
        let counter = made.clone();
        let farm = cluster.start_faulty("a", move |request: &Request<'_>| {
            let of_keys = |op: &KvOp| op.key.starts_with("rcfarm/job_keys/");
            let Request::Txn(ops) = request else { return Fate::DELIVER };
            if ops.iter().any(of_keys) {
                counter.fetch_add(1, Ordering::SeqCst);
            } else if counter.load(Ordering::SeqCst) == 0 {
                return Fate::DELIVER;
            }
            match counter.load(Ordering::SeqCst) {
                1 if is_applied && ops.iter().any(of_keys) => Fate::of(FaultOutcome::LoseReply),
                _ => Fate::of(FaultOutcome::Lose),
            }
        });
        submit_ssh(&cluster, 2).await;
        within(30 * SECOND, "it tries", || async { made.load(Ordering::SeqCst) > 0 }).await;
        farm.kill().await;
        let before = pair(&cluster).await;
        assert_eq!(before.is_some(), is_applied);
        let said = cluster.read::<JobStatus>("rcfarm/job_status/default/j").await;
        assert_eq!(said.is_some_and(|status| status.ssh_key.is_some()), is_applied);
        assert_eq!(keys(&cluster, "intent/").await, Vec::<String>::new());
        let heir = cluster.start("b");
        runs(&cluster).await;
        let after = pair(&cluster).await;
        assert!(after.is_some() && (before.is_none() || after == before));
        assert_eq!(copies(&cluster).await, vec![after; 2]);
        heir.stop().await;
    }
}

/// The answer is lost and the farm lives: it reads its own pair back.
#[tokio::test(start_paused = true)]
async fn lost_answer_makes_no_second_pair() {
    let cluster = Arc::new(cluster(1).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    let farm = cluster.start_faulty("a", move |request: &Request<'_>| {
        let of_keys = |op: &KvOp| op.key.starts_with("rcfarm/job_keys/");
        match request {
            Request::Txn(ops) if ops.iter().any(of_keys) => {
                counter.fetch_add(1, Ordering::SeqCst);
                Fate::of(FaultOutcome::LoseReply)
            }
            _ => Fate::DELIVER,
        }
    });
    submit_ssh(&cluster, 1).await;
    runs(&cluster).await;
    assert_eq!(sent.load(Ordering::SeqCst), 1);
    assert_eq!(copies(&cluster).await, [pair(&cluster).await]);
    farm.kill().await;
}

/// All but the record of the keys was deleted while no farm ran.
#[tokio::test(start_paused = true)]
async fn keys_of_a_job_of_which_nothing_else_is_left_go() {
    let cluster = Arc::new(cluster(1).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    submit_ssh(&cluster, 1).await;
    runs(&cluster).await;
    let record = cluster.get(KEYS).await.unwrap();
    cluster.delete("rcfarm/jobs/default/j").await;
    nothing_is_left(&cluster).await;
    farm.stop().await;
    cluster.put(KEYS, record).await;
    let farm = cluster.start("b");
    within(600 * SECOND, "the keys are gone", || async { pair(&cluster).await.is_none() }).await;
    farm.stop().await;
}

/// As a farm from before leaves it, which knows no keys.
#[tokio::test(start_paused = true)]
async fn job_that_was_started_without_keys_goes_on_without() {
    let cluster = Arc::new(cluster(2).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    submit_ssh(&cluster, 2).await;
    runs(&cluster).await;
    farm.stop().await;
    cluster.delete(KEYS).await;
    let mut before = cluster.value("rcfarm/job_status/default/j").await;
    before.as_object_mut().unwrap().remove("sshKey");
    cluster.put("rcfarm/job_status/default/j", before.to_string()).await;
    let farm = cluster.start("b");
    command(&cluster, 1, "default/j", "RestartJob").await;
    within(60 * SECOND, "it is restarted", || async {
        let status = status(&cluster, "default/j").await;
        status.version == 1 && status.state.phase == JobPhase::Running
    })
    .await;
    assert_eq!(pair(&cluster).await, None);
    let manifest = cluster.value(keys(&cluster, "intent/").await.remove(0)).await;
    assert_eq!(manifest.get("peers"), None, "{manifest}");
    assert_eq!(status(&cluster, "default/j").await.ssh_key.as_deref(), Some("none"));
    cluster.delete("rcfarm/jobs/default/j").await;
    nothing_is_left(&cluster).await;
    farm.stop().await;
}
