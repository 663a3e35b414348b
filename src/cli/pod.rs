//! `rcfarm pod …`.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use axum::body::{Body, BodyDataStream};
use axum::http::{Response, StatusCode};
use futures_util::StreamExt;
use serde::Serialize;
use tokio::net::{TcpStream, UnixStream};

use super::context::CommandContext;
use super::failure::{CliExit, failure};
use super::output::{age, fields, or_dash, table};
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::snapshot::ClusterSnapshot;
use rcfarm_api::Stored;
use rcfarm_api::ids::{NodeName, PodId, PodRef};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::manifest::is_uuid_pod;
use rcfarm_api::node::Health;
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::node::status::{NodePodPhase, PodStatus, ProcessStatus};
use rcfarm_api::pod_group::pod_ids::without_hash;
use rcfarm_node::agent::log_position::LogPosition;
use rcfarm_node::agent::serve::{LOG_ENDED, LOG_NEXT, LOG_POSITION, LOG_PREVIOUS, read_token};
use rcfarm_node::http;
use rcfarm_store::Query;

/// Pods: what nodes run, and how it is
#[derive(clap::Subcommand)]
pub enum PodCommand {
    /// List the pods that nodes report
    #[command(visible_alias = "ls")]
    List(PodListArgs),
    /// Show a pod: its processes, why it does not run, its restarts
    Get(WhichArgs),
    /// Print a pod's log, from its node
    Logs(PodLogsArgs),
}

#[derive(clap::Args)]
pub struct PodListArgs {
    /// Only pods of this node
    #[arg(long)]
    node: Option<NodeName>,
    /// Only pods with this id; of a job's pods, the part before the hash is enough
    pod: Option<PodId>,
}

/// Selects one pod by id and node.
#[derive(clap::Args)]
pub struct WhichArgs {
    /// The pod's id; of a job's pod, the part before the hash is enough
    pub(super) pod: PodId,
    /// The node; needed if the pod is on several
    #[arg(long)]
    pub(super) node: Option<NodeName>,
}

#[derive(clap::Args)]
pub struct PodLogsArgs {
    #[command(flatten)]
    pub(super) which: WhichArgs,
    /// The launchable; needed if there are several
    #[arg(long)]
    pub(super) launchable: Option<String>,
    /// Only the output of the start before the present one, as after a crash
    #[arg(short, long, conflicts_with = "follow")]
    pub(super) previous: bool,
    #[command(flatten)]
    pub(super) read: LogReadArgs,
}

/// What to read of a log, of a pod or of a job's members.
#[derive(Debug, Clone, clap::Args)]
pub struct LogReadArgs {
    /// Also print new output as it is written; of a job, also that of pods that start later, until it has ended
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Number of last lines to begin with; 0: the whole log
    #[arg(long, default_value_t = 100)]
    pub(super) lines: usize,
    /// File with the token of agents that serve logs on the network
    #[arg(long, env = "RCFARM_LOG_TOKEN_FILE", value_name = "FILE")]
    pub(super) log_token_file: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    pod: PodId,
    node: NodeName,
    /// Whether its node is down; the other fields are its last report.
    node_down: bool,
    /// Whether that is because somebody has removed the node.
    node_removed: bool,
    #[serde(flatten)]
    status: PodStatus,
}

impl Row {
    /// Whether the pod has this id, or is a job's pod `<job>-<task>-<index>`.
    fn is_called(&self, pod: &PodId) -> bool {
        self.pod == *pod || without_hash(&self.pod) == Some(pod.as_str())
    }

    fn state(&self) -> String {
        if self.node_down { "Lost".to_owned() } else { self.status.phase.to_string() }
    }

    fn health(&self) -> Health {
        if self.node_down { Health::Unknown } else { self.status.health }
    }

    /// Health for the table; `-` for pods that have succeeded.
    fn health_shown(&self) -> String {
        let ended_well = |process: &ProcessStatus| {
            process.last_exit.as_ref().is_some_and(|exit| exit.exit_code == 0)
        };
        let is_done = !self.node_down
            && self.status.phase == NodePodPhase::Ended
            && self.status.processes.iter().all(ended_well);
        or_dash((!is_done).then(|| self.health()))
    }

