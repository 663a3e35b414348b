//! A pod manifest as the node runs it. Pure.
//!
//! ```yaml
//! id: web
//! run_as: www                       # a user of the node, or uid[:gid]; default: the agent's own
//! single_instance: true             # at most one alive: stopped before the node's lease ends
//! resources: {cpu: 500m, memory: 256Mi, gpu: 1}       # what a scheduler allocates
//! resource_limits: {cgroup: {cpus: 2, memory: 1G}}    # what the node enforces, in p2's units: 1G is 1024^3
//! ports: [{name: http}, {name: admin, port: 9000}]    # http: of the node's range. ${PORT_HTTP}, ${PORT_ADMIN}
//! services: [{name: web, port: http, tags: [v1], meta: {team: a}}]      # in Consul's catalog
//! config: {greeting: hello}         # a YAML file for the process: $CONFIG_PATH
//! payload: aGVsbG8=                 # base64 of a file for the process: $RCFARM_PAYLOAD
//! launchables:
//!   app:
//!     launchable_type: process
//!     command: python3 -m http.server ${NODE_PORT}    # words as a shell splits them, or a list; no shell
//!     args: [--bind, 127.0.0.1]
//!     env: {LOG: debug}             # or a list as in Kubernetes, which makes $(NAME) of ${NAME}
//!     cwd: /srv/app                 # default: the pod's own directory
//!     stop_signal: TERM
//!     grace: 10s                    # from the stop signal to KILL
//!     restart: {policy: always, backoff: 1s, max_backoff: 60s}     # or just: always | on_failure | never
//!     health: {http: "http://127.0.0.1:${NODE_PORT}/", interval: 5s, timeout: 2s, critical_after: 3, restart_after: 10}
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde_json::Value;

use super::agent::health_check::{HealthCheck, Probe, Thresholds};
use super::agent::restart::RestartPolicy;
use rcfarm_api::ids::check_segment;
use rcfarm_api::manifest::command_line::{Expansion, Variables};
use rcfarm_api::manifest::{
    HealthStanza, LaunchableStanza, Manifest, PeersStanza, PodManifest, PortStanza,
    ProcessDurations, ProcessStanza, RestartStanza, RestartWhen, ServiceStanza, check_known,
    check_launchable_name, plain,
};
use rcfarm_api::{FieldError, ResourceList};

/// A pod as its node runs it, with defaults set.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSpec {
    /// Its launchables, by name.
    pub launchables: BTreeMap<String, LaunchSpec>,
    /// Content of the file whose path the processes get as `CONFIG_PATH`.
    pub config: Option<Value>,
    /// Content of the file whose path the processes get as `RCFARM_PAYLOAD`.
    pub payload: Option<Vec<u8>>,
    /// User that it runs as.
    pub run_as: Option<String>,
    /// What the node enforces: `cpu` and `memory`.
    pub limits: ResourceList,
    /// Resources that a scheduler allocates.
    pub resources: ResourceList,
    /// Whether at most one such pod may be alive.
    pub single_instance: bool,
    /// Ports that it listens on.
    pub ports: Vec<PortStanza>,
    /// Services that the node registers while the pod runs.
    pub services: Vec<ServiceStanza>,
    /// Files that tell where the peers of a job's member are.
    pub peers: Option<PeersStanza>,
}

/// One process of a pod, or why it cannot be run.
#[derive(Debug, Clone, PartialEq)]
pub enum LaunchSpec {
    Process(Box<ProcessSpec>),
    /// A launchable that this node cannot run, and why.
    Unfit(String),
}

/// A process to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSpec {
    /// Program and arguments; never empty.
    pub command: Vec<String>,
    /// Variables besides those that every pod gets.
    pub env: Variables,
    /// Working directory.
    pub cwd: Option<String>,
    /// Name of the stop signal, such as `TERM`.
    pub stop_signal: String,
    /// Time from the stop signal to `KILL`.
    pub grace: Duration,
    pub restart: RestartPolicy,
    /// Health check; `None`: it is healthy while it runs.
    pub health: Option<HealthCheck>,
    /// Whether a pause before a restart was extended.
    pub has_short_pause: bool,
}

impl PodSpec {
    /// Decodes a manifest. A launchable that cannot be run becomes [`LaunchSpec::Unfit`]; the others run.
    ///
    /// # Errors
    /// [`FieldError`] of the manifest.
    pub fn read(manifest: &Manifest) -> Result<PodSpec, FieldError> {
        let fields = PodManifest::read(manifest)?;
        fields.check_size()?;
        fields.check_ports_and_services()?;
        let mut launchables = BTreeMap::new();
        for (name, stanza) in fields.launchables {
            check_segment(&name).map_err(|error| FieldError::from(error).below("launchables"))?;
            let launchable = match stanza {
                LaunchableStanza::Process(stanza) => {
                    check_launchable_name(&name).map_err(|error| error.problem).and_then(|()| {
                        let place =
                            |error: FieldError| format!("{}: {}", error.path, error.reason());
                        process(*stanza).map_err(place)
                    })
                }
                LaunchableStanza::Unfit(_, why) => Err(why),
            };
            let launchable = launchable
                .unwrap_or_else(|why| LaunchSpec::Unfit(format!("launchables.{name}: {why}")));
            launchables.insert(name, launchable);
        }
        let payload = fields.payload.map(|text| STANDARD.decode(text)).transpose();
        let payload = payload
            .map_err(|error| FieldError::new("payload", error.to_string(), "write it in base64"))?;
        Ok(PodSpec {
            launchables,
            config: fields.config,
            payload,
            run_as: fields.run_as.map(|user| plain(&user)),
            limits: fields.resource_limits.unwrap_or_default().amounts()?,
            resources: manifest.resources().clone(),
            single_instance: fields.single_instance,
            ports: fields.ports,
            services: fields.services,
            peers: fields.peers,
        })
    }
}

