//! Rules for a job beyond the types of its fields (`volcano.md` §6). Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::{FieldIssues, queue_field};
use super::kubeflow::{field_of, task_path};
use super::{described, peers};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::spec::{
    Framework, JobSpec, JobTask, LifecyclePolicy, Plugin, PolicyEvent, Restart, Slot,
};
use rcfarm_api::job::status::{LARGEST_STATUS, largest_status};
use rcfarm_api::pod_group::spec::MOST_MEMBERS;

/// Limit of a DNS label.
const LONGEST_NAME: usize = 63;

/// Checks a decoded job.
pub fn validate(id: &Namespaced, job: &JobSpec, remarks: &mut FieldIssues) {
    name(id.name.as_str(), "metadata.name", remarks);
    kubernetes_names(id, remarks);
    if job.tasks.is_empty() {
        let field = format!("spec.{}", field_of(job));
        if job.framework == Framework::Volcano {
            remarks.problem(field, "No task specified in job spec");
        }
        return;
    }
    if is_absurd(job, remarks) {
        return;
    }
    // What is examined of each task and its peers is bounded by the size of the status.
    if fits(job, remarks) {
        peers::check(id, job, remarks);
    }
    tasks(id, job, remarks);
    policies("spec.policies", &job.policies, remarks);
    for (n, task) in job.tasks.iter().enumerate() {
        policies(&format!("{}.policies", task_path(job, n)), &task.policies, remarks);
    }
    if job.replicas() < job.min_available {
        let field = match job.framework {
            Framework::Volcano => "spec.minAvailable",
            _ => "spec.runPolicy.schedulingPolicy.minAvailable",
        };
        let why = format!("'minAvailable' is greater than the {} replicas in all", job.replicas());
        remarks.problem(field, why);
    }
    if job.array.is_none() && job.min_success.is_some_and(|min| min > job.replicas()) {
        let why = format!("it can never be reached: there are {} replicas", job.replicas());
        remarks.problem("spec.minSuccess", why);
    }
    if let Err(error) = rcfarm_api::ids::check_segment(&job.queue) {
        remarks.problem(queue_field(job.framework), error.to_string());
    }
    dependencies(job, remarks);
    restart_scope(job, remarks);
    frameworks(job, remarks);
}

/// Whether there are more members than a group may have.
fn is_absurd(job: &JobSpec, remarks: &mut FieldIssues) -> bool {
    let mut all = 0;
    for (n, task) in job.tasks.iter().enumerate() {
        all += u64::from(task.replicas);
        if all > MOST_MEMBERS {
            let why = format!("these make {all} members: at most {MOST_MEMBERS} in all tasks");
            remarks.problem(format!("{}.replicas", task_path(job, n)), why);
            return true;
        }
    }
    false
}

/// Refuses a job whose status could outgrow a transaction; returns whether it fits.
fn fits(job: &JobSpec, remarks: &mut FieldIssues) -> bool {
    let tasks = job.tasks.iter().map(|task| (task.name.len(), task.replicas));
    let bytes = largest_status(tasks, job.array.as_ref());
    if bytes > LARGEST_STATUS {
        let why = format!(
            "the status of {} members in {} tasks can take {bytes} bytes: at most {LARGEST_STATUS}",
            job.replicas(),
            job.tasks.len()
        );
        remarks.problem(format!("spec.{}", field_of(job)), why);
    }
    bytes <= LARGEST_STATUS
}

/// Members of a gang that restarts together stay as they have ended. A process that is started again after it succeeded
/// never ends.
fn restart_scope(job: &JobSpec, remarks: &mut FieldIssues) {
    if !job.restarts_gang {
        return;
    }
    if !job.framework.is_kubeflow() {
        let why = "a Volcano job says so by a policy: {event: PodFailed, action: RestartJob}";
        remarks.problem("spec.runPolicy.restartScope", why);
        return;
    }
    let always = |(_, task): &(usize, &JobTask)| task.restart == Restart::Always;
    for (n, _) in job.tasks.iter().enumerate().filter(always) {
        let field = format!("{}.restartPolicy", task_path(job, n));
        remarks.problem(field, "with the restartScope Gang write OnFailure, ExitCode or Never");
    }
}

