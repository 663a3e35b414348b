//! Logs of pods over HTTP, for `rcfarm pod logs`: `GET /pods/<pod>/log`, and `GET /healthz`.
//!
//! The agent serves them on a socket in its data directory, which its user alone may use. On the network they need a
//! token. A request may name the node that it is meant for, because data directories of machines have equal names.
//!
//! The header [`LOG_OFFSET`] of an answer is the byte offset at which it begins. A client that counts the bytes after it
//! goes on with `from=<offset>` once its connection is lost.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as UrlPath, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use serde::Deserialize;
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use super::AgentSettings;
use super::ended_logs::of_attempt;
use super::logs::{LogPart, parts, since, tail};
use super::state::DataDir;
use crate::http::{HttpLimits, HttpListener, serve};
use rcfarm_api::ids::{NodeName, PodId, check_segment};

/// Header of an answer: byte offset in the log at which it begins.
pub const LOG_OFFSET: &str = "rcfarm-log-offset";
/// Logs that a server sends at once. The other connections of [`HttpLimits`] are left to `/healthz` and to refusals.
const LOGS_AT_ONCE: usize = 48;
/// Interval of reads of a followed log.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);
/// Shortest token, in bytes.
const SHORTEST_TOKEN: usize = 16;

/// Who may read logs.
#[derive(Debug, Clone)]
pub enum LogAccess {
    /// Everybody who can connect.
    Connected,
    /// Who sends the token in this file, as `Authorization: Bearer TOKEN`. It is read at each request.
    Token(PathBuf),
    /// Nobody: only `/healthz` is served.
    Nobody,
}

/// A server of logs.
#[derive(Debug, Clone)]
pub struct LogServer {
    /// The node whose logs these are.
    pub node: NodeName,
    /// Only files below it are served.
    pub data_dir: PathBuf,
    pub access: LogAccess,
}

#[derive(Deserialize)]
struct LogQuery {
    /// The node that is meant.
    node: Option<String>,
    /// Required if the pod has several.
    launchable: Option<String>,
    /// The last lines to return; 0: the whole log.
    #[serde(default)]
    lines: usize,
    /// Byte offset to begin at, in place of `lines`. A log that is shorter was truncated and is sent whole.
    from: Option<u64>,
    #[serde(default)]
    follow: bool,
    /// Attempt at a job's member whose pod is gone, with the job's uid.
    attempt: Option<u32>,
    uid: Option<u64>,
}

/// Where the bytes of an answer are.
enum FoundLog {
    /// From a byte offset on, until the pod is removed.
    Followed(PathBuf, u64),
    /// Between two byte offsets.
    Range(PathBuf, u64, u64),
    /// The last lines, those of rotated files included.
    Parts(Vec<LogPart>),
}

impl FoundLog {
    /// Byte offset in the log at which it begins; `None`: it begins in a rotated file.
    fn offset(&self) -> Option<u64> {
        match self {
            FoundLog::Followed(_, start) | FoundLog::Range(_, start, _) => Some(*start),
            FoundLog::Parts(parts) => match &parts[..] {
                [one] => Some(one.start()),
                _ => None,
            },
        }
    }
}

/// State of the routes.
struct Logs {
    server: LogServer,
    /// One permit for each log that may be sent.
    free: Arc<Semaphore>,
}

/// Why a log is not served.
type Refusal = (StatusCode, String);

impl LogServer {
    /// Serves until `shutdown`.
    pub async fn run(self, listener: HttpListener, shutdown: CancellationToken) {
        self.run_with(Router::new(), listener, shutdown).await;
    }

    /// Serves these routes, too.
    pub async fn run_with(self, more: Router, listener: HttpListener, shutdown: CancellationToken) {
        let app = Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/pods/{pod}/log", get(log))
            .fallback(|| async { (StatusCode::NOT_FOUND, "try /healthz or /pods/<pod>/log\n") })
            .with_state(Arc::new(Logs {
                server: self,
                free: Arc::new(Semaphore::new(LOGS_AT_ONCE)),
            }))
            .merge(more);
        serve(listener, app, HttpLimits::default(), shutdown).await;
    }

