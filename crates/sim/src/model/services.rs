//! Model of replication controllers, pods and nodes for the checks, with the past values of what transactions do not
//! guard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::facts::VIEW;
use rcfarm::farm::NODE_GRACE;
use rcfarm::placement::capacity::{NodeCapacity, PodResources};
use rcfarm_api::ResourceList;
use rcfarm_api::Stored;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{FarmName, NodeName, RcId, SessionId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{Labels, decode_labels};
use rcfarm_api::node::Health;
use rcfarm_api::node::record::{NodeRecord, NodeState};
use rcfarm_api::rc::spec::{RC_ID, RcSpec};
use rcfarm_api::rc::status::RcStatus;
use rcfarm_emulator::{KvChange, Tables};
use rcfarm_store::{Entry, Index, Key};

/// Object that a key belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    Record(RcId),
    RcLabels(RcId),
    Status(RcId),
    Owner(RcId),
    OtherLock(RcId),
    Pod(PodRef),
    Intent(PodRef),
    Reality(PodRef),
    Health(PodRef),
    NodeLabels(NodeName),
    Node(NodeName),
    Allocations(NodeName),
    Farm(FarmName),
    Audit(Uuid),
    Other,
}

impl Item {
    /// The object of a key.
    #[must_use]
    pub fn of(text: &str) -> Item {
        Item::known(text).unwrap_or(Item::Other)
    }

    fn known(text: &str) -> Option<Item> {
        let pods = key::labels(LabelKind::Pod);
        let place = |prefix| {
            let (node, pod) = key::node_and_pod(prefix, text)?;
            Some(PodRef { node, pod })
        };
        if let Some(tail) = key::rcs().tail(text) {
            Some(Item::Record(tail.parse().ok()?))
        } else if pods.tail(text).is_some() {
            Some(Item::Pod(place(&pods)?))
        } else if key::intents().tail(text).is_some() {
            Some(Item::Intent(place(&key::intents())?))
        } else if key::realities().tail(text).is_some() {
            Some(Item::Reality(place(&key::realities())?))
        } else if let Some(tail) = key::rc_statuses().tail(text) {
            Some(Item::Status(tail.split_once('/')?.0.parse().ok()?))
        } else if let Some(tail) = key::audit_logs().tail(text) {
            Some(Item::Audit(tail.parse().ok()?))
        } else if key::healths().tail(text).is_some() {
            let (pod, node) = key::pod_and_node(&key::healths(), text)?;
            Some(Item::Health(PodRef { node, pod }))
        } else if let Some(tail) = key::rc_locks().tail(text) {
            match key::split_lock(&key::rc_locks(), tail) {
                (id, None) => Some(Item::Owner(id.parse().ok()?)),
                (id, Some(_)) => Some(Item::OtherLock(id.parse().ok()?)),
            }
        } else if let Some(tail) = key::labels(LabelKind::Node).tail(text) {
            Some(Item::NodeLabels(tail.parse().ok()?))
        } else if let Some(tail) = key::labels(LabelKind::ReplicationController).tail(text) {
            Some(Item::RcLabels(tail.parse().ok()?))
        } else if let Some(tail) = key::farms().tail(text) {
            Some(Item::Farm(tail.parse().ok()?))
        } else if let Some(tail) = key::nodes().tail(text) {
            Some(Item::Node(tail.parse().ok()?))
        } else {
            Some(Item::Allocations(key::allocations().tail(text)?.parse().ok()?))
        }
    }
}

/// A value with its earlier values.
#[derive(Debug, Clone, Default)]
pub struct Timeline<T>(Vec<(Duration, T)>);

impl<T: Clone + PartialEq> Timeline<T> {
    /// Adds a value.
    pub(super) fn push(&mut self, at: Duration, value: T) {
        if self.0.last().is_none_or(|(_, last)| *last != value) {
            self.0.push((at, value));
        }
    }

