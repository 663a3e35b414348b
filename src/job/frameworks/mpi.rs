//! MPI: the launcher gets a host file of its workers (`kubeflow.md` §6.3), and its exit decides.
//!
//! The launcher reaches workers by the nodes' `ssh`, where Kubernetes uses the API server. A variable holds the host
//! file; the launcher's command writes it to disk ([`hostfile_command`]).

use super::{
    Cluster, FrameworkOutcome, Operator, TaskCounts, Variable, everywhere, led, outcome, unless_set,
};
use crate::job::machine::PhaseDecision;
use rcfarm_api::job::spec::{JobSpec, Slot};
use rcfarm_api::job::status::JobReason;
use rcfarm_api::manifest::{PeerPart, PeersForm, PeersStanza};

/// Variable with the text of the host file.
const HOSTFILE: &str = "RCFARM_MPI_HOSTFILE";
/// Path of the host file.
const HOSTFILE_PATH: &str = "$(POD_HOME)/hostfile";

pub(super) struct Mpi;

impl Operator for Mpi {
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

    fn peers(&self, job: &JobSpec, slot: &Slot) -> PeersStanza {
        let workers = PeerPart::all("Worker", PeersForm::Slots(job.slots_per_worker));
        let files = (slot.task == "Launcher").then(|| ("hostfile".to_owned(), vec![workers]));
        PeersStanza { files: files.into_iter().collect(), ..PeersStanza::default() }
    }

    fn meets_at(&self, _: &JobSpec) -> Vec<Slot> {
        Vec::new()
    }

    /// Runs once launcher and all workers run; only the launcher's end decides.
    fn outcome(&self, job: &JobSpec, counts: &TaskCounts<'_>) -> FrameworkOutcome {
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

/// One line per worker with its slots.
fn hostfile(cluster: &Cluster<'_>) -> String {
    let slots = cluster.job.slots_per_worker;
    let workers = cluster.job.task("Worker");
    let lines = workers.into_iter().flat_map(|worker| cluster.peers(worker));
    lines.map(|peer| format!("{} slots={slots}\n", peer.host)).collect()
}

/// The launcher's command, preceded by writing the host file, unless the node's agent has: that one is newer.
#[must_use]
pub fn hostfile_command(command: &[String]) -> Vec<String> {
    let script = format!(
        r#"{{ [ -n "$RCFARM_PEERS" ] || printf %s "${HOSTFILE}" > "$POD_HOME/hostfile"; }} && exec "$@""#
    );
    let mut words = vec!["/bin/sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()];
    words.extend_from_slice(command);
    words
}