/// Refuses a new manifest that no agent of ours can run as it is meant, with what commands can check without a node.
/// Launchables of p2's types are p2's to check.
///
/// # Errors
/// [`FieldError`] of the first field that breaks a rule.
pub fn check_new(manifest: &Manifest) -> Result<(), FieldError> {
    manifest.check_repeated()?;
    check_known(&manifest.fields()?)?;
    // Sizes, user, limits, ports and services.
    PodSpec::read(manifest)?;
    for (name, stanza) in PodManifest::read(manifest)?.launchables {
        let LaunchableStanza::Process(stanza) = stanza else { continue };
        check_launchable_name(&name).map_err(|error| error.below("launchables"))?;
        let health = stanza.health.clone().unwrap_or_default();
        let below = |error: FieldError| error.below(&format!("launchables.{name}"));
        process(*stanza).map_err(below)?;
        check_targets(&health).map_err(below)?;
    }
    Ok(())
}

/// Checks what a health check connects to, as far as no variable of the node is part of it.
fn check_targets(health: &HealthStanza) -> Result<(), FieldError> {
    let is_url = |url: &str| ["http://", "https://", "$"].iter().any(|with| url.starts_with(with));
    if let Some(url) = health.http.as_deref().filter(|url| !is_url(url)) {
        let fix = "write such as http://127.0.0.1:${NODE_PORT}/health";
        return Err(FieldError::new("health.http", format!("{url:?} is no URL of HTTP"), fix));
    }
    if let Some(address) = health.tcp.as_deref().filter(|one| !one.contains([':', '$'])) {
        let fix = "write such as 127.0.0.1:${NODE_PORT}";
        return Err(FieldError::new("health.tcp", format!("{address:?} has no port"), fix));
    }
    Ok(())
}

fn process(stanza: ProcessStanza) -> Result<LaunchSpec, FieldError> {
    let command = stanza.words()?;
    stanza.check()?;
    let durations = stanza.durations()?;
    let has_short_pause = stanza.has_short_pause();
    let env = stanza.env.variables();
    let expansion = env.expansion;
    let stop_signal = stanza.stop_signal.unwrap_or_else(|| "TERM".to_owned());
    let stop_signal = stop_signal.strip_prefix("SIG").unwrap_or(&stop_signal).to_owned();
    if !super::agent::driver::SIGNALS.iter().any(|(name, _)| *name == stop_signal) {
        let names: Vec<&str> =
            super::agent::driver::SIGNALS.iter().map(|(name, _)| *name).collect();
        let fix = format!("write one of {}", names.join(", "));
        return Err(FieldError::new("stop_signal", format!("{stop_signal:?} is no signal"), fix));
    }
    let policy = match stanza.restart {
        None => RestartWhen::default(),
        Some(RestartStanza::Word(policy) | RestartStanza::Whole { policy, .. }) => policy,
    };
    let ProcessDurations { grace, backoff, max_backoff, .. } = durations;
    Ok(LaunchSpec::Process(Box::new(ProcessSpec {
        command,
        env,
        cwd: stanza.cwd,
        stop_signal,
        grace,
        restart: RestartPolicy { policy, backoff, max_backoff },
        health: stanza.health.map(|health| check(health, durations, expansion)).transpose()?,
        has_short_pause,
    })))
}

fn check(
    stanza: HealthStanza,
    durations: ProcessDurations,
    expansion: Expansion,
) -> Result<HealthCheck, FieldError> {
    let probe = match (stanza.http, stanza.tcp, stanza.exec) {
        (Some(url), None, None) => Probe::Http(url),
        (None, Some(address), None) => Probe::Tcp(address),
        (None, None, Some(line)) => {
            let at = |error| FieldError { path: "health.exec".to_owned(), ..error };
            Probe::Exec(line.words().map_err(at)?)
        }
        (None, None, None) => {
            let fix = "give one of http, tcp and exec";
            return Err(FieldError::new("health", "it checks nothing", fix));
        }
        _ => {
            let fix = "give one of http, tcp and exec, or divide them among launchables";
            return Err(FieldError::new("health", "it has several checks", fix));
        }
    };
    Ok(HealthCheck {
        probe,
        expansion,
        interval: durations.interval,
        timeout: durations.timeout,
        thresholds: Thresholds {
            passing_after: stanza.passing_after.unwrap_or(1).max(1),
            critical_after: stanza.critical_after.unwrap_or(3).max(1),
            restart_after: stanza.restart_after.map(|after| after.max(1)),
        },
    })
}

