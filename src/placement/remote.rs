//! A scheduler over HTTP, in any language. `docs/guide/custom-scheduler.md` describes the JSON;
//! `examples/scheduler_server.rs` is a server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::capacity::GangPlacement;
use super::{EligibleNodes, GangRequest, ScheduleError, ScheduleRequest, Scheduler, WantedNodes};
use rcfarm_api::ResourceList;
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::TaskSpec;
use rcfarm_api::scheduler::Packing;

/// Client of a scheduler that is reached over HTTP.
pub struct RemoteScheduler {
    base: reqwest::Url,
    client: reqwest::Client,
}

const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Ask<'a> {
    replication_controller_id: String,
    manifest: &'a str,
    node_selector: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_nodes: Option<&'a BTreeSet<NodeName>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'a [NodeName]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    force: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Uuid>,
}

#[derive(Deserialize)]
struct NodesAnswer {
    nodes: Vec<String>,
}

/// A gang, as `place` sends it.
#[derive(Serialize)]
struct AskGang<'a> {
    scheduler: &'a str,
    queue: &'a str,
    pod_group: String,
    packing: Packing,
    tasks: Vec<AskTask<'a>>,
}

#[derive(Serialize)]
struct AskTask<'a> {
    name: &'a str,
    replicas: u32,
    node_selector: &'a str,
    resources: &'a ResourceList,
    ports: u32,
}

#[derive(Deserialize)]
struct GangNodesAnswer {
    tasks: BTreeMap<String, Vec<String>>,
}

impl<'a> AskGang<'a> {
    fn of(request: GangRequest<'a>) -> Self {
        let GangRequest { scheduler, queue, id, gang } = request;
        let task = |task: &'a TaskSpec| AskTask {
            name: &task.name,
            replicas: task.replicas,
            node_selector: &task.node_selector,
            resources: &task.resources,
            ports: task.ports,
        };
        AskGang {
            scheduler: scheduler.as_str(),
            queue: queue.as_str(),
            pod_group: id.to_string(),
            packing: gang.packing,
            tasks: gang.tasks.iter().map(task).collect(),
        }
    }
}

impl<'a> Ask<'a> {
    fn of(request: ScheduleRequest<'a>) -> Self {
        Ask {
            replication_controller_id: request.rc.to_string(),
            manifest: request.manifest.text(),
            node_selector: request.selector.to_string(),
            current_nodes: None,
            nodes: None,
            count: None,
            force: None,
            token: None,
        }
    }
}

impl RemoteScheduler {
    /// A scheduler that answers below `base` (`http://host:port/path`).
    ///
    /// # Errors
    /// [`ScheduleError::BadAnswer`] when `base` is no HTTP address.
    pub fn new(base: &str) -> Result<Self, ScheduleError> {
        let slash = if base.ends_with('/') { "" } else { "/" };
        let base = reqwest::Url::parse(&format!("{base}{slash}"))
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or_else(|| ScheduleError::BadAnswer(format!("{base:?} is no http:// address")))?;
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|e| ScheduleError::Unreachable(e.to_string()))?;
        Ok(RemoteScheduler { base, client })
    }

    async fn call(&self, verb: &str, ask: &impl Serialize) -> Result<bytes::Bytes, ScheduleError> {
        let (status, body) = self.send(verb, ask).await?;
        answered(verb, status, body)
    }

    async fn send(
        &self,
        verb: &str,
        ask: &impl Serialize,
    ) -> Result<(reqwest::StatusCode, bytes::Bytes), ScheduleError> {
        let url = self.base.join(verb).map_err(|e| ScheduleError::BadAnswer(e.to_string()))?;
        let lost = |e: reqwest::Error| ScheduleError::Unreachable(e.without_url().to_string());
        let response = self.client.post(url).json(ask).send().await.map_err(lost)?;
        let status = response.status();
        Ok((status, response.bytes().await.map_err(lost)?))
    }
}

/// The body of an answer that is a success.
fn answered(
    verb: &str,
    status: reqwest::StatusCode,
    body: bytes::Bytes,
) -> Result<bytes::Bytes, ScheduleError> {
    let text = || String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    match status.as_u16() {
        200..=299 => Ok(body),
        409 => Err(ScheduleError::Exhausted(text())),
        _ => Err(ScheduleError::Unreachable(format!("{verb} answered {status}: {}", text()))),
    }
}

fn nodes_of(body: &[u8]) -> Result<Vec<NodeName>, ScheduleError> {
    let answer: NodesAnswer =
        serde_json::from_slice(body).map_err(|e| ScheduleError::BadAnswer(e.to_string()))?;
    let parse = |name: String| name.parse::<NodeName>();
    let nodes: Result<Vec<NodeName>, _> = answer.nodes.into_iter().map(parse).collect();
    nodes.map_err(|e| ScheduleError::BadAnswer(e.to_string()))
}

#[async_trait]
impl Scheduler for RemoteScheduler {
    async fn eligible_nodes(
        &self,
        request: ScheduleRequest<'_>,
    ) -> Result<EligibleNodes, ScheduleError> {
        let body = self.call("eligible_nodes", &Ask::of(request)).await?;
        Ok(Arc::new(nodes_of(&body)?.into_iter().collect()))
    }

    async fn allocate_nodes(
        &self,
        wanted: WantedNodes<'_>,
    ) -> Result<Vec<NodeName>, ScheduleError> {
        let WantedNodes { request, current, count, force, token } = wanted;
        let ask = Ask {
            current_nodes: Some(current),
            count: Some(count),
            force: Some(force),
            token: Some(token),
            ..Ask::of(request)
        };
        let nodes = nodes_of(&self.call("allocate_nodes", &ask).await?)?;
        let distinct: BTreeSet<&NodeName> = nodes.iter().collect();
        if distinct.len() != count || nodes.iter().any(|node| current.contains(node)) {
            return Err(ScheduleError::BadAnswer(format!(
                "{count} new nodes were asked for, {} distinct ones came, or some are in use",
                distinct.len()
            )));
        }
        Ok(nodes)
    }

    async fn deallocate_nodes(
        &self,
        request: ScheduleRequest<'_>,
        nodes: &[NodeName],
        token: Uuid,
    ) -> Result<(), ScheduleError> {
        let ask = Ask { nodes: Some(nodes), token: Some(token), ..Ask::of(request) };
        self.call("deallocate_nodes", &ask).await.map(drop)
    }

    /// A server that does not know the verb places no gangs.
    async fn place(&self, gang: GangRequest<'_>) -> Result<Option<GangPlacement>, ScheduleError> {
        let (status, body) = self.send("place", &AskGang::of(gang)).await?;
        if matches!(status.as_u16(), 404 | 405 | 501) {
            return Ok(None);
        }
        let bad = |why: String| ScheduleError::BadAnswer(why);
        let body = answered("place", status, body)?;
        let answer: GangNodesAnswer =
            serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
        let mut tasks: BTreeMap<String, Vec<NodeName>> = BTreeMap::new();
        for (task, nodes) in answer.tasks {
            let nodes: Result<Vec<NodeName>, _> = nodes.iter().map(|node| node.parse()).collect();
            tasks.insert(task, nodes.map_err(|error| bad(error.to_string()))?);
        }
        Ok(Some(GangPlacement { tasks }))
    }

    fn places_gangs(&self) -> bool {
        true
    }

    /// Without user and password, since many may read it.
    fn address(&self) -> Option<String> {
        let mut base = self.base.clone();
        let _ = base.set_username("").and_then(|()| base.set_password(None));
        Some(base.to_string())
    }
}
