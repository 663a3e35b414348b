//! Ports that a pod listens on: what a manifest may ask for. Pure.
//!
//! ```yaml
//! ports: [{name: http}, {name: admin, port: 9000}]
//! ```
//!
//! A port without a number is one of its node's range (`rcfarm node run --ports`). No two pods of a node have the same.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::command_line::cut;
use crate::FieldError;

/// Ports of one pod.
pub const MOST_PORTS: usize = 16;
/// A port's name is one label of a DNS name.
const LONGEST_PORT_NAME: usize = 63;
/// Longest text of a message.
const LONGEST_SHOWN: usize = 40;

/// One entry of `ports`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortStanza {
    /// Name of the port; unique in the pod.
    pub name: String,
    /// Its number, the same on every node. Absent: a free port of the node's range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl PortStanza {
    /// Variable with the number in the environment of the pod's processes. Names that differ have variables that differ.
    #[must_use]
    pub fn variable(&self) -> String {
        port_variable(&self.name)
    }

    fn check(&self) -> Result<(), FieldError> {
        if !is_port_name(&self.name) {
            let problem = format!("{:?} is no name of a port", cut(&self.name, LONGEST_SHOWN));
            let fix = "write lower-case letters, digits and '-', at most 63, with a letter among them, and a letter or \
                       digit at both ends";
            return Err(FieldError::new("name", problem, fix));
        }
        match self.port {
            Some(0) => {
                let fix = "write 1 to 65535, or leave it out to get one of the node's range";
                Err(FieldError::new("port", "0 is no port", fix))
            }
            _ => Ok(()),
        }
    }
}

/// Variable of the port of this name: `PORT_HTTP` of `http`.
#[must_use]
pub fn port_variable(name: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("PORT_{}", name.chars().map(upper).collect::<String>())
}

/// Whether it is one label of a DNS name in lower case, and no number.
pub(super) fn is_port_name(name: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=LONGEST_PORT_NAME).contains(&name.len())
        && name.chars().all(is_legal)
        && name.chars().any(|c| c.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Checks all ports of a pod.
pub(super) fn check_ports(ports: &[PortStanza]) -> Result<(), FieldError> {
    if ports.len() > MOST_PORTS {
        let problem = format!("there are {}: at most {MOST_PORTS}", ports.len());
        return Err(FieldError::new("ports", problem, "divide them among several pods"));
    }
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (n, port) in ports.iter().enumerate() {
        let path = format!("ports[{n}]");
        port.check().map_err(|error| error.below(&path))?;
        if !names.insert(&port.name) {
            let problem = format!("the pod has a port {:?} already", port.name);
            return Err(FieldError::new(format!("{path}.name"), problem, "name each once"));
        }
        if let Some(number) = port.port.filter(|number| !numbers.insert(*number)) {
            let problem = format!("the pod has port {number} under another name already");
            let fix = "give each port a number of its own";
            return Err(FieldError::new(format!("{path}.port"), problem, fix));
        }
    }
    Ok(())
}

/// The ports in the fields of a manifest, which may have another shape.
///
/// # Errors
/// [`FieldError`] of the first field that breaks a rule, such as `ports[0].port`.
pub fn ports_in(fields: &Value) -> Result<Vec<PortStanza>, FieldError> {
    match fields.get("ports") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(ports) => read_ports(ports),
    }
}

