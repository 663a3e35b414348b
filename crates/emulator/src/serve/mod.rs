//! Consul's HTTP API in front of a model, as far as `rcfarm`, `curl`, and the `consul` command's `kv`, `lock`,
//! `watch`, `catalog` and `members` need it (`consul-semantics.md` §1 to §4, §8).
//!
//! Every answer carries `X-Rcfarm-Embedded: 1`, so that nobody takes it for the real one. A request for what is
//! not modelled is refused with a text that says so; nothing is half done in silence.

mod agent;
mod answer;
mod ask;
mod body;
mod catalog;
mod kv;
mod session;
mod txn;

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use hyper1::server::conn::http1;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::Embedded;
use answer::{HttpRefusal, moved, text};
use ask::ParsedRequest;

/// Connections that a real agent allows one client address; the next are closed without a byte
/// (`consul-semantics.md` §6.4).
pub const CONSULS_CONNECTIONS: usize = 200;

/// Serves the API until dropped, which also cuts every connection, as a killed agent does.
///
/// `connections` is how many may be open at once, of all clients together. What goes wrong with one connection
/// is that connection's own.
pub async fn serve(listener: TcpListener, consul: Embedded, connections: usize) -> Infallible {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = open.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if open.len() < connections => {
                    open.spawn(connection(stream, consul.clone()));
                }
                Ok(_) => {}
                Err(error) => accept_failed(&error).await,
            },
        }
    }
}

/// Out of file descriptors, mostly: wait for some to be given back.
async fn accept_failed(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// One connection, until either side ends it. Not `axum::serve`: that one writes header names in lower case.
async fn connection(stream: TcpStream, consul: Embedded) {
    let _ = stream.set_nodelay(true);
    let answer = move |request: Request| {
        let consul = consul.clone();
        async move { respond(&consul, request).await }
    };
    let service = TowerToHyperService::new(Router::new().fallback(answer));
    let mut http = http1::Builder::new();
    http.title_case_headers(true);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection ended");
    }
}

/// Answers one request.
pub async fn respond(consul: &Embedded, request: Request) -> Response {
    let mut response = match route(consul, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    };
    response.headers_mut().insert("x-rcfarm-embedded", HeaderValue::from_static("1"));
    response
}

/// What is served: the first segments of a path, and the methods that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Kv,
    Txn,
    Session,
    Agent,
    Catalog,
}

/// The path prefix (ending in `/` where something follows), the methods, the endpoint.
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
    ("catalog/datacenters", &[Method::GET], Endpoint::Catalog),
    ("catalog/nodes", &[Method::GET], Endpoint::Catalog),
    ("catalog/node/", &[Method::GET], Endpoint::Catalog),
    ("catalog/services", &[Method::GET], Endpoint::Catalog),
    ("catalog/service/", &[Method::GET], Endpoint::Catalog),
];

async fn route(consul: &Embedded, request: Request) -> Result<Response, HttpRefusal> {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let body = body::Body::read(request).await?;
    let path = ask::path(uri.path())?;
    let query = uri.query();
    let clean = ask::cleaned(&path);
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
    let ask = ParsedRequest::new(prefix, &rest[prefix.len()..], query)?;
    match endpoint {
        Endpoint::Kv => kv::answer(consul, &ask, &method, &body).await,
        Endpoint::Txn => txn::answer(consul, &ask, &body).await,
        Endpoint::Session => session::answer(consul, &ask, &body).await,
        Endpoint::Agent => agent::answer(consul, &ask, &body).await,
        Endpoint::Catalog => catalog::answer(consul, &ask).await,
    }
}

fn not_served(path: &str) -> HttpRefusal {
    let served: Vec<&str> = SERVED.iter().map(|(prefix, ..)| *prefix).collect();
    HttpRefusal::new(
        StatusCode::NOT_FOUND,
        format!(
            "{path} is not served by rcfarm's embedded Consul. Under /v1/ there are: {}",
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
