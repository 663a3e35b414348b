//! Nodes, services and checks: as much of the catalog as sessions and health reads need
//! (`consul-semantics.md` §8).

mod registration;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use rcfarm_api::node::Health;
use rcfarm_store::{Index, PodService, RegisteredService, ServiceHealth, TtlService};
pub(super) use registration::CatalogChange;
pub use registration::{CheckRegistration, NodeRegistration};

/// The gossip check that every agent's node has; it always passes here.
pub(super) const SERF_HEALTH: &str = "serfHealth";

/// State of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Passing,
    /// Warning; ends no session.
    Warning,
    /// Critical; ends the sessions attached to the check.
    Critical,
}

impl Status {
    /// Consul's name of the state.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Passing => "passing",
            Status::Warning => "warning",
            Status::Critical => "critical",
        }
    }

    /// What a check shows of a pod with this health.
    #[must_use]
    pub fn of(health: Health) -> Status {
        match health {
            Health::Passing => Status::Passing,
            Health::Warning => Status::Warning,
            Health::Critical | Health::Unknown | Health::Absent => Status::Critical,
        }
    }

    fn health(self) -> Health {
        match self {
            Status::Passing => Health::Passing,
            Status::Warning => Health::Warning,
            Status::Critical => Health::Critical,
        }
    }

    /// The state of Consul's name.
    pub fn parse(text: &str) -> Option<Status> {
        [Status::Passing, Status::Warning, Status::Critical]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// A node in the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogNode {
    /// UUID; empty for an external node that was registered without one.
    pub id: String,
    /// IP address or host name.
    pub address: String,
    /// `TaggedAddresses`.
    pub tagged_addresses: BTreeMap<String, String>,
    /// `Meta`, for clients.
    pub meta: BTreeMap<String, String>,
    /// Index of registration.
    pub create_index: Index,
    /// Index of the last change.
    pub modify_index: Index,
}

/// A service instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Service name, shared by all instances.
    pub name: String,
    /// `Meta`, for clients.
    pub meta: BTreeMap<String, String>,
    /// `Tags`, for clients.
    pub tags: Vec<String>,
    /// Address; empty: that of the node.
    pub address: String,
    /// Port; 0: none.
    pub port: u16,
    /// Index of registration.
    pub create_index: Index,
    /// Index of the last change.
    pub modify_index: Index,
}

/// A check in the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogCheck {
    /// Description; not unique.
    pub name: String,
    /// Current state.
    pub status: Status,
    /// Note of whoever registered it.
    pub notes: String,
    /// Note of the last update.
    pub output: String,
    /// Id and name of the check's service; `None`: a check of the node.
    pub service: Option<(String, String)>,
    /// The check turns critical this long after its last update.
    pub ttl: Option<Duration>,
    /// Id of the service on the node whose health this check follows.
    pub alias: Option<String>,
    /// The service is deregistered after the check was critical for this long.
    pub deregister_after: Option<Duration>,
    /// Index of registration.
    pub create_index: Index,
    /// Index of the last change of its status.
    pub modify_index: Index,
}

impl CatalogCheck {
    /// Whether it was registered through an agent.
    #[must_use]
    pub fn is_of_agent(&self) -> bool {
        self.ttl.is_some() || self.alias.is_some()
    }
}

/// A service with its checks, to be registered at an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRequest {
    /// Instance id; unique on the node.
    pub id: String,
    /// Service name, shared by all instances.
    pub name: String,
    /// `Meta`, for clients.
    pub meta: BTreeMap<String, String>,
    /// `Tags`, for clients.
    pub tags: Vec<String>,
    /// Address; empty: that of the node.
    pub address: String,
    /// Port; 0: none.
    pub port: u16,
    /// Checks of the instance.
    pub checks: Vec<CheckRequest>,
}

/// A TTL check or an alias check of a service to be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckRequest {
    /// Check id; unique on the node.
    pub id: String,
    /// Description; not unique.
    pub name: String,
    /// State until the first update. A check that exists keeps its state.
    pub status: Status,
    /// The check turns critical this long after its last update.
    pub ttl: Option<Duration>,
    /// Id of the service on the node whose health this check follows.
    pub alias: Option<String>,
    /// As [`CatalogCheck::deregister_after`]; less than a minute counts as a minute.
    pub deregister_after: Option<Duration>,
}

