//! Changes that come to the catalog itself and not through an agent: `/v1/catalog/register` and `/deregister`
//! (`consul-semantics.md` §8).

use std::collections::{BTreeMap, BTreeSet};

use super::{Catalog, CatalogCheck, CatalogNode, ServiceRequest, Status};
use rcfarm_api::Index;

/// A node, and optionally a service and checks on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRegistration {
    /// Name of the node.
    pub node: String,
    /// UUID of the node; may be empty.
    pub id: String,
    /// IP address or host name.
    pub address: String,
    /// `TaggedAddresses` of the node.
    pub tagged_addresses: BTreeMap<String, String>,
    /// `NodeMeta`.
    pub meta: BTreeMap<String, String>,
    /// A node that exists keeps its address and metadata.
    pub skip_node_update: bool,
    /// A service on the node. Its `checks` are not read.
    pub service: Option<ServiceRequest>,
    /// Checks of the node or of its services.
    pub checks: Vec<CheckRegistration>,
}

/// A check without a TTL: whoever registered it updates it by registering it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckRegistration {
    /// Check id; unique on the node.
    pub id: String,
    /// Description; not unique.
    pub name: String,
    /// Current state.
    pub status: Status,
    /// Note of the person who wrote it.
    pub notes: String,
    /// Note of the last update.
    pub output: String,
    /// Id of its service; empty: a check of the node.
    pub service_id: String,
}

/// What a change of the catalog touched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CatalogChange {
    /// Whether a table changed.
    pub(crate) changed: bool,
    /// Services with other instances or another health.
    pub(crate) services: BTreeSet<String>,
    /// Checks that are critical or gone now. Sessions that need one end.
    pub(crate) failed_checks: Vec<String>,
    /// Checks that are gone, by id.
    pub(crate) gone: Vec<String>,
}

impl Catalog {
    /// Registers a node, its service and its checks. What is registered already and equal changes no index.
    ///
    /// # Errors
    /// A check has no id, or names a service that the node does not have. Nothing is changed then.
    pub(crate) fn register_node(
        &mut self,
        request: &NodeRegistration,
        index: Index,
    ) -> Result<CatalogChange, String> {
        let node = &request.node;
        let registered = request.service.as_ref().map(|service| service.id.as_str());
        let is_known =
            |id: &str| id.is_empty() || registered == Some(id) || self.service(node, id).is_some();
        if !request.checks.iter().all(|check| is_known(&check.service_id)) {
            let why = format!("Missing service registration on node {node:?}");
            return Err(format!("failed inserting check: {why}"));
        }
        if request.checks.iter().any(|check| check.id.is_empty()) {
            let why = format!("object missing primary index on node {node:?}");
            return Err(format!("failed inserting check: failed inserting check: {why}"));
        }
        let mut change = CatalogChange::default();
        self.put_node(request, index, &mut change);
        if let Some(service) = &request.service {
            let service = ServiceRequest { checks: Vec::new(), ..service.clone() };
            if self.register(node, &service, index) {
                change.changed = true;
                change.services.insert(service.name);
            }
        }
        for check in &request.checks {
            self.put_check(node, check, index, &mut change);
        }
        Ok(change)
    }

    fn put_node(&mut self, request: &NodeRegistration, index: Index, change: &mut CatalogChange) {
        let old = self.nodes.get(&request.node);
        if old.is_some() && request.skip_node_update {
            return;
        }
        let mut node = CatalogNode {
            id: request.id.clone(),
            address: request.address.clone(),
            tagged_addresses: request.tagged_addresses.clone(),
            meta: request.meta.clone(),
            create_index: old.map_or(index, |node| node.create_index),
            modify_index: old.map_or(index, |node| node.modify_index),
        };
        if old != Some(&node) {
            node.modify_index = index;
            self.nodes.insert(request.node.clone(), node);
            self.newest_node = index;
            change.changed = true;
            self.touch_all_on(&request.node, index, change);
        }
    }

    fn put_check(
        &mut self,
        node: &str,
        request: &CheckRegistration,
        index: Index,
        change: &mut CatalogChange,
    ) {
        let at = (node.to_owned(), request.id.clone());
        let service = self.service(node, &request.service_id);
        let service = service.map(|service| (request.service_id.clone(), service.name.clone()));
        let old = self.checks.get(&at);
        let mut check = CatalogCheck {
            name: request.name.clone(),
            status: request.status,
            notes: request.notes.clone(),
            output: request.output.clone(),
            service,
            ttl: None,
            alias: None,
            deregister_after: None,
            create_index: old.map_or(index, |check| check.create_index),
            modify_index: old.map_or(index, |check| check.modify_index),
        };
        if check.status == Status::Critical {
            change.failed_checks.push(request.id.clone());
        }
        if old == Some(&check) {
            return;
        }
        check.modify_index = index;
        self.newest_check = index;
        change.changed = true;
        self.touch_of_check(node, &check, index, change);
        self.checks.insert(at, check);
    }

    /// Removes a service of a node with its checks; without one, a check; without either, the node with everything on
    /// it. What is not there changes nothing.
    pub(crate) fn deregister_node(
        &mut self,
        node: &str,
        service: &str,
        check: &str,
        index: Index,
    ) -> CatalogChange {
        let mut change = CatalogChange::default();
        if !service.is_empty() {
            self.remove_service(node, service, index, &mut change);
        } else if !check.is_empty() {
            self.remove_check(node, check, index, &mut change);
        } else if self.nodes.contains_key(node) {
            let of = |(on, id): &(String, String)| (on == node).then(|| id.clone());
            let services: Vec<String> = self.services.keys().filter_map(of).collect();
            for id in services {
                self.remove_service(node, &id, index, &mut change);
            }
            let checks: Vec<String> = self.checks.keys().filter_map(of).collect();
            for id in checks {
                self.remove_check(node, &id, index, &mut change);
            }
            self.nodes.remove(node);
            self.newest_node = index;
            change.changed = true;
        }
        change
    }

    fn remove_service(&mut self, node: &str, id: &str, index: Index, change: &mut CatalogChange) {
        let Some((name, checks)) = self.deregister(node, id, index) else { return };
        change.changed = true;
        change.services.insert(name);
        change.failed_checks.extend(checks.iter().cloned());
        change.gone.extend(checks);
    }

    fn remove_check(&mut self, node: &str, id: &str, index: Index, change: &mut CatalogChange) {
        let at = (node.to_owned(), id.to_owned());
        let Some(check) = self.checks.remove(&at) else { return };
        self.aliases.remove(&at);
        self.newest_check = index;
        change.changed = true;
        self.touch_of_check(node, &check, index, change);
        change.failed_checks.push(id.to_owned());
        change.gone.push(id.to_owned());
    }

    /// A check of a node is part of the health of every service on it.
    fn touch_of_check(
        &mut self,
        node: &str,
        check: &CatalogCheck,
        index: Index,
        change: &mut CatalogChange,
    ) {
        match &check.service {
            Some((_, name)) => {
                self.touch(name, index);
                change.services.insert(name.clone());
            }
            None => self.touch_all_on(node, index, change),
        }
    }

    fn touch_all_on(&mut self, node: &str, index: Index, change: &mut CatalogChange) {
        let on = self.services.iter().filter(|((on, _), _)| on == node);
        let names: BTreeSet<String> = on.map(|(_, service)| service.name.clone()).collect();
        for name in names {
            self.touch(&name, index);
            change.services.insert(name);
        }
    }
}
