//! What a node makes of a pod manifest. Pure.
//!
//! ```yaml
//! id: web
//! run_as: www                       # a user of the node, or uid[:gid]; default: the agent's own
//! single_instance: true             # never two alive: stopped when the node can no longer prove that it lives
//! resources: {cpu: 500m, memory: 256Mi, gpu: 1}       # what a scheduler reserves
//! resource_limits: {cgroup: {cpus: 2, memory: 1Gi}}   # what the node enforces, as p2 writes it
//! config: {greeting: hello}         # a YAML file for the process: $CONFIG_PATH
//! launchables:
//!   app:
//!     launchable_type: process
//!     command: python3 -m http.server ${NODE_PORT}    # words as a shell splits them, or a list; no shell
//!     args: [--bind, 127.0.0.1]
//!     env: {LOG: debug}
//!     cwd: /srv/app                 # default: the pod's own directory
//!     stop_signal: TERM
//!     grace: 10s                    # from the stop signal to KILL
//!     restart: {policy: always, backoff: 1s, max_backoff: 60s}     # or just: always | on_failure | never
//!     health: {http: "http://127.0.0.1:${NODE_PORT}/", interval: 5s, timeout: 2s, critical_after: 3}
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::agent::health::{HealthCheck, Probe, Thresholds};
use super::agent::restart::{RestartPolicy, RestartWhen};
use rcfarm_api::ids::check_segment;
use rcfarm_api::manifest::{Manifest, ManifestError, Resources};

/// A pod as its node runs it.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSpec {
    /// What it starts, by name.
    pub launchables: BTreeMap<String, LaunchSpec>,
    /// What is written to the file that the processes find as `CONFIG_PATH`.
    pub config: Option<Value>,
    /// As whom it runs.
    pub run_as: Option<String>,
    /// What the node enforces.
    pub limits: ResourceLimits,
    /// What a scheduler reserves.
    pub resources: Resources,
    /// Never two of it alive.
    pub single_instance: bool,
}

/// What the node enforces, where it may.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Thousandths of a processor; 0: no limit.
    pub cpu_milli: u64,
    /// Bytes; 0: no limit.
    pub memory_bytes: u64,
}

/// One thing that a pod starts.
#[derive(Debug, Clone, PartialEq)]
pub enum LaunchSpec {
    /// A process.
    Process(Box<ProcessSpec>),
    /// Something that this node cannot run, and why.
    Unfit(String),
}

/// A process to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSpec {
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// Variables besides those that every pod gets.
    pub env: BTreeMap<String, String>,
    /// Where it runs.
    pub cwd: Option<String>,
    /// What asks it to stop, as in `TERM`.
    pub stop_signal: String,
    /// How long it may take to stop before it is killed.
    pub grace: Duration,
    /// What happens when it ends.
    pub restart: RestartPolicy,
    /// How its health is found out; `None`: it is well while it runs.
    pub health: Option<HealthCheck>,
}

/// Why a node cannot make anything of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPod {
    /// It is no manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A field of the pod is wrong.
    #[error("field {field:?} of the manifest: {why}")]
    Field {
        /// Its path.
        field: String,
        /// What is wrong, and what to write instead.
        why: String,
    },
}

impl PodSpec {
    /// Reads what the node needs of a manifest. A launchable that cannot be run is [`LaunchSpec::Unfit`]; it does
    /// not keep the others from running.
    ///
    /// # Errors
    /// [`BadPod`] with the field.
    pub fn read(manifest: &Manifest) -> Result<PodSpec, BadPod> {
        let Value::Object(mut fields) = manifest.fields()? else {
            return Err(bad("", "it must be a mapping"));
        };
        let mut launchables = BTreeMap::new();
        for (name, stanza) in object(&mut fields, "launchables")?.unwrap_or_default() {
            check_segment(&name).map_err(|error| bad("launchables", &error.to_string()))?;
            let launchable = launchable(stanza)
                .unwrap_or_else(|why| LaunchSpec::Unfit(format!("launchables.{name}: {why}")));
            launchables.insert(name, launchable);
        }
        let single_instance = match fields.remove("single_instance") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(yes)) => yes,
            Some(_) => return Err(bad("single_instance", "write true or false")),
        };
        Ok(PodSpec {
            launchables,
            config: fields.remove("config").filter(|config| !config.is_null()),
            run_as: fields.remove("run_as").filter(|user| !user.is_null()).map(|user| plain(&user)),
            limits: limits(&mut fields)?,
            resources: manifest.resources().clone(),
            single_instance,
        })
    }
}

fn bad(field: &str, why: &str) -> BadPod {
    BadPod::Field { field: field.to_owned(), why: why.to_owned() }
}

fn object(
    fields: &mut Map<String, Value>,
    field: &str,
) -> Result<Option<Map<String, Value>>, BadPod> {
    match fields.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(inner)) => Ok(Some(inner)),
        Some(_) => Err(bad(field, "it must be a mapping")),
    }
}

