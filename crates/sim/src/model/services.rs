//! Replication controllers, their pods and nodes as the checks see them, with the past of what transactions do not guard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::facts::VIEW;
use rcfarm::farm::NODE_GRACE;
use rcfarm::placement::capacity::NodeCapacity;
use rcfarm_api::Stored;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{FarmName, NodeName, RcId, SessionId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{Labels, decode_labels};
use rcfarm_api::manifest::Resources;
use rcfarm_api::node::Health;
use rcfarm_api::node::record::{NodeRecord, NodeState};
use rcfarm_api::rc::spec::{RC_ID, RcSpec};
use rcfarm_api::rc::status::RcStatus;
use rcfarm_emulator::{KvChange, Tables};
use rcfarm_store::{Entry, Index};

/// What a key is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Item {
    Record(RcId),
    RcLabels(RcId),
    Status(RcId),
    Owner(RcId),
    OtherLock(RcId),
    Pod(PodRef),
    Intent(PodRef),
    Health(PodRef),
    NodeLabels(NodeName),
    Node(NodeName),
    Allocations(NodeName),
    Farm(FarmName),
    Audit(Uuid),
    Other,
}

impl Item {
    /// From a key.
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

/// A value and what it was before.
#[derive(Debug, Clone, Default)]
pub struct Timeline<T>(Vec<(Duration, T)>);

impl<T: Clone + PartialEq> Timeline<T> {
    fn push(&mut self, at: Duration, value: T) {
        if self.0.last().is_none_or(|(_, last)| *last != value) {
            self.0.push((at, value));
        }
    }

    /// The value now.
    #[must_use]
    pub fn now(&self) -> Option<&T> {
        self.0.last().map(|(_, value)| value)
    }

    /// Whether there was a moment since `from` at which `holds` was true of the value; `absent` is what it is
    /// before the first.
    pub fn ever(&self, from: Duration, absent: bool, holds: impl Fn(&T) -> bool) -> bool {
        let begun = self.0.iter().rposition(|(at, _)| *at <= from);
        let before = begun.is_none() && absent;
        before || self.0[begun.unwrap_or(0)..].iter().any(|(_, value)| holds(value))
    }
}

/// A pod's labels.
#[derive(Debug, Clone, PartialEq)]
pub struct ServicePod {
    /// Whose it is.
    pub rc: Option<RcId>,
    /// CreateIndex of its labels: its age.
    pub created: Index,
}

impl ServicePod {
    /// From an entry.
    #[must_use]
    pub fn of(entry: &Entry) -> ServicePod {
        let labels = decode_labels(&entry.value).unwrap_or_default();
        let rc = labels.get(RC_ID).and_then(|id| id.parse().ok());
        ServicePod { rc, created: entry.create_index }
    }
}

/// What a node says of itself, as far as placement goes.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedStatus {
    /// It shall become empty.
    pub draining: bool,
    /// Its agent's session does not hold its record.
    pub gone: bool,
    /// What it has.
    pub capacity: Resources,
}

/// Why a node is not fit for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Its labels do not match.
    Labels,
    /// Its agent has been gone for longer than the grace.
    Down,
    /// It shall become empty.
    Draining,
}

/// A restored snapshot shows old data under indexes that never come again: watches notice when they next read
/// everything, which is within five minutes.
const AFTER_RESTORE: Duration = Duration::from_secs(310);

/// Replication controllers, their pods and nodes.
#[derive(Default)]
pub struct ServiceModel {
    restored_at: Option<Duration>,
    entries: BTreeMap<String, Arc<Entry>>,
    /// The records; `None`: unreadable.
    pub records: BTreeMap<RcId, Option<Arc<RcSpec>>>,
    /// Their labels; `None`: unreadable.
    pub rc_labels: BTreeMap<RcId, Timeline<Option<Labels>>>,
    /// Their statuses.
    pub statuses: BTreeMap<RcId, RcStatus>,
    /// Who owns them.
    pub owners: BTreeMap<RcId, SessionId>,
    /// Whose session holds each farm's name.
    pub present: BTreeMap<FarmName, SessionId>,
    /// Pods by place.
    pub pods: BTreeMap<PodRef, ServicePod>,
    /// Pods by owner.
    pub by_rc: BTreeMap<RcId, BTreeSet<PodRef>>,
    /// Places with an intent.
    pub intents: BTreeSet<PodRef>,
    /// Health by place.
    pub health: BTreeMap<PodRef, Timeline<Health>>,
    /// Labels of nodes; `None`: none, or unreadable.
    pub node_labels: BTreeMap<NodeName, Timeline<Option<Labels>>>,
    /// What nodes say of themselves; `None`: nothing.
    pub nodes: BTreeMap<NodeName, Timeline<Option<ReportedStatus>>>,
    /// What is allocated on nodes.
    pub allocations: BTreeMap<NodeName, Allocations>,
}

impl ServiceModel {
    /// Takes a change in; what kind of key it was.
    pub fn apply(&mut self, at: Duration, change: &KvChange) -> Item {
        self.set(at, &change.key, change.after.clone())
    }

    /// Takes over a restored state.
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
            (Item::Intent(place), Some(_)) => _ = self.intents.insert(place.clone()),
            (Item::Intent(place), None) => _ = self.intents.remove(place),
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

    /// The places of an RC's pods.
    #[must_use]
    pub fn places(&self, rc: RcId) -> BTreeSet<PodRef> {
        self.by_rc.get(&rc).cloned().unwrap_or_default()
    }

