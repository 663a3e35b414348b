//! `rcfarm dev`: a store, a farm and agents of several nodes in one process, for trials.
//!
//! The nodes share this machine. Their pods are processes under shims, which end with this process, even if it is
//! killed: each has a lease ([`AtShutdown::StopPods`]).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as PortProbe};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::apply::{self, DescribedObjects};
use super::connect::system_env;
use super::context::CommandContext;
use super::dev_token::{DEFAULT_ADDRESS, DevToken};
use super::failure::{CliExit, failure};
use super::farm_run::{LogArgs, stop_on_signal};
use super::node_run::own_driver;
use super::output::{Output, duration};
use super::rc::find;
use crate::daemon::by_labels;
use crate::farm::{Farm, FarmSettings};
use crate::placement::NoDiscovery;
use rcfarm_api::ids::{NodeName, RcId};
use rcfarm_api::labels::{Labels, Selector, encode_labels};
use rcfarm_api::node::ports::PortRange;
use rcfarm_api::{ResourceList, key};
use rcfarm_emulator::Emulator;
use rcfarm_emulator::serve::{Access, serve_to};
use rcfarm_node::agent::{Agent, AgentError, AgentSettings, AtShutdown};
use rcfarm_node::{exec, simulated};
use rcfarm_store::session::SessionSettings;
use rcfarm_store::time::{IdSource, SystemClock};
use rcfarm_store::{PutMode, Store, TxnLimits};

/// Limit of open connections.
const CONNECTIONS: usize = 1_000;
/// Prefix of the names of simulated nodes.
const SIMULATED: &str = "sim-";

#[derive(clap::Args)]
pub struct DevArgs {
    /// Create the objects in this file or directory, as rcfarm apply does (examples/web.yaml is one); may be repeated
    #[arg(long, value_name = "FILE")]
    apply: Vec<String>,
    /// Number of nodes, labelled pool=dev; their pods are processes of this machine
    #[arg(long, default_value_t = 3)]
    nodes: u16,
    /// Resources of each of these nodes; GPUs are only counted
    #[arg(long, default_value = "cpu=4,memory=8Gi,gpu=2", value_name = "NAME=AMOUNT,…")]
    capacity: ResourceList,
    /// $NODE_PORT of pods on the first node; the following nodes count up from it
    #[arg(long, default_value_t = 9001, value_name = "PORT")]
    first_port: u16,
    /// Ports that pods are given, divided among the nodes
    #[arg(long, default_value = "20000-29999", value_name = "FIRST-LAST")]
    job_ports: PortRange,
    /// Jobs that name no ttlSecondsAfterFinished are deleted this long after their end
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = duration)]
    job_ttl: Duration,
    /// Number of further nodes, labelled pool=simulated, which start no processes
    #[arg(long, default_value_t = 0, value_name = "N")]
    simulated: u16,
    /// Directory of pods and logs [default: a temporary directory, deleted at the end]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Listen on an address of --http-addr that other machines reach: who reaches it reads everything
    #[arg(long)]
    insecure_listen: bool,
    #[command(flatten)]
    log: LogArgs,
}

/// Runs until SIGTERM or SIGINT.
pub(super) async fn run(
    args: DevArgs,
    address: Option<String>,
    out: Output,
) -> anyhow::Result<CliExit> {
    let described = apply::described(&args.apply, &"default".parse()?)?;
    described.check_not_empty(&args.apply)?;
    args.log.init()?;
    exec::hide();
    exec::close_on_exec();
    let address = address.as_deref().unwrap_or(DEFAULT_ADDRESS);
    let address = address.strip_prefix("http://").unwrap_or(address);
    check_address(address, args.insecure_listen).await?;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        failure(
            format!("cannot listen on {address}: {error}"),
            "is a Consul agent running here? choose another address: rcfarm dev --http-addr 127.0.0.1:8501",
        )
    })?;
    let bound = listener.local_addr()?;
    let token = DevToken::write(bound, IdSource::from_entropy().uuid().to_string())
        .context("cannot store the token for writes")?;
    let store = Emulator::default();
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    let shutdown = CancellationToken::new();
    tokio::spawn(serve_to(listener, store, CONNECTIONS, access(bound, &token)));
    let home = Home::make(args.data_dir.as_deref())?;
    let machines = machines(&args, &home)?;
    let agents = start_agents(&machines, &args.capacity, &shared, &shutdown)?;
    simulate(shared.as_ref(), args.simulated).await?;
    let is_simulated: simulated::IsSimulated = |node| node.as_str().starts_with(SIMULATED);
    let clock = Arc::new(SystemClock);
    tokio::spawn(simulated::run(shared.clone(), clock, is_simulated, shutdown.clone()));
    let context = CommandContext::new(shared.clone(), out);
    let created = make_objects(&context, &args.apply, described).await?;
    let farm = Farm::of_all_kinds(
        settings(args.job_ttl),
        system_env(shared),
        by_labels(),
        Arc::new(NoDiscovery),
    );
    print_welcome(&address_here(bound).to_string(), &token, &machines, args.simulated, &created);
    tokio::spawn(stop_on_signal(shutdown.clone()));
    farm.run(shutdown.clone()).await?;
    shutdown.cancel();
    for (machine, stopped) in machines.iter().zip(agents.join_all().await) {
        if let Err(why) = stopped {
            warn!(node = %machine.name, %why, "the node has ended");
        }
    }
    Ok(CliExit::Ok)
}

