//! Volcano jobs: variables of the plugins (`volcano.md` §3.8), and rule R of the state machine (§2.1).

use serde_json::json;

use super::{
    Cluster, FrameworkOutcome, NO_MEMBERS, Operator, TaskCounts, Variable, everywhere, first_of,
    outcome, tf_config_of, told_of, total, unless_set,
};
use super::{pytorch, ray, tensorflow};
use crate::job::machine::PhaseDecision;
use rcfarm_api::job::spec::{JobSpec, JobTask, Plugin, Slot};
use rcfarm_api::job::status::JobReason;
use rcfarm_api::manifest::{PeerForm, PeerPart, PeersForm, PeersStanza, SshStanza};

pub(super) struct Volcano;

/// Plugins whose members are told of all hosts: Volcano's webhook adds `svc` to the others.
const MEETS: [Plugin; 5] =
    [Plugin::Svc, Plugin::PyTorch, Plugin::TensorFlow, Plugin::Mpi, Plugin::Ray];

/// Variables with the index of a member.
pub(in crate::job) const TASK_INDEX: [&str; 2] = ["VC_TASK_INDEX", "VK_TASK_INDEX"];

/// Default of the plugin `ssh`.
const SSH_PORT: u16 = 22;

/// Roles of the tensorflow plugin, and its arguments that name their tasks.
const TF_ROLES: [&str; 4] = ["ps", "worker", "chief", "evaluator"];

/// Value of `--<name>=` in a plugin's arguments.
#[must_use]
pub fn argument<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    arguments
        .iter()
        .find_map(|argument| argument.trim_start_matches('-').strip_prefix(name)?.strip_prefix('='))
}

/// Port of a plugin's arguments.
fn port_of(arguments: &[String], default: u16) -> u16 {
    argument(arguments, "port").and_then(|port| port.parse().ok()).unwrap_or(default)
}

/// Arguments of the plugin that gives the task this role.
fn role<'j>(job: &'j JobSpec, task: &JobTask, plugin: Plugin, name: &str) -> Option<&'j [String]> {
    let arguments = job.plugins.get(&plugin)?;
    (argument(arguments, name).unwrap_or(name) == task.name).then_some(arguments.as_slice())
}

/// Arguments of the tensorflow plugin, for a task whose members find each other by `TF_CONFIG`.
fn tf_role<'j>(job: &'j JobSpec, task: &JobTask) -> Option<&'j [String]> {
    let is_alone = job.tasks.len() == 1 && job.replicas() == 1;
    let mut roles = TF_ROLES.iter();
    roles.find_map(|name| role(job, task, Plugin::TensorFlow, name)).filter(|_| !is_alone)
}

impl Operator for Volcano {
    fn listens(&self, job: &JobSpec, task: &JobTask) -> Option<u16> {
        let tf = tf_role(job, task).map(|arguments| port_of(arguments, tensorflow::PORT));
        let torch = || role(job, task, Plugin::PyTorch, "master");
        tf.or_else(|| torch().map(|arguments| port_of(arguments, pytorch::PORT)))
            .or_else(|| ray::listens(job, task))
    }

    fn listeners(&self, job: &JobSpec, task: &JobTask) -> u32 {
        match self.listens(job, task) {
            Some(_) if tf_role(job, task).is_some() => task.replicas,
            Some(_) => task.replicas.min(1),
            None => 0,
        }
    }

    fn is_master(&self, job: &JobSpec, slot: &Slot) -> bool {
        let arguments = [Plugin::PyTorch, Plugin::Mpi];
        arguments.iter().filter_map(|plugin| job.plugins.get(plugin)).any(|arguments| {
            argument(arguments, "master").unwrap_or("master") == slot.task && slot.index == 0
        })
    }

