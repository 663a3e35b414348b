//! `rcfarm rc scale`, `enable`, `disable`
//!
//! Key written: the controller's record, by CAS, in one transaction with its audit record and its doorbell. Only commands
//! and operators write the record.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::find::{FoundRc, find_to_change};
use super::wait;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::duration;
use rcfarm_api::audit::{ControllerChange, Details, record_hash};
use rcfarm_api::rc::spec::{RcRecord, check_count};
use rcfarm_api::{Stored, key};
use rcfarm_store::{Index, Op};

#[derive(clap::Args)]
pub struct ScaleArgs {
    /// The controller: its id, an unambiguous beginning of it, or its pod's id
    #[arg(value_name = "RC")]
    rc: String,
    /// Number of desired pods
    #[arg(value_name = "N", allow_negative_numbers = true)]
    replicas: i64,
    /// Wait until that many pods are scheduled
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
}

pub(super) struct RcChange {
    /// The record before the change.
    pub(super) before: FoundRc,
    /// The record's new ModifyIndex. `None`: nothing had to change.
    pub(super) index: Option<Index>,
}

pub(super) async fn scale(context: &CommandContext, args: &ScaleArgs) -> anyhow::Result<CliExit> {
    let count = check_count(args.replicas).map_err(|bad| {
        failure(format!("replicas_desired: {}", bad.problem), "give a number from 0 up")
    })?;
    let RcChange { before, index } = set_count(context, &args.rc, i64::from(count)).await?;
    let was = before.desired();
    let is_disabled = before.record.as_ref().is_ok_and(|record| record.disabled);
    context.show(
        &json!({"id": before.id, "pod_id": before.pod_id(), "before": was, "after": count}),
        || match was {
            Some(was) if was == i64::from(count) => format!("{}: {was}, as before", before.title()),
            Some(was) => format!("{}: {was} -> {count}", before.title()),
            None => format!("{}: unreadable -> {count}", before.title()),
        },
    )?;
    if is_disabled {
        context.note(format!(
            "it is disabled, so no pod is added or removed until: rcfarm rc enable {}",
            args.rc
        ));
    } else if args.wait {
        let index = index.unwrap_or(before.entry.modify_index);
        wait::scheduled(context, before.id, index, args.timeout).await?;
    }
    Ok(CliExit::Ok)
}

/// Sets the number of desired pods.
pub(super) async fn set_count(
    context: &CommandContext,
    rc: &str,
    count: i64,
) -> anyhow::Result<RcChange> {
    let details = |found: &FoundRc| Details::ControllerScaled(about(context, found, Some(count)));
    change(context, rc, "replicas_desired", &json!(count), details).await
}

pub(super) async fn switch(
    context: &CommandContext,
    rc: &str,
    disabled: bool,
) -> anyhow::Result<CliExit> {
    let details = |found: &FoundRc| {
        let about = about(context, found, found.desired());
        if disabled {
            Details::ControllerDisabled(about)
        } else {
            Details::ControllerEnabled(about)
        }
    };
    let changed = change(context, rc, "disabled", &json!(disabled), details).await?;
    let word = if disabled { "disabled" } else { "enabled" };
    let before = &changed.before;
    let was = before.record.as_ref().ok().map(|record| record.disabled);
    context.show(
        &json!({"id": before.id, "pod_id": before.pod_id(), "disabled": disabled, "before": was}),
        || match changed.index {
            Some(_) => format!("{}: {word}", before.title()),
            None => format!("{}: {word}, as before", before.title()),
        },
    )
}

/// The audit details of a change of `found`.
pub(super) fn about(
    context: &CommandContext,
    found: &FoundRc,
    after: Option<i64>,
) -> ControllerChange {
    ControllerChange {
        replication_controller_id: found.id,
        pod_id: found.pod_id(),
        availability_zone: found.pod_label("availability_zone"),
        cluster_name: found.pod_label("cluster_name"),
        actor: context.actor(),
        reason: "Requested".to_owned(),
        desired_before: found.desired(),
        desired_after: after,
        record: None,
        changed: Vec::new(),
        orphans: Vec::new(),
    }
}

/// The details with the hash of the record that is written.
fn with_record(mut details: Details, value: &[u8]) -> Details {
    if let Details::ControllerScaled(change)
    | Details::ControllerEnabled(change)
    | Details::ControllerDisabled(change) = &mut details
    {
        change.record = Some(record_hash(value));
    }
    details
}

