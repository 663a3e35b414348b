//! HTTP server of the agent: `GET /pods/<pod>/log` for `rcfarm pod logs`, and `GET /healthz`.
//!
//! There is no authentication: bind the address to a network that only operators can reach.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::logs::{since, tail};
use rcfarm_api::ids::{PodId, check_segment};

/// Interval of reads of a followed log.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
struct LogQuery {
    /// Required if the pod has several.
    launchable: Option<String>,
    /// The last lines to return; 0: the whole log.
    #[serde(default)]
    lines: usize,
    #[serde(default)]
    follow: bool,
}

/// Serves until `shutdown`.
///
/// # Errors
/// Fails if the listener does.
pub async fn serve(
    listener: TcpListener,
    data_dir: PathBuf,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/pods/{pod}/log", get(log))
        .fallback(|| async { (StatusCode::NOT_FOUND, "try /healthz or /pods/<pod>/log\n") })
        .with_state(Arc::new(data_dir));
    axum::serve(listener, app).with_graceful_shutdown(shutdown.cancelled_owned()).await
}

fn refuse(status: StatusCode, why: String) -> Response {
    (status, format!("{why}\n")).into_response()
}

async fn log(
    State(data_dir): State<Arc<PathBuf>>,
    Path(pod): Path<String>,
    Query(query): Query<LogQuery>,
) -> Response {
    // Pod and launchable become parts of a path, so both are validated.
    let Ok(pod) = pod.parse::<PodId>() else {
        return refuse(StatusCode::BAD_REQUEST, format!("{pod:?} is no pod id"));
    };
    let home = data_dir.join("pods").join(pod.as_str());
    let logs = logs_of(&home);
    let name = match &query.launchable {
        Some(name) if check_segment(name).is_ok() => name.clone(),
        Some(name) => {
            return refuse(StatusCode::BAD_REQUEST, format!("{name:?} is no launchable name"));
        }
        None => match logs.as_slice() {
            [one] => one.clone(),
            [] => return refuse(StatusCode::NOT_FOUND, format!("this node has no log of {pod}")),
            many => {
                let why = format!("{pod} has several launchables, choose one: {}", many.join(", "));
                return refuse(StatusCode::BAD_REQUEST, why);
            }
        },
    };
    let path = home.join(format!("{name}.log"));
    let (first, end) = match tail(&path, query.lines) {
        Ok(read) => read,
        Err(error) => {
            let why = format!("the log of {pod}/{name} cannot be read: {error}");
            return refuse(StatusCode::NOT_FOUND, why);
        }
    };
    if !query.follow {
        return Body::from(first).into_response();
    }
    let body = stream::unfold((path, end, Some(first)), |(path, mut end, first)| async move {
        if let Some(first) = first.filter(|first| !first.is_empty()) {
            return Some((Ok::<_, std::io::Error>(Bytes::from(first)), (path, end, None)));
        }
        loop {
            tokio::time::sleep(FOLLOW_INTERVAL).await;
            match since(&path, end) {
                Ok((added, new_end)) => {
                    end = new_end;
                    if !added.is_empty() {
                        return Some((Ok(Bytes::from(added)), (path, end, None)));
                    }
                }
                // The pod was removed.
                Err(_) => return None,
            }
        }
    });
    Body::from_stream(body).into_response()
}

fn logs_of(home: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(home) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut logs: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".log")?.to_owned())).collect();
    logs.sort();
    logs
}
