//! Services of pods in Consul's catalog: what is to be registered with the local Consul agent, and the next requests to
//! it. Pure.
//!
//! A service of a pod is registered from the pod's first start until the pod has ended or is no longer intended. It has
//! two checks. The TTL check has the pod's health and is updated when that changes. The alias check follows the service
//! `rcfarm-node-<node>`, whose heartbeat is the agent's: when the agent dies, all its services turn critical with it, and
//! Consul removes them a minute later. The agent registers them again when it is back.

use std::collections::BTreeMap;

use super::AgentSettings;
use super::pod::PodTask;
use super::proof::Proof;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::job::identity::identity_in;
use rcfarm_api::manifest::{OWN_META, ServicePort, ServiceStanza, port_variable};
use rcfarm_api::node::Health;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_store::{PodService, RegisteredService};

/// A service that is to be registered now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntendedService {
    /// Its pod.
    pub pod: PodId,
    /// What is registered.
    pub service: PodService,
    /// The pod's health. [`Health::Unknown`]: nothing is known yet, so a check that exists keeps its status. It was
    /// registered by the agent before this one, or tells of the process before this one.
    pub health: Health,
    /// Output of the check.
    pub note: String,
}

/// Services to be registered, by id.
pub type IntendedServices = BTreeMap<String, IntendedService>;

/// A request to the local Consul agent. Ids are those of services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceAction {
    /// Remove a service whose pod is gone.
    Deregister(String),
    /// Register a service that is not there or differs.
    Register(String),
    /// Set the check with the pod's health.
    SetHealth(String),
}

/// Beginning of the ids of all services of a node's pods.
#[must_use]
pub fn id_prefix(node: &NodeName) -> String {
    format!("rcfarm-pod:{node}:")
}

/// The next requests. `found`: the services of this node's pods that the Consul agent has.
#[must_use]
pub fn plan(
    intended: &IntendedServices,
    found: &BTreeMap<String, RegisteredService>,
) -> Vec<ServiceAction> {
    let gone = found.keys().filter(|id| !intended.contains_key(*id));
    let mut actions: Vec<ServiceAction> = gone.cloned().map(ServiceAction::Deregister).collect();
    for (id, intended) in intended {
        let found = found.get(id);
        let is_registered = found.is_some_and(|found| {
            found.service == intended.service
                && found.health != Health::Absent
                && found.has_node_check
                && found.is_current
        });
        if !is_registered {
            actions.push(ServiceAction::Register(id.clone()));
        }
        // A new check begins with the pod's health.
        let before = found.map(|found| found.health).filter(|health| *health != Health::Absent);
        let is_decided = intended.health != Health::Unknown;
        if is_decided && before.is_some_and(|before| before != shown(intended.health)) {
            actions.push(ServiceAction::SetHealth(id.clone()));
        }
    }
    actions
}

/// What a check shows of a health.
fn shown(health: Health) -> Health {
    match health {
        Health::Unknown | Health::Absent => Health::Critical,
        health => health,
    }
}

impl PodTask {
    /// The services of the pod's manifest on this node, and why others of them are not registered.
    pub(super) fn services_of(&self, settings: &AgentSettings) -> (Vec<PodService>, Vec<String>) {
        let stanzas = self.spec.as_ref().map(|spec| spec.services.as_slice()).unwrap_or_default();
        let ports = self.ports();
        let mut services = Vec::new();
        let mut notes = Vec::new();
        for stanza in stanzas {
            match service(stanza, &self.id, &self.intended.manifest, &ports, settings) {
                Ok(service) => services.push(service),
                Err(why) => {
                    notes.push(format!("service {} is not registered: {why}", stanza.name));
                }
            }
        }
        (services, notes)
    }

    /// The pod's services that are to be registered now.
    pub(super) fn intended_services(&self) -> Vec<IntendedService> {
        if self.services.is_empty() || self.spec.is_err() || self.proof == Proof::Gone {
            return Vec::new();
        }
        let report = self.report();
        if report.reality.is_none() || report.status.phase == NodePodPhase::Ended {
            return Vec::new();
        }
        let of = |service: &PodService| IntendedService {
            pod: self.id.clone(),
            service: service.clone(),
            health: report.status.health,
            note: report.status.message.clone(),
        };
        self.services.iter().map(of).collect()
    }
}

