//! The key grammar, and every path of the layout: the only file with path strings.
//!
//! The layer above `rcfarm/` is square/p2's, byte for byte (`p2.md` §1); everything that p2 never had stands
//! under `rcfarm/`. `docs/reference/keys.md` is the same table for people.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::ids::{
    BadName, FarmName, Namespaced, NodeName, ObjectName, PodId, QueueName, RcId, check_segment,
};

/// A key that we may write: segments of the portable alphabet joined by single slashes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// A prefix that we may list or watch: empty, or a path that ends in a slash. (Consul's prefixes are string
/// prefixes: `n1` would also match `n10`.)
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(Arc<str>);

impl Key {
    /// A key from text, checked against the grammar.
    ///
    /// # Errors
    /// [`BadName`] naming the segment that breaks the grammar.
    pub fn parse(text: &str) -> Result<Key, BadName> {
        text.split('/').try_for_each(check_segment)?;
        Ok(Key(text.into()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn of(text: String) -> Key {
        debug_assert!(Key::parse(&text).is_ok(), "key outside the grammar: {text}");
        Key(text.into())
    }
}

impl Prefix {
    /// A prefix from text, checked against the grammar; a missing final slash is added.
    ///
    /// # Errors
    /// [`BadName`] naming the segment that breaks the grammar.
    pub fn parse(text: &str) -> Result<Prefix, BadName> {
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        if trimmed.is_empty() {
            return Ok(Prefix("".into()));
        }
        Key::parse(trimmed)?;
        Ok(Prefix(format!("{trimmed}/").into()))
    }

    /// The prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The rest of a listed key after this prefix; `None` when the key is not under it.
    #[must_use]
    pub fn tail<'k>(&self, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(&*self.0)
    }

    /// The key that `tail` names below this prefix; `None` when that is no legal key.
    #[must_use]
    pub fn key_of(&self, tail: &str) -> Option<Key> {
        Key::parse(&format!("{}{tail}", self.0)).ok()
    }

    /// This prefix below another one: how a configured root is put in front.
    #[must_use]
    pub fn join(&self, key: &Key) -> Key {
        Key::of(format!("{}{key}", self.0))
    }

    /// A prefix below this prefix.
    #[must_use]
    pub fn join_prefix(&self, below: &Prefix) -> Prefix {
        Prefix(format!("{}{below}", self.0).into())
    }

    /// All keys that begin as `key` does, up to `end`: the one sort of prefix that need not end in a slash.
    pub fn beginning(key: &Key, end: usize) -> Prefix {
        Prefix(key.0[..end].into())
    }

    /// The key that keeps a tree of ours from being empty: a watch on an empty prefix wakes on unrelated writes
    /// (`consul-semantics.md` §0 #9). No record of any tree can have its name.
    #[must_use]
    pub fn sentinel(&self) -> Key {
        Key::of(format!("{}{SENTINEL}", self.0))
    }

    /// Whether a listed key is this prefix's sentinel.
    #[must_use]
    pub fn is_sentinel(&self, key: &str) -> bool {
        self.tail(key) == Some(SENTINEL)
    }

    fn fixed(text: &'static str) -> Prefix {
        Prefix(text.into())
    }
}

/// One segment more than any record's name has.
const SENTINEL: &str = "_/_/_";

macro_rules! as_text {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}
as_text!(Key);
as_text!(Prefix);

/// What labels can be put on; the words are p2's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum LabelKind {
    /// `labels/node/<node>`
    Node,
    /// `labels/pod/<node>/<pod id>`
    Pod,
    /// `labels/replication_controller/<uuid>`
    #[value(alias = "rc")]
    ReplicationController,
    /// `labels/rolls/<uuid>`
    Rolls,
}

impl LabelKind {
    /// The path segment.
    #[must_use]
    pub fn segment(self) -> &'static str {
        match self {
            LabelKind::Node => "node",
            LabelKind::Pod => "pod",
            LabelKind::ReplicationController => "replication_controller",
            LabelKind::Rolls => "rolls",
        }
    }
}

// ---- square/p2's layer ------------------------------------------------------------------------------

