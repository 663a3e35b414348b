//! `rcfarm rc update`
//!
//! Keys written in one transaction: the controller's record and, with the manifest, its labels, both by CAS; the audit
//! record, the doorbell. The label `rcfarm/update` tells the owner in which order pods get this manifest.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::change::{about, with_fields};
use super::create::{check_manifest, read_manifest};
use super::find::{FoundRc, find_to_change};
use super::wait;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::duration;
use rcfarm_api::audit::{ControllerChange, Details, record_hash};
use rcfarm_api::labels::{Labels, Selector, decode_labels, encode_labels};
use rcfarm_api::manifest::{Manifest, check_for_p2};
use rcfarm_api::rc::spec::{POD_ID, RcRecord, RcSpec, RcStrategy};
use rcfarm_api::rc::update::{UpdateChoice, UpdateOrder};
use rcfarm_api::{Stored, key};
use rcfarm_store::{Index, Op};

#[derive(clap::Args)]
pub struct RcUpdateArgs {
    /// The controller: its id, an unambiguous beginning of it, or its pod's id
    #[arg(value_name = "RC")]
    rc: String,
    /// File with the new pod manifest (YAML, signed or not); - reads it from standard input
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["node_selector", "strategy"])]
    file: Option<PathBuf>,
    /// Write the manifest to all pods at once: all restart, whatever rcfarm/min_health says
    #[arg(long, requires = "file")]
    all_at_once: bool,
    /// Which nodes may run the pods, as in role=web,zone in (a,b); '' for all nodes
    #[arg(long, value_name = "SELECTOR")]
    node_selector: Option<Selector>,
    /// What happens to pods on nodes that no longer match: static leaves them, dynamic moves them
    #[arg(long, value_enum)]
    strategy: Option<RcStrategy>,
    /// Wait until all pods have the manifest and are healthy
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
}

/// New values of a record's fields. Those that are not named stay.
#[derive(Default)]
pub(in crate::cli) struct RcEdit {
    pub(in crate::cli) manifest: Option<(Manifest, UpdateOrder)>,
    pub(in crate::cli) fields: Vec<(&'static str, Value)>,
    /// Labels of the controller itself. Others stay.
    pub(in crate::cli) labels: Labels,
}

/// A record after a change.
pub(in crate::cli) struct Updated {
    pub(in crate::cli) before: FoundRc,
    /// ModifyIndex of the record.
    pub(in crate::cli) index: Index,
    /// Fields that were changed.
    pub(in crate::cli) changed: Vec<&'static str>,
}

pub(super) async fn run(context: &CommandContext, args: RcUpdateArgs) -> anyhow::Result<CliExit> {
    let mut edit = RcEdit::default();
    if let Some(file) = &args.file {
        let manifest = read_manifest(file)?;
        check_manifest(context, &manifest)?;
        if let Err(bad) = check_for_p2(&manifest.fields()?) {
            context.note(format!("p2's programs cannot read this manifest: {bad}"));
        }
        let order = if args.all_at_once { UpdateOrder::AtOnce } else { UpdateOrder::InOrder };
        edit.manifest = Some((manifest, order));
    }
    let selector = args.node_selector.map(|to| ("node_selector", json!(to.to_string())));
    let strategy = args.strategy.map(|to| ("allocation_strategy", json!(to.as_str())));
    edit.fields = selector.into_iter().chain(strategy).collect();
    let Updated { before, index, changed } = apply(context, &args.rc, &edit).await?;
    context.show(
        &json!({"id": before.id, "pod_id": before.pod_id(), "changed": changed}),
        || match &changed[..] {
            [] => format!("{}: as before", before.title()),
            changed => format!("{}: {} changed", before.title(), changed.join(", ")),
        },
    )?;
    if before.record.as_ref().is_ok_and(|record| record.disabled) {
        let note = "it is disabled, so its pods stay as they are until: rcfarm rc enable";
        context.note(format!("{note} {}", args.rc));
    } else if args.wait {
        wait::updated(context, before.id, index, args.timeout).await?;
    }
    Ok(CliExit::Ok)
}

/// Changes a record by CAS. Reads it again if it changed meanwhile.
pub(in crate::cli) async fn apply(
    context: &CommandContext,
    rc: &str,
    edit: &RcEdit,
) -> anyhow::Result<Updated> {
    let mut fields = edit.fields.clone();
    if let Some((manifest, _)) = &edit.manifest {
        fields.push(("manifest", json!(manifest.text())));
    }
    let attempt = async || {
        let found = find_to_change(context, rc).await?;
        let changed = with_fields(&found, &fields)?;
        let relabelled = relabelled(context, &found, edit).await?;
        let Some((value, changed)) = changed else {
            // The manifest is as before; a new choice of the order may still matter.
            return match relabelled {
                None => Ok(Some(unchanged(found))),
                Some(op) => {
                    let after = (found.desired(), record_hash(&found.entry.value));
                    let done = commit(context, &found, vec![op], &["labels"], after).await?;
                    Ok(done.map(|_| unchanged(found)))
                }
            };
        };
        let record = RcRecord::decode(&value)?;
        RcSpec::check(found.id, &record)?;
        let after = (Some(record.replicas_desired), record_hash(&value));
        let (index, flags) = (found.entry.modify_index, found.entry.flags);
        let mut ops = vec![Op::Cas { key: key::rc(found.id), value, flags, index }];
        ops.extend(relabelled);
        let done = commit(context, &found, ops, &changed, after).await?;
        Ok(done.map(|index| Updated { before: found, index, changed }))
    };
    context.edit(format!("the record of {rc}"), attempt).await
}

fn unchanged(found: FoundRc) -> Updated {
    Updated { index: found.entry.modify_index, before: found, changed: Vec::new() }
}

async fn commit(
    context: &CommandContext,
    found: &FoundRc,
    ops: Vec<Op>,
    changed: &[&str],
    (desired, record): (Option<i64>, String),
) -> anyhow::Result<Option<Index>> {
    let changed = changed.iter().map(|field| (*field).to_owned()).collect();
    let change =
        ControllerChange { changed, record: Some(record), ..about(context, found, desired) };
    let details = Details::ControllerUpdated(change);
    Ok(context.commit(ops, &details, Some(found.id)).await?.ok())
}

/// Writes into the controller's labels those of the edit, and with a manifest the pod's id and the order of the update.
/// `None`: they say so already.
async fn relabelled(
    context: &CommandContext,
    found: &FoundRc,
    edit: &RcEdit,
) -> anyhow::Result<Option<Op>> {
    let mut wanted = edit.labels.clone();
    if let Some((manifest, order)) = &edit.manifest {
        wanted.insert(POD_ID.to_owned(), manifest.id().to_string());
        let choice = UpdateChoice::new(*order, manifest.text());
        wanted.insert(key::UPDATE_LABEL.to_owned(), choice.to_string());
    }
    if wanted.is_empty() {
        return Ok(None);
    }
    let key = key::rc_labels(found.id);
    let entry = context.get(&key).await?;
    let labels = match entry.as_ref().map(|entry| decode_labels(&entry.value)) {
        None => Labels::new(),
        Some(Ok(labels)) => labels,
        Some(Err(error)) => {
            let fix = "correct or delete them; nothing was changed";
            return Err(failure(format!("{key}: {error}"), fix));
        }
    };
    let mut after = labels.clone();
    after.extend(wanted);
    let (index, flags) = entry.map_or((Index::ZERO, 0), |e| (e.modify_index, e.flags));
    let op = || Op::Cas { key, value: encode_labels(&after), flags, index };
    Ok((after != labels).then(op))
}