    /// The current value.
    #[must_use]
    pub fn now(&self) -> Option<&T> {
        self.0.last().map(|(_, value)| value)
    }

    /// Whether `holds` was true of the value at any moment since `from`. Before the first value, `absent` counts.
    pub fn ever(&self, from: Duration, absent: bool, holds: impl Fn(&T) -> bool) -> bool {
        let begun = self.0.iter().rposition(|(at, _)| *at <= from);
        let before = begun.is_none() && absent;
        before || self.0[begun.unwrap_or(0)..].iter().any(|(_, value)| holds(value))
    }
}

/// A pod's labels.
#[derive(Debug, Clone, PartialEq)]
pub struct ServicePod {
    /// Its owner.
    pub rc: Option<RcId>,
    /// CreateIndex of its labels: its age.
    pub created: Index,
}

impl ServicePod {
    #[must_use]
    pub fn of(entry: &Entry) -> ServicePod {
        let labels = decode_labels(&entry.value).unwrap_or_default();
        let rc = labels.get(RC_ID).and_then(|id| id.parse().ok());
        ServicePod { rc, created: entry.create_index }
    }
}

/// The parts of a node's record that placement uses.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedStatus {
    /// It is being drained.
    pub draining: bool,
    /// Its agent's session does not hold its record.
    pub gone: bool,
    pub capacity: ResourceList,
}

/// Why a node is not fit for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Its labels do not match.
    Labels,
    /// Its agent has been gone for longer than the grace.
    Down,
    /// It is being drained.
    Draining,
}

/// After a restored snapshot, caches show old data until their next full read, which is within 5 minutes.
pub(super) const AFTER_RESTORE: Duration = Duration::from_secs(310);

/// Replication controllers, their pods and nodes.
#[derive(Default)]
pub struct ServiceModel {
    restored_at: Option<Duration>,
    entries: BTreeMap<String, Arc<Entry>>,
    /// The records; `None`: not valid.
    pub records: BTreeMap<RcId, Option<Arc<RcSpec>>>,
    /// Their labels; `None`: not valid.
    pub rc_labels: BTreeMap<RcId, Timeline<Option<Labels>>>,
    pub statuses: BTreeMap<RcId, RcStatus>,
    pub owners: BTreeMap<RcId, SessionId>,
    /// Session that holds each farm's name.
    pub present: BTreeMap<FarmName, SessionId>,
    /// Pods by place.
    pub pods: BTreeMap<PodRef, ServicePod>,
    /// Pods by owner.
    pub by_rc: BTreeMap<RcId, BTreeSet<PodRef>>,
    /// Places with an intent.
    pub intents: BTreeSet<PodRef>,
    /// Places whose intent was replaced, and whose node has not said since that it runs it: since when.
    pub unproved: BTreeMap<PodRef, Duration>,
    /// Health by place.
    pub health: BTreeMap<PodRef, Timeline<Health>>,
    /// Labels of nodes; `None`: missing or not valid.
    pub node_labels: BTreeMap<NodeName, Timeline<Option<Labels>>>,
    /// Records of nodes; `None`: missing.
    pub nodes: BTreeMap<NodeName, Timeline<Option<ReportedStatus>>>,
    pub allocations: BTreeMap<NodeName, Allocations>,
}

impl ServiceModel {
    /// Applies a change. Returns the object of its key.
    pub fn apply(&mut self, at: Duration, change: &KvChange) -> Item {
        self.set(at, &change.key, change.after.clone())
    }

    /// Replaces the model by a restored state.
    pub fn reload(&mut self, at: Duration, tables: &Tables) {
        self.restored_at = Some(at);
        let gone: Vec<String> =
            self.entries.keys().filter(|key| tables.kv.get(key).is_none()).cloned().collect();
        for key in gone {
            self.set(at, &key, None);
        }
        for entry in tables.kv.list("") {
            if self.entries.get(&entry.key) != Some(entry) {
                self.set(at, &entry.key, Some(entry.clone()));
            }
        }
    }

