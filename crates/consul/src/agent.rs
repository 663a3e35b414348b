//! Calls to the local agent (service and check), to the catalog (health of services), and for the leader.

use std::time::Duration;

use consulrs::api;
use consulrs::api::check::common::AgentServiceCheck;
use consulrs::api::check::requests::TtlCheckUpdateRequest;
use consulrs::api::service::requests::{DeregisterServiceRequest, RegisterServiceRequest};
use reqwest::Method;

use super::client::{Call, Client, plain};
use super::error::{Refused, RequestContext};
use super::wire::{WireInstance, go_duration};
use rcfarm_store::{Answer, Query, ServiceHealth, StoreError, TtlService};

const PASSING: &str = "passing";

impl Client {
    pub(super) async fn register_service(&self, service: &TtlService) -> Result<(), StoreError> {
        let asked = RequestContext::new("registering the service", &service.id);
        let check = AgentServiceCheck {
            ttl: Some(go_duration(service.ttl)),
            // The default is critical, and Consul refuses a session with a critical check.
            status: Some(PASSING.to_owned()),
            deregister_critical_service_after: Some(go_duration(service.deregister_after)),
            ..AgentServiceCheck::default()
        };
        let endpoint = RegisterServiceRequest {
            name: Some(service.name.clone()),
            id: Some(plain(&service.id, &asked)?),
            meta: Some(service.meta.clone().into_iter().collect()),
            check: Some(check),
            ..RegisterServiceRequest::default()
        };
        self.through_consulrs(Call::Agent, &asked, |c| api::exec_with_empty(c, endpoint))
            .await?
            .map_err(|refused| refused.error(&asked))?;
        // A check that exists keeps its state, even a critical one.
        self.pass_check(&service.check_id(), "").await.map(|_| ())
    }

    pub(super) async fn pass_check(&self, check: &str, note: &str) -> Result<bool, StoreError> {
        let asked = RequestContext::new("passing the check", check);
        let endpoint = TtlCheckUpdateRequest {
            check: plain(check, &asked)?,
            status: Some(PASSING.to_owned()),
            output: Some(note.to_owned()),
            ..TtlCheckUpdateRequest::default()
        };
        let passed = self
            .through_consulrs(Call::Heartbeat, &asked, |c| api::exec_with_empty(c, endpoint))
            .await?;
        match passed {
            Ok(()) => Ok(true),
            Err(refused) if is_unknown(&refused) => Ok(false),
            Err(refused) => Err(refused.error(&asked)),
        }
    }

    pub(super) async fn deregister_service(&self, id: &str) -> Result<(), StoreError> {
        let asked = RequestContext::new("deregistering the service", id);
        let endpoint = DeregisterServiceRequest {
            id: plain(id, &asked)?,
            ..DeregisterServiceRequest::default()
        };
        let removed = self
            .through_consulrs(Call::Agent, &asked, |c| api::exec_with_empty(c, endpoint))
            .await?;
        match removed {
            Err(refused) if !is_unknown(&refused) => Err(refused.error(&asked)),
            _ => Ok(()),
        }
    }

    pub(super) async fn service_health(
        &self,
        service: &str,
    ) -> Result<Answer<Vec<ServiceHealth>>, StoreError> {
        let asked = RequestContext::new("reading the health of", service);
        let url = self.url(["health", "service", service]);
        let answer = self.read::<Vec<WireInstance>>(url, Query::PLAIN, &asked).await?;
        let instances = answer.value.into_iter().flatten();
        Ok(Answer {
            value: instances.map(ServiceHealth::from).collect(),
            index: answer.index,
            filtered: answer.filtered,
        })
    }

    pub(super) async fn leader(&self) -> Result<String, StoreError> {
        let asked = RequestContext::new("asking for", "the leader");
        let request = self.request(Method::GET, self.url(["status", "leader"]));
        let reply = self.send(Call::Read, request, Duration::ZERO).await?;
        match reply.status {
            200 => reply.json(&asked),
            _ => Err(reply.error(&asked)),
        }
    }
}

/// Whether the agent does not know the check or service: 500 in Consul 1.8, 404 since.
fn is_unknown(refused: &Refused) -> bool {
    refused.status == 404
        || (refused.status == 500
            && ["does not have associated TTL", "Unknown check", "Unknown service"]
                .iter()
                .any(|text| refused.says(text)))
}