impl From<&TtlService> for ServiceRequest {
    fn from(service: &TtlService) -> Self {
        ServiceRequest {
            id: service.id.clone(),
            name: service.name.clone(),
            meta: service.meta.clone(),
            tags: Vec::new(),
            address: String::new(),
            port: 0,
            checks: vec![CheckRequest {
                id: service.check_id(),
                name: format!("Service '{}' check", service.name),
                status: Status::Passing,
                ttl: Some(service.ttl),
                alias: None,
                deregister_after: Some(service.deregister_after),
            }],
        }
    }
}

impl ServiceRequest {
    /// The registration of a pod's service.
    pub(super) fn of_pod(service: &PodService, node_service: &str, health: Health) -> Self {
        let check = |id: String, name: &str, status| CheckRequest {
            id,
            name: name.to_owned(),
            status,
            ttl: None,
            alias: None,
            deregister_after: None,
        };
        let health = check(PodService::health_check(&service.id), "pod", Status::of(health));
        let node = check(PodService::node_check(&service.id), "node", Status::Passing);
        let alias = Some(node_service.to_owned());
        let deregister_after = Some(PodService::DEREGISTER_AFTER);
        ServiceRequest {
            id: service.id.clone(),
            name: service.name.clone(),
            meta: service.meta.clone(),
            tags: service.tags.clone(),
            address: service.address.clone(),
            port: service.port,
            checks: vec![
                CheckRequest { ttl: Some(PodService::TTL), ..health },
                CheckRequest { alias, deregister_after, ..node },
            ],
        }
    }
}

/// Id of an agent's node. It is derived from the name, so that runs repeat exactly.
pub(super) fn node_id(name: &str) -> String {
    let mut bytes = [0; 16];
    for (at, byte) in name.bytes().enumerate() {
        bytes[at % 16] = (bytes[at % 16] ^ byte).rotate_left(3);
    }
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

type OnNode = (String, String);

/// Nodes, services and checks, with the indexes of their reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    nodes: BTreeMap<String, CatalogNode>,
    services: BTreeMap<OnNode, Service>,
    checks: BTreeMap<OnNode, CatalogCheck>,
    by_service: BTreeMap<String, Index>,
    /// Checks that follow another service.
    aliases: BTreeSet<OnNode>,
    last_extinction: Option<Index>,
    newest_node: Index,
    newest_service: Index,
    newest_check: Index,
}

impl Catalog {
    /// A node by name.
    pub fn node(&self, name: &str) -> Option<&CatalogNode> {
        self.nodes.get(name)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &CatalogNode)> {
        self.nodes.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// All service instances with their node and id.
    pub fn services(&self) -> impl Iterator<Item = (&str, &str, &Service)> {
        self.services.iter().map(|((node, id), service)| (node.as_str(), id.as_str(), service))
    }

    /// All checks with their node and id.
    pub fn checks(&self) -> impl Iterator<Item = (&str, &str, &CatalogCheck)> {
        self.checks.iter().map(|((node, id), check)| (node.as_str(), id.as_str(), check))
    }

    /// A check by node and id.
    pub fn check(&self, node: &str, id: &str) -> Option<&CatalogCheck> {
        self.checks.get(&(node.to_owned(), id.to_owned()))
    }

    /// A service instance by node and id.
    pub fn service(&self, node: &str, id: &str) -> Option<&Service> {
        self.services.get(&(node.to_owned(), id.to_owned()))
    }

    /// The checks of a service instance: its own and those of its node.
    pub fn checks_of<'a>(
        &'a self,
        node: &'a str,
        service: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a CatalogCheck)> {
        self.checks()
            .filter(move |(on, _, check)| {
                *on == node && check.service.as_ref().is_none_or(|(id, _)| id == service)
            })
            .map(|(_, id, check)| (id, check))
    }

    /// The instances of a service as the port returns them.
    pub fn health(&self, service: &str) -> Vec<ServiceHealth> {
        self.services()
            .filter(|(_, _, s)| s.name == service)
            .map(|(node, id, _)| ServiceHealth {
                node: node.to_owned(),
                passing: self.checks_of(node, id).all(|(_, c)| c.status == Status::Passing),
            })
            .collect()
    }

