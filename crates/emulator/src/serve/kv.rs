//! `/v1/kv/`.

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;

use super::answer::{HttpRefusal, WireKvEntry, at, json, text};
use super::ask::ParsedRequest;
use super::body;
use crate::{Embedded, KvOp, Verb};
use rcfarm_store::{Answer, Index};

pub(super) async fn answer(
    consul: &Embedded,
    ask: &ParsedRequest<'_>,
    method: &Method,
    body: &body::Body,
) -> Result<Response, HttpRefusal> {
    match *method {
        Method::PUT => put(consul, ask, body).await,
        Method::DELETE => delete(consul, ask).await,
        _ => get(consul, ask).await,
    }
}

async fn get(consul: &Embedded, ask: &ParsedRequest<'_>) -> Result<Response, HttpRefusal> {
    let query = ask.query()?;
    if ask.has("keys") {
        let keys = consul.read_keys(ask.name, ask.get("separator"), query).await?;
        if keys.value.is_empty() && !ask.name.is_empty() {
            return Ok(at(keys.index, text(StatusCode::NOT_FOUND, String::new())));
        }
        return Ok(at(keys.index, json(ask, &keys.value)?));
    }
    let Answer { value, index, .. } = if ask.has("recurse") {
        consul.read_tree(ask.name, query).await?
    } else {
        has_name(ask)?;
        let one = consul.read_key(ask.name, query).await?;
        if let Some(entry) = &one.value
            && ask.has("raw")
        {
            return Ok(at(one.index, raw(entry.value.clone())));
        }
        Answer { value: one.value.into_iter().collect(), index: one.index, filtered: false }
    };
    if value.is_empty() {
        return Ok(at(index, text(StatusCode::NOT_FOUND, String::new())));
    }
    let shown: Vec<WireKvEntry<'_>> = value.iter().map(WireKvEntry::from).collect();
    Ok(at(index, json(ask, &shown)?))
}

/// The value alone. What it is, nobody said: a browser must not guess.
fn raw(value: Bytes) -> Response {
    let mut response = Response::new(Body::from(value));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    response
}

async fn put(
    consul: &Embedded,
    ask: &ParsedRequest<'_>,
    body: &body::Body,
) -> Result<Response, HttpRefusal> {
    has_name(ask)?;
    at_most_one(ask, &["cas", "acquire", "release"])?;
    let flags = ask.number("flags")?.unwrap_or(0);
    let mut op = KvOp { flags, ..KvOp::new(Verb::Set, ask.name) };
    if let Some(index) = ask.number("cas")? {
        (op.verb, op.index) = (Verb::Cas, Index(index));
    } else if let Some(session) = ask.get("acquire") {
        (op.verb, op.session) = (Verb::Lock, session.to_owned());
    } else if let Some(session) = ask.get("release") {
        (op.verb, op.session) = (Verb::Unlock, session.to_owned());
    }
    op.value = body.limited("kv_max_value_size")?;
    json(ask, &consul.write_key(op).await?)
}

async fn delete(consul: &Embedded, ask: &ParsedRequest<'_>) -> Result<Response, HttpRefusal> {
    at_most_one(ask, &["recurse", "cas"])?;
    let op = if ask.has("recurse") {
        KvOp::new(Verb::DeleteTree, ask.name)
    } else {
        has_name(ask)?;
        match ask.number("cas")? {
            Some(index) => KvOp { index: Index(index), ..KvOp::new(Verb::DeleteCas, ask.name) },
            None => KvOp::new(Verb::Delete, ask.name),
        }
    };
    json(ask, &consul.write_key(op).await?)
}

fn has_name(ask: &ParsedRequest<'_>) -> Result<(), HttpRefusal> {
    if ask.name.is_empty() { Err(HttpRefusal::bad_request("Missing key name")) } else { Ok(()) }
}

fn at_most_one(ask: &ParsedRequest<'_>, names: &[&str]) -> Result<(), HttpRefusal> {
    if names.iter().filter(|name| ask.has(name)).count() < 2 {
        return Ok(());
    }
    Err(HttpRefusal::bad_request(format!("Conflicting flags: {}", ask.params_sorted())))
}