    fn permits(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let token = match &self.access {
            LogAccess::Connected => return Ok(()),
            LogAccess::Token(path) => read_token(path),
            LogAccess::Nobody => {
                let why = "logs need --http-token-file here";
                return Err((StatusCode::UNAUTHORIZED, why.to_owned()));
            }
        };
        // Anybody may ask: the file and what is wrong with it are the operator's.
        let token = token.map_err(|why| {
            warn!(why, "no logs are served on the network");
            let why = "this node's token cannot be read; its log says why";
            (StatusCode::UNAUTHORIZED, why.to_owned())
        })?;
        let given = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        match given.and_then(|given| given.strip_prefix(b"Bearer ")) {
            Some(given) if is_equal(given, token.as_bytes()) => Ok(()),
            _ => Err((StatusCode::UNAUTHORIZED, "logs need this node's token".to_owned())),
        }
    }

    /// The part of a log that was asked for.
    fn find(&self, pod: &str, query: &LogQuery) -> Result<FoundLog, Refusal> {
        if query.node.as_deref().is_some_and(|node| node != self.node.as_str()) {
            let why = format!("this is the agent of {}", self.node);
            return Err((StatusCode::MISDIRECTED_REQUEST, why));
        }
        // Pod and launchable become parts of a path, so both are validated.
        let bad = |why| (StatusCode::BAD_REQUEST, why);
        let pod: PodId = pod.parse().map_err(|_| bad(format!("{pod:?} is no pod id")))?;
        let home = match (query.attempt, query.uid) {
            (Some(attempt), Some(uid)) => of_attempt(&self.data_dir, &pod, uid, attempt),
            _ => self.data_dir.join("pods").join(pod.as_str()),
        };
        let name = match &query.launchable {
            Some(name) if check_segment(name).is_ok() => name.clone(),
            Some(name) => return Err(bad(format!("{name:?} is no launchable name"))),
            None => match logs_of(&home).as_slice() {
                [one] => one.clone(),
                [] => {
                    return Err((StatusCode::NOT_FOUND, format!("this node has no log of {pod}")));
                }
                many => {
                    let names = many.join(", ");
                    return Err(bad(format!("{pod} has several launchables, choose one: {names}")));
                }
            },
        };
        let path = home.join(format!("{name}.log"));
        let absent = |error| {
            (StatusCode::NOT_FOUND, format!("the log of {pod}/{name} cannot be read: {error}"))
        };
        if !query.follow && query.from.is_none() {
            return Ok(FoundLog::Parts(parts(&path, query.lines).map_err(absent)?));
        }
        let lines = if query.from.is_some() { 0 } else { query.lines };
        let (start, end) = tail(&path, lines).map_err(absent)?;
        let start = query.from.filter(|from| *from <= end).unwrap_or(start);
        Ok(match query.follow {
            true => FoundLog::Followed(path, start),
            false => FoundLog::Range(path, start, end),
        })
    }
}

/// Binds the socket of an agent. Its user alone may connect.
fn bind_socket(path: &Path) -> io::Result<HttpListener> {
    // It is the last agent's: this one holds the lock of the data directory.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(HttpListener::Unix(listener))
}

/// Serves the logs of an agent on its socket until the guard is dropped.
pub(super) fn on_socket(settings: &AgentSettings, data: &DataDir) -> Option<DropGuard> {
    settings.serves_logs.then_some(())?;
    let path = data.log_socket();
    let listener = match bind_socket(&path) {
        Ok(listener) => listener,
        Err(error) => {
            warn!(%error, socket = %path.display(), "logs are not served on this machine");
            return None;
        }
    };
    let (node, data_dir) = (settings.name.clone(), data.root().to_owned());
    let shutdown = CancellationToken::new();
    let server = LogServer { node, data_dir, access: LogAccess::Connected };
    tokio::spawn(server.run(listener, shutdown.clone()));
    Some(shutdown.drop_guard())
}

/// Reads the token of a file.
///
/// # Errors
/// Text: it cannot be read, or is too short.
pub fn read_token(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("the token in {} cannot be read: {error}", path.display()))?;
    let token = text.trim();
    match token.len() >= SHORTEST_TOKEN {
        true => Ok(token.to_owned()),
        false => Err(format!("{} needs a token of {SHORTEST_TOKEN} bytes or more", path.display())),
    }
}

