//! The specification of a job: a superset of Volcano's Job and Kubeflow's training jobs. Pure.
//!
//! The stored record is the user's document. This is its decoded form, with all defaults set.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::array::ArraySpec;
use super::job_type::JobType;
use crate::Index;
use crate::InvalidText;
use crate::ResourceList;
use crate::budget::DisruptionBudget;
use crate::cells::CellRequest;
use crate::command::CommandAction;
use crate::ids::{Namespaced, PodId};
use crate::labels::Selector;
use crate::manifest::{HealthStanza, PeerSignal};
use crate::pod_group::pod_ids::PodIdFormat;

/// Uid of a job: the CreateIndex of its record. A job that is deleted and created again has another uid.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct JobUid(pub Index);

impl fmt::Display for JobUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for JobUid {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(|index| JobUid(Index(index)))
    }
}

/// `apiVersion` and `kind` of Volcano's job.
pub const VOLCANO_JOB: (&str, &str) = ("batch.volcano.sh/v1alpha1", "Job");

/// Framework whose rules of success, names and environment apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Framework {
    /// Volcano's `Job`.
    Volcano,
    /// Kubeflow's `TFJob`.
    TensorFlow,
    /// Kubeflow's `PyTorchJob`.
    PyTorch,
    /// Kubeflow's `MPIJob`.
    Mpi,
    /// Kubeflow's `XGBoostJob`.
    XgBoost,
    /// A Kubernetes `Pod`: a job of one member.
    Pod,
    /// A kind that a record describes: [`JobSpec::job_type`] has its rules.
    Described,
}

impl Framework {
    /// The `kind` of a document; of a described one see [`JobSpec::kind`].
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Framework::Volcano => "Job",
            Framework::TensorFlow => "TFJob",
            Framework::PyTorch => "PyTorchJob",
            Framework::Mpi => "MPIJob",
            Framework::XgBoost => "XGBoostJob",
            Framework::Pod => "Pod",
            Framework::Described => crate::job::job_type::KIND,
        }
    }

    /// Container that every member needs and whose exit code decides; `None`: the first one decides. Of a described kind
    /// see [`JobSpec::container`].
    #[must_use]
    pub fn container(self) -> Option<&'static str> {
        match self {
            Framework::Volcano | Framework::Pod | Framework::Described => None,
            Framework::TensorFlow => Some("tensorflow"),
            Framework::PyTorch => Some("pytorch"),
            Framework::Mpi => Some("mpi"),
            Framework::XgBoost => Some("xgboost"),
        }
    }

    /// Whether it is one of Kubeflow's, or follows their rules.
    #[must_use]
    pub fn is_kubeflow(self) -> bool {
        !matches!(self, Framework::Volcano | Framework::Pod)
    }
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// Framework whose rules apply.
    pub framework: Framework,
    /// Rules of a kind that a record describes.
    pub job_type: Option<Arc<JobType>>,
    /// Its tasks, in the order in which they are handled.
    pub tasks: Vec<JobTask>,
    /// Members needed for a start; also needed to succeed, unless `min_success` is set.
    pub min_available: u32,
    /// Members that must succeed.
    pub min_success: Option<u32>,
    /// Restarts that policies may cause, of the job, a task or a pod together.
    pub max_retry: u32,
    /// Lifecycle policies; those of a task come first.
    pub policies: Vec<LifecyclePolicy>,
    /// Volcano's plugins, with their arguments.
    pub plugins: BTreeMap<Plugin, Vec<String>>,
    /// Its queue.
    pub queue: String,
    /// Name of its priority class.
    pub priority_class: Option<String>,
    /// Resources that must be free for its admission; `None`: the sum of its members' requests.
    pub min_resources: Option<ResourceList>,
    /// Time after which a job that was admitted but not placed goes back to its queue.
    pub schedule_timeout: Option<Duration>,
    /// Which members are removed when it ends.
    pub clean_pods: CleanPods,
    /// Time from its end to the deletion of its record; `None`: never.
    pub ttl: Option<Duration>,
    /// Longest time that it may run.
    pub active_deadline: Option<Duration>,
    /// Kubeflow's: the job fails after this many restarts of members.
    pub backoff_limit: Option<u32>,
    /// Kubeflow's jobs: a member that failed or was lost, and is to run again, restarts all members.
    pub restarts_gang: bool,
    /// It is suspended.
    pub suspend: bool,
    /// Pauses before failed members are started again.
    pub restart_delay: RestartDelay,
    /// It is being deleted: first its members, then its record.
    pub deleting: bool,
    /// TensorFlow: all workers must succeed, instead of the first.
    pub all_workers_must_succeed: bool,
    /// TensorFlow: the number of workers may change.
    pub dynamic_workers: bool,
    /// PyTorch: processes per member, `auto` or a number.
    pub processes_per_node: Option<String>,
    /// PyTorch: settings of `torchrun` when the number of members may change.
    pub elastic: Option<Elastic>,
    /// MPI: processes per worker.
    pub slots_per_worker: u32,
    /// The cells that it asks for. Tasks have the names that the group gives them.
    pub cells: Option<CellRequest>,
    /// How many of its members may be stopped on purpose.
    pub budget: Option<DisruptionBudget>,
    /// The tasks that its members run one after the other. It has one kind of members, `replicas` at a time.
    pub array: Option<ArraySpec>,
    /// Bytes in base64, which each member finds in a file.
    pub payload: Option<String>,
    /// Whether each member has a service in Consul's catalog.
    pub services: bool,
    /// What happens to its members when one of them moves.
    pub on_peer_change: OnPeerChange,
}

