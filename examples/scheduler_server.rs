//! An example of a scheduler over HTTP. It reads its machines from a file, places no pods on cordoned ones, and spreads
//! its allocations. `docs/guide/custom-scheduler.md` describes the JSON.
//!
//!     cargo run --example scheduler_server -- 127.0.0.1:7000 examples/fleet.json
//!     rcfarm farm run --scheduler http://127.0.0.1:7000
//!
//! The file is read for each request, so it can be edited at any time. Reservations are in memory; a production
//! scheduler must keep them, and the tokens, across restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use rcfarm_api::labels::{Labels, Selector};
use serde::{Deserialize, Serialize};

/// One machine in the file.
#[derive(Deserialize)]
struct Machine {
    #[serde(default)]
    labels: Labels,
    /// Gets no new pods; its pods shall leave.
    #[serde(default)]
    cordoned: bool,
}

/// Fields of every request; `allocate_nodes` and `deallocate_nodes` have more.
#[derive(Deserialize)]
struct Ask {
    replication_controller_id: String,
    node_selector: Selector,
    #[serde(default)]
    current_nodes: BTreeSet<String>,
    #[serde(default)]
    nodes: Vec<String>,
    #[serde(default)]
    count: usize,
    #[serde(default)]
    token: String,
}

/// A gang of `place`.
#[derive(Deserialize)]
struct AskGang {
    tasks: Vec<AskTask>,
}

#[derive(Deserialize)]
struct AskTask {
    name: String,
    replicas: usize,
    #[serde(default)]
    node_selector: String,
}

#[derive(Serialize)]
struct GangNodes {
    tasks: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize)]
struct Nodes {
    nodes: Vec<String>,
}

#[derive(Default)]
struct Book {
    /// Controllers by node.
    reserved: BTreeMap<String, BTreeSet<String>>,
    /// Answer by token: a repeated request gets the same answer.
    answered: BTreeMap<String, Vec<String>>,
}

#[derive(Clone)]
struct Scheduler {
    fleet: PathBuf,
    book: Arc<Mutex<Book>>,
}

/// A status other than 2xx and 409 makes the farm retry later.
type Answer<T> = Result<T, (StatusCode, String)>;

/// The service over the machines in the file `fleet`.
pub fn router(fleet: PathBuf) -> Router {
    Router::new()
        .route("/eligible_nodes", post(eligible_nodes))
        .route("/allocate_nodes", post(allocate_nodes))
        .route("/deallocate_nodes", post(deallocate_nodes))
        .route("/place", post(place))
        .with_state(Scheduler { fleet, book: Arc::default() })
}

impl Scheduler {
    fn machines(&self) -> Answer<BTreeMap<String, Machine>> {
        let unusable = |why: String| (StatusCode::INTERNAL_SERVER_ERROR, why);
        let text = std::fs::read(&self.fleet).map_err(|e| unusable(e.to_string()))?;
        serde_json::from_slice(&text).map_err(|e| unusable(e.to_string()))
    }

    /// Machines that match and are not cordoned, in name order.
    fn fitting(&self, selector: &Selector) -> Answer<BTreeSet<String>> {
        let fleet = self.machines()?;
        let fits = |machine: &Machine| !machine.cordoned && selector.matches(&machine.labels);
        Ok(fleet.into_iter().filter(|(_, m)| fits(m)).map(|(name, _)| name).collect())
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn eligible_nodes(State(scheduler): State<Scheduler>, ask: Json<Ask>) -> Answer<Json<Nodes>> {
    Ok(Json(Nodes { nodes: scheduler.fitting(&ask.node_selector)?.into_iter().collect() }))
}

/// The machines with the fewest reservations, then by name.
async fn allocate_nodes(State(scheduler): State<Scheduler>, ask: Json<Ask>) -> Answer<Json<Nodes>> {
    let fitting = scheduler.fitting(&ask.node_selector)?;
    let mut book = scheduler.book();
    if let Some(nodes) = book.answered.get(&ask.token) {
        return Ok(Json(Nodes { nodes: nodes.clone() }));
    }
    let load = |node: &String| book.reserved.get(node).map_or(0, BTreeSet::len);
    let mut free: Vec<String> = fitting.difference(&ask.current_nodes).cloned().collect();
    free.sort_by_key(|node| (load(node), node.clone()));
    if free.len() < ask.count {
        let why = format!("{} of {} machines are free", free.len(), ask.count);
        return Err((StatusCode::CONFLICT, why));
    }
    free.truncate(ask.count);
    for node in &free {
        let controllers = book.reserved.entry(node.clone()).or_default();
        controllers.insert(ask.replication_controller_id.clone());
    }
    book.answered.insert(ask.token.clone(), free.clone());
    Ok(Json(Nodes { nodes: free }))
}

/// Releasing a node that is not reserved succeeds, so that a call can be repeated.
async fn deallocate_nodes(State(scheduler): State<Scheduler>, ask: Json<Ask>) -> StatusCode {
    let mut book = scheduler.book();
    for node in &ask.nodes {
        if let Some(controllers) = book.reserved.get_mut(node) {
            controllers.remove(&ask.replication_controller_id);
        }
    }
    StatusCode::NO_CONTENT
}

/// The pods of each task on its machines in turn, the last machine by name first. It reserves nothing.
async fn place(State(scheduler): State<Scheduler>, ask: Json<AskGang>) -> Answer<Json<GangNodes>> {
    let mut tasks = BTreeMap::new();
    for task in &ask.tasks {
        let selector = match &*task.node_selector {
            "" => Selector::everything(),
            text => text.parse().map_err(|_| (StatusCode::BAD_REQUEST, text.to_owned()))?,
        };
        let fitting = scheduler.fitting(&selector)?;
        if fitting.is_empty() {
            let why = format!("task {}: no machine has {}", task.name, task.node_selector);
            return Err((StatusCode::CONFLICT, why));
        }
        let nodes = fitting.iter().rev().cycle().take(task.replicas).cloned().collect();
        tasks.insert(task.name.clone(), nodes);
    }
    Ok(Json(GangNodes { tasks }))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(fleet)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: scheduler_server HOST:PORT FLEET.json");
    };
    let listener = tokio::net::TcpListener::bind(&address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    println!("a scheduler on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, router(fleet.into())).await?)
}