/// Compares in a time that depends on the lengths alone.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| std::hint::black_box(differ | (a ^ b)));
    a.len() == b.len() && differ == 0
}

async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let read = spawn_blocking(read).await;
    read.unwrap_or_else(|error| Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())))
}

async fn log(
    State(logs): State<Arc<Logs>>,
    UrlPath(pod): UrlPath<String>,
    Query(query): Query<LogQuery>,
    headers: HeaderMap,
) -> Response {
    let free = logs.free.clone();
    let found = blocking(move || {
        logs.server.permits(&headers)?;
        logs.server.find(&pod, &query)
    });
    let found = found.await.and_then(|found| match free.try_acquire_owned() {
        Ok(permit) => Ok((found, permit)),
        Err(_) => {
            let why = format!("this agent already sends {LOGS_AT_ONCE} logs");
            Err((StatusCode::SERVICE_UNAVAILABLE, why))
        }
    });
    match found {
        Ok((found, permit)) => {
            let offset = found.offset().map(|offset| [(LOG_OFFSET, offset.to_string())]);
            let body = match found {
                FoundLog::Followed(path, start) => body(path, start, None, permit),
                FoundLog::Range(path, start, end) => body(path, start, Some(end), permit),
                FoundLog::Parts(parts) => body_of(parts, permit),
            };
            match offset {
                Some(offset) => (offset, body).into_response(),
                None => body.into_response(),
            }
        }
        Err((status, why)) => (status, format!("{why}\n")).into_response(),
    }
}

/// Parts of a log, one after the other. It holds the permit.
fn body_of(parts: Vec<LogPart>, permit: OwnedSemaphorePermit) -> Body {
    let state = (VecDeque::from(parts), permit);
    Body::from_stream(stream::unfold(state, |(mut parts, permit)| async move {
        let read = spawn_blocking(move || {
            while let Some(part) = parts.front_mut() {
                let read = part.read().ok()?;
                if !read.is_empty() {
                    return Some((read, parts));
                }
                parts.pop_front();
            }
            None
        });
        let (read, parts) = read.await.ok()??;
        Some((Ok::<_, io::Error>(Bytes::from(read)), (parts, permit)))
    }))
}

/// A log from `start` to `end`; without an end it is followed until the pod is removed. It holds the permit.
fn body(path: PathBuf, start: u64, end: Option<u64>, permit: OwnedSemaphorePermit) -> Body {
    let state = (path, start, permit);
    Body::from_stream(stream::unfold(state, move |(path, mut at, permit)| async move {
        loop {
            if end.is_some_and(|end| at >= end) {
                return None;
            }
            let file = path.clone();
            let (mut read, next) = spawn_blocking(move || since(&file, at)).await.ok()?.ok()?;
            if let Some(end) = end {
                let rest = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
                read.truncate(rest);
            }
            at = next;
            match (read.is_empty(), end) {
                (false, _) => {
                    return Some((Ok::<_, io::Error>(Bytes::from(read)), (path, at, permit)));
                }
                // It was truncated meanwhile.
                (true, Some(_)) => return None,
                (true, None) => tokio::time::sleep(FOLLOW_INTERVAL).await,
            }
        }
    }))
}

fn logs_of(home: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(home) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut logs: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".log")?.to_owned())).collect();
    logs.sort();
    logs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_no_file_of_the_node() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let server = LogServer {
            node: "n1".parse().unwrap(),
            data_dir: directory.path().to_owned(),
            access: LogAccess::Token(path.clone()),
        };
        for text in [None, Some("short")] {
            if let Some(text) = text {
                fs::write(&path, text).unwrap();
            }
            let (status, why) = server.permits(&HeaderMap::new()).unwrap_err();
            assert_eq!(status, StatusCode::UNAUTHORIZED);
            assert!(!why.contains(directory.path().to_str().unwrap()), "{why}");
        }
    }

    #[test]
    fn tokens_are_equal_in_length_and_bytes() {
        for (a, b, equal) in
            [("abc", "abc", true), ("abc", "abd", false), ("ab", "abc", false), ("", "", true)]
        {
            assert_eq!(is_equal(a.as_bytes(), b.as_bytes()), equal, "{a} {b}");
        }
    }
}