    fn environment(&self, cluster: &Cluster<'_>, slot: &Slot) -> Vec<Variable> {
        let plugins = &cluster.job.plugins;
        let mut env = Vec::new();
        if plugins.contains_key(&Plugin::Env) {
            env.extend(TASK_INDEX.map(|name| everywhere(name, slot.index)));
        }
        if MEETS.iter().any(|plugin| plugins.contains_key(plugin)) && inject_hosts(cluster.job) {
            env.extend(cluster.job.tasks.iter().flat_map(|task| hosts_of(cluster, task)));
        }
        if let Some(arguments) = plugins.get(&Plugin::PyTorch) {
            env.extend(torch(cluster, slot, arguments));
        }
        if let Some(arguments) = plugins.get(&Plugin::TensorFlow) {
            env.extend(tf_config(cluster, slot, arguments));
        }
        if let Some(arguments) = plugins.get(&Plugin::Mpi) {
            env.extend(mpi_host(cluster, slot, arguments));
        }
        env.extend(ray::environment(cluster, slot));
        if plugins.contains_key(&Plugin::Ssh) {
            // Open MPI starts its processes on other members by ssh, whose own default is another file.
            env.push(unless_set("OMPI_MCA_plm_rsh_args", "-F $(RCFARM_SSH_CONFIG)"));
        }
        // After pytorch, whose rank it takes.
        if let Some(arguments) = plugins.get(&Plugin::HcclRank) {
            env.extend(hccl_rank(cluster.job, slot, arguments, &env));
        }
        env
    }

    fn peers(&self, job: &JobSpec, slot: &Slot) -> PeersStanza {
        let mut stanza = PeersStanza::default();
        let plugins = &job.plugins;
        if let Some(arguments) = plugins.get(&Plugin::TensorFlow) {
            stanza = tf_parts(job, slot, arguments).map(tf_config_of).unwrap_or_default();
        }
        if plugins.contains_key(&Plugin::Svc) {
            for task in &job.tasks {
                let file = format!("etc/volcano/{}.host", task.name);
                stanza.files.insert(file, vec![PeerPart::all(&task.name, PeersForm::Lines)]);
            }
        }
        if MEETS.iter().any(|plugin| plugins.contains_key(plugin)) && inject_hosts(job) {
            for task in &job.tasks {
                let hosts = vec![PeerPart::all(&task.name, PeersForm::Hosts)];
                stanza.variables.insert(hosts_variable(task), hosts);
            }
        }
        if let Some(arguments) = plugins.get(&Plugin::PyTorch) {
            let role = |name| job.task(argument(arguments, name).unwrap_or(name));
            let is_told = |task: &&JobTask| {
                let is_worker = role("worker").is_some_and(|worker| worker.name == slot.task);
                slot.task == task.name || is_worker
            };
            if let Some(master) = role("master").filter(is_told) {
                let names = [("MASTER_ADDR", PeerForm::Host), ("MASTER_PORT", PeerForm::Port)];
                stanza.variables.extend(told_of(&master.name, 0, &names).variables);
            }
        }
        stanza
            .variables
            .extend(ray::peers(job, slot).map(|told| told.variables).unwrap_or_default());
        if let Some(arguments) = plugins.get(&Plugin::Mpi) {
            let role = |name| argument(arguments, name).unwrap_or(name);
            if let Some(worker) = job.task(role("worker")).filter(|_| slot.task == role("master")) {
                let hosts = vec![PeerPart::all(&worker.name, PeersForm::Hosts)];
                stanza.variables.insert("MPI_HOST".to_owned(), hosts);
            }
        }
        stanza
    }

    fn meets_at(&self, job: &JobSpec) -> Vec<Slot> {
        let master = |arguments: &Vec<String>| {
            first_of(job.task(argument(arguments, "master").unwrap_or("master")))
        };
        let torch = job.plugins.get(&Plugin::PyTorch).and_then(master);
        torch.into_iter().chain(first_of(ray::head(job))).collect()
    }

