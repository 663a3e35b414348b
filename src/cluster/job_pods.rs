//! Pods of jobs in `labels/pod/`: which job each belongs to, and which job could adopt it.
//!
//! A pod belongs to a job when its labels name the job and carry the job's uid (Kubernetes' selector and controller
//! reference). The other cases are those of the reference's claim table (`kubeflow.md` §1.12).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rcfarm_api::ids::Namespaced;
use rcfarm_api::ids::PodRef;
use rcfarm_api::job::identity::{PodIdentity, mark_of, name_of, uid_of};
use rcfarm_api::job::spec::{JobUid, Slot};
use rcfarm_api::labels::Labels;
use rcfarm_store::{Index, differing};

/// A pod whose labels and name are those of a job's member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledMember {
    /// ModifyIndex.
    pub index: Index,
    /// Identity in its labels.
    pub identity: PodIdentity,
}

/// A pod whose labels name a job and carry no uid: the job may adopt it.
#[derive(Debug, Clone, PartialEq)]
pub struct Unowned {
    /// ModifyIndex.
    pub index: Index,
    /// The member that its labels name.
    pub slot: Slot,
    pub labels: Labels,
}

/// A pod with a job's uid, but with labels or a name that are not those of a member of that job.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatched {
    /// ModifyIndex.
    pub index: Index,
    pub labels: Labels,
}

/// A pod whose labels name a job or carry a job's uid.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum JobPod {
    Member(Arc<LabelledMember>),
    Unowned(Namespaced, Arc<Unowned>),
    Mismatched(JobUid, Arc<Mismatched>),
}

impl JobPod {
    /// The job that the labels name.
    pub(super) fn job(&self) -> Option<&Namespaced> {
        match self {
            JobPod::Member(member) => Some(&member.identity.job),
            JobPod::Unowned(job, _) => Some(job),
            JobPod::Mismatched(..) => None,
        }
    }
}

/// `labels/pod/`, the pods of jobs.
#[derive(Debug, Default)]
pub struct JobPods {
    by_job: BTreeMap<Namespaced, BTreeMap<PodRef, Arc<LabelledMember>>>,
    unowned: BTreeMap<Namespaced, BTreeMap<PodRef, Arc<Unowned>>>,
    mismatched: BTreeMap<JobUid, BTreeMap<PodRef, Arc<Mismatched>>>,
}

impl JobPods {
    /// The pods that carry a job's name and a uid.
    pub fn of(&self, job: &Namespaced) -> impl Iterator<Item = (&PodRef, &Arc<LabelledMember>)> {
        self.by_job.get(job).into_iter().flatten()
    }

    /// Jobs that own the pods at these places.
    #[must_use]
    pub fn owners(&self, places: &BTreeSet<&PodRef>) -> BTreeSet<Namespaced> {
        let has_one = |own: &BTreeMap<PodRef, _>| own.keys().any(|place| places.contains(place));
        let owners = self.by_job.iter().filter(|(_, own)| has_one(own));
        owners.map(|(job, _)| job.clone()).collect()
    }

    /// Pods that carry the job's name and no uid.
    pub fn unowned(&self, job: &Namespaced) -> impl Iterator<Item = (&PodRef, &Arc<Unowned>)> {
        self.unowned.get(job).into_iter().flatten()
    }

    /// Pods that carry the uid and are no members of the job.
    pub fn mismatched(&self, uid: JobUid) -> impl Iterator<Item = (&PodRef, &Arc<Mismatched>)> {
        self.mismatched.get(&uid).into_iter().flatten()
    }

    /// Whether any pod carries a job's name and a uid.
    #[must_use]
    pub fn has(&self, job: &Namespaced) -> bool {
        self.by_job.contains_key(job)
    }

    /// Jobs of which a pod differs between the two. [`JobPods::newly_mismatched`] has the others.
    #[must_use]
    pub fn touched(old: &Self, new: &Self) -> BTreeSet<Namespaced> {
        let own = differing(&old.by_job, &new.by_job, BTreeMap::eq);
        let unowned = differing(&old.unowned, &new.unowned, BTreeMap::eq);
        own.into_iter().chain(unowned).cloned().collect()
    }