#[cfg(test)]
mod tests {
    use rcfarm_api::manifest::RestartWhen;

    use super::*;

    fn read(text: &str) -> Result<PodSpec, FieldError> {
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
        assert_eq!(spec.limits.to_string(), "cpu=2,memory=1Ki");
        assert_eq!(spec.resources.to_string(), "cpu=500m,memory=1Gi,gpu=2");
        let LaunchSpec::Process(process) = &spec.launchables["l"] else { panic!("unfit") };
        assert_eq!(process.command, ["sh", "-c", "echo \"a b\"", "1", "x"]);
        assert_eq!((process.stop_signal.as_str(), process.grace), ("INT", Duration::from_secs(2)));
        assert_eq!(process.restart.policy, RestartWhen::OnFailure);
        let check = process.health.as_ref().unwrap();
        assert_eq!(check.probe, Probe::Tcp("127.0.0.1:1".to_owned()));
        let thresholds = Thresholds { passing_after: 1, critical_after: 2, restart_after: None };
        assert_eq!(check.thresholds, thresholds);
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
            ("{launchable_type: process, command: a, restart: {backoff: 1year}}", "too long"),
            ("{launchable_type: process, command: a, health: {exec: \"'\"}}", "quote"),
            ("{launchable_type: process, command: a, health: {}}", "one of http"),
        ] {
            let why = unfit(stanza);
            assert!(why.contains(words) && why.contains("launchables.l"), "{stanza}: {why}");
        }
        for (text, words) in [
            ("id: a\nsingle_instance: maybe\n", "true or false"),
            ("id: a\nlaunchables: {a/b: {}}\n", "allowed"),
            ("id: a\nservices: [{name: consul}]\n", "services[0].name"),
            ("id: a\nports: [{name: a}, {name: a}]\n", "ports[1].name"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    /// A new manifest is refused for what an agent would report only later.
    #[test]
    fn payload_is_base64_or_refused_by_field() {
        let of = |payload: &str| format!("id: web\nlaunchables: {{}}\npayload: {payload}\n");
        assert_eq!(read(&of("aGVsbG8=")).unwrap().payload.as_deref(), Some(&b"hello"[..]));
        assert_eq!(read(&of("''")).unwrap().payload.as_deref(), Some(&b""[..]));
        assert_eq!(read("id: web\n").unwrap().payload, None);
        for bad in ["'no!'", "aGVsbG8", "'aGVs bG8='", "'#'"] {
            let error = read(&of(bad)).unwrap_err();
            assert_eq!((&*error.path, &*error.fix), ("payload", "write it in base64"), "{bad}");
            let manifest = Manifest::parse(&of(bad)).unwrap();
            assert_eq!(check_new(&manifest).unwrap_err().path, "payload", "{bad}");
        }
    }

    #[test]
    fn new_manifests_are_checked_as_the_agent_does() {
        let check = |text: &str| check_new(&Manifest::parse(text).unwrap());
        for (fields, path, words) in [
            ("command: \"sh 'a\"", "launchables.l.command", "quote"),
            ("command: ''", "launchables.l.command", "name the program"),
            ("command: []", "launchables.l.command", "name the program"),
            ("command: 1", "launchables.l", "command: write a line"),
            ("command: a, stop_signal: BOO", "launchables.l.stop_signal", "TERM"),
            (
                "command: a, health: {http: 'http://x/', tcp: 'x:1'}",
                "launchables.l.health",
                "one of",
            ),
            ("command: a, health: {interval: 1s}", "launchables.l.health", "checks nothing"),
            ("command: a, health: {http: 'ftp://x/'}", "launchables.l.health.http", "http://"),
            ("command: a, health: {tcp: x}", "launchables.l.health.tcp", "no port"),
            ("command: a, health: {exec: ''}", "launchables.l.health.exec", "empty"),
            ("command: a, health: {tcp: 'x:1', interval: 1}", "launchables.l", "500ms, 10s"),
            ("command: a, restart: sometimes", "launchables.l", "restart: write always"),
        ] {
            let text =
                format!("id: a\nlaunchables: {{l: {{launchable_type: process, {fields}}}}}\n");
            let error = check(&text).unwrap_err();
            assert_eq!(error.path, path, "{text}: {error}");
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
        let cases =
            [("id: a\nid: b\n", "id"), ("id: a\nresource_limits: {cgroup: {memory: 1X}}\n", "1X")];
        for (text, words) in cases {
            let error = check(text).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("Options"), "{text}: {error}");
        }
        check("id: a\nstatus_port: 80\nlaunchables: {a: {launchable_type: hoist, location: x}}\n")
            .unwrap();
        check("id: a\nlaunchables: {l: {launchable_type: process, command: a, health: {http: '${URL}'}}}\n")
            .unwrap();
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
}
