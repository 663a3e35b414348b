//! `rcfarm farm run`: the daemon.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::connect::DaemonClients;
use super::failure::{CliExit, failure};
use super::output::duration;
use crate::daemon::{MakeScheduler, by_labels};
use crate::farm::{Farm, FarmSettings};
use crate::http::{self, Shown};
use crate::placement::{CatalogDiscovery, Discovery, NoDiscovery, RemoteScheduler, Scheduler as _};
use crate::telemetry::{self, LogFormat};
use rcfarm_api::ids::FarmName;
use rcfarm_api::labels::Selector;
use rcfarm_consul::NOISY_TARGETS;
use rcfarm_store::sealing::{KeySealing, SealingKey};
use rcfarm_store::session::SessionSettings;
use rcfarm_store::{Reader, TxnLimits};

#[derive(clap::Args)]
pub struct FarmRunArgs {
    /// The farm's name, unique among the farms below one prefix [default: this machine's name]
    #[arg(long)]
    name: Option<FarmName>,
    /// Claim only records whose labels match, as in tier=web,env!=test [default: all]
    #[arg(long, default_value = "", hide_default_value = true)]
    selector: Selector,
    /// TTL of the farm's own check: another farm takes over this long after the process died; 0s: no check
    #[arg(long, default_value = "2s", value_parser = duration, value_name = "DURATION")]
    check_ttl: Duration,
    /// TTL of the session, 10s to 24h; must outlast a leader election. After the loss of a machine, another farm takes
    /// over after twice this long
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
    session_ttl: Duration,
    /// What chooses nodes: `labels`, or the URL of a scheduler over HTTP (docs/guide/custom-scheduler.md). A URL with a
    /// password belongs into the variable: every user of the machine sees arguments
    #[arg(long, default_value = "labels", value_name = "labels|URL", env = "RCFARM_SCHEDULER")]
    #[arg(hide_env_values = true)]
    scheduler: String,
    /// Where clients find pods; node transfers wait until it is up to date
    #[arg(long, value_enum, default_value_t)]
    service_discovery: DiscoveryArg,
    /// Serve /healthz, /readyz, /metrics and /status on this address
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// How long after its agent was lost a node counts as down: its pods are then replaced or reported
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    node_grace: Duration,
    /// Operations per transaction: 64 before Consul 1.14, 128 since
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(16..=128))]
    max_txn_ops: u16,
    /// File with a secret of 32 bytes or more, the same on all farms and nodes, with which the private keys of jobs with
    /// the plugin ssh are encrypted
    #[arg(long, value_name = "FILE")]
    ssh_key_file: Option<PathBuf>,
    /// Store the private keys of jobs with the plugin ssh as they are, for everybody who may read rcfarm/job_keys/
    #[arg(long, conflicts_with = "ssh_key_file")]
    unencrypted_ssh_keys: bool,
    #[command(flatten)]
    log: LogArgs,
}

/// Log settings of a daemon.
#[derive(clap::Args)]
pub struct LogArgs {
    /// Format of log lines
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// Log filter in the syntax of RUST_LOG; the variable replaces it
    #[arg(long, default_value = "info", value_name = "FILTER")]
    log: String,
}

impl LogArgs {
    pub(super) fn init(&self) -> anyhow::Result<()> {
        telemetry::init(self.log_format, &self.log, &NOISY_TARGETS).map_err(|error| {
            failure(error, "write it like info or warn,rcfarm=debug (--log, RUST_LOG)")
        })
    }
}

/// Where clients find pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DiscoveryArg {
    /// Nowhere: transfers do not wait.
    #[default]
    None,
    /// Consul's catalog, as a service with the pod's id as its name.
    Catalog,
}

/// Runs until SIGTERM or SIGINT.
pub(super) async fn run(args: FarmRunArgs, clients: DaemonClients) -> anyhow::Result<CliExit> {
    args.log.init()?;
    let settings = args.settings()?;
    let (scheduler, scheduler_shown) = args.scheduler()?;
    let env = clients.env()?;
    let discovery: Arc<dyn Discovery> = match args.service_discovery {
        DiscoveryArg::None => Arc::new(NoDiscovery),
        DiscoveryArg::Catalog => Arc::new(CatalogDiscovery::new(env.store.clone())),
    };
    let shutdown = CancellationToken::new();
    info!(farm = %settings.name, consul = clients.address(), version = rcfarm_api::VERSION,
        selector = %settings.selector, scheduler = scheduler_shown, "starting");
    let heartbeats = env.keeper.heartbeats();
    let reader: Arc<dyn Reader> = env.store.clone();
    let clock = env.clock.clone();
    let farm = Farm::of_all_kinds(settings, env, scheduler, discovery);
    if let Some(address) = &args.http {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} (--http)"))?;
        let requests = Arc::new(move || clients.requests());
        let (report, metrics) = (farm.report(), farm.metrics());
        let shown = Shown { report, metrics, requests, heartbeats };
        let inspect = http::inspect::routes(reader, Arc::new(move || clock.wall()));
        tokio::spawn(http::serve(listener, shown, inspect, shutdown.clone()));
    }
    tokio::spawn(stop_on_signal(shutdown.clone()));
    farm.run(shutdown).await?;
    Ok(CliExit::Ok)
}