    /// Rule R. A task with `minAvailable` that has no members left to succeed counts, too.
    fn outcome(&self, job: &JobSpec, counts: &TaskCounts<'_>) -> FrameworkOutcome {
        let members = total(counts);
        let replicas = job.replicas();
        let (succeeded, ended) = (members.succeeded, members.succeeded + members.failed);
        if replicas == 0 {
            return outcome(PhaseDecision::Empty, JobReason::NoMembers, NO_MEMBERS);
        }
        let of = |wanted: u32| format!("{succeeded} of {replicas} succeeded, {wanted} are needed");
        if let Some(wanted) = job.min_success.filter(|wanted| succeeded >= *wanted) {
            return outcome(PhaseDecision::Succeeded, JobReason::EnoughSucceeded, of(wanted));
        }
        if ended >= replicas {
            return at_the_end(job, counts, succeeded);
        }
        if members.pending > replicas - job.min_available.min(replicas) {
            let message = format!("{} of {replicas} members wait", members.pending);
            return outcome(PhaseDecision::TooManyPending, JobReason::Starting, message);
        }
        let started = members.running + ended;
        if started >= job.min_available {
            outcome(PhaseDecision::Enough, JobReason::EnoughRunning, "")
        } else {
            let message = format!("{started} of {} needed members have started", job.min_available);
            outcome(PhaseDecision::Short, JobReason::Starting, message)
        }
    }
}

fn at_the_end(job: &JobSpec, counts: &TaskCounts<'_>, succeeded: u32) -> FrameworkOutcome {
    let of = |wanted: u32| format!("{succeeded} succeeded, {wanted} are needed");
    if let Some(wanted) = job.min_success {
        return outcome(PhaseDecision::Failed, JobReason::MinSuccessMissed, of(wanted));
    }
    let needed_by_tasks: u32 = job.tasks.iter().map(JobTask::needed).sum();
    if job.min_available >= needed_by_tasks {
        for task in &job.tasks {
            let got = counts.get(task.name.as_str()).map_or(0, |count| count.members.succeeded);
            if let Some(wanted) = task.min_available.filter(|wanted| got < *wanted) {
                let message = format!("{got} of task {} succeeded, {wanted} are needed", task.name);
                return outcome(PhaseDecision::Failed, JobReason::TaskMinAvailableMissed, message);
            }
        }
    }
    let (verdict, reason) = match succeeded >= job.min_available {
        true => (PhaseDecision::Succeeded, JobReason::EnoughSucceeded),
        false => (PhaseDecision::Failed, JobReason::MinAvailableMissed),
    };
    outcome(verdict, reason, of(job.min_available))
}

/// What the members of a job with the plugin `ssh` are given.
#[must_use]
pub fn ssh(job: &JobSpec) -> Option<SshStanza> {
    let arguments = job.plugins.get(&Plugin::Ssh)?;
    let port = argument(arguments, "ssh-port").and_then(|port| port.parse().ok());
    Some(SshStanza { port: port.unwrap_or(SSH_PORT) })
}

fn inject_hosts(job: &JobSpec) -> bool {
    let arguments = job.plugins.get(&Plugin::Svc).map(Vec::as_slice).unwrap_or_default();
    argument(arguments, "inject-hosts-env") != Some("false")
}

/// Name of the variable with the hosts of a task.
fn hosts_variable(task: &JobTask) -> String {
    format!("VC_{}_HOSTS", task.name.to_ascii_uppercase().replace('-', "_"))
}

fn hosts_of(cluster: &Cluster<'_>, task: &JobTask) -> [Variable; 2] {
    let name = task.name.to_ascii_uppercase().replace('-', "_");
    [
        everywhere(hosts_variable(task), hosts(cluster, task).join(",")),
        everywhere(format!("VC_{name}_NUM"), task.replicas),
    ]
}

fn hosts(cluster: &Cluster<'_>, task: &JobTask) -> Vec<String> {
    cluster.peers(task).map(|peer| peer.host).collect()
}

fn torch(cluster: &Cluster<'_>, slot: &Slot, arguments: &[String]) -> Vec<Variable> {
    let role = |name| cluster.job.task(argument(arguments, name).unwrap_or(name));
    let (Some(master), worker) = (role("master"), role("worker")) else { return Vec::new() };
    let peer = cluster.peer(&master.name, 0);
    let rank = match slot.task == master.name {
        true => 0,
        false if worker.is_some_and(|worker| worker.name == slot.task) => slot.index + 1,
        false => return Vec::new(),
    };
    let size = master.replicas + worker.map_or(0, |worker| worker.replicas);
    vec![
        everywhere("MASTER_ADDR", &peer.host),
        everywhere("MASTER_PORT", peer.port(port_of(arguments, pytorch::PORT))),
        everywhere("WORLD_SIZE", size),
        everywhere("RANK", rank),
    ]
}

