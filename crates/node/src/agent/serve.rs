//! Logs of pods over HTTP, for `rcfarm pod logs`: `GET /pods/<pod>/log`, and `GET /healthz`.
//!
//! The agent serves them on a socket in its data directory, which its user alone may use. On the network they need a
//! token. A request may name the node that it is meant for, because data directories of machines have equal names.
//!
//! The header [`LOG_POSITION`] of an answer is the position at which it begins. A client that counts the bytes after it
//! goes on with `at=<position>` once its connection is lost. With `split` or `at` an answer ends where the log is
//! rotated; if that is known when it begins, the header [`LOG_NEXT`] is the position that follows.
//!
//! With `previous` an answer has the output of the start before the present one, and the header [`LOG_PREVIOUS`].
//!
//! `uid` and `attempt` name a pod of a job. Its log is the present one, or the one that is kept because the pod is gone:
//! then the answer has the header [`LOG_ENDED`].

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as UrlPath, Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
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
use super::log_position::{
    LogPosition, LogSection, chunk_at, end_of, last_section, section_at, section_between,
};
use super::log_starts;
use super::state::{DataDir, StoredPod, read};
use crate::http::{HttpLimits, HttpListener, serve};
use rcfarm_api::ids::{NodeName, PodId, check_segment};
use rcfarm_api::job::identity::identity_in;

/// Header of an answer: [`LogPosition`] at which it begins.
pub const LOG_POSITION: &str = "rcfarm-log-position";
/// Header of an answer: position that follows its end.
pub const LOG_NEXT: &str = "rcfarm-log-next";
/// Header of an answer: nothing more will be written to this log.
pub const LOG_ENDED: &str = "rcfarm-log-ended";
/// Header of an answer: it has the output of the start before the present one. Agents of older versions do not know the
/// parameter.
pub const LOG_PREVIOUS: &str = "rcfarm-log-previous";
/// Logs that a server sends at once. The other connections of [`HttpLimits`] are left to `/healthz` and to refusals.
const LOGS_AT_ONCE: usize = 48;
/// Interval of reads of a followed log.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of reads of a log that is being rotated, and their number before the request fails.
const ROTATION_INTERVAL: Duration = Duration::from_millis(50);
const ROTATION_READS: u32 = 60;
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
    /// Position to begin at, in place of `lines`.
    at: Option<String>,
    /// End the answer where the log was rotated.
    #[serde(default)]
    split: bool,
    #[serde(default)]
    follow: bool,
    /// Only the output of the start before the present one.
    #[serde(default)]
    previous: bool,
    /// Attempt at a job's member, with the job's uid.
    attempt: Option<u32>,
    uid: Option<u64>,
}

/// What an answer sends of a log.
struct FoundLog {
    path: PathBuf,
    /// Inode of the log: the log of a later pod at its path has another one.
    inode: u64,
    start: LogPosition,
    /// `None`: until the pod is removed.
    end: Option<LogPosition>,
    /// Whether it ends where the log is rotated.
    is_split: bool,
    /// What follows, if it ends at a rotation that was made before.
    next: Option<LogPosition>,
    is_ended: bool,
    is_previous: bool,
}

impl FoundLog {
    fn headers(&self) -> [Option<(HeaderName, String)>; 4] {
        let header = |name, value| (HeaderName::from_static(name), value);
        [
            Some(header(LOG_POSITION, self.start.to_string())),
            self.next.map(|next| header(LOG_NEXT, next.to_string())),
            self.is_ended.then(|| header(LOG_ENDED, "true".to_owned())),
            self.is_previous.then(|| header(LOG_PREVIOUS, "true".to_owned())),
        ]
    }
}

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
            .fallback(|| async {
                (StatusCode::NOT_FOUND, "try /healthz, /readyz, /metrics or /pods/<pod>/log\n")
            })
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

    /// Directory of the logs of a pod, and whether nothing more will be written to them.
    fn home(&self, pod: &PodId, query: &LogQuery) -> Result<(PathBuf, bool), Refusal> {
        let present = self.data_dir.join("pods").join(pod.as_str());
        let (uid, attempt) = match (query.uid, query.attempt) {
            (Some(uid), Some(attempt)) => (uid, attempt),
            (None, None) => return Ok((present, false)),
            _ => {
                let why = "uid and attempt go together".to_owned();
                return Err((StatusCode::BAD_REQUEST, why));
            }
        };
        let stored: Option<StoredPod> = read(&present.join("pod.json"));
        let identity = stored.and_then(|stored| identity_in(stored.manifest.as_bytes()));
        let is_present =
            identity.is_some_and(|identity| (identity.uid.0.0, identity.attempt) == (uid, attempt));
        Ok(match is_present {
            true => (present, false),
            false => (of_attempt(&self.data_dir, pod, uid, attempt), true),
        })
    }

    /// The part of a log that was asked for. `None`: it may be rotated or moved at this moment.
    fn find(&self, pod: &str, query: &LogQuery) -> Result<Option<FoundLog>, Refusal> {
        if query.node.as_deref().is_some_and(|node| node != self.node.as_str()) {
            let why = format!("this is the agent of {}", self.node);
            return Err((StatusCode::MISDIRECTED_REQUEST, why));
        }
        // Pod and launchable become parts of a path, so both are validated.
        let bad = |why| (StatusCode::BAD_REQUEST, why);
        let pod: PodId = pod.parse().map_err(|_| bad(format!("{pod:?} is no pod id")))?;
        let at = query.at.as_deref().map(str::parse).transpose().map_err(bad)?;
        let (home, is_ended) = self.home(&pod, query)?;
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
        let is_followed = query.follow && !is_ended;
        let read = match query.previous {
            false => found(path, query.lines, at, query.split || at.is_some(), is_followed),
            true if query.follow || at.is_some() => {
                return Err(bad("previous goes with neither follow nor at".to_owned()));
            }
            true => found_previous(&home.join(&name), path, query.lines),
        };
        match read {
            // The pod may have made place for another one.
            Ok(found) => {
                let is_same = self.home(&pod, query)? == (home, is_ended);
                Ok(is_same.then_some(FoundLog { is_ended, ..found }))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => {
                let why = format!("the log of {pod}/{name} cannot be read: {error}");
                Err((StatusCode::NOT_FOUND, why))
            }
        }
    }
}

