//! Successful answers: headers and JSON.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};

use super::parsed_request::ParsedRequest;
use super::refusal::{HttpRefusal, text};
use rcfarm_store::{Entry, Index};

/// A redirect (301) to another path with the same query.
pub(super) fn moved(path: &str, query: Option<&str>) -> Response {
    let query = query.map(|q| format!("?{q}")).unwrap_or_default();
    let mut response = text(StatusCode::MOVED_PERMANENTLY, String::new());
    if let Ok(location) = HeaderValue::from_str(&format!("{}{query}", encoded(path))) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// An answer in JSON, indented if the request says `?pretty`.
pub(super) fn json(
    parsed: &ParsedRequest<'_>,
    value: &impl Serialize,
) -> Result<Response, HttpRefusal> {
    let written = if parsed.pretty() {
        serde_json::to_vec_pretty(value).map(|mut text| {
            text.push(b'\n');
            text
        })
    } else {
        serde_json::to_vec(value)
    };
    let written = written
        .map_err(|error| HttpRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let mut response = Response::new(Body::from(written));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Adds the headers of every read, `X-Consul-Index` among them.
pub(super) fn at(index: Index, mut response: Response) -> Response {
    response.headers_mut().insert("x-consul-index", HeaderValue::from(index.0));
    from_leader(response)
}

/// Adds the headers of an answer by the leader.
pub(super) fn from_leader(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert("x-consul-knownleader", HeaderValue::from_static("true"));
    headers.insert("x-consul-lastcontact", HeaderValue::from_static("0"));
    response
}

/// A key in Consul's JSON.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct WireKvEntry<'a> {
    lock_index: u64,
    key: &'a str,
    flags: u64,
    #[serde(serialize_with = "base64_or_null")]
    value: &'a [u8],
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    create_index: Index,
    modify_index: Index,
}

impl<'a> From<&'a Entry> for WireKvEntry<'a> {
    fn from(entry: &'a Entry) -> Self {
        WireKvEntry {
            lock_index: entry.lock_index,
            key: &entry.key,
            flags: entry.flags,
            value: &entry.value,
            session: entry.session.as_ref().map(|s| s.as_str()),
            create_index: entry.create_index,
            modify_index: entry.modify_index,
        }
    }
}

impl<'a> From<&'a Arc<Entry>> for WireKvEntry<'a> {
    fn from(entry: &'a Arc<Entry>) -> Self {
        WireKvEntry::from(&**entry)
    }
}

fn base64_or_null<S: Serializer>(value: &&[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match value.is_empty() {
        true => serializer.serialize_none(),
        false => serializer.collect_str(&Base64Display::new(value, &STANDARD)),
    }
}

/// A path, percent-encoded for a `Location` header.
fn encoded(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/$&+,:;=@".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}
