//! Consul's HTTP API on a model. It has what `rcfarm`, `curl`, and the `consul` command's `kv`, `lock`, `watch`,
//! `catalog` and `members` need (`consul-semantics.md` §1 to §4, §8).
//!
//! Every answer has the header `X-Rcfarm-Embedded: 1`, which a real Consul does not send. A request for something that is
//! not modelled is refused with a text that says so.

mod access;
mod agent;
mod answer;
mod body;
mod catalog;
mod kv;
mod parsed_request;
mod refusal;
mod registration;
mod session;
mod txn;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use hyper1::server::conn::http1;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Emulator;
pub use access::Access;
use answer::moved;
use parsed_request::ParsedRequest;
use refusal::{HttpRefusal, text};

/// Connections that a real agent permits per client address. It closes further ones without an answer
/// (`consul-semantics.md` §6.4).
pub const CONSULS_CONNECTIONS: usize = 200;

/// Time for the head of a request, and for which a connection may be unused. Clients keep theirs for less: this program 10
/// seconds.
const HEAD: Duration = Duration::from_secs(30);

/// Serves the API until dropped. Dropping also closes every connection, as a killed agent does.
///
/// At most `connections` are open at once, of all clients together. An error of one connection affects no other.
pub async fn serve(listener: TcpListener, consul: Emulator, connections: usize) -> Infallible {
    serve_to(listener, consul, connections, Access::default()).await
}

/// As [`serve`], to those whom `access` permits.
pub async fn serve_to(
    listener: TcpListener,
    consul: Emulator,
    connections: usize,
    access: Access,
) -> Infallible {
    let access = Arc::new(access);
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = open.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if open.len() < connections => {
                    let _ = stream.set_nodelay(true);
                    open.spawn(connection(stream, consul.clone(), access.clone()));
                }
                Ok(_) => {}
                Err(error) => accept_failed(&error).await,
            },
        }
    }
}

/// Waits 100 ms after a failed accept: mostly the process has no file descriptors left.
async fn accept_failed(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Serves one connection until either side closes it. (`axum::serve` would write header names in lower case.)
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    consul: Emulator,
    access: Arc<Access>,
) {
    let answer = move |request: Request| {
        let (consul, access) = (consul.clone(), access.clone());
        async move {
            match access.check(&request) {
                Ok(()) => respond(&consul, request).await,
                Err(refusal) => refusal.into_response(),
            }
        }
    };
    let service = TowerToHyperService::new(Router::new().fallback(answer));
    let mut http = http1::Builder::new();
    http.title_case_headers(true).timer(TokioTimer::new()).header_read_timeout(HEAD);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}

/// Answers one request.
pub async fn respond(consul: &Emulator, request: Request) -> Response {
    let mut response = match route(consul, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    };
    response.headers_mut().insert("x-rcfarm-embedded", HeaderValue::from_static("1"));
    response
}

/// Group of paths with one implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Kv,
    Txn,
    Session,
    Agent,
    Catalog,
    Registration,
}

