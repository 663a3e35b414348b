//! Watches the node's intents, with a mass-deletion guard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;
use tracing::{info, warn};

use super::LONGEST_PAUSE;
use super::event::AgentEvent;
use super::intended::{Intended, NodeIntents, hash_of};
use super::state::DataDir;
use rcfarm_api::Stored;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::backoff;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key;
use rcfarm_api::labels::decode_labels;
use rcfarm_api::node::status::IntentIndex;
use rcfarm_api::rc::spec::RC_ID;
use rcfarm_store::Env;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::mass_deletion_guard::judge;
use rcfarm_store::time::monotonic;
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{Entry, Query, Reader, StoreError, TokenBucket};

/// Interval of full reads of the tree.
const FULL_EVERY: Duration = Duration::from_secs(300);
/// Pause before the next full read while the guard keeps pods.
const GUARDED_EVERY: Duration = Duration::from_secs(5);

/// While the node has no intents, its watch wakes at each write anywhere below `intent/` (`consul-semantics.md` §0 #9).
/// It then reads once per interval. Two reads may follow each other at once, so that on a quiet cluster the first intent
/// is seen at once.
const EMPTY_EVERY: Duration = Duration::from_secs(1);

pub(super) struct IntentWatch {
    pub(super) env: Env,
    pub(super) node: NodeName,
    pub(super) data: Arc<DataDir>,
    pub(super) events: UnboundedSender<AgentEvent>,
    /// Intended and guarded pods of the last read; at first, the pods on disk.
    pub(super) known: BTreeSet<PodId>,
    /// Something showed that the last list is old: it is read again, in full.
    pub(super) again: Arc<Notify>,
}

impl IntentWatch {
    /// Watches without end and sends the result of each successful read.
    pub(super) async fn run(mut self) {
        let prefix = key::node_intents(&self.node);
        let reader: Arc<dyn Reader> = self.env.store.clone();
        let mut watch = TreeWatch::new(reader, prefix.clone(), FULL_EVERY);
        let mut last = NodeIntents::default();
        let mut failures = 0;
        let mut empty_reads = TokenBucket::default();
        loop {
            let asked = monotonic();
            let mut pause = Duration::ZERO;
            let next = tokio::select! {
                biased;
                () = self.again.notified() => {
                    watch.reset();
                    watch.next().await
                }
                next = watch.next() => next,
            };
            let read = match next {
                Ok(answer) => {
                    if answer.value.is_empty() {
                        empty_reads.consume(EMPTY_EVERY, EMPTY_EVERY * 2, asked);
                        let consumed = empty_reads.consumed(monotonic());
                        pause = consumed.saturating_sub(EMPTY_EVERY);
                    }
                    self.build(&last, answer.value, answer.filtered).await
                }
                Err(error) => Err(error),
            };
            match read {
                Ok(intents) => {
                    if failures > 0 {
                        info!(tree = %prefix, failures, "intents can be read again");
                    }
                    failures = 0;
                    let is_guarded = !intents.guarded.is_empty();
                    if is_guarded && last.guarded != intents.guarded {
                        warn!(alert = true, tree = %prefix, kept = intents.guarded.len(),
                            "many pods vanished at once: the mass deletion guard keeps them running");
                    }
                    last = intents.clone();
                    if self.events.send(AgentEvent::Intents(intents)).is_err() {
                        return;
                    }
                    if is_guarded {
                        sleep(GUARDED_EVERY).await;
                        watch.reset();
                    }
                    sleep(pause).await;
                }
                Err(error) => {
                    failures += 1;
                    if failures == 1 || failures % 20 == 0 {
                        warn!(tree = %prefix, failures, %error, "intents cannot be read; running pods are left alone");
                    }
                    watch.reset();
                    let pause = backoff(Duration::from_millis(100), LONGEST_PAUSE, failures);
                    sleep(self.env.ids.jitter(pause, 0.5)).await;
                }
            }
        }
    }

