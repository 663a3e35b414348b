//! A scheduler over HTTP, in any language. `docs/guide/custom-scheduler.md` describes the JSON;
//! `examples/scheduler_server.rs` is a server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{EligibleNodes, ScheduleError, ScheduleRequest, Scheduler, WantedNodes};
use rcfarm_api::ids::NodeName;

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
        let url = self.base.join(verb).map_err(|e| ScheduleError::BadAnswer(e.to_string()))?;
        let lost = |e: reqwest::Error| ScheduleError::Unreachable(e.without_url().to_string());
        let response = self.client.post(url).json(ask).send().await.map_err(lost)?;
        let status = response.status();
        let body = response.bytes().await.map_err(lost)?;
        let text = || String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        match status.as_u16() {
            200..=299 => Ok(body),
            409 => Err(ScheduleError::Exhausted(text())),
            _ => Err(ScheduleError::Unreachable(format!("{verb} answered {status}: {}", text()))),
        }
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
    /// Without user and password, since many may read it.
    fn address(&self) -> Option<String> {
        let mut base = self.base.clone();
        let _ = base.set_username("").and_then(|()| base.set_password(None));
        Some(base.to_string())
    }
}