    /// Services of an agent whose ids begin so, by id.
    pub(super) fn pod_services(
        &self,
        node: &str,
        id_prefix: &str,
    ) -> BTreeMap<String, RegisteredService> {
        let found = self.services().filter(|(on, id, _)| *on == node && id.starts_with(id_prefix));
        let found = found.map(|(_, id, service)| {
            let health = self.check(node, &PodService::health_check(id));
            let registered = RegisteredService {
                service: PodService {
                    id: id.to_owned(),
                    name: service.name.clone(),
                    address: service.address.clone(),
                    port: service.port,
                    tags: service.tags.clone(),
                    meta: service.meta.clone(),
                },
                health: health.map_or(Health::Absent, |check| check.status.health()),
                has_node_check: self.check(node, &PodService::node_check(id)).is_some(),
                is_current: true,
            };
            (id.to_owned(), registered)
        });
        found.collect()
    }

    /// The index of a read of one service: the first that exists of its last change, the last deregistration of any
    /// service, and the catalog's index.
    pub fn service_index(&self, service: &str) -> Index {
        self.by_service
            .get(service)
            .copied()
            .or(self.last_extinction)
            .unwrap_or_else(|| self.index())
    }

    /// The index of the node table.
    pub fn node_index(&self) -> Index {
        self.newest_node
    }

    /// The index of the service table.
    pub fn services_index(&self) -> Index {
        self.newest_service
    }

    /// The index of the check table.
    pub fn check_index(&self) -> Index {
        self.newest_check
    }

    /// The index of the last change of the catalog.
    pub fn index(&self) -> Index {
        self.newest_node.max(self.newest_service).max(self.newest_check)
    }

    pub(super) fn add_agent(&mut self, name: &str, index: Index) {
        let address = "127.0.0.1".to_owned();
        let tagged = ["lan", "wan"].map(|tag| (tag.to_owned(), address.clone()));
        let node = CatalogNode {
            id: node_id(name),
            address,
            tagged_addresses: tagged.into(),
            meta: [("consul-network-segment".to_owned(), String::new())].into(),
            create_index: index,
            modify_index: index,
        };
        self.nodes.insert(name.to_owned(), node);
        let check = CatalogCheck {
            name: "Serf Health Status".to_owned(),
            status: Status::Passing,
            notes: String::new(),
            output: "Agent alive and reachable".to_owned(),
            service: None,
            ttl: None,
            alias: None,
            deregister_after: None,
            create_index: index,
            modify_index: index,
        };
        self.checks.insert((name.to_owned(), SERF_HEALTH.to_owned()), check);
        (self.newest_node, self.newest_check) = (index, index);
    }

    /// Registers a service and its checks. Returns whether anything changed.
    pub(super) fn register(&mut self, node: &str, request: &ServiceRequest, index: Index) -> bool {
        let at = (node.to_owned(), request.id.clone());
        let old = self.services.get(&at);
        let mut service = Service {
            name: request.name.clone(),
            meta: request.meta.clone(),
            tags: request.tags.clone(),
            address: request.address.clone(),
            port: request.port,
            create_index: old.map_or(index, |s| s.create_index),
            modify_index: old.map_or(index, |s| s.modify_index),
        };
        let mut changed = old != Some(&service);
        if changed {
            service.modify_index = index;
            self.newest_service = index;
            self.services.insert(at, service);
        }
        for wanted in &request.checks {
            changed |= self.register_check(node, request, wanted, index);
        }
        if changed {
            self.touch(&request.name, index);
        }
        changed
    }

