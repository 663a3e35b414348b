//! `/v1/catalog/register` and `/v1/catalog/deregister`.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;
use uuid::Uuid;

use super::answer::json;
use super::body::{self, BodyFields};
use super::parsed_request::ParsedRequest;
use super::refusal::HttpRefusal;
use crate::{CheckRegistration, Emulator, NodeRegistration, ServiceRequest, Status};

pub(super) async fn answer(
    consul: &Emulator,
    parsed: &ParsedRequest<'_>,
    body: &body::Body,
) -> Result<Response, HttpRefusal> {
    if parsed.what == "catalog/register" {
        consul.register_node(registration(body)?).await?;
    } else {
        let mut fields = fields(body)?;
        let mut text = |name| fields.text(name).map_err(HttpRefusal::undecodable);
        let (node, service, check) = (text("Node")?, text("ServiceID")?, text("CheckID")?);
        let (datacenter, _) = (text("Datacenter")?, text("Address")?);
        fields.take("Namespace");
        fields.end().map_err(HttpRefusal::undecodable)?;
        known_datacenter(&datacenter)?;
        if node.is_empty() {
            return Err(refused("Must provide node"));
        }
        consul.deregister_node(node, service, check).await?;
    }
    json(parsed, &true)
}

fn fields(body: &body::Body) -> Result<BodyFields, HttpRefusal> {
    body.json().and_then(BodyFields::of).map_err(HttpRefusal::undecodable)
}

fn registration(body: &body::Body) -> Result<NodeRegistration, HttpRefusal> {
    let mut fields = fields(body)?;
    let mut decode = || {
        let checks = match fields.take("Checks") {
            None => Vec::new(),
            Some(Value::Array(checks)) => checks,
            Some(other) => return Err(body::unfit(&other, "Checks", "structs.HealthChecks")),
        };
        let checks = checks.into_iter().chain(fields.take("Check")).map(BodyFields::of);
        let request = NodeRegistration {
            node: fields.text("Node")?,
            id: fields.text("ID")?,
            address: fields.text("Address")?,
            tagged_addresses: fields.map("TaggedAddresses")?,
            meta: fields.map("NodeMeta")?,
            skip_node_update: fields.take("SkipNodeUpdate") == Some(Value::Bool(true)),
            service: fields.take("Service").map(node_service).transpose()?,
            checks: Vec::new(),
        };
        Ok((request, checks.collect::<Result<Vec<_>, _>>()?, fields.text("Datacenter")?))
    };
    let (mut request, checks, datacenter) = decode().map_err(HttpRefusal::undecodable)?;
    fields.end().map_err(HttpRefusal::undecodable)?;
    known_datacenter(&datacenter)?;
    if request.node.is_empty() {
        return Err(refused("Must provide node"));
    }
    if request.address.is_empty() && !request.skip_node_update {
        return Err(refused("Must provide address if SkipNodeUpdate is not set"));
    }
    if !request.id.is_empty() && request.id.parse::<Uuid>().is_err() {
        return Err(refused("Bad node ID: uuid string is wrong length"));
    }
    match &request.service {
        Some(service) if service.name.is_empty() => {
            return Err(refused("Must provide service name with ID"));
        }
        Some(service) if ["0.0.0.0", "::", "[::]"].contains(&service.address.as_str()) => {
            return Err(refused("Invalid service address"));
        }
        _ => {}
    }
    for fields in checks {
        request.checks.push(check(fields, &request.node)?);
    }
    Ok(request)
}

/// A service; `named`: the field of its name. The id is the name unless it is given.
pub(super) fn service(fields: &mut BodyFields, named: &str) -> Result<ServiceRequest, String> {
    let name = fields.text(named)?;
    let id = Some(fields.text("ID")?).filter(|id| !id.is_empty()).unwrap_or_else(|| name.clone());
    let port = u16::try_from(fields.number("Port")?);
    let service = ServiceRequest {
        id,
        name,
        meta: fields.map("Meta")?,
        tags: fields.texts("Tags")?.unwrap_or_default(),
        address: fields.text("Address")?,
        port: port.map_err(|_| "Port is above 65535".to_owned())?,
        checks: Vec::new(),
    };
    // Accepted but not modelled: nothing reads these fields.
    for ignored in ["EnableTagOverride", "Weights", "TaggedAddresses", "Kind", "Token", "Namespace"]
    {
        fields.take(ignored);
    }
    Ok(service)
}

fn node_service(value: Value) -> Result<ServiceRequest, String> {
    let mut fields = BodyFields::of(value)?;
    let service = service(&mut fields, "Service")?;
    fields.end().map(|()| service)
}

fn check(mut fields: BodyFields, on: &str) -> Result<CheckRegistration, HttpRefusal> {
    let mut text = |name| fields.text(name).map_err(HttpRefusal::undecodable);
    let (node, status) = (text("Node")?, text("Status")?);
    let (id, name) = (text("CheckID")?, text("Name")?);
    let id = if id.is_empty() { name.clone() } else { id };
    let (notes, output, service_id) = (text("Notes")?, text("Output")?, text("ServiceID")?);
    for ignored in ["ServiceName", "ServiceTags", "Definition", "Type", "Namespace"] {
        fields.take(ignored);
    }
    fields.end().map_err(HttpRefusal::undecodable)?;
    if !node.is_empty() && node != on {
        return Err(refused(format!("check node {node:?} does not match node {on:?}")));
    }
    let status = match status.as_str() {
        "" => Status::Critical,
        status => Status::parse(status)
            .ok_or_else(|| refused(format!("the status {status:?} is not modelled")))?,
    };
    Ok(CheckRegistration { id, name, status, notes, output, service_id })
}

fn known_datacenter(name: &str) -> Result<(), HttpRefusal> {
    if ["", "dc1"].contains(&name) { Ok(()) } else { Err(refused("No path to datacenter")) }
}

fn refused(why: impl Into<String>) -> HttpRefusal {
    HttpRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, why)
}