/// Whether it is a DNS label (RFC 1123).
pub(crate) fn is_label(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends = text.starts_with('-') || text.ends_with('-');
    !text.is_empty() && text.len() <= LONGEST_NAME && !ends && text.bytes().all(fine)
}

fn name(text: &str, field: &str, remarks: &mut FieldIssues) {
    if !is_label(text) {
        let why = format!(
            "{text:?} is no name of a host: at most {LONGEST_NAME} of a-z, 0-9 and '-', which neither begins nor ends it"
        );
        remarks.problem(field, why);
    }
}

/// Warns of names that Kubernetes refuses. Stored records stay valid.
fn kubernetes_names(id: &Namespaced, remarks: &mut FieldIssues) {
    if id.name.as_str().starts_with(|first: char| first.is_ascii_digit()) {
        let why = "Kubernetes refuses it: a job's name begins with a letter (DNS-1035)";
        remarks.warning("metadata.name", why);
    }
    if !is_label(id.namespace.as_str()) {
        let why = "Kubernetes refuses it: a namespace is a DNS label, of a-z, 0-9 and '-'";
        remarks.warning("metadata.namespace", why);
    }
}

fn tasks(id: &Namespaced, job: &JobSpec, remarks: &mut FieldIssues) {
    let mut names = BTreeSet::new();
    for (n, task) in job.tasks.iter().enumerate() {
        let path = task_path(job, n);
        if !names.insert(task.lower_name()) {
            remarks
                .problem(format!("{path}.name"), format!("duplicated task name {:?}", task.name));
        }
        if job.framework == Framework::Volcano {
            name(&task.name, &format!("{path}.name"), remarks);
        }
        if task.min_available.is_some_and(|min| min > task.replicas) {
            let why = format!("'minAvailable' is greater than 'replicas' in task {:?}", task.name);
            remarks.problem(format!("{path}.minAvailable"), why);
        }
        let last = Slot::new(&task.name, task.replicas.saturating_sub(1));
        let longest = format!("{}-{last}", id.name);
        if longest.len() > LONGEST_NAME {
            let why = format!("the pod name {longest:?} is longer than {LONGEST_NAME}");
            remarks.problem(path, why);
        }
    }
    two_names_for_one_pod(id, job, remarks);
}

/// Refuses names that give two members the same pod: `a` with 11 members and `a-1` both have `a-1-0`.
fn two_names_for_one_pod(id: &Namespaced, job: &JobSpec, remarks: &mut FieldIssues) {
    for (n, task) in job.tasks.iter().enumerate() {
        let prefix = format!("{}-", task.lower_name());
        let clash = job.tasks.iter().find(|other| {
            other.lower_name().strip_prefix(&prefix).is_some_and(|rest| rest.parse::<u32>().is_ok())
        });
        if let Some(other) = clash {
            let why = format!(
                "pods of {:?} and of {:?} could have one name, as in {}-{}-0",
                task.name, other.name, id.name, other.name
            );
            remarks.problem(format!("{}.name", task_path(job, n)), why);
        }
    }
}

fn policies(path: &str, policies: &[LifecyclePolicy], remarks: &mut FieldIssues) {
    let (mut events, mut codes) = (BTreeMap::new(), BTreeSet::new());
    for (n, policy) in policies.iter().enumerate() {
        let here = format!("{path}[{n}]");
        match (policy.events.is_empty(), policy.exit_code) {
            (false, Some(_)) => {
                remarks.problem(here, "must not specify event and exitCode simultaneously");
            }
            (true, None) => remarks.problem(here, "either event or exitCode must be specified"),
            (true, Some(0)) => {
                remarks.problem(format!("{here}.exitCode"), "0 is not a valid error code");
            }
            (true, Some(code)) => {
                if !(1..=255).contains(&code) {
                    let why = format!("no process ends with {code}: exit codes are 1 to 255");
                    remarks.warning(format!("{here}.exitCode"), why);
                }
                if !codes.insert(code) {
                    remarks
                        .problem(format!("{here}.exitCode"), format!("duplicate exitCode {code}"));
                }
            }
            (false, None) => {
                for event in &policy.events {
                    if let Some(other) = events.insert(*event, n) {
                        let why = format!("duplicate event {event}: policy {other} has it, too");
                        remarks.problem(here.clone(), why);
                    }
                }
            }
        }
        if policy.events.contains(&PolicyEvent::PodPending) && policy.timeout.is_none() {
            let why = "PodPending acts only with a timeout; this policy does nothing";
            remarks.warning(format!("{path}[{n}]"), why);
        }
    }
    if events.contains_key(&PolicyEvent::Any) && (policies.len() > 1 || events.len() > 1) {
        remarks.problem(path, "if there is * here, no other policy should be here");
    }
}

