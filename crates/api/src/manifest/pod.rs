//! The fields of a manifest that our agents act upon, as they are written and read.
//!
//! `resources`, `resource_limits`, `launchables`, `config` and `run_as` are p2's names. Fields that are not listed here
//! are ignored. Texts such as durations are checked by the agent, which knows what it can run.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::command_line::{Expansion, Variables};
use super::{Manifest, PeersStanza, PortStanza, ServiceStanza, plain};
use crate::FieldError;

/// The fields of a pod manifest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodManifest {
    /// The pod's id.
    #[serde(skip_deserializing)]
    pub id: String,
    /// What the farm notes about a member of a job; agents ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Value>,
    /// What the pod starts, by name.
    #[serde(deserialize_with = "or_empty")]
    pub launchables: BTreeMap<String, LaunchableStanza>,
    /// Written to the file that the processes find as `CONFIG_PATH`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
    /// Bytes in base64, written to the file that the processes find as `RCFARM_PAYLOAD`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// User that the processes run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as: Option<Value>,
    /// What a scheduler reserves: amounts by resource.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, Value>,
    /// What the node enforces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_limits: Option<LimitsStanza>,
    /// Whether at most one such pod may be alive.
    #[serde(deserialize_with = "flag", skip_serializing_if = "std::ops::Not::not")]
    pub single_instance: bool,
    /// Ports that the pod listens on.
    #[serde(deserialize_with = "or_no_list", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortStanza>,
    /// Services that the node registers in Consul's catalog while the pod runs.
    #[serde(deserialize_with = "or_no_list", skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceStanza>,
    /// Of a member of a job: files that tell where its peers are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeersStanza>,
}

/// `resource_limits`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsStanza {
    /// `cpus`, `cpu_milli` and `memory`; other names are ignored.
    #[serde(deserialize_with = "or_empty")]
    pub cgroup: BTreeMap<String, Value>,
}

/// One entry of `launchables`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Value", into = "Value")]
pub enum LaunchableStanza {
    /// A process.
    Process(Box<ProcessStanza>),
    /// Anything else, as it was written, and why our agents cannot run it. It does not keep the others from running.
    Unfit(Value, String),
}

/// A launchable of the type `process`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessStanza {
    /// [`PROCESS`].
    pub launchable_type: String,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Value>,
    /// The program, and the first of its arguments.
    pub command: CommandStanza,
    /// More arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Value>,
    /// Variables besides those that every pod gets.
    #[serde(default, skip_serializing_if = "EnvStanza::is_empty")]
    pub env: EnvStanza,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Signal that asks the process to stop, such as `TERM`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Time from the stop signal to `KILL`, such as `10s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<String>,
    /// Whether it is started again when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartStanza>,
    /// Its health check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthStanza>,
}

/// Variables of a process. The form decides how references to variables are written ([`Expansion`]), also in
/// `command`, `args` and `health.exec`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "write values by name, or a list of name and value")]
pub enum EnvStanza {
    /// Values by name: `${NAME}`, which is expanded in `cwd` and the whole health check, too.
    Map(BTreeMap<String, Value>),
    /// A list as in Kubernetes: `$(NAME)` and its rules. A value knows the variables before it.
    List(Vec<EnvVariable>),
}

/// One variable of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvVariable {
    /// Name of the variable.
    pub name: String,
    /// Its value, not expanded.
    #[serde(default)]
    pub value: String,
}

impl Default for EnvStanza {
    fn default() -> EnvStanza {
        EnvStanza::Map(BTreeMap::new())
    }
}

impl EnvStanza {
    /// Whether it says nothing. An empty list says how references are written.
    fn is_empty(&self) -> bool {
        matches!(self, EnvStanza::Map(variables) if variables.is_empty())
    }

    /// The variables in the order in which they are set.
    #[must_use]
    pub fn variables(&self) -> Variables {
        match self {
            EnvStanza::Map(variables) => Variables {
                list: variables.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
                expansion: Expansion::Braces,
            },
            EnvStanza::List(variables) => Variables {
                list: variables.iter().map(|v| (v.name.clone(), v.value.clone())).collect(),
                expansion: Expansion::Kubernetes,
            },
        }
    }
}

/// The `launchable_type` that our agents run.
pub const PROCESS: &str = "process";

/// Program and arguments, as one line or as a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "write a line, or a list of words; quote numbers, true and false")]
pub enum CommandStanza {
    /// A line, split into words as a shell splits it.
    Line(String),
    /// Words.
    Words(Vec<String>),
}

impl Default for CommandStanza {
    fn default() -> Self {
        CommandStanza::Words(Vec::new())
    }
}

/// `restart`: a word, or a policy with its pauses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "write always, on_failure or never, or such as {policy: always, backoff: 1s, max_backoff: 60s}"
)]
pub enum RestartStanza {
    /// The policy with the usual pauses.
    Word(RestartWhen),
    /// The policy and its pauses.
    Whole {
        /// Which exits lead to a restart.
        #[serde(default)]
        policy: RestartWhen,
        /// The first pause, such as `1s`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        backoff: Option<String>,
        /// Upper bound of the pauses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_backoff: Option<String>,
    },
}

/// Which exits of a process lead to a restart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartWhen {
    /// Every exit.
    #[default]
    Always,
    /// Every exit but code 0.
    OnFailure,
    /// No exit.
    Never,
}

/// A health check: one of `http`, `tcp` and `exec`, and its times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthStanza {
    /// URL to `GET`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Address to connect to, as `host:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<String>,
    /// Command to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<CommandStanza>,
    /// Pause between two checks, such as `5s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Limit of one check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Good results in a row until the process is healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passing_after: Option<u32>,
    /// Bad results in a row until it is critical.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical_after: Option<u32>,
    /// Bad results in a row until the process is stopped and started again. Absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_after: Option<u32>,
}

