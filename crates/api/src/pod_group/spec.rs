//! The PodGroup record: the value of `rcfarm/pod_groups/<ns>/<name>`. Field names are Volcano's (`volcano.md`
//! §1.4) where it has the field.
//!
//! Volcano's scheduler reads the pods of a group. Here pods exist only once the group is placed, so the record
//! describes them in `spec.tasks`. The group's owner reports their phases in `members`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::phase::PodGroupReason;
use super::pod_ids::PodIdFormat;
use crate::budget::{BudgetMembers, DisruptionBudget, allowed};
use crate::cells::CellRequest;
use crate::ids::{DEFAULT_QUEUE, Namespaced, NodeName, QueueName};
use crate::labels::{Selector, SelectorError};
use crate::resource_list::{PODS, ResourceList};
use crate::{FieldError, Slots, Stored};

/// Larger groups are rejected as typing errors.
pub const MOST_MEMBERS: u64 = 100_000;

/// Namespace and name of a group, `<ns>/<name>`; a job's group has the job's name.
pub type GroupId = Namespaced;

/// The stored record. Unknown fields survive a rewrite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodGroupRecord {
    /// The specification.
    pub spec: PodGroupSpec,
    /// Phases of its pods as its owner reports them.
    #[serde(default, skip_serializing_if = "MemberCounts::is_zero")]
    pub members: MemberCounts,
    /// Fields that we do not know, such as a manifest's `apiVersion`.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Specification of a group. Missing fields have their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupSpec {
    /// Fewest members to start with; missing: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_member: Option<u32>,
    /// Fewest members of each task to start with; missing: whatever `minMember` takes, in the order of `tasks`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub min_task_member: BTreeMap<String, u32>,
    /// Its queue.
    pub queue: QueueName,
    /// Name of its priority class, or a number. It counts if `priority` is 0.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub priority_class_name: String,
    /// Within its queue, higher goes first.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i64,
    /// What must be left in its queue and free on the nodes for it to be admitted; its tasks' requests are charged.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub min_resources: ResourceList,
    /// Its tasks.
    pub tasks: Vec<TaskSpec>,
    /// How its pods are named from its next placement on; missing: `Plain`.
    #[serde(skip_serializing_if = "PodIdFormat::is_plain")]
    pub pod_ids: PodIdFormat,
    /// Its owner; a group that a user wrote has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerRef>,
    /// Incremented to place all members again; the group stays admitted. Their pods must be gone before.
    #[serde(skip_serializing_if = "is_zero_round")]
    pub round: u64,
    /// Seconds after which an admitted group that is not placed goes back to its queue; missing: the scheduler's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_timeout_seconds: Option<u64>,
    /// Members without a pod that shall leave the node that is named, by task and index. If the node is fit, they stay
    /// there unless another one has room.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub moves: BTreeMap<String, BTreeMap<u32, NodeName>>,
    /// Members whose processes have all ended and that do not start again, by task: they need no node, and what they
    /// had is released. A member that is to start again is taken off this list, and gets a node as a new one does.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ended: BTreeMap<String, Slots>,
    /// The cells that it asks for, all members together. It is placed by cells then; nothing of it is placed elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cells: Option<CellRequest>,
    /// How many of its members may be stopped on purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<DisruptionBudget>,
    /// Why it must not be admitted now; an admitted one releases its placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Fields that we do not know; [`PodGroupSpec::ignored`] names them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_zero_round(number: &u64) -> bool {
    *number == 0
}

impl Default for PodGroupSpec {
    fn default() -> Self {
        PodGroupSpec {
            min_member: None,
            min_task_member: BTreeMap::new(),
            queue: DEFAULT_QUEUE.parse().expect("a legal name"),
            priority_class_name: String::new(),
            priority: 0,
            min_resources: ResourceList::default(),
            tasks: Vec::new(),
            pod_ids: PodIdFormat::Plain,
            owner: None,
            round: 0,
            schedule_timeout_seconds: None,
            moves: BTreeMap::new(),
            ended: BTreeMap::new(),
            cells: None,
            budget: None,
            hold: None,
            other: Map::new(),
        }
    }
}

/// Equal members, placed together with those of the other tasks. Their indices begin with 0; see [`PodIdFormat`] for
/// the ids of their pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskSpec {
    /// Its name in the group.
    pub name: String,
    /// Number of members of the task.
    pub replicas: u32,
    /// Request of each member.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub resources: ResourceList,
    /// Which nodes may run them; empty: all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_selector: String,
    /// Number of its first members that need a port of their own.
    #[serde(default, skip_serializing_if = "is_zero_count")]
    pub ports: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero_count(n: &u32) -> bool {
    *n == 0
}

