//! Watches the node's intents, with a mass-deletion guard.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::LONGEST_PAUSE;
use super::event::AgentEvent;
use super::intended::{Intended, NodeIntents};
use super::state::DataDir;
use rcfarm_api::Stored;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::backoff;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key;
use rcfarm_api::labels::decode_labels;
use rcfarm_api::manifest::is_uuid_pod;
use rcfarm_api::node::status::IntentIndex;
use rcfarm_api::rc::spec::RC_ID;
use rcfarm_store::Env;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::mass_deletion_guard::judge;
use rcfarm_store::time::monotonic;
use rcfarm_store::watch::{PollPolicy, TreeWatch};
use rcfarm_store::{Answer, Entry, Index, PrefixLister, Query, Reader, StoreError, TokenBucket};

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
    /// Something showed that the last list is old: the intents are read again, in full.
    pub(super) again: Arc<Notify>,
}

type NextIntents = (Result<Answer<Vec<Entry>>, StoreError>, TreeWatch);

/// A watch that waits for the next change.
struct WaitingWatch {
    next: Pin<Box<dyn Future<Output = NextIntents> + Send>>,
    since: Instant,
}

impl WaitingWatch {
    fn new(mut watch: TreeWatch) -> Self {
        let next = async move { (watch.next().await, watch) };
        WaitingWatch { next: Box::pin(next), since: monotonic() }
    }
}

/// What the watch knows from one read to the next.
#[derive(Default)]
struct WatchState {
    last: NodeIntents,
    /// Index of the last list.
    newest: Index,
    /// Failed reads in a row.
    failures: u32,
    empty_reads: TokenBucket,
}

impl IntentWatch {
    /// Watches without end and sends the result of each successful read.
    pub(super) async fn run(mut self) {
        let prefix = key::node_intents(&self.node);
        let reader: Arc<dyn Reader> = self.env.store.clone();
        let lister = Arc::new(PrefixLister::new(reader, prefix));
        let watch = || TreeWatch::reading(lister.clone(), FULL_EVERY, PollPolicy::PROMPT.reading);
        let again = self.again.clone();
        let mut waiting = WaitingWatch::new(watch());
        let mut state = WatchState::default();
        loop {
            let now = monotonic();
            let (asked, next, answered) = tokio::select! {
                biased;
                // Beside the blocking query: one that is dropped occupies the Consul agent for a minute.
                () = again.notified() => (now, lister.list(Query::CONSISTENT).await, None),
                (next, answered) = &mut waiting.next => (waiting.since, next, Some(answered)),
            };
            let is_read_beside = answered.is_none();
            let mut next_watch = answered.unwrap_or_else(watch);
            let mut is_empty = false;
            let read = match next {
                // The list that was read beside it is newer, or a snapshot was restored.
                Ok(answer) if !is_read_beside && answer.index < state.newest => {
                    state.newest = Index::ZERO;
                    next_watch.reset();
                    waiting = WaitingWatch::new(next_watch);
                    continue;
                }
                Ok(answer) => {
                    state.newest = answer.index;
                    is_empty = answer.value.is_empty();
                    if is_empty && !is_read_beside {
                        state.empty_reads.consume(EMPTY_EVERY, EMPTY_EVERY * 2, waiting.since);
                    }
                    self.build(&state.last, answer.value, answer.filtered).await
                }
                Err(error) => Err(error),
            };
            let (is_next_complete, pause) = match read {
                Ok(intents) => {
                    let is_guarded = !intents.guarded.is_empty();
                    if !self.send(&mut state, intents, asked) {
                        return;
                    }
                    let mut pause = if is_guarded { GUARDED_EVERY } else { Duration::ZERO };
                    if is_empty {
                        let consumed = state.empty_reads.consumed(monotonic());
                        pause += consumed.saturating_sub(EMPTY_EVERY);
                    }
                    (is_guarded, pause)
                }
                Err(error) => (true, self.failed(&mut state, &error)),
            };
            if is_read_beside && !is_next_complete {
                continue;
            }
            sleep(pause).await;
            if is_next_complete {
                next_watch.reset();
            }
            waiting = WaitingWatch::new(next_watch);
        }
    }

    /// Sends the result of a read. `false`: the agent has ended.
    fn send(&self, state: &mut WatchState, intents: NodeIntents, asked: Instant) -> bool {
        let tree = key::node_intents(&self.node);
        if state.failures > 0 {
            info!(%tree, failures = state.failures, "intents can be read again");
        }
        state.failures = 0;
        if !intents.guarded.is_empty() && state.last.guarded != intents.guarded {
            warn!(alert = true, %tree, kept = intents.guarded.len(),
                "many pods vanished at once: the mass deletion guard keeps them running");
        }
        state.last = intents.clone();
        self.events.send(AgentEvent::Intents(intents, asked)).is_ok()
    }

    /// Notes a failed read. Returns the pause before the next one.
    fn failed(&self, state: &mut WatchState, error: &StoreError) -> Duration {
        state.failures += 1;
        if state.failures == 1 || state.failures.is_multiple_of(20) {
            warn!(tree = %key::node_intents(&self.node), failures = state.failures, %error,
                "intents cannot be read; running pods are left alone");
        }
        let pause = backoff(Duration::from_millis(100), LONGEST_PAUSE, state.failures);
        self.env.ids.jitter(pause, 0.5)
    }

    /// Resolves owners, devices and ports of the intended pods, and decides which missing pods the guard keeps: if many
    /// vanished at once, those that still have labels. A farm deletes a pod's labels together with its intent.
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
            // p2 knows it by a UUID: only its preparer runs it.
            if is_uuid_pod(&pod, &entry.value) {
                continue;
            }
            let manifest = String::from_utf8_lossy(&entry.value);
            let old = last.pods.get(&pod).filter(|old| *old.manifest == *manifest);
            has_new |= old.is_none();
            let new = || Intended::new(&manifest, None);
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
        if has_new || pods.values().any(|pod| pod.has_ports || !pod.devices.is_empty()) {
            self.read_allocations(&mut pods, last).await?;
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

    /// Sets the devices and ports that are allocated to the pods. A pod without an allocation of its own keeps them:
    /// somebody deleted or replaced the allocation, and the farm will write it again.
    async fn read_allocations(
        &self,
        pods: &mut BTreeMap<PodId, Intended>,
        last: &NodeIntents,
    ) -> Result<(), StoreError> {
        let entry = self.env.store.get(&key::allocation(&self.node), Query::PLAIN).await?.value;
        let allocated = entry.and_then(|entry| Allocations::decode(&entry.value).ok());
        let allocated = allocated.unwrap_or_default();
        // At the first read, what has no allocation comes from the previous agent.
        let kept = if last.pods.is_empty() { self.data.pods() } else { BTreeMap::new() };
        for (pod, intended) in pods {
            let own = allocated.pods.get(pod).filter(|allocation| intended.is_own(allocation));
            match (own, kept.get(pod)) {
                (Some(own), _) => intended.allocate(own.devices.clone(), own.ports.clone()),
                (None, Some(kept)) if *kept.manifest == *intended.manifest => {
                    intended.allocate(kept.devices.clone(), kept.ports.clone());
                }
                (None, _) => {}
            }
        }
        Ok(())
    }
}
