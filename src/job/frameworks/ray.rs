//! Volcano's plugin `ray`: a head and workers that join it (`volcano.md` §3.8).
//!
//! The commands of their containers are the plugin's, in place of the document's. They refer to variables, because the
//! head has a port of its node's range, and because a member that is restarted when its peer moved gets new variables.

use super::{Cluster, Variable, argument, everywhere, told_of};
use rcfarm_api::job::spec::{JobSpec, JobTask, Plugin, Slot};
use rcfarm_api::manifest::{PeerForm, PeersStanza};

/// Port of the head's global control store, unless the argument `port` or its node gives another.
const PORT: u16 = 6379;
const DASHBOARD_PORT: u16 = 8265;
const CLIENT_PORT: u16 = 10_001;
/// Port at which the head listens, for the head.
const PORT_VARIABLE: &str = "RCFARM_RAY_PORT";
/// `host:port` of the head, for workers.
const ADDRESS_VARIABLE: &str = "RCFARM_RAY_ADDRESS";

/// Arguments of the plugin, if a job has it.
fn arguments(job: &JobSpec) -> Option<&[String]> {
    job.plugins.get(&Plugin::Ray).map(Vec::as_slice)
}

fn port(arguments: &[String], name: &str, default: u16) -> u16 {
    argument(arguments, name).and_then(|port| port.parse().ok()).unwrap_or(default)
}

/// Whether an argument of the plugin, whose default is `default`, names this.
fn names(arguments: &[String], name: &str, default: &str, wanted: &str) -> bool {
    argument(arguments, name).unwrap_or(default) == wanted
}

fn is_head(arguments: &[String], task: &str) -> bool {
    names(arguments, "head", "head", task)
}

fn is_worker(arguments: &[String], task: &str) -> bool {
    names(arguments, "worker", "worker", task)
}

/// The task of the head.
#[must_use]
pub fn head(job: &JobSpec) -> Option<&JobTask> {
    let arguments = arguments(job)?;
    job.tasks.iter().find(|task| is_head(arguments, &task.name))
}

/// Port at which the head listens before its node gives it one; `None`: the task is not the head's.
pub(super) fn listens(job: &JobSpec, task: &JobTask) -> Option<u16> {
    let arguments = arguments(job)?;
    is_head(arguments, &task.name).then(|| port(arguments, "port", PORT))
}

/// The command of a container; `None`: it keeps its own.
#[must_use]
pub fn command(arguments: &[String], task: &str, container: &str) -> Option<Vec<String>> {
    let is_container = |name, default| names(arguments, name, default, container);
    let start = if is_head(arguments, task) && is_container("headContainer", "head") {
        let dashboard = port(arguments, "dashboardPort", DASHBOARD_PORT);
        let client = port(arguments, "clientPort", CLIENT_PORT);
        format!(
            "ray start --head --block --dashboard-host=0.0.0.0 --port=$({PORT_VARIABLE}) \
             --dashboard-port={dashboard} --ray-client-server-port={client}"
        )
    } else if is_worker(arguments, task) && is_container("workerContainer", "worker") {
        format!("ray start --block --address=$({ADDRESS_VARIABLE})")
    } else {
        return None;
    };
    Some(vec!["sh".to_owned(), "-c".to_owned(), start])
}

/// The variable that the command of a member refers to.
pub(super) fn environment(cluster: &Cluster<'_>, slot: &Slot) -> Option<Variable> {
    let (arguments, head) = (arguments(cluster.job)?, head(cluster.job)?);
    let (peer, port) = (cluster.peer(&head.name, 0), port(arguments, "port", PORT));
    if slot.task == head.name {
        Some(everywhere(PORT_VARIABLE, peer.port(port)))
    } else {
        let is_worker = is_worker(arguments, &slot.task);
        is_worker.then(|| everywhere(ADDRESS_VARIABLE, peer.at(port)))
    }
}

/// The same, as it follows the head.
pub(super) fn peers(job: &JobSpec, slot: &Slot) -> Option<PeersStanza> {
    let (arguments, head) = (arguments(job)?, head(job)?);
    if slot.task == head.name {
        Some(told_of(&head.name, 0, &[(PORT_VARIABLE, PeerForm::Port)]))
    } else {
        let names = [(ADDRESS_VARIABLE, PeerForm::Endpoint)];
        is_worker(arguments, &slot.task).then(|| told_of(&head.name, 0, &names))
    }
}
