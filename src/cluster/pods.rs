//! `labels/pod/`: the pods of the cluster, by place and by the record that owns them.

use std::collections::{BTreeMap, BTreeSet};

use super::job_pods::{JobPod, JobPods, job_pod};
use rcfarm_api::ids::{Namespaced, NodeName, PodId, PodRef, RcId};
use rcfarm_api::key;
use rcfarm_api::labels::{Labels, decode_labels};
use rcfarm_api::rc::spec::RC_ID;
use rcfarm_store::cache::CacheIndex;
use rcfarm_store::{Decoder, Entry, Index, Key, Prefix, Versioned, VersionedIndex};

/// A pod's labels and the owner that they name.
#[derive(Debug, PartialEq)]
pub struct PodRecord {
    /// `None`: the value is no label set. The pod still occupies its place.
    pub labels: Option<Labels>,
    /// The replication controller that the labels name.
    pub rc: Option<RcId>,
    job: Option<JobPod>,
}

/// A pod's labels as stored. CreateIndex is the pod's age.
pub type LabelledPod = Versioned<PodRecord>;

/// Decodes `labels/pod/<node>/<pod>`. Other keys below it (`labels/pod/<uuid>`) are pods without a node.
pub struct PodDecoder;

impl Decoder for PodDecoder {
    type Key = PodRef;
    type Value = PodRecord;

    fn key(prefix: &Prefix, key: &str) -> Option<PodRef> {
        let (node, pod) = key::node_and_pod(prefix, key)?;
        Some(PodRef { node, pod })
    }

    fn decode(place: &PodRef, entry: &Entry) -> Option<PodRecord> {
        let labels = decode_labels(&entry.value).ok();
        let rc = labels.as_ref().and_then(|labels| labels.get(RC_ID)?.parse().ok());
        let job = labels.as_ref().and_then(|labels| job_pod(place, entry.modify_index, labels));
        Some(PodRecord { labels, rc, job })
    }
}

/// `labels/pod/`, by place and by owner: one cache for replication controllers and jobs.
#[derive(Debug, Default)]
pub struct PodLabels {
    places: VersionedIndex<PodDecoder>,
    by_rc: BTreeMap<RcId, BTreeSet<PodRef>>,
    /// RCs that own pods of an id.
    rcs_by_pod: BTreeMap<PodId, BTreeSet<RcId>>,
    jobs: JobPods,
    has_pods_of_jobs: bool,
}

/// Entries of the pods on one node.
pub fn on_node<'a, V>(
    places: &'a BTreeMap<PodRef, V>,
    node: &'a NodeName,
) -> impl Iterator<Item = (&'a PodRef, &'a V)> {
    // No pod id is smaller than this one.
    let first = PodRef { node: node.clone(), pod: "-".parse().expect("a pod id") };
    places.range(first..).take_while(move |(place, _)| place.node == *node)
}

impl PodLabels {
    /// RCs that own pods on a node.
    pub fn rcs_on<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = RcId> {
        on_node(&self.places.0, node).filter_map(|(_, pod)| pod.value.rc)
    }

    /// Jobs whose names pods on a node carry.
    pub fn jobs_on<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = &'a Namespaced> {
        on_node(&self.places.0, node).filter_map(|(_, pod)| pod.value.job.as_ref()?.job())
    }

    /// RCs of which a pod differs between the two.
    pub fn touched(old: &Self, new: &Self) -> BTreeSet<RcId> {
        let places = VersionedIndex::touched(&old.places, &new.places);
        places.flat_map(|place| [old.owner(place), new.owner(place)]).flatten().collect()
    }

    /// Whether a pod is gone from its place.
    pub fn has_lost_pods(old: &Self, new: &Self) -> bool {
        VersionedIndex::has_lost_keys(&old.places, &new.places)
    }

    pub fn jobs(&self) -> &JobPods {
        &self.jobs
    }

    /// Whether any pod belongs to a job.
    pub fn has_pods_of_jobs(&self) -> bool {
        self.has_pods_of_jobs
    }

    /// The labels of the pod at a place.
    pub fn get(&self, place: &PodRef) -> Option<&LabelledPod> {
        self.places.get(place)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&PodRef, &LabelledPod)> {
        self.places.0.iter().map(|(place, pod)| (place, &**pod))
    }

    /// The pods that carry an RC's id.
    pub fn of_rc(&self, rc: RcId) -> impl Iterator<Item = (&PodRef, &LabelledPod)> {
        let places = self.by_rc.get(&rc).into_iter().flatten();
        places.filter_map(|place| Some((place, self.places.get(place)?)))
    }

    /// RCs that own pods of this id, on any node.
    pub fn rcs_with(&self, pod: &PodId) -> impl Iterator<Item = RcId> {
        self.rcs_by_pod.get(pod).into_iter().flatten().copied()
    }

    /// The owner of the pod at a place.
    pub fn owner(&self, place: &PodRef) -> Option<RcId> {
        self.places.value(place).and_then(|pod| pod.rc)
    }

    /// Id of the RC (`true`), or uid of the job, that owns the pod at a place.
    pub(super) fn record(&self, place: &PodRef) -> Option<(&str, bool)> {
        let labels = self.places.value(place)?.labels.as_ref()?;
        let rc = labels.get(RC_ID).map(|id| (id.as_ref(), true));
        rc.or_else(|| labels.get(key::JOB_UID_LABEL).map(|uid| (uid.as_ref(), false)))
    }

    /// ModifyIndex of the labels at a place, and the owner that they name.
    pub fn at(&self, place: &PodRef) -> Option<(Index, Option<RcId>)> {
        self.places.get(place).map(|pod| (pod.index, pod.value.rc))
    }
}

impl CacheIndex for PodLabels {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let places = VersionedIndex::build(&old.places, prefix, entries);
        let mut new = PodLabels { places, ..PodLabels::default() };
        for (place, pod) in &new.places.0 {
            let PodRecord { labels, rc, job } = &pod.value;
            let is_jobs = |labels: &Labels| labels.contains_key(key::JOB_UID_LABEL);
            new.has_pods_of_jobs |= labels.as_ref().is_some_and(is_jobs);
            if let Some(rc) = rc {
                new.by_rc.entry(*rc).or_default().insert(place.clone());
            }
            if let Some(job) = job {
                new.jobs.insert(place.clone(), job.clone());
            }
        }
        for (rc, places) in &new.by_rc {
            let mut last = None;
            // The pods of an RC have one id, but for a moment after its manifest was renamed.
            for place in places.iter().filter(|place| last.replace(&place.pod) != Some(&place.pod))
            {
                new.rcs_by_pod.entry(place.pod.clone()).or_default().insert(*rc);
            }
        }
        new
    }

    fn len(&self) -> usize {
        self.places.len()
    }

    fn has_key(&self, prefix: &Prefix, key: &Key) -> bool {
        self.places.has_key(prefix, key)
    }
}
