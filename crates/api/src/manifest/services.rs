//! Services of a pod, which its node registers in Consul's catalog: what a manifest may ask for. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::command_line::cut;
use super::ports::{check_ports, is_port_name, ports_in};
use super::{PodManifest, PortStanza};
use crate::FieldError;

/// Services of one pod.
pub const MOST_SERVICES: usize = 16;
/// Tags of one service.
pub const MOST_TAGS: usize = 16;
/// Metadata of one service. Consul permits 64 pairs; agents add up to 8.
pub const MOST_META: usize = 32;
/// A service's name is one label of a DNS name.
const LONGEST_SERVICE: usize = 63;
const LONGEST_TAG: usize = 255;
/// Consul's limits of metadata.
const LONGEST_META_KEY: usize = 128;
const LONGEST_META_VALUE: usize = 512;
/// Longest text of a message.
const LONGEST_SHOWN: usize = 40;

/// Metadata keys that agents set begin with this.
pub const OWN_META: &str = "rcfarm-";

/// Names that no pod may have: Consul's servers, and the services of this program.
const RESERVED: [&str; 3] = ["consul", "rcfarm-farm", "rcfarm-node"];

/// One entry of `services`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceStanza {
    /// Name of the service; one label of a DNS name.
    pub name: String,
    /// The port on which the pod answers. Absent: the catalog has 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<ServicePort>,
    /// Tags, for clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Metadata, for clients.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
}

/// Port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ServicePort {
    /// The same on every node.
    Number(u16),
    /// The name of one of the pod's ports, or a variable that the node sets, as `${NODE_PORT}`.
    Text(String),
}

impl ServicePort {
    /// The name in `${NAME}`.
    #[must_use]
    pub fn variable(&self) -> Option<&str> {
        match self {
            ServicePort::Number(_) => None,
            ServicePort::Text(text) => {
                let name = text.strip_prefix("${")?.strip_suffix('}')?;
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                (!name.is_empty() && name.chars().all(is_name)).then_some(name)
            }
        }
    }

    /// The name of one of the pod's ports.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            ServicePort::Number(_) => None,
            ServicePort::Text(text) => is_port_name(text).then_some(text),
        }
    }

    /// Whether it can be a port of a pod that has these.
    fn is_of(&self, ports: &[PortStanza]) -> bool {
        match self.name() {
            Some(name) => ports.iter().any(|port| port.name == name),
            None => matches!(self, ServicePort::Number(_)) || self.variable().is_some(),
        }
    }
}

/// Checks the name of a service: one label of a DNS name in lower case.
///
/// # Errors
/// [`FieldError`] at `name`.
pub fn check_service_name(name: &str) -> Result<(), FieldError> {
    let bad = |problem: String, fix: &str| Err(FieldError::new("name", problem, fix));
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = |c: Option<char>| c.is_some_and(|c| c != '-');
    if name.len() > LONGEST_SERVICE
        || !name.chars().all(is_legal)
        || !ends(name.chars().next())
        || !ends(name.chars().next_back())
    {
        let problem = format!("{:?} is no name of a service", cut(name, LONGEST_SHOWN));
        let fix = "write lower-case letters, digits and '-', at most 63, with a letter or digit at both ends";
        return bad(problem, fix);
    }
    match RESERVED.contains(&name) {
        true => bad(format!("{name:?} is not a pod's service"), "choose another name"),
        false => Ok(()),
    }
}

impl ServiceStanza {
    fn check(&self, ports: &[PortStanza]) -> Result<(), FieldError> {
        check_service_name(&self.name)?;
        match &self.port {
            Some(ServicePort::Number(0)) => {
                return Err(FieldError::new(
                    "port",
                    "0 is no port",
                    "leave it out if there is none",
                ));
            }
            Some(port @ ServicePort::Text(text)) if !port.is_of(ports) => {
                let shown = cut(text, LONGEST_SHOWN);
                let problem = match port.name() {
                    Some(_) => format!("the pod has no port {shown:?}"),
                    None => format!("{shown:?} is no port"),
                };
                let fix = "write a number, the name of an entry of ports, or a variable of the node as ${NODE_PORT}";
                return Err(FieldError::new("port", problem, fix));
            }
            _ => {}
        }
        self.check_tags()?;
        self.check_meta()
    }

