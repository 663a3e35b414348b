//! The row about pods that users take away by hand.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rand::RngExt as _;
use rcfarm_api::ids::NodeName;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::{DeleteMode, Op, Store as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fleet::{self, Rc};
use crate::report::Figure;
use crate::rows::{Bench, PATIENCE, QUIET};

/// Pods of the record, most of the time.
const PODS: usize = 10;
/// Pods that are nobody's.
const FOREIGN: usize = 5_000;

impl Bench {
    /// Nodes with pods of a record, by the pods' labels.
    async fn nodes_of(&self, rc: Rc) -> anyhow::Result<BTreeSet<NodeName>> {
        let (prefix, own) = (key::labels(LabelKind::Pod), rc.id.to_string());
        let mut nodes = BTreeSet::new();
        for entry in fleet::pods(&self.store).await? {
            let labels: Value = serde_json::from_slice(&entry.value)?;
            if labels["replication_controller_id"] == own.as_str() {
                nodes.extend(key::node_and_pod(&prefix, &entry.key).map(|(node, _)| node));
            }
        }
        Ok(nodes)
    }

    async fn wait_for_nodes(&self, rc: Rc, count: usize) -> anyhow::Result<BTreeSet<NodeName>> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let nodes = self.nodes_of(rc).await?;
            if nodes.len() == count {
                return Ok(nodes);
            }
            if Instant::now() > give_up {
                bail!("{} of {count} pods", nodes.len());
            }
            sleep(QUIET).await;
        }
    }

    /// What `p2-rm --deallocate` does, `times` times: disable, delete the pod, count one less, enable. Beside it another
    /// record is scaled each second, and there are many pods of others.
    pub async fn deallocate(&self, times: usize) -> anyhow::Result<Vec<Figure>> {
        let (farm, rcs) = self.settled(200, 2, PODS).await?;
        let (rc, other) = (rcs[0], rcs[1]);
        let foreign = (0..FOREIGN).map(|n| {
            let pod = format!("foreign-{n:05}").parse().expect("a legal name");
            let value = json!({"pod_id": format!("foreign-{n:05}")}).to_string().into();
            Op::Set { key: key::pod_labels(&fleet::node(n % 200), &pod), value, flags: 0 }
        });
        fleet::write_all(&self.store, foreign.collect()).await?;
        let store = self.store.clone();
        let scaling = tokio::spawn(async move {
            for n in 0.. {
                other.write(&store, PODS + n % 3).await?;
                sleep(Duration::from_secs(1)).await;
            }
            anyhow::Ok(())
        });
        let pod = format!("bench-{:05}", rc.number).parse()?;
        let (mut lost, mut longest) = (0, Duration::ZERO);
        for _ in 0..times {
            let before = self.wait_for_nodes(rc, PODS).await?;
            let chosen = before.iter().nth(rand::rng().random_range(0..PODS)).context("no pod")?;
            let start = Instant::now();
            rc.write_as(&self.store, PODS, true).await?;
            for key in [key::intent(chosen, &pod), key::pod_labels(chosen, &pod)] {
                self.store.delete(&key, DeleteMode::Always).await?;
            }
            rc.write_as(&self.store, PODS - 1, true).await?;
            rc.write_as(&self.store, PODS - 1, false).await?;
            longest = longest.max(start.elapsed());
            sleep(Duration::from_millis(700)).await;
            let after = self.nodes_of(rc).await?;
            lost += before.iter().filter(|node| *node != chosen && !after.contains(node)).count();
            rc.write(&self.store, PODS).await?;
        }
        self.wait_for_nodes(rc, PODS).await?;
        if scaling.is_finished() {
            scaling.await??;
            bail!("the other record is not scaled any more");
        }
        scaling.abort();
        farm.stop().await?;
        let of =
            |what: &str| format!("{times} pods taken away by hand, {FOREIGN} of others: {what}");
        Ok(vec![
            Figure::new(of("other pods lost"), lost as f64, "").at_most(0.0),
            Figure::new(of("longest of the edits"), longest.as_secs_f64() * 1e3, "ms"),
        ])
    }
}
