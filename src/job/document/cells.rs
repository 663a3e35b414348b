//! HiveD's annotation on pod templates, or the field `cells` of their spec: the cells that a job asks for.

use std::collections::BTreeMap;

use super::fields::FieldIssues;
use rcfarm_api::cells::{CellRequest, GroupRequest, Members};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::spec::{CellAnnotation, JobSpec, JobTask};
use rcfarm_cells::PodRequest;
pub(super) use rcfarm_cells::request::ANNOTATION_POD_SCHEDULING_SPEC as ANNOTATION;

/// Limit by which HiveD knows its pods. It says nothing that the annotation does not say.
pub(super) const ENABLE: &str = "hivedscheduler.microsoft.com/pod-scheduling-enable";

/// Fields of HiveD's pods whose value is the numbers of the pod's devices.
const ISOLATION: [&str; 2] = [
    "hivedscheduler.microsoft.com/pod-leaf-cell-isolation",
    "hivedscheduler.microsoft.com/pod-gpu-isolation",
];

/// Whether the path of a `fieldRef` is that of HiveD's annotation with the numbers of the pod's devices.
pub(super) fn is_isolation(path: &str) -> bool {
    let name = path.strip_prefix("metadata.annotations[").and_then(|rest| rest.strip_suffix(']'));
    let name = name.map(|name| name.trim_matches(['\'', '"']));
    name.is_some_and(|name| ISOLATION.contains(&name))
}

/// Device that a task is given if its containers name none.
const DEVICE: &str = "gpu";

/// A task's request.
struct Asked<'j> {
    task: &'j JobTask,
    path: &'j str,
    request: PodRequest,
}

/// Reads the tasks' annotations. All tasks are one affinity group.
pub(super) fn read(id: &Namespaced, job: &mut JobSpec, issues: &mut FieldIssues) {
    let mut asked = Vec::new();
    let first = job.tasks.iter().find_map(|task| task.template.cells.as_ref());
    let Some(first) = first.map(|annotation| annotation.path.clone()) else { return };
    for task in &job.tasks {
        let Some(CellAnnotation { path, text }) = &task.template.cells else {
            let why =
                format!("task {} has none; all tasks of a job are placed together", task.name);
            issues.problem(first.clone(), why);
            continue;
        };
        match PodRequest::parse(text, id.namespace.as_str(), id.name.as_str()) {
            Ok(request) => asked.push(Asked { task, path, request }),
            Err(bad) => {
                let prefix = format!("Pod annotation {ANNOTATION}: ");
                let why = bad.message.strip_prefix(&prefix).unwrap_or(&bad.message);
                issues.problem(path.clone(), why);
            }
        }
    }
    if asked.len() < job.tasks.len() {
        return;
    }
    let together = match asked.iter().all(|one| is_alone(id, &one.request.group)) {
        true => of_tasks(&asked),
        false => of_group(&asked, issues),
    };
    let Some(together) = together else { return };
    if job.min_available < job.replicas() {
        issues.warning(first, "all members start together: minAvailable has no effect");
    }
    give_devices(job, &together, issues);
    job.cells = Some(together);
}

/// Whether a pod names no affinity group.
fn is_alone(id: &Namespaced, group: &GroupRequest) -> bool {
    group.key.name == id.to_string()
        && group.nested.is_none()
        && matches!(&group.members[..], [Members { pods: 1, cell_type: None, .. }])
}

/// The group of all members of a job whose pods name none.
fn of_tasks(asked: &[Asked<'_>]) -> Option<CellRequest> {
    let mut pods: BTreeMap<u32, u32> = BTreeMap::new();
    for Asked { task, request, .. } in asked {
        let count = pods.entry(request.group.members[0].cells).or_default();
        *count = count.saturating_add(task.replicas);
    }
    pods.retain(|_, count| *count > 0);
    let place = |one: &Asked<'_>| {
        let own = one.request.group.members[0].cells;
        Some((one.task.lower_name(), pods.keys().position(|cells| *cells == own)?))
    };
    let tasks = asked.iter().filter_map(place).collect();
    let members = pods.iter().map(|(&cells, &pods)| Members { pods, cells, cell_type: None });
    let group = GroupRequest { members: members.collect(), ..asked.first()?.request.group.clone() };
    Some(CellRequest { group, tasks })
}

/// The group that the pods name. All of them have to name the same one.
fn of_group(asked: &[Asked<'_>], issues: &mut FieldIssues) -> Option<CellRequest> {
    let group = asked.first()?.request.group.clone();
    let different = asked.iter().find(|one| one.request.group != group);
    if let Some(Asked { path, task, .. }) = different {
        let why = format!("task {} asks for another group than the first task", task.name);
        issues.problem(*path, why);
        return None;
    }
    for (number, member) in group.members.iter().enumerate() {
        let of = asked.iter().filter(|one| one.request.member == number);
        let pods: u32 = of.map(|one| one.task.replicas).fold(0, u32::saturating_add);
        if pods != member.pods {
            let path = asked.first()?.path;
            let why = format!(
                "the group has {} pods of {} cells, the tasks of the job have {pods}",
                member.pods, member.cells
            );
            issues.problem(path, why);
            return None;
        }
    }
    let tasks = asked.iter().map(|one| (one.task.lower_name(), one.request.member)).collect();
    Some(CellRequest { group, tasks })
}

/// Makes the containers ask for the devices of their cells.
fn give_devices(job: &mut JobSpec, cells: &CellRequest, issues: &mut FieldIssues) {
    for task in &mut job.tasks {
        let member = cells.tasks.get(&task.lower_name()).copied();
        let Some(member) = member.and_then(|n| cells.group.members.get(n)) else { continue };
        let Some(CellAnnotation { path, .. }) = &task.template.cells else { continue };
        let resources = task.template.resources();
        let asked: Vec<(&str, u64)> = resources.devices().filter(|(_, n)| *n > 0).collect();
        match (&asked[..], &member.cell_type) {
            ([], None) => {
                let wanted = [(DEVICE, u64::from(member.cells))].into_iter().collect();
                if let Some(container) = task.template.containers.first_mut() {
                    container.requests.add(&wanted);
                }
            }
            ([(_, count)], None) if *count == u64::from(member.cells) => {}
            ([_], Some(_)) => {}
            ([], Some(_)) => issues.problem(
                path,
                "the containers name no devices; write resources.limits.nvidia.com/gpu",
            ),
            (_, _) => {
                let words: Vec<String> =
                    asked.iter().map(|(kind, count)| format!("{kind}={count}")).collect();
                let why = format!(
                    "it asks for {} devices, the containers for {}",
                    member.cells,
                    words.join(", ")
                );
                issues.problem(path, why);
            }
        }
    }
}
