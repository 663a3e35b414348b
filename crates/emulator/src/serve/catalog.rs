//! `/v1/health/` and `/v1/catalog/`.

use axum::http::HeaderValue;
use axum::response::Response;
use serde_json::{Map, Value, json as value};
use uuid::Uuid;

use super::answer::{at, json};
use super::parsed_request::ParsedRequest;
use super::refusal::HttpRefusal;
use crate::fault::Request;
use crate::{Catalog, CatalogCheck, CatalogNode, Emulator, Service, Status, Subject, Tables};

pub(super) async fn answer(
    consul: &Emulator,
    parsed: &ParsedRequest<'_>,
) -> Result<Response, HttpRefusal> {
    if parsed.what == "catalog/datacenters" {
        return json(parsed, &["dc1"]);
    }
    parsed.without(&["filter", "tag", "node-meta"])?;
    let name = parsed.name.to_owned();
    let subject = match parsed.what {
        "health/service/" | "health/checks/" | "catalog/service/" => Subject::Service(name),
        "health/node/" | "health/state/" => Subject::Checks,
        "catalog/nodes" => Subject::Nodes,
        _ => Subject::Services,
    };
    let look = |tables: &Tables| look(&tables.catalog, parsed);
    let answer = consul.read(Request::Catalog, subject, parsed.query()?, look).await?;
    let mut response = at(answer.index, json(parsed, &answer.value)?);
    let leader = HeaderValue::from_static("leader");
    response.headers_mut().insert("x-consul-effective-consistency", leader);
    Ok(response)
}

fn look(catalog: &Catalog, parsed: &ParsedRequest<'_>) -> Value {
    let name = parsed.name;
    let checks = |wanted: &dyn Fn(&str, &CatalogCheck) -> bool| {
        let found = catalog.checks().filter(|(node, _, check)| wanted(node, check));
        found.map(|(node, id, check)| check_shown(node, id, check)).collect()
    };
    match parsed.what {
        "health/service/" => health(catalog, name, parsed.has("passing")),
        "health/checks/" => {
            checks(&|_, check| check.service.as_ref().is_some_and(|(_, service)| service == name))
        }
        "health/node/" => checks(&|node, _| node == name),
        "health/state/" => checks(&|_, check| name == "any" || check.status.as_str() == name),
        "catalog/nodes" => catalog.nodes().map(|(name, node)| node_shown(name, node)).collect(),
        "catalog/node/" => match catalog.node(name) {
            None => Value::Null,
            Some(node) => {
                let services = catalog.services().filter(|(on, ..)| *on == name);
                let services: Map<String, Value> =
                    services.map(|(_, id, s)| (id.to_owned(), service_shown(id, s))).collect();
                value!({ "Node": node_shown(name, node), "Services": services })
            }
        },
        "catalog/services" => {
            let mut tags = Map::from_iter([("consul".to_owned(), value!([]))]);
            for (_, _, service) in catalog.services() {
                tags.insert(service.name.clone(), value!(service.tags));
            }
            Value::Object(tags)
        }
        _ => catalog.services().filter(|(_, _, s)| s.name == name).map(instance).collect(),
    }
}

fn health(catalog: &Catalog, name: &str, passing: bool) -> Value {
    let found = catalog.services().filter(|(_, _, service)| service.name == name);
    found
        .filter(|(node, id, _)| {
            !passing || catalog.checks_of(node, id).all(|(_, c)| c.status == Status::Passing)
        })
        .map(|(node, id, service)| {
            let checks = catalog.checks_of(node, id).map(|(check, c)| check_shown(node, check, c));
            value!({
                "Node": catalog.node(node).map(|n| node_shown(node, n)),
                "Service": service_shown(id, service),
                "Checks": checks.collect::<Vec<_>>(),
            })
        })
        .collect()
}

/// A node's id, derived from its name, so that runs repeat exactly.
pub(super) fn node_id(name: &str) -> Uuid {
    let mut bytes = [0; 16];
    for (at, byte) in name.bytes().enumerate() {
        bytes[at % 16] = (bytes[at % 16] ^ byte).rotate_left(3);
    }
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

fn node_shown(name: &str, node: &CatalogNode) -> Value {
    value!({
        "ID": node_id(name),
        "Node": name,
        "Address": node.address,
        "Datacenter": "dc1",
        "TaggedAddresses": { "lan": node.address, "wan": node.address },
        "Meta": {},
        "CreateIndex": node.create_index,
        "ModifyIndex": node.create_index,
    })
}

pub(super) fn service_shown(id: &str, service: &Service) -> Value {
    value!({
        "ID": id,
        "Service": service.name,
        "Tags": service.tags,
        "Address": service.address,
        "Meta": service.meta,
        "Port": service.port,
        "Weights": { "Passing": 1, "Warning": 1 },
        "EnableTagOverride": false,
        "CreateIndex": service.create_index,
        "ModifyIndex": service.modify_index,
    })
}

fn instance((node, id, service): (&str, &str, &Service)) -> Value {
    value!({
        "ID": node_id(node),
        "Node": node,
        "Address": "127.0.0.1",
        "Datacenter": "dc1",
        "NodeMeta": {},
        "ServiceID": id,
        "ServiceName": service.name,
        "ServiceTags": service.tags,
        "ServiceAddress": service.address,
        "ServiceMeta": service.meta,
        "ServicePort": service.port,
        "CreateIndex": service.create_index,
        "ModifyIndex": service.modify_index,
    })
}

pub(super) fn check_shown(node: &str, id: &str, check: &CatalogCheck) -> Value {
    let (service_id, service) = check.service.clone().unwrap_or_default();
    value!({
        "Node": node,
        "CheckID": id,
        "Name": check.name,
        "Status": check.status,
        "Notes": "",
        "Output": check.output,
        "ServiceID": service_id,
        "ServiceName": service,
        "ServiceTags": [],
        "Type": if check.ttl.is_some() { "ttl" } else { "" },
        "Definition": {},
        "CreateIndex": check.create_index,
        "ModifyIndex": check.modify_index,
    })
}
