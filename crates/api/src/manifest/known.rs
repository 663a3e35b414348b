//! Fields of new manifests: those that some program knows, and what p2's programs can read. Pure.

use serde_json::Value;

use super::limits::p2_bytes;
use super::{LaunchableStanza, check_ports_and_services_in, plain};
use crate::FieldError;
use crate::resource_list::MEMORY;

/// Fields of a manifest that p2 knows.
const P2_FIELDS: [&str; 8] = [
    "status_port",
    "status_http",
    "status",
    "readonly",
    "artifact_registry",
    "node_requirements",
    "min_health_percentage",
    "termination_grace_period",
];

/// Fields of a manifest that our agents or farms know.
const OWN_FIELDS: [&str; 12] = [
    "id",
    "job",
    "launchables",
    "config",
    "payload",
    "run_as",
    "resources",
    "resource_limits",
    "single_instance",
    "ports",
    "services",
    "peers",
];

/// Refuses fields that neither p2's programs nor ours know, launchables that nobody can run, and ports or services that
/// break a rule: most likely they are typing errors. For new manifests alone; farms and agents take what is there.
///
/// # Errors
/// [`FieldError`] of the first such field.
pub fn check_known(fields: &Value) -> Result<(), FieldError> {
    let known = |name: &str| OWN_FIELDS.contains(&name) || P2_FIELDS.contains(&name);
    if let Some(name) = keys(fields).find(|name| !known(name)) {
        let fix = format!("known are {}, and p2's fields", OWN_FIELDS.join(", "));
        return Err(FieldError::new(name, "no program knows this field of a manifest", fix));
    }
    let launchables = fields.get("launchables").unwrap_or(&Value::Null);
    for name in keys(launchables) {
        let kind = launchables[name].get("launchable_type").and_then(Value::as_str);
        let path = format!("launchables.{name}");
        match (kind, LaunchableStanza::from(launchables[name].clone())) {
            (Some("hoist" | "docker" | "opencontainer"), _) | (_, LaunchableStanza::Process(_)) => {
            }
            (_, LaunchableStanza::Unfit(_, why)) => {
                return Err(FieldError::new(path, why, "compare with docs/guide/nodes.md"));
            }
        }
    }
    check_ports_and_services_in(fields)
}

fn keys(value: &Value) -> impl Iterator<Item = &str> {
    value.as_object().into_iter().flatten().map(|(name, _)| name.as_str())
}