/// Owner of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRef {
    /// The kind, such as `Job`.
    pub kind: String,
    /// Its name in the group's namespace.
    pub name: String,
    /// Its uid; a group with another uid belongs to another owner.
    pub uid: String,
}

/// Why a group must not be admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// `Suspended` or `WaitingForDependency`.
    pub reason: PodGroupReason,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Phases of a group's pods, counted by its owner (`volcano.md` §2.5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberCounts {
    /// Without a node, including those being removed.
    pub pending: u32,
    /// With a node, not yet running.
    pub bound: u32,
    /// Running.
    pub running: u32,
    /// Succeeded.
    pub succeeded: u32,
    /// Failed.
    pub failed: u32,
    /// On a node and being removed.
    pub releasing: u32,
}

impl MemberCounts {
    /// Whether all counts are 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == MemberCounts::default()
    }
}

impl Stored for PodGroupRecord {
    const PAGE: &'static str = "docs/guide/queues.md";
}

impl PodGroupRecord {
    /// Its members as a disruption budget counts them: those that run are available.
    #[must_use]
    pub fn budget_members(&self) -> BudgetMembers {
        let total =
            self.spec.tasks.iter().fold(0, |sum: u32, task| sum.saturating_add(task.replicas));
        BudgetMembers { total, available: self.members.running }
    }

    /// Why its budget forbids to stop all its members at once; `None`: it has none, or allows it.
    #[must_use]
    pub fn forbids_stop(&self) -> Option<String> {
        let (budget, members) = (self.spec.budget.as_ref()?, self.budget_members());
        let is_allowed = allowed(Some(budget), members) >= members.available;
        let BudgetMembers { total, available } = members;
        (!is_allowed).then(|| {
            let shown = budget.shown();
            format!("its disruption budget is {shown}, and {available} of {total} members run")
        })
    }

    /// A record of this spec.
    #[must_use]
    pub fn new(spec: PodGroupSpec) -> Self {
        PodGroupRecord { spec, members: MemberCounts::default(), other: Map::new() }
    }
}

/// Number of members by task.
pub type Counts<'s> = BTreeMap<&'s str, u32>;

