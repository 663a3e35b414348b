//! Jobs as they stand in the store.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cli::console::Console;
use crate::cli::failure::failure;
use crate::ids::Namespaced;
use crate::job::form::{self, Read, Remark};
use crate::job::manifest::Mark;
use crate::job::spec::JobUid;
use crate::job::status::JobStatus;
use crate::job::writes::mark_of;
use crate::labels::decode_labels;
use crate::node::status::PodStatus;
use crate::rc::plan::Place;
use crate::store::key::{self, LabelKind};
use crate::store::{Entry, Index, Query};

/// A job's record with what it means.
pub(super) struct Found {
    pub(super) id: Namespaced,
    pub(super) entry: Entry,
    pub(super) document: Value,
    pub(super) read: Result<Read, Vec<Remark>>,
    /// What its owner says; `None` when nobody has looked at this job of the name yet.
    pub(super) status: Option<JobStatus>,
}

impl Found {
    fn new(id: Namespaced, entry: Entry, status: Option<&Entry>) -> Found {
        let (document, read) = match form::decode(&id, &entry.value) {
            Ok((document, read)) => (document, Ok(read)),
            Err(problems) => {
                (serde_json::from_slice(&entry.value).unwrap_or_default(), Err(problems))
            }
        };
        let status = status.and_then(|entry| JobStatus::decode(&entry.value).ok());
        let status = status.filter(|status| status.uid == JobUid(entry.create_index));
        Found { id, entry, document, read, status }
    }

    /// Which of its name.
    pub(super) fn uid(&self) -> Index {
        self.entry.create_index
    }
}

/// One job.
pub(super) async fn find(console: &Console, id: &Namespaced) -> anyhow::Result<Found> {
    let Some(entry) = console.get(&key::job(id)).await? else {
        return Err(failure(
            format!("there is no job {id}"),
            "see which there are: rcfarm job list",
        ));
    };
    let status = console.get(&key::job_status(id)).await?;
    Ok(Found::new(id.clone(), entry, status.as_ref()))
}

/// All jobs, in key order.
pub(super) async fn all(console: &Console) -> anyhow::Result<Vec<Found>> {
    let records = console.store.list(&key::jobs(), Query::PLAIN).await?.value;
    let statuses = console.store.list(&key::job_statuses(), Query::PLAIN).await?.value;
    let statuses: BTreeMap<Namespaced, Entry> = statuses
        .into_iter()
        .filter_map(|entry| Some((key::namespaced(&key::job_statuses(), &entry.key)?, entry)))
        .collect();
    let found = records.into_iter().filter_map(|entry| {
        let id = key::namespaced(&key::jobs(), &entry.key)?;
        let status = statuses.get(&id);
        Some(Found::new(id, entry, status))
    });
    Ok(found.collect())
}

/// A pod of a job.
pub(super) struct Pod {
    pub(super) place: Place,
    pub(super) mark: Mark,
    pub(super) label_index: Index,
    pub(super) status: Option<PodStatus>,
}

/// The pods that carry a job's name, of whatever job of that name.
pub(super) async fn pods(console: &Console, id: &Namespaced) -> anyhow::Result<Vec<Pod>> {
    let prefix = key::labels(LabelKind::Pod);
    let labelled = console.store.list(&prefix, Query::PLAIN).await?.value;
    let marked = labelled.iter().filter_map(|entry| {
        let (node, pod) = key::node_and_pod(&prefix, &entry.key)?;
        let mark = mark_of(&decode_labels(&entry.value).ok()?)?;
        (mark.job == *id).then_some((Place { node, pod }, mark, entry.modify_index))
    });
    let marked: Vec<_> = marked.collect();
    let keys = marked.iter().map(|(place, ..)| key::pod_status(&place.pod, &place.node));
    let statuses = console.get_many(keys).await?;
    let pod = |(place, mark, label_index): (Place, Mark, Index)| {
        let key = key::pod_status(&place.pod, &place.node);
        let entry = statuses.get(key.as_str());
        let status = entry.and_then(|entry| PodStatus::decode(&entry.value).ok());
        Pod { place, mark, label_index, status }
    };
    let mut pods: Vec<Pod> = marked.into_iter().map(pod).collect();
    pods.sort_by(|a, b| (&a.mark.slot, &a.place).cmp(&(&b.mark.slot, &b.place)));
    Ok(pods)
}
