//! Reason and message of a job that waits. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::gang;
use super::{JobObserved, JobPlan, waits_for_old};
use crate::job::document::queue_field;
use crate::job::frameworks::FrameworkOutcome;
use crate::job::members::{MemberPod, ready_members};
use rcfarm_api::carried::Carried;
use rcfarm_api::ids::NodeName;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{Framework, JobTask, Slot};
use rcfarm_api::job::status::{CarriedMember, JobMembers, JobReason, JobStatus};
use rcfarm_api::pod_group::status::{PodGroupReason as GroupReason, PodGroupStatus};

/// Reason and message of a waiting group, with the group's field name replaced by the job's.
#[must_use]
pub fn why_waits(group: &PodGroupStatus, framework: Framework) -> Option<(String, String)> {
    let message = match group.reason.is_of_queue() {
        true => group.message.replacen("spec.queue", queue_field(framework), 1),
        false => group.message.clone(),
    };
    (group.reason != GroupReason::AsDesired).then(|| (group.reason.to_string(), message))
}

/// Sets reason and message in the state while members may start.
pub(super) fn say_waiting(
    seen: &JobObserved<'_>,
    plan: &mut JobPlan,
    members: &BTreeMap<Slot, &MemberPod>,
    outcome: &FrameworkOutcome,
) {
    if !plan.status.state.phase.starts_members() {
        return;
    }
    let (reason, message) = waiting(seen, plan, members, outcome);
    if plan.status.state.reason != reason || plan.status.state.message != message {
        (plan.status.state.reason, plan.status.state.message) = (reason, message);
    }
}

/// The tasks that a task waits for, each with the number of its ready members.
fn dependencies(
    seen: &JobObserved<'_>,
    task: &JobTask,
    members: &BTreeMap<Slot, &MemberPod>,
) -> String {
    let all = task.depends_on.iter().filter_map(|name| seen.job.task(name)).map(|dependency| {
        let ready = ready_members(dependency, members);
        format!("{} ({ready} of {} ready)", dependency.name, dependency.needed())
    });
    all.collect::<Vec<_>>().join(if task.any_dependency { " or " } else { " and " })
}

fn waiting(
    seen: &JobObserved<'_>,
    plan: &JobPlan,
    members: &BTreeMap<Slot, &MemberPod>,
    outcome: &FrameworkOutcome,
) -> (String, String) {
    let say = |reason: JobReason, message: String| (reason.to_string(), message);
    if seen.job.replicas() == 0 {
        return (outcome.reason.to_string(), outcome.message.clone());
    }
    let running = plan.status.state.phase == JobPhase::Running;
    if seen.group.places.is_none() && (!running || seen.pods.is_empty()) {
        return seen.group.waits.clone().unwrap_or_else(|| {
            say(JobReason::WaitingForAdmission, "its group waits for the queue".to_owned())
        });
    }
    if let Some(at) = plan.status.not_before {
        return say(JobReason::RestartDelayed, format!("members start again at {at}"));
    }
    if let Some(CarriedMember { slot, carried }) = plan.status.set_aside_members(seen.now).next() {
        let Carried { since, times, nodes } = carried;
        let named = nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ");
        let message = format!(
            "{slot} is set aside until {since:.0}: {times} nodes in a row went down soon after they were given it, \
             last {named}; if it is not the cause, restart it by a command"
        );
        return say(JobReason::NodesLost, message);
    }
    if !running && waits_for_old(seen, plan) {
        let message = "members of an older attempt are on their way out".to_owned();
        return say(JobReason::WaitingForOldMembers, message);
    }
    let needed = seen.job.min_available as usize;
    let placed = seen.group.places.as_ref().map_or(0, BTreeMap::len);
    let JobMembers { pending, running: run, succeeded, failed, unknown, .. } = plan.status.members;
    if !running && pending + run + succeeded + failed + unknown == 0 && placed < needed {
        let missing = gang::missing(seen, members);
        let message = format!(
            "{placed} of {needed} needed members have a node; all are placed again: {missing}"
        );
        return say(JobReason::MembersUnplaced, message);
    }
    if let Some(slot) = seen.taken.iter().find(|slot| !plan.status.has_started(slot)) {
        let node = seen.group.places.as_ref().and_then(|places| places.get(slot));
        let node = node.map(ToString::to_string).unwrap_or_default();
        let message = format!(
            "where {slot} is to go, on {node}, is a pod of its name that is not this job's: remove it"
        );
        return say(JobReason::PlaceTaken, message);
    }
    let stays = |slot: &&Slot| {
        let is_placed = seen.group.places.as_ref().is_some_and(|all| all.contains_key(*slot));
        is_placed && !plan.status.has_started(slot)
    };
    if let Some(slot) = seen.leaving.keys().find(stays).filter(|_| !running) {
        let message = format!(
            "a pod of {slot} runs that has no intent; if a snapshot was restored its node keeps it: stop it by hand"
        );
        return say(JobReason::WaitingForOldMembers, message);
    }
    let started = |name: &str| plan.status.tasks.get(name).is_some_and(|m| !m.started.is_empty());
    let waiting = seen
        .job
        .tasks
        .iter()
        .find(|task| !task.depends_on.is_empty() && task.replicas > 0 && !started(&task.name));
    match waiting {
        Some(task) if !running => say(
            JobReason::WaitingForDependency,
            format!("task {} waits for {}", task.name, dependencies(seen, task, members)),
        ),
        _ => (outcome.reason.to_string(), outcome.message.clone()),
    }
}

/// Whether too few members could start, because others' pods have their ids on their nodes or because they are set aside.
/// Then none starts: it would be part of a gang.
pub(super) fn misses_places(
    seen: &JobObserved<'_>,
    status: &JobStatus,
    places: &BTreeMap<Slot, NodeName>,
    members: &BTreeMap<Slot, &MemberPod>,
) -> bool {
    let set_aside: BTreeSet<&Slot> =
        status.set_aside_members(seen.now).map(|member| &member.slot).collect();
    let open = |slot: &&Slot| {
        !seen.taken.contains(*slot) && !set_aside.contains(*slot) && !members.contains_key(*slot)
    };
    let most = members.len() + places.keys().filter(open).count();
    !(seen.taken.is_empty() && set_aside.is_empty()) && most < seen.job.min_available as usize
}
