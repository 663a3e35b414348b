//! PyTorch: `MASTER_ADDR`, `RANK`, `PET_*` (`kubeflow.md` §6.2). The master decides, or all workers.

use super::{
    Cluster, FrameworkOutcome, Operator, TaskCounts, Variable, all_succeeded, everywhere, first_of,
    led, listens, told_of,
};
use rcfarm_api::job::spec::{Elastic, Framework, JobSpec, JobTask, Slot};
use rcfarm_api::job::status::JobReason;
use rcfarm_api::manifest::{PeerForm, PeersStanza};

const PORT_NAME: &str = "pytorchjob-port";
/// Default port of a member.
pub(super) const PORT: u16 = 23456;

pub(super) struct PyTorch;

fn port(task: &JobTask) -> u16 {
    listens(Framework::PyTorch, task).unwrap_or(PORT)
}

impl Operator for PyTorch {
    fn port(&self) -> Option<(&'static str, u16)> {
        Some((PORT_NAME, PORT))
    }

    /// The members where all meet.
    fn listeners(&self, job: &JobSpec, task: &JobTask) -> u32 {
        u32::from(self.meets_at(job).iter().any(|slot| slot.task == task.name))
    }

    fn environment(&self, cluster: &Cluster<'_>, slot: &Slot) -> Vec<Variable> {
        let job = cluster.job;
        let per_node = job.processes_per_node.as_deref().unwrap_or("auto");
        let mut env = vec![everywhere("PYTHONUNBUFFERED", 1)];
        if let Some(master) = job.task("Master") {
            let peer = cluster.peer(&master.name, 0);
            let processes = job.replicas().saturating_mul(per_node.parse().unwrap_or(1));
            let rank = if slot.task == "Master" { slot.index } else { slot.index + 1 };
            env.extend([
                everywhere("MASTER_PORT", peer.port(port(master))),
                everywhere("PET_MASTER_PORT", peer.port(port(master))),
                everywhere("MASTER_ADDR", &peer.host),
                everywhere("PET_MASTER_ADDR", &peer.host),
                everywhere("WORLD_SIZE", processes),
                everywhere("RANK", rank),
                everywhere("PET_NODE_RANK", rank),
            ]);
        }
        env.push(everywhere("PET_NPROC_PER_NODE", per_node));
        match &job.elastic {
            None => env.push(everywhere("PET_NNODES", job.replicas())),
            Some(elastic) => env.extend(meeting(cluster, elastic)),
        }
        env
    }

    fn peers(&self, job: &JobSpec, _: &Slot) -> PeersStanza {
        if job.replicas() <= 1 {
            return PeersStanza::default();
        }
        let mut stanza = PeersStanza::default();
        if job.task("Master").is_some() {
            let names = [
                ("MASTER_ADDR", PeerForm::Host),
                ("MASTER_PORT", PeerForm::Port),
                ("PET_MASTER_ADDR", PeerForm::Host),
                ("PET_MASTER_PORT", PeerForm::Port),
            ];
            stanza = told_of("Master", 0, &names);
        }
        // A port of its own counts only where the node gives none.
        let elastic = job.elastic.as_ref();
        if elastic.is_some_and(|elastic| elastic.host.is_none() && elastic.port.is_none()) {
            let meets = told_of("Worker", 0, &[("PET_RDZV_ENDPOINT", PeerForm::Endpoint)]);
            stanza.variables.extend(meets.variables);
        }
        stanza
    }

    fn meets_at(&self, job: &JobSpec) -> Vec<Slot> {
        let worker = job.elastic.as_ref().filter(|elastic| elastic.host.is_none());
        let worker = worker.and_then(|_| first_of(job.task("Worker")));
        first_of(job.task("Master")).into_iter().chain(worker).collect()
    }

    fn outcome(&self, job: &JobSpec, counts: &TaskCounts<'_>) -> FrameworkOutcome {
        let leader = job.task("Master").map(|_| "Master");
        led(
            counts,
            leader,
            |workers| {
                if all_succeeded(workers) {
                    return Some((JobReason::EnoughSucceeded, "all workers have succeeded"));
                }
                let any = job.elastic.is_some() && workers.members.succeeded > 0;
                any.then_some((
                    JobReason::EnoughSucceeded,
                    "a worker of an elastic job has succeeded",
                ))
            },
            &[],
        )
    }
}

/// Variables of `torchrun` for elastic jobs.
fn meeting(cluster: &Cluster<'_>, elastic: &Elastic) -> Vec<Variable> {
    let worker = cluster.job.task("Worker");
    let replicas = worker.map_or(0, |worker| worker.replicas);
    let nodes = match (elastic.min, elastic.max) {
        (Some(min), Some(max)) => format!("{min}:{max}"),
        _ => replicas.to_string(),
    };
    let first = cluster.peer("Worker", 0);
    let host = elastic.host.clone().unwrap_or_else(|| first.host.clone());
    let own_port = worker.map_or(PORT, port);
    // At the first worker the port that its node gave to it goes first: another job may name the same port.
    let assigned = first.assigned.filter(|_| elastic.host.is_none());
    let port = assigned.or(elastic.port).unwrap_or_else(|| first.port(own_port));
    let backend = elastic.backend.as_deref().unwrap_or("c10d");
    let mut env = vec![
        everywhere("PET_NNODES", nodes),
        everywhere("PET_RDZV_ENDPOINT", format!("{host}:{port}")),
        everywhere("PET_RDZV_BACKEND", backend),
    ];
    env.extend(elastic.max_restarts.map(|n| everywhere("PET_MAX_RESTARTS", n)));
    env.extend(elastic.id.iter().map(|id| everywhere("PET_RDZV_ID", id)));
    if !elastic.conf.is_empty() {
        let pairs: Vec<String> =
            elastic.conf.iter().map(|(key, value)| format!("{key}={value}")).collect();
        env.push(everywhere("PET_RDZV_CONF", pairs.join(",")));
    }
    if elastic.standalone {
        env.push(everywhere("PET_STANDALONE", ""));
    }
    env
}
