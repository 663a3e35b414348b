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

/// Functions that build keys and prefixes: `name(arguments) -> Key = "path";`. The path is the first line of the docs.
macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $kind:ident = $path:literal;)*) => {$(
        #[doc = concat!("`", $path, "`")]
        #[doc = ""]
        $(#[$doc])*
        #[must_use]
        pub fn $name($($argument: $type),*) -> $kind {
            $kind::of(format!($path))
        }
    )*};
}

// ---- square/p2's layer ------------------------------------------------------------------------------

layout! {
    rcs() -> Prefix = "replication_controllers/";
    rc(id: RcId) -> Key = "replication_controllers/{id}";
    /// Ownership locks have one segment below it, the other kinds two.
    rc_locks() -> Prefix = "lock/replication_controllers/";
    /// Who owns the RC.
    rc_lock(id: RcId) -> Key = "lock/replication_controllers/{id}";
    /// p2's mutation lock, held while the RC is changed in several steps.
    rc_mutation_lock(id: RcId) -> Key = "lock/replication_controllers/{id}/update";
    /// Held by an outside system to forbid node transfers.
    rc_transfer_lock(id: RcId) -> Key = "lock/replication_controllers/{id}/node_transfer";
    node_labels(node: &NodeName) -> Key = "labels/node/{node}";
    rc_labels(id: RcId) -> Key = "labels/replication_controller/{id}";
    pod_labels(node: &NodeName, pod: &PodId) -> Key = "labels/pod/{node}/{pod}";
    node_pod_labels(node: &NodeName) -> Prefix = "labels/pod/{node}/";
    intents() -> Prefix = "intent/";
    node_intents(node: &NodeName) -> Prefix = "intent/{node}/";
    intent(node: &NodeName, pod: &PodId) -> Key = "intent/{node}/{pod}";
    realities() -> Prefix = "reality/";
    node_realities(node: &NodeName) -> Prefix = "reality/{node}/";
    reality(node: &NodeName, pod: &PodId) -> Key = "reality/{node}/{pod}";
    healths() -> Prefix = "health/";
    /// The pods of one id on all nodes.
    service_healths(service: &PodId) -> Prefix = "health/{service}/";
    /// The service is the pod's id.
    health(service: &PodId, node: &NodeName) -> Key = "health/{service}/{node}";
    pod_statuses() -> Prefix = "status/pods/";
    /// The pods of one id on all nodes.
    statuses_of_pod(pod: &PodId) -> Prefix = "status/pods/{pod}/";
    /// Status of a controller's pod, written by the node's agent.
    ///
    /// p2 writes `status/pods/<uuid>/preparer` here. Its programs require exactly four segments and ignore keys whose
    /// last segment is not `preparer`, so no node may have that name ([`check_node_name`]).
    pod_status(pod: &PodId, node: &NodeName) -> Key = "status/pods/{pod}/{node}";
    rc_statuses() -> Prefix = "status/replication_controllers/";
    /// Status of an RC, written by its owner farm.
    rc_status(id: RcId) -> Key = "status/replication_controllers/{id}/rcfarm";
    audit_logs() -> Prefix = "audit_logs/";
    audit_log(id: Uuid) -> Key = "audit_logs/{id}";
}

/// Splits a key below a prefix of locks into the record and the lock; `None` is the ownership lock. Only p2's layout
/// has other locks; below `rcfarm/` a record's name may have two segments.
pub fn split_lock<'k>(locks: &Prefix, tail: &'k str) -> (&'k str, Option<&'k str>) {
    match tail.split_once('/') {
        Some((record, lock)) if *locks == rc_locks() => (record, Some(lock)),
        _ => (tail, None),
    }
}

/// `labels/<kind>/`
pub fn labels(kind: LabelKind) -> Prefix {
    Prefix(format!("labels/{}/", kind.segment()).into())
}

/// The pod and node of a listed `status/pods/…` or `health/…` key; `None` if it has another shape.
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

// ---- ours -------------------------------------------------------------------------------------------

/// Label of an RC: minimum number of healthy pods while others are removed or moved. It is here because it shares the
/// prefix of our keys.
pub const MIN_HEALTH_LABEL: &str = "rcfarm/min_health";