fn tf_config(cluster: &Cluster<'_>, slot: &Slot, arguments: &[String]) -> Option<Variable> {
    let job = cluster.job;
    if job.tasks.len() == 1 && job.replicas() == 1 {
        return None;
    }
    let port = port_of(arguments, tensorflow::PORT);
    let of = |role| job.task(argument(arguments, role).unwrap_or(role));
    let own =
        TF_ROLES.into_iter().find(|role| of(role).is_some_and(|task| task.name == slot.task))?;
    let members = TF_ROLES.into_iter().filter_map(|role| {
        let task = of(role)?;
        let ends: Vec<String> = cluster.peers(task).map(|peer| peer.at(port)).collect();
        Some(format!("{}:{}", json!(role), json!(ends)))
    });
    let members = members.collect::<Vec<_>>().join(",");
    let value = format!(
        r#"{{"cluster":{{{members}}},"task":{{"type":{},"index":{}}}}}"#,
        json!(own),
        slot.index
    );
    Some(everywhere("TF_CONFIG", value))
}

/// The parts of [`tf_config`].
fn tf_parts(job: &JobSpec, slot: &Slot, arguments: &[String]) -> Option<Vec<PeerPart>> {
    if job.tasks.len() == 1 && job.replicas() == 1 {
        return None;
    }
    let of = |role| job.task(argument(arguments, role).unwrap_or(role));
    let own =
        TF_ROLES.into_iter().find(|role| of(role).is_some_and(|task| task.name == slot.task))?;
    let mut parts = vec![PeerPart::text(r#"{"cluster":{"#)];
    let roles = TF_ROLES.into_iter().filter_map(|role| Some((role, of(role)?)));
    for (n, (role, task)) in roles.enumerate() {
        let comma = if n == 0 { "" } else { "," };
        parts.push(PeerPart::text(format!("{comma}{}:", json!(role))));
        parts.push(PeerPart::all(&task.name, PeersForm::Endpoints));
    }
    let task = format!(r#"}},"task":{{"type":{},"index":{}}}}}"#, json!(own), slot.index);
    parts.push(PeerPart::text(task));
    Some(parts)
}

/// The rank that Volcano writes to the annotation `hccl/rankIndex`: the `RANK` of the pytorch plugin or of a container,
/// otherwise the masters first.
fn hccl_rank(
    job: &JobSpec,
    slot: &Slot,
    arguments: &[String],
    injected: &[Variable],
) -> Option<Variable> {
    let task = |role| job.task(argument(arguments, role).unwrap_or(role));
    let is_rank = |name: &str| name == "RANK";
    let given = injected.iter().find(|one| is_rank(&one.name)).map(|one| one.value.clone());
    let own = || {
        let containers = job.task(&slot.task)?.template.containers.iter();
        let mut variables = containers.flat_map(|container| &container.env);
        variables.find(|(name, _)| is_rank(name)).map(|(_, value)| value.clone())
    };
    let by_role = || {
        let master = task("master");
        let masters = master.map_or(0, |master| master.replicas);
        let is_own = |task: Option<&JobTask>| task.is_some_and(|task| task.name == slot.task);
        match is_own(master) {
            true => Some(slot.index.to_string()),
            false => is_own(task("worker")).then(|| (masters + slot.index).to_string()),
        }
    };
    let rank = given.or_else(own).or_else(by_role)?;
    Some(everywhere("RCFARM_HCCL_RANK_INDEX", rank))
}

fn mpi_host(cluster: &Cluster<'_>, slot: &Slot, arguments: &[String]) -> Option<Variable> {
    let role = |name| argument(arguments, name).unwrap_or(name);
    if slot.task != role("master") {
        return None;
    }
    let worker = cluster.job.task(role("worker"))?;
    Some(everywhere("MPI_HOST", hosts(cluster, worker).join(",")))
}
