//! Operations of a plan's transaction: pod labels, intents, PodGroup. Pure.

use std::collections::BTreeMap;

use super::frameworks::{self, ClusterPeer};
use super::manifest::{Placed, PodIdentity};
use super::members::MemberPod;
use super::plan::{Create, JobPlan};
use super::pods::Pods;
use crate::cluster::job_pods::{Mismatched, Unowned};
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{Namespaced, NodeName, PodId, QueueName};
use rcfarm_api::job::identity::{JOB_NAME, JOB_NAMESPACE, TASK, TASK_INDEX, VERSION};
pub use rcfarm_api::job::identity::{mark_of, name_of, uid_of};
use rcfarm_api::job::spec::{JobSpec, JobTask, JobUid, Slot};
use rcfarm_api::job::status::JobMembers;
use rcfarm_api::key::{self, ATTEMPT_LABEL as ATTEMPT, JOB_UID_LABEL as UID};
use rcfarm_api::labels::{Labels, encode_labels};
use rcfarm_api::manifest::command_line::LONGEST_STRING;
use rcfarm_api::manifest::{Manifest, PodManifest};
use rcfarm_api::pod_group::pod_ids::{PodIdFormat, without_hash};
use rcfarm_api::pod_group::spec::{self as group, OwnerRef, PodGroupRecord, PodGroupSpec};
use rcfarm_api::{FieldError, ResourceList, Slots, priority_class};
use rcfarm_store::{Index, Op};

const QUEUE: &str = "volcano.sh/queue-name";

/// Whether a pod id is that of a member of the job.
#[must_use]
pub fn is_member(job: &JobSpec, id: &Namespaced, pod: &PodId) -> bool {
    let mut tasks = job.tasks.iter().map(JobTask::lower_name);
    tasks.any(|task| PodIdFormat::ALL.iter().any(|f| f.index_of(id, &task, pod).is_some()))
}

/// Adopts a pod: CAS that adds the job's uid to its labels.
#[must_use]
pub fn adopt_op(identity: &PodIdentity, place: &PodRef, unowned: &Unowned) -> Op {
    let mut labels = unowned.labels.clone();
    for (name, value) in [
        (UID, identity.uid.to_string()),
        (VERSION, identity.version.to_string()),
        (ATTEMPT, identity.attempt.to_string()),
    ] {
        labels.insert(name.to_owned(), value);
    }
    let key = key::pod_labels(&place.node, &place.pod);
    Op::Cas { key, value: encode_labels(&labels), flags: 0, index: unowned.index }
}

/// Releases a pod: CAS that removes the uid from its labels.
#[must_use]
pub fn release_op(place: &PodRef, mismatched: &Mismatched) -> Op {
    let mut labels = mismatched.labels.clone();
    labels.remove(UID);
    let key = key::pod_labels(&place.node, &place.pod);
    Op::Cas { key, value: encode_labels(&labels), flags: 0, index: mismatched.index }
}

/// Labels of a pod: of the template, overridden by Volcano's and, where they apply, Kubeflow's.
#[must_use]
pub fn labels_of(job: &JobSpec, identity: &PodIdentity) -> Labels {
    let mut labels = Labels::new();
    if let Some(task) = job.task(&identity.slot.task) {
        labels.extend(task.template.labels.clone());
    }
    let mut set = |name: &str, value: String| drop(labels.insert(name.to_owned(), value));
    set(JOB_NAME, identity.job.name.to_string());
    set(JOB_NAMESPACE, identity.job.namespace.to_string());
    set(TASK, identity.slot.task.clone());
    set(TASK_INDEX, identity.slot.index.to_string());
    set(VERSION, identity.version.to_string());
    set(QUEUE, job.queue.clone());
    set(UID, identity.uid.to_string());
    set(ATTEMPT, identity.attempt.to_string());
    if job.framework.is_kubeflow() {
        let kind = job.kind().to_ascii_lowercase();
        set("training.kubeflow.org/operator-name", format!("{kind}-controller"));
        set("training.kubeflow.org/job-name", identity.job.name.to_string());
        set("training.kubeflow.org/replica-type", identity.slot.task.to_ascii_lowercase());
        set("training.kubeflow.org/replica-index", identity.slot.index.to_string());
        if frameworks::of(job.framework).is_master(job, &identity.slot) {
            set("training.kubeflow.org/job-role", "master".to_owned());
        }
    }
    labels
}

/// A pod to create.
pub struct Made {
    /// Node and pod id.
    pub place: PodRef,
    /// Job, member and attempt.
    pub identity: PodIdentity,
    /// Text of `intent/<node>/<pod>`.
    pub manifest: String,
}

