//! `GET /pods/<pod>/log`: the logs of this node's pods, for `rcfarm pod logs`. And `/healthz`.
//!
//! Whoever can reach the address can read them, so bind it to a network that only operators can reach.

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

/// How often a followed log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
struct Wanted {
    launchable: Option<String>,
    /// 0: everything.
    #[serde(default)]
    lines: usize,
    #[serde(default)]
    follow: bool,
}

/// Serves until `shutdown`.
///
/// # Errors
/// What the listener says.
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
    Query(wanted): Query<Wanted>,
) -> Response {
    // Both become segments of a path.
    let Ok(pod) = pod.parse::<PodId>() else {
        return refuse(StatusCode::BAD_REQUEST, format!("{pod:?} is no pod's id"));
    };
    let home = data_dir.join("pods").join(pod.as_str());
    let logs = logs_of(&home);
    let name = match &wanted.launchable {
        Some(name) if check_segment(name).is_ok() => name.clone(),
        Some(name) => {
            return refuse(StatusCode::BAD_REQUEST, format!("{name:?} is no launchable's name"));
        }
        None => match logs.as_slice() {
            [one] => one.clone(),
            [] => return refuse(StatusCode::NOT_FOUND, format!("no log of {pod} is here")),
            many => {
                let why = format!("{pod} has several launchables, choose one: {}", many.join(", "));
                return refuse(StatusCode::BAD_REQUEST, why);
            }
        },
    };
    let path = home.join(format!("{name}.log"));
    let (first, end) = match tail(&path, wanted.lines) {
        Ok(read) => read,
        Err(error) => {
            let why = format!("the log of {pod}/{name} cannot be read: {error}");
            return refuse(StatusCode::NOT_FOUND, why);
        }
    };
    if !wanted.follow {
        return Body::from(first).into_response();
    }
    let news = stream::unfold((path, end, Some(first)), |(path, mut end, first)| async move {
        if let Some(first) = first.filter(|first| !first.is_empty()) {
            return Some((Ok::<_, std::io::Error>(Bytes::from(first)), (path, end, None)));
        }
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match since(&path, end) {
                Ok((news, now)) => {
                    end = now;
                    if !news.is_empty() {
                        return Some((Ok(Bytes::from(news)), (path, end, None)));
                    }
                }
                // The pod is gone.
                Err(_) => return None,
            }
        }
    });
    Body::from_stream(news).into_response()
}

fn logs_of(home: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(home) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut logs: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".log")?.to_owned())).collect();
    logs.sort();
    logs
}
