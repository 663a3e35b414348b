//! Nodes and records of the benchmark, written as users and p2's tools write them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::bail;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rcfarm_api::ids::{NodeName, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_consul::Consul;
use rcfarm_store::{
    DeleteMode, Entry, Index, Op, Prefix, PutMode, Query, Reader as _, Store as _, TxnOutcome,
};
use serde_json::json;
use uuid::Uuid;

/// Every tree that a farm or this program writes.
const TREES: [&str; 8] = [
    "replication_controllers",
    "labels",
    "intent",
    "reality",
    "lock",
    "status",
    "audit_logs",
    "rcfarm",
];

fn trees() -> impl Iterator<Item = Prefix> {
    TREES.iter().filter_map(|tree| Prefix::parse(tree).ok())
}

/// Fails if any prefix of the benchmark has keys: they are deleted after each row.
pub async fn must_be_empty(store: &Consul) -> anyhow::Result<()> {
    for tree in trees() {
        if !store.keys(&tree, Some("/"), Query::PLAIN).await?.value.is_empty() {
            bail!("{tree} is not empty: the benchmark deletes it, so it wants a Consul of its own");
        }
    }
    Ok(())
}

pub async fn wipe(store: &Consul) -> anyhow::Result<()> {
    for tree in trees() {
        store.delete_tree(&tree).await?;
    }
    Ok(())
}

pub fn node(n: usize) -> NodeName {
    format!("node-{n:05}").parse().expect("a legal name")
}

/// The n-th record of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rc {
    pub id: RcId,
    pub number: usize,
}

impl Rc {
    pub fn new(number: usize) -> Rc {
        Rc { id: RcId(Uuid::new_v4()), number }
    }

    pub fn manifest(number: usize) -> String {
        format!(
            "id: bench-{number:05}\nlaunchables:\n  app:\n    launchable_type: hoist\n    \
             launchable_id: app\n    location: https://artifacts.example.com/bench/app_0123456789abcdef.tar.gz\n    \
             restart_timeout: 10s\nconfig:\n  port: 8080\nstatus_port: 8081\n"
        )
    }

    fn record(self, replicas: usize, disabled: bool) -> String {
        json!({
            "id": self.id, "manifest": Rc::manifest(self.number), "node_selector": "pool=bench",
            "pod_labels": {"availability_zone": "az1", "cluster_name": "bench"},
            "replicas_desired": replicas, "disabled": disabled,
            "allocation_strategy": "static_strategy",
        })
        .to_string()
    }

    /// Creates the record, or changes its count.
    pub async fn write(self, store: &Consul, replicas: usize) -> anyhow::Result<()> {
        self.write_as(store, replicas, false).await
    }

    /// The same, and disables or enables it.
    pub async fn write_as(
        self,
        store: &Consul,
        replicas: usize,
        disabled: bool,
    ) -> anyhow::Result<()> {
        let record = self.record(replicas, disabled).into();
        if !store.put(&key::rc(self.id), record, 0, PutMode::Set).await? {
            bail!("Consul refused a plain write");
        }
        Ok(())
    }

    pub async fn delete(self, store: &Consul) -> anyhow::Result<()> {
        store.delete(&key::rc(self.id), DeleteMode::Always).await?;
        Ok(())
    }
}

pub async fn write_all(store: &Arc<Consul>, ops: Vec<Op>) -> anyhow::Result<()> {
    stream::iter(ops.chunks(64).map(<[Op]>::to_vec).collect::<Vec<_>>())
        .map(|batch| async move {
            match store.txn(&batch).await? {
                TxnOutcome::Committed { .. } => Ok(()),
                TxnOutcome::Refused(why) => bail!("refused: {why:?}"),
            }
        })
        .buffer_unordered(8)
        .try_collect()
        .await
}

pub async fn make_nodes(store: &Arc<Consul>, count: usize) -> anyhow::Result<()> {
    let label = |n| {
        let value = json!({"pool": "bench", "zone": format!("az{}", n % 3)}).to_string().into();
        Op::Set { key: key::node_labels(&node(n)), value, flags: 0 }
    };
    write_all(store, (0..count).map(label).collect()).await
}

/// Writes `count` records.
pub async fn make_rcs(
    store: &Arc<Consul>,
    count: usize,
    replicas: usize,
) -> anyhow::Result<Vec<Rc>> {
    let rcs: Vec<Rc> = (0..count).map(Rc::new).collect();
    let write = |rc: &Rc| Op::Set {
        key: key::rc(rc.id),
        value: rc.record(replicas, false).into(),
        flags: 0,
    };
    write_all(store, rcs.iter().map(write).collect()).await?;
    Ok(rcs)
}

/// All pods, as labelled.
pub async fn pods(store: &Consul) -> anyhow::Result<Vec<Entry>> {
    Ok(store.list(&key::labels(LabelKind::Pod), Query::PLAIN).await?.value)
}

/// When each record got its first pod.
pub async fn first_pods(store: &Consul) -> anyhow::Result<BTreeMap<RcId, Index>> {
    let mut first = BTreeMap::new();
    for pod in pods(store).await? {
        let labels: serde_json::Value = serde_json::from_slice(&pod.value)?;
        let rc = labels["replication_controller_id"].as_str().and_then(|id| id.parse().ok());
        let Some(rc) = rc else { continue };
        let index = first.entry(rc).or_insert(pod.create_index);
        *index = pod.create_index.min(*index);
    }
    Ok(first)
}

/// How many pods are intended.
pub async fn intents(store: &Consul) -> anyhow::Result<usize> {
    let keys = store.keys(&key::intents(), None, Query::PLAIN).await?.value;
    Ok(keys.iter().filter(|key| !key.starts_with(SENTINEL)).count())
}

const SENTINEL: &str = "intent/bench-sentinel/";

/// Puts something under `intent/`: a watch on an empty prefix wakes on unrelated writes.
pub async fn make_sentinel(store: &Consul) -> anyhow::Result<()> {
    let Some(key) = Prefix::parse(SENTINEL)?.key_of("sentinel") else { bail!("no key") };
    store.put(&key, "id: sentinel\n".into(), 0, PutMode::Set).await?;
    Ok(())
}