impl PodManifest {
    /// Reads the fields of a manifest.
    ///
    /// # Errors
    /// [`FieldError`] with the path of the field that has the wrong shape.
    pub fn read(manifest: &Manifest) -> Result<PodManifest, FieldError> {
        let fields = manifest.fields()?;
        let pod: PodManifest = serde_path_to_error::deserialize(fields).map_err(|error| {
            let path = match error.path().to_string() {
                path if path == "." => FieldError::WHOLE.to_owned(),
                path => path,
            };
            FieldError::new(
                path,
                error.into_inner().to_string(),
                "compare with docs/guide/nodes.md",
            )
        })?;
        Ok(PodManifest { id: manifest.id().to_string(), ..pod })
    }

    /// The manifest as text: JSON, which is YAML too. Keys are sorted, so that equal manifests have equal texts.
    ///
    /// # Panics
    /// Never: all keys are strings.
    pub fn text(&self) -> String {
        serde_json::to_value(self).expect("a manifest has a JSON form").to_string()
    }
}

impl From<Value> for LaunchableStanza {
    fn from(stanza: Value) -> LaunchableStanza {
        let why = match stanza.get("launchable_type").and_then(Value::as_str) {
            Some(PROCESS) => match serde_path_to_error::deserialize(&stanza) {
                Ok(process) => return LaunchableStanza::Process(process),
                Err(error) => wrong_shape(&error),
            },
            Some(other) => format!(
                "launchable_type {other:?} cannot be run by this agent; it runs {PROCESS:?}"
            ),
            None => format!("there is no launchable_type; this agent runs {PROCESS:?}"),
        };
        LaunchableStanza::Unfit(stanza, why)
    }
}

/// Fields that are durations.
const DURATIONS: [&str; 3] = ["grace", "health.interval", "health.timeout"];

/// Why a field of a process cannot be read, and what to write.
fn wrong_shape(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let (path, why) = (error.path().to_string(), error.inner());
    match path.as_str() {
        "." => why.to_string(),
        // The text names the field.
        _ if why.to_string().starts_with("unknown field") && !path.contains('.') => why.to_string(),
        path if DURATIONS.contains(&path) => {
            format!("{path}: {why}; write it like 500ms, 10s or 5m")
        }
        path => format!("{path}: {why}"),
    }
}

impl From<LaunchableStanza> for Value {
    fn from(stanza: LaunchableStanza) -> Value {
        match stanza {
            LaunchableStanza::Process(process) => {
                serde_json::to_value(process).expect("a stanza has a JSON form")
            }
            LaunchableStanza::Unfit(value, _) => value,
        }
    }
}

/// A mapping; `null` is an empty one.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A list; `null` is an empty one.
fn or_no_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// `true` or `false`; `null` is false.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(false),
        Value::Bool(yes) => Ok(yes),
        _ => Err(D::Error::custom("write true or false")),
    }
}