    fn set(&mut self, at: Duration, key: &str, entry: Option<Arc<Entry>>) -> Item {
        let item = Item::of(key);
        match (&item, &entry) {
            (Item::Record(id), Some(entry)) => {
                let spec = RcSpec::decode(*id, &entry.value).ok().map(Arc::new);
                self.records.insert(*id, spec);
            }
            (Item::Record(id), None) => drop(self.records.remove(id)),
            (Item::Status(id), Some(entry)) => {
                let status = RcStatus::decode(&entry.value).unwrap_or_default();
                self.statuses.insert(*id, status);
            }
            (Item::Status(id), None) => drop(self.statuses.remove(id)),
            (Item::Owner(id), entry) => {
                match entry.as_ref().and_then(|entry| entry.session.clone()) {
                    Some(session) => drop(self.owners.insert(*id, session)),
                    None => drop(self.owners.remove(id)),
                }
            }
            (Item::Farm(farm), entry) => {
                match entry.as_ref().and_then(|entry| entry.session.clone()) {
                    Some(session) => drop(self.present.insert(farm.clone(), session)),
                    None => drop(self.present.remove(farm)),
                }
            }
            (Item::Pod(place), entry) => self.set_pod(place, entry.as_deref().map(ServicePod::of)),
            (Item::Intent(place), Some(entry)) => {
                self.intents.insert(place.clone());
                self.replace_intent(at, key, place, entry);
            }
            (Item::Intent(place), None) => {
                self.intents.remove(place);
                self.unproved.remove(place);
            }
            (Item::Reality(place), entry) => {
                let intent = self.entries.get(key::intent(&place.node, &place.pod).as_str());
                let is_proved =
                    entry.as_ref().map(|entry| &entry.value) == intent.map(|i| &i.value);
                match intent {
                    Some(_) if !is_proved => drop(self.unproved.entry(place.clone()).or_insert(at)),
                    _ => drop(self.unproved.remove(place)),
                }
            }
            (Item::Health(place), entry) => {
                let health = entry.as_ref().map_or(Health::Absent, |e| Health::decode(&e.value));
                self.health.entry(place.clone()).or_default().push(at, health);
            }
            (Item::NodeLabels(node), entry) => {
                let labels = entry.as_ref().and_then(|entry| decode_labels(&entry.value).ok());
                self.node_labels.entry(node.clone()).or_default().push(at, labels);
            }
            (Item::RcLabels(id), entry) => {
                let labels = match entry {
                    Some(entry) => decode_labels(&entry.value).ok(),
                    None => Some(Labels::new()),
                };
                self.rc_labels.entry(*id).or_default().push(at, labels);
            }
            (Item::Node(node), entry) => {
                let said = entry.as_ref().and_then(|entry| said(entry));
                self.nodes.entry(node.clone()).or_default().push(at, said);
            }
            (Item::Allocations(node), Some(entry)) => {
                let allocated = Allocations::decode(&entry.value).unwrap_or_default();
                self.allocations.insert(node.clone(), allocated);
            }
            (Item::Allocations(node), None) => drop(self.allocations.remove(node)),
            (Item::OtherLock(_) | Item::Audit(_) | Item::Other, _) => {}
        }
        match entry {
            Some(entry) => drop(self.entries.insert(key.to_owned(), entry)),
            None => drop(self.entries.remove(key)),
        }
        item
    }

    fn replace_intent(&mut self, at: Duration, key: &str, place: &PodRef, entry: &Entry) {
        let reality = self.entries.get(key::reality(&place.node, &place.pod).as_str());
        // One that was deleted and is made anew replaces what its node may still run.
        let is_replaced = match self.entries.get(key) {
            Some(before) => before.value != entry.value,
            None => self.pods.get(place).is_some_and(|pod| pod.created < entry.create_index),
        };
        if reality.is_some_and(|reality| reality.value == entry.value) {
            self.unproved.remove(place);
        } else if is_replaced {
            self.unproved.entry(place.clone()).or_insert(at);
        }
    }

