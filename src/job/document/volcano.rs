//! Volcano's `Job`, extended by fields of Kubeflow's run policy.

use std::time::Duration;

use serde_json::Value;

use super::fields::{FieldIssues, FieldReader};
use super::template::template;
use super::{Defaults, base, priority_class, run_policy};
use crate::job::frameworks::ray;
use rcfarm_api::command::CommandAction;
use rcfarm_api::job::spec::{
    Framework, JobSpec, JobTask, LifecyclePolicy, Plugin, PolicyEvent, Restart,
};

const RESTARTS: [(&str, Restart); 4] = [
    ("Always", Restart::Always),
    ("OnFailure", Restart::OnFailure),
    ("Never", Restart::Never),
    ("ExitCode", Restart::ExitCode),
];

/// Default of `maxRetry` of jobs and tasks (`volcano.md` §1.1).
pub const MAX_RETRY: u32 = 3;

pub(super) fn job(spec: &mut FieldReader<'_>, issues: &mut FieldIssues) -> JobSpec {
    let tasks: Vec<JobTask> = spec
        .list("tasks", issues)
        .into_iter()
        .enumerate()
        .map(|(n, (path, value))| task(n, path, value, issues))
        .collect();
    let min_available = spec.count("minAvailable", issues);
    // Kubernetes omits zeros when it stores a record.
    let needed = tasks.iter().map(JobTask::needed).fold(0, u32::saturating_add);
    let mut job = base(Framework::Volcano, tasks, Defaults::Volcano);
    job.min_available = min_available.unwrap_or(needed);
    job.min_success = spec.number("minSuccess", 1, issues).and_then(|n| u32::try_from(n).ok());
    job.max_retry = spec.count("maxRetry", issues).unwrap_or(MAX_RETRY);
    job.policies = policies(spec, issues);
    if let Some(queue) = spec.text("queue", issues) {
        job.queue = queue.to_owned();
    }
    job.priority_class = priority_class(spec, "priorityClassName", issues);
    plugins(&mut job, spec, issues);
    ray_commands(&mut job, issues);
    if let Some(ttl) = spec.count("ttlSecondsAfterFinished", issues) {
        job.ttl = Some(Duration::from_secs(ttl.into()));
    }
    run_policy(&mut job, spec, issues);
    spec.refuse(
        &["volumes"],
        "processes have no claims of volumes; put the data on the nodes",
        issues,
    );
    spec.refuse(
        &["networkTopology"],
        "places are chosen by labels and room; use nodeSelector to stay in one part of a network",
        issues,
    );
    spec.pass_over(&["schedulerName", "runningEstimate"], super::NOBODY_READS, issues);
    job
}

fn plugins(job: &mut JobSpec, spec: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    for (path, name, value) in spec.entries("plugins", issues) {
        let Some((_, plugin)) = Plugin::ALL.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = Plugin::ALL.iter().map(|(name, _)| *name).collect();
            let why = format!("unable to find job plugin {name:?}; there are {}", known.join(", "));
            issues.problem(path, why);
            continue;
        };
        job.plugins.insert(*plugin, arguments(path, *plugin, value, issues));
    }
}

/// Gives the members of a Ray cluster their commands, in place of the document's, which need none.
fn ray_commands(job: &mut JobSpec, issues: &mut FieldIssues) {
    let Some(arguments) = job.plugins.get(&Plugin::Ray).cloned() else { return };
    if ray::head(job).is_none() {
        issues.problem(
            "spec.plugins.ray",
            "there is no task of the head: name it head, or say --head=TASK",
        );
    }
    for (n, task) in job.tasks.iter_mut().enumerate() {
        for (m, container) in task.template.containers.iter_mut().enumerate() {
            let Some(command) = ray::command(&arguments, &task.name, &container.name) else {
                continue;
            };
            let path = format!("spec.tasks[{n}].template.spec.containers[{m}].command");
            if !std::mem::replace(&mut container.command, command).is_empty() {
                issues.warning(path, "the plugin ray starts ray in its place");
            } else {
                issues.problems.retain(|issue| issue.path != path);
            }
        }
    }
}

/// Arguments of the plugin `ssh` that bring a key pair.
const GIVEN_KEYS: [&str; 2] = ["ssh-private-key", "ssh-public-key"];

/// Supported arguments of a plugin, and ignored ones.
fn known_arguments(plugin: Plugin) -> (&'static [&'static str], &'static [&'static str]) {
    match plugin {
        Plugin::Env => (&[], &[]),
        Plugin::Svc => {
            (&["inject-hosts-env"], &["publish-not-ready-addresses", "disable-network-policy"])
        }
        Plugin::Ssh => (&["ssh-port"], &["ssh-key-file-path"]),
        Plugin::PyTorch => (
            &["master", "worker", "port"],
            &["wait-master-enabled", "wait-master-timeout", "wait-master-image"],
        ),
        Plugin::TensorFlow => (&["ps", "worker", "chief", "evaluator", "port"], &[]),
        Plugin::Mpi => (&["master", "worker"], &["port"]),
        Plugin::Ray => (
            &[
                "head",
                "worker",
                "headContainer",
                "workerContainer",
                "port",
                "dashboardPort",
                "clientPort",
            ],
            &[],
        ),
        Plugin::HcclRank => (&["master", "worker"], &[]),
    }
}