/// What happens to the members of a job when one of them moves to another address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnPeerChange {
    /// Files in their homes follow.
    #[default]
    Files,
    /// Files follow, and their processes get a signal.
    Signal(PeerSignal),
    /// Files follow, and those that know an address that is no longer right are restarted in place.
    Restart,
    /// Nothing: they know what their environment says.
    Nothing,
}

/// PyTorch's `elasticPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Elastic {
    /// Fewest members.
    pub min: Option<u32>,
    /// Most members.
    pub max: Option<u32>,
    /// Rendezvous backend; `c10d` by default.
    pub backend: Option<String>,
    /// Rendezvous host.
    pub host: Option<String>,
    /// Rendezvous port.
    pub port: Option<u16>,
    /// Rendezvous id.
    pub id: Option<String>,
    /// More rendezvous settings, in order.
    pub conf: Vec<(String, String)>,
    /// Restarts by `torchrun` itself.
    pub max_restarts: Option<u32>,
    /// `torchrun --standalone`.
    pub standalone: bool,
}

/// Pauses before failed members are started again: doubled each time, up to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartDelay {
    /// The first.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Default for RestartDelay {
    fn default() -> Self {
        RestartDelay { first: Duration::from_secs(10), longest: Duration::from_secs(600) }
    }
}

impl RestartDelay {
    /// The pause before the `n`th restart, counted from 1.
    #[must_use]
    pub fn before(self, n: u32) -> Duration {
        crate::backoff(self.first, self.longest, n.saturating_sub(1))
    }
}

/// Which members are removed when a job ends (Kubeflow's `cleanPodPolicy`). Volcano's jobs use `Running`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CleanPods {
    /// None, not even running ones.
    None,
    /// Those that have not ended.
    Running,
    /// All.
    All,
}

/// A task: equal members of a job. Read from a user's document and not stored; a group stores a [`TaskSpec`],
/// the part that placement needs.
///
/// [`TaskSpec`]: crate::pod_group::spec::TaskSpec
#[derive(Debug, Clone, PartialEq)]
pub struct JobTask {
    /// Its name, as in the record: `worker`, `Worker`.
    pub name: String,
    /// Number of members, 0 or more.
    pub replicas: u32,
    /// Members needed for a start, and to succeed; `None`: all for a start.
    pub min_available: Option<u32>,
    /// What happens to a member that ends.
    pub restart: Restart,
    /// The task fails after this many restarts by its nodes together; `None`: no limit.
    pub max_retry: Option<u32>,
    /// Tasks that must be ready before its members start.
    pub depends_on: Vec<String>,
    /// Whether one of these tasks is enough.
    pub any_dependency: bool,
    /// Lifecycle policies of its members.
    pub policies: Vec<LifecyclePolicy>,
    /// Pod template of its members.
    pub template: Template,
}

/// What happens to a member that ends (Kubeflow's `restartPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restart {
    /// Its processes are started again whenever they end.
    Always,
    /// They are started again when they fail.
    OnFailure,
    /// It stays as it ended.
    Never,
    /// Restarted if its exit code is 128 or more; otherwise the job fails.
    ExitCode,
}

/// The supported part of a pod template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// Its containers.
    pub containers: Vec<Container>,
    /// Selector of its nodes.
    pub node_selector: Selector,
    /// User that its processes run as.
    pub run_as: Option<String>,
    /// Time for a process to stop.
    pub grace: Option<Duration>,
    /// Labels of its pods.
    pub labels: BTreeMap<String, String>,
    /// Annotation in which it asks for cells.
    pub cells: Option<CellAnnotation>,
    /// Disruption budget in its annotations: that of the job, unless the job has one.
    pub budget: Option<DisruptionBudget>,
}

/// HiveD's annotation of a pod template, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellAnnotation {
    /// Path of the field in the document.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl Template {
    /// Sum of the containers' requests.
    #[must_use]
    pub fn resources(&self) -> ResourceList {
        ResourceList::sum(self.containers.iter().map(|container| &container.requests))
    }

    /// A named port of a container.
    #[must_use]
    pub fn port(&self, container: &str, port: &str) -> Option<u16> {
        let container = self.containers.iter().find(|c| c.name == container)?;
        container.ports.iter().find(|(name, _)| name.as_deref() == Some(port)).map(|(_, n)| *n)
    }
}

/// One process of a member.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Program and arguments. The node agent expands `$(NAME)` as Kubernetes does.
    pub command: Vec<String>,
    /// Its environment, in order.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: Option<String>,
    /// Its ports, by name if they have one.
    pub ports: Vec<(Option<String>, u16)>,
    /// Resources that a scheduler allocates.
    pub requests: ResourceList,
    /// Limits that the node enforces.
    pub limits: ResourceList,
    /// Its health check.
    pub health: Option<HealthStanza>,
}