/// Reads a file of `--ssh-key-file`.
pub(super) fn read_key_file(path: &Path) -> anyhow::Result<SealingKey> {
    let fix = "make one, and copy it to all farms and nodes: (umask 077; head -c 48 /dev/urandom | base64 > FILE)";
    SealingKey::read(path).map_err(|why| failure(why, fix))
}

/// Validates `--session-ttl` and `--check-ttl`. A check of 0 s means no check.
pub(super) fn session_settings(
    session_ttl: Duration,
    check_ttl: Duration,
    shortest_check: Duration,
) -> anyhow::Result<SessionSettings> {
    let (least, most) = (Duration::from_secs(10), Duration::from_secs(86_400));
    if session_ttl < least || session_ttl > most {
        return Err(failure(
            format!("--session-ttl {session_ttl:?} is out of Consul's range"),
            "choose 10s to 24h; 30s outlives a leader election",
        ));
    }
    let check_ttl = (!check_ttl.is_zero()).then_some(check_ttl);
    if check_ttl.is_some_and(|ttl| ttl < shortest_check || ttl > session_ttl) {
        return Err(failure(
            format!("--check-ttl {:?} is out of range", check_ttl.unwrap_or_default()),
            format!("choose {shortest_check:?} up to the session's TTL, or 0s for none"),
        ));
    }
    Ok(SessionSettings { check_ttl, session_ttl })
}

impl FarmRunArgs {
    fn settings(&self) -> anyhow::Result<FarmSettings> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => machine_name("farm")?,
        };
        let half_a_second = Duration::from_millis(500);
        let session = session_settings(self.session_ttl, self.check_ttl, half_a_second)?;
        Ok(FarmSettings {
            name,
            selector: self.selector.clone(),
            session,
            limits: TxnLimits { ops: usize::from(self.max_txn_ops), ..TxnLimits::default() },
            node_grace: self.node_grace,
            job_ttl: None,
            ssh_keys: match &self.ssh_key_file {
                Some(path) => KeySealing::With(read_key_file(path)?),
                None if self.unencrypted_ssh_keys => KeySealing::Unencrypted,
                None => KeySealing::Refused,
            },
            finds_leftovers: true,
        })
    }

    /// The scheduler, and its address for the log, without user and password.
    fn scheduler(&self) -> anyhow::Result<(MakeScheduler, String)> {
        if self.scheduler == "labels" {
            return Ok((by_labels(), self.scheduler.clone()));
        }
        let remote = RemoteScheduler::new(&self.scheduler).map_err(|error| {
            failure(error.to_string(), "--scheduler labels, or http://host:port")
        })?;
        info!(
            scheduler = remote.address(),
            "it is asked for replication controllers, and for gangs if it knows the verb place (docs/guide/custom-scheduler.md)"
        );
        let address = remote.address().unwrap_or_default();
        Ok((Box::new(|_| Arc::new(remote)), address))
    }
}

/// This machine's host name. `whose`: what is to have that name.
pub(super) fn machine_name<N>(whose: &str) -> anyhow::Result<N>
where
    N: FromStr<Err: fmt::Display>,
{
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::fs::read_to_string("/etc/hostname"))
        .unwrap_or_default();
    name.trim().parse().map_err(|error| {
        let why = format!("this machine's name cannot be that of a {whose}: {error}");
        failure(why, "give one with --name")
    })
}

/// The first signal stops the daemon gracefully, the second at once.
pub(super) async fn stop_on_signal(shutdown: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        warn!("signals cannot be handled; the farm stops hard when it is told to");
        return;
    };
    for graceful in [true, false] {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if graceful {
            info!("stopping; once more to stop at once");
            shutdown.cancel();
        } else {
            std::process::exit(130);
        }
    }
}