/// Reads and checks the value of `ports`.
pub(super) fn read_ports(ports: &Value) -> Result<Vec<PortStanza>, FieldError> {
    let read: Result<Vec<PortStanza>, _> = serde_path_to_error::deserialize(ports);
    let ports = read.map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => "ports".to_owned(),
            path => format!("ports{path}"),
        };
        let fix =
            "write such as [{name: http}, {name: admin, port: 9000}], with numbers from 1 to 65535";
        FieldError::new(path, error.into_inner().to_string(), fix)
    })?;
    check_ports(&ports)?;
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RcId;
    use crate::manifest::{Manifest, PodManifest};
    use crate::rc::spec::{RcRecord, RcSpec};

    fn manifest(ports: &str) -> Manifest {
        Manifest::parse(&format!("id: a\nports: {ports}\n")).unwrap()
    }

    #[test]
    fn each_wrong_field_of_a_port_is_named() {
        let many = |n: usize| {
            let all: Vec<String> = (0..n).map(|n| format!("{{name: p{n}}}")).collect();
            format!("[{}]", all.join(", "))
        };
        let good = |ports: &str| {
            let manifest = manifest(ports);
            let read = ports_in(&manifest.fields().unwrap()).unwrap();
            assert_eq!(manifest.ports(), read, "{ports}");
            assert_eq!(PodManifest::read(&manifest).unwrap().ports, read, "{ports}");
            read
        };
        assert_eq!(good(&many(MOST_PORTS)).len(), MOST_PORTS);
        assert_eq!(good("[{name: a-1, port: 1}, {name: 9p, port: 65535}]")[1].port, Some(65_535));
        assert_eq!((good(""), good("[]")), (vec![], vec![]));
        let long = "x".repeat(64);
        for (ports, path, words) in [
            (many(MOST_PORTS + 1), "ports", "at most 16"),
            ("{name: http}".to_owned(), "ports", "write such as"),
            ("[http]".to_owned(), "ports[0]", "write such as"),
            ("[{port: 80}]".to_owned(), "ports[0]", "name"),
            ("[{name: a}, {name: b, prot: 80}]".to_owned(), "ports[1].prot", "unknown field"),
            ("[{name: HTTP}]".to_owned(), "ports[0].name", "lower-case"),
            ("[{name: a_b}]".to_owned(), "ports[0].name", "lower-case"),
            ("[{name: a-}]".to_owned(), "ports[0].name", "both ends"),
            ("[{name: ''}]".to_owned(), "ports[0].name", "lower-case"),
            ("[{name: '8080'}]".to_owned(), "ports[0].name", "a letter"),
            (format!("[{{name: {long}}}]"), "ports[0].name", "at most 63"),
            ("[{name: a}, {name: a}]".to_owned(), "ports[1].name", "once"),
            ("[{name: a, port: 0}]".to_owned(), "ports[0].port", "1 to 65535"),
            ("[{name: a, port: 65536}]".to_owned(), "ports[0].port", "1 to 65535"),
            ("[{name: a, port: -1}]".to_owned(), "ports[0].port", "1 to 65535"),
            ("[{name: a, port: '80'}]".to_owned(), "ports[0].port", "1 to 65535"),
            ("[{name: a, port: 80}, {name: b, port: 80}]".to_owned(), "ports[1].port", "its own"),
        ] {
            let manifest = manifest(&ports);
            let error = ports_in(&manifest.fields().unwrap()).unwrap_err();
            assert_eq!(error.path, path, "{ports}: {error}");
            assert!(error.to_string().contains(words), "{ports}: {error}");
            assert_eq!(manifest.ports(), [], "a bad list asks for nothing");
        }
    }

    /// p2's programs know no such field: what somebody has written there leaves their records valid.
    #[test]
    fn bad_ports_make_records_of_processes_alone_invalid() {
        let id: RcId = "f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0".parse().unwrap();
        let check = |manifest: &str| {
            let record = serde_json::json!({"id": id, "manifest": manifest, "node_selector": "",
                "pod_labels": null, "replicas_desired": 1, "allocation_strategy": ""});
            RcSpec::check(id, &serde_json::from_value::<RcRecord>(record).unwrap())
        };
        let with = |kind: &str, ports: &str| {
            format!(
                "id: a\nports: {ports}\nlaunchables: {{l: {{launchable_type: {kind}, command: a}}}}\n"
            )
        };
        for ports in ["{80: http}", "[{name: a, port: 0}]", "80"] {
            let spec = check(&with("hoist", ports)).unwrap();
            assert_eq!(spec.manifest.ports(), [], "{ports}");
        }
        let error = check(&with("process", "[{name: a, port: 0}]")).unwrap_err();
        assert_eq!(error.path, "manifest.ports[0].port");
        assert_eq!(check(&with("process", "[{name: a}]")).unwrap().manifest.ports().len(), 1);
    }

    #[test]
    fn variables_of_ports_are_upper_case() {
        for (name, variable) in [("http", "PORT_HTTP"), ("a-1", "PORT_A_1"), ("9p", "PORT_9P")] {
            let port = PortStanza { name: name.to_owned(), port: None };
            assert_eq!(port.variable(), variable);
        }
    }
}
