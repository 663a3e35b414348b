//! Measures a farm on a real Consul, and that Consul beside it.
//!
//! ```text
//! cargo run --release --example bench -- --consul consul                  # starts `consul agent -dev`
//! cargo run --release --example bench -- --consul consul --data-dir DIR   # a server that syncs to disk
//! cargo run --release --example bench -- --http-addr 127.0.0.1:8500       # one that runs; it must be empty
//! ```
//!
//! The farm is a process of its own (this program, as `bench farm`), so that its CPU time, memory and connections can
//! be read from `/proc`. Everything else is measured through Consul. `docs/operate/benchmarks.md` describes the rows
//! and results.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "it measures time, at random moments")]

mod clock;
mod deallocations;
mod farm;
mod fleet;
mod jobs;
mod machine;
mod owners;
mod pass;
mod pods;
mod raw;
mod report;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use rcfarm_consul::{Consul, ConsulConfig};

use rcfarm_testing::consul_server::{ConsulData, ConsulOptions, ConsulServer};
use rows::{Bench, Row};

#[derive(Parser)]
#[command(about = "Measures a farm on a real Consul", subcommand_negates_reqs = true)]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Consul program to start.
    #[arg(long, required_unless_present = "http_addr", conflicts_with = "http_addr")]
    consul: Option<PathBuf>,
    /// Start a server that keeps its data here, instead of `-dev`.
    #[arg(long, requires = "consul")]
    data_dir: Option<PathBuf>,
    /// Address of a running Consul, in which nothing of p2's or ours may stand.
    #[arg(long)]
    http_addr: Option<String>,
    /// Rows to measure; default all.
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<Row>,
    /// Repetitions of each row; the best and the median are shown.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Seconds over which the farm at rest is watched.
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the farms' logs go; default: a temporary directory.
    #[arg(long)]
    logs: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Mode {
    /// One farm: what the other modes start as a child.
    #[command(hide = true)]
    Farm {
        /// Consul.
        http_addr: String,
        /// The farm's name.
        name: String,
    },
    /// Nodes whose pods do what their manifests say without being run.
    #[command(hide = true)]
    Nodes {
        /// Consul.
        http_addr: String,
    },
}

fn connect(address: &str) -> anyhow::Result<Arc<Consul>> {
    let config = ConsulConfig { address: Some(address.to_owned()), ..ConsulConfig::default() };
    Ok(Arc::new(Consul::new(&config)?))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.mode {
        Some(Mode::Farm { http_addr, name }) => {
            let (work, session) = (connect(&http_addr)?, connect(&http_addr)?);
            return farm::serve(work, session, &name).await;
        }
        Some(Mode::Nodes { http_addr }) => return pods::serve(connect(&http_addr)?).await,
        None => {}
    }
    let scratch = tempfile::tempdir()?;
    let server = match &args.consul {
        Some(program) => {
            let data = args.data_dir.clone().map_or(ConsulData::Memory, ConsulData::At);
            let (program, config) = (Some(program.clone()), "log_level = \"warn\"".to_owned());
            let options = ConsulOptions { program, config, data, ..ConsulOptions::default() };
            Some(ConsulServer::start(options).await)
        }
        None => None,
    };
    let address = match &server {
        Some(server) => server.http().to_string(),
        None => args.http_addr.context("no address")?,
    };
    let logs = args.logs.unwrap_or_else(|| scratch.path().to_owned());
    let store = connect(&address)?;
    fleet::must_be_empty(&store).await?;
    let consul_pid = server.as_ref().and_then(ConsulServer::pid);
    let bench = Bench { store, address, consul_pid, logs, idle: args.idle };
    let rows = if args.rows.is_empty() { Row::ALL.to_vec() } else { args.rows };
    let mut report = report::Report::default();
    for row in rows {
        for repetition in 1..=args.repeat {
            let before = machine::Busy::now(&bench.pids())?;
            let figures = bench.measure(row).await.with_context(|| format!("row {row:?}"))?;
            let others = before.others_since(&bench.pids())?;
            eprintln!("{row:?} {repetition}/{}: others used {others:.1} cores", args.repeat);
            for figure in &figures {
                eprintln!("    {figure}");
            }
            report.add(figures);
            fleet::wipe(&bench.store).await?;
        }
    }
    if args.json {
        println!("{}", report.json()?)
    } else {
        println!("{}", report.table())
    }
    Ok(())
}