    fn check_tags(&self) -> Result<(), FieldError> {
        if self.tags.len() > MOST_TAGS {
            let problem = format!("there are {}: at most {MOST_TAGS}", self.tags.len());
            return Err(FieldError::new("tags", problem, ""));
        }
        for (n, tag) in self.tags.iter().enumerate() {
            let is_legal = !tag.is_empty() && tag.len() <= LONGEST_TAG && is_printable(tag);
            if !is_legal {
                let problem = format!("{:?} is no tag", cut(tag, LONGEST_SHOWN));
                let fix = format!("write 1 to {LONGEST_TAG} printable ASCII characters");
                return Err(FieldError::new(format!("tags[{n}]"), problem, fix));
            }
        }
        Ok(())
    }

    fn check_meta(&self) -> Result<(), FieldError> {
        if self.meta.len() > MOST_META {
            let problem = format!("there are {} pairs: at most {MOST_META}", self.meta.len());
            return Err(FieldError::new("meta", problem, ""));
        }
        for (key, value) in &self.meta {
            let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            if key.is_empty() || key.len() > LONGEST_META_KEY || !key.chars().all(is_legal) {
                let problem = format!("{:?} is no key", cut(key, LONGEST_SHOWN));
                let fix = format!("write 1 to {LONGEST_META_KEY} letters, digits, '-' and '_'");
                return Err(FieldError::new("meta", problem, fix));
            }
            let path = format!("meta.{}", cut(key, LONGEST_SHOWN));
            if key.starts_with(OWN_META) {
                let problem = format!("keys that begin with {OWN_META:?} are the agent's");
                return Err(FieldError::new(path, problem, "choose another key"));
            }
            if value.len() > LONGEST_META_VALUE || value.chars().any(char::is_control) {
                let fix =
                    format!("write at most {LONGEST_META_VALUE} bytes without control characters");
                return Err(FieldError::new(path, "it is no legal value", fix));
            }
        }
        Ok(())
    }
}

fn is_printable(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_graphic() || c == ' ')
}

/// Checks all services of a pod.
fn check_services(services: &[ServiceStanza], ports: &[PortStanza]) -> Result<(), FieldError> {
    if services.len() > MOST_SERVICES {
        let problem = format!("there are {}: at most {MOST_SERVICES}", services.len());
        return Err(FieldError::new("services", problem, ""));
    }
    let mut names = BTreeSet::new();
    for (n, service) in services.iter().enumerate() {
        let path = format!("services[{n}]");
        service.check(ports).map_err(|error| error.below(&path))?;
        if !names.insert(&service.name) {
            let problem = format!("the pod has a service {:?} already", service.name);
            return Err(FieldError::new(format!("{path}.name"), problem, "name each once"));
        }
    }
    Ok(())
}

/// Checks ports and services in the fields of a manifest, which may have another shape.
///
/// # Errors
/// [`FieldError`] of the first field that breaks a rule, such as `services[0].port`.
pub fn check_ports_and_services_in(fields: &Value) -> Result<(), FieldError> {
    let ports = ports_in(fields)?;
    let Some(services) = fields.get("services").filter(|services| !services.is_null()) else {
        return Ok(());
    };
    let read: Result<Vec<ServiceStanza>, _> = serde_path_to_error::deserialize(services);
    let services = read.map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => "services".to_owned(),
            path => format!("services{path}"),
        };
        FieldError::new(path, error.into_inner().to_string(), "compare with docs/guide/services.md")
    })?;
    check_services(&services, &ports)
}

