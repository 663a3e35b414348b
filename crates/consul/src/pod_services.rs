//! Services of pods on the local Consul agent, with raw requests: consulrs loses the health of a check and what a service
//! was registered with.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, RequestBuilder, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::{Call, Consul, Reply};
use super::error::{DENIED, RequestContext};
use super::wire::go_duration;
use rcfarm_api::node::Health;
use rcfarm_store::{PodService, RegisteredService, StoreError};

/// A service of `/v1/agent/services`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireService {
    service: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: i64,
    #[serde(default)]
    tags: Option<Vec<String>>,
    #[serde(default)]
    meta: Option<BTreeMap<String, String>>,
}

/// A check of `/v1/agent/checks`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireCheck {
    status: String,
}

impl WireCheck {
    fn health(&self) -> Health {
        match self.status.as_str() {
            "passing" => Health::Passing,
            "warning" => Health::Warning,
            _ => Health::Critical,
        }
    }
}

/// Consul's word for a health.
fn status_of(health: Health) -> &'static str {
    match health {
        Health::Passing => "passing",
        Health::Warning => "warning",
        Health::Critical | Health::Unknown | Health::Absent => "critical",
    }
}

impl Consul {
    pub(super) async fn read_pod_services(
        &self,
        id_prefix: &str,
    ) -> Result<BTreeMap<String, RegisteredService>, StoreError> {
        let asked = RequestContext::new("listing", "the agent's services");
        let mut services: BTreeMap<String, WireService> = self.of_agent("services", &asked).await?;
        services.retain(|id, _| id.starts_with(id_prefix));
        if services.is_empty() {
            return Ok(BTreeMap::new());
        }
        let checks: BTreeMap<String, WireCheck> = self.of_agent("checks", &asked).await?;
        let token = self.token.current();
        let registered = services.into_iter().map(|(id, wire)| {
            let health = checks.get(&PodService::health_check(&id));
            let registered = RegisteredService {
                health: health.map_or(Health::Absent, WireCheck::health),
                has_node_check: checks.contains_key(&PodService::node_check(&id)),
                is_current: self.registered.is_current(&id, token.as_ref()),
                service: PodService {
                    id: id.clone(),
                    name: wire.service,
                    address: wire.address,
                    port: u16::try_from(wire.port).unwrap_or_default(),
                    tags: wire.tags.unwrap_or_default(),
                    meta: wire.meta.unwrap_or_default(),
                },
            };
            (id, registered)
        });
        Ok(registered.collect())
    }

    pub(super) async fn put_pod_service(
        &self,
        service: &PodService,
        node_service: &str,
        health: Health,
    ) -> Result<(), StoreError> {
        let asked = RequestContext::new("registering the service", &service.name);
        let body = json!({
            "ID": service.id, "Name": service.name, "Address": service.address,
            "Port": service.port, "Tags": service.tags, "Meta": service.meta,
            "Checks": [
                {
                    "CheckID": PodService::health_check(&service.id), "Name": "health of the pod",
                    "TTL": go_duration(PodService::TTL), "Status": status_of(health),
                },
                {
                    "CheckID": PodService::node_check(&service.id), "Name": "agent of the pod's node",
                    "AliasService": node_service, "Status": status_of(Health::Passing),
                    "DeregisterCriticalServiceAfter": go_duration(PodService::DEREGISTER_AFTER),
                },
            ],
        });
        let token = self.token.current();
        let reply = self.put_to_agent(self.url(["agent", "service", "register"]), &body).await?;
        match reply.status {
            200 => {
                self.registered.insert_pod(&service.id, token);
                Ok(())
            }
            _ => Err(reply.error(&asked)),
        }
    }

    pub(super) async fn set_check(
        &self,
        check: &str,
        health: Health,
        note: &str,
    ) -> Result<bool, StoreError> {
        let asked = RequestContext::new("updating the check", check);
        let url = self.url(["agent", "check", "update", check]);
        let body = json!({ "Status": status_of(health), "Output": note });
        let reply = self.put_to_agent(url, &body).await?;
        match reply.status {
            200 => Ok(true),
            404 => Ok(false),
            // Consul 1.8.
            500 if says(&reply, &["does not have associated TTL", "Unknown check"]) => Ok(false),
            _ => Err(reply.error(&asked)),
        }
    }

    /// Tries a change that cannot be made: of a service that is not there, at an index that it does not have.
    pub(super) async fn try_register(&self, service: &str) -> Result<bool, StoreError> {
        const PROBE: &str = "rcfarm-probe";
        let asked = RequestContext::new("trying the right to the service", service);
        let probe = json!({ "ID": PROBE, "Service": service, "ModifyIndex": 1 });
        let body = json!([{ "Service": { "Verb": "cas", "Node": PROBE, "Service": probe } }]);
        let request = self.with_body(self.request(Method::PUT, self.url(["txn"])), &body);
        let reply = self.send(Call::Transaction, request, Duration::ZERO).await?;
        match reply.status {
            409 => Ok(!says(&reply, DENIED)),
            403 => Ok(false),
            _ => Err(reply.error(&asked)),
        }
    }

    async fn of_agent<T: DeserializeOwned>(
        &self,
        what: &str,
        asked: &RequestContext<'_>,
    ) -> Result<T, StoreError> {
        let request = self.request(Method::GET, self.url(["agent", what]));
        let reply = self.send(Call::Agent, request, Duration::ZERO).await?;
        match reply.status {
            200 => reply.json(asked),
            _ => Err(reply.error(asked)),
        }
    }

    async fn put_to_agent(&self, url: Url, body: &Value) -> Result<Reply, StoreError> {
        let request = self.with_body(self.request(Method::PUT, url), body);
        self.send(Call::Agent, request, Duration::ZERO).await
    }

    fn with_body(&self, request: RequestBuilder, body: &Value) -> RequestBuilder {
        let json = HeaderValue::from_static("application/json");
        request.header(CONTENT_TYPE, json).body(body.to_string())
    }
}

fn says(reply: &Reply, texts: &[&str]) -> bool {
    let body = String::from_utf8_lossy(&reply.body);
    texts.iter().any(|text| body.contains(text))
}
