//! Finds the record of a controller that a user names.

use anyhow::Context;

use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cli::output::{or_dash, table};
use rcfarm_api::ids::{PodId, RcId};
use rcfarm_api::manifest::Manifest;
use rcfarm_api::rc::spec::{RcRecord, RcSpec};
use rcfarm_api::{FieldError, Stored, key};
use rcfarm_store::Entry;

pub(in crate::cli) struct FoundRc {
    pub(in crate::cli) id: RcId,
    pub(in crate::cli) entry: Entry,
    pub(in crate::cli) record: Result<RcRecord, FieldError>,
}

impl FoundRc {
    pub(in crate::cli) fn of(id: RcId, entry: Entry) -> FoundRc {
        FoundRc { id, record: RcRecord::decode(&entry.value), entry }
    }

    /// The pod's id, if the manifest is valid.
    pub(in crate::cli) fn pod_id(&self) -> Option<PodId> {
        let record = self.record.as_ref().ok()?;
        Some(Manifest::parse(&record.manifest).ok()?.id().clone())
    }

    /// The record, parsed and validated.
    pub(in crate::cli) fn spec(&self) -> Result<RcSpec, FieldError> {
        RcSpec::check(self.id, self.record.as_ref().map_err(Clone::clone)?)
    }

    /// The number of desired pods, even if the rest of the record is invalid.
    pub(in crate::cli) fn desired(&self) -> Option<i64> {
        self.record.as_ref().ok().map(|record| record.replicas_desired)
    }

    /// A pod label of the record; empty if there is none.
    pub(in crate::cli) fn pod_label(&self, name: &str) -> String {
        let labels = self.record.as_ref().ok().and_then(|record| record.pod_labels.as_ref());
        labels.and_then(|labels| labels.get(name)).cloned().unwrap_or_default()
    }

    /// Name of the record in messages, such as `web (f7fe0fb7)`.
    pub(in crate::cli) fn title(&self) -> String {
        title(self.pod_id().as_ref(), self.id)
    }
}

/// Name of a record in messages.
pub(in crate::cli) fn title(pod: Option<&PodId>, id: RcId) -> String {
    match pod {
        Some(pod) => format!("{pod} ({})", short(id)),
        None => id.to_string(),
    }
}

/// Shortest beginning of an id that may name a controller to be changed: a typing error must not.
const SHORTEST_PREFIX: usize = 4;

/// The first eight digits of an id, which commands accept.
pub(in crate::cli) fn short(id: RcId) -> String {
    id.to_string()[..8].to_owned()
}

/// All records, and keys among them that are no records.
pub(in crate::cli) async fn all(
    context: &CommandContext,
) -> anyhow::Result<(Vec<FoundRc>, Vec<String>)> {
    let entries = context.list(&key::rcs()).await?;
    let (mut found, mut strange) = (Vec::new(), Vec::new());
    for entry in entries {
        match key::rcs().tail(&entry.key).map(str::parse) {
            Some(Ok(id)) => found.push(FoundRc::of(id, entry)),
            _ => strange.push(entry.key),
        }
    }
    Ok((found, strange))
}

/// The record that `text` names: an id, an unambiguous beginning of one, or a pod's id.
pub(in crate::cli) async fn find(context: &CommandContext, text: &str) -> anyhow::Result<FoundRc> {
    if let Ok(id) = text.parse::<RcId>() {
        let entry = context.get(&key::rc(id)).await.with_context(|| format!("cannot read {id}"))?;
        return entry.map(|entry| FoundRc::of(id, entry)).ok_or_else(|| none(text));
    }
    let (records, strange) = all(context).await?;
    let unreadable = strange.len() + records.iter().filter(|rc| rc.pod_id().is_none()).count();
    let is_named = |found: &FoundRc| {
        let is_id =
            !text.is_empty() && found.id.to_string().starts_with(&text.to_ascii_lowercase());
        is_id || found.pod_id().is_some_and(|pod| pod.as_str() == text)
    };
    let mut named: Vec<FoundRc> = records.into_iter().filter(is_named).collect();
    match named.len() {
        0 if unreadable > 0 => Err(failure(
            format!("there is no replication controller {text:?} among the valid records"),
            format!("{unreadable} records have no valid manifest or no id: rcfarm rc list"),
        )),
        0 => Err(none(text)),
        1 => Ok(named.remove(0)),
        _ => Err(ambiguous(text, &named)),
    }
}

/// As [`find`], for a command that changes or deletes the record.
pub(in crate::cli) async fn find_to_change(
    context: &CommandContext,
    text: &str,
) -> anyhow::Result<FoundRc> {
    let found = find(context, text).await?;
    let is_pod = found.pod_id().is_some_and(|pod| pod.as_str() == text);
    if text.len() < SHORTEST_PREFIX && !is_pod {
        return Err(failure(
            format!("{text:?} is too short for the beginning of an id; nothing was changed"),
            format!("give at least {SHORTEST_PREFIX} characters, as in {}", short(found.id)),
        ));
    }
    Ok(found)
}

fn none(text: &str) -> anyhow::Error {
    failure(
        format!("there is no replication controller {text:?}"),
        "see which there are: rcfarm rc list",
    )
}

fn ambiguous(text: &str, named: &[FoundRc]) -> anyhow::Error {
    let table = table(
        named,
        &[
            ("ID", &|found| found.id.to_string()),
            ("POD", &|found| or_dash(found.pod_id())),
            ("DESIRED", &|found| or_dash(found.desired())),
            ("ZONE", &|found| found.pod_label("availability_zone")),
            ("CLUSTER", &|found| found.pod_label("cluster_name")),
        ],
    );
    failure(format!("{text:?} may be any of these:\n{}", table.trim_end()), "give more of the id")
}