/// Pods to create. Omits invalid pod ids, which validation has excluded.
#[must_use]
pub fn made(placed: &Placed<'_>, creates: &[Create]) -> Vec<Made> {
    if creates.is_empty() {
        return Vec::new();
    }
    let peers = placed.peers();
    creates.iter().filter_map(|create| made_one(placed, create, &peers)).collect()
}

/// One pod to create. `peers`: from [`Placed::peers`].
#[must_use]
pub fn made_one(
    placed: &Placed<'_>,
    create: &Create,
    peers: &BTreeMap<Slot, ClusterPeer>,
) -> Option<Made> {
    let pod = create.slot.pod_id(placed.id, placed.pod_ids).ok()?;
    let manifest = placed.manifest(create, &pod, peers);
    let place = PodRef { node: create.node.clone(), pod };
    Some(Made { place, identity: placed.identity(create), manifest })
}

/// Refuses pods that no node can run, because an argument or a variable is longer than the kernel allows. What the
/// document holds was checked before, so the addresses of the peers make it so. `rest`: pods of later transactions, of
/// which the last is checked: members of a task differ in the digits of their index.
///
/// # Errors
/// [`FieldError`] below the manifest.
pub fn check_strings(
    placed: &Placed<'_>,
    made: &[Made],
    rest: &[Create],
) -> Result<(), FieldError> {
    // No string is longer than the manifest that holds it.
    let is_long = |one: &&Made| one.manifest.len() + MOST_DIGITS > LONGEST_STRING;
    let Some(largest) = made.iter().max_by_key(|one| one.manifest.len()).filter(is_long) else {
        return Ok(());
    };
    let last = rest.last().and_then(|create| made_one(placed, create, &placed.peers()));
    [Some(largest), last.as_ref()]
        .into_iter()
        .flatten()
        .try_for_each(|one| PodManifest::read(&Manifest::parse(&one.manifest)?)?.check_processes())
}

/// Greatest difference in the length of two members' indexes.
const MOST_DIGITS: usize = 5;

/// Operations that create a pod; refused if labels or intent exist.
#[must_use]
pub fn create_ops(job: &JobSpec, made: &Made) -> [Op; 2] {
    let PodRef { node, pod } = &made.place;
    let labels = encode_labels(&labels_of(job, &made.identity));
    let manifest = made.manifest.clone().into();
    [
        Op::Cas { key: key::pod_labels(node, pod), value: labels, flags: 0, index: Index::ZERO },
        Op::Cas { key: key::intent(node, pod), value: manifest, flags: 0, index: Index::ZERO },
    ]
}

/// Operations that remove a pod; refused if labels or intent changed.
#[must_use]
pub fn remove_ops(place: &PodRef, label: Index, intent: Option<Index>) -> Vec<Op> {
    let labels = key::pod_labels(&place.node, &place.pod);
    let mut ops =
        vec![Op::CheckIndex { key: labels.clone(), index: label }, Op::Delete { key: labels }];
    let key = key::intent(&place.node, &place.pod);
    ops.push(match intent {
        Some(index) => Op::DeleteCas { key, index },
        // An intent created meanwhile would run without labels, so without a known owner.
        None => Op::CheckNotExists { key },
    });
    ops
}

/// Operations that remove a pod without labels; refused if it has got some, or if the intent changed.
#[must_use]
pub fn remove_unlabelled_ops(place: &PodRef, intent: Index) -> [Op; 2] {
    [
        Op::CheckNotExists { key: key::pod_labels(&place.node, &place.pod) },
        Op::DeleteCas { key: key::intent(&place.node, &place.pod), index: intent },
    ]
}

/// A task of a job's PodGroup.
fn group_task(job: &JobSpec, task: &JobTask, replicas: u32) -> group::TaskSpec {
    group::TaskSpec {
        name: task.lower_name(),
        replicas,
        resources: task.template.resources().nonzero(),
        node_selector: task.template.node_selector.to_string(),
        ports: frameworks::of(job.framework).listeners(job, task),
    }
}

/// Tasks of the PodGroup of a job that has no pods.
#[must_use]
pub fn tasks_of_new(job: &JobSpec) -> Vec<group::TaskSpec> {
    let tasks = job.tasks.iter().filter(|task| task.replicas > 0);
    tasks.map(|task| group_task(job, task, task.replicas)).collect()
}