/// Path below `/v1/` (with a trailing `/` if a name follows), methods, endpoint.
const SERVED: &[(&str, &[Method], Endpoint)] = &[
    ("kv/", &[Method::GET, Method::PUT, Method::DELETE], Endpoint::Kv),
    ("txn", &[Method::PUT], Endpoint::Txn),
    ("session/create", &[Method::PUT], Endpoint::Session),
    ("session/renew/", &[Method::PUT], Endpoint::Session),
    ("session/destroy/", &[Method::PUT], Endpoint::Session),
    ("session/info/", &[Method::GET], Endpoint::Session),
    ("session/list", &[Method::GET], Endpoint::Session),
    ("session/node/", &[Method::GET], Endpoint::Session),
    ("status/leader", &[Method::GET], Endpoint::Agent),
    ("status/peers", &[Method::GET], Endpoint::Agent),
    ("agent/self", &[Method::GET], Endpoint::Agent),
    ("agent/members", &[Method::GET], Endpoint::Agent),
    ("agent/services", &[Method::GET], Endpoint::Agent),
    ("agent/checks", &[Method::GET], Endpoint::Agent),
    ("agent/service/register", &[Method::PUT], Endpoint::Agent),
    ("agent/service/deregister/", &[Method::PUT], Endpoint::Agent),
    ("agent/check/pass/", &[Method::PUT], Endpoint::Agent),
    ("agent/check/warn/", &[Method::PUT], Endpoint::Agent),
    ("agent/check/fail/", &[Method::PUT], Endpoint::Agent),
    ("agent/check/update/", &[Method::PUT], Endpoint::Agent),
    ("health/service/", &[Method::GET], Endpoint::Catalog),
    ("health/checks/", &[Method::GET], Endpoint::Catalog),
    ("health/node/", &[Method::GET], Endpoint::Catalog),
    ("health/state/", &[Method::GET], Endpoint::Catalog),
    ("catalog/register", &[Method::PUT], Endpoint::Registration),
    ("catalog/deregister", &[Method::PUT], Endpoint::Registration),
    ("catalog/datacenters", &[Method::GET], Endpoint::Catalog),
    ("catalog/nodes", &[Method::GET], Endpoint::Catalog),
    ("catalog/node/", &[Method::GET], Endpoint::Catalog),
    ("catalog/services", &[Method::GET], Endpoint::Catalog),
    ("catalog/service/", &[Method::GET], Endpoint::Catalog),
];

async fn route(consul: &Emulator, request: Request) -> Result<Response, HttpRefusal> {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let body = body::Body::read(request).await?;
    let path = parsed_request::path(uri.path())?;
    let query = uri.query();
    let clean = parsed_request::cleaned(&path);
    if clean != path || clean == "/v1/kv" {
        return Ok(moved(if clean == "/v1/kv" { "/v1/kv/" } else { &clean }, query));
    }
    let Some(rest) = path.strip_prefix("/v1/") else { return Err(not_served(&path)) };
    let matches = |served: &str| match served.ends_with('/') {
        true => rest.starts_with(served),
        false => rest == served,
    };
    let Some((prefix, methods, endpoint)) = SERVED.iter().find(|(s, ..)| matches(s)) else {
        return Err(not_served(&path));
    };
    if !methods.contains(&method) {
        return Ok(wrong_method(&method, methods));
    }
    let parsed = ParsedRequest::new(prefix, &rest[prefix.len()..], query)?;
    match endpoint {
        Endpoint::Kv => kv::answer(consul, &parsed, &method, &body).await,
        Endpoint::Txn => txn::answer(consul, &parsed, &body).await,
        Endpoint::Session => session::answer(consul, &parsed, &body).await,
        Endpoint::Agent => agent::answer(consul, &parsed, &body).await,
        Endpoint::Catalog => catalog::answer(consul, &parsed).await,
        Endpoint::Registration => registration::answer(consul, &parsed, &body).await,
    }
}

fn not_served(path: &str) -> HttpRefusal {
    let served: Vec<&str> = SERVED.iter().map(|(prefix, ..)| *prefix).collect();
    HttpRefusal::new(
        StatusCode::NOT_FOUND,
        format!(
            "{path} is not served by rcfarm's Consul emulator. Under /v1/ there are: {}",
            served.join(", ")
        ),
    )
}

/// 405, or the answer to `OPTIONS`.
fn wrong_method(method: &Method, methods: &[Method]) -> Response {
    let mut response = match *method {
        Method::OPTIONS => Response::new(Body::empty()),
        _ => text(StatusCode::METHOD_NOT_ALLOWED, format!("method {method} not allowed")),
    };
    let allowed = methods.iter().fold("OPTIONS".to_owned(), |all, m| format!("{all},{m}"));
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

#[cfg(test)]
mod tests {
    use rcfarm_store::time::monotonic;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn half_open_request_is_closed() {
        let (mut client, server) = tokio::io::duplex(1_024);
        client.write_all(b"GET /v1/kv/x HTTP/1.1\r\nHost: x\r\nX-A: ").await.unwrap();
        let started = monotonic();
        connection(server, Emulator::default(), Arc::default()).await;
        assert_eq!(monotonic() - started, HEAD);
    }
}