impl PodGroupSpec {
    /// All members.
    #[must_use]
    pub fn all(&self) -> Counts<'_> {
        self.tasks.iter().map(|task| (task.name.as_str(), task.replicas)).collect()
    }

    /// Fewest members with which it may start: `minTaskMember` of each task, then, in the order of the tasks, more up
    /// to `minMember`.
    #[must_use]
    pub fn least(&self) -> Counts<'_> {
        let Some(min_member) = self.min_member else { return self.all() };
        let floor = |task: &TaskSpec| self.min_task_member.get(&task.name).copied().unwrap_or(0);
        let mut least: Counts<'_> = self
            .tasks
            .iter()
            .map(|task| (task.name.as_str(), floor(task).min(task.replicas)))
            .collect();
        let mut missing = min_member.saturating_sub(least.values().sum());
        for task in &self.tasks {
            let Some(count) = least.get_mut(task.name.as_str()) else { continue };
            let more = missing.min(task.replicas - *count);
            *count += more;
            missing -= more;
        }
        least
    }

    /// Whether a member has ended and does not start again.
    #[must_use]
    pub fn is_ended(&self, task: &str, index: u32) -> bool {
        self.ended.get(task).is_some_and(|ended| ended.contains(index))
    }

    /// Members that need a node: all that have not ended.
    #[must_use]
    pub fn all_to_place(&self) -> Counts<'_> {
        self.without_ended(self.all())
    }

    /// Fewest members that need a node for the group to start. At least one, if any has not ended.
    #[must_use]
    pub fn least_to_place(&self) -> Counts<'_> {
        let mut least = self.without_ended(self.least());
        if least.values().all(|count| *count == 0)
            && let Some((task, _)) = self.all_to_place().into_iter().find(|(_, count)| *count > 0)
            && !self.ended.is_empty()
        {
            least.insert(task, 1);
        }
        least
    }

    /// Members that have ended and do not start again, by task.
    #[must_use]
    pub fn ended_counts(&self) -> Counts<'_> {
        let of = |task: &TaskSpec| {
            let ended = self.ended.get(&task.name)?;
            let count = ended.iter().take_while(|n| *n < task.replicas).count();
            u32::try_from(count).ok()
        };
        self.tasks.iter().map(|task| (task.name.as_str(), of(task).unwrap_or(0))).collect()
    }

    fn without_ended<'s>(&'s self, mut counts: Counts<'s>) -> Counts<'s> {
        let ended = self.ended_counts();
        for (task, count) in &mut counts {
            *count = count.saturating_sub(ended.get(*task).copied().unwrap_or(0));
        }
        counts
    }

    /// Charge of these members.
    #[must_use]
    pub fn charge(&self, counts: &Counts<'_>) -> ResourceList {
        let of = |task: &TaskSpec| {
            let count = counts.get(task.name.as_str()).copied().unwrap_or(0);
            task.resources.of_pods(count.into())
        };
        ResourceList::sum(&self.tasks.iter().map(of).collect::<Vec<_>>())
    }

    /// Names of fields that have no effect, so that users are told.
    #[must_use]
    pub fn ignored(&self) -> Vec<String> {
        self.other.keys().map(|field| format!("spec.{field}")).collect()
    }

    /// All errors of the group (`volcano.md` §6).
    #[must_use]
    pub fn check(&self, id: &GroupId) -> Vec<FieldError> {
        let mut bad = Vec::new();
        if self.tasks.is_empty() {
            let fix = "say what the members are: name, replicas, resources, nodeSelector";
            bad.push(FieldError::new("spec.tasks", "there is none", fix));
        }
        let mut names = BTreeSet::new();
        for (n, task) in self.tasks.iter().enumerate() {
            bad.extend(task.check(&format!("spec.tasks[{n}]"), id));
            if !names.insert(&task.name) {
                let why = format!("another task is called {:?}, too", task.name);
                bad.push(FieldError::new(
                    format!("spec.tasks[{n}].name"),
                    why,
                    "name it differently",
                ));
            }
        }
        bad.extend(self.check_counts());
        if let Some(cells) = &self.cells {
            bad.extend(cells.check("spec.cells", self.tasks.iter().map(|task| task.name.as_str())));
        }
        bad.extend(self.budget.iter().flat_map(|budget| budget.check("spec.budget")));
        if let Some(hold) = &self.hold
            && !matches!(
                hold.reason,
                PodGroupReason::Suspended | PodGroupReason::WaitingForDependency
            )
        {
            let why = format!("{} is no reason to hold a group", hold.reason);
            bad.push(FieldError::new(
                "spec.hold.reason",
                why,
                "write Suspended or WaitingForDependency",
            ));
        }
        bad
    }

    fn check_counts(&self) -> Vec<FieldError> {
        let mut bad = Vec::new();
        let all: u64 = self.tasks.iter().map(|task| u64::from(task.replicas)).sum();
        if all > MOST_MEMBERS {
            let why = format!("{all} members are absurd: at most {MOST_MEMBERS}");
            bad.push(FieldError::new("spec.tasks", why, "lower replicas"));
        }
        if let Some(least) = self.min_member.filter(|least| u64::from(*least) > all) {
            let why = format!("{least} is more than the {all} members of all tasks");
            bad.push(FieldError::new("spec.minMember", why, "lower it, or raise replicas"));
        }
        for (name, least) in &self.min_task_member {
            let path = format!("spec.minTaskMember.{name}");
            match self.tasks.iter().find(|task| task.name == *name) {
                None => bad.push(FieldError::new(
                    path,
                    "there is no such task",
                    "name one of spec.tasks",
                )),
                Some(task) if *least > task.replicas => {
                    let why = format!("{least} is more than its replicas, {}", task.replicas);
                    bad.push(FieldError::new(path, why, "lower it, or raise replicas"));
                }
                Some(_) => {}
            }
        }
        bad
    }
}

impl TaskSpec {
    /// The selector of its nodes.
    ///
    /// # Errors
    /// [`SelectorError`] with the place in the text.
    pub fn selector(&self) -> Result<Selector, SelectorError> {
        self.node_selector.parse()
    }

    /// The selector of its nodes; all nodes if it is wrong, which [`PodGroupSpec::check`] reports.
    #[must_use]
    pub fn selector_or_all(&self) -> Selector {
        self.selector().unwrap_or_else(|_| Selector::everything())
    }

    fn check(&self, path: &str, id: &GroupId) -> Option<FieldError> {
        if let Err(error) = crate::ids::check_segment(&self.name) {
            return Some(FieldError::from(error).below("name").below(path));
        }
        let last = self.replicas.saturating_sub(1);
        if let Err(error) = PodIdFormat::Hashed.pod_id(id, &self.name, last) {
            let why = format!("its pods' names are none: {error}");
            return Some(FieldError::new(
                format!("{path}.name"),
                why,
                "shorten it, or the group's name",
            ));
        }
        if self.resources.get(PODS).is_some() {
            let path = format!("{path}.resources.{PODS}");
            return Some(FieldError::new(path, "a member is one pod", "leave it out"));
        }
        let error = self.selector().err()?;
        Some(FieldError::from(error).below("nodeSelector").below(path))
    }
}