    fn message(&self) -> String {
        let why = if self.node_removed { "its node was removed" } else { "its node is down" };
        match (self.node_down, self.status.message.as_str()) {
            (false, message) => message.to_owned(),
            (true, "") => format!("{why}; it said last: {}", self.status.phase),
            (true, message) => format!("{why}; it said last: {}, {message}", self.status.phase),
        }
    }
}

pub(super) async fn run(context: &CommandContext, command: PodCommand) -> anyhow::Result<CliExit> {
    match command {
        PodCommand::List(args) => list(context, &args).await,
        PodCommand::Get(args) => get(context, &args).await,
        PodCommand::Logs(args) => logs(context, &args).await,
    }
}

async fn reported(context: &CommandContext) -> anyhow::Result<Vec<Row>> {
    let prefix = key::pod_statuses();
    let entries = context.list(&prefix).await?;
    let store = context.store.as_ref();
    let prefixes = [key::nodes(), key::labels(LabelKind::Node)];
    let cluster = ClusterSnapshot::read_once(store, prefixes).await?;
    let row = |entry: &rcfarm_store::Entry| {
        let (pod, node) = key::pod_and_node(&prefix, &entry.key)?;
        // `status/pods/<uuid>/preparer` is written by p2 for another kind of pod.
        (node.as_str() != "preparer").then_some(())?;
        let status = PodStatus::decode(&entry.value).ok()?;
        let is_known =
            cluster.records.contains(&node) || cluster.nodes.labels.nodes.contains_key(&node);
        // Only agents that name an intent leave their statuses behind.
        let node_removed = !is_known && status.intent_index.is_some();
        let node_down = node_removed || cluster.readiness(&node) == NodeReadiness::Down;
        Some(Row { pod, node, node_down, node_removed, status })
    };
    let mut rows: Vec<Row> = entries.iter().filter_map(row).collect();
    rows.extend(of_preparers(context, &cluster, &rows).await?);
    rows.extend(uuid_pods(context, &cluster, &rows).await?);
    rows.sort_by(|a, b| (&a.pod, &a.node).cmp(&(&b.pod, &b.node)));
    Ok(rows)
}

/// Pods of p2's preparers, which write `reality/` and `health/` and no status.
async fn of_preparers(
    context: &CommandContext,
    cluster: &ClusterSnapshot,
    known: &[Row],
) -> anyhow::Result<Vec<Row>> {
    let known: BTreeSet<(&NodeName, &PodId)> =
        known.iter().map(|row| (&row.node, &row.pod)).collect();
    let keys = context.store.keys(&key::realities(), None, Query::PLAIN).await?.value;
    let places: Vec<(NodeName, PodId)> =
        keys.iter().filter_map(|key| key::node_and_pod(&key::realities(), key)).collect();
    let new: Vec<(NodeName, PodId)> =
        places.into_iter().filter(|(node, pod)| !known.contains(&(node, pod))).collect();
    let healths = context.get_many(new.iter().map(|(node, pod)| key::health(pod, node))).await?;
    let row = |(node, pod): (NodeName, PodId)| {
        let health = healths.get(key::health(&pod, &node).as_str());
        let status = PodStatus {
            status: "launched".to_owned(),
            phase: NodePodPhase::Running,
            health: health.map_or(Health::Absent, |entry| Health::decode(&entry.value)),
            message: "reported by another agent, such as p2's preparer".to_owned(),
            ..PodStatus::default()
        };
        let node_down = cluster.readiness(&node) == NodeReadiness::Down;
        Row { pod, node, node_down, node_removed: false, status }
    };
    Ok(new.into_iter().map(row).collect())
}

