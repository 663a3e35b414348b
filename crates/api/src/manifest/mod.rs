//! Pod manifests: what a node is asked to run. Pure.
//!
//! A manifest is kept byte for byte, because it may be signed and because square/p2's preparer compares it by hash.
//! Only the pod's id, its resources and, for display, its launchables are decoded here. A manifest may be wrapped in a
//! PGP clear signature, as p2's are (`p2.md` §7); the signature is not verified.

mod clearsign;
pub mod command_line;
mod known;
mod limits;
mod peers;
mod pod;
mod ports;
mod process;
mod services;
mod size;
mod uuid_pod;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::ids::PodId;
use crate::{FieldError, InvalidText, ResourceList};

pub use crate::hash::content_hash;
pub use known::{check_for_p2, check_known};
pub use limits::p2_bytes;
pub use peers::{
    PeerChange, PeerForm, PeerPart, PeerSignal, PeersForm, PeersStanza, SshStanza, VARIABLES_FILE,
};
pub use pod::{
    CommandStanza, EnvStanza, EnvVariable, HealthStanza, LaunchableStanza, LimitsStanza, PROCESS,
    PodManifest, ProcessStanza, RestartStanza, RestartWhen,
};
pub use ports::{MOST_PORTS, PortStanza, port_variable, ports_in};
pub use process::{
    LONGEST_DURATION, LONGEST_POD, ProcessDurations, SHORTEST_RESTART_PAUSE, check_launchable_name,
};
pub use services::{
    MOST_META, MOST_SERVICES, MOST_TAGS, OWN_META, ServicePort, ServiceStanza,
    check_ports_and_services_in, check_service_name,
};
pub use size::{LARGEST_MANIFEST, check_size, set_largest_manifest};
pub use uuid_pod::is_uuid_pod;

/// A pod manifest with the text that it was read from. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Manifest {
    text: Arc<str>,
    id: PodId,
    launchables: Arc<[Launchable]>,
    resources: ResourceList,
    ports: Arc<[PortStanza]>,
}

/// One thing that a pod starts, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launchable {
    /// Its key under `launchables`.
    pub name: String,
    /// `launchable_type` (`hoist`, `docker`, …), if it says.
    pub kind: Option<String>,
    /// `version.id` or else `location`, if it says.
    pub version: Option<String>,
}

impl Launchable {
    /// Whether our agents run it.
    pub fn is_process(&self) -> bool {
        self.kind.as_deref() == Some(PROCESS)
    }
}

impl Manifest {
    /// Reads a manifest. Unknown fields are kept in the text and otherwise ignored.
    ///
    /// # Errors
    /// [`FieldError`], with the line and column in the text as given, the PGP frame included.
    pub fn parse(text: &str) -> Result<Manifest, FieldError> {
        let body = clearsign::body(text).map_err(unclosed_frame)?;
        let fields: ManifestFields = read(&body)?.unwrap_or_default();
        let id = fields.id.filter(|id| !id.is_empty()).ok_or_else(no_id)?;
        let id = id.parse().map_err(|error: InvalidText| FieldError::from(error).below("id"))?;
        let launchables = fields.launchables.unwrap_or_default().into_iter();
        let mut resources = ResourceList::default();
        for (word, amount) in fields.resources.unwrap_or_default() {
            let set = resources.set(&word, &plain(&amount));
            set.map_err(|error| error.below("resources"))?;
        }
        // What is wrong with them is told by those who act on them ([`check_ports_and_services_in`]).
        let ports = if body.contains("ports") { read(&body).unwrap_or_default() } else { None };
        let ports = ports.and_then(|ports: PortsField| ports::read_ports(&ports.ports).ok());
        Ok(Manifest {
            resources,
            ports: ports.unwrap_or_default().into(),
            text: text.into(),
            id,
            launchables: launchables.map(|(name, stanza)| stanza.launchable(name)).collect(),
        })
    }

