//! The key grammar, and every path of the layout: the only file with path strings.
//!
//! Everything outside `rcfarm/` has square/p2's layout, byte for byte (`p2.md` §1); everything that p2 does not have is
//! below `rcfarm/`. `docs/reference/keys.md` lists the same keys for users.

mod path;

pub use path::{Key, Prefix};

use uuid::Uuid;

use crate::InvalidText;
use crate::ids::{FarmName, Namespace, Namespaced, NodeName, ObjectName, PodId, QueueName, RcId};

/// Kinds of objects that have labels, in p2's words.
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

/// Splits a key below a prefix of locks into the record and the lock; `None` is the ownership lock. Only p2's layout
/// has other locks; below `rcfarm/` a record's name may have two segments.
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

/// `lock/replication_controllers/<uuid>/update` (p2's mutation lock): held while the RC is changed in several steps.
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

/// `health/<service>/<node>`; the service is the pod's id.
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

/// `status/pods/<pod id>/<node>`: status of a controller's pod, written by the node's agent.
///
/// p2 writes `status/pods/<uuid>/preparer` here. Its programs require exactly four segments and ignore keys whose last
/// segment is not `preparer`, so no node may have that name ([`check_node_name`]).
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

/// Checks the name of a new node.
///
/// # Errors
/// [`InvalidText`] for `preparer`, which p2's layout uses.
pub fn check_node_name(name: &NodeName) -> Result<(), InvalidText> {
    match name.as_str() {
        "preparer" => Err(InvalidText {
            text: name.to_string(),
            what: "name",
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

/// `status/replication_controllers/<uuid>/rcfarm`: status of an RC, written by its owner farm.
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

/// The id of a listed audit record, in [`audit_logs`] or [`namespaced_audit_logs`]; `None` if the key has another shape.
#[must_use]
pub fn audit_log_id(key: &str) -> Option<Uuid> {
    let id = match namespaced_audit_logs().tail(key) {
        Some(tail) => tail.split_once('/')?.1,
        None => audit_logs().tail(key)?,
    };
    id.parse().ok()
}

// ---- ours -------------------------------------------------------------------------------------------

/// Label of an RC: minimum number of healthy pods while others are removed or moved. It is here because it shares the
/// prefix of our keys.
pub const MIN_HEALTH_LABEL: &str = "rcfarm/min_health";

/// Label of an RC: `spread` (the default) or `bin-pack`, the order in which nodes with room are chosen. It has an
/// effect if the manifest asks for resources.
pub const PACKING_LABEL: &str = "rcfarm/packing";

/// Label of a pod with the uid of its job. It is here because it shares the prefix of our keys.
pub const JOB_UID_LABEL: &str = "rcfarm/job_uid";

/// Label of a job's pod with the number of the attempt at its member.
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

/// `rcfarm/allocations/<node>`: allocations on a node, changed only by CAS.
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

/// `rcfarm/queue_status/<name>`: status of a queue, written by the scheduler's owner.
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

/// `rcfarm/pod_group_status/<ns>/<name>`: status of a PodGroup, written by the scheduler's owner; also the write-ahead
/// record of its placement.
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

/// `rcfarm/scheduler_status/<name>`: status of a scheduler, written by its owner farm.
#[must_use]
pub fn scheduler_status(name: &ObjectName) -> Key {
    Key::of(format!("rcfarm/scheduler_status/{name}"))
}

/// `lock/rcfarm/schedulers/`
#[must_use]
pub fn scheduler_locks() -> Prefix {
    Prefix::fixed("lock/rcfarm/schedulers/")
}

/// `labels/scheduler/`: labels of schedulers, matched by a farm's selector.
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

/// `rcfarm/jobs/<ns>/<name>`: a job's document.
#[must_use]
pub fn job(id: &Namespaced) -> Key {
    Key::of(format!("rcfarm/jobs/{id}"))
}

/// `rcfarm/job_status/`
#[must_use]
pub fn job_statuses() -> Prefix {
    Prefix::fixed("rcfarm/job_status/")
}

/// `rcfarm/job_status/<ns>/<name>`: status of a job, written by its owner farm.
#[must_use]
pub fn job_status(id: &Namespaced) -> Key {
    Key::of(format!("rcfarm/job_status/{id}"))
}

/// `lock/rcfarm/jobs/`
#[must_use]
pub fn job_locks() -> Prefix {
    Prefix::fixed("lock/rcfarm/jobs/")
}

/// `lock/rcfarm/jobs/<ns>/<name>`: ownership lock of a job.
#[must_use]
pub fn job_lock(id: &Namespaced) -> Key {
    Key::of(format!("lock/rcfarm/jobs/{id}"))
}

/// `labels/job/`: labels of jobs, matched by a farm's selector.
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

/// `rcfarm/commands/<uuid v7>`: a command to a queue, executed once. Commands to jobs may be here, too; whoever may write
/// here may command every job.
#[must_use]
pub fn command(id: Uuid) -> Key {
    Key::of(format!("rcfarm/commands/{}", id.as_hyphenated()))
}

/// `rcfarm/commands/<ns>/<uuid v7>`: a command to a job of the namespace, executed once.
#[must_use]
pub fn job_command(namespace: &Namespace, id: Uuid) -> Key {
    Key::of(format!("rcfarm/commands/{namespace}/{}", id.as_hyphenated()))
}

/// The namespace, if there is one, and the id of a listed `rcfarm/commands/…` key; `None` if it has another shape.
#[must_use]
pub fn namespace_and_command(key: &str) -> Option<(Option<Namespace>, Uuid)> {
    let tail = commands().tail(key)?.to_owned();
    let (namespace, id) = match tail.split_once('/') {
        Some((namespace, id)) => (Some(namespace.parse().ok()?), id),
        None => (None, tail.as_str()),
    };
    Some((namespace, Uuid::parse_str(id).ok()?))
}

/// `rcfarm/audit_logs/`: what users changed in namespaces. Not below `audit_logs/`, where p2 expects a UUID.
#[must_use]
pub fn namespaced_audit_logs() -> Prefix {
    Prefix::fixed("rcfarm/audit_logs/")
}

/// `rcfarm/audit_logs/<ns>/<uuid v7>`
#[must_use]
pub fn namespaced_audit_log(namespace: &Namespace, id: Uuid) -> Key {
    Key::of(format!("rcfarm/audit_logs/{namespace}/{}", id.as_hyphenated()))
}

/// `rcfarm/bell/`
#[must_use]
pub fn bells() -> Prefix {
    Prefix::fixed("rcfarm/bell/")
}

/// `rcfarm/bell/_`: sentinel that keeps the prefix of doorbells from being empty.
#[must_use]
pub fn bell_sentinel() -> Key {
    Key::of("rcfarm/bell/_".to_owned())
}

/// `rcfarm/bell/rc/<uuid>`
#[must_use]
pub fn rc_bell(id: RcId) -> Key {
    Key::of(format!("rcfarm/bell/rc/{id}"))
}

/// `rcfarm/bell/confirm/<farm>`: an operator confirms that a prefix is meant to be as small as it is.
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
