//! `rcfarm node run`, the agent, and `rcfarm node shim`, the parent of each of its processes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::connect::DaemonClients;
use super::failure::{CliExit, failure};
use super::farm_run::{LogArgs, machine_name, read_key_file, session_settings, stop_on_signal};
use super::output::duration;
use crate::http::{self, node::NodeShown};
use rcfarm_api::ids::NodeName;
use rcfarm_api::labels::{check_label_key, check_label_value};
use rcfarm_api::node::ports::PortRange;
use rcfarm_api::resource_list::MEMORY;
use rcfarm_api::{ResourceList, key};
use rcfarm_node::agent::process::ProcessDriver;
use rcfarm_node::agent::serve::{self, LogAccess, LogServer};
use rcfarm_node::agent::users::{self, ANY_BUT_ROOT, ANY_SERVICE};
use rcfarm_node::agent::{
    Agent, AgentError, AgentSettings, LogRetention, PodPermits, SshKeyAccess,
};
use rcfarm_node::http::HttpListener;
use rcfarm_node::{exec, shim};

#[derive(clap::Args)]
pub struct NodeRunArgs {
    /// The node's name; its pods are the keys under intent/<NAME>/ [default: this machine's name]
    #[arg(long)]
    name: Option<NodeName>,
    /// Label of the node; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Resources of the node for pods, as in cpu=4,memory=8Gi,gpu=8
    #[arg(long, default_value = "", hide_default_value = true)]
    capacity: ResourceList,
    /// Ports that pods are given on this node, as in 20000-29999; none: none, and jobs use those of their frameworks
    #[arg(long, default_value = "20000-29999", value_name = "FIRST-LAST", value_parser = ports)]
    ports: GivenPorts,
    /// Environment variable of every process, which manifests may use as ${NAME}; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Directory of pods, their logs and the agent's state
    #[arg(long, default_value = "/var/lib/rcfarm", value_name = "DIR")]
    data_dir: PathBuf,
    /// Size above which a log is rotated; three rotated files are kept
    #[arg(long, default_value = "10Mi", value_parser = bytes, value_name = "SIZE")]
    log_size: u64,
    /// Size of all logs of jobs' pods that are gone; the oldest are deleted first; 0: none are kept
    #[arg(long, default_value = "1Gi", value_parser = any_bytes, value_name = "SIZE")]
    ended_logs_size: u64,
    /// Age after which the logs of a job's pod that is gone are deleted
    #[arg(long, default_value = "7d", value_parser = duration, value_name = "DURATION")]
    ended_logs_age: Duration,
    /// Host name or IP address of the node's pods [default: the node's name]
    #[arg(long, value_name = "HOST")]
    address: Option<String>,
    /// Serve /healthz, /readyz and /metrics on this address, and the pods' logs to those who have the token of --http-token-file
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// File with the token that reads the pods' logs over --http, of 16 bytes or more
    #[arg(long, value_name = "FILE", requires = "http")]
    http_token_file: Option<PathBuf>,
    /// User that manifests may name in run_as: a name, uid or uid:gid, or * for all but root; may be repeated
    #[arg(long, default_value = ANY_BUT_ROOT, value_name = "USER")]
    allow_user: Vec<String>,
    /// User of pods whose manifest has no run_as: a name, uid or uid:gid [default: the agent's own]
    #[arg(long, value_name = "USER")]
    default_user: Option<String>,
    /// Service that pods may register in Consul's catalog: a name, or a prefix with * at its end; may be repeated
    #[arg(long, default_value = ANY_SERVICE, value_name = "NAME")]
    allow_service: Vec<String>,
    /// Let pods keep the agent's capabilities and gain privileges by set-user-ID programs
    #[arg(long)]
    privileged_pods: bool,
    /// File with the secret that the farms' --ssh-key-file has; may be repeated while it is replaced by another
    #[arg(long, value_name = "FILE")]
    ssh_key_file: Vec<PathBuf>,
    /// Take private ssh keys of jobs that are not encrypted although there is a key file; without one they are taken
    #[arg(long)]
    unencrypted_ssh_keys: bool,
    /// TTL of the agent's own check: the loss of a node is noticed after this long; 0s: no check
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    check_ttl: Duration,
    /// TTL of the session, 10s to 24h; must outlast a leader election
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
    session_ttl: Duration,
    #[command(flatten)]
    log: LogArgs,
}

/// Value of `--ports`.
#[derive(Debug, Clone, Copy)]
struct GivenPorts(Option<PortRange>);

fn ports(text: &str) -> Result<GivenPorts, String> {
    match text {
        "none" => Ok(GivenPorts(None)),
        text => text.parse().map(|range| GivenPorts(Some(range))),
    }
}

/// A number of bytes.
fn any_bytes(text: &str) -> Result<u64, String> {
    // A comma would begin another resource.
    let parsed = (!text.contains(',')).then(|| format!("memory={text}").parse::<ResourceList>());
    let bytes = parsed.and_then(Result::ok).map(|list| list.amount(MEMORY));
    bytes.ok_or_else(|| "write it like 512Mi, 10Gi or 0".to_owned())
}