impl PodManifest {
    /// Checks ports and services.
    ///
    /// # Errors
    /// [`FieldError`] of the first field that breaks a rule.
    pub fn check_ports_and_services(&self) -> Result<(), FieldError> {
        check_ports(&self.ports)?;
        check_services(&self.services, &self.ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn check(services: &str) -> Result<(), FieldError> {
        let text = format!("id: a\nports: [{{name: http}}]\nservices: {services}\n");
        let manifest = Manifest::parse(&text).unwrap();
        check_ports_and_services_in(&manifest.fields().unwrap())?;
        PodManifest::read(&manifest).unwrap().check_ports_and_services()
    }

    #[test]
    fn each_wrong_field_of_a_service_is_named() {
        let many = |n: usize, one: &dyn Fn(usize) -> String| {
            (0..n).map(one).collect::<Vec<_>>().join(", ")
        };
        let services = |n| format!("[{}]", many(n, &|n| format!("{{name: s{n}}}")));
        let tags = |n| format!("[{{name: a, tags: [{}]}}]", many(n, &|n| format!("t{n}")));
        let meta = |n| format!("[{{name: a, meta: {{{}}}}}]", many(n, &|n| format!("k{n}: v")));
        check(&services(MOST_SERVICES)).unwrap();
        check(&tags(MOST_TAGS)).unwrap();
        check(&meta(MOST_META)).unwrap();
        check("[{name: web, port: 80, tags: ['urlprefix-/a b'], meta: {A_b-1: 'é'}}]").unwrap();
        check("[{name: web, port: '${NODE_PORT}'}]").unwrap();
        check("[{name: web, port: http}, {name: also, port: '${PORT_HTTP}'}]").unwrap();
        check("").unwrap();
        let long = "x".repeat(64);
        for (services, path) in [
            (services(MOST_SERVICES + 1), "services"),
            (tags(MOST_TAGS + 1), "services[0].tags"),
            (meta(MOST_META + 1), "services[0].meta"),
            ("{name: web}".to_owned(), "services"),
            ("[web]".to_owned(), "services[0]"),
            ("[{port: 80}]".to_owned(), "services[0]"),
            ("[{name: a}, {name: web, prot: 80}]".to_owned(), "services[1].prot"),
            ("[{name: Web}]".to_owned(), "services[0].name"),
            ("[{name: a.b}]".to_owned(), "services[0].name"),
            ("[{name: -a}]".to_owned(), "services[0].name"),
            ("[{name: ''}]".to_owned(), "services[0].name"),
            (format!("[{{name: {long}}}]"), "services[0].name"),
            ("[{name: consul}]".to_owned(), "services[0].name"),
            ("[{name: rcfarm-node}]".to_owned(), "services[0].name"),
            ("[{name: a}, {name: a}]".to_owned(), "services[1].name"),
            ("[{name: a, port: 0}]".to_owned(), "services[0].port"),
            ("[{name: a, port: 65536}]".to_owned(), "services[0].port"),
            ("[{name: a, port: '$NODE_PORT'}]".to_owned(), "services[0].port"),
            ("[{name: a, port: '${A B}'}]".to_owned(), "services[0].port"),
            ("[{name: a, port: http, tags: ['']}]".to_owned(), "services[0].tags[0]"),
            ("[{name: a, port: admin}]".to_owned(), "services[0].port"),
            ("[{name: a, port: '80'}]".to_owned(), "services[0].port"),
            ("[{name: a, tags: [b, \"c\\nd\"]}]".to_owned(), "services[0].tags[1]"),
            ("[{name: a, meta: {a/b: c}}]".to_owned(), "services[0].meta"),
            ("[{name: a, meta: {a: \"b\\x1b[0m\"}}]".to_owned(), "services[0].meta.a"),
            ("[{name: a, meta: {rcfarm-node: n1}}]".to_owned(), "services[0].meta.rcfarm-node"),
        ] {
            let error = check(&services).unwrap_err();
            assert_eq!(error.path, path, "{services}: {error}");
        }
    }
}
