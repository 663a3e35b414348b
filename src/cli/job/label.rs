//! `rcfarm job label`: the labels of a job.
//!
//! Keys read: the job's record and `labels/job/<ns>/<name>`. Keys written: the record's `metadata.labels`, by CAS. A label
//! that the labels key has as well is removed there in the same transaction, since that key takes precedence.

use serde_json::{Value, json};

use super::commands::{job_change, queue_conflict};
use super::find::{FoundJob, find};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::label::{LabelEdit, decode, write_op};
use crate::job::document;
use rcfarm_api::audit::{Details, JobChange, record_hash};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::key;
use rcfarm_api::labels::Labels;
use rcfarm_store::{Entry, Op};

#[derive(clap::Args)]
pub struct JobLabelArgs {
    /// The job: its name, or <namespace>/<name>
    #[arg(value_name = "JOB")]
    job: Namespaced,
    /// KEY=VALUE sets a label, KEY- removes one; without any the labels are shown
    #[arg(value_name = "KEY=VALUE|KEY-")]
    changes: Vec<String>,
}

pub(super) async fn run(context: &CommandContext, args: &JobLabelArgs) -> anyhow::Result<CliExit> {
    let example = format!("as in: rcfarm job label {} team=a tier-", args.job);
    let edit = LabelEdit::parse(&args.changes, &example)?;
    let labels = context.edit(&args.job, async || change(context, &args.job, &edit).await).await?;
    let shown = json!({"job": args.job, "labels": labels});
    context.show(&shown, || labels.iter().map(|(key, value)| format!("{key}={value}\n")).collect())
}

/// Changes the labels of a job and returns all of them; `None`: somebody else changed it meanwhile.
async fn change(
    context: &CommandContext,
    id: &Namespaced,
    edit: &LabelEdit,
) -> anyhow::Result<Option<Labels>> {
    let found = find(context, id).await?;
    let labels_key = key::labels_of_job(id);
    let entry = context.get(&labels_key).await?;
    let over = entry.as_ref().map(decode).transpose()?.unwrap_or_default();
    let own = document::labels_in(&found.entry.value);
    let mut kept = over.clone();
    kept.retain(|key, _| !edit.touches(key));
    let after = edit.applied_to(&own);
    let mut all = after.clone();
    all.extend(kept.clone());
    let mut ops = Vec::new();
    let mut record = None;
    if after != own {
        let value: bytes::Bytes = relabelled(&found, edit)?.to_string().into();
        record = Some(record_hash(&value));
        let Entry { flags, modify_index: index, .. } = found.entry;
        ops.push(Op::Cas { key: key::job(id), value, flags, index });
    } else {
        ops.push(Op::CheckIndex { key: key::job(id), index: found.entry.modify_index });
    }
    if kept != over {
        ops.push(write_op(labels_key, entry.as_ref(), &kept));
    }
    if record.is_none() && kept == over {
        return Ok(Some(all));
    }
    let changes = edit.set.iter().map(|(key, value)| format!("{key}={value}"));
    let changes = changes.chain(edit.remove.iter().map(|key| format!("{key}-")));
    let reason = changes.collect::<Vec<_>>().join(" ");
    let details = JobChange { record, reason, ..job_change(context, id, "Labelled") };
    let committed = context.commit(ops, &Details::JobChanged(details), None).await?;
    Ok(committed.is_ok().then_some(all))
}

/// The document with changed labels.
fn relabelled(found: &FoundJob, edit: &LabelEdit) -> anyhow::Result<Value> {
    let mut document = found.document.clone();
    let unreadable = || {
        let hint = "correct the record first: rcfarm apply -f";
        failure(format!("the labels of {} cannot be read", found.id), hint)
    };
    let metadata = document.as_object_mut().ok_or_else(unreadable)?;
    let metadata = metadata.entry("metadata").or_insert_with(|| json!({}));
    let labels = metadata.as_object_mut().ok_or_else(unreadable)?.entry("labels");
    let labels = labels.or_insert_with(|| json!({}));
    if labels.is_null() {
        *labels = json!({});
    }
    let labels = labels.as_object_mut().ok_or_else(unreadable)?;
    for key in &edit.remove {
        labels.remove(key);
    }
    labels.extend(edit.set.iter().map(|(key, value)| (key.clone(), json!(value))));
    if let Some(why) = queue_conflict(&found.id, &found.document, &document) {
        return Err(failure(why, "delete the job, and apply it again with another queue"));
    }
    Ok(document)
}
