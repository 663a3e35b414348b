//! Reads of jobs and their pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cluster::job_pods::LabelledMember;
use crate::cluster::pods::PodLabels;
use crate::job::document::{self, Read};
use crate::job::manifest::PodIdentity;
use rcfarm_api::ids::{Namespaced, PodRef};
use rcfarm_api::job::identity::identity_in;
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{Labels, decode_labels};
use rcfarm_api::node::status::PodStatus;
use rcfarm_api::{FieldError, Stored};
use rcfarm_store::cache::read_once;
use rcfarm_store::{Entry, Index, Prefix, StoreError};

/// A job's record, parsed, with its status.
pub(super) struct FoundJob {
    pub(super) id: Namespaced,
    pub(super) entry: Entry,
    pub(super) document: Value,
    pub(super) read: Result<Read, Vec<FieldError>>,
    /// Its labels: those of the document, and over them those of its labels key.
    pub(super) labels: Labels,
    /// The owner's status. `None`: no farm has handled this job yet.
    pub(super) status: Option<JobStatus>,
}

impl FoundJob {
    fn new(
        id: Namespaced,
        entry: Entry,
        status: Option<&Entry>,
        labels: Option<&Entry>,
    ) -> FoundJob {
        let (document, read) = match document::decode(&id, &entry.value) {
            Ok((document, read)) => (document, Ok(read)),
            Err(problems) => {
                (serde_json::from_slice(&entry.value).unwrap_or_default(), Err(problems))
            }
        };
        let status = status.and_then(|entry| JobStatus::decode(&entry.value).ok());
        let status = status.filter(|status| status.uid == JobUid(entry.create_index));
        let over = labels.and_then(|entry| decode_labels(&entry.value).ok());
        let mut labels = document::labels_in(&entry.value);
        labels.extend(over.unwrap_or_default());
        FoundJob { id, entry, document, read, labels, status }
    }

    /// CreateIndex of the record, which distinguishes jobs of one name.
    pub(super) fn uid(&self) -> Index {
        self.entry.create_index
    }
}

/// Finds a job. It must exist.
pub(super) async fn find(context: &CommandContext, id: &Namespaced) -> anyhow::Result<FoundJob> {
    look_up(context, id).await?.ok_or_else(|| none(id))
}

pub(super) fn none(id: &Namespaced) -> anyhow::Error {
    failure(format!("there is no job {id}"), "see which there are: rcfarm job list")
}

/// Finds a job. `None`: it does not exist.
pub(super) async fn look_up(
    context: &CommandContext,
    id: &Namespaced,
) -> Result<Option<FoundJob>, StoreError> {
    let Some(entry) = context.get(&key::job(id)).await? else { return Ok(None) };
    let status = context.get(&key::job_status(id)).await?;
    let labels = context.get(&key::labels_of_job(id)).await?;
    Ok(Some(FoundJob::new(id.clone(), entry, status.as_ref(), labels.as_ref())))
}

/// All jobs, in key order.
pub(super) async fn all(context: &CommandContext) -> Result<Vec<FoundJob>, StoreError> {
    let statuses = context.list(&key::job_statuses()).await?;
    with_statuses(context, &statuses).await
}

/// All jobs, in key order, with these entries of `job_statuses`.
pub(super) async fn with_statuses(
    context: &CommandContext,
    statuses: &[Entry],
) -> Result<Vec<FoundJob>, StoreError> {
    let records = context.list(&key::jobs()).await?;
    let labels = context.list(&key::job_labels()).await?;
    let (statuses, labels) =
        (by_id(&key::job_statuses(), statuses), by_id(&key::job_labels(), &labels));
    let found = records.into_iter().filter_map(|entry| {
        let id = key::namespaced(&key::jobs(), &entry.key)?;
        let (status, labels) = (statuses.get(&id).copied(), labels.get(&id).copied());
        Some(FoundJob::new(id, entry, status, labels))
    });
    Ok(found.collect())
}

fn by_id<'e>(prefix: &Prefix, entries: &'e [Entry]) -> BTreeMap<Namespaced, &'e Entry> {
    entries.iter().filter_map(|entry| Some((key::namespaced(prefix, &entry.key)?, entry))).collect()
}

pub(super) struct FoundPod {
    pub(super) place: PodRef,
    pub(super) identity: PodIdentity,
    pub(super) label_index: Index,
    pub(super) status: Option<PodStatus>,
}

/// Pods of a job that are being stopped: their nodes have them, and their labels are gone. Sorted by place.
pub(super) async fn stopping(
    context: &CommandContext,
    found: &FoundJob,
    labelled: &[FoundPod],
) -> Result<Vec<(PodRef, PodIdentity)>, StoreError> {
    let prefix = key::realities();
    let entries = context.list(&prefix).await?;
    let pods = entries.iter().filter_map(|entry| {
        let (node, pod) = key::node_and_pod(&prefix, &entry.key)?;
        Some((PodRef { node, pod }, identity_in(&entry.value)?))
    });
    let is_stopping = |(place, identity): &(PodRef, PodIdentity)| {
        identity.job == found.id
            && identity.uid.0 == found.uid()
            && !labelled.iter().any(|pod| pod.place == *place)
    };
    Ok(pods.filter(is_stopping).collect())
}

/// Pods labelled with a job's name, including those of earlier jobs of that name.
pub(super) async fn pods(
    context: &CommandContext,
    id: &Namespaced,
) -> Result<Vec<FoundPod>, StoreError> {
    let prefix = key::labels(LabelKind::Pod);
    let labels: PodLabels = read_once(context.store.as_ref(), &prefix).await?;
    let members: Vec<_> = labels.jobs().of(id).collect();
    let keys = members.iter().map(|(place, _)| key::pod_status(&place.pod, &place.node));
    let statuses = context.get_many(keys).await?;
    let pod = |(place, member): (&PodRef, &Arc<LabelledMember>)| {
        let key = key::pod_status(&place.pod, &place.node);
        let entry = statuses.get(key.as_str());
        let status = entry.and_then(|entry| PodStatus::decode(&entry.value).ok());
        let (label_index, identity) = (member.index, member.identity.clone());
        FoundPod { place: place.clone(), identity, label_index, status }
    };
    let mut pods: Vec<FoundPod> = members.into_iter().map(pod).collect();
    pods.sort_by(|a, b| (&a.identity.slot, &a.place).cmp(&(&b.identity.slot, &b.place)));
    Ok(pods)
}