/// Pods that p2 knows by a UUID and that no preparer reports. Our agents pass them over.
async fn uuid_pods(
    context: &CommandContext,
    cluster: &ClusterSnapshot,
    known: &[Row],
) -> anyhow::Result<Vec<Row>> {
    let keys = context.store.keys(&key::intents(), None, Query::PLAIN).await?.value;
    let place = |key: &String| key::node_and_pod(&key::intents(), key);
    let is_new = |(node, pod): &(NodeName, PodId)| {
        pod.as_str().parse::<uuid::Uuid>().is_ok()
            && !known.iter().any(|row| (&row.node, &row.pod) == (node, pod))
    };
    let new: Vec<(NodeName, PodId)> = keys.iter().filter_map(place).filter(is_new).collect();
    let intents = context.get_many(new.iter().map(|(node, pod)| key::intent(node, pod))).await?;
    let row = |(node, pod): (NodeName, PodId)| {
        let intent = intents.get(key::intent(&node, &pod).as_str())?;
        is_uuid_pod(&pod, &intent.value).then_some(())?;
        let status = PodStatus {
            health: Health::Absent,
            message: "a pod that p2 knows by a UUID: only p2's preparer runs it".to_owned(),
            ..PodStatus::default()
        };
        let node_down = cluster.readiness(&node) == NodeReadiness::Down;
        Some(Row { pod, node, node_down, node_removed: false, status })
    };
    Ok(new.into_iter().filter_map(row).collect())
}

async fn list(context: &CommandContext, args: &PodListArgs) -> anyhow::Result<CliExit> {
    let mut rows = reported(context).await?;
    rows.retain(|row| {
        args.node.as_ref().is_none_or(|node| *node == row.node)
            && args.pod.as_ref().is_none_or(|pod| row.is_called(pod))
    });
    let now = context.now();
    let since = |row: &Row| {
        let started = row.status.processes.iter().filter_map(|process| process.started_at).min();
        started.filter(|_| !row.node_down)
    };
    let restarts =
        |row: &Row| row.status.processes.iter().map(|process| process.restarts).sum::<u64>();
    context.show_rows(
        &rows,
        "no node reports a pod",
        &[
            ("POD", &|row| row.pod.to_string()),
            ("NODE", &|row| row.node.to_string()),
            ("STATE", &Row::state),
            ("HEALTH", &Row::health_shown),
            ("RESTARTS", &|row| restarts(row).to_string()),
            ("UP", &|row| or_dash(since(row).map(|since| age(since, now)))),
            ("MESSAGE", &Row::message),
        ],
    )
}

async fn find(context: &CommandContext, which: &WhichArgs) -> anyhow::Result<Row> {
    let mut rows = reported(context).await?;
    rows.retain(|row| {
        row.is_called(&which.pod) && which.node.as_ref().is_none_or(|node| *node == row.node)
    });
    if rows.iter().any(|row| row.pod == which.pod) {
        rows.retain(|row| row.pod == which.pod);
    }
    let ids: BTreeSet<&PodId> = rows.iter().map(|row| &row.pod).collect();
    if ids.len() > 1 {
        let ids: Vec<String> = ids.into_iter().map(PodId::to_string).collect();
        let what = format!("{} may be {}", which.pod, ids.join(", "));
        return Err(failure(what, "choose one by its whole id"));
    }
    let nodes: Vec<String> = rows.iter().map(|row| row.node.to_string()).collect();
    match (rows.pop(), nodes.len()) {
        (Some(row), 1) => Ok(row),
        (None, _) => Err(failure(
            format!("no node reports a pod {}", which.pod),
            "see which there are: rcfarm pod list",
        )),
        (Some(_), _) => Err(failure(
            format!("{} runs on {}", which.pod, nodes.join(", ")),
            "choose one with --node",
        )),
    }
}

