//! A farm of a newer version beside those of this one: the same program, but its writes have a field that this version
//! does not know.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::facts::Report;
use crate::reached::{Occasion, met};
use rcfarm_api::key;
use rcfarm_emulator::KvChange;
use rcfarm_store::{Entry, Op, Prefix};

/// The field that this version does not know.
const FIELD: &str = "of_tomorrow";

/// Prefixes whose values farms write and whose unknown fields they keep.
fn trees() -> [Prefix; 8] {
    [
        key::rc_statuses(),
        key::job_statuses(),
        key::pod_groups(),
        key::pod_group_statuses(),
        key::queue_statuses(),
        key::allocations(),
        key::cron_job_statuses(),
        key::job_flow_statuses(),
    ]
}

fn is_ours(text: &str) -> bool {
    let trees = trees();
    trees.iter().any(|tree| tree.tail(text).is_some()) || is_presence(text)
}

/// Each farm writes its own presence, and knows all of its fields.
fn is_presence(text: &str) -> bool {
    key::farms().tail(text).is_some()
}

/// A value as the newer version writes it.
fn dressed(text: &str, value: &Bytes) -> Bytes {
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(value) else { return value.clone() };
    if !is_ours(text) {
        return value.clone();
    }
    fields.insert(FIELD.to_owned(), json!({"n": 1}));
    if is_presence(text) {
        fields.insert("version".to_owned(), json!("99.0.0"));
    }
    let status = key::rc_statuses().tail(text).is_some();
    if let Some(Value::Array(conditions)) = fields.get_mut("conditions").filter(|_| status) {
        conditions.push(json!({"type": "Tomorrow", "status": "Perhaps"}));
    }
    Value::Object(fields).to_string().into()
}

/// A value as the newer version understands it.
fn undressed(text: &str, value: &Bytes) -> Bytes {
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(value) else { return value.clone() };
    if !is_ours(text) || fields.remove(FIELD).is_none() {
        return value.clone();
    }
    Value::Object(fields).to_string().into()
}

/// A transaction as the newer version writes it.
#[must_use]
pub fn written(ops: &[Op]) -> Vec<Op> {
    let mut ops = ops.to_vec();
    for op in &mut ops {
        if let Op::Set { key, value, .. }
        | Op::Cas { key, value, .. }
        | Op::Lock { key, value, .. } = op
        {
            *value = dressed(key.as_str(), value);
        }
    }
    ops
}

/// An entry as the newer version reads it.
pub fn read(entry: &mut Entry) {
    entry.value = undressed(&entry.key, &entry.value);
}

/// Unknown fields survive writes of an older version, except where the record is about another job or group of the
/// name.
pub fn check(changes: &[KvChange], report: Report<'_>) {
    let says = |entry: &Arc<Entry>| entry.value.windows(FIELD.len()).any(|w| w == FIELD.as_bytes());
    for change in changes {
        let (Some(before), Some(after)) = (&change.before, &change.after) else { continue };
        if is_presence(&change.key) || !says(before) || about(before) != about(after) {
            continue;
        }
        met(Occasion::WrittenOver);
        if !says(after) {
            let text = String::from_utf8_lossy(&after.value);
            report(12, format!("{}: what a newer farm had written is gone: {text}", change.key));
        }
    }
}

/// Which record of its name a status is about.
fn about(entry: &Entry) -> Option<Value> {
    let value: Value = serde_json::from_slice(&entry.value).ok()?;
    value.get("uid").or_else(|| value.get("of")).cloned()
}
