//! `labels/pod/`: the pods of the cluster, by place and by the record that owns them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rcfarm_api::ids::{PodRef, RcId};
use rcfarm_api::key;
use rcfarm_api::labels::{Labels, decode_labels};
use rcfarm_api::rc::spec::RC_ID;
use rcfarm_store::cache::CacheIndex;
use rcfarm_store::{Entry, Index, Prefix};

/// A pod's labels as stored.
#[derive(Debug, PartialEq)]
pub struct LabelledPod {
    /// ModifyIndex.
    pub index: Index,
    /// CreateIndex: the pod's age.
    pub created: Index,
    /// `None`: the value is no label set. The place is taken all the same.
    pub labels: Option<Labels>,
    /// The replication controller that the labels name.
    pub rc: Option<RcId>,
}

/// `labels/pod/`, by place and by owner.
#[derive(Debug, Default)]
pub struct PodLabels {
    places: BTreeMap<PodRef, Arc<LabelledPod>>,
    by_rc: BTreeMap<RcId, BTreeSet<PodRef>>,
    has_pods_of_jobs: bool,
}

impl PodLabels {
    /// RCs of which a pod differs between the two.
    #[must_use]
    pub fn touched(old: &Self, new: &Self) -> BTreeSet<RcId> {
        let one_way = |a: &Self, b: &Self| -> Vec<RcId> {
            let other = |place: &PodRef| b.places.get(place).map(|seen| seen.index);
            a.places
                .iter()
                .filter(|(place, seen)| other(place) != Some(seen.index))
                .filter_map(|(_, seen)| seen.rc)
                .collect()
        };
        one_way(old, new).into_iter().chain(one_way(new, old)).collect()
    }

    /// Whether a pod is gone from its place.
    #[must_use]
    pub fn has_lost_pods(old: &Self, new: &Self) -> bool {
        old.places.keys().any(|place| !new.places.contains_key(place))
    }

    /// Whether some of them are not an RC's, but a job's.
    #[must_use]
    pub fn has_pods_of_jobs(&self) -> bool {
        self.has_pods_of_jobs
    }

    /// The labels of the pod at a place.
    #[must_use]
    pub fn get(&self, place: &PodRef) -> Option<&LabelledPod> {
        self.places.get(place).map(|seen| &**seen)
    }

    /// The pods that carry an RC's id.
    pub fn of_rc(&self, rc: RcId) -> impl Iterator<Item = (&PodRef, &LabelledPod)> {
        let places = self.by_rc.get(&rc).into_iter().flatten();
        places.map(|place| (place, &*self.places[place]))
    }

    /// The owner of the pod at a place.
    #[must_use]
    pub fn owner(&self, place: &PodRef) -> Option<RcId> {
        self.places.get(place).and_then(|seen| seen.rc)
    }

    /// What names the record, of whatever kind, that the pod at a place belongs to.
    pub(super) fn record(&self, place: &PodRef) -> Option<&str> {
        let labels = self.places.get(place)?.labels.as_ref()?;
        labels.get(RC_ID).or_else(|| labels.get(key::JOB_UID_LABEL)).map(|name| name.as_ref())
    }

    /// ModifyIndex of the labels at a place, and the owner that they name.
    #[must_use]
    pub fn at(&self, place: &PodRef) -> Option<(Index, Option<RcId>)> {
        self.places.get(place).map(|seen| (seen.index, seen.rc))
    }
}

impl CacheIndex for PodLabels {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let mut new = PodLabels::default();
        for entry in entries {
            // Pods of other kinds (`labels/pod/<uuid>`) are not an RC's.
            let Some((node, pod)) = key::node_and_pod(prefix, &entry.key) else { continue };
            let place = PodRef { node, pod };
            let seen = match old.places.get(&place) {
                Some(seen) if seen.index == entry.modify_index => seen.clone(),
                _ => {
                    let labels = decode_labels(&entry.value).ok();
                    let rc = labels.as_ref().and_then(|l| l.get(RC_ID)?.parse().ok());
                    let (index, created) = (entry.modify_index, entry.create_index);
                    Arc::new(LabelledPod { index, created, labels, rc })
                }
            };
            let is_jobs = |labels: &Labels| labels.contains_key(key::JOB_UID_LABEL);
            new.has_pods_of_jobs |= seen.labels.as_ref().is_some_and(is_jobs);
            if let Some(rc) = seen.rc {
                new.by_rc.entry(rc).or_default().insert(place.clone());
            }
            new.places.insert(place, seen);
        }
        new
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}