/// A number of bytes, at least 4 Ki.
fn bytes(text: &str) -> Result<u64, String> {
    let bytes = any_bytes(text).ok().filter(|bytes| *bytes >= 4_096);
    bytes.ok_or_else(|| "write it like 512Ki, 10Mi or 1Gi; at least 4Ki".to_owned())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like name=value")?;
    if name.is_empty() {
        return Err("there is nothing before the =".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs until SIGTERM or SIGINT. The pods keep running.
pub(super) async fn run(args: NodeRunArgs, clients: DaemonClients) -> anyhow::Result<CliExit> {
    args.log.init()?;
    // The environment, and with it the token, stays hidden from pods of this user. They get no descriptor of its parent.
    exec::hide();
    exec::close_on_exec();
    let settings = args.settings()?;
    match settings.permits.user(None) {
        Err(error) => return Err(failure(error.into_text(), "choose another --default-user")),
        Ok(None) if users::own_uid() == 0 => {
            warn!("pods whose manifest has no run_as run as root, see --default-user");
        }
        Ok(_) => {}
    }
    let shutdown = CancellationToken::new();
    info!(node = %settings.name, consul = clients.address(), version = rcfarm_api::VERSION,
        capacity = %settings.capacity, data_dir = %settings.data_dir.display(), "starting");
    let agent = Agent::new(settings.clone(), clients.env()?, Arc::new(own_driver()?));
    if let Some(address) = &args.http {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} (--http)"))?;
        let access = match args.http_token_file.clone() {
            Some(path) => {
                serve::read_token(&path)
                    .map_err(|why| failure(why, "make one: head -c 24 /dev/urandom | base64"))?;
                LogAccess::Token(path)
            }
            None => {
                warn!(alert = true, "logs are not served on --http: there is no --http-token-file");
                LogAccess::Nobody
            }
        };
        let server = LogServer { node: settings.name, data_dir: settings.data_dir, access };
        let (metrics, requests) = (agent.metrics(), Arc::new(move || clients.requests()));
        let metrics = http::node::routes(NodeShown { metrics, requests });
        let listener = HttpListener::Tcp(listener);
        tokio::spawn(server.run_with(metrics, listener, shutdown.clone()));
    }
    tokio::spawn(stop_on_signal(shutdown.clone()));
    match agent.run(shutdown).await {
        Ok(()) => Ok(CliExit::Ok),
        Err(AgentError::DataDir(why)) => Err(failure(why, "choose another one with --data-dir")),
        Err(AgentError::TaskDied) => Err(failure(
            AgentError::TaskDied.to_string(),
            "start the agent again: it takes its pods over",
        )),
    }
}

/// A driver that starts shims from this executable.
pub(super) fn own_driver() -> anyhow::Result<ProcessDriver> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(ProcessDriver::new(program))
}

/// Runs a shim, which only agents start.
pub(super) fn run_shim(dir: &std::path::Path) -> anyhow::Result<CliExit> {
    shim::run(dir).with_context(|| format!("cannot supervise {}", dir.display()))?;
    Ok(CliExit::Ok)
}

/// Becomes the program of a health check, which only agents start. Returns if that fails; the agent has the reason.
pub(super) fn run_exec() -> anyhow::Result<CliExit> {
    let _ = exec::replace_process();
    Ok(CliExit::Error)
}

impl NodeRunArgs {
    fn settings(&self) -> anyhow::Result<AgentSettings> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => machine_name("node")?,
        };
        key::check_node_name(&name)
            .map_err(|error| failure(error.to_string(), "choose another --name"))?;
        for (label, value) in &self.labels {
            check_label_key(label).with_context(|| format!("--label {label}={value}"))?;
            check_label_value(value).with_context(|| format!("--label {label}={value}"))?;
        }
        // Shims stop single instances 3 s before the lease ends, and one renewal may fail before that.
        let shortest_check = Duration::from_secs(6);
        let session = session_settings(self.session_ttl, self.check_ttl, shortest_check)?;
        let address = self.address.clone().unwrap_or_else(|| name.to_string());
        Ok(AgentSettings {
            http: self.http.clone().filter(|_| self.http_token_file.is_some()),
            serves_logs: true,
            labels: BTreeMap::from_iter(self.labels.clone()),
            capacity: self.capacity.clone(),
            ports: self.ports.0,
            env: BTreeMap::from_iter(self.env.clone()),
            log_bytes: self.log_size,
            ended_logs: LogRetention { bytes: self.ended_logs_size, age: self.ended_logs_age },
            session,
            permits: PodPermits {
                users: self.allow_user.clone(),
                default_user: self.default_user.clone(),
                privileged: self.privileged_pods,
                services: self.allow_service.clone(),
            },
            ssh_keys: SshKeyAccess {
                keys: self
                    .ssh_key_file
                    .iter()
                    .map(|path| read_key_file(path))
                    .collect::<Result<_, _>>()?,
                takes_unencrypted: self.unencrypted_ssh_keys,
            },
            ..AgentSettings::new(name, address, self.data_dir.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::Cli;
    use super::*;

    #[test]
    fn units_of_systemd_start_commands_that_are_complete() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib");
        for name in ["rcfarm-farm.service", "rcfarm-node.service"] {
            let unit = std::fs::read_to_string(dir.join(name)).unwrap();
            let starts = unit.lines().filter_map(|line| line.strip_prefix("ExecStart="));
            for start in starts.chain(["needs a line ExecStart"]).take(1) {
                let parsed = Cli::try_parse_from(start.split_ascii_whitespace());
                assert!(parsed.is_ok(), "{name}: {}", parsed.err().unwrap());
            }
        }
    }

    #[test]
    fn sizes_are_one_amount_of_bytes() {
        assert_eq!(bytes("10Mi"), Ok(10 * 1024 * 1024));
        for wrong in ["10Mi,gpu=8", "1Ki", "", ",", "gpu=8"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
