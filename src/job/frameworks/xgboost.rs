//! XGBoost: addresses of master and workers (`kubeflow.md` §6.3). The master decides.

use super::{
    Cluster, FrameworkOutcome, Operator, TaskCounts, Variable, everywhere, first_of, led, listens,
    told_of,
};
use rcfarm_api::job::spec::{Framework, JobSpec, JobTask, Slot};
use rcfarm_api::manifest::{PeerForm, PeerPart, PeersForm, PeersStanza};

const PORT_NAME: &str = "xgboostjob-port";
const PORT: u16 = 9999;

pub(super) struct XgBoost;

fn port(task: &JobTask) -> u16 {
    listens(Framework::XgBoost, task).unwrap_or(PORT)
}

impl Operator for XgBoost {
    fn port(&self) -> Option<(&'static str, u16)> {
        Some((PORT_NAME, PORT))
    }

    fn listeners(&self, _: &JobSpec, task: &JobTask) -> u32 {
        task.replicas
    }

    fn environment(&self, cluster: &Cluster<'_>, slot: &Slot) -> Vec<Variable> {
        let Some(master) = cluster.job.task("Master") else { return Vec::new() };
        let peer = cluster.peer(&master.name, 0);
        let rank = if slot.task == "Master" { slot.index } else { slot.index + master.replicas };
        let mut env = vec![
            everywhere("MASTER_PORT", peer.port(port(master))),
            everywhere("MASTER_ADDR", &peer.host),
            everywhere("WORLD_SIZE", cluster.job.replicas()),
            everywhere("RANK", rank),
            everywhere("PYTHONUNBUFFERED", 1),
        ];
        if let Some(worker) = cluster.job.task("Worker").filter(|_| cluster.job.replicas() > 1) {
            let ports: Vec<u16> =
                cluster.peers(worker).map(|peer| peer.port(port(worker))).collect();
            if ports.iter().any(|port| *port != ports[0]) {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                env.push(everywhere("WORKER_PORTS", ports.join(",")));
            }
            let hosts: Vec<String> = cluster.peers(worker).map(|peer| peer.host).collect();
            // One variable for all members: a worker's own port; for the master, that of worker 0.
            let own = if slot.task == worker.name { slot.index } else { 0 };
            let own = cluster.peer(&worker.name, own);
            env.push(everywhere("WORKER_PORT", own.port(port(worker))));
            env.push(everywhere("WORKER_ADDRS", hosts.join(",")));
        }
        env
    }

    fn peers(&self, job: &JobSpec, slot: &Slot) -> PeersStanza {
        if job.replicas() <= 1 || job.task("Master").is_none() {
            return PeersStanza::default();
        }
        let names = [("MASTER_ADDR", PeerForm::Host), ("MASTER_PORT", PeerForm::Port)];
        let mut stanza = told_of("Master", 0, &names);
        if job.task("Worker").is_some() {
            let own = if slot.task == "Worker" { slot.index } else { 0 };
            let port = told_of("Worker", own, &[("WORKER_PORT", PeerForm::Port)]);
            stanza.variables.extend(port.variables);
            let workers = vec![PeerPart::all("Worker", PeersForm::Hosts)];
            stanza.variables.insert("WORKER_ADDRS".to_owned(), workers);
        }
        stanza
    }

    fn meets_at(&self, job: &JobSpec) -> Vec<Slot> {
        first_of(job.task("Master")).into_iter().collect()
    }

    fn outcome(&self, _: &JobSpec, counts: &TaskCounts<'_>) -> FrameworkOutcome {
        led(counts, Some("Master"), |_| None, &[])
    }
}
