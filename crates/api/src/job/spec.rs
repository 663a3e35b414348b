//! A job as it is wanted: one record that is a superset of Volcano's Job and Kubeflow's training jobs. Pure.
//!
//! The stored record is the user's document itself (`super::document` reads it, `super::validate` judges it); this is
//! what it means, with all defaults filled in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Index;
use crate::command::CommandAction;
use crate::ids::{BadName, Namespaced, PodId};
use crate::labels::Selector;
use crate::manifest::{HealthStanza, Resources};

/// Which job of a name: the CreateIndex of its record. A job that is deleted and made again under its name is another.
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

/// Whose rules of success, names and environment hold.
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
    /// Kubernetes' `Pod` by itself: a job of one member.
    Pod,
}

impl Framework {
    /// The `kind` of a document.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Framework::Volcano => "Job",
            Framework::TensorFlow => "TFJob",
            Framework::PyTorch => "PyTorchJob",
            Framework::Mpi => "MPIJob",
            Framework::XgBoost => "XGBoostJob",
            Framework::Pod => "Pod",
        }
    }

    /// Whether it is one of Kubeflow's.
    #[must_use]
    pub fn is_kubeflow(self) -> bool {
        !matches!(self, Framework::Volcano | Framework::Pod)
    }
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// Whose rules hold.
    pub framework: Framework,
    /// The kinds of members, in the order in which they are worked on.
    pub tasks: Vec<JobTask>,
    /// Members without which it does not start; also how many must succeed, unless `min_success` says.
    pub min_available: u32,
    /// How many must succeed.
    pub min_success: Option<u32>,
    /// Reruns that policies may cause, of the whole job, a task or a pod together.
    pub max_retry: u32,
    /// What is done when something happens, unless a task says otherwise.
    pub policies: Vec<LifecyclePolicy>,
    /// Volcano's plugins, with their arguments.
    pub plugins: BTreeMap<Plugin, Vec<String>>,
    /// The queue in which it waits.
    pub queue: String,
    /// How important it is.
    pub priority_class: Option<String>,
    /// What must be free for it to be admitted; `None`: what its members ask for together.
    pub min_resources: Option<Resources>,
    /// After so long in the queue's hands without a place, it goes back to the queue.
    pub schedule_timeout: Option<Duration>,
    /// What becomes of the members when it is done.
    pub clean_pods: CleanPods,
    /// When its record goes, counted from its end; `None`: never.
    pub ttl: Option<Duration>,
    /// How long it may run.
    pub active_deadline: Option<Duration>,
    /// Kubeflow's: so many restarts of members and it has failed.
    pub backoff_limit: Option<u32>,
    /// It shall not run now.
    pub suspend: bool,
    /// The pauses before what failed is started again.
    pub restart_delay: RestartDelay,
    /// It is being deleted: its members go, then its record.
    pub deleting: bool,
    /// TensorFlow: all workers must succeed, not only the first.
    pub all_workers_must_succeed: bool,
    /// TensorFlow: workers come and go.
    pub dynamic_workers: bool,
    /// PyTorch: processes of a member, `auto` or a number.
    pub processes_per_node: Option<String>,
    /// PyTorch: what `torchrun` needs to know when members may come and go.
    pub elastic: Option<Elastic>,
    /// MPI: processes of a worker.
    pub slots_per_worker: u32,
}

/// PyTorch's `elasticPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Elastic {
    /// Fewest members.
    pub min: Option<u32>,
    /// Most members.
    pub max: Option<u32>,
    /// How members meet; `c10d` unless given.
    pub backend: Option<String>,
    /// Where they meet.
    pub host: Option<String>,
    /// And on which port.
    pub port: Option<u16>,
    /// The name of the meeting.
    pub id: Option<String>,
    /// More settings, in their order.
    pub conf: Vec<(String, String)>,
    /// How often `torchrun` starts again by itself.
    pub max_restarts: Option<u32>,
    /// `torchrun --standalone`.
    pub standalone: bool,
}

/// The pauses before what failed is started again: doubled each time, up to the longest.
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

/// What becomes of the members of a job that is done (Kubeflow's `cleanPodPolicy`). Volcano's jobs keep those that have
/// ended and stop the others, which is `Running`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CleanPods {
    /// All stay as they are, also those that run.
    None,
    /// Those that have not ended go.
    Running,
    /// All go.
    All,
}

/// A kind of member.
#[derive(Debug, Clone, PartialEq)]
pub struct JobTask {
    /// Its name, as in the record: `worker`, `Worker`.
    pub name: String,
    /// Number of members, 0 or more.
    pub replicas: u32,
    /// How many of them are needed for a start, and must succeed; `None`: all for a start.
    pub min_available: Option<u32>,
    /// What happens to a member that fails.
    pub restart: Restart,
    /// So many restarts by their nodes together and the task counts as failed; `None`: no limit.
    pub max_retry: Option<u32>,
    /// Tasks that must be ready before its members start.
    pub depends_on: Vec<String>,
    /// Whether one of them is enough.
    pub any_dependency: bool,
    /// What is done when something happens to its members.
    pub policies: Vec<LifecyclePolicy>,
    /// What a member is.
    pub template: Template,
}

