//! How answers look on the wire.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};

use super::ask::{ParsedRequest, encoded};
use rcfarm_store::{Entry, Index, StoreError};

/// A request that is refused, or that failed.
#[derive(Debug)]
pub(super) struct HttpRefusal {
    status: StatusCode,
    text: String,
}

impl HttpRefusal {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        HttpRefusal { status, text: text.into() }
    }

    pub(super) fn bad_request(text: impl Into<String>) -> Self {
        HttpRefusal::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn into_response(self) -> Response {
        let mut response = text(self.status, self.text);
        if self.status == StatusCode::PAYLOAD_TOO_LARGE {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Errors in Consul's words, so that a client sorts them as it sorts the real ones (`consul-semantics.md` §6.2).
impl From<StoreError> for HttpRefusal {
    fn from(error: StoreError) -> Self {
        let (status, text) = match error {
            StoreError::Rejected { status, body } => (status, body),
            StoreError::SessionGone { session } => {
                (500, format!("invalid session {:?}", session.as_str()))
            }
            StoreError::TooLarge { detail } => (413, detail),
            StoreError::Overloaded { status } => (status, String::new()),
            StoreError::NoLeader => (500, "No cluster leader".to_owned()),
            StoreError::Forbidden { .. } => (403, "Permission denied".to_owned()),
            StoreError::Unreachable { .. } => (500, "lead thread didn't get connection".to_owned()),
            StoreError::Timeout { .. }
            | StoreError::Interrupted { .. }
            | StoreError::Decode { .. } => (500, "rpc error making call: EOF".to_owned()),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        HttpRefusal::new(status, text)
    }
}

/// A line of text.
pub(super) fn text(status: StatusCode, text: String) -> Response {
    let plain = (!text.is_empty()).then(|| HeaderValue::from_static("text/plain; charset=utf-8"));
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    if let Some(plain) = plain {
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
    }
    response
}

/// 301 to another path, with the same query.
pub(super) fn moved(path: &str, query: Option<&str>) -> Response {
    let query = query.map(|q| format!("?{q}")).unwrap_or_default();
    let mut response = text(StatusCode::MOVED_PERMANENTLY, String::new());
    if let Ok(location) = HeaderValue::from_str(&format!("{}{query}", encoded(path))) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// JSON.
pub(super) fn json(
    ask: &ParsedRequest<'_>,
    value: &impl Serialize,
) -> Result<Response, HttpRefusal> {
    let written = if ask.pretty() {
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

/// Puts on what every read carries.
pub(super) fn at(index: Index, mut response: Response) -> Response {
    response.headers_mut().insert("x-consul-index", HeaderValue::from(index.0));
    from_leader(response)
}

/// Says that the leader answered.
pub(super) fn from_leader(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert("x-consul-knownleader", HeaderValue::from_static("true"));
    headers.insert("x-consul-lastcontact", HeaderValue::from_static("0"));
    response
}

/// A key as Consul shows it.
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