    /// Resolves owners and devices of the intended pods, and decides which missing pods the guard keeps: if many vanished
    /// at once, those that still have labels. A farm deletes a pod's labels together with its intent.
    async fn build(
        &mut self,
        last: &NodeIntents,
        entries: Vec<Entry>,
        filtered: bool,
    ) -> Result<NodeIntents, StoreError> {
        let prefix = key::node_intents(&self.node);
        let mut pods = BTreeMap::new();
        let mut has_new = false;
        for entry in entries {
            let Some(pod) = prefix.tail(&entry.key).and_then(|pod| pod.parse::<PodId>().ok())
            else {
                continue;
            };
            let manifest = String::from_utf8_lossy(&entry.value);
            let old = last.pods.get(&pod).filter(|old| *old.manifest == *manifest);
            has_new |= old.is_none();
            let new = || Intended::new(&manifest, None, BTreeMap::new());
            let index =
                IntentIndex { create_index: entry.create_index, modify_index: entry.modify_index };
            let intended = old.cloned().unwrap_or_else(new);
            pods.insert(pod, Intended { index: Some(index), ..intended });
        }
        let missing: BTreeSet<PodId> =
            self.known.iter().filter(|pod| !pods.contains_key(pod)).cloned().collect();
        let suspicious = judge(self.known.len(), self.known.len() - missing.len(), filtered)
            .is_some()
            || enabled(Failpoint::UnintendedKept) && !missing.is_empty();
        let labels = match has_new || suspicious {
            true => Some(self.labels().await?),
            false => None,
        };
        if let Some(labels) = labels.as_ref().filter(|_| has_new) {
            for (pod, intended) in &mut pods {
                intended.owner = labels.get(pod).copied().flatten();
            }
        }
        if has_new || pods.values().any(|pod| !pod.devices.is_empty()) {
            self.allocated_devices(&mut pods, last).await?;
        }
        let guarded = match labels.filter(|_| suspicious) {
            Some(_) if enabled(Failpoint::UnintendedKept) => missing,
            Some(labels) => missing.into_iter().filter(|pod| labels.contains_key(pod)).collect(),
            None => BTreeSet::new(),
        };
        self.known = pods.keys().chain(&guarded).cloned().collect();
        Ok(NodeIntents { pods, guarded })
    }

    /// The owners of the labelled pods of this node.
    async fn labels(&self) -> Result<BTreeMap<PodId, Option<RcId>>, StoreError> {
        let prefix = key::node_pod_labels(&self.node);
        let listed = self.env.store.list(&prefix, Query::PLAIN).await?.value;
        let pod = |entry: Entry| {
            let pod = prefix.tail(&entry.key)?.parse().ok()?;
            let owner = decode_labels(&entry.value).ok().and_then(|l| l.get(RC_ID)?.parse().ok());
            Some((pod, owner))
        };
        Ok(listed.into_iter().filter_map(pod).collect())
    }

    /// Sets the devices that are allocated to the pods. A pod without an allocation of its own keeps its devices: somebody
    /// deleted or replaced the allocation, and the farm will write it again.
    async fn allocated_devices(
        &self,
        pods: &mut BTreeMap<PodId, Intended>,
        last: &NodeIntents,
    ) -> Result<(), StoreError> {
        let entry = self.env.store.get(&key::allocation(&self.node), Query::PLAIN).await?.value;
        let allocated = entry.and_then(|entry| Allocations::decode(&entry.value).ok());
        let allocated = allocated.unwrap_or_default();
        // At the first read, devices without an allocation come from the previous agent.
        let kept = if last.pods.is_empty() { self.data.pods() } else { BTreeMap::new() };
        for (pod, intended) in pods {
            let own = allocated.pods.get(pod).filter(|allocation| intended.is_own(allocation));
            match (own, kept.get(pod)) {
                (Some(allocation), _) => intended.devices.clone_from(&allocation.devices),
                (None, Some(kept)) if *kept.manifest == *intended.manifest => {
                    intended.devices.clone_from(&kept.devices);
                }
                (None, _) => {}
            }
            intended.hash = hash_of(&intended.manifest, &intended.devices);
        }
        Ok(())
    }
}