/// `replication_controllers/`
#[must_use]
pub fn rcs() -> Prefix {
    Prefix::fixed("replication_controllers/")
}

/// `replication_controllers/<uuid>`
#[must_use]
pub fn rc(id: RcId) -> Key {
    Key::of(format!("replication_controllers/{id}"))
}

/// `lock/replication_controllers/`: ownership locks have one segment below it, the other kinds two.
#[must_use]
pub fn rc_locks() -> Prefix {
    Prefix::fixed("lock/replication_controllers/")
}

/// The record that a key below a tree of locks is about, and which lock of it: `None` is the ownership lock. Only
/// p2's layout has others; in our own trees a record's name may have two segments.
#[must_use]
pub fn split_lock<'k>(locks: &Prefix, tail: &'k str) -> (&'k str, Option<&'k str>) {
    match tail.split_once('/') {
        Some((record, lock)) if *locks == rc_locks() => (record, Some(lock)),
        _ => (tail, None),
    }
}

/// `lock/replication_controllers/<uuid>`: who owns the RC.
#[must_use]
pub fn rc_lock(id: RcId) -> Key {
    Key::of(format!("lock/replication_controllers/{id}"))
}

/// `lock/replication_controllers/<uuid>/update`: held by whoever changes the RC in several steps (p2's
/// mutation lock).
#[must_use]
pub fn rc_mutation_lock(id: RcId) -> Key {
    Key::of(format!("lock/replication_controllers/{id}/update"))
}

/// `lock/replication_controllers/<uuid>/node_transfer`: held by an outside system to forbid node transfers.
#[must_use]
pub fn rc_transfer_lock(id: RcId) -> Key {
    Key::of(format!("lock/replication_controllers/{id}/node_transfer"))
}

/// `labels/<kind>/`
#[must_use]
pub fn labels(kind: LabelKind) -> Prefix {
    Prefix(format!("labels/{}/", kind.segment()).into())
}

/// `labels/node/<node>`
#[must_use]
pub fn node_labels(node: &NodeName) -> Key {
    Key::of(format!("labels/node/{node}"))
}

/// `labels/replication_controller/<uuid>`
#[must_use]
pub fn rc_labels(id: RcId) -> Key {
    Key::of(format!("labels/replication_controller/{id}"))
}

/// `labels/pod/<node>/<pod id>`
#[must_use]
pub fn pod_labels(node: &NodeName, pod: &PodId) -> Key {
    Key::of(format!("labels/pod/{node}/{pod}"))
}

/// `labels/pod/<node>/`
#[must_use]
pub fn node_pod_labels(node: &NodeName) -> Prefix {
    Prefix(format!("labels/pod/{node}/").into())
}

/// `intent/`
#[must_use]
pub fn intents() -> Prefix {
    Prefix::fixed("intent/")
}

/// `intent/<node>/`
#[must_use]
pub fn node_intents(node: &NodeName) -> Prefix {
    Prefix(format!("intent/{node}/").into())
}

/// `intent/<node>/<pod id>`
#[must_use]
pub fn intent(node: &NodeName, pod: &PodId) -> Key {
    Key::of(format!("intent/{node}/{pod}"))
}

/// `reality/`
#[must_use]
pub fn realities() -> Prefix {
    Prefix::fixed("reality/")
}

/// `reality/<node>/`
#[must_use]
pub fn node_realities(node: &NodeName) -> Prefix {
    Prefix(format!("reality/{node}/").into())
}

/// `reality/<node>/<pod id>`
#[must_use]
pub fn reality(node: &NodeName, pod: &PodId) -> Key {
    Key::of(format!("reality/{node}/{pod}"))
}

/// `health/`
#[must_use]
pub fn healths() -> Prefix {
    Prefix::fixed("health/")
}

/// `health/<service>/`: the pods of one id on all nodes.
#[must_use]
pub fn service_healths(service: &PodId) -> Prefix {
    Prefix(format!("health/{service}/").into())
}

/// `health/<service>/<node>`; a pod's service is named as the pod.
#[must_use]
pub fn health(service: &PodId, node: &NodeName) -> Key {
    Key::of(format!("health/{service}/{node}"))
}