    fn set_pod(&mut self, place: &PodRef, seen: Option<ServicePod>) {
        if let Some(rc) = self.pods.remove(place).and_then(|pod| pod.rc)
            && let Some(places) = self.by_rc.get_mut(&rc)
        {
            places.remove(place);
        }
        let Some(seen) = seen else { return };
        if let Some(rc) = seen.rc {
            self.by_rc.entry(rc).or_default().insert(place.clone());
        }
        self.pods.insert(place.clone(), seen);
    }

    /// Places of an RC's pods.
    #[must_use]
    pub fn places(&self, rc: RcId) -> BTreeSet<PodRef> {
        self.by_rc.get(&rc).cloned().unwrap_or_default()
    }

    /// The readable record of an RC.
    #[must_use]
    pub fn spec(&self, rc: RcId) -> Option<&RcSpec> {
        self.records.get(&rc)?.as_deref()
    }

    /// Oldest state on which a decision at `now` may be based.
    #[must_use]
    pub fn oldest_view(&self, now: Duration) -> Duration {
        let usual = now.saturating_sub(VIEW);
        let restored = self.restored_at.filter(|_| self.was_restored(now));
        restored.map_or(usual, |at| usual.min(at.saturating_sub(VIEW)))
    }

    /// Whether views may show what a restored snapshot undid.
    #[must_use]
    pub fn was_restored(&self, now: Duration) -> bool {
        self.restored_at.is_some_and(|at| now < at + AFTER_RESTORE)
    }

    /// A node's labels, if they are older than the RC's record and can be read.
    #[must_use]
    pub fn labels_before_record(&self, rc: RcId, node: &NodeName) -> Option<&Labels> {
        let index = |key: Key| Some(self.entries.get(key.as_str())?.modify_index);
        let is_older = index(key::node_labels(node))? < index(key::rc(rc))?;
        self.node_labels.get(node)?.now()?.as_ref().filter(|_| is_older)
    }

    /// Whether some recent view may show the node as fit for an RC's pods.
    #[must_use]
    pub fn maybe_fit(&self, spec: &RcSpec, node: &NodeName, now: Duration) -> bool {
        self.surely_unfit(spec, node, now).is_none()
    }

    /// Why no recent view shows the node as fit for an RC's pods.
    #[must_use]
    pub fn surely_unfit(&self, spec: &RcSpec, node: &NodeName, now: Duration) -> Option<Unfit> {
        let from = self.oldest_view(now);
        let matches = |labels: &Option<Labels>| {
            labels.as_ref().is_some_and(|labels| spec.node_selector.matches(labels))
        };
        if !self.node_labels.get(node).is_some_and(|t| t.ever(from, false, matches)) {
            return Some(Unfit::Labels);
        }
        let ready = |said: &Option<ReportedStatus>| said.as_ref().is_none_or(|said| !said.draining);
        // A node whose agent is gone stays fit for the grace period; a drain may end meanwhile.
        let here = |said: &Option<ReportedStatus>| said.as_ref().is_none_or(|said| !said.gone);
        let seen_since = from.saturating_sub(NODE_GRACE);
        let said = self.nodes.get(node)?;
        match (said.ever(seen_since, true, here), said.ever(from, true, ready)) {
            (false, _) => Some(Unfit::Down),
            (true, false) => Some(Unfit::Draining),
            (true, true) => None,
        }
    }

    /// Whether some recent view may show the node as unfit for an RC's pods.
    #[must_use]
    pub fn maybe_unfit(&self, spec: &RcSpec, node: &NodeName, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let differs = |labels: &Option<Labels>| {
            labels.as_ref().is_none_or(|labels| !spec.node_selector.matches(labels))
        };
        let unlabelled = self.node_labels.get(node).is_none_or(|t| t.ever(from, true, differs));
        unlabelled || self.maybe_leaving(node, now)
    }

