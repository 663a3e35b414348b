//! Request bodies: their size, and JSON as Go reads it (field names in any case, `null` for absent).

use std::collections::BTreeMap;

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::refusal::HttpRefusal;
use crate::{MAX_VALUE, body_too_large, duration};

/// Upper bound in bytes of a body that is read to its end. Of a larger one the rest is not read; its client may then
/// miss the answer, because it is still sending when the connection closes.
const DRAINED: usize = 16 << 20;

/// The body of a request. It is read to its end, so that the connection can be used again.
#[derive(Debug)]
pub(super) struct Body {
    bytes: Bytes,
    /// `Content-Length`, or the number of bytes read without one.
    length: usize,
}

impl Body {
    /// Reads the body.
    ///
    /// # Errors
    /// 400 if the client closed the connection within the body.
    pub(super) async fn read(request: Request) -> Result<Self, HttpRefusal> {
        let declared = request.headers().get(CONTENT_LENGTH);
        let declared: Option<usize> = declared.and_then(|n| n.to_str().ok()?.parse().ok());
        match to_bytes(request.into_body(), DRAINED).await {
            Ok(bytes) => Ok(Body { length: declared.unwrap_or(bytes.len()), bytes }),
            Err(_) => match declared.unwrap_or(DRAINED) {
                length if length < DRAINED => {
                    Err(HttpRefusal::bad_request("the body was broken off"))
                }
                length => Ok(Body { length, bytes: Bytes::new() }),
            },
        }
    }

    /// The body, at most 512 KiB.
    ///
    /// # Errors
    /// 413 for a larger one; `option` is the name of the limit in Consul's configuration.
    pub(super) fn limited(&self, option: &str) -> Result<Bytes, HttpRefusal> {
        if self.length <= MAX_VALUE {
            return Ok(self.bytes.clone());
        }
        let see = "See https://www.consul.io/docs/agent/options.html";
        let text = format!("{}. {see}#{option}.", body_too_large(self.length));
        Err(HttpRefusal::new(StatusCode::PAYLOAD_TOO_LARGE, text))
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// The decoder's message.
    pub(super) fn json(&self) -> Result<Value, String> {
        parse(&self.bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A JSON object whose fields are taken one by one.
#[derive(Debug)]
pub(super) struct BodyFields(Map<String, Value>);

impl BodyFields {
    /// # Errors
    /// Go's error message for another JSON value.
    pub(super) fn of(value: Value) -> Result<Self, String> {
        match value {
            Value::Object(map) => Ok(BodyFields(map)),
            other => Err(unfit(&other, "", "object")),
        }
    }

    /// Whether a field exists, even as `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.keys().any(|key| key.eq_ignore_ascii_case(name))
    }

    /// Takes a field; `null` counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        let found = self.0.keys().find(|key| key.eq_ignore_ascii_case(name))?.clone();
        self.0.remove(&found).filter(|value| !value.is_null())
    }

    /// A text; empty when absent.
    pub(super) fn text(&mut self, name: &str) -> Result<String, String> {
        match self.take(name) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(unfit(&other, name, "string")),
        }
    }

    /// A whole number; 0 when absent.
    pub(super) fn number(&mut self, name: &str) -> Result<u64, String> {
        match self.take(name) {
            None => Ok(0),
            Some(value) => value.as_u64().ok_or_else(|| unfit(&value, name, "uint64")),
        }
    }

    pub(super) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, String> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let unfit = unfit(&value, name, "[]string");
        let Value::Array(items) = value else { return Err(unfit) };
        let texts = items.into_iter().map(|item| match item {
            Value::String(text) => Ok(text),
            other => Err(self::unfit(&other, name, "string")),
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn map(&mut self, name: &str) -> Result<BTreeMap<String, String>, String> {
        let Some(value) = self.take(name) else { return Ok(BTreeMap::new()) };
        serde_json::from_value(value.clone()).map_err(|_| unfit(&value, name, "map[string]string"))
    }

    /// A duration in nanoseconds: text in Go's notation, or a number of nanoseconds.
    pub(super) fn duration(&mut self, name: &str) -> Result<Option<i64>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => duration::parse(&text).map(Some),
            #[allow(clippy::cast_possible_truncation)]
            Some(Value::Number(n)) => Ok(n.as_i64().or_else(|| n.as_f64().map(|f| f as i64))),
            Some(other) => Err(unfit(&other, name, "time.Duration")),
        }
    }

    /// Whether no field is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails if a field is left.
    pub(super) fn end(self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("json: unknown field {name:?}")),
        }
    }
}

fn parse(body: &[u8]) -> Result<Value, String> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err("EOF".to_owned());
    }
    // Text after the first value is ignored, as in Go.
    let mut reader = serde_json::Deserializer::from_slice(body);
    Value::deserialize(&mut reader).map_err(|error| error.to_string())
}

pub(super) fn unfit(value: &Value, name: &str, wanted: &str) -> String {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("json: cannot unmarshal {kind} into Go struct field .{name} of type {wanted}")
}