async fn get(context: &CommandContext, which: &WhichArgs) -> anyhow::Result<CliExit> {
    let row = find(context, which).await?;
    context.show(&row, || {
        let Row { pod, node, status, .. } = &row;
        let now = context.now();
        let ports = status.ports.iter().map(|(name, port)| format!("{name}={port}"));
        let ports = ports.collect::<Vec<_>>().join(", ");
        let rows = [
            ("pod", pod.to_string()),
            ("node", node.to_string()),
            ("state", row.state()),
            ("health", row.health().to_string()),
            ("why", row.message()),
            ("owner", or_dash(status.owner)),
            ("devices", or_dash((!status.devices.is_empty()).then(|| status.devices.join(", ")))),
            ("notes", or_dash((!status.notes.is_empty()).then(|| status.notes.join("\n")))),
        ];
        let ports = (!ports.is_empty()).then_some(("ports", ports));
        let mut text = fields(rows.into_iter().chain(ports));
        text.push('\n');
        text.push_str(&table(
            &status.processes,
            &[
                ("LAUNCHABLE", &|process| process.launchable_id.clone()),
                ("STATE", &|process| process.phase.to_string()),
                ("PID", &|process| or_dash(process.pid)),
                ("UP", &|process| or_dash(process.started_at.map(|since| age(since, now)))),
                ("RESTARTS", &|process| process.restarts.to_string()),
                ("LAST EXIT", &|process| or_dash(last_exit(process, now))),
                ("PROGRAM", &|process| process.entry_point.clone()),
            ],
        ));
        text
    })
}

fn last_exit(process: &ProcessStatus, now: rcfarm_api::Timestamp) -> Option<String> {
    let exit = process.last_exit.as_ref()?;
    let how = match exit.exit_status {
        0 => format!("code {}", exit.exit_code),
        signal => format!("signal {signal}"),
    };
    Some(format!("{how}, {} ago", age(exit.time, now)))
}

pub(super) async fn logs(context: &CommandContext, args: &PodLogsArgs) -> anyhow::Result<CliExit> {
    let Row { pod, node, .. } = find(context, &args.which).await?;
    let query = LogQuery {
        launchable: args.launchable.as_deref(),
        follow: args.read.follow,
        start: LogStart::Lines(args.read.lines),
        is_split: false,
        previous: args.previous,
        attempt: None,
        token_file: args.read.log_token_file.as_deref(),
    };
    let mut output = open_log(context, &PodRef { node, pod }, &query).await?.output;
    while let Some(chunk) = output.next().await {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&chunk.context("the log broke off")?)?;
        stdout.flush()?;
    }
    Ok(CliExit::Ok)
}

/// What to read of a log.
#[derive(Clone, Copy)]
pub(super) struct LogQuery<'q> {
    /// `None`: the pod's only one.
    pub(super) launchable: Option<&'q str>,
    pub(super) follow: bool,
    pub(super) start: LogStart,
    /// Whether the answer ends where the log was rotated.
    pub(super) is_split: bool,
    /// Only the output of the start before the present one.
    pub(super) previous: bool,
    /// The attempt at a job's member, with the uid of its job; `None`: the pod's present log.
    pub(super) attempt: Option<(u64, u32)>,
    /// File with the token of agents that serve logs on the network.
    pub(super) token_file: Option<&'q Path>,
}

/// Where to begin in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogStart {
    /// At the last so many lines; 0: at its beginning.
    Lines(usize),
    /// There. Agents of older versions begin at the beginning.
    At(LogPosition),
}

/// A log that an agent sends.
pub(super) struct OpenLog {
    /// Position of the first byte of `output`. `None`: the agent is of an older version.
    pub(super) position: Option<LogPosition>,
    /// Position after the last byte of `output`, if more follows.
    pub(super) next: Option<LogPosition>,
    /// Whether nothing more will be written to the log.
    pub(super) is_ended: bool,
    pub(super) output: BodyDataStream,
}

/// Why a log was not opened.
#[derive(Debug)]
pub(super) enum LogError {
    /// The agent has no such log.
    Absent(anyhow::Error),
    /// The agent sends too many logs.
    Busy(anyhow::Error),
    /// The agent refused or was not reached.
    Failed(anyhow::Error),
}

impl From<LogError> for anyhow::Error {
    fn from(error: LogError) -> anyhow::Error {
        match error {
            LogError::Absent(error) | LogError::Busy(error) | LogError::Failed(error) => error,
        }
    }
}

impl From<anyhow::Error> for LogError {
    fn from(error: anyhow::Error) -> LogError {
        LogError::Failed(error)
    }
}

/// Opens a pod's log at its node's agent.
pub(super) async fn open_log(
    context: &CommandContext,
    place: &PodRef,
    query: &LogQuery<'_>,
) -> Result<OpenLog, LogError> {
    let entry = context.get(&key::node(&place.node)).await.map_err(anyhow::Error::from)?;
    let record = entry.and_then(|entry| NodeRecord::decode(&entry.value).ok()).unwrap_or_default();
    open_log_at(&record, place, query).await
}