    /// The text as given, byte for byte.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// All fields as JSON.
    ///
    /// # Errors
    /// [`FieldError`] if it has no JSON form, such as a mapping whose keys are lists.
    pub fn fields(&self) -> Result<serde_json::Value, FieldError> {
        let body = clearsign::body(&self.text).map_err(unclosed_frame)?;
        Ok(read(&body)?.unwrap_or_default())
    }

    /// Refuses a key that is there twice: most likely it is a mistake. For new manifests alone; of those that are there
    /// the last value counts.
    ///
    /// # Errors
    /// [`FieldError`] with the key, its line and its column.
    pub fn check_repeated(&self) -> Result<(), FieldError> {
        let body = clearsign::body(&self.text).map_err(unclosed_frame)?;
        let read = read_with::<serde_json::Value>(&body, serde_saphyr::DuplicateKeyPolicy::Error);
        read.map(drop).map_err(|error| {
            // The parser's advice is for programs.
            let problem =
                error.problem.replace(", set DuplicateKeyPolicy in Options if acceptable", "");
            FieldError::new(FieldError::WHOLE, problem, "write each key once")
        })
    }

    /// The pod's id.
    pub fn id(&self) -> &PodId {
        &self.id
    }

    /// The pod's request (`resources:`), which is allocated on its node.
    pub fn resources(&self) -> &ResourceList {
        &self.resources
    }

    /// Ports that the pod listens on (`ports:`), each of which one pod of a node has. Empty if the list breaks a rule.
    pub fn ports(&self) -> &[PortStanza] {
        &self.ports
    }

    /// The pod's launchables, by name.
    pub fn launchables(&self) -> &[Launchable] {
        &self.launchables
    }
}

impl fmt::Debug for Manifest {
    /// Leaves out the text: manifests may hold secrets in `config`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manifest")
            .field("id", &self.id)
            .field("bytes", &self.text.len())
            .finish_non_exhaustive()
    }
}

fn no_id() -> FieldError {
    let problem =
        "the manifest has no field \"id\", which names the pod; one pod of an id runs on a node";
    FieldError::new("id", problem, "add a line such as \"id: web\"")
}

fn unclosed_frame(what: &'static str) -> FieldError {
    let problem = format!("the manifest begins as a PGP signed message, but {what}");
    FieldError::new(FieldError::WHOLE, problem, "")
}

#[derive(Default, Deserialize)]
struct ManifestFields {
    id: Option<String>,
    launchables: Option<BTreeMap<String, Stanza>>,
    resources: Option<BTreeMap<String, Value>>,
}

/// Read apart: a field of this name that is not ours leaves the manifest valid.
#[derive(Deserialize)]
struct PortsField {
    ports: Value,
}

/// A scalar as it was written.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[derive(Deserialize)]
struct Stanza {
    launchable_type: Option<String>,
    location: Option<String>,
    version: Option<Version>,
}

#[derive(Deserialize)]
struct Version {
    id: Option<String>,
}

impl Stanza {
    fn launchable(self, name: String) -> Launchable {
        let version = self.version.and_then(|version| version.id).or(self.location);
        Launchable { name, kind: self.launchable_type, version }
    }
}

fn read<T: serde::de::DeserializeOwned>(body: &str) -> Result<Option<T>, FieldError> {
    // As Go's YAML parser, which p2 uses: of a repeated key the last value counts.
    read_with(body, serde_saphyr::DuplicateKeyPolicy::LastWins)
}

fn read_with<T: serde::de::DeserializeOwned>(
    body: &str,
    duplicate_keys: serde_saphyr::DuplicateKeyPolicy,
) -> Result<Option<T>, FieldError> {
    let options = serde_saphyr::options! { duplicate_keys: duplicate_keys };
    let mut track = serde_path_to_error::Track::new();
    serde_saphyr::with_deserializer_from_str_with_options(body, options, |yaml| {
        Option::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
    })
    .map_err(|error| {
        let path = track.path();
        let whole = path.iter().len() == 0;
        let path = if whole { FieldError::WHOLE.to_owned() } else { path.to_string() };
        FieldError::new(path, format!("the manifest is not valid: {}", error.without_snippet()), "")
    })
}

#[cfg(test)]
mod tests;
