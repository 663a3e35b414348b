//! Pods with a job's name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::members::MemberPod;
use crate::cluster::job_pods::{LabelledMember, Mismatched, Unowned};
use rcfarm_api::Index;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::RecordId;
use rcfarm_api::job::identity::PodIdentity;
use rcfarm_api::job::spec::{JobUid, Slot};

/// Id of a job's record in the farm.
#[must_use]
pub fn record_id(id: &Namespaced) -> RecordId {
    RecordId::from(id.to_string().as_str())
}

/// ModifyIndex of an intent; `None`: there is none.
pub type IntendedAt = Option<Index>;

/// Pods with a job's name, by owner and state.
#[derive(Debug, Default)]
pub struct Pods {
    /// Pods of this job.
    pub own: Vec<MemberPod>,
    /// Labels and intents of `own`.
    pub members: BTreeMap<PodRef, (Arc<LabelledMember>, IntendedAt)>,
    /// Pods by member that have no intent but still run, on nodes that are not down.
    pub leaving: BTreeMap<Slot, u32>,
    /// Whether a pod of an older job of the name still runs there.
    pub older: bool,
    /// Pods of an older job of the name.
    pub orphans: BTreeMap<PodRef, (Arc<LabelledMember>, IntendedAt)>,
    /// Pods that were made for a job of the name and run as intended, but whose labels were deleted: member and
    /// ModifyIndex of the intent.
    pub unlabelled: BTreeMap<PodRef, (PodIdentity, Index)>,
    /// Pods with the job's labels and no uid, with their intents.
    pub unowned: BTreeMap<PodRef, (Arc<Unowned>, IntendedAt)>,
    /// Pods with the job's uid and other labels. Jobs created in one transaction share a uid.
    pub mismatched: BTreeMap<PodRef, Arc<Mismatched>>,
}

impl Pods {
    /// Unlabelled pods that an owner removes: those of older jobs, and all once the job is deleted. Until then a pod
    /// without labels has no owner.
    pub fn abandoned(
        &self,
        uid: JobUid,
        deleting: bool,
    ) -> impl Iterator<Item = (&PodRef, &(PodIdentity, Index))> {
        self.unlabelled.iter().filter(move |(_, (identity, _))| deleting || identity.uid != uid)
    }

    /// Highest index per task among members with a pod, leaving ones included.
    #[must_use]
    pub fn highest(&self) -> BTreeMap<&str, u32> {
        let mut highest = BTreeMap::new();
        let own = self.own.iter().filter(|pod| !pod.lost).map(|pod| &pod.slot);
        for slot in own.chain(self.leaving.keys()) {
            let most: &mut u32 = highest.entry(slot.task.as_str()).or_default();
            *most = slot.index.max(*most);
        }
        highest
    }
}