fn service(
    stanza: &ServiceStanza,
    pod: &PodId,
    manifest: &str,
    ports: &BTreeMap<String, u16>,
    settings: &AgentSettings,
) -> Result<PodService, String> {
    if !settings.permits.may_register(&stanza.name) {
        return Err("the node's agent does not allow the name (--allow-service)".to_owned());
    }
    let port = stanza.port.as_ref().map_or(Ok(0), |port| port_number(port, ports, settings))?;
    let mut meta = stanza.meta.clone();
    let mut set = |name: &str, value: String| meta.insert(format!("{OWN_META}{name}"), value);
    set("node", settings.name.to_string());
    set("pod", pod.to_string());
    if let Some(identity) = identity_in(manifest.as_bytes()) {
        set("job", identity.job.to_string());
        set("uid", identity.uid.to_string());
        set("task", identity.slot.task.clone());
        set("index", identity.slot.index.to_string());
    }
    // By default the address is the node's name, which Consul may not know. Then that of the Consul agent counts.
    let is_named = settings.address == settings.name.as_str();
    Ok(PodService {
        id: format!("{}{pod}:{}", id_prefix(&settings.name), stanza.name),
        name: stanza.name.clone(),
        address: if is_named { String::new() } else { settings.address.clone() },
        port,
        tags: stanza.tags.clone(),
        meta,
    })
}

/// Number of a service's port.
fn port_number(
    port: &ServicePort,
    ports: &BTreeMap<String, u16>,
    settings: &AgentSettings,
) -> Result<u16, String> {
    if let ServicePort::Number(port) = port {
        return Ok(*port);
    }
    if let Some(name) = port.name() {
        let port = ports.get(name).copied();
        return port.ok_or_else(|| format!("port: no port {name} is allocated to the pod"));
    }
    let name = port.variable().unwrap_or_default();
    if let Some((_, port)) = ports.iter().find(|(port, _)| port_variable(port) == name) {
        return Ok(*port);
    }
    let value = settings.env.get(name);
    let value = value.ok_or_else(|| format!("port: the node does not set {name}"))?;
    let port: Option<u16> = value.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("port: {name} of the node is no port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intended(id: &str, health: Health) -> (String, IntendedService) {
        let service = PodService {
            id: id.to_owned(),
            name: "web".to_owned(),
            address: String::new(),
            port: 80,
            tags: vec!["a".to_owned()],
            meta: BTreeMap::new(),
        };
        let pod = "web".parse().unwrap();
        (id.to_owned(), IntendedService { pod, service, health, note: String::new() })
    }

    fn found(id: &str, health: Health) -> (String, RegisteredService) {
        let service = intended(id, health).1.service;
        let registered =
            RegisteredService { service, health, has_node_check: true, is_current: true };
        (id.to_owned(), registered)
    }

    #[test]
    fn plan_makes_the_agents_services_those_of_the_pods() {
        use Health::{Absent, Critical, Passing, Unknown};
        use ServiceAction::{Deregister, Register, SetHealth};
        let id = || "s".to_owned();
        let same = found("s", Passing);
        let changed = |change: &dyn Fn(&mut RegisteredService)| {
            let (id, mut registered) = same.clone();
            change(&mut registered);
            Some((id, registered))
        };
        type Found = Option<(String, RegisteredService)>;
        let cases: [(Option<Health>, Found, Vec<ServiceAction>); 13] = [
            (None, None, vec![]),
            (None, Some(same.clone()), vec![Deregister(id())]),
            (Some(Passing), None, vec![Register(id())]),
            (Some(Unknown), None, vec![Register(id())]),
            (Some(Passing), Some(same.clone()), vec![]),
            (Some(Critical), Some(same.clone()), vec![SetHealth(id())]),
            (Some(Passing), Some(found("s", Critical)), vec![SetHealth(id())]),
            (Some(Unknown), Some(same.clone()), vec![]),
            (Some(Unknown), Some(found("s", Critical)), vec![]),
            (Some(Passing), Some(found("s", Absent)), vec![Register(id())]),
            (Some(Passing), changed(&|it| it.has_node_check = false), vec![Register(id())]),
            (Some(Passing), changed(&|it| it.is_current = false), vec![Register(id())]),
            (
                Some(Critical),
                changed(&|it| it.service.port = 81),
                vec![Register(id()), SetHealth(id())],
            ),
        ];
        for (health, found, actions) in cases {
            let intended = health.map(|health| intended("s", health)).into_iter().collect();
            let registered = found.clone().into_iter().collect();
            assert_eq!(plan(&intended, &registered), actions, "{health:?} {found:?}");
        }
    }
}