    /// Whether some recent view may show the node as drained or down.
    #[must_use]
    pub fn maybe_leaving(&self, node: &NodeName, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let leaving =
            |said: &Option<ReportedStatus>| said.as_ref().is_some_and(|s| s.draining || s.gone);
        self.nodes.get(node).is_some_and(|t| t.ever(from, false, leaving))
    }

    /// Whether some recent view may show the pod as healthy.
    #[must_use]
    pub fn maybe_passing(&self, place: &PodRef, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let passing = |health: &Health| *health == Health::Passing;
        self.health.get(place).is_some_and(|t| t.ever(from, false, passing))
    }

    /// Whether all recent views show the pod as healthy.
    #[must_use]
    pub fn surely_passing(&self, place: &PodRef, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let ailing = |health: &Health| *health != Health::Passing;
        let well = self.health.get(place).is_some_and(|t| !t.ever(from, true, ailing));
        well && !self.maybe_leaving(&place.node, now)
    }

    /// Whether all recent views show the pod as unhealthy.
    #[must_use]
    pub fn surely_ailing(&self, place: &PodRef, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let well = |health: &Health| matches!(health, Health::Passing | Health::Absent);
        self.health.get(place).is_some_and(|t| !t.ever(from, true, well))
    }

    /// Whether a pod was allocated what its record asks for.
    #[must_use]
    pub fn is_allocated(&self, spec: &RcSpec, place: &PodRef) -> bool {
        was_allocated(spec, place, self.allocations.get(&place.node))
    }

    /// Whether a node that declares its capacity has room for another pod of an RC.
    #[must_use]
    pub fn has_room(&self, spec: &RcSpec, node: &NodeName) -> bool {
        let said = self.nodes.get(node).and_then(|t| t.now()?.as_ref());
        let capacity = said.map(|said| said.capacity.clone()).unwrap_or_default();
        let allocated = self.allocations.get(node).cloned().unwrap_or_default();
        let room = NodeCapacity { capacity, allocated, ..NodeCapacity::default() };
        let want = PodResources::of_manifest(&spec.manifest);
        room.insufficient_for(spec.manifest.id(), &spec.owner(), &want).is_none()
    }

    /// Whether a node is fit now.
    #[must_use]
    pub fn is_fit(&self, spec: &RcSpec, node: &NodeName) -> bool {
        let labels = self.node_labels.get(node).and_then(|t| t.now()?.as_ref());
        let said = self.nodes.get(node).and_then(|t| t.now()?.as_ref());
        labels.is_some_and(|labels| spec.node_selector.matches(labels))
            && said.is_none_or(|said| !said.draining && !said.gone)
    }

    /// The intent of a place.
    #[must_use]
    pub fn intent(&self, place: &PodRef) -> Option<&Arc<Entry>> {
        self.entries.get(key::intent(&place.node, &place.pod).as_str())
    }

    /// Entries below a prefix.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Entry>> {
        let from = self.entries.range(prefix.to_owned()..);
        from.take_while(move |(key, _)| key.starts_with(prefix)).map(|(_, entry)| entry)
    }
}

/// Whether a pod is allocated what its record asks for, in these allocations of its node.
#[must_use]
pub fn was_allocated(spec: &RcSpec, place: &PodRef, allocated: Option<&Allocations>) -> bool {
    let allocation = allocated.and_then(|all| all.pods.get(&place.pod));
    match allocation.filter(|allocation| allocation.owner == spec.owner()) {
        Some(allocation) => allocation.resources().equals(spec.resources()),
        None => spec.resources().is_zero(),
    }
}

fn said(entry: &Entry) -> Option<ReportedStatus> {
    let record = NodeRecord::decode(&entry.value).ok()?;
    let gone = record.session.is_some() && entry.session.is_none();
    let draining = record.state == NodeState::Draining;
    Some(ReportedStatus { draining, gone, capacity: record.capacity })
}
