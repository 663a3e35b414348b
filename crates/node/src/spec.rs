//! A pod manifest as the node runs it. Pure.
//!
//! ```yaml
//! id: web
//! run_as: www                       # a user of the node, or uid[:gid]; default: the agent's own
//! single_instance: true             # at most one alive: stopped before the node's lease ends
//! resources: {cpu: 500m, memory: 256Mi, gpu: 1}       # what a scheduler allocates
//! resource_limits: {cgroup: {cpus: 2, memory: 1G}}    # what the node enforces, in p2's units: 1G is 1024^3
//! config: {greeting: hello}         # a YAML file for the process: $CONFIG_PATH
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

use serde_json::Value;

use super::agent::health::{HealthCheck, Probe, Thresholds};
use super::agent::restart::RestartPolicy;
use rcfarm_api::ids::check_segment;
use rcfarm_api::manifest::command_line::{Expansion, Variables};
use rcfarm_api::manifest::{
    HealthStanza, LaunchableStanza, Manifest, PodManifest, ProcessDurations, ProcessStanza,
    RestartStanza, RestartWhen, check_launchable_name, plain,
};
use rcfarm_api::{FieldError, ResourceList};

/// A pod as its node runs it, with defaults set.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSpec {
    /// Its launchables, by name.
    pub launchables: BTreeMap<String, LaunchSpec>,
    /// Content of the file whose path the processes get as `CONFIG_PATH`.
    pub config: Option<Value>,
    /// User that it runs as.
    pub run_as: Option<String>,
    /// What the node enforces: `cpu` and `memory`.
    pub limits: ResourceList,
    /// Resources that a scheduler allocates.
    pub resources: ResourceList,
    /// Whether at most one such pod may be alive.
    pub single_instance: bool,
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
        let mut launchables = BTreeMap::new();
        for (name, stanza) in fields.launchables {
            check_segment(&name).map_err(|error| FieldError::from(error).below("launchables"))?;
            let launchable = match stanza {
                LaunchableStanza::Process(stanza) => check_launchable_name(&name)
                    .map_err(|error| error.problem)
                    .and_then(|()| process(*stanza)),
                LaunchableStanza::Unfit(_, why) => Err(why),
            };
            let launchable = launchable
                .unwrap_or_else(|why| LaunchSpec::Unfit(format!("launchables.{name}: {why}")));
            launchables.insert(name, launchable);
        }
        Ok(PodSpec {
            launchables,
            config: fields.config,
            run_as: fields.run_as.map(|user| plain(&user)),
            limits: fields.resource_limits.unwrap_or_default().amounts()?,
            resources: manifest.resources().clone(),
            single_instance: fields.single_instance,
        })
    }
}

fn process(stanza: ProcessStanza) -> Result<LaunchSpec, String> {
    let place = |error: FieldError| format!("{}: {}", error.path, error.reason());
    let command = stanza.words().map_err(place)?;
    stanza.check().map_err(place)?;
    let durations = stanza.durations().map_err(place)?;
    let has_short_pause = stanza.has_short_pause();
    let env = stanza.env.variables();
    let expansion = env.expansion;
    let stop_signal = stanza.stop_signal.unwrap_or_else(|| "TERM".to_owned());
    let stop_signal = stop_signal.strip_prefix("SIG").unwrap_or(&stop_signal).to_owned();
    if !super::agent::driver::SIGNALS.iter().any(|(name, _)| *name == stop_signal) {
        return Err(format!("stop_signal {stop_signal:?} is none; write TERM, INT, QUIT, HUP, …"));
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
) -> Result<HealthCheck, String> {
    let probe = match (stanza.http, stanza.tcp, stanza.exec) {
        (Some(url), None, None) => Probe::Http(url),
        (None, Some(address), None) => Probe::Tcp(address),
        (None, None, Some(line)) => {
            Probe::Exec(line.words().map_err(|error| format!("health.exec: {}", error.reason()))?)
        }
        _ => return Err("health: give one of http, tcp and exec".to_owned()),
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
}
