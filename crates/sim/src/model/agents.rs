//! Pods of nodes that the real agent runs: what is intended there, and what the agents report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::services::Timeline;
use rcfarm_api::Stored;
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::key;
use rcfarm_api::node::status::PodStatus;
use rcfarm_emulator::{KvChange, Tables};
use rcfarm_store::Entry;

/// What is intended at a place.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IntendedPod {
    /// The manifest. `None`: nothing is intended.
    pub manifest: Option<Bytes>,
    /// A restored snapshot made it so, no farm and no user.
    pub by_restore: bool,
    /// It was deleted, but a restored snapshot may have taken away what would prove it to the agent.
    pub unproved: bool,
}

/// What a write did to a pod of such a node.
#[derive(Debug)]
pub enum NodeEvent {
    /// Its status was written.
    Status(PodRef, Box<PodStatus>),
    /// Its reality was written.
    Reality(PodRef, Bytes),
}

/// Pods of nodes that the real agent runs. Empty in a world without such nodes.
#[derive(Default)]
pub struct AgentModel {
    nodes: BTreeSet<NodeName>,
    /// What is and was intended.
    pub intents: BTreeMap<PodRef, Timeline<IntendedPod>>,
    pub statuses: BTreeMap<PodRef, PodStatus>,
    pub realities: BTreeMap<PodRef, Bytes>,
    /// Places of pods from before a snapshot was restored: their agents have not reported since.
    unreported: BTreeSet<PodRef>,
}

impl AgentModel {
    /// From now on this node is followed.
    pub fn follow(&mut self, node: NodeName) {
        self.nodes.insert(node);
    }

    /// What is intended at a place now.
    #[must_use]
    pub fn intended(&self, place: &PodRef) -> Option<&Bytes> {
        self.intents.get(place)?.now()?.manifest.as_ref()
    }

    /// Whether a restored snapshot is why nothing is intended at a place, or why its agent cannot know that somebody
    /// wanted that.
    #[must_use]
    pub fn is_lost(&self, place: &PodRef) -> bool {
        let now = self.intents.get(place).and_then(Timeline::now);
        now.is_some_and(|now| (now.by_restore || now.unproved) && now.manifest.is_none())
    }

    /// Reported pods that a restored snapshot lacks. Their agents keep them.
    #[must_use]
    pub fn kept(&self) -> BTreeSet<PodRef> {
        self.realities.keys().filter(|place| self.is_lost(place)).cloned().collect()
    }

    /// Takes a change in. `None`: it is about no pod of such a node, or removed what was reported.
    pub fn apply(&mut self, at: Duration, change: &KvChange) -> Option<NodeEvent> {
        self.set(at, &change.key, change.after.as_ref(), false)
    }

    /// Takes over a restored state.
    pub fn reload(&mut self, at: Duration, tables: &Tables) {
        if self.nodes.is_empty() {
            return;
        }
        let gone: Vec<PodRef> = self.intents.keys().cloned().collect();
        for place in gone {
            let key = key::intent(&place.node, &place.pod);
            if tables.kv.get(key.as_str()).is_none() {
                self.set(at, key.as_str(), None, true);
            }
        }
        // A pod whose intent was deleted just before, and that its agent still reported: the restore took the proof away.
        let undecided: Vec<PodRef> =
            self.statuses.keys().filter(|place| self.intended(place).is_none()).cloned().collect();
        for place in undecided {
            let lost = IntendedPod { manifest: None, by_restore: true, unproved: false };
            self.intents.entry(place).or_default().push(at, lost);
        }
        self.statuses.clear();
        self.realities.clear();
        for entry in tables.kv.list("") {
            self.set(at, &entry.key, Some(entry), true);
        }
        self.unreported = self.statuses.keys().chain(self.intents.keys()).cloned().collect();
    }

    fn set(
        &mut self,
        at: Duration,
        text: &str,
        entry: Option<&Arc<Entry>>,
        by_restore: bool,
    ) -> Option<NodeEvent> {
        if self.nodes.is_empty() {
            return None;
        }
        let place = |(node, pod)| PodRef { node, pod };
        if key::intents().tail(text).is_some() {
            let place = key::node_and_pod(&key::intents(), text).map(place)?;
            let manifest = entry.map(|entry| entry.value.clone());
            if self.nodes.contains(&place.node) && self.intended(&place) != manifest.as_ref() {
                // Before its agent reports again, a deletion leaves it no proof either.
                let unproved = manifest.is_none() && self.unreported.contains(&place);
                let timeline = self.intents.entry(place).or_default();
                timeline.push(at, IntendedPod { manifest, by_restore, unproved });
            }
            return None;
        }
        if key::realities().tail(text).is_some() {
            let place = key::node_and_pod(&key::realities(), text).map(place)?;
            self.nodes.contains(&place.node).then_some(())?;
            let reality = entry.map(|entry| entry.value.clone());
            match &reality {
                Some(reality) => self.realities.insert(place.clone(), reality.clone()),
                None => self.realities.remove(&place),
            };
            return Some(NodeEvent::Reality(place, reality?));
        }
        key::pod_statuses().tail(text)?;
        let (pod, node) = key::pod_and_node(&key::pod_statuses(), text)?;
        let place = PodRef { node, pod };
        self.nodes.contains(&place.node).then_some(())?;
        self.unreported.remove(&place);
        let status = entry.and_then(|entry| PodStatus::decode(&entry.value).ok());
        match &status {
            Some(status) => self.statuses.insert(place.clone(), status.clone()),
            None => self.statuses.remove(&place),
        };
        Some(NodeEvent::Status(place, Box::new(status?)))
    }
}
