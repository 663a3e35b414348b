//! The records that tell members of jobs where the others are: `rcfarm/peers/`.

use super::*;
use crate::harness::node;
use rcfarm_api::job::peers::PeersRecord;

const DRAINED: &str = r#"{"state": "draining", "drain_jobs": "evict"}"#;

/// The hosts that each node's record names, by node.
async fn hosts(cluster: &Cluster, job: &str) -> BTreeMap<String, Vec<Option<String>>> {
    let mut hosts = BTreeMap::new();
    for key in keys(cluster, "rcfarm/peers/").await {
        let Some(record) = cluster.read::<PeersRecord>(&key).await else { continue };
        let node = key.split('/').nth(2).unwrap().to_owned();
        assert!(key.ends_with(job), "{key}");
        let peers = record.tasks["w"].iter();
        hosts.insert(node, peers.map(|peer| peer.as_ref().map(|peer| peer.host.clone())).collect());
    }
    hosts
}

/// Nodes that have an intent of the job's.
async fn occupied(cluster: &Cluster) -> BTreeSet<String> {
    let intents = keys(cluster, "intent/").await;
    intents.iter().map(|key| key.split('/').nth(1).unwrap().to_owned()).collect()
}

async fn submit_svc(cluster: &Cluster, name: &str, members: u32) {
    submit(cluster, name, json!({"plugins": {"svc": []}, "tasks": [task("w", members)]})).await;
}

/// Waits until the nodes with members, and no others, have a record that names exactly them.
async fn settled(cluster: &Cluster, job: &str, members: usize) {
    within(90 * SECOND, "the records name the members' nodes", || async {
        let (hosts, occupied) = (hosts(cluster, job).await, occupied(cluster).await);
        let is_named = |named: &Vec<Option<String>>| {
            let named: BTreeSet<String> = named.iter().flatten().cloned().collect();
            named == occupied
        };
        hosts.keys().cloned().collect::<BTreeSet<_>>() == occupied
            && hosts.values().all(|named| named.len() == members && is_named(named))
            && status(cluster, job).await.state.phase == JobPhase::Running
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn record_names_the_new_address_of_a_member_that_moved() {
    let cluster = Arc::new(Cluster::new(3).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    cluster.put(key::node(&node(2)), r#"{"state": "draining"}"#).await;
    submit_svc(&cluster, "default/j", 2).await;
    settled(&cluster, "default/j", 2).await;
    assert_eq!(hosts(&cluster, "default/j").await.len(), 2);
    let before = status(&cluster, "default/j").await.peers.unwrap();
    let manifest = cluster.value(keys(&cluster, "intent/").await.remove(0)).await;
    assert!(manifest["peers"]["files"]["etc/volcano/w.host"].is_array(), "{manifest}");
    cluster.put(key::node(&node(2)), "{}").await;
    cluster.put(key::node(&node(0)), DRAINED).await;
    within(90 * SECOND, "nobody is on the drained node", || async {
        let occupied = occupied(&cluster).await;
        occupied.len() == 2 && !occupied.contains(node(0).as_str())
    })
    .await;
    settled(&cluster, "default/j", 2).await;
    let after = status(&cluster, "default/j").await.peers.unwrap();
    assert_ne!(before.hash, after.hash);
    // A node that says another address of itself.
    cluster.put(key::node(&node(1)), r#"{"address": "10.0.0.9"}"#).await;
    within(30 * SECOND, "the new address", || async {
        let hosts = hosts(&cluster, "default/j").await;
        hosts.len() == 2 && hosts.values().all(|all| all.contains(&Some("10.0.0.9".to_owned())))
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn records_go_with_the_job() {
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    submit_svc(&cluster, "default/j", 4).await;
    settled(&cluster, "default/j", 4).await;
    command(&cluster, 1, "default/j", "AbortJob").await;
    reaches(&cluster, "default/j", JobPhase::Aborted, 30 * SECOND).await;
    assert_eq!(keys(&cluster, "rcfarm/peers/").await, Vec::<String>::new());
    command(&cluster, 2, "default/j", "ResumeJob").await;
    settled(&cluster, "default/j", 4).await;
    // The record is deleted directly, and created again at once.
    cluster.delete("rcfarm/jobs/default/j").await;
    submit_svc(&cluster, "default/j", 1).await;
    within(60 * SECOND, "the new one runs alone", || async {
        keys(&cluster, "intent/").await.len() == 1
    })
    .await;
    settled(&cluster, "default/j", 1).await;
    cluster.delete("rcfarm/jobs/default/j").await;
    nothing_is_left(&cluster).await;
    assert_eq!(keys(&cluster, "rcfarm/peers/").await, Vec::<String>::new());
    farm.stop().await;
}

/// A farm is killed at each of its transactions, before or after it is applied. `deleted`: the job goes before the next
/// farm comes.
#[tokio::test(start_paused = true)]
async fn killed_farm_leaves_records_that_the_next_one_completes() {
    for (limit, deleted) in [(64, false), (12, false), (12, true)] {
        let mut is_over = false;
        let mut n = 0;
        while !is_over {
            let mut cluster = Cluster::new(6).await;
            cluster.limits.ops = limit;
            let cluster = Arc::new(cluster);
            let _nodes = nodes(&cluster, |_, _| None);
            let (seen, dies_at) = (Arc::new(AtomicUsize::new(0)), n);
            let counter = seen.clone();
            let farm = cluster.start_faulty("a", move |request: &Request<'_>| {
                let of_peers = |op: &KvOp| op.key.starts_with("rcfarm/peers/");
                let Request::Txn(ops) = request else { return Fate::DELIVER };
                if !ops.iter().any(of_peers) {
                    return Fate::DELIVER;
                }
                match counter.fetch_add(1, Ordering::SeqCst) {
                    // The answer of one is lost, the one after it never arrives.
                    at if at == dies_at => Fate::of(FaultOutcome::LoseReply),
                    at if at > dies_at => Fate::of(FaultOutcome::Lose),
                    _ => Fate::DELIVER,
                }
            });
            submit_svc(&cluster, "default/j", 6).await;
            tokio::time::sleep(10 * SECOND).await;
            cluster.put(key::node(&node(0)), DRAINED).await;
            tokio::time::sleep(20 * SECOND).await;
            is_over = seen.load(Ordering::SeqCst) <= dies_at;
            farm.kill().await;
            if deleted {
                cluster.delete("rcfarm/jobs/default/j").await;
            }
            let heir = cluster.start("b");
            if !deleted {
                settled(&cluster, "default/j", 6).await;
                cluster.delete("rcfarm/jobs/default/j").await;
            }
            nothing_is_left(&cluster).await;
            assert_eq!(keys(&cluster, "rcfarm/peers/").await, Vec::<String>::new());
            heir.stop().await;
            n += 1;
        }
        assert!(n > 2, "{n} transactions with records, of at most {limit} operations");
    }
}
