//! `/v1/session/`.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json as value};

use super::answer::{at, json};
use super::body::{self, BodyFields};
use super::parsed_request::ParsedRequest;
use super::refusal::HttpRefusal;
use crate::catalog::SERF_HEALTH;
use crate::fault::Request;
use crate::session::parse_id;
use crate::{Emulator, Session, SessionRequest, Subject, duration};
use rcfarm_api::ids::SessionId;
use rcfarm_store::{Answer, Behavior, StoreError};

pub(super) async fn answer(
    consul: &Emulator,
    parsed: &ParsedRequest<'_>,
    body: &body::Body,
) -> Result<Response, HttpRefusal> {
    match parsed.what {
        "session/create" => {
            let request = session_request(body).map_err(HttpRefusal::undecodable)?;
            let id = consul.make_session(request).await?;
            json(parsed, &value!({ "ID": id }))
        }
        "session/renew/" => match consul.renew(named(parsed)?).await? {
            Some(session) => json(parsed, &[shown(&session)]),
            None => {
                let text = format!("Session id '{}' not found", parsed.name);
                Err(HttpRefusal::new(StatusCode::NOT_FOUND, text))
            }
        },
        "session/destroy/" => {
            consul.destroy(named(parsed)?).await?;
            json(parsed, &true)
        }
        _ => list(parsed, sessions(consul, parsed).await?),
    }
}

fn named<'a>(parsed: &ParsedRequest<'a>) -> Result<&'a str, HttpRefusal> {
    if parsed.name.is_empty() {
        Err(HttpRefusal::bad_request("Missing session"))
    } else {
        Ok(parsed.name)
    }
}

async fn sessions(
    consul: &Emulator,
    parsed: &ParsedRequest<'_>,
) -> Result<Answer<Vec<Session>>, HttpRefusal> {
    let query = parsed.query()?;
    let answer: Result<_, StoreError> = match parsed.what {
        "session/info/" => {
            let id: SessionId = parse_id(named(parsed)?)?;
            let select = |t: &crate::Tables| t.sessions.get(&id).cloned().into_iter().collect();
            consul
                .read(Request::Session(parsed.name), Subject::Session(id.clone()), query, select)
                .await
        }
        what => {
            let node = (what == "session/node/").then_some(parsed.name);
            let here = |s: &&Session| node.is_none_or(|node| s.node == node);
            let select = |t: &crate::Tables| t.sessions.all().filter(here).cloned().collect();
            consul.read(Request::Sessions, Subject::Sessions, query, select).await
        }
    };
    Ok(answer?)
}

fn list(
    parsed: &ParsedRequest<'_>,
    sessions: Answer<Vec<Session>>,
) -> Result<Response, HttpRefusal> {
    let shown: Vec<Value> = sessions.value.iter().map(shown).collect();
    Ok(at(sessions.index, json(parsed, &shown)?))
}

fn shown(session: &Session) -> Value {
    let checks = |ids: &[String]| match ids {
        [] => Value::Null,
        ids => ids.iter().map(|id| value!({ "ID": id, "Namespace": "" })).collect(),
    };
    value!({
        "ID": session.id,
        "Name": session.name,
        "Node": session.node,
        "LockDelay": session.lock_delay,
        "Behavior": match session.behavior {
            Behavior::Release => "release",
            Behavior::Delete => "delete",
        },
        "TTL": session.ttl_text,
        "NodeChecks": session.node_checks,
        "ServiceChecks": checks(&session.service_checks),
        "CreateIndex": session.create_index,
        "ModifyIndex": session.create_index,
    })
}

/// Parses a body. Unknown fields are ignored, as in Consul.
fn session_request(body: &body::Body) -> Result<SessionRequest, String> {
    let mut request = SessionRequest::default();
    if body.is_empty() {
        return Ok(request);
    }
    let mut fields = match body.json()? {
        Value::Null => return Ok(request),
        object => BodyFields::of(object)?,
    };
    request.name = fields.text("Name")?;
    request.node = fields.text("Node")?;
    request.ttl = fields.text("TTL")?;
    request.behavior = fields.text("Behavior")?;
    if let Some(delay) = fields.take("LockDelay") {
        request.lock_delay = lock_delay(&delay, request.lock_delay)?;
    }
    // `Checks` is the name before Consul 1.7. An empty list clears the default, others add to it.
    let named = fields.has("NodeChecks");
    if named {
        request.node_checks = fields.texts("NodeChecks")?.unwrap_or_default();
    }
    match fields.texts("Checks")? {
        Some(checks) if checks.is_empty() => request.node_checks.clear(),
        Some(checks) if !named => {
            let new = checks.into_iter().filter(|check| check != SERF_HEALTH);
            request.node_checks.extend(new);
        }
        _ => {}
    }
    if let Some(checks) = fields.take("ServiceChecks") {
        let Value::Array(checks) = checks else {
            return Err(body::unfit(&checks, "ServiceChecks", "[]structs.ServiceCheck"));
        };
        for check in checks {
            request.service_checks.push(BodyFields::of(check)?.text("ID")?);
        }
    }
    Ok(request)
}

/// A lock-delay: text in Go's notation, or a number. Numbers below 1000 are seconds, others nanoseconds.
fn lock_delay(given: &Value, default: i64) -> Result<i64, String> {
    match given {
        Value::String(text) => duration::parse(text),
        Value::Number(number) => {
            #[allow(clippy::cast_possible_truncation)]
            let number = number.as_f64().unwrap_or(0.0) as i64;
            Ok(if number < 1_000 { number.saturating_mul(1_000_000_000) } else { number })
        }
        _ => Ok(default),
    }
}
