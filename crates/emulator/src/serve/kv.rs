//! `/v1/kv/`.

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;

use super::answer::{WireKvEntry, at, json};
use super::body;
use super::parsed_request::ParsedRequest;
use super::refusal::{HttpRefusal, text};
use crate::{Emulator, KvOp, Verb};
use rcfarm_store::{Answer, Index};

pub(super) async fn answer(
    consul: &Emulator,
    parsed: &ParsedRequest<'_>,
    method: &Method,
    body: &body::Body,
) -> Result<Response, HttpRefusal> {
    match *method {
        Method::PUT => put(consul, parsed, body).await,
        Method::DELETE => delete(consul, parsed).await,
        _ => get(consul, parsed).await,
    }
}

async fn get(consul: &Emulator, parsed: &ParsedRequest<'_>) -> Result<Response, HttpRefusal> {
    let query = parsed.query()?;
    if parsed.has("keys") {
        let keys = consul.read_keys(parsed.name, parsed.get("separator"), query).await?;
        if keys.value.is_empty() && !parsed.name.is_empty() {
            return Ok(at(keys.index, text(StatusCode::NOT_FOUND, String::new())));
        }
        return Ok(at(keys.index, json(parsed, &keys.value)?));
    }
    let Answer { value, index, .. } = if parsed.has("recurse") {
        consul.read_tree(parsed.name, query).await?
    } else {
        has_name(parsed)?;
        let one = consul.read_key(parsed.name, query).await?;
        if let Some(entry) = &one.value
            && parsed.has("raw")
        {
            return Ok(at(one.index, raw(entry.value.clone())));
        }
        Answer { value: one.value.into_iter().collect(), index: one.index, filtered: false }
    };
    if value.is_empty() {
        return Ok(at(index, text(StatusCode::NOT_FOUND, String::new())));
    }
    let shown: Vec<WireKvEntry<'_>> = value.iter().map(WireKvEntry::from).collect();
    Ok(at(index, json(parsed, &shown)?))
}

/// The value alone. Its content type is unknown, so browsers are told not to guess.
fn raw(value: Bytes) -> Response {
    let mut response = Response::new(Body::from(value));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    response
}

async fn put(
    consul: &Emulator,
    parsed: &ParsedRequest<'_>,
    body: &body::Body,
) -> Result<Response, HttpRefusal> {
    has_name(parsed)?;
    at_most_one(parsed, &["cas", "acquire", "release"])?;
    let flags = parsed.number("flags")?.unwrap_or(0);
    let mut op = KvOp { flags, ..KvOp::new(Verb::Set, parsed.name) };
    if let Some(index) = parsed.number("cas")? {
        (op.verb, op.index) = (Verb::Cas, Index(index));
    } else if let Some(session) = parsed.get("acquire") {
        (op.verb, op.session) = (Verb::Lock, session.to_owned());
    } else if let Some(session) = parsed.get("release") {
        (op.verb, op.session) = (Verb::Unlock, session.to_owned());
    }
    op.value = body.limited("kv_max_value_size")?;
    json(parsed, &consul.write_key(op).await?)
}

async fn delete(consul: &Emulator, parsed: &ParsedRequest<'_>) -> Result<Response, HttpRefusal> {
    at_most_one(parsed, &["recurse", "cas"])?;
    let op = if parsed.has("recurse") {
        KvOp::new(Verb::DeleteTree, parsed.name)
    } else {
        has_name(parsed)?;
        match parsed.number("cas")? {
            Some(index) => KvOp { index: Index(index), ..KvOp::new(Verb::DeleteCas, parsed.name) },
            None => KvOp::new(Verb::Delete, parsed.name),
        }
    };
    json(parsed, &consul.write_key(op).await?)
}

fn has_name(parsed: &ParsedRequest<'_>) -> Result<(), HttpRefusal> {
    if parsed.name.is_empty() { Err(HttpRefusal::bad_request("Missing key name")) } else { Ok(()) }
}

fn at_most_one(parsed: &ParsedRequest<'_>, names: &[&str]) -> Result<(), HttpRefusal> {
    if names.iter().filter(|name| parsed.has(name)).count() < 2 {
        return Ok(());
    }
    Err(HttpRefusal::bad_request(format!("Conflicting flags: {}", parsed.params_sorted())))
}
