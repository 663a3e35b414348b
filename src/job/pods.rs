//! The pods that carry a job's name, as an owner sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::members::MemberPod;
use crate::cluster::job_pods::{LabelledMember, Mismatched, Unowned};
use rcfarm_api::Index;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::RecordId;
use rcfarm_api::job::spec::Slot;

/// The name under which farms know a job.
#[must_use]
pub fn record_id(id: &Namespaced) -> RecordId {
    RecordId::from(id.to_string().as_str())
}

/// An intent's ModifyIndex and the hash of its manifest.
pub type Intended = Option<(Index, u64)>;

/// The pods of a job, as they stand.
#[derive(Debug, Default)]
pub struct Pods {
    /// Those of this job.
    pub own: Vec<MemberPod>,
    /// The manifests' hashes, for [`super::caches::JobPendingWrites`].
    pub intents: BTreeMap<PodRef, (LabelledMember, Intended)>,
    /// Members that are real and no longer wanted, on nodes that can be heard.
    pub leaving: BTreeMap<Slot, u32>,
    /// Whether pods of an older job of the name are still real there.
    pub older: bool,
    /// Pods of an older job of the name.
    pub orphans: BTreeMap<PodRef, (LabelledMember, Intended)>,
    /// Pods of the name that are nobody's, with what is intended there.
    pub unowned: BTreeMap<PodRef, (Arc<Unowned>, Intended)>,
    /// Pods that carry the job's uid and are called otherwise; some may be of another job made at the same index.
    pub mismatched: BTreeMap<PodRef, Arc<Mismatched>>,
}

impl Pods {
    /// The highest number among the members of each task that have a pod, or one on its way out.
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