/// What keeps p2's programs from reading a manifest. One record that p2 cannot read stops all of its farms.
///
/// # Errors
/// [`FieldError`] of the first such field.
pub fn check_for_p2(fields: &Value) -> Result<(), FieldError> {
    let bad = |path: &str, problem: &str, fix: &str| Err(FieldError::new(path, problem, fix));
    let cgroup = |path: &str, cgroup: &Value| {
        let at = |word: &str| format!("{path}.{word}");
        if cgroup.get("cpus").is_some_and(|cpus| !cpus.is_number() && !cpus.is_null()) {
            return bad(&at("cpus"), "p2 reads whole numbers", "write 2");
        }
        let memory = cgroup.get(MEMORY).filter(|memory| !memory.is_null()).map(plain);
        if memory.is_some_and(|text| p2_bytes(&text).is_none()) {
            return bad(&at(MEMORY), "p2 reads bytes, or K, M, G, T, which are binary", "write 1G");
        }
        Ok(())
    };
    if fields.get("config").is_some_and(|config| !config.is_object() && !config.is_null()) {
        return bad("config", "p2 reads a mapping", "");
    }
    for name in ["status_port", "min_health_percentage", "termination_grace_period"] {
        if fields.get(name).is_some_and(|number| !number.is_number() && !number.is_null()) {
            return bad(name, "p2 reads a number", "write it without quotes");
        }
    }
    if let Some(limits) = fields.pointer("/resource_limits/cgroup") {
        cgroup("resource_limits.cgroup", limits)?;
    }
    let launchables = fields.get("launchables").unwrap_or(&Value::Null);
    for name in keys(launchables) {
        let (stanza, path) = (&launchables[name], format!("launchables.{name}"));
        let given = |pointer| {
            let text = stanza.pointer(pointer).filter(|value| !value.is_null()).map(plain);
            text.is_some_and(|text| !text.is_empty())
        };
        if let Some(limits) = stanza.get("cgroup") {
            cgroup(&format!("{path}.cgroup"), limits)?;
        }
        let is_plain = |value: &Value| !value.is_object() && !value.is_array();
        let env = stanza.get("env").filter(|env| !env.is_null());
        let plain_env = |env: &Value| env.as_object().is_some_and(|env| env.values().all(is_plain));
        if env.is_some_and(|env| !plain_env(env)) {
            return bad(&format!("{path}.env"), "p2 reads texts by name", "");
        }
        match stanza.get("launchable_type").and_then(Value::as_str).unwrap_or_default() {
            "" => return bad(&path, "p2 needs a launchable_type", ""),
            "hoist" | "opencontainer" if given("/location") == given("/version/id") => {
                return bad(&path, "p2 needs either location or version", "");
            }
            "docker" if !given("/image/name") || !given("/image/sha256") => {
                return bad(&path, "p2 needs an image with name and sha256", "");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifest::{
        LimitsStanza, Manifest, PeersStanza, PodManifest, PortStanza, ServiceStanza,
    };

    fn fields(text: &str) -> Value {
        Manifest::parse(text).unwrap().fields().unwrap()
    }

    /// What p2's decoder was seen to refuse.
    #[test]
    fn what_p2_cannot_read_is_named() {
        for (text, path) in [
            ("resource_limits: {cgroup: {memory: 1Gi}}", "resource_limits.cgroup.memory"),
            ("resource_limits: {cgroup: {memory: 512Mi}}", "resource_limits.cgroup.memory"),
            ("resource_limits: {cgroup: {cpus: 500m}}", "resource_limits.cgroup.cpus"),
            ("config: [a]", "config"),
            ("config: text", "config"),
            ("status_port: \"80\"", "status_port"),
            ("launchables: {a: {location: x}}", "launchables.a"),
            ("launchables: {a: {launchable_type: hoist}}", "launchables.a"),
            (
                "launchables: {a: {launchable_type: hoist, location: x, version: {id: b}}}",
                "launchables.a",
            ),
            ("launchables: {a: {launchable_type: docker}}", "launchables.a"),
        ] {
            let error = check_for_p2(&fields(&format!("id: a\n{text}\n"))).unwrap_err();
            assert_eq!(error.path, path, "{text}");
        }
        check_for_p2(&fields(
            "id: a\nconfig: {b: [1]}\nresource_limits: {cgroup: {cpus: 2, memory: 1G}}\nlaunchables:\n  \
             a: {launchable_type: hoist, location: x}\n  b: {launchable_type: process, command: x, env: {N: 1}}\n",
        ))
        .unwrap();
    }

    #[test]
    fn unknown_fields_are_refused() {
        for (text, path) in [
            ("lauchables: {}", "lauchables"),
            ("launchables: {a: {launchable_type: proces, command: x}}", "launchables.a"),
            ("launchables: {a: {launchable_type: process, comand: x}}", "launchables.a"),
            ("launchables: {a: {command: x}}", "launchables.a"),
            ("ports: [{name: a, port: 0}]", "ports[0].port"),
        ] {
            let error = check_known(&fields(&format!("id: a\n{text}\n"))).unwrap_err();
            assert_eq!(error.path, path, "{text}");
        }
        check_known(&fields(
            "id: a\nstatus_port: 80\nlaunchables: {a: {launchable_type: hoist}}\n",
        ))
        .unwrap();
    }

    /// A new field of [`PodManifest`] belongs into the list.
    #[test]
    fn every_field_of_a_pod_is_known() {
        let all = PodManifest {
            id: "a".to_owned(),
            job: Some(json!({})),
            config: Some(json!({})),
            run_as: Some(json!("a")),
            resources: [("cpu".to_owned(), json!(1))].into(),
            resource_limits: Some(LimitsStanza::default()),
            single_instance: true,
            ports: vec![PortStanza { name: "http".to_owned(), port: Some(80) }],
            services: vec![ServiceStanza { name: "web".to_owned(), ..ServiceStanza::default() }],
            peers: Some(PeersStanza::default()),
            ..PodManifest::default()
        };
        check_known(&serde_json::to_value(all).unwrap()).unwrap();
    }
}