/// Label of an RC: `spread` (the default) or `bin-pack`, the order in which nodes with room are chosen. It has an
/// effect if the manifest asks for resources.
pub const PACKING_LABEL: &str = "rcfarm/packing";

/// Label of an RC: how its pods get one version of its manifest, as in `in-order.0123456789abcdef`
/// ([`crate::rc::update::UpdateChoice`]).
pub const UPDATE_LABEL: &str = "rcfarm/update";

/// Label of a pod with the uid of its job. It is here because it shares the prefix of our keys.
pub const JOB_UID_LABEL: &str = "rcfarm/job_uid";

/// Label of a job's pod with the number of the attempt at its member.
pub const ATTEMPT_LABEL: &str = "rcfarm/attempt";

layout! {
    layout() -> Key = "rcfarm/layout";
    farms() -> Prefix = "rcfarm/farms/";
    /// A live farm's presence, held by its session.
    farm(name: &FarmName) -> Key = "rcfarm/farms/{name}";
    nodes() -> Prefix = "rcfarm/nodes/";
    node(name: &NodeName) -> Key = "rcfarm/nodes/{name}";
    allocations() -> Prefix = "rcfarm/allocations/";
    /// Allocations on a node, changed only by CAS.
    allocation(node: &NodeName) -> Key = "rcfarm/allocations/{node}";
    job_keys_records() -> Prefix = "rcfarm/job_keys/";
    /// Key pair of a job, for its owner alone. Nodes have copies in [`peers`].
    job_keys(id: &Namespaced) -> Key = "rcfarm/job_keys/{id}";
    peers_records() -> Prefix = "rcfarm/peers/";
    node_peers(node: &NodeName) -> Prefix = "rcfarm/peers/{node}/";
    /// Where the members of a job are, for its members on a node. Written by the job's owner.
    peers(node: &NodeName, job: &Namespaced) -> Key = "rcfarm/peers/{node}/{job}";
    queues() -> Prefix = "rcfarm/queues/";
    queue(name: &QueueName) -> Key = "rcfarm/queues/{name}";
    queue_statuses() -> Prefix = "rcfarm/queue_status/";
    /// Status of a queue, written by the scheduler's owner.
    queue_status(name: &QueueName) -> Key = "rcfarm/queue_status/{name}";
    priority_classes() -> Prefix = "rcfarm/priority_classes/";
    priority_class(name: &ObjectName) -> Key = "rcfarm/priority_classes/{name}";
    job_types() -> Prefix = "rcfarm/job_types/";
    /// A kind of jobs that a record describes; the name is the kind.
    job_type(kind: &ObjectName) -> Key = "rcfarm/job_types/{kind}";
    cells() -> Prefix = "rcfarm/cells/";
    /// Cells of the cluster and what virtual clusters have been promised: HiveD's configuration.
    cell_config() -> Key = "rcfarm/cells/config";
    pod_groups() -> Prefix = "rcfarm/pod_groups/";
    pod_group(id: &Namespaced) -> Key = "rcfarm/pod_groups/{id}";
    pod_group_statuses() -> Prefix = "rcfarm/pod_group_status/";
    /// Status of a PodGroup, written by the scheduler's owner; also the write-ahead record of its placement.
    pod_group_status(id: &Namespaced) -> Key = "rcfarm/pod_group_status/{id}";
    schedulers() -> Prefix = "rcfarm/schedulers/";
    scheduler(name: &ObjectName) -> Key = "rcfarm/schedulers/{name}";
    scheduler_statuses() -> Prefix = "rcfarm/scheduler_status/";
    /// Status of a scheduler, written by its owner farm.
    scheduler_status(name: &ObjectName) -> Key = "rcfarm/scheduler_status/{name}";
    scheduler_locks() -> Prefix = "lock/rcfarm/schedulers/";
    /// Labels of schedulers, matched by a farm's selector.
    scheduler_labels() -> Prefix = "labels/scheduler/";
    jobs() -> Prefix = "rcfarm/jobs/";
    /// A job's document.
    job(id: &Namespaced) -> Key = "rcfarm/jobs/{id}";
    job_statuses() -> Prefix = "rcfarm/job_status/";
    /// Status of a job, written by its owner farm.
    job_status(id: &Namespaced) -> Key = "rcfarm/job_status/{id}";
    job_locks() -> Prefix = "lock/rcfarm/jobs/";
    /// Ownership lock of a job.
    job_lock(id: &Namespaced) -> Key = "lock/rcfarm/jobs/{id}";
    /// Labels of jobs besides those of their documents, matched by a farm's selector.
    job_labels() -> Prefix = "labels/job/";
    /// Labels of a job, over those of its document.
    labels_of_job(id: &Namespaced) -> Key = "labels/job/{id}";
    job_bell(id: &Namespaced) -> Key = "rcfarm/bell/job/{id}";
    cron_jobs() -> Prefix = "rcfarm/cron_jobs/";
    /// A CronJob's document.
    cron_job(id: &Namespaced) -> Key = "rcfarm/cron_jobs/{id}";
    cron_job_statuses() -> Prefix = "rcfarm/cron_job_status/";
    /// Status of a CronJob, written by its owner farm.
    cron_job_status(id: &Namespaced) -> Key = "rcfarm/cron_job_status/{id}";
    cron_job_locks() -> Prefix = "lock/rcfarm/cron_jobs/";
    /// Labels of CronJobs besides those of their documents, matched by a farm's selector.
    cron_job_labels() -> Prefix = "labels/cron_job/";
    cron_job_bell(id: &Namespaced) -> Key = "rcfarm/bell/cron/{id}";
    job_templates() -> Prefix = "rcfarm/job_templates/";
    /// A JobTemplate's document.
    job_template(id: &Namespaced) -> Key = "rcfarm/job_templates/{id}";
    job_flows() -> Prefix = "rcfarm/job_flows/";
    /// A JobFlow's document.
    job_flow(id: &Namespaced) -> Key = "rcfarm/job_flows/{id}";
    job_flow_statuses() -> Prefix = "rcfarm/job_flow_status/";
    /// Status of a JobFlow, written by its owner farm.
    job_flow_status(id: &Namespaced) -> Key = "rcfarm/job_flow_status/{id}";
    job_flow_locks() -> Prefix = "lock/rcfarm/job_flows/";
    /// Labels of JobFlows besides those of their documents, matched by a farm's selector.
    job_flow_labels() -> Prefix = "labels/job_flow/";
    job_flow_bell(id: &Namespaced) -> Key = "rcfarm/bell/flow/{id}";
    commands() -> Prefix = "rcfarm/commands/";
    /// A command to a queue, executed once. Commands to jobs may be here, too; whoever may write here may command every
    /// job.
    command(id: Uuid) -> Key = "rcfarm/commands/{id}";
    /// A command to a job of the namespace, executed once.
    job_command(namespace: &Namespace, id: Uuid) -> Key = "rcfarm/commands/{namespace}/{id}";
    /// What users changed in namespaces. Not below `audit_logs/`, where p2 expects a UUID.
    namespaced_audit_logs() -> Prefix = "rcfarm/audit_logs/";
    namespaced_audit_log(namespace: &Namespace, id: Uuid) -> Key = "rcfarm/audit_logs/{namespace}/{id}";
    bells() -> Prefix = "rcfarm/bell/";
    /// Sentinel that keeps the prefix of doorbells from being empty.
    bell_sentinel() -> Key = "rcfarm/bell/_";
    rc_bell(id: RcId) -> Key = "rcfarm/bell/rc/{id}";
    /// An operator confirms that a prefix is meant to be as small as it is.
    confirm_bell(farm: &FarmName) -> Key = "rcfarm/bell/confirm/{farm}";
}

/// The id of a listed audit record, in [`audit_logs`] or [`namespaced_audit_logs`]; `None` if the key has another
/// shape.
#[must_use]
pub fn audit_log_id(key: &str) -> Option<Uuid> {
    let id = match namespaced_audit_logs().tail(key) {
        Some(tail) => tail.split_once('/')?.1,
        None => audit_logs().tail(key)?,
    };
    id.parse().ok()
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

/// The namespace and name of a listed key below `prefix`; `None` if it has another shape.
pub fn namespaced(prefix: &Prefix, key: &str) -> Option<Namespaced> {
    prefix.tail(key)?.split_once('/')?;
    prefix.tail(key)?.parse().ok()
}

/// The node and pod of a listed `intent/…`, `reality/…` or `labels/pod/…` key; `None` if it has another shape.
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