    /// The readable record of an RC.
    #[must_use]
    pub fn spec(&self, rc: RcId) -> Option<&RcSpec> {
        self.records.get(&rc)?.as_deref()
    }

    /// Views that are acted on at `now` may be as old as this.
    #[must_use]
    pub fn oldest_view(&self, now: Duration) -> Duration {
        let usual = now.saturating_sub(VIEW);
        let restored = self.restored_at.filter(|at| now < *at + AFTER_RESTORE);
        restored.map_or(usual, |at| usual.min(at.saturating_sub(VIEW)))
    }

    /// Whether a node may have looked fit for an RC's pods lately.
    #[must_use]
    pub fn maybe_fit(&self, spec: &RcSpec, node: &NodeName, now: Duration) -> bool {
        self.surely_unfit(spec, node, now).is_none()
    }

    /// Why a node cannot have looked fit for an RC's pods lately.
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
        // A node whose agent is gone stays as fit as it was for a grace; a drain may end meanwhile.
        let here = |said: &Option<ReportedStatus>| said.as_ref().is_none_or(|said| !said.gone);
        let seen_since = from.saturating_sub(NODE_GRACE);
        let said = self.nodes.get(node)?;
        match (said.ever(seen_since, true, here), said.ever(from, true, ready)) {
            (false, _) => Some(Unfit::Down),
            (true, false) => Some(Unfit::Draining),
            (true, true) => None,
        }
    }

    /// Whether a node may have looked unfit for an RC's pods lately.
    #[must_use]
    pub fn maybe_unfit(&self, spec: &RcSpec, node: &NodeName, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let differs = |labels: &Option<Labels>| {
            labels.as_ref().is_none_or(|labels| !spec.node_selector.matches(labels))
        };
        let unlabelled = self.node_labels.get(node).is_none_or(|t| t.ever(from, true, differs));
        unlabelled || self.maybe_leaving(node, now)
    }

    /// Whether a node may have looked drained or lost lately.
    #[must_use]
    pub fn maybe_leaving(&self, node: &NodeName, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let leaving =
            |said: &Option<ReportedStatus>| said.as_ref().is_some_and(|s| s.draining || s.gone);
        self.nodes.get(node).is_some_and(|t| t.ever(from, false, leaving))
    }

    /// Whether a pod may have looked healthy lately.
    #[must_use]
    pub fn maybe_passing(&self, place: &PodRef, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let passing = |health: &Health| *health == Health::Passing;
        self.health.get(place).is_some_and(|t| t.ever(from, false, passing))
    }

    /// Whether a pod looked healthy all the time.
    #[must_use]
    pub fn surely_passing(&self, place: &PodRef, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let ailing = |health: &Health| *health != Health::Passing;
        let well = self.health.get(place).is_some_and(|t| !t.ever(from, true, ailing));
        well && !self.maybe_leaving(&place.node, now)
    }

    /// Whether a pod ailed all the time.
    #[must_use]
    pub fn surely_ailing(&self, place: &PodRef, now: Duration) -> bool {
        let from = self.oldest_view(now);
        let well = |health: &Health| matches!(health, Health::Passing | Health::Absent);
        self.health.get(place).is_some_and(|t| !t.ever(from, true, well))
    }

    /// Whether a pod's place was allocated all that its record asks for, if it asks for anything.
    #[must_use]
    pub fn is_allocated(&self, spec: &RcSpec, place: &PodRef) -> bool {
        was_allocated(spec, place, self.allocations.get(&place.node))
    }

    /// Whether a node that says what it has has room for another pod of an RC.
    #[must_use]
    pub fn has_room(&self, spec: &RcSpec, node: &NodeName) -> bool {
        let said = self.nodes.get(node).and_then(|t| t.now()?.as_ref());
        let capacity = said.map(|said| said.capacity.clone()).unwrap_or_default();
        let allocated = self.allocations.get(node).cloned().unwrap_or_default();
        let room = NodeCapacity { capacity, allocated, ..NodeCapacity::default() };
        room.insufficient(spec.manifest.id(), spec.resources()).is_none()
    }

    /// Whether a node is fit now.
    #[must_use]
    pub fn is_fit(&self, spec: &RcSpec, node: &NodeName) -> bool {
        let labels = self.node_labels.get(node).and_then(|t| t.now()?.as_ref());
        let said = self.nodes.get(node).and_then(|t| t.now()?.as_ref());
        labels.is_some_and(|labels| spec.node_selector.matches(labels))
            && said.is_none_or(|said| !said.draining && !said.gone)
    }

    /// The entries below a prefix.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Entry>> {
        let from = self.entries.range(prefix.to_owned()..);
        from.take_while(move |(key, _)| key.starts_with(prefix)).map(|(_, entry)| entry)
    }
}

/// Whether a pod's place is allocated all that its record asks for, by what its node has allocated.
#[must_use]
pub fn was_allocated(spec: &RcSpec, place: &PodRef, allocated: Option<&Allocations>) -> bool {
    let allocation = allocated.and_then(|all| all.pods.get(&place.pod));
    match allocation.filter(|allocation| allocation.owner == spec.owner()) {
        Some(allocation) => allocation.amounts() == *spec.resources(),
        None => spec.resources().is_zero(),
    }
}

fn said(entry: &Entry) -> Option<ReportedStatus> {
    let record = NodeRecord::decode(&entry.value).ok()?;
    let gone = record.session.is_some() && entry.session.is_none();
    let draining = record.state == NodeState::Draining;
    Some(ReportedStatus { draining, gone, capacity: record.capacity })
}