    /// Pods that carry the uid of a job whose members they are not, by labels or name, if any such pod of the uid has
    /// changed. The job's name is in their manifests only.
    #[must_use]
    pub fn newly_mismatched<'a>(old: &'a Self, new: &'a Self) -> BTreeSet<&'a PodRef> {
        let touched = differing(&old.mismatched, &new.mismatched, BTreeMap::eq);
        let places = touched.into_iter().filter_map(|uid| new.mismatched.get(uid));
        places.flat_map(BTreeMap::keys).collect()
    }

    pub(super) fn insert(&mut self, place: PodRef, pod: JobPod) {
        match pod {
            JobPod::Member(labelled) => {
                self.by_job
                    .entry(labelled.identity.job.clone())
                    .or_default()
                    .insert(place, labelled);
            }
            JobPod::Unowned(job, unowned) => {
                drop(self.unowned.entry(job).or_default().insert(place, unowned))
            }
            JobPod::Mismatched(uid, mismatched) => {
                self.mismatched.entry(uid).or_default().insert(place, mismatched);
            }
        }
    }
}

/// The job that a pod belongs to or names; `None`: it belongs to no job.
pub(super) fn job_pod(place: &PodRef, index: Index, labels: &Labels) -> Option<JobPod> {
    let uid = uid_of(labels);
    match (mark_of(labels), uid) {
        (Some(identity), _) if identity.slot.is_named(&identity.job, &place.pod) => {
            Some(JobPod::Member(Arc::new(LabelledMember { index, identity })))
        }
        (_, Some(uid)) => {
            Some(JobPod::Mismatched(uid, Arc::new(Mismatched { index, labels: labels.clone() })))
        }
        (_, None) => {
            let (job, slot) = name_of(labels)?;
            slot.is_named(&job, &place.pod).then(|| {
                JobPod::Unowned(job, Arc::new(Unowned { index, slot, labels: labels.clone() }))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::pods::PodLabels;
    use rcfarm_api::key;
    use rcfarm_store::Entry;
    use rcfarm_store::cache::CacheIndex;

    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry {
            key: format!("labels/pod/{key}"),
            value: bytes::Bytes::copy_from_slice(value.as_bytes()),
            flags: 0,
            session: None,
            lock_index: 0,
            create_index: Index(1),
            modify_index: Index(5),
        }
    }

    #[test]
    fn pods_are_told_apart_by_name_and_uid() {
        let of = |job: &str, task: &str, uid: &str| {
            format!(
                r#"{{"volcano.sh/job-name":"{job}","volcano.sh/job-namespace":"default","volcano.sh/task-spec":"{task}",
                "volcano.sh/task-index":"0","volcano.sh/job-version":"0","rcfarm/attempt":"0"{uid}}}"#
            )
        };
        let entries = vec![
            entry("n1/a-w-0", &of("a", "w", r#","rcfarm/job_uid":"7""#)),
            entry("n2/a-w-0", &of("a", "w", "")),
            entry("n3/a-w-0", &of("b", "w", r#","rcfarm/job_uid":"7""#)),
            entry("n4/a-w-0", r#"{"rcfarm/job_uid":"7"}"#),
            entry("n5/web", &of("a", "w", "")),
            entry("n6/web", r#"{"role":"web"}"#),
        ];
        let prefix = key::labels(key::LabelKind::Pod);
        let all = PodLabels::build(&PodLabels::default(), &prefix, entries);
        let pods = all.jobs();
        let (a, b) = ("default/a".parse().unwrap(), "default/b".parse().unwrap());
        let nodes = |places: Vec<&PodRef>| {
            places.iter().map(|place| place.node.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(nodes(pods.of(&a).map(|(place, _)| place).collect()), ["n1"]);
        assert_eq!(nodes(pods.unowned(&a).map(|(place, _)| place).collect()), ["n2"]);
        assert_eq!(pods.of(&b).count(), 0, "a pod relabelled to another job is not that one's");
        let mismatched = pods.mismatched(JobUid(Index(7))).map(|(place, _)| place).collect();
        assert_eq!(nodes(mismatched), ["n3", "n4"]);
        assert_eq!(all.len(), 6);
    }
}