/// Sets one field of a record by CAS. Reads the record again if it changed meanwhile.
async fn change(
    context: &CommandContext,
    rc: &str,
    field: &'static str,
    to: &Value,
    details: impl Fn(&FoundRc) -> Details,
) -> anyhow::Result<RcChange> {
    let attempt = async || {
        let found = find_to_change(context, rc).await?;
        let Some((value, _)) = with_fields(&found, &[(field, to.clone())])? else {
            return Ok(Some(RcChange { before: found, index: None }));
        };
        let (index, flags) = (found.entry.modify_index, found.entry.flags);
        let details = with_record(details(&found), &value);
        let op = Op::Cas { key: key::rc(found.id), value, flags, index };
        let committed = context.commit([op], &details, Some(found.id)).await?;
        Ok(committed.ok().map(|index| RcChange { before: found, index: Some(index) }))
    };
    context.edit(format!("the record of {rc}"), attempt).await
}

/// The record with some fields changed, and which of them differ. `None`: all have these values already.
///
/// All other fields stay, even unknown and invalid ones, so an invalid record can be corrected this way.
pub(super) fn with_fields(
    found: &FoundRc,
    fields: &[(&'static str, Value)],
) -> anyhow::Result<Option<(Bytes, Vec<&'static str>)>> {
    let mut record = match serde_json::from_slice(&found.entry.value) {
        Ok(Value::Object(record)) => record,
        _ => {
            return Err(failure(
                format!("{}: the value is not a JSON object", found.entry.key),
                "restore it from a good copy, or delete it: rcfarm rc delete --force",
            ));
        }
    };
    let mut changed = Vec::new();
    for (field, to) in fields {
        let before = record.insert((*field).to_owned(), to.clone());
        let is_same = before.as_ref() == Some(to) || before.is_none() && *to == Value::Bool(false);
        changed.extend((!is_same).then_some(*field));
    }
    if changed.is_empty() {
        return Ok(None);
    }
    let plain = serde_json::to_vec(&record)?;
    // In the order of p2's fields, if the record is valid.
    let value = RcRecord::decode(&plain).map_or_else(|_| plain.into(), |record| record.encode());
    Ok(Some((value, changed)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;

    use super::*;
    use crate::cli::context::EDIT_ATTEMPTS;
    use crate::cli::output::{Format, Output};
    use crate::cli::terminal::ColorWhen;
    use rcfarm_api::ids::RcId;
    use rcfarm_emulator::{Emulator, Fate, Request};
    use rcfarm_store::{PutMode, Query, Reader, Store};

    const ID: &str = "f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0";

    fn record(replicas: usize) -> Bytes {
        let value = json!({
            "id": ID, "manifest": "id: web", "node_selector": "", "pod_labels": null,
            "replicas_desired": replicas,
        });
        value.to_string().into()
    }

    /// A context in which another client writes the record before each of the first `times` transactions.
    async fn contended(times: usize) -> (Emulator, CommandContext) {
        let consul = Emulator::default();
        let key = key::rc(ID.parse::<RcId>().unwrap());
        assert!(consul.put(&key, record(1), 7, PutMode::Set).await.unwrap());
        let (other, written) = (consul.clone(), AtomicUsize::new(0));
        let faults = move |request: &Request<'_>| {
            if matches!(request, Request::Txn(_)) {
                let n = written.fetch_add(1, Ordering::SeqCst);
                if n < times {
                    let put = other.put(&key, record(10 + n), 7, PutMode::Set).now_or_never();
                    assert!(put.unwrap().unwrap());
                }
            }
            Fate::DELIVER
        };
        let store = Arc::new(consul.with_faults(Arc::new(faults)));
        let out = Output { format: Format::Json, color: ColorWhen::Never };
        (consul, CommandContext::new(store, out))
    }

    #[tokio::test]
    async fn what_somebody_else_wrote_meanwhile_is_what_is_changed() {
        let (consul, context) = contended(2).await;
        let changed = set_count(&context, ID, 5).await.unwrap();
        assert_eq!(changed.before.desired(), Some(11));
        let entry = consul.get(&key::rc(ID.parse().unwrap()), Query::PLAIN).await.unwrap().value;
        let entry = entry.unwrap();
        assert_eq!(Some(entry.modify_index), changed.index);
        assert_eq!(entry.flags, 7, "flags are somebody's");
        assert_eq!(RcRecord::decode(&entry.value).unwrap().replicas_desired, 5);
    }

    #[tokio::test]
    async fn a_record_that_changes_all_the_time_is_given_up() {
        let (_, context) = contended(EDIT_ATTEMPTS).await;
        let error = set_count(&context, ID, 5).await.err().unwrap().to_string();
        assert!(error.contains("changes all the time"), "{error}");
    }
}