/// PodGroup that a job wants, with counts of its members. `placed`: number of members that have a node or have ended;
/// members without a pod keep their node, but for the plan's `moves`. `pods`: surplus members keep their nodes until
/// their pods are gone. `before`: the job's PodGroup as it stands.
#[must_use]
pub fn group_of(
    id: &Namespaced,
    uid: JobUid,
    job: &JobSpec,
    plan: &JobPlan,
    placed: usize,
    pods: &Pods,
    before: Option<&PodGroupSpec>,
) -> PodGroupRecord {
    let there = pods.highest();
    let replicas = |task: &JobTask| {
        let there = there.get(task.name.as_str()).map_or(0, |most| most.saturating_add(1));
        task.replicas.max(there)
    };
    let tasks = || job.tasks.iter().filter(|task| replicas(task) > 0);
    let needed: u32 = job.tasks.iter().map(JobTask::needed).sum();
    let min_task_member = match job.min_available >= needed {
        true => tasks().map(|task| (task.lower_name(), task.needed())).collect(),
        false => BTreeMap::new(),
    };
    let tasks = tasks().map(|task| group_task(job, task, replicas(task)));
    let spec = PodGroupSpec {
        min_member: Some(job.min_available),
        min_task_member,
        queue: job.queue.parse().unwrap_or_else(|_| default_queue()),
        priority_class_name: job.priority_class.clone().unwrap_or_default(),
        // The scheduler looks classes up itself.
        priority: job.priority_class.as_deref().and_then(priority_class::number).unwrap_or(0),
        min_resources: job.min_resources.as_ref().map(ResourceList::nonzero).unwrap_or_default(),
        tasks: tasks.collect(),
        pod_ids: before.map_or_else(|| format_of(pods), |before| before.pod_ids),
        owner: Some(OwnerRef {
            kind: "Job".to_owned(),
            name: id.name.to_string(),
            uid: uid.to_string(),
        }),
        round: plan.status.round,
        cells: job.cells.clone(),
        budget: job.budget,
        moves: moves_of(job, plan),
        ended: ended_by_task(job, plan),
        schedule_timeout_seconds: job.schedule_timeout.map(|timeout| timeout.as_secs()),
        ..PodGroupSpec::default()
    };
    let JobMembers { pending, running, succeeded, failed, terminating, unknown } =
        plan.status.members;
    let all = pending + running + succeeded + failed + unknown;
    let missing = job.replicas().saturating_sub(all);
    // With fewer than `minAvailable` placed, no node is kept: the group is placed again once its pods are gone.
    let placed = u32::try_from(placed).unwrap_or(u32::MAX);
    let kept = if placed < job.min_available { 0 } else { placed.saturating_sub(all).min(missing) };
    let members = group::MemberCounts {
        pending: missing - kept,
        bound: pending + kept,
        running: running + unknown,
        succeeded,
        failed,
        releasing: terminating,
    };
    PodGroupRecord { members, ..PodGroupRecord::new(spec) }
}

/// Members that need no node any more, by the group's name of their task.
fn ended_by_task(job: &JobSpec, plan: &JobPlan) -> BTreeMap<String, Slots> {
    let mut ended: BTreeMap<String, Slots> = BTreeMap::new();
    for slot in &plan.ended {
        if let Some(task) = job.task(&slot.task) {
            ended.entry(task.lower_name()).or_default().insert(slot.index);
        }
    }
    ended
}

/// Members that shall leave their nodes, by task and index.
fn moves_of(job: &JobSpec, plan: &JobPlan) -> BTreeMap<String, BTreeMap<u32, NodeName>> {
    let mut moves: BTreeMap<String, BTreeMap<u32, NodeName>> = BTreeMap::new();
    for (slot, node) in &plan.moves {
        if let Some(task) = job.task(&slot.task) {
            moves.entry(task.lower_name()).or_default().insert(slot.index, node.clone());
        }
    }
    moves
}

/// Format of a new PodGroup. If the group of running pods was deleted, the format of these pods: their ids stay.
fn format_of(pods: &Pods) -> PodIdFormat {
    let is_plain = |pod: &MemberPod| without_hash(&pod.place.pod).is_none();
    match pods.own.iter().any(is_plain) {
        true => PodIdFormat::Plain,
        false => PodIdFormat::Hashed,
    }
}

fn default_queue() -> QueueName {
    rcfarm_api::queue::spec::DEFAULT_QUEUE.parse().expect("a legal name")
}

/// Nodes of a bound group's members.
#[must_use]
pub fn places(
    job: &JobSpec,
    node_of: impl Fn(&str, u32) -> Option<NodeName>,
) -> BTreeMap<Slot, NodeName> {
    let mut places = BTreeMap::new();
    for task in &job.tasks {
        for index in 0..task.replicas {
            let node = node_of(&task.lower_name(), index);
            if let Some(node) = node {
                places.insert(Slot::new(&task.name, index), node);
            }
        }
    }
    places
}
