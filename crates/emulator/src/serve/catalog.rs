//! `/v1/health/` and `/v1/catalog/`.

use std::collections::BTreeMap;

use axum::http::HeaderValue;
use axum::response::Response;
use serde_json::{Map, Value, json as value};

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
    parsed.without(&["filter", "tag"])?;
    let name = parsed.name.to_owned();
    let subject = match parsed.what {
        "health/service/" | "health/checks/" | "catalog/service/" => Subject::Service(name),
        "health/node/" | "health/state/" => Subject::Checks,
        "catalog/nodes" => Subject::Nodes,
        _ => Subject::Services,
    };
    let select = |tables: &Tables| shown(&tables.catalog, parsed);
    let answer = consul.read(Request::Catalog, subject, parsed.query()?, select).await?;
    let mut response = at(answer.index, json(parsed, &answer.value)?);
    let leader = HeaderValue::from_static("leader");
    response.headers_mut().insert("x-consul-effective-consistency", leader);
    Ok(response)
}

fn shown(catalog: &Catalog, parsed: &ParsedRequest<'_>) -> Value {
    let name = parsed.name;
    let meta = parsed.all("node-meta").map(|pair| pair.split_once(':').unwrap_or((pair, "")));
    let meta: Vec<(&str, &str)> = meta.collect();
    let fits = |node: &CatalogNode| {
        meta.iter().all(|(key, value)| node.meta.get(*key).is_some_and(|v| v == value))
    };
    let on_fit = |node: &str| meta.is_empty() || catalog.node(node).is_some_and(fits);
    let checks = |wanted: &dyn Fn(&str, &CatalogCheck) -> bool| {
        let found = catalog.checks().filter(|(on, _, check)| wanted(on, check) && on_fit(on));
        found.map(|(node, id, check)| check_shown(node, id, check)).collect()
    };
    let services = || catalog.services().filter(|(on, ..)| on_fit(on));
    match parsed.what {
        "health/service/" => {
            let passing = parsed.has("passing");
            let found = services().filter(|(on, id, service)| {
                let mut checks = catalog.checks_of(on, id);
                service.name == name
                    && (!passing || checks.all(|(_, c)| c.status == Status::Passing))
            });
            found.map(|instance| health(catalog, instance)).collect()
        }
        "health/checks/" => {
            checks(&|_, check| check.service.as_ref().is_some_and(|(_, service)| service == name))
        }
        "health/node/" => checks(&|node, _| node == name),
        "health/state/" => checks(&|_, check| name == "any" || check.status.as_str() == name),
        "catalog/nodes" => {
            let found = catalog.nodes().filter(|(_, node)| fits(node));
            found.map(|(name, node)| node_shown(name, node)).collect()
        }
        "catalog/node/" => match catalog.node(name) {
            None => Value::Null,
            Some(node) => {
                let services = services().filter(|(on, ..)| *on == name);
                let services: Map<String, Value> =
                    services.map(|(_, id, s)| (id.to_owned(), service_shown(id, s))).collect();
                value!({ "Node": node_shown(name, node), "Services": services })
            }
        },
        "catalog/services" => {
            let mut tags = Map::new();
            if meta.is_empty() {
                tags.insert("consul".to_owned(), value!([]));
            }
            for (_, _, service) in services() {
                tags.insert(service.name.clone(), value!(service.tags));
            }
            Value::Object(tags)
        }
        _ => {
            let found = services().filter(|(_, _, service)| service.name == name);
            found.map(|instance| service_on_node(catalog, instance)).collect()
        }
    }
}

fn health(catalog: &Catalog, (node, id, service): (&str, &str, &Service)) -> Value {
    let checks = catalog.checks_of(node, id).map(|(check, c)| check_shown(node, check, c));
    value!({
        "Node": catalog.node(node).map(|n| node_shown(node, n)),
        "Service": service_shown(id, service),
        "Checks": checks.collect::<Vec<_>>(),
    })
}

fn node_shown(name: &str, node: &CatalogNode) -> Value {
    value!({
        "ID": node.id,
        "Node": name,
        "Address": node.address,
        "Datacenter": "dc1",
        "TaggedAddresses": or_null(&node.tagged_addresses),
        "Meta": or_null(&node.meta),
        "CreateIndex": node.create_index,
        "ModifyIndex": node.modify_index,
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

fn or_null(map: &BTreeMap<String, String>) -> Option<&BTreeMap<String, String>> {
    Some(map).filter(|map| !map.is_empty())
}

fn service_on_node(catalog: &Catalog, (node, id, service): (&str, &str, &Service)) -> Value {
    let on = catalog.node(node);
    value!({
        "ID": on.map_or("", |on| &on.id),
        "Node": node,
        "Address": on.map_or("", |on| &on.address),
        "Datacenter": "dc1",
        "NodeMeta": on.and_then(|on| or_null(&on.meta)),
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
        "Notes": check.notes,
        "Output": check.output,
        "ServiceID": service_id,
        "ServiceName": service,
        "ServiceTags": [],
        "Type": match (check.ttl, &check.alias) {
            (Some(_), _) => "ttl",
            (None, Some(_)) => "alias",
            (None, None) => "",
        },
        "Definition": {},
        "CreateIndex": check.create_index,
        "ModifyIndex": check.modify_index,
    })
}
