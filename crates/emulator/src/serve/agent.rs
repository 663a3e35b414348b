//! `/v1/agent/` and `/v1/status/`.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json as value};

use super::answer::json;
use super::body::{self, BodyFields};
use super::catalog::{check_shown, service_shown};
use super::parsed_request::ParsedRequest;
use super::refusal::HttpRefusal;
use super::registration;
use crate::catalog::node_id;
use crate::{CheckRequest, Emulator, LEADER, MAX_VALUE, ServiceRequest, Status, duration};
use rcfarm_store::Reader;

/// The version that the model behaves as.
const VERSION: &str = "1.8.7";

pub(super) async fn answer(
    consul: &Emulator,
    parsed: &ParsedRequest<'_>,
    body: &body::Body,
) -> Result<Response, HttpRefusal> {
    match parsed.what {
        "status/leader" => json(parsed, &consul.leader().await?),
        "status/peers" => json(parsed, &[LEADER]),
        "agent/self" => json(parsed, &about(consul)),
        "agent/members" => json(parsed, &[member(consul.node())]),
        "agent/services" | "agent/checks" => json(parsed, &local(consul, parsed.what)),
        "agent/service/register" => {
            consul.register(service_request(body)?).await?;
            Ok(Response::new(Body::empty()))
        }
        "agent/service/deregister/" => {
            consul.deregister(parsed.name).await?;
            Ok(Response::new(Body::empty()))
        }
        _ => update_check(consul, parsed, body).await,
    }
}

async fn update_check(
    consul: &Emulator,
    parsed: &ParsedRequest<'_>,
    body: &body::Body,
) -> Result<Response, HttpRefusal> {
    let note = parsed.get("note").unwrap_or_default().to_owned();
    let (status, note) = match parsed.what {
        "agent/check/pass/" => (Status::Passing, note),
        "agent/check/warn/" => (Status::Warning, note),
        "agent/check/fail/" => (Status::Critical, note),
        _ => {
            let decode = || {
                let mut fields = BodyFields::of(body.json()?)?;
                Ok((fields.text("Status")?, fields.text("Output")?))
            };
            let (status, output) = decode().map_err(HttpRefusal::undecodable)?;
            let bad = || HttpRefusal::bad_request(format!("Invalid check status: '{status}'"));
            (Status::parse(&status).ok_or_else(bad)?, output)
        }
    };
    if consul.set_check(parsed.name, status, &note).await? {
        return Ok(Response::new(Body::empty()));
    }
    let text = format!("CheckID {:?} does not have associated TTL", parsed.name);
    Err(HttpRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, text))
}

/// Said of checks of another type.
const MODELLED: &str = "only TTL checks and aliases of services are modelled";

// ---- registration ------------------------------------------------------------------------------------

fn service_request(body: &body::Body) -> Result<ServiceRequest, HttpRefusal> {
    let (service, checks) = service_fields(body).map_err(HttpRefusal::undecodable)?;
    if service.name.is_empty() {
        return Err(HttpRefusal::bad_request("Missing service name"));
    }
    let many = checks.len() > 1;
    let mut service = service;
    for (n, check) in checks.into_iter().enumerate() {
        let default = match many {
            true => format!("service:{}:{}", service.id, n + 1),
            false => format!("service:{}", service.id),
        };
        let name = format!("Service '{}' check", service.name);
        service.checks.push(check_request(check, default, name)?);
    }
    Ok(service)
}

