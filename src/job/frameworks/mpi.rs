//! MPI: the launcher finds its workers in a host file (`kubeflow.md` §6.3), and decides.
//!
//! A launcher in Kubernetes reaches its workers through the API server; here it is the nodes' own `ssh`. The host file
//! travels in a variable and is written beside the program when it starts ([`hostfile_command`]).

use super::{
    Cluster, Counts, FrameworkOutcome, Operator, Variable, everywhere, led, outcome, unless_set,
};
use crate::job::machine::PhaseDecision;
use rcfarm_api::job::spec::{JobSpec, Slot};
use rcfarm_api::job::status::JobReason;

const CONTAINER: &str = "mpi";
/// Holds the host file's text.
const HOSTFILE: &str = "RCFARM_MPI_HOSTFILE";
/// Where the host file is written.
const HOSTFILE_PATH: &str = "${POD_HOME}/hostfile";

pub(super) struct Mpi;

impl Operator for Mpi {
    fn container(&self) -> Option<&'static str> {
        Some(CONTAINER)
    }

    fn port(&self) -> Option<(&'static str, u16)> {
        None
    }

    fn is_master(&self, _: &JobSpec, slot: &Slot) -> bool {
        slot.task == "Launcher"
    }

    fn environment(&self, cluster: &Cluster<'_>, slot: &Slot) -> Vec<Variable> {
        if slot.task != "Launcher" {
            return Vec::new();
        }
        vec![
            unless_set("OMPI_MCA_plm_rsh_agent", "ssh"),
            everywhere("OMPI_MCA_orte_default_hostfile", HOSTFILE_PATH),
            everywhere("I_MPI_HYDRA_HOST_FILE", HOSTFILE_PATH),
            unless_set("I_MPI_HYDRA_BOOTSTRAP", "ssh"),
            everywhere(HOSTFILE, hostfile(cluster)),
        ]
    }

    fn meets_at(&self, _: &JobSpec) -> Vec<Slot> {
        Vec::new()
    }

    /// It runs when its launcher and all its workers do; whether it succeeds or fails only the launcher says.
    fn outcome(&self, job: &JobSpec, counts: &Counts<'_>) -> FrameworkOutcome {
        let workers = counts.get("Worker").copied().unwrap_or_default().members;
        let wanted = job.task("Worker").map_or(0, |task| task.replicas);
        match led(counts, Some("Launcher"), |_| None, &["Worker"]) {
            FrameworkOutcome { verdict: PhaseDecision::Enough, .. } if workers.running < wanted => {
                let message = format!("{} of {wanted} workers run", workers.running);
                outcome(PhaseDecision::Short, JobReason::Starting, message)
            }
            other => other,
        }
    }
}

/// One worker a line, with its slots.
fn hostfile(cluster: &Cluster<'_>) -> String {
    let slots = cluster.job.slots_per_worker;
    let workers = cluster.job.task("Worker");
    let lines = workers.into_iter().flat_map(|worker| cluster.peers(worker));
    lines.map(|peer| format!("{} slots={slots}\n", peer.host)).collect()
}

/// A launcher's command that writes the host file first.
#[must_use]
pub fn hostfile_command(command: &[String]) -> Vec<String> {
    let script = format!(r#"printf %s "${HOSTFILE}" > "$POD_HOME/hostfile" && exec "$@""#);
    let mut words = vec!["/bin/sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()];
    words.extend_from_slice(command);
    words
}