/// What happens to a member that fails (Kubeflow's `restartPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restart {
    /// Its processes are started again whenever they end.
    Always,
    /// They are started again when they fail.
    OnFailure,
    /// It stays as it ended.
    Never,
    /// The exit code tells: from 128 up it is started again, else the job has failed.
    ExitCode,
}

/// What a member is: the part of a pod template that processes can serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// What it starts.
    pub containers: Vec<Container>,
    /// Where it may run.
    pub node_selector: Selector,
    /// As whom its processes run.
    pub run_as: Option<String>,
    /// How long a process may take to stop.
    pub grace: Option<Duration>,
    /// Labels of its pods.
    pub labels: BTreeMap<String, String>,
}

impl Template {
    /// What a member reserves.
    #[must_use]
    pub fn resources(&self) -> Resources {
        let mut sum = Resources::default();
        for container in &self.containers {
            let Resources { cpu_milli, memory_bytes, devices } = &container.requests;
            sum.cpu_milli = sum.cpu_milli.saturating_add(*cpu_milli);
            sum.memory_bytes = sum.memory_bytes.saturating_add(*memory_bytes);
            for (device, count) in devices {
                let all = sum.devices.entry(device.clone()).or_default();
                *all = all.saturating_add(*count);
            }
        }
        sum
    }

    /// A port by name, of the container of that name.
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
    /// The program and its arguments; `$(NAME)` was turned into `${NAME}`, which the node's agent fills in.
    pub command: Vec<String>,
    /// Its variables, in their order.
    pub env: Vec<(String, String)>,
    /// Where it runs.
    pub cwd: Option<String>,
    /// Ports that it names.
    pub ports: Vec<(Option<String>, u16)>,
    /// What a scheduler reserves.
    pub requests: Resources,
    /// What the node enforces.
    pub limits: Resources,
    /// Its health check.
    pub health: Option<HealthStanza>,
}

/// A plugin of Volcano's that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plugin {
    /// The member's number.
    Env,
    /// The addresses of all members.
    Svc,
    /// `MASTER_ADDR` and the like.
    PyTorch,
    /// `TF_CONFIG`.
    TensorFlow,
    /// `MPI_HOST`.
    Mpi,
}

impl Plugin {
    /// All, by name.
    pub const ALL: [(&str, Plugin); 5] = [
        ("env", Plugin::Env),
        ("svc", Plugin::Svc),
        ("pytorch", Plugin::PyTorch),
        ("tensorflow", Plugin::TensorFlow),
        ("mpi", Plugin::Mpi),
    ];
}

/// Something that happens, as policies name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PolicyEvent {
    /// Any of the others that name something bad or done.
    #[serde(rename = "*")]
    Any,
    /// A member failed.
    PodFailed,
    /// A member is gone, or its node is.
    PodEvicted,
    /// A member does not run yet; only for policies with a time-out.
    PodPending,
    /// The group lost members and has no place for them.
    Unknown,
    /// All members of a task succeeded.
    TaskCompleted,
    /// The nodes restarted a task's members too often.
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

/// What is done when something happens (Volcano's LifecyclePolicy).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecyclePolicy {
    /// What is done.
    pub action: CommandAction,
    /// After which events.
    pub events: BTreeSet<PolicyEvent>,
    /// After which exit code.
    pub exit_code: Option<i32>,
    /// So much later, unless things have mended by then.
    pub timeout: Option<Duration>,
}

impl JobSpec {
    /// Members in all.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        self.tasks.iter().map(|task| task.replicas).fold(0, u32::saturating_add)
    }

    /// A task by its name.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<&JobTask> {
        self.tasks.iter().find(|task| task.name == name)
    }

    /// A task by its name in any case: Kubeflow's types are written `Worker` and named `worker`.
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

    /// Its name in those of pods.
    #[must_use]
    pub fn lower_name(&self) -> String {
        self.name.to_ascii_lowercase()
    }
}

/// One member: which of which task. In task order, then by number.
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

    /// What its pod is called: `<job>-<task>-<index>`, the same after each restart and on each node.
    ///
    /// # Errors
    /// [`BadName`], when the names are together too long for one.
    pub fn pod_id(&self, job: &Namespaced) -> Result<PodId, BadName> {
        format!("{}-{}-{}", job.name, self.task.to_ascii_lowercase(), self.index).parse()
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.task.to_ascii_lowercase(), self.index)
    }
}