/// A scalar as it was written.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// p2's `resource_limits`, with amounts in our spellings besides.
fn limits(fields: &mut Map<String, Value>) -> Result<ResourceLimits, BadPod> {
    let mut stanza = object(fields, "resource_limits")?.unwrap_or_default();
    let mut found = Resources::default();
    for (word, amount) in object(&mut stanza, "cgroup")?.unwrap_or_default() {
        let what = match word.as_str() {
            "cpus" => "cpu",
            "memory" => "memory",
            _ => continue,
        };
        let set = found.set(what, &plain(&amount));
        set.map_err(|error| bad(&format!("resource_limits.cgroup.{word}"), &error.to_string()))?;
    }
    Ok(ResourceLimits { cpu_milli: found.cpu_milli, memory_bytes: found.memory_bytes })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Command {
    Line(String),
    Words(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProcessStanza {
    #[serde(rename = "launchable_type")]
    _kind: String,
    #[serde(default, rename = "version")]
    _version: Option<Value>,
    command: Command,
    #[serde(default)]
    args: Vec<Value>,
    #[serde(default)]
    env: BTreeMap<String, Value>,
    cwd: Option<String>,
    stop_signal: Option<String>,
    grace: Option<String>,
    restart: Option<RestartStanza>,
    health: Option<HealthStanza>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RestartStanza {
    Word(RestartWhen),
    Whole {
        #[serde(default)]
        policy: RestartWhen,
        backoff: Option<String>,
        max_backoff: Option<String>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthStanza {
    http: Option<String>,
    tcp: Option<String>,
    exec: Option<Command>,
    interval: Option<String>,
    timeout: Option<String>,
    passing_after: Option<u32>,
    critical_after: Option<u32>,
}

fn launchable(stanza: Value) -> Result<LaunchSpec, String> {
    let kind = stanza.get("launchable_type").and_then(Value::as_str).map(str::to_owned);
    match kind.as_deref() {
        Some("process") => {}
        Some(other) => {
            let why = format!(
                "launchable_type {other:?} cannot be run by this agent; it runs \"process\""
            );
            return Err(why);
        }
        None => return Err("there is no launchable_type; this agent runs \"process\"".to_owned()),
    }
    let stanza: ProcessStanza =
        serde_json::from_value(stanza).map_err(|error| error.to_string())?;
    let mut command = command(stanza.command)?;
    command.extend(stanza.args.iter().map(plain));
    let stop_signal = stanza.stop_signal.unwrap_or_else(|| "TERM".to_owned());
    let stop_signal = stop_signal.strip_prefix("SIG").unwrap_or(&stop_signal).to_owned();
    if !super::agent::driver::SIGNALS.iter().any(|(name, _)| *name == stop_signal) {
        return Err(format!("stop_signal {stop_signal:?} is none; write TERM, INT, QUIT, HUP, …"));
    }
    Ok(LaunchSpec::Process(Box::new(ProcessSpec {
        command,
        env: stanza.env.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        cwd: stanza.cwd,
        stop_signal,
        grace: duration("grace", stanza.grace.as_deref(), Duration::from_secs(10))?,
        restart: restart(stanza.restart)?,
        health: stanza.health.map(health).transpose()?,
    })))
}

fn command(command: Command) -> Result<Vec<String>, String> {
    let words = match command {
        Command::Line(line) => words(&line).ok_or("command: a quote is not closed")?,
        Command::Words(words) => words,
    };
    if words.is_empty() { Err("command: it is empty".to_owned()) } else { Ok(words) }
}

fn duration(field: &str, text: Option<&str>, default: Duration) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(default) };
    humantime::parse_duration(text)
        .map_err(|error| format!("{field}: {error}; write it like 500ms, 10s or 5m"))
}

fn restart(stanza: Option<RestartStanza>) -> Result<RestartPolicy, String> {
    let default = RestartPolicy::default();
    Ok(match stanza {
        None => default,
        Some(RestartStanza::Word(policy)) => RestartPolicy { policy, ..default },
        Some(RestartStanza::Whole { policy, backoff, max_backoff }) => RestartPolicy {
            policy,
            backoff: duration("restart.backoff", backoff.as_deref(), default.backoff)?,
            max_backoff: duration(
                "restart.max_backoff",
                max_backoff.as_deref(),
                default.max_backoff,
            )?,
        },
    })
}

fn health(stanza: HealthStanza) -> Result<HealthCheck, String> {
    let probe = match (stanza.http, stanza.tcp, stanza.exec) {
        (Some(url), None, None) => Probe::Http(url),
        (None, Some(address), None) => Probe::Tcp(address),
        (None, None, Some(line)) => Probe::Exec(command(line)?),
        _ => return Err("health: give one of http, tcp and exec".to_owned()),
    };
    Ok(HealthCheck {
        probe,
        interval: duration("health.interval", stanza.interval.as_deref(), Duration::from_secs(10))?
            .max(Duration::from_millis(100)),
        timeout: duration("health.timeout", stanza.timeout.as_deref(), Duration::from_secs(5))?,
        thresholds: Thresholds {
            passing_after: stanza.passing_after.unwrap_or(1).max(1),
            critical_after: stanza.critical_after.unwrap_or(3).max(1),
        },
    })
}

/// Splits a line as a shell does, quotes and backslashes included and nothing else; `None`: a quote stays open.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '\\' => word.push(chars.next()?),
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next()?),
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Puts variables into a text: `${NAME}`. An unknown one stays as it is, for whoever may know it.
#[must_use]
pub fn expand(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let known = inner.find('}').and_then(|end| Some((end, env.get(&inner[..end])?)));
        match known {
            Some((end, value)) => {
                out.push_str(value);
                rest = &inner[end + 1..];
            }
            None => {
                out.push_str("${");
                rest = inner;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<PodSpec, BadPod> {
        PodSpec::read(&Manifest::parse(text).unwrap())
    }

    fn unfit(stanza: &str) -> String {
        let text = format!("id: a\nlaunchables:\n  l: {stanza}\n");
        match &read(&text).unwrap().launchables["l"] {
            LaunchSpec::Unfit(why) => why.clone(),
            fit => panic!("{stanza} is fit: {fit:?}"),
        }
    }

    #[test]
    fn a_whole_process_is_read() {
        let spec = read(
            "id: a\nrun_as: 1000\nsingle_instance: true\nconfig: {a: 1}\n\
             resources: {cpu: 0.5, memory: 1Gi, gpu: 2}\n\
             resource_limits: {cgroup: {cpus: 2, memory: 1024}}\n\
             launchables:\n  l:\n    launchable_type: process\n    command: sh -c 'echo \"a b\"'\n    \
             args: [1, x]\n    env: {N: 1}\n    stop_signal: SIGINT\n    grace: 2s\n    \
             restart: {policy: on_failure, backoff: 10ms}\n    health: {tcp: '127.0.0.1:1', critical_after: 2}\n",
        )
        .unwrap();
        assert!(spec.single_instance);
        assert_eq!(spec.run_as.as_deref(), Some("1000"));
        assert_eq!((spec.limits.cpu_milli, spec.limits.memory_bytes), (2_000, 1_024));
        assert_eq!(spec.resources.to_string(), "cpu=500m,memory=1Gi,gpu=2");
        let LaunchSpec::Process(process) = &spec.launchables["l"] else { panic!("unfit") };
        assert_eq!(process.command, ["sh", "-c", "echo \"a b\"", "1", "x"]);
        assert_eq!((process.stop_signal.as_str(), process.grace), ("INT", Duration::from_secs(2)));
        assert_eq!(process.restart.policy, RestartWhen::OnFailure);
        let check = process.health.as_ref().unwrap();
        assert_eq!(check.probe, Probe::Tcp("127.0.0.1:1".to_owned()));
        assert_eq!(check.thresholds, Thresholds { passing_after: 1, critical_after: 2 });
    }

    #[test]
    fn what_cannot_be_run_says_why_and_what_instead() {
        for (stanza, words) in [
            ("{launchable_type: docker, image: x}", "\"docker\" cannot be run"),
            ("{location: x}", "no launchable_type"),
            ("{launchable_type: process}", "command"),
            ("{launchable_type: process, command: []}", "empty"),
            ("{launchable_type: process, command: \"sh 'a\"}", "quote"),
            ("{launchable_type: process, command: a, comand: b}", "comand"),
            ("{launchable_type: process, command: a, grace: soon}", "500ms, 10s"),
            ("{launchable_type: process, command: a, stop_signal: BOO}", "TERM"),
            ("{launchable_type: process, command: a, health: {}}", "one of http"),
        ] {
            let why = unfit(stanza);
            assert!(why.contains(words) && why.contains("launchables.l"), "{stanza}: {why}");
        }
        for (text, words) in [
            ("id: a\nsingle_instance: maybe\n", "true or false"),
            ("id: a\nlaunchables: {a/b: {}}\n", "allowed"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn one_bad_launchable_does_not_hide_a_good_one() {
        let text = "id: a\nlaunchables:\n  bad: {launchable_type: hoist}\n  \
                    good: {launchable_type: process, command: true}\n";
        assert!(matches!(unfit_of(text, "bad"), LaunchSpec::Unfit(_)));
        // YAML reads `true` as a boolean, which is no command.
        assert!(matches!(unfit_of(text, "good"), LaunchSpec::Unfit(_)));
        let text = text.replace("command: true", "command: 'true'");
        assert!(matches!(unfit_of(&text, "good"), LaunchSpec::Process(_)));
    }

    fn unfit_of(text: &str, name: &str) -> LaunchSpec {
        read(text).unwrap().launchables[name].clone()
    }

    #[test]
    fn only_known_variables_are_put_in() {
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        assert_eq!(expand("${A}${B} $A ${A", &env), "1${B} $A ${A");
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words_in in prop::collection::vec("[^'\\\\]{0,8}", 1..5)) {
            let line: Vec<String> = words_in.iter().map(|word| format!("'{word}'")).collect();
            prop_assert_eq!(words(&line.join(" ")), Some(words_in));
        }

        #[test]
        fn no_text_makes_the_splitter_or_the_expansion_panic(text in "\\PC{0,40}") {
            let _ = words(&text);
            let _ = expand(&text, &BTreeMap::new());
        }
    }
}