fn dependencies(job: &JobSpec, remarks: &mut FieldIssues) {
    for (n, task) in job.tasks.iter().enumerate() {
        let field = format!("{}.dependsOn.name", task_path(job, n));
        let mut seen = BTreeSet::new();
        for dependency in &task.depends_on {
            if dependency == &task.name {
                remarks.problem(field.clone(), "a task cannot depend on itself");
            } else if job.task(dependency).is_none() {
                remarks.problem(field.clone(), format!("vertex is not defined: {dependency}"));
            } else if !seen.insert(dependency) {
                remarks.problem(field.clone(), format!("{dependency:?} is named twice"));
            }
        }
    }
    let edges = job.tasks.iter().map(|task| (task.name.as_str(), task.depends_on.as_slice()));
    if let Err(circle) = start_order(&edges.collect()) {
        let why = format!("job has dependencies between tasks that are not a DAG: {circle}");
        remarks.problem(format!("spec.{}", field_of(job)), why);
    }
}

/// Tasks in dependency order; unknown dependencies are ignored.
///
/// # Errors A cycle, as in `a -> b -> a`.
pub fn start_order<'a>(
    depends_on: &BTreeMap<&'a str, &'a [String]>,
) -> Result<Vec<&'a str>, String> {
    let (mut order, mut way) = (Vec::new(), Vec::new());
    for name in depends_on.keys() {
        visit(name, depends_on, &mut order, &mut way)?;
    }
    Ok(order)
}

fn visit<'a>(
    name: &'a str,
    depends_on: &BTreeMap<&'a str, &'a [String]>,
    order: &mut Vec<&'a str>,
    way: &mut Vec<&'a str>,
) -> Result<(), String> {
    if order.contains(&name) {
        return Ok(());
    }
    if let Some(at) = way.iter().position(|other| *other == name) {
        let mut circle = way[at..].to_vec();
        circle.push(name);
        return Err(circle.join(" -> "));
    }
    let Some((name, next)) = depends_on.get_key_value(name) else { return Ok(()) };
    way.push(name);
    for dependency in *next {
        visit(dependency, depends_on, order, way)?;
    }
    way.pop();
    order.push(name);
    Ok(())
}

fn frameworks(job: &JobSpec, remarks: &mut FieldIssues) {
    let count = |name: &str| job.task(name).map_or(0, |task| task.replicas);
    match job.framework {
        Framework::Pod => {}
        Framework::Described => described::validate(job, remarks),
        Framework::Volcano => {
            let Some(arguments) = job.plugins.get(&Plugin::Mpi) else { return };
            let master = crate::job::frameworks::argument(arguments, "master").unwrap_or("master");
            if job.task(master).is_none() {
                let why = format!("specified mpi master task {master:?} was not found");
                remarks.problem("spec.plugins.mpi", why);
            }
        }
        Framework::PyTorch | Framework::XgBoost => {
            let field = format!("spec.{}", field_of(job));
            if job.task("Master").is_some() && count("Master") != 1 {
                remarks.problem(format!("{field}.Master.replicas"), "it must be 1");
            }
            if job.task("Worker").is_some() && count("Worker") == 0 {
                remarks.problem(format!("{field}.Worker.replicas"), "it must be at least 1");
            }
            if job.framework == Framework::XgBoost && job.task("Master").is_none() {
                remarks.problem(field, "there must be a Master: the others meet there");
            } else if job.elastic.is_some() && job.task("Worker").is_none() {
                remarks.problem("spec.elasticPolicy", "there is no Worker that could come and go");
            }
        }
        Framework::Mpi => {
            let field = format!("spec.{}", field_of(job));
            if count("Launcher") != 1 {
                remarks.problem(format!("{field}.Launcher"), "there must be exactly one");
            }
        }
        Framework::TensorFlow => {
            let field = format!("spec.{}", field_of(job));
            let leaders = count("Chief") + count("Master");
            if leaders > 1 {
                remarks.problem(field, "there may be one Chief or one Master, not more");
            }
        }
    }
}
