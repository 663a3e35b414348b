//! What a process of a pod is started with: command, environment, user, limits, devices and ports.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::driver::{Launch, StartFailure};
use super::peers::PodPeers;
use super::pod::PodTask;
use super::state::{DataDir, StoredPod, read, replace_for};
use super::users::{UserError, UserIds};
use super::{AgentSettings, AtShutdown, cgroup, ssh_files};
use crate::spec::{PodSpec, ProcessSpec};
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::manifest::command_line::{Expanded, Expansion, INHERITED, LONGEST_STRING};
use rcfarm_api::manifest::{PortStanza, port_variable};

impl PodTask {
    /// Builds the next launch of a process. Limits that cannot be enforced become notes.
    ///
    /// # Errors
    /// [`StartFailure`]: it cannot be started as specified.
    pub(super) fn launch(
        &mut self,
        name: &str,
        settings: &AgentSettings,
        data: &DataDir,
    ) -> Result<Launch, StartFailure> {
        let program = |why: String| StartFailure::Program(why);
        let spec = self.spec.clone().map_err(program)?;
        let process = self.process_spec(name).cloned();
        let mut process =
            process.ok_or_else(|| program("the launchable is no process".to_owned()))?;
        let told = self.peer_variables(name);
        for (name, value) in &mut process.env.list {
            if let Some(told) = told.get(name) {
                value.clone_from(told);
            }
        }
        let (attempt, restarts) = self.next_start(name);
        let mut notes = self.notes_of(name, &spec, &process);
        let limited = cgroup::make(&settings.name, &self.id, &spec.limits);
        notes.extend(limited.notes);
        self.notes.insert(name.to_owned(), notes);
        let ends_with_node = spec.single_instance || settings.at_shutdown == AtShutdown::StopPods;
        let run_as = settings.permits.user(spec.run_as.as_deref())?;
        let env = self.env(name, &spec, settings, data, run_as);
        let Expanded { command, env, .. } = Expanded::of(&process.command, &process.env, env)
            .map_err(|error| program(format!("{}: {}", error.path, error.reason())))?;
        Ok(Launch {
            attempt,
            restarts: Some(restarts),
            command,
            cwd: cwd(&process, &env, data.home(&self.id, run_as)).map_err(program)?,
            log: data.log(&self.id, name),
            log_bytes: settings.log_bytes,
            run_as,
            privileged: settings.permits.privileged,
            cgroup: limited.group,
            lease: ends_with_node.then(|| data.lease()),
            stop_signal: process.stop_signal,
            env,
        })
    }

    /// Allocated devices as `kind:number`.
    pub(super) fn devices(&self) -> Vec<String> {
        let kinds = self.intended.devices.iter();
        kinds.flat_map(|(kind, all)| all.iter().map(move |n| format!("{kind}:{n}"))).collect()
    }

    /// Numbers of the manifest's ports, by name. A number that the manifest gives counts without an allocation, too: the
    /// farm has no part in a pod that a person intends.
    pub(super) fn ports(&self) -> BTreeMap<String, u16> {
        let wanted = self.spec.as_ref().map(|spec| spec.ports.as_slice()).unwrap_or_default();
        let number = |port: &PortStanza| self.intended.ports.get(&port.name).copied().or(port.port);
        wanted.iter().filter_map(|port| Some((port.name.clone(), number(port)?))).collect()
    }

    /// What of a launchable differs from its manifest.
    fn notes_of(&self, name: &str, spec: &PodSpec, process: &ProcessSpec) -> Vec<String> {
        let pause = format!("{name}: restart: pauses under 100ms count as 100ms");
        let missing = spec
            .resources
            .devices()
            .filter(|(device, count)| *count > 0 && !self.intended.devices.contains_key(*device));
        let missing = missing.map(|(device, count)| {
            format!("the pod requests {device}={count}, but none is allocated to it")
        });
        let portless =
            spec.ports.iter().filter(|port| !self.intended.ports.contains_key(&port.name));
        let portless = portless.map(|port| {
            format!("the pod asks for port {}, but none is allocated to it", port.name)
        });
        process
            .has_short_pause
            .then_some(pause)
            .into_iter()
            .chain(missing)
            .chain(portless)
            .collect()
    }

