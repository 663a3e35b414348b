//! Which controllers a change of a node wakes: counts of reconciliations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rcfarm::daemon::selector_scheduler;
use rcfarm::farm::Farm;
use rcfarm::placement::{
    EligibleNodes, ScheduleError, ScheduleRequest, Scheduler, SelectorScheduler, WantedNodes,
};
use rcfarm_api::ids::{NodeName, RcId};
use rcfarm_api::key;
use rcfarm_testing::wait::within;
use serde_json::json;

use crate::harness::{Cluster, SECOND, node, pod_id, rc_id, run};

/// Counts how often it is asked, which each reconciliation does once.
#[derive(Default)]
struct Reconciled(Mutex<BTreeMap<RcId, usize>>);

impl Reconciled {
    /// RCs that were reconciled since the last call.
    fn take(&self) -> BTreeSet<RcId> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_keys().collect()
    }
}

struct Counting {
    inner: SelectorScheduler,
    reconciled: Arc<Reconciled>,
}

#[async_trait]
impl Scheduler for Counting {
    async fn eligible_nodes(
        &self,
        request: ScheduleRequest<'_>,
    ) -> Result<EligibleNodes, ScheduleError> {
        *self.reconciled.0.lock().unwrap().entry(request.rc).or_default() += 1;
        self.inner.eligible_nodes(request).await
    }

    async fn allocate_nodes(
        &self,
        wanted: WantedNodes<'_>,
    ) -> Result<Vec<NodeName>, ScheduleError> {
        self.inner.allocate_nodes(wanted).await
    }

    fn gives_only_eligible(&self) -> bool {
        self.inner.gives_only_eligible()
    }

    fn goes_by_labels(&self) -> bool {
        self.inner.goes_by_labels()
    }
}

#[tokio::test(start_paused = true)]
async fn node_change_wakes_only_the_controllers_that_it_concerns() {
    let cluster = Cluster::new(3).await;
    cluster.label_node(&node(10), json!({"pool": "db"})).await;
    for n in 0..20 {
        cluster.create_rc(n, 1).await;
    }
    let (db, waiting) = (rc_id(20), rc_id(21));
    for (n, selector) in [(20, "pool=db"), (21, "pool=gpu")] {
        let mut record = cluster.record(n, 1);
        record["node_selector"] = json!(selector);
        cluster.write_rc(n, &record).await;
    }
    let reconciled = Arc::new(Reconciled::default());
    let count = reconciled.clone();
    let (settings, env) = cluster.settings("a", "", Arc::new(cluster.store.clone()));
    let farm = run(Farm::of_all_kinds(
        settings,
        env,
        Box::new(move |view| {
            Arc::new(Counting { inner: selector_scheduler(view), reconciled: count })
        }),
        cluster.discovery.clone(),
    ));
    let pods = || cluster.store.inspect(|tables| tables.kv.list("intent/").count());
    within(30 * SECOND, "scheduled", || async { pods() == 21 }).await;
    let settled = async || {
        tokio::time::sleep(5 * SECOND).await;
        reconciled.take()
    };
    settled().await;

    // All pods of the pool are on its first node.
    for n in 0..10 {
        let record = json!({"state": "ready", "address": format!("10.0.0.{n}")});
        cluster.put(key::node(&node(1)), record.to_string()).await;
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(settled().await, [].into(), "a node without pods, while nobody looks for one");
    cluster.put(key::node(&node(10)), r#"{"state":"draining"}"#).await;
    assert_eq!(settled().await, [db].into(), "the node has a pod");
    cluster.put(key::node(&node(2)), r#"{"state":"ready"}"#).await;
    assert_eq!(settled().await, [].into(), "it is in no pool where one is looked for");
    cluster.label_node(&node(11), json!({"pool": "gpu"})).await;
    assert_eq!(settled().await, [waiting].into());
    assert_eq!(pods(), 22);
    farm.stop().await;
}

/// No two snapshots differ in such a key. Nothing but a resync, after five minutes, would find that it is gone.
#[tokio::test(start_paused = true)]
async fn key_deleted_before_its_cache_shows_it_is_written_again() {
    for (tree, is_empty) in
        [("labels/pod/", true), ("labels/pod/", false), ("intent/", true), ("intent/", false)]
    {
        let cluster = Cluster::new(1).await;
        let farm = cluster.start("a");
        tokio::time::sleep(10 * SECOND).await;
        let other = if is_empty { "elsewhere".to_owned() } else { format!("{tree}n0009/other") };
        cluster.put(other, "{}").await;
        // The watch of the tree has just been woken and pauses for half a second.
        tokio::time::sleep(SECOND / 20).await;
        cluster.create_rc(1, 1).await;
        let key = format!("{tree}{}/{}", node(0), pod_id(1));
        let is_there = || async { cluster.entry(&key).await.is_some() };
        within(SECOND / 4, &key, is_there).await;
        cluster.delete(&key).await;
        within(10 * SECOND, &format!("{key} again"), is_there).await;
        farm.stop().await;
    }
}