/// `status/pods/`
#[must_use]
pub fn pod_statuses() -> Prefix {
    Prefix::fixed("status/pods/")
}

/// `status/pods/<pod id>/`: the pods of one id on all nodes.
#[must_use]
pub fn statuses_of_pod(pod: &PodId) -> Prefix {
    Prefix(format!("status/pods/{pod}/").into())
}

/// `status/pods/<pod id>/<node>`: what the node's agent says about a pod of a controller.
///
/// p2 has pods known by a UUID here, as `status/pods/<uuid>/preparer`. Its programs want exactly four parts and
/// pass over the last one unless it is `preparer`, so no node may be called that ([`check_node_name`]).
#[must_use]
pub fn pod_status(pod: &PodId, node: &NodeName) -> Key {
    Key::of(format!("status/pods/{pod}/{node}"))
}

/// The pod and node of a listed `status/pods/…` or `health/…` key; `None` if it has another shape.
#[must_use]
pub fn pod_and_node(prefix: &Prefix, key: &str) -> Option<(PodId, NodeName)> {
    let (pod, node) = prefix.tail(key)?.split_once('/')?;
    Some((pod.parse().ok()?, node.parse().ok()?))
}

/// Checks a name that a node is to run under.
///
/// # Errors
/// [`BadName`] for the one legal name that p2's layout already uses.
pub fn check_node_name(name: &NodeName) -> Result<(), BadName> {
    match name.as_str() {
        "preparer" => Err(BadName {
            text: name.to_string(),
            why: "square/p2 would read its pods' statuses as its own",
        }),
        _ => Ok(()),
    }
}

/// `status/replication_controllers/`
#[must_use]
pub fn rc_statuses() -> Prefix {
    Prefix::fixed("status/replication_controllers/")
}

/// `status/replication_controllers/<uuid>/rcfarm`: what the owner farm sees.
#[must_use]
pub fn rc_status(id: RcId) -> Key {
    Key::of(format!("status/replication_controllers/{id}/rcfarm"))
}

/// `audit_logs/`
#[must_use]
pub fn audit_logs() -> Prefix {
    Prefix::fixed("audit_logs/")
}

/// `audit_logs/<uuid v7>`
#[must_use]
pub fn audit_log(id: Uuid) -> Key {
    Key::of(format!("audit_logs/{}", id.as_hyphenated()))
}

// ---- ours -------------------------------------------------------------------------------------------

/// The label of a replication controller that declares how many of its pods stay healthy while others are removed or
/// moved. It stands here because it shares our prefix, although it is no key.
pub const MIN_HEALTH_LABEL: &str = "rcfarm/min_health";

/// The label of a replication controller that says which of several nodes with room is taken first: `spread` (the
/// default) or `bin-pack`. It means something when the manifest asks for resources.
pub const PACKING_LABEL: &str = "rcfarm/packing";

/// The label of a pod that says which job of its name it belongs to. It stands here because it shares our prefix,
/// although it is no key.
pub const JOB_UID_LABEL: &str = "rcfarm/job_uid";

/// The label of a job's pod that says which try at its member it is.
pub const ATTEMPT_LABEL: &str = "rcfarm/attempt";

/// `rcfarm/layout`
#[must_use]
pub fn layout() -> Key {
    Key::of("rcfarm/layout".to_owned())
}

/// `rcfarm/farms/`
#[must_use]
pub fn farms() -> Prefix {
    Prefix::fixed("rcfarm/farms/")
}

/// `rcfarm/farms/<farm>`: a live farm's presence, held by its session.
#[must_use]
pub fn farm(name: &FarmName) -> Key {
    Key::of(format!("rcfarm/farms/{name}"))
}

/// `rcfarm/nodes/`
#[must_use]
pub fn nodes() -> Prefix {
    Prefix::fixed("rcfarm/nodes/")
}

/// `rcfarm/nodes/<node>`
#[must_use]
pub fn node(name: &NodeName) -> Key {
    Key::of(format!("rcfarm/nodes/{name}"))
}