/// Opens a pod's log at its node's agent. `record`: the node's.
pub(super) async fn open_log_at(
    record: &NodeRecord,
    PodRef { node, pod }: &PodRef,
    query: &LogQuery<'_>,
) -> Result<OpenLog, LogError> {
    let start = match query.start {
        LogStart::Lines(lines) => format!("lines={lines}"),
        LogStart::At(position) => format!("at={position}"),
    };
    let LogQuery { follow, is_split, .. } = query;
    let mut path = format!("/pods/{pod}/log?node={node}&{start}&split={is_split}&follow={follow}");
    if let Some(launchable) = query.launchable {
        rcfarm_api::ids::check_segment(launchable).context("--launchable")?;
        path.push_str(&format!("&launchable={launchable}"));
    }
    if let Some((uid, attempt)) = query.attempt {
        path.push_str(&format!("&uid={uid}&attempt={attempt}"));
    }
    if query.previous {
        path.push_str("&previous=true");
    }
    let answer = request(node, record, &path, query.token_file).await?;
    let status = answer.status();
    let header = |name| answer.headers().get(name)?.to_str().ok();
    let position = |name| header(name).and_then(|text: &str| text.parse().ok());
    let (at, next) = (position(LOG_POSITION), position(LOG_NEXT));
    let is_ended = header(LOG_ENDED).is_some();
    let is_previous = header(LOG_PREVIOUS).is_some();
    let mut output = answer.into_body().into_data_stream();
    if status.is_success() && query.previous && !is_previous {
        let why = format!("the agent of {node} is of an older version: it serves whole logs");
        return Err(failure(why, "leave out --previous, or upgrade the agent").into());
    }
    if status.is_success() {
        return Ok(OpenLog { position: at, next, is_ended, output });
    }
    let mut why = Vec::new();
    while let Some(Ok(chunk)) = output.next().await {
        why.extend_from_slice(&chunk);
    }
    let hint = match status {
        StatusCode::UNAUTHORIZED => "give the token with --log-token-file".to_owned(),
        _ => format!("see what there is: rcfarm pod get {pod} --node {node}"),
    };
    let error = failure(String::from_utf8_lossy(&why).trim(), hint);
    Err(match status {
        StatusCode::NOT_FOUND => LogError::Absent(error),
        StatusCode::SERVICE_UNAVAILABLE => LogError::Busy(error),
        _ => LogError::Failed(error),
    })
}

/// Asks the agent of a node: over its socket if this is its machine, else over the network.
async fn request(
    node: &NodeName,
    record: &NodeRecord,
    path: &str,
    token_file: Option<&Path>,
) -> anyhow::Result<Response<Body>> {
    let mut hint = format!(
        "run this on {node} as its agent's user, or start the agent with --http and --http-token-file"
    );
    let silent = |place: &str, error: std::io::Error| {
        failure(format!("{node} does not answer on {place}: {error}"), "does its agent run?")
    };
    if let Some(socket) = &record.log_socket {
        match http::within_limit(UnixStream::connect(socket)).await {
            Ok(stream) => {
                let answer = http::get(stream, "localhost", path, None).await;
                let answer = answer.map_err(|error| silent(socket, error))?;
                // Another node's agent has a socket of this name.
                if answer.status() != StatusCode::MISDIRECTED_REQUEST {
                    return Ok(answer);
                }
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                hint = format!("{socket} is for the agent's user: run this as that user");
            }
            // This is another machine, or the agent does not run.
            Err(_) => {}
        }
    }
    let Some(address) = &record.http else {
        return Err(failure(format!("the agent of {node} serves logs on its own machine"), hint));
    };
    let token = token_file.map(read_token).transpose();
    let token = token.map_err(|why| failure(why, "name another file with --log-token-file"))?;
    let answer = async {
        let stream = http::within_limit(TcpStream::connect(address)).await?;
        http::get(stream, address, path, token.as_deref()).await
    };
    answer.await.map_err(|error| silent(address, error))
}
