//! What happened to jobs and no key shows any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uuid::Uuid;

use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::ids::{Namespaced, NodeName};
use rcfarm_api::job::spec::{JobUid, Slot};
use rcfarm_api::pod_group::spec::GroupId;

/// One try at one member of one job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Try {
    /// The job.
    pub job: Namespaced,
    /// Which of its name.
    pub uid: JobUid,
    /// Which member.
    pub slot: Slot,
    /// The attempt of the whole job.
    pub version: u64,
    /// Which try.
    pub attempt: u32,
}

impl From<&PodIdentity> for Try {
    fn from(identity: &PodIdentity) -> Try {
        let PodIdentity { job, uid, slot, version, attempt } = identity.clone();
        Try { job, uid, slot, version, attempt }
    }
}

/// What happened to jobs and no key shows any more.
#[derive(Default)]
pub struct History {
    /// Tries that were ever made.
    pub made: BTreeSet<Try>,
    /// Tries that ended on their nodes, and how.
    pub ended: BTreeMap<Try, Option<i32>>,
    /// Tries that were lost: taken away by somebody, or with their node.
    pub lost: BTreeSet<Try>,
    /// Commands that were carried out.
    pub consumed: BTreeSet<Uuid>,
    /// Tasks whose members are as their dependents want them.
    pub ready_now: BTreeSet<(Namespaced, JobUid, String)>,
    /// Until when they were so.
    pub ready: BTreeMap<(Namespaced, JobUid, String), Duration>,
    /// When nodes were out of hearing, and until when.
    pub absences: BTreeMap<NodeName, Vec<(Duration, Duration)>>,
    /// Since when groups have waited in their queues.
    pub waiting: BTreeMap<GroupId, Duration>,
    /// Jobs that were told to end otherwise, by command or by a deadline.
    pub commanded: BTreeSet<(Namespaced, JobUid)>,
}