/// Whoever may write to the store runs programs as this user, so other machines are let in on request only.
async fn check_address(address: &str, is_insecure: bool) -> anyhow::Result<()> {
    // An address that is none fails when it is bound.
    let mut found = tokio::net::lookup_host(address).await.into_iter().flatten();
    if is_insecure || found.all(|address| address.ip().is_loopback()) {
        return Ok(());
    }
    Err(failure(
        format!("other machines can reach {address}, and read everything there"),
        "listen on 127.0.0.1, or say that you mean it with --insecure-listen",
    ))
}

/// A loopback address answers requests for loopback's names alone: the page of another site, whose name was made to lead
/// here, is refused.
fn access(bound: SocketAddr, token: &DevToken) -> Access {
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned(), "::1".to_owned()];
    let hosts = bound.ip().is_loopback().then(|| [&names[..], &[bound.ip().to_string()]].concat());
    Access { hosts, write_token: Some(token.token.clone()) }
}

/// The address by which commands of this machine reach the store, and find its token.
fn address_here(bound: SocketAddr) -> SocketAddr {
    let here: IpAddr = match bound {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    if bound.ip().is_unspecified() { SocketAddr::new(here, bound.port()) } else { bound }
}

fn settings(job_ttl: Duration) -> FarmSettings {
    FarmSettings {
        name: "dev".parse().expect("a legal name"),
        selector: Selector::everything(),
        session: SessionSettings::default(),
        limits: TxnLimits::default(),
        node_grace: crate::farm::NODE_GRACE,
        job_ttl: Some(job_ttl),
        ssh_keys: rcfarm_store::sealing::KeySealing::Unencrypted,
        finds_leftovers: true,
    }
}

/// Data directory; a temporary one is deleted at the end.
#[derive(Debug)]
struct Home {
    path: PathBuf,
    is_temporary: bool,
}

impl Home {
    fn make(named: Option<&Path>) -> anyhow::Result<Home> {
        let (path, made) = match named {
            Some(path) => (path.to_owned(), fs::create_dir_all(path)),
            None => {
                let name = format!("rcfarm-nodes-{}", IdSource::from_entropy().uuid().simple());
                let path = std::env::temp_dir().join(name);
                let made = Home::make_own(&path);
                (path, made)
            }
        };
        made.with_context(|| format!("cannot make {} (--data-dir)", path.display()))?;
        Ok(Home { path, is_temporary: named.is_none() })
    }

    /// Makes a directory in which only this user writes: its files say which programs are started. Pods of other users
    /// pass through it. It must be new: the owner of one that is there could replace them.
    fn make_own(path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o711).create(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

struct Machine {
    name: NodeName,
    /// `$NODE_PORT` of its pods.
    port: u16,
    /// Ports of members of jobs. The nodes share an address, so each has its own.
    job_ports: PortRange,
    data_dir: PathBuf,
}

fn zone(n: u16) -> String {
    ["a", "b", "c"][usize::from(n - 1) % 3].to_owned()
}

fn machines(args: &DevArgs, home: &Home) -> anyhow::Result<Vec<Machine>> {
    let machine = |n: u16| {
        let name: NodeName = format!("node-{n}").parse().expect("a legal name");
        let port = args.first_port.checked_add(n - 1).filter(|port| *port > 0);
        let free = port.map(|port| PortProbe::bind((Ipv4Addr::LOCALHOST, port)));
        let Some((port, Ok(_))) = port.zip(free) else {
            return Err(failure(
                format!(
                    "no port for the pods of {name}: {} and {} more are wanted",
                    args.first_port,
                    args.nodes - 1
                ),
                "choose free ones: rcfarm dev --first-port 9101",
            ));
        };
        let Some(job_ports) = args.job_ports.part(n - 1, args.nodes) else {
            let why = format!("--job-ports: {} has too few ports", args.job_ports);
            return Err(failure(why, "choose a larger range: rcfarm dev --job-ports 20000-29999"));
        };
        let data_dir = home.path.join(name.as_str());
        Ok(Machine { name, port, job_ports, data_dir })
    };
    (1..=args.nodes).map(machine).collect()
}

/// Starts an agent for each machine.
fn start_agents(
    machines: &[Machine],
    capacity: &ResourceList,
    store: &Arc<dyn Store>,
    shutdown: &CancellationToken,
) -> anyhow::Result<JoinSet<Result<(), AgentError>>> {
    let mut agents = JoinSet::new();
    for (n, machine) in (1..).zip(machines) {
        let (address, data_dir) = (Ipv4Addr::LOCALHOST.to_string(), machine.data_dir.clone());
        let settings = AgentSettings {
            serves_logs: true,
            labels: BTreeMap::from([("pool".into(), "dev".into()), ("zone".into(), zone(n))]),
            capacity: capacity.clone(),
            ports: Some(machine.job_ports),
            env: environment(machine)?,
            at_shutdown: AtShutdown::StopPods,
            ..AgentSettings::new(machine.name.clone(), address, data_dir)
        };
        let agent = Agent::new(settings, system_env(store.clone()), Arc::new(own_driver()?));
        agents.spawn(agent.run(shutdown.clone()));
    }
    Ok(agents)
}

/// Additional environment of a machine's pods: a port, and this program first in the path.
fn environment(machine: &Machine) -> anyhow::Result<BTreeMap<String, String>> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let own = program.parent().map(|path| path.display().to_string()).unwrap_or_default();
    let path = match std::env::var("PATH") {
        Ok(path) => format!("{own}:{path}"),
        Err(_) => own,
    };
    let port = machine.port.to_string();
    Ok(BTreeMap::from([("NODE_PORT".to_owned(), port), ("PATH".to_owned(), path)]))
}

async fn simulate(store: &dyn Store, count: u16) -> anyhow::Result<()> {
    for n in 1..=count {
        let name: NodeName = format!("{SIMULATED}{n}").parse().expect("a legal name");
        let labels = Labels::from([("pool".into(), "simulated".into()), ("zone".into(), zone(n))]);
        store.put(&key::node_labels(&name), encode_labels(&labels), 0, PutMode::Set).await?;
    }
    Ok(())
}

/// Applies the objects of files. Returns the controllers.
async fn make_objects(
    context: &CommandContext,
    files: &[String],
    described: DescribedObjects,
) -> anyhow::Result<Vec<(RcId, String, i64)>> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    apply::apply_described(context, files, described).await?;
    let (found, _) = find::all(context).await?;
    let created = |rc: &find::FoundRc| Some((rc.id, rc.pod_id()?.to_string(), rc.desired()?));
    Ok(found.iter().filter_map(created).collect())
}

fn print_welcome(
    address: &str,
    token: &DevToken,
    machines: &[Machine],
    simulated: u16,
    created: &[(RcId, String, i64)],
) {
    let more = if simulated == 0 { String::new() } else { format!(", {simulated} simulated ones") };
    let nodes = if machines.len() == 1 { "node" } else { "nodes" };
    let count = machines.len();
    println!("rcfarm dev: a store on http://{address}, a farm, {count} {nodes}{more}");
    println!(
        "Pods are processes of this machine. All of it ends with ctrl-c, and nothing is kept.\n"
    );
    for Machine { name, port, data_dir, .. } in machines {
        println!("node      {name}   NODE_PORT={port}   {}", data_dir.display());
    }
    for (id, pod, replicas) in created {
        println!("created   {id}   {pod}   {replicas} replicas");
    }
    println!("\nTry in another terminal:");
    if address != DEFAULT_ADDRESS {
        println!("  export CONSUL_HTTP_ADDR={address}");
    }
    // This program finds it by itself.
    println!(
        "  export CONSUL_HTTP_TOKEN_FILE={}   # for writes by other tools",
        token.path.display()
    );
    let pod = created.first().map_or("sleeper", |(_, pod, _)| pod);
    if created.is_empty() {
        println!(
            "  printf 'id: sleeper\\nlaunchables: {{main: {{launchable_type: process, command: sleep 600}}}}\\n' |"
        );
        println!(
            "    rcfarm rc create -f - --node-selector pool=dev --replicas 2 --strategy dynamic"
        );
    }
    println!("  rcfarm pod list");
    if let (Some(Machine { port, .. }), false) = (machines.first(), created.is_empty()) {
        println!("  curl http://127.0.0.1:{port}/");
    }
    println!("  rcfarm pod logs {pod} --node node-1 --follow");
    println!(
        "  rcfarm rc scale {pod} 2 --wait\n  rcfarm rc status {pod}\n  rcfarm rc explain {pod}"
    );
    println!("  rcfarm node drain node-1\n  rcfarm node undrain node-1");
    println!("  rcfarm audit list\n  curl -s http://{address}/v1/kv/intent/?keys\n");
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn printed_address_is_one_that_this_machine_can_ask() {
        for (bound, printed) in [
            ("0.0.0.0:8500", "127.0.0.1:8500"),
            ("[::]:8500", "[::1]:8500"),
            ("10.0.0.7:8500", "10.0.0.7:8500"),
            ("127.0.0.1:9", "127.0.0.1:9"),
        ] {
            assert_eq!(address_here(bound.parse().unwrap()).to_string(), printed);
        }
    }

    #[test]
    fn temporary_directory_is_new_and_written_by_its_user_alone() {
        let (one, other) = (Home::make(None).unwrap(), Home::make(None).unwrap());
        let path = one.path.clone();
        assert_ne!(path, other.path);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o066, 0);
        // One that somebody else has made is not taken.
        let error = Home::make_own(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        drop(one);
        assert!(!path.exists() && other.path.exists());
    }
}