    /// The variables that the node sets. Of the agent's own, only `PATH`, `HOME`, `LANG` and `TZ` are passed on: the rest
    /// may hold its Consul token.
    fn env(
        &self,
        name: &str,
        spec: &PodSpec,
        settings: &AgentSettings,
        data: &DataDir,
        run_as: Option<UserIds>,
    ) -> BTreeMap<String, String> {
        let inherited = INHERITED
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
        let mut env: BTreeMap<String, String> = inherited.collect();
        env.extend(settings.env.clone());
        let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
        set("RCFARM_NODE", settings.name.to_string());
        set("RCFARM_NODE_ADDRESS", settings.address.clone());
        set("RCFARM_POD", self.id.to_string());
        set("RCFARM_LAUNCHABLE", name.to_owned());
        let home = data.home(&self.id, run_as).display().to_string();
        if run_as.is_some() {
            // The agent's home is another user's.
            set("HOME", home.clone());
        }
        if self.peers.as_ref().is_some_and(PodPeers::are_written) {
            set("RCFARM_PEERS", home.clone());
        }
        let spec_peers = spec.peers.as_ref();
        if spec_peers.is_some_and(|peers| peers.ssh.is_some()) {
            set("RCFARM_SSH_CONFIG", format!("{home}/{}", ssh_files::CONFIG));
        }
        set("POD_HOME", home);
        if spec.config.is_some() {
            set("CONFIG_PATH", data.config(&self.id, run_as).display().to_string());
        }
        if spec.payload.is_some() {
            set("RCFARM_PAYLOAD", data.payload(&self.id, run_as).display().to_string());
        }
        for (name, port) in self.ports() {
            set(&port_variable(&name), port.to_string());
        }
        let devices = self.devices();
        if !devices.is_empty() {
            set("RCFARM_DEVICES", devices.join(","));
        }
        // HiveD's text of the annotation pod-leaf-cell-isolation. Numbers of several kinds would say nothing.
        let mut kinds = self.intended.devices.values().filter(|numbers| !numbers.is_empty());
        if let (Some(numbers), None) = (kinds.next(), kinds.next()) {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            set("RCFARM_ISOLATION", numbers.join(","));
        }
        if let Some(gpus) = self.intended.devices.get("gpu") {
            let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
            set("CUDA_VISIBLE_DEVICES", numbers.join(","));
        }
        env
    }
}

impl From<UserError> for StartFailure {
    fn from(error: UserError) -> StartFailure {
        match error {
            UserError::Unreadable(_) => StartFailure::Node(error.into_text()),
            UserError::Unknown(_) | UserError::Refused(_) => {
                StartFailure::Program(error.into_text())
            }
        }
    }
}

/// The working directory of a process.
fn cwd(
    process: &ProcessSpec,
    env: &BTreeMap<String, String>,
    home: PathBuf,
) -> Result<PathBuf, String> {
    match (&process.cwd, process.env.expansion) {
        (Some(cwd), Expansion::Braces) => {
            let cwd = Expansion::Braces.expand(cwd, env, LONGEST_STRING);
            Ok(cwd.ok_or("cwd: it is too long")?.into())
        }
        // Kubernetes expands nothing in `workingDir`.
        (Some(cwd), Expansion::Kubernetes) => Ok(cwd.into()),
        (None, _) => Ok(home),
    }
}

/// Writes `pod.json`, `config.yaml` and `payload.data` of a pod, unless they are up to date, and makes its home.
///
/// # Errors
/// Why they cannot be written, for the pod's status.
pub(super) fn prepare(
    data: &DataDir,
    pod: &PodId,
    stored: &StoredPod,
    spec: Option<&PodSpec>,
    user: Option<UserIds>,
    node: &NodeName,
) -> Result<(), String> {
    let message = |error: std::io::Error| format!("node {node} cannot store the pod: {error}");
    if let Some(user) = user {
        data.make_home(pod, user).map_err(|why| format!("run_as: {why}"))?;
    }
    let path = data.pod(pod).join("pod.json");
    if read::<StoredPod>(&path).as_ref() != Some(stored) {
        data.keep(pod, stored).map_err(message)?;
    }
    // The user may have changed, so a file for a user is always written anew.
    let write = |path: PathBuf, content: &[u8]| match std::fs::read(&path) {
        Ok(same) if user.is_none() && same == content => Ok(()),
        _ => replace_for(&path, content, user).map_err(message),
    };
    if let Some(config) = spec.and_then(|spec| spec.config.as_ref()) {
        let text = serde_saphyr::to_string(config).map_err(|error| error.to_string())?;
        write(data.config(pod, user), text.as_bytes())?;
    }
    if let Some(payload) = spec.and_then(|spec| spec.payload.as_ref()) {
        write(data.payload(pod, user), payload)?;
    }
    Ok(())
}
