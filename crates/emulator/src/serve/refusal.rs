//! Refusals: answers that are no success, with Consul's status codes and messages.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use rcfarm_store::StoreError;

/// An answer other than success: status and text.
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

    /// A body that is not as the endpoint decodes it.
    pub(super) fn undecodable(why: String) -> Self {
        HttpRefusal::bad_request(format!("Request decode failed: {why}"))
    }

    pub(super) fn into_response(self) -> Response {
        let mut response = text(self.status, self.text);
        if self.status == StatusCode::PAYLOAD_TOO_LARGE {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Consul's own status and message, so that a client classifies the error as it would Consul's
/// (`consul-semantics.md` §6.2).
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

/// An answer in plain text; without a content type if it is empty.
pub(super) fn text(status: StatusCode, text: String) -> Response {
    let plain = (!text.is_empty()).then(|| HeaderValue::from_static("text/plain; charset=utf-8"));
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    if let Some(plain) = plain {
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
    }
    response
}
