//! `rcfarm dev`: a store, a farm and simulated nodes in one process, to try things out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::console::Console;
use super::failure::{Exit, failure};
use super::farm_run::{LogArgs, ground, stop_on_signal};
use super::output::Output;
use super::rc::create;
use crate::embedded::Embedded;
use crate::embedded::serve::serve;
use crate::farm::kinds::by_labels;
use crate::farm::{Farm, FarmSettings, SessionSettings};
use crate::ids::{NodeName, RcId};
use crate::labels::{Labels, Selector, encode_labels};
use crate::manifest::Manifest;
use crate::node::simulated;
use crate::rc::spec::{POD_ID, RcRecord, Strategy, check_count};
use crate::schedule::NoDiscovery;
use crate::store::{Limits, PutMode, Store, key};
use crate::time::SystemClock;

/// Where Consul would be.
const DEFAULT_ADDRESS: &str = "127.0.0.1:8500";

/// So many connections may be open at once.
const CONNECTIONS: usize = 1_000;

/// What to try things out with.
#[derive(clap::Args)]
pub struct DevArgs {
    /// Create what this file describes (examples/hello.yaml is one)
    #[arg(long, value_name = "FILE")]
    apply: Option<PathBuf>,
    /// How many simulated nodes there are, labelled pool=dev
    #[arg(long, default_value_t = 5)]
    nodes: u16,
    #[command(flatten)]
    log: LogArgs,
}

/// What a file describes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    #[serde(default)]
    nodes: Vec<DescribedNode>,
    #[serde(default)]
    replication_controllers: Vec<DescribedRc>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedNode {
    name: NodeName,
    #[serde(default)]
    labels: Labels,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedRc {
    manifest: String,
    node_selector: String,
    replicas: i64,
    #[serde(default)]
    pod_labels: BTreeMap<String, String>,
    strategy: Option<String>,
}

/// Runs until it is told to stop.
pub(super) async fn run(
    args: DevArgs,
    address: Option<String>,
    out: Output,
) -> anyhow::Result<Exit> {
    let described = match &args.apply {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {} (--apply)", path.display()))?;
            let described: Described = serde_saphyr::from_str(&text)
                .map_err(|e| anyhow::anyhow!("{}: {}", path.display(), e.without_snippet()))?;
            described
        }
        None => Described::default(),
    };
    args.log.init()?;
    let address = address.as_deref().unwrap_or(DEFAULT_ADDRESS);
    let address = address.strip_prefix("http://").unwrap_or(address);
    let listener = TcpListener::bind(address).await.map_err(|error| {
        failure(
            format!("cannot listen on {address}: {error}"),
            "is a Consul agent running here? choose another address: rcfarm dev --http-addr 127.0.0.1:8501",
        )
    })?;
    let bound = listener.local_addr()?;
    let store = Embedded::default();
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    let shutdown = CancellationToken::new();
    tokio::spawn(serve(listener, store, CONNECTIONS));
    tokio::spawn(simulated::run(shared.clone(), Arc::new(SystemClock), shutdown.clone()));
    let console = Console::new(shared.clone(), out);
    let nodes = make_nodes(shared.as_ref(), &described, args.nodes).await?;
    let created = make_controllers(&console, &described).await?;
    let farm = Farm::of_all_kinds(settings(), ground(shared), by_labels(), Arc::new(NoDiscovery));
    print_welcome(&bound.to_string(), nodes, &created);
    tokio::spawn(stop_on_signal(shutdown.clone()));
    farm.run(shutdown).await?;
    Ok(Exit::Ok)
}

fn settings() -> FarmSettings {
    FarmSettings {
        name: "dev".parse().expect("a legal name"),
        selector: Selector::everything(),
        session: SessionSettings::default(),
        limits: Limits::default(),
        node_grace: crate::farm::NODE_GRACE,
    }
}

async fn make_nodes(store: &dyn Store, described: &Described, count: u16) -> anyhow::Result<usize> {
    let simulated = (1..=count).map(|n| {
        let name: NodeName = format!("node-{n}").parse().expect("a legal name");
        let zone = ["a", "b", "c"][usize::from(n - 1) % 3];
        (name, Labels::from([("pool".into(), "dev".into()), ("zone".into(), zone.into())]))
    });
    let described = described.nodes.iter().map(|node| (node.name.clone(), node.labels.clone()));
    let nodes: BTreeMap<NodeName, Labels> = simulated.chain(described).collect();
    for (name, labels) in &nodes {
        store.put(&key::node_labels(name), encode_labels(labels), 0, PutMode::Set).await?;
    }
    Ok(nodes.len())
}

async fn make_controllers(
    console: &Console,
    described: &Described,
) -> anyhow::Result<Vec<(RcId, String, i64)>> {
    let mut created = Vec::new();
    for (n, rc) in described.replication_controllers.iter().enumerate() {
        let at = format!("replication_controllers[{n}]");
        let manifest = Manifest::parse(&rc.manifest).with_context(|| format!("{at}.manifest"))?;
        rc.node_selector.parse::<Selector>().with_context(|| format!("{at}.node_selector"))?;
        check_count(rc.replicas).with_context(|| format!("{at}.replicas"))?;
        let strategy = match rc.strategy.as_deref() {
            None | Some("static") => Strategy::Static,
            Some("dynamic") => Strategy::Dynamic,
            Some(other) => anyhow::bail!("{at}.strategy: {other:?} is neither static nor dynamic"),
        };
        let id = RcId(console.ids.uuid());
        let record = RcRecord {
            id,
            manifest: rc.manifest.clone(),
            node_selector: rc.node_selector.clone(),
            pod_labels: Some(rc.pod_labels.clone()),
            replicas_desired: rc.replicas,
            disabled: false,
            allocation_strategy: strategy.as_str().to_owned(),
            other: serde_json::Map::new(),
        };
        let labels = Labels::from([(POD_ID.to_owned(), manifest.id().to_string())]);
        create::write(console, &record, &labels, &manifest).await?;
        created.push((id, manifest.id().to_string(), rc.replicas));
    }
    Ok(created)
}

fn print_welcome(address: &str, nodes: usize, created: &[(RcId, String, i64)]) {
    println!("rcfarm dev: a store on http://{address}, a farm, {nodes} simulated nodes");
    println!("Nothing is kept: it is for trying things out. Stop it with ctrl-c.\n");
    for (id, pod, replicas) in created {
        println!("created   {id}   {pod}   {replicas} replicas");
    }
    let set = if address == DEFAULT_ADDRESS {
        String::new()
    } else {
        format!("  export CONSUL_HTTP_ADDR={address}\n")
    };
    let pod = created.first().map_or("hello", |(_, pod, _)| pod);
    let create = if created.is_empty() {
        "  printf 'id: hello\\n' | rcfarm rc create -f - --node-selector pool=dev --replicas 3\n"
    } else {
        ""
    };
    println!("Try in another terminal:\n{set}{create}  rcfarm rc list");
    println!("  rcfarm rc scale {pod} 5 --wait\n  rcfarm rc pods {pod}\n  rcfarm rc explain {pod}");
    println!(
        "  rcfarm label set node node-1 pool=drained\n  rcfarm audit list\n  rcfarm audit verify"
    );
    println!("  curl -s http://{address}/v1/kv/intent/?keys\n");
}