fn arguments(path: String, plugin: Plugin, value: &Value, issues: &mut FieldIssues) -> Vec<String> {
    let (honoured, idle) = known_arguments(plugin);
    let listed = match value {
        Value::Null => &[][..],
        Value::Array(listed) => listed,
        _ => {
            issues.problem(path, "it must be a list of arguments, as in [--port=2222]");
            return Vec::new();
        }
    };
    let mut arguments = Vec::new();
    for (n, value) in listed.iter().enumerate() {
        let here = format!("{path}[{n}]");
        let Some(text) = value.as_str() else {
            issues.problem(here, "it must be a text; put quotes around it");
            continue;
        };
        let (name, given) = match text.trim_start_matches('-').split_once('=') {
            Some((name, given)) => (name, Some(given)),
            None => (text.trim_start_matches('-'), None),
        };
        match given {
            _ if idle.contains(&name) => issues.warning(here, super::NOBODY_READS),
            Some(_) if plugin == Plugin::Ssh && GIVEN_KEYS.contains(&name) => {
                let why = "whoever reads the job would have the key: leave it out, and the farm makes a pair";
                issues.problem(here, why);
            }
            _ if !honoured.contains(&name) => {
                let known: Vec<&str> = honoured.iter().chain(idle).copied().collect();
                let why = format!("there is no argument {name:?}; there are: {}", known.join(", "));
                issues.problem(here, why);
            }
            None | Some("") => issues.problem(here, format!("write it as --{name}=VALUE")),
            Some(port)
                if name.to_ascii_lowercase().ends_with("port")
                    && !port.parse::<u16>().is_ok_and(|port| port > 0) =>
            {
                issues.problem(here, format!("{port:?} is no port: write a number up to 65535"));
            }
            Some(_) => arguments.push(text.to_owned()),
        }
    }
    arguments
}

fn task(n: usize, path: String, value: &Value, issues: &mut FieldIssues) -> JobTask {
    let mut fields = FieldReader::of(path, value, issues);
    let name = fields.text("name", issues).map_or_else(|| format!("default{n}"), str::to_owned);
    let replicas = super::replicas(&mut fields, issues).unwrap_or(0);
    // The default of Volcano's webhook (`volcano.md` §6).
    let min_available = fields.count("minAvailable", issues).unwrap_or(replicas);
    let policies = policies(&mut fields, issues);
    let max_retry = match fields.number("maxRetry", -1, issues) {
        Some(-1) => None,
        None | Some(0) => Some(MAX_RETRY),
        Some(n) => u32::try_from(n).ok(),
    };
    let mut depends_on = fields.object("dependsOn", issues);
    let names = depends_on.texts("name", issues);
    let any = depends_on.word("iteration", &[("any", true), ("all", false)], issues);
    depends_on.finish(issues);
    let own_restart = fields.word("restartPolicy", &RESTARTS, issues);
    let (template, restart) = template(fields.at("template"), fields.take("template"), issues);
    if fields.text("topologyPolicy", issues).is_some_and(|policy| policy != "none") {
        let why = "nodes do not tell their NUMA cells; leave it out or write none";
        issues.problem(fields.at("topologyPolicy"), why);
    }
    fields.refuse(&["partitionPolicy"], "tasks are not divided; make several tasks", issues);
    fields.finish(issues);
    JobTask {
        name,
        replicas,
        min_available: Some(min_available),
        restart: own_restart.or(restart).unwrap_or(Restart::Always),
        max_retry,
        depends_on: names,
        any_dependency: any.unwrap_or(false),
        policies,
        template,
    }
}

/// Policies without cross-checks; [`crate::job::document`] validates them.
fn policies(fields: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Vec<LifecyclePolicy> {
    let listed = fields.list("policies", issues);
    listed.into_iter().filter_map(|(path, value)| policy(path, value, issues)).collect()
}

fn policy(path: String, value: &Value, issues: &mut FieldIssues) -> Option<LifecyclePolicy> {
    let mut fields = FieldReader::of(path, value, issues);
    let words = CommandAction::OF_JOBS.map(|action| (action.as_str(), action));
    let before = issues.problems.len();
    let action = fields.word("action", &words, issues);
    if action.is_none() && issues.problems.len() == before {
        issues.problem(fields.at("action"), "a policy needs an action");
    }
    let mut events: std::collections::BTreeSet<PolicyEvent> =
        fields.word("event", &PolicyEvent::ALL, issues).into_iter().collect();
    for (path, value) in fields.list("events", issues) {
        let name = value.as_str().unwrap_or_default();
        match PolicyEvent::ALL.iter().find(|(known, _)| *known == name) {
            Some((_, event)) => drop(events.insert(*event)),
            None => {
                let known: Vec<&str> = PolicyEvent::ALL.iter().map(|(name, _)| *name).collect();
                let why = format!("{value} is not known; write one of {}", known.join(", "));
                issues.problem(path, why);
            }
        }
    }
    let exit_code = fields.number("exitCode", i64::from(i32::MIN), issues);
    let timeout = fields.duration("timeout", issues);
    fields.finish(issues);
    Some(LifecyclePolicy {
        action: action?,
        events,
        exit_code: exit_code.and_then(|code| i32::try_from(code).ok()),
        timeout,
    })
}