    fn register_check(
        &mut self,
        node: &str,
        service: &ServiceRequest,
        wanted: &CheckRequest,
        index: Index,
    ) -> bool {
        let at = (node.to_owned(), wanted.id.clone());
        let old = self.checks.get(&at);
        let mut check = CatalogCheck {
            name: wanted.name.clone(),
            status: old.map_or(wanted.status, |c| c.status),
            notes: String::new(),
            output: old.map(|c| c.output.clone()).unwrap_or_default(),
            service: Some((service.id.clone(), service.name.clone())),
            ttl: wanted.ttl,
            alias: wanted.alias.clone(),
            deregister_after: wanted.deregister_after.map(|d| d.max(Duration::from_secs(60))),
            create_index: old.map_or(index, |c| c.create_index),
            modify_index: old.map_or(index, |c| c.modify_index),
        };
        let changed = old != Some(&check);
        if changed {
            check.modify_index = index;
            self.newest_check = index;
            match &check.alias {
                Some(_) => self.aliases.insert(at.clone()),
                None => self.aliases.remove(&at),
            };
            self.checks.insert(at, check);
        }
        changed
    }

    /// Sets the status of each alias check to that of the service that it follows: of its worst check, and of the TTL
    /// checks of the node itself. While that service is not there, it is critical. Returns the checks that changed, by node
    /// and id.
    pub(super) fn follow_aliases(&mut self, index: Index) -> Vec<(String, String)> {
        let mut changed = Vec::new();
        // An alias may follow a service that has an alias.
        for _ in 0..=self.aliases.len() {
            let before = changed.len();
            for at in self.aliases.clone() {
                let Some(target) = self.checks.get(&at).and_then(|check| check.alias.clone())
                else {
                    continue;
                };
                let (status, output) = self.aliased(&at, &target);
                if self.update_check(&at.0, &at.1, status, &output, index).is_some() {
                    changed.push(at);
                }
            }
            if changed.len() == before {
                break;
            }
        }
        changed
    }

    fn aliased(&self, (node, own): &OnNode, target: &str) -> (Status, String) {
        let followed = self.checks().filter(|(on, id, check)| {
            let is_followed = check.service.as_ref().is_none_or(|(service, _)| service == target);
            on == node && id != own && check.is_of_agent() && is_followed
        });
        let worst = followed.map(|(_, _, check)| check).max_by_key(|check| check.status);
        match worst {
            None if self.service(node, target).is_some() => {
                (Status::Passing, "No checks found.".to_owned())
            }
            None => {
                let output = format!("Service {target} could not be found on node {node}");
                (Status::Critical, output)
            }
            Some(check) if check.status == Status::Passing => {
                (Status::Passing, "All checks passing.".to_owned())
            }
            Some(check) => {
                (check.status, format!("Aliased check {:?} failing: {}", check.name, check.output))
            }
        }
    }

    /// Updates a check. A new note alone changes no index (Consul's agent sends it on later). Returns the service whose
    /// health changed.
    pub(super) fn update_check(
        &mut self,
        node: &str,
        id: &str,
        status: Status,
        note: &str,
        index: Index,
    ) -> Option<String> {
        let check = self.checks.get_mut(&(node.to_owned(), id.to_owned()))?;
        note.clone_into(&mut check.output);
        if check.status == status {
            return None;
        }
        check.status = status;
        check.modify_index = index;
        self.newest_check = index;
        let name = check.service.as_ref().map(|(_, name)| name.clone()).unwrap_or_default();
        self.touch(&name, index);
        Some(name)
    }

    /// Removes a service and its checks. Returns its name and the ids of the checks.
    pub(super) fn deregister(
        &mut self,
        node: &str,
        id: &str,
        index: Index,
    ) -> Option<(String, Vec<String>)> {
        let service = self.services.remove(&(node.to_owned(), id.to_owned()))?;
        let gone: Vec<String> = self
            .checks()
            .filter(|(on, _, c)| *on == node && c.service.as_ref().is_some_and(|(s, _)| s == id))
            .map(|(_, check, _)| check.to_owned())
            .collect();
        for check in &gone {
            let at = (node.to_owned(), check.clone());
            self.checks.remove(&at);
            self.aliases.remove(&at);
            self.newest_check = index;
        }
        self.newest_service = index;
        self.touch(&service.name, index);
        if !self.services.values().any(|s| s.name == service.name) {
            self.by_service.remove(&service.name);
            self.last_extinction = Some(index);
        }
        Some((service.name, gone))
    }

    fn touch(&mut self, service: &str, index: Index) {
        if !service.is_empty() {
            self.by_service.insert(service.to_owned(), index);
        }
    }
}