/// `rcfarm/allocations/`
#[must_use]
pub fn allocations() -> Prefix {
    Prefix::fixed("rcfarm/allocations/")
}

/// `rcfarm/allocations/<node>`: what is promised on a node, changed only by CAS.
#[must_use]
pub fn allocation(node: &NodeName) -> Key {
    Key::of(format!("rcfarm/allocations/{node}"))
}

/// `rcfarm/queues/`
#[must_use]
pub fn queues() -> Prefix {
    Prefix::fixed("rcfarm/queues/")
}

/// `rcfarm/queues/<name>`
#[must_use]
pub fn queue(name: &QueueName) -> Key {
    Key::of(format!("rcfarm/queues/{name}"))
}

/// `rcfarm/queue_status/`
#[must_use]
pub fn queue_statuses() -> Prefix {
    Prefix::fixed("rcfarm/queue_status/")
}

/// `rcfarm/queue_status/<name>`: what the scheduler's owner says of a queue.
#[must_use]
pub fn queue_status(name: &QueueName) -> Key {
    Key::of(format!("rcfarm/queue_status/{name}"))
}

/// `rcfarm/pod_groups/`
#[must_use]
pub fn pod_groups() -> Prefix {
    Prefix::fixed("rcfarm/pod_groups/")
}

/// `rcfarm/pod_groups/<ns>/<name>`
#[must_use]
pub fn pod_group(id: &Namespaced) -> Key {
    Key::of(format!("rcfarm/pod_groups/{id}"))
}

/// `rcfarm/pod_group_status/`
#[must_use]
pub fn pod_group_statuses() -> Prefix {
    Prefix::fixed("rcfarm/pod_group_status/")
}

/// `rcfarm/pod_group_status/<ns>/<name>`: what the scheduler's owner says of a PodGroup; also the write-ahead record
/// of its placement.
#[must_use]
pub fn pod_group_status(id: &Namespaced) -> Key {
    Key::of(format!("rcfarm/pod_group_status/{id}"))
}

/// `rcfarm/schedulers/`
#[must_use]
pub fn schedulers() -> Prefix {
    Prefix::fixed("rcfarm/schedulers/")
}

/// `rcfarm/schedulers/<name>`
#[must_use]
pub fn scheduler(name: &ObjectName) -> Key {
    Key::of(format!("rcfarm/schedulers/{name}"))
}

/// `rcfarm/scheduler_status/`
#[must_use]
pub fn scheduler_statuses() -> Prefix {
    Prefix::fixed("rcfarm/scheduler_status/")
}

/// `rcfarm/scheduler_status/<name>`: what its owner farm says of it.
#[must_use]
pub fn scheduler_status(name: &ObjectName) -> Key {
    Key::of(format!("rcfarm/scheduler_status/{name}"))
}

/// `lock/rcfarm/schedulers/`
#[must_use]
pub fn scheduler_locks() -> Prefix {
    Prefix::fixed("lock/rcfarm/schedulers/")
}

/// `labels/scheduler/`: labels of schedulers, which a farm's selector looks at.
#[must_use]
pub fn scheduler_labels() -> Prefix {
    Prefix::fixed("labels/scheduler/")
}

/// The namespace and name of a listed key below `prefix`; `None` if it has another shape.
#[must_use]
pub fn namespaced(prefix: &Prefix, key: &str) -> Option<Namespaced> {
    prefix.tail(key)?.split_once('/')?;
    prefix.tail(key)?.parse().ok()
}

/// `rcfarm/jobs/`
#[must_use]
pub fn jobs() -> Prefix {
    Prefix::fixed("rcfarm/jobs/")
}

/// `rcfarm/jobs/<ns>/<name>`: a job as its user wants it.
#[must_use]
pub fn job(id: &Namespaced) -> Key {
    Key::of(format!("rcfarm/jobs/{id}"))
}

/// `rcfarm/job_status/`
#[must_use]
pub fn job_statuses() -> Prefix {
    Prefix::fixed("rcfarm/job_status/")
}

/// `rcfarm/job_status/<ns>/<name>`: what the owner farm says of a job.
#[must_use]
pub fn job_status(id: &Namespaced) -> Key {
    Key::of(format!("rcfarm/job_status/{id}"))
}

