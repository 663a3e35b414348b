//! HiveD's routes for looking at cells: `hived.md` §1.5. Any farm answers, from what is stored at the time of the request.
//!
//! Keys read: `rcfarm/cells/config`, `labels/node/`, `rcfarm/nodes/`, `rcfarm/allocations/`, `rcfarm/pod_group_status/`.
//! Each request reads them once, one request after the other.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde::Serialize;
use tokio::sync::Mutex;

use crate::cluster::cells::CellsSnapshot;
use rcfarm_api::{FieldError, Timestamp};
use rcfarm_cells::extender::COMPONENT_NAME;
use rcfarm_store::Reader;

/// The time of day.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Where the routes read.
#[derive(Clone)]
pub struct InspectedCells {
    pub(super) reader: Arc<dyn Reader>,
    now: WallClock,
    /// Held by the request that reads: others wait.
    turn: Arc<Mutex<()>>,
}

/// Why a request fails, with the reference's code and prefix.
#[derive(Debug)]
pub(super) struct HivedFailure(StatusCode, String);

impl HivedFailure {
    pub(super) fn user(why: impl Into<String>) -> HivedFailure {
        HivedFailure(StatusCode::BAD_REQUEST, why.into())
    }

    pub(super) fn platform(why: impl Into<String>) -> HivedFailure {
        HivedFailure(StatusCode::INTERNAL_SERVER_ERROR, why.into())
    }

    /// The same failure, of one of the reference's routines for one pod.
    pub(super) fn of_routine(self, pod: &str, routine: &str) -> HivedFailure {
        HivedFailure(self.0, format!("[{pod}]: {routine}: Failed: {}", self.1))
    }

    /// The text with its prefix.
    pub(super) fn text(&self) -> String {
        let whose = if self.0.is_server_error() { "Platform" } else { "User" };
        format!("{COMPONENT_NAME}: {whose} Error: {}", self.1)
    }
}

impl IntoResponse for HivedFailure {
    fn into_response(self) -> Response {
        (self.0, Json(self.text())).into_response()
    }
}

type Answer<T> = Result<Json<T>, HivedFailure>;

/// The routes, with those of [`super::extender`].
pub fn routes(reader: Arc<dyn Reader>, now: WallClock) -> Router {
    let cells = InspectedCells { reader, now, turn: Arc::default() };
    let at = |path: &str| format!("/v1/inspect/{path}");
    Router::new()
        .route(&at("affinitygroups/"), get(groups).fallback(not_implemented))
        .route(&at("affinitygroups/{*name}"), get(group).fallback(not_implemented))
        .route(&at("clusterstatus"), get(cluster).fallback(not_implemented))
        .route(&at("clusterstatus/physicalcluster"), get(physical).fallback(not_implemented))
        .route(&at("clusterstatus/virtualclusters/"), get(virtuals).fallback(not_implemented))
        .route(&at("clusterstatus/virtualclusters/{vc}"), get(of_vc).fallback(not_implemented))
        .merge(super::extender::routes())
        .with_state(cells)
}

pub(super) async fn not_implemented() -> HivedFailure {
    HivedFailure::user("NotImplemented")
}

impl InspectedCells {
    /// The cells as they are stored now.
    pub(super) async fn read(&self) -> Result<CellsSnapshot, HivedFailure> {
        let _turn = self.turn.lock().await;
        let read = CellsSnapshot::read(self.reader.as_ref(), (self.now)()).await;
        match read.map_err(|error| HivedFailure::platform(error.to_string()))? {
            Ok(Some(cells)) => Ok(cells),
            Ok(None) => Err(HivedFailure::platform("there are no cells")),
            Err(bad) => Err(HivedFailure::platform(FieldError::list(&bad))),
        }
    }
}

async fn groups(State(cells): State<InspectedCells>) -> Answer<impl Serialize> {
    Ok(Json(cells.read().await?.scheduler.hived_groups()))
}

async fn group(
    State(cells): State<InspectedCells>,
    Path(name): Path<String>,
) -> Answer<impl Serialize> {
    let found = cells.read().await?.scheduler.hived_group_named(&name);
    let why = "does not exist since it is not allocated or preempting";
    let missing = || HivedFailure::user(format!("Affinity group {name} {why}"));
    found.map(Json).ok_or_else(missing)
}

async fn cluster(State(cells): State<InspectedCells>) -> Answer<impl Serialize> {
    Ok(Json(cells.read().await?.scheduler.hived_cluster()))
}

async fn physical(State(cells): State<InspectedCells>) -> Answer<impl Serialize> {
    Ok(Json(cells.read().await?.scheduler.hived_cluster().physical_cluster))
}

async fn virtuals(State(cells): State<InspectedCells>) -> Answer<impl Serialize> {
    Ok(Json(cells.read().await?.scheduler.hived_cluster().virtual_clusters))
}

