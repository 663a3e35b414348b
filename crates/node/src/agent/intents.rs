//! Reads what is intended for the node, and judges whether to believe it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;
use tracing::{info, warn};

use super::LONGEST_PAUSE;
use super::run::AgentEvent;
use super::state::DataDir;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::backoff;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key;
use rcfarm_api::labels::decode_labels;
use rcfarm_api::manifest::content_hash;
use rcfarm_api::rc::spec::RC_ID;
use rcfarm_store::Env;
use rcfarm_store::mass_deletion_guard::judge;
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{Entry, Query, Reader, StoreError};

/// A pod that is intended here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intended {
    /// Its manifest.
    pub manifest: Arc<str>,
    /// Hash of manifest and devices: a pod that has another one is another pod.
    pub hash: u64,
    /// The controller that it belongs to.
    pub owner: Option<RcId>,
    /// Devices that it was allocated.
    pub devices: BTreeMap<String, BTreeSet<u32>>,
}

/// The hash of a pod. One without devices has that of its manifest.
pub(super) fn hash_of(manifest: &str, devices: &BTreeMap<String, BTreeSet<u32>>) -> u64 {
    if devices.is_empty() {
        return content_hash(manifest.as_bytes());
    }
    let numbers = format!("{devices:?}");
    content_hash(&[manifest.as_bytes(), b"\0", numbers.as_bytes()].concat())
}

/// What is intended here, as last read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeIntents {
    /// By pod.
    pub pods: BTreeMap<PodId, Intended>,
    /// Pods that are missing in a way that is not believed.
    pub doubted: BTreeSet<PodId>,
}

const FULL_EVERY: Duration = Duration::from_secs(300);
/// A tree that is not believed is looked at again this soon.
const DOUBT_EVERY: Duration = Duration::from_secs(5);

pub(super) struct IntentWatch {
    pub(super) env: Env,
    pub(super) node: NodeName,
    pub(super) data: Arc<DataDir>,
    pub(super) events: UnboundedSender<AgentEvent>,
    /// What was believed last; at first, what is on disk.
    pub(super) known: BTreeSet<PodId>,
}

impl IntentWatch {
    /// Watches for ever. Only what a successful read said is passed on.
    pub(super) async fn run(mut self) {
        let prefix = key::node_intents(&self.node);
        let reader: Arc<dyn Reader> = self.env.store.clone();
        let mut watch = TreeWatch::new(reader, prefix.clone(), FULL_EVERY);
        let mut last = NodeIntents::default();
        let mut failures = 0;
        loop {
            let read = match watch.next().await {
                Ok(answer) => self.build(&last, answer.value, answer.filtered).await,
                Err(error) => Err(error),
            };
            match read {
                Ok(intents) => {
                    if failures > 0 {
                        info!(tree = %prefix, failures, "the cache's prefix can be read again");
                    }
                    failures = 0;
                    let doubts = !intents.doubted.is_empty();
                    if doubts && last.doubted != intents.doubted {
                        warn!(alert = true, tree = %prefix, kept = intents.doubted.len(),
                            "many pods vanished at once: the mass deletion guard keeps them running");
                    }
                    last = intents.clone();
                    if self.events.send(AgentEvent::Intents(intents)).is_err() {
                        return;
                    }
                    if doubts {
                        sleep(DOUBT_EVERY).await;
                        watch.reset();
                    }
                }
                Err(error) => {
                    failures += 1;
                    if failures == 1 || failures % 20 == 0 {
                        warn!(tree = %prefix, failures, %error, "cannot read the cache's prefix; running pods are left alone");
                    }
                    watch.reset();
                    let pause = backoff(Duration::from_millis(100), LONGEST_PAUSE, failures);
                    sleep(self.env.ids.jitter(pause, 0.5)).await;
                }
            }
        }
    }

    async fn build(
        &mut self,
        last: &NodeIntents,
        entries: Vec<Entry>,
        filtered: bool,
    ) -> Result<NodeIntents, StoreError> {
        let prefix = key::node_intents(&self.node);
        let mut pods = BTreeMap::new();
        let mut is_news = false;
        for entry in entries {
            let Some(pod) = prefix.tail(&entry.key).and_then(|pod| pod.parse::<PodId>().ok())
            else {
                continue;
            };
            let manifest = String::from_utf8_lossy(&entry.value);
            let old = last.pods.get(&pod).filter(|old| *old.manifest == *manifest);
            is_news |= old.is_none();
            let intended = old.cloned().unwrap_or_else(|| Intended {
                hash: content_hash(manifest.as_bytes()),
                manifest: manifest.into(),
                owner: None,
                devices: BTreeMap::new(),
            });
            pods.insert(pod, intended);
        }
        let missing: BTreeSet<PodId> =
            self.known.iter().filter(|pod| !pods.contains_key(pod)).cloned().collect();
        let suspicious =
            judge(self.known.len(), self.known.len() - missing.len(), filtered).is_some();
        let labels = match is_news || suspicious {
            true => Some(self.labels().await?),
            false => None,
        };
        if let Some(labels) = labels.as_ref().filter(|_| is_news) {
            for (pod, intended) in &mut pods {
                intended.owner = labels.get(pod).copied().flatten();
            }
        }
        if is_news || pods.values().any(|pod| !pod.devices.is_empty()) {
            self.allocated_devices(&mut pods, last).await?;
        }
        let doubted = match labels.filter(|_| suspicious) {
            Some(labels) => self.doubted(missing, &labels, filtered).await?,
            None => BTreeSet::new(),
        };
        self.known = pods.keys().chain(&doubted).cloned().collect();
        Ok(NodeIntents { pods, doubted })
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

    /// Gives the pods the devices that they were promised. A promise that is missing takes nothing away: somebody
    /// deleted it, and the farm will make it again.
    async fn allocated_devices(
        &self,
        pods: &mut BTreeMap<PodId, Intended>,
        last: &NodeIntents,
    ) -> Result<(), StoreError> {
        let entry = self.env.store.get(&key::allocation(&self.node), Query::PLAIN).await?.value;
        let allocated = entry.and_then(|entry| Allocations::decode(&entry.value).ok());
        let allocated = allocated.unwrap_or_default();
        // What the last agent knew.
        let kept = if last.pods.is_empty() { self.data.pods() } else { BTreeMap::new() };
        for (pod, intended) in pods {
            match (allocated.pods.get(pod), kept.get(pod)) {
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

    /// Of pods that vanished together, those that are not believed to be gone. A farm takes a pod's label away with
    /// its intent, so a pod that still has its label was lost by accident; and a store that was wiped or lies behind
    /// rights that are gone proves nothing.
    async fn doubted(
        &self,
        missing: BTreeSet<PodId>,
        labels: &BTreeMap<PodId, Option<RcId>>,
        filtered: bool,
    ) -> Result<BTreeSet<PodId>, StoreError> {
        let probe = key::node_intents(&self.node).key_of("rcfarm-probe");
        let hidden = match &probe {
            Some(probe) => match self.env.store.get(probe, Query::CONSISTENT).await {
                Ok(_) => false,
                Err(StoreError::Forbidden { .. }) => true,
                Err(error) => return Err(error),
            },
            None => false,
        };
        let record = self.env.store.get(&key::node(&self.node), Query::CONSISTENT).await?.value;
        let created = record.map(|entry| entry.create_index);
        let wiped = created.is_none() || created != self.data.memory().record_created;
        if hidden || filtered || wiped {
            return Ok(missing);
        }
        Ok(missing.into_iter().filter(|pod| labels.contains_key(pod)).collect())
    }
}
