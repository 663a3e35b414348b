//! History of jobs that no key shows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uuid::Uuid;

use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::ids::{Namespaced, NodeName};
use rcfarm_api::job::spec::{JobUid, Slot};
use rcfarm_api::pod_group::spec::GroupId;

/// One attempt at one member of one job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Try {
    pub job: Namespaced,
    pub uid: JobUid,
    /// The member.
    pub slot: Slot,
    /// The attempt of the whole job.
    pub version: u64,
    /// The attempt at the member.
    pub attempt: u32,
}

impl From<&PodIdentity> for Try {
    fn from(identity: &PodIdentity) -> Try {
        let PodIdentity { job, uid, slot, version, attempt } = identity.clone();
        Try { job, uid, slot, version, attempt }
    }
}

/// History of jobs that no key shows.
#[derive(Default)]
pub struct History {
    /// Attempts whose pods were created.
    pub made: BTreeSet<Try>,
    /// Attempts that ended on their nodes, with their exit codes.
    pub ended: BTreeMap<Try, Option<i32>>,
    /// Attempts that were lost: their pods were removed, or their nodes crashed.
    pub lost: BTreeSet<Try>,
    /// Attempts at tasks of arrays, with the indexes of these tasks.
    pub indexes: BTreeMap<Try, u32>,
    /// Executed commands.
    pub consumed: BTreeSet<Uuid>,
    /// Tasks that are ready for their dependents now.
    pub ready_now: BTreeSet<(Namespaced, JobUid, String)>,
    /// Until when tasks were ready.
    pub ready: BTreeMap<(Namespaced, JobUid, String), Duration>,
    /// Times at which nodes had no live agent.
    pub absences: BTreeMap<NodeName, Vec<(Duration, Duration)>>,
    /// Since when groups wait in their queues.
    pub waiting: BTreeMap<GroupId, Duration>,
    /// Jobs that a command or a deadline ended.
    pub commanded: BTreeSet<(Namespaced, JobUid)>,
}