async fn of_vc(
    State(cells): State<InspectedCells>,
    Path(vc): Path<String>,
) -> Answer<impl Serialize> {
    let mut all = cells.read().await?.scheduler.hived_cluster().virtual_clusters;
    let missing = || HivedFailure::user(format!("VC {vc} not found"));
    all.remove(&vc).map(Json).ok_or_else(missing)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;
    use rcfarm_api::Index;
    use rcfarm_api::key;
    use rcfarm_emulator::Emulator;
    use rcfarm_store::{Op, Store as _, TxnOutcome};

    pub async fn put(store: &Emulator, key: rcfarm_store::Key, value: Value) {
        let value = value.to_string().into();
        let op = Op::Cas { key, value, flags: 0, index: Index::ZERO };
        let outcome = store.txn(&[op]).await.unwrap();
        assert!(matches!(outcome, TxnOutcome::Committed { .. }), "{outcome:?}");
    }

    /// A node of two devices of the virtual cluster A, all of which the group g/h has.
    pub async fn furnished() -> Emulator {
        let store = Emulator::default();
        let config = json!({
            "physicalCluster": {
                "cellTypes": {"NODE": {"childCellType": "GPU", "childCellNumber": 2, "isNodeLevel": true}},
                "physicalCells": [{"cellType": "NODE", "cellAddress": "n1"}],
            },
            "virtualClusters": {"A": {"virtualCells": [{"cellType": "NODE", "cellNumber": 1}]}},
        });
        put(&store, key::cell_config(), config).await;
        put(&store, rcfarm_store::Key::parse("labels/node/n1").unwrap(), json!({})).await;
        let cells = json!({
            "request": {"key": {"virtualCluster": "A", "name": "g/h"}, "priority": 3,
                "ignoreSuggestedNodes": true, "members": [{"pods": 1, "cells": 2}]},
            "chain": "NODE", "preassigned": {"A/0": "NODE"},
            "pods": [{"node": "n1", "devices": "0-1", "cell": "A/0", "leaves": "0-1", "pod": "w/0"}],
        });
        let status = json!({"phase": "Running", "placement": {"state": "Bound",
            "members": {"w": ["n1"]}, "cells": cells}});
        put(&store, key::pod_group_status(&"ns/j".parse().unwrap()), status).await;
        store
    }

    /// Serves the routes, and asks each: method, path; code and JSON of the answer.
    async fn ask(store: Emulator, asked: &[(&str, &str)]) -> Vec<(u16, Value)> {
        let at = |path: &str| format!("inspect/{path}");
        let asked: Vec<(&str, String, Vec<u8>)> =
            asked.iter().map(|(method, path)| (*method, at(path), Vec::new())).collect();
        send(store, &asked).await
    }

    /// Serves the routes, and sends each: method, path below `/v1/`, body; code and JSON of the answer.
    pub async fn send(store: Emulator, asked: &[(&str, String, Vec<u8>)]) -> Vec<(u16, Value)> {
        let routes = routes(Arc::new(store), Arc::new(|| Timestamp::UNIX_EPOCH));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, routes).await });
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut answers = Vec::new();
        for (method, path, body) in asked {
            let url = format!("http://{address}/v1/{path}");
            let request = client.request(method.parse().unwrap(), url).body(body.clone());
            let answer = request.send().await.unwrap();
            answers.push((answer.status().as_u16(), answer.json().await.unwrap()));
        }
        server.abort();
        answers
    }

    #[tokio::test]
    async fn routes_answer_as_the_reference_does() {
        let store = furnished().await;
        let paths = [
            "affinitygroups/",
            "affinitygroups/g/h",
            "affinitygroups/A/g/h",
            "clusterstatus",
            "clusterstatus/physicalcluster",
            "clusterstatus/virtualclusters/",
            "clusterstatus/virtualclusters/A",
        ];
        let answers = ask(store, &paths.map(|path| ("GET", path))).await;
        assert!(answers.iter().all(|(code, _)| *code == 200), "{answers:?}");
        let of = |n: usize| &answers[n].1;
        assert_eq!(of(0), &json!({"items": [of(1)]}));
        assert_eq!((of(1), &of(1)["metadata"]["name"]), (of(2), &json!("g/h")));
        let status = &of(1)["status"];
        assert_eq!(status["physicalPlacement"], json!({"n1": [0, 1]}));
        assert_eq!(status["virtualPlacement"], json!({"A/0": ["A/0/0", "A/0/1"]}));
        assert_eq!(&of(3)["physicalCluster"], of(4));
        assert_eq!(&of(3)["virtualClusters"], of(5));
        assert_eq!(&of(5)["A"], of(6));
        let node = &of(4)[0];
        assert_eq!((&node["cellState"], &node["cellPriority"]), (&json!("Used"), &json!(3)));
        assert_eq!(node["cellHealthiness"], "Healthy");
    }

    #[tokio::test]
    async fn errors_have_the_codes_and_prefixes_of_the_reference() {
        let asked = [
            ("GET", "affinitygroups/none"),
            ("GET", "clusterstatus/virtualclusters/B"),
            ("POST", "clusterstatus"),
        ];
        let answers = ask(furnished().await, &asked).await;
        let user = |why: &str| (400, json!(format!("hivedscheduler: User Error: {why}")));
        let none = "Affinity group none does not exist since it is not allocated or preempting";
        assert_eq!(answers, [user(none), user("VC B not found"), user("NotImplemented")]);
        let answers = ask(Emulator::default(), &[("GET", "clusterstatus")]).await;
        let platform = json!("hivedscheduler: Platform Error: there are no cells");
        assert_eq!(answers, [(500, platform)]);
    }
}