/// `lock/rcfarm/jobs/`
#[must_use]
pub fn job_locks() -> Prefix {
    Prefix::fixed("lock/rcfarm/jobs/")
}

/// `lock/rcfarm/jobs/<ns>/<name>`: who owns a job.
#[must_use]
pub fn job_lock(id: &Namespaced) -> Key {
    Key::of(format!("lock/rcfarm/jobs/{id}"))
}

/// `labels/job/`: labels of jobs, which a farm's selector looks at.
#[must_use]
pub fn job_labels() -> Prefix {
    Prefix::fixed("labels/job/")
}

/// `rcfarm/bell/job/<ns>/<name>`
#[must_use]
pub fn job_bell(id: &Namespaced) -> Key {
    Key::of(format!("rcfarm/bell/job/{id}"))
}

/// `rcfarm/commands/`
#[must_use]
pub fn commands() -> Prefix {
    Prefix::fixed("rcfarm/commands/")
}

/// `rcfarm/commands/<uuid v7>`: something that a person asks of a job or a queue, once.
#[must_use]
pub fn command(id: Uuid) -> Key {
    Key::of(format!("rcfarm/commands/{}", id.as_hyphenated()))
}

/// `rcfarm/bell/`
#[must_use]
pub fn bells() -> Prefix {
    Prefix::fixed("rcfarm/bell/")
}

/// `rcfarm/bell/_`: the sentinel that keeps the bell tree from being empty (an empty prefix wakes on
/// unrelated writes).
#[must_use]
pub fn bell_sentinel() -> Key {
    Key::of("rcfarm/bell/_".to_owned())
}

/// `rcfarm/bell/rc/<uuid>`
#[must_use]
pub fn rc_bell(id: RcId) -> Key {
    Key::of(format!("rcfarm/bell/rc/{id}"))
}

/// `rcfarm/bell/confirm/<farm>`: a person's word that a tree which became suspiciously small is meant to be so.
#[must_use]
pub fn confirm_bell(farm: &FarmName) -> Key {
    Key::of(format!("rcfarm/bell/confirm/{farm}"))
}

/// The node and pod of a listed `intent/…`, `reality/…` or `labels/pod/…` key; `None` if it has another shape.
#[must_use]
pub fn node_and_pod(prefix: &Prefix, key: &str) -> Option<(NodeName, PodId)> {
    let (node, pod) = prefix.tail(key)?.split_once('/')?;
    Some((node.parse().ok()?, pod.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_to_the_grammar() {
        for good in ["a", "a/b", "labels/pod/n1.example.com/web", "rcfarm/bell/_"] {
            assert!(Key::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "/a", "a/", "a//b", "a/./b", "a/../b", "a b", "a/ü"] {
            assert!(Key::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_prefix_always_ends_in_a_slash() {
        assert_eq!(Prefix::parse("team/a").unwrap().as_str(), "team/a/");
        assert_eq!(Prefix::parse("team/a/").unwrap().as_str(), "team/a/");
        assert_eq!(Prefix::parse("").unwrap().as_str(), "");
        assert!(Prefix::parse("a//").is_err());
    }

    #[test]
    fn a_pods_status_has_the_four_parts_that_p2_wants() {
        let (pod, node) = ("web".parse().unwrap(), "n1".parse().unwrap());
        let key = pod_status(&pod, &node);
        assert_eq!(key.as_str().split('/').count(), 4);
        assert_eq!(pod_and_node(&pod_statuses(), key.as_str()), Some((pod, node)));
        assert!(check_node_name(&"preparer".parse().unwrap()).is_err());
    }

    #[test]
    fn a_pod_key_splits_at_the_node() {
        let (node, pod) = node_and_pod(&intents(), "intent/n1/web").unwrap();
        assert_eq!((node.as_str(), pod.as_str()), ("n1", "web"));
        assert!(node_and_pod(&intents(), "intent/n1").is_none());
        assert!(node_and_pod(&intents(), "intent/n1/a/b").is_none());
        assert!(node_and_pod(&intents(), "reality/n1/a").is_none());
    }
}