/// A supported plugin of Volcano.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plugin {
    /// The member's index in its environment.
    Env,
    /// The addresses of all members.
    Svc,
    /// A key pair for all members.
    Ssh,
    /// `MASTER_ADDR` and the like.
    PyTorch,
    /// `TF_CONFIG`.
    TensorFlow,
    /// `MPI_HOST`.
    Mpi,
    /// The commands of a Ray cluster.
    Ray,
    /// The member's rank for Huawei's collective communication library.
    HcclRank,
}

impl Plugin {
    /// All, by name.
    pub const ALL: [(&str, Plugin); 8] = [
        ("env", Plugin::Env),
        ("svc", Plugin::Svc),
        ("ssh", Plugin::Ssh),
        ("pytorch", Plugin::PyTorch),
        ("tensorflow", Plugin::TensorFlow),
        ("mpi", Plugin::Mpi),
        ("ray", Plugin::Ray),
        ("hcclrank", Plugin::HcclRank),
    ];
}

/// An event that policies name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PolicyEvent {
    /// Every event; `PodPending` only if the policy has a time-out.
    #[serde(rename = "*")]
    Any,
    /// A member failed.
    PodFailed,
    /// A member's pod is gone, or its node is down.
    PodEvicted,
    /// A member is not running yet. Needs a policy with a time-out.
    PodPending,
    /// The PodGroup lost members and cannot place them.
    Unknown,
    /// All members of a task succeeded.
    TaskCompleted,
    /// The nodes restarted a task's members more often than its `max_retry`.
    TaskFailed,
}

impl PolicyEvent {
    /// All, by name.
    pub const ALL: [(&str, PolicyEvent); 7] = [
        ("*", PolicyEvent::Any),
        ("PodFailed", PolicyEvent::PodFailed),
        ("PodEvicted", PolicyEvent::PodEvicted),
        ("PodPending", PolicyEvent::PodPending),
        ("Unknown", PolicyEvent::Unknown),
        ("TaskCompleted", PolicyEvent::TaskCompleted),
        ("TaskFailed", PolicyEvent::TaskFailed),
    ];
}

impl fmt::Display for PolicyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            PolicyEvent::ALL.iter().find(|(_, event)| event == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// What is done after an event (Volcano's LifecyclePolicy).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecyclePolicy {
    /// The action.
    pub action: CommandAction,
    /// Events that trigger it.
    pub events: BTreeSet<PolicyEvent>,
    /// Exit code that triggers it.
    pub exit_code: Option<i32>,
    /// Delay of the action. It is dropped if the cause goes away.
    pub timeout: Option<Duration>,
}

impl JobSpec {
    /// The `kind` of its document.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.job_type.as_ref().map_or(self.framework.kind(), |job_type| &job_type.kind)
    }

    /// Container that every member needs and whose exit code decides; `None`: the first one decides.
    #[must_use]
    pub fn container(&self) -> Option<&str> {
        let described = self.job_type.as_ref().map(|job_type| job_type.spec.container.as_str());
        described.or(self.framework.container())
    }

    /// Number of members.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        self.tasks.iter().map(|task| task.replicas).fold(0, u32::saturating_add)
    }

    /// A task by its name.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<&JobTask> {
        self.tasks.iter().find(|task| task.name == name)
    }

    /// A task by name, ignoring case: Kubeflow's types are written `Worker` and named `worker`.
    #[must_use]
    pub fn role(&self, name: &str) -> Option<&JobTask> {
        self.tasks.iter().find(|task| task.name.eq_ignore_ascii_case(name))
    }
}

impl JobTask {
    /// Members needed for a start.
    #[must_use]
    pub fn needed(&self) -> u32 {
        self.min_available.unwrap_or(self.replicas)
    }

    /// Its name as part of pod ids.
    #[must_use]
    pub fn lower_name(&self) -> String {
        self.name.to_ascii_lowercase()
    }
}

/// A member of a job, ordered by task name, then index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// The task.
    pub task: String,
    /// From 0.
    pub index: u32,
}

impl Slot {
    /// A slot.
    #[must_use]
    pub fn new(task: &str, index: u32) -> Slot {
        Slot { task: task.to_owned(), index }
    }

    /// Id of its pod: the same after each restart and on each node.
    ///
    /// # Errors
    /// [`InvalidText`] if job, task and index make no legal id.
    pub fn pod_id(&self, job: &Namespaced, format: PodIdFormat) -> Result<PodId, InvalidText> {
        format.pod_id(job, &self.task.to_ascii_lowercase(), self.index)
    }

    /// Whether this is the id of its pod, in one of the formats.
    #[must_use]
    pub fn is_named(&self, job: &Namespaced, pod: &PodId) -> bool {
        PodIdFormat::ALL.iter().any(|format| self.pod_id(job, *format).as_ref() == Ok(pod))
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.task.to_ascii_lowercase(), self.index)
    }
}