/// The part of the log at `path` from `at` on, or from its last `lines` lines on.
fn found(
    path: PathBuf,
    lines: usize,
    at: Option<LogPosition>,
    is_split: bool,
    is_followed: bool,
) -> io::Result<FoundLog> {
    let section = match at {
        Some(at) => section_at(&path, at)?,
        None => last_section(&path, lines)?,
    };
    let next = section.next.filter(|_| is_split);
    let end = match (is_followed && next.is_none(), is_split) {
        (true, _) => None,
        (false, true) => Some(section.end),
        (false, false) => Some(end_of(&path)?),
    };
    let (inode, start) = (section.inode, section.start);
    let (is_ended, is_previous) = (false, false);
    Ok(FoundLog { path, inode, start, end, is_split, next, is_ended, is_previous })
}

/// What the start before the present one wrote to the log at `path`, from its last `lines` lines on. `dir`: that of the
/// launchable.
fn found_previous(dir: &Path, path: PathBuf, lines: usize) -> io::Result<FoundLog> {
    let Some((from, to)) = log_starts::previous(dir) else {
        return Err(io::Error::other("no start before the present one is known"));
    };
    let LogSection { start, end, next, inode } = section_between(&path, lines, from, to)?;
    let (is_split, is_ended, is_previous) = (false, false, true);
    Ok(FoundLog { path, inode, start, end: Some(end), is_split, next, is_ended, is_previous })
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
    let found = find(logs, pod, query, headers).await;
    let found = found.and_then(|found| match free.try_acquire_owned() {
        Ok(permit) => Ok((found, permit)),
        Err(_) => {
            let why = format!("this agent already sends {LOGS_AT_ONCE} logs");
            Err((StatusCode::SERVICE_UNAVAILABLE, why))
        }
    });
    match found {
        Ok((found, permit)) => {
            let headers = HeaderMap::from_iter(
                found
                    .headers()
                    .into_iter()
                    .flatten()
                    .filter_map(|(name, value)| Some((name, value.try_into().ok()?))),
            );
            (headers, body(found, permit)).into_response()
        }
        Err((status, why)) => (status, format!("{why}\n")).into_response(),
    }
}

/// Finds a log once it is not being rotated or moved.
async fn find(
    logs: Arc<Logs>,
    pod: String,
    query: LogQuery,
    headers: HeaderMap,
) -> Result<FoundLog, Refusal> {
    let request = Arc::new((logs, pod, query, headers));
    for _ in 0..ROTATION_READS {
        let request = request.clone();
        let found = blocking(move || {
            let (logs, pod, query, headers) = &*request;
            logs.server.permits(headers)?;
            logs.server.find(pod, query)
        });
        match found.await? {
            Some(found) => return Ok(found),
            None => tokio::time::sleep(ROTATION_INTERVAL).await,
        }
    }
    Err((StatusCode::SERVICE_UNAVAILABLE, "the log is rotated all the time".to_owned()))
}

/// What was found of a log. It holds the permit.
fn body(found: FoundLog, permit: OwnedSemaphorePermit) -> Body {
    let at = found.start;
    Body::from_stream(stream::unfold((found, at, permit), |(found, mut at, permit)| async move {
        loop {
            let is_in_end = found.end.is_some_and(|end| end.generation == at.generation);
            if is_in_end && found.end.is_some_and(|end| at.offset >= end.offset) {
                return None;
            }
            let path = found.path.clone();
            let mut chunk = match spawn_blocking(move || chunk_at(&path, at)).await.ok()? {
                Ok(chunk) => chunk,
                // It may be rotated at this moment.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(ROTATION_INTERVAL).await;
                    continue;
                }
                Err(_) => return None,
            };
            if chunk.inode != found.inode || found.is_split && chunk.from != at {
                return None;
            }
            if let Some(end) = found.end.filter(|end| end.generation == chunk.from.generation) {
                let rest = end.offset.saturating_sub(chunk.from.offset);
                chunk.output.truncate(usize::try_from(rest).unwrap_or(usize::MAX));
            }
            at = chunk.from.plus(chunk.output.len());
            match (chunk.output.is_empty(), found.end) {
                (false, _) => {
                    let output = Bytes::from(chunk.output);
                    return Some((Ok::<_, io::Error>(output), (found, at, permit)));
                }
                // Its program has truncated it meanwhile.
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
