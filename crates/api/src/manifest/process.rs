//! Rules for the fields of a process. Pure.
//!
//! Commands, farms and agents apply the same rules, because anything can be written to Consul directly.

use std::collections::BTreeMap;
use std::time::Duration;

use super::command_line::{Expanded, LONGEST_NAME, cut, words};
use super::{CommandStanza, LaunchableStanza, PodManifest, ProcessStanza, RestartStanza, plain};
use crate::FieldError;

/// Longest duration in a manifest: a week.
pub const LONGEST_DURATION: Duration = Duration::from_secs(7 * 86_400);
/// Upper bound of the arguments and variables of all processes of a pod, in bytes. The agent holds them in memory.
pub const LONGEST_POD: usize = 16 * 1024 * 1024;
/// Shortest pause before a restart. Shorter ones are extended to it: each start costs a shim and a process.
pub const SHORTEST_RESTART_PAUSE: Duration = Duration::from_millis(100);
/// Shortest pause between two health checks. Shorter ones are extended to it.
const SHORTEST_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The durations of a process, with defaults set. None is longer than [`LONGEST_DURATION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessDurations {
    /// Time from the stop signal to `KILL`.
    pub grace: Duration,
    /// Pause before the first restart.
    pub backoff: Duration,
    /// Upper bound of the pauses.
    pub max_backoff: Duration,
    /// Pause between two health checks.
    pub interval: Duration,
    /// Limit of one health check.
    pub timeout: Duration,
}

/// Reads a duration of a manifest.
///
/// # Errors
/// [`FieldError`] at `path`: the text is no duration, or it is longer than [`LONGEST_DURATION`].
pub fn duration(path: &str, text: Option<&str>, default: Duration) -> Result<Duration, FieldError> {
    let Some(text) = text else { return Ok(default) };
    let fix = "write it like 500ms, 10s or 5m, at most 7days";
    let parsed = humantime::parse_duration(text)
        .map_err(|error| FieldError::new(path, error.to_string(), fix))?;
    match parsed <= LONGEST_DURATION {
        true => Ok(parsed),
        false => Err(FieldError::new(path, format!("{text} is too long"), fix)),
    }
}

/// Refuses names of launchables that the agent's own files have.
///
/// # Errors
/// [`FieldError`] at the name.
pub fn check_launchable_name(name: &str) -> Result<(), FieldError> {
    let is_taken = matches!(name, "pod.json" | "config.yaml" | "payload.data")
        || name.ends_with(".log")
        || name.ends_with(".new")
        || name.contains(".log.");
    match is_taken {
        true => Err(FieldError::new(
            name,
            "the agent has a file of this name",
            "choose another name for the launchable",
        )),
        false => Ok(()),
    }
}

impl ProcessStanza {
    /// Whether a pause before a restart is shorter than [`SHORTEST_RESTART_PAUSE`], and so extended to it.
    #[must_use]
    pub fn has_short_pause(&self) -> bool {
        let Some(RestartStanza::Whole { backoff, max_backoff, .. }) = &self.restart else {
            return false;
        };
        [backoff, max_backoff].into_iter().flatten().any(|text| {
            humantime::parse_duration(text).is_ok_and(|pause| pause < SHORTEST_RESTART_PAUSE)
        })
    }

    /// The durations of the process.
    ///
    /// # Errors
    /// [`FieldError`] of the first that has no form or is out of range.
    pub fn durations(&self) -> Result<ProcessDurations, FieldError> {
        let (backoff, max_backoff) = match &self.restart {
            Some(RestartStanza::Whole { backoff, max_backoff, .. }) => {
                (backoff.as_deref(), max_backoff.as_deref())
            }
            _ => (None, None),
        };
        let health = self.health.as_ref();
        let interval = health.and_then(|health| health.interval.as_deref());
        let timeout = health.and_then(|health| health.timeout.as_deref());
        let s = Duration::from_secs;
        Ok(ProcessDurations {
            grace: duration("grace", self.grace.as_deref(), s(10))?,
            backoff: duration("restart.backoff", backoff, s(1))?.max(SHORTEST_RESTART_PAUSE),
            max_backoff: duration("restart.max_backoff", max_backoff, s(60))?
                .max(SHORTEST_RESTART_PAUSE),
            interval: duration("health.interval", interval, s(10))?.max(SHORTEST_CHECK_INTERVAL),
            timeout: duration("health.timeout", timeout, s(5))?,
        })
    }

    /// Program and arguments, not expanded; never empty.
    ///
    /// # Errors
    /// [`FieldError`]: a quote is not closed, or there is no program.
    pub fn words(&self) -> Result<Vec<String>, FieldError> {
        let mut words = self.command.words()?;
        words.extend(self.args.iter().map(plain));
        Ok(words)
    }

    /// Checks durations and the size of arguments and environment, as far as it does not depend on the node. Returns
    /// the size in bytes.
    ///
    /// # Errors
    /// [`FieldError`] of the first field that breaks a rule.
    pub fn check(&self) -> Result<usize, FieldError> {
        self.durations()?;
        // Agents report a command that cannot be split.
        let words = self.words().unwrap_or_default();
        Expanded::of(&words, &self.env.variables(), BTreeMap::new()).map(|expanded| expanded.bytes)
    }
}

impl CommandStanza {
    /// The words of the command; never empty.
    ///
    /// # Errors
    /// [`FieldError`]: a quote is not closed, or there is no word.
    pub fn words(&self) -> Result<Vec<String>, FieldError> {
        let words = match self {
            CommandStanza::Line(line) => words(line)
                .ok_or_else(|| FieldError::new("command", "a quote is not closed", ""))?,
            CommandStanza::Words(words) => words.clone(),
        };
        match words.is_empty() {
            true => Err(FieldError::new("command", "it is empty", "name the program to run")),
            false => Ok(words),
        }
    }
}

impl PodManifest {
    /// Checks each process, and the size of all together. Launchables of other types are not ours to check.
    ///
    /// # Errors
    /// [`FieldError`] of the first field that breaks a rule.
    pub fn check_processes(&self) -> Result<(), FieldError> {
        self.check_each(Err)
    }

    /// Checks the size of all processes together. Processes that break a rule of their own do not count: they are not
    /// run.
    ///
    /// # Errors
    /// [`FieldError`] at `launchables`.
    pub fn check_size(&self) -> Result<(), FieldError> {
        self.check_each(|_| Ok(0))
    }

    fn check_each(
        &self,
        failed: impl Fn(FieldError) -> Result<usize, FieldError>,
    ) -> Result<(), FieldError> {
        let mut bytes = 0;
        for (name, launchable) in &self.launchables {
            if let LaunchableStanza::Process(stanza) = launchable {
                let path = format!("launchables.{}", cut(name, LONGEST_NAME));
                let checked = match check_launchable_name(name) {
                    Ok(()) => stanza.check().map_err(|error| error.below(&path)),
                    Err(error) => Err(error.below("launchables")),
                };
                bytes += checked.or_else(&failed)?;
            }
            if bytes > LONGEST_POD {
                let problem = format!(
                    "arguments and variables of all processes are longer than {LONGEST_POD} bytes"
                );
                let fix = "pass long values in a file, such as `config`";
                return Err(FieldError::new("launchables", problem, fix));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn check(fields: &str) -> Result<(), FieldError> {
        let text = format!(
            "id: a\nlaunchables:\n  l: {{launchable_type: process, command: x, {fields}}}\n"
        );
        PodManifest::read(&Manifest::parse(&text).unwrap()).unwrap().check_processes()
    }

    #[test]
    fn each_duration_has_a_range() {
        for (fields, path) in [
            ("grace: 8days", "grace"),
            ("restart: {backoff: 8days}", "restart.backoff"),
            ("restart: {max_backoff: 10000000000000000000s}", "restart.max_backoff"),
            ("restart: {max_backoff: 18446744073709551615s}", "restart.max_backoff"),
            ("health: {tcp: x, interval: 8days}", "health.interval"),
            ("health: {tcp: x, timeout: 604801s}", "health.timeout"),
            ("grace: soon", "grace"),
        ] {
            let error = check(fields).unwrap_err();
            assert_eq!(error.path, format!("launchables.l.{path}"), "{error}");
            assert!(error.fix.contains("7days"), "{error}");
        }
        check("grace: 7days, restart: {backoff: 0s, max_backoff: 7days}").unwrap();
    }

    #[test]
    fn short_pauses_are_extended() {
        let restart = RestartStanza::Whole {
            policy: Default::default(),
            backoff: Some("0s".to_owned()),
            max_backoff: Some("0s".to_owned()),
        };
        let stanza = ProcessStanza { restart: Some(restart), ..ProcessStanza::default() };
        let durations = stanza.durations().unwrap();
        assert_eq!(durations.backoff, SHORTEST_RESTART_PAUSE);
        assert_eq!(durations.max_backoff, SHORTEST_RESTART_PAUSE);
        assert!(stanza.has_short_pause());
        assert!(!ProcessStanza::default().has_short_pause());
    }

    #[test]
    fn names_of_the_agents_files_are_refused() {
        for (name, is_legal) in [
            ("pod.json", false),
            ("config.yaml", false),
            ("payload.data", false),
            ("x.log", false),
            ("x.log.1", false),
            ("pod.new", false),
            ("x.logger", true),
            ("config", true),
        ] {
            assert_eq!(check_launchable_name(name).is_ok(), is_legal, "{name}");
            let text = format!(
                "id: a\nlaunchables: {{{name}: {{launchable_type: process, command: x}}}}\n"
            );
            let manifest = Manifest::parse(&text).unwrap();
            let checked = PodManifest::read(&manifest).unwrap().check_processes();
            assert_eq!(checked.is_ok(), is_legal, "{name}: {checked:?}");
        }
    }

    #[test]
    fn all_processes_of_a_pod_are_bounded() {
        let value = "x".repeat(100_000);
        let args = vec!["${V}"; 15].join(", ").replace("${V}", "'${V}'");
        let process = |n: usize| {
            format!(
                "  l{n}: {{launchable_type: process, command: x, args: [{args}], env: {{V: {value}}}}}\n"
            )
        };
        let read = |count: usize| {
            let all: String = (0..count).map(process).collect();
            let manifest = Manifest::parse(&format!("id: a\nlaunchables:\n{all}")).unwrap();
            PodManifest::read(&manifest).unwrap().check_size()
        };
        read(10).unwrap();
        assert_eq!(read(11).unwrap_err().path, "launchables");
    }

    #[test]
    fn environment_is_bounded() {
        let bomb: Vec<String> =
            (1..34).map(|n| format!("A{n:02}: '${{A{0:02}}}${{A{0:02}}}'", n - 1)).collect();
        let error = check(&format!("env: {{A00: 0123456789abcdef, {}}}", bomb.join(", ")));
        assert_eq!(error.unwrap_err().path, "launchables.l.env.A13");
    }
}
