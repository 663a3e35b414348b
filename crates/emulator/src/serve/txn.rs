//! `/v1/txn`.

use axum::http::StatusCode;
use axum::response::Response;
use base64::engine::general_purpose::GeneralPurposeConfig;
use base64::engine::{Engine as _, GeneralPurpose};
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::answer::{WireKvEntry, from_leader, json};
use super::body::{self, BodyFields};
use super::parsed_request::ParsedRequest;
use super::refusal::HttpRefusal;
use crate::{Emulator, KvOp, Verb};
use rcfarm_store::{Index, TxnOutcome};

/// Base64 as Go decodes it: padding is required, trailing bits are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Shown<'a> {
    results: Option<Vec<WireResult<'a>>>,
    errors: Option<Vec<WireRefusal<'a>>>,
    #[serde(flatten)]
    of_read: Option<OfRead>,
}

#[derive(Serialize)]
struct WireResult<'a> {
    #[serde(rename = "KV")]
    kv: WireKvEntry<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct WireRefusal<'a> {
    op_index: usize,
    what: &'a str,
}

/// Further fields in the answer to a transaction that only reads.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct OfRead {
    index: u64,
    last_contact: u64,
    known_leader: bool,
    consistency_level: &'static str,
}

pub(super) async fn answer(
    consul: &Emulator,
    parsed: &ParsedRequest<'_>,
    body: &body::Body,
) -> Result<Response, HttpRefusal> {
    body.limited("txn_max_req_len")?;
    let ops = operations(consul, body)
        .map_err(|why| HttpRefusal::bad_request(format!("Failed to parse body: {why}")))?;
    let reads_only = !ops.iter().any(|op| op.verb.writes());
    let outcome = consul.write_txn(ops).await?;
    let (results, errors) = match &outcome {
        TxnOutcome::Committed { entries, .. } => {
            (Some(entries.iter().map(|e| WireResult { kv: e.into() }).collect()), None)
        }
        TxnOutcome::Refused(refusals) => {
            let wire = refusals.iter().map(|r| WireRefusal { op_index: r.op, what: &r.what });
            (None, Some(wire.collect()))
        }
    };
    let refused = errors.is_some();
    let of_read = reads_only.then_some(OfRead {
        index: 0,
        last_contact: 0,
        known_leader: true,
        consistency_level: "",
    });
    let mut response = json(parsed, &Shown { results, errors, of_read })?;
    if refused {
        *response.status_mut() = StatusCode::CONFLICT;
    }
    Ok(if reads_only { from_leader(response) } else { response })
}

/// Parses the operations of a body. Empty ones are dropped, as in Consul.
fn operations(consul: &Emulator, body: &body::Body) -> Result<Vec<KvOp>, String> {
    let items = match body.json()? {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        other => return Err(body::unfit(&other, "", "api.TxnOps")),
    };
    let mut ops = Vec::new();
    for item in items {
        let mut item = BodyFields::of(item)?;
        let kv = item.take("KV");
        let mut others = ["Node", "Service", "Check"].map(|kind| (kind, item.take(kind)));
        item.end()?;
        if let Some(kv) = kv {
            ops.push(operation(kv)?);
        } else if let Some((kind, value)) = others.iter_mut().find(|(_, value)| value.is_some()) {
            let why = refused(kind, value.take(), consul);
            ops.push(KvOp::new(Verb::NotModelled(why), *kind));
        }
    }
    Ok(ops)
}

/// The refusal of an operation on something other than a key.
fn refused(kind: &str, operation: Option<Value>, consul: &Emulator) -> String {
    let names_node = || {
        let mut operation = BodyFields::of(operation?).ok()?;
        let verb = operation.text("Verb").ok()?;
        let node = BodyFields::of(operation.take("Node")?).ok()?.text("Node").ok()?;
        (kind == "Node" && verb == "get").then_some(node)
    };
    match names_node() {
        Some(node) if consul.inspect(|tables| tables.catalog.node(&node).is_none()) => {
            format!("node {node:?} doesn't exist")
        }
        _ => format!("{kind} operations are not modelled by rcfarm's Consul emulator"),
    }
}

fn operation(kv: Value) -> Result<KvOp, String> {
    let mut kv = BodyFields::of(kv)?;
    let verb = Verb::parse(&kv.text("Verb")?);
    let key = kv.text("Key")?;
    let value = BASE64.decode(kv.text("Value")?).map_err(|_| "illegal base64 data".to_owned())?;
    let flags = kv.number("Flags")?;
    let index = Index(kv.number("Index")?);
    let session = kv.text("Session")?;
    kv.take("Namespace");
    kv.end()?;
    Ok(KvOp { verb, key, value: Bytes::from(value), flags, index, session })
}