fn service_fields(body: &body::Body) -> Result<(ServiceRequest, Vec<BodyFields>), String> {
    let mut fields = BodyFields::of(body.json()?)?;
    let one = fields.take("Check").map(BodyFields::of).transpose()?;
    let many = match fields.take("Checks") {
        None => Vec::new(),
        Some(Value::Array(checks)) => {
            checks.into_iter().map(BodyFields::of).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(body::unfit(&other, "Checks", "structs.CheckTypes")),
    };
    let service = registration::service(&mut fields, "Name")?;
    fields.end()?;
    Ok((service, one.into_iter().chain(many).filter(|check| !check.is_empty()).collect()))
}

fn check_request(
    mut check: BodyFields,
    default_id: String,
    default_name: String,
) -> Result<CheckRequest, HttpRefusal> {
    let status = check.text("Status").map_err(HttpRefusal::undecodable)?;
    let decode = || {
        let or = |text: String, default: String| if text.is_empty() { default } else { text };
        let request = CheckRequest {
            id: or(check.text("CheckID")?, default_id),
            name: or(check.text("Name")?, default_name),
            status: Status::parse(&status).unwrap_or(Status::Critical),
            ttl: check.duration("TTL")?.filter(|nanos| *nanos > 0).map(duration::from_nanos),
            alias: Some(check.text("AliasService")?).filter(|service| !service.is_empty()),
            deregister_after: check
                .duration("DeregisterCriticalServiceAfter")?
                .filter(|nanos| *nanos > 0)
                .map(duration::from_nanos),
        };
        for ignored in ["Notes", "ServiceID", "ID"] {
            check.take(ignored);
        }
        Ok(request)
    };
    let request = decode().map_err(HttpRefusal::undecodable)?;
    if !status.is_empty() && Status::parse(&status).is_none() {
        return Err(HttpRefusal::bad_request(
            "Status for checks must 'passing', 'warning', 'critical'",
        ));
    }
    check.end().map_err(|why| HttpRefusal::undecodable(format!("{why} ({MODELLED})")))?;
    match (request.ttl, &request.alias) {
        (Some(_), None) | (None, Some(_)) => Ok(request),
        _ => Err(HttpRefusal::bad_request(format!("Invalid check: TTL must be > 0 ({MODELLED})"))),
    }
}

// ---- state of the agent -------------------------------------------------------------------

fn about(consul: &Emulator) -> Value {
    let node = consul.node();
    let index = consul.inspect(|tables| tables.index).0.to_string();
    value!({
        "Config": {
            "Datacenter": "dc1", "NodeName": node, "NodeID": node_id(node),
            "Revision": "", "Server": true, "Version": VERSION,
        },
        "DebugConfig": { "DevMode": true, "KVMaxValueSize": MAX_VALUE, "TxnMaxReqLen": MAX_VALUE },
        "Coord": { "Vec": [0, 0, 0, 0, 0, 0, 0, 0], "Error": 1.5, "Adjustment": 0, "Height": 0.00001 },
        "Member": member(node),
        "Stats": {
            "build": { "prerelease": "", "revision": "", "version": VERSION },
            "consul": { "acl": "disabled", "leader": "true", "leader_addr": LEADER, "server": "true" },
            "raft": { "state": "Leader", "applied_index": index, "commit_index": index, "last_log_index": index },
        },
        "Meta": { "consul-network-segment": "" },
    })
}

fn member(node: &str) -> Value {
    value!({
        "Name": node,
        "Addr": "127.0.0.1",
        "Port": 8301,
        "Tags": {
            "build": format!("{VERSION}:"), "dc": "dc1", "id": node_id(node), "role": "consul",
            "segment": "", "vsn": "2",
        },
        "Status": 1,
        "ProtocolMin": 1, "ProtocolMax": 5, "ProtocolCur": 2,
        "DelegateMin": 2, "DelegateMax": 5, "DelegateCur": 4,
    })
}

/// Services or checks of this agent, by id.
fn local(consul: &Emulator, what: &str) -> Map<String, Value> {
    consul.inspect(|tables| {
        let catalog = &tables.catalog;
        if what == "agent/services" {
            let mine = catalog.services().filter(|(node, ..)| *node == consul.node());
            return mine.map(|(_, id, s)| (id.to_owned(), service_shown(id, s))).collect();
        }
        let mine =
            catalog.checks().filter(|(node, _, c)| *node == consul.node() && c.is_of_agent());
        mine.map(|(node, id, c)| (id.to_owned(), check_shown(node, id, c))).collect()
    })
}
