//! The rows of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rcfarm::farm::NODE_GRACE;
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_node::agent::{Agent, AgentError, AgentSettings};
use rcfarm_store::Env;
use rcfarm_store::time::{Clock as _, IdSource, SystemClock};
use rcfarm_store::{DeleteMode, Index, Op, Query, Reader as _, Store as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Figure;
use crate::lab::{Lab, Node, percentiles, until};
use rcfarm_testing::fake_driver::FakeDriver;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Row {
    /// An intent is written; its process runs.
    Start,
    /// A pod's process is killed; its controller's status says so.
    Exit,
    /// 200 agents with 10 pods each, and nothing happens.
    Fleet,
    /// 1,000 agents without pods, and 100 intents a second for other nodes.
    IdleFleet,
    /// An agent with 50 pods is killed and started again.
    Adopt,
    /// A node with a single instance dies.
    Kill,
    /// Four of eight nodes are drained.
    Drain,
    /// Consul is killed and started again while intents change.
    Consul,
}

impl Row {
    pub const ALL: [Row; 8] = [
        Row::Start,
        Row::Exit,
        Row::Fleet,
        Row::IdleFleet,
        Row::Adopt,
        Row::Kill,
        Row::Drain,
        Row::Consul,
    ];
}

/// Consul's own limit.
const CONNECTIONS: u32 = 200;

pub async fn measure(row: Row, consul: &Path) -> anyhow::Result<Vec<Figure>> {
    let connections = match row {
        Row::Fleet => 2_000,
        Row::IdleFleet => 8_000,
        _ => CONNECTIONS,
    };
    let mut lab = Lab::new(consul, connections).await?;
    match row {
        Row::Start => start(&lab).await,
        Row::Exit => exit(&lab).await,
        Row::Fleet => fleet(&lab).await,
        Row::IdleFleet => idle_fleet(&lab).await,
        Row::Adopt => adopt(&lab).await,
        Row::Kill => kill(&lab).await,
        Row::Drain => drain(&lab).await,
        Row::Consul => restart(&mut lab).await,
    }
}

fn manifest(pod: &str, more: &str) -> String {
    format!(
        "id: {pod}\nlaunchables:\n  main:\n    launchable_type: process\n    command: sleep 600\n{more}"
    )
}

fn pods(count: usize) -> Vec<PodId> {
    (0..count).map(|n| format!("pod-{n:03}").parse().expect("a legal name")).collect()
}

fn since(then: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(then).try_into().unwrap_or_default()
}

/// Waits until the node says that these many pods run.
async fn until_running(lab: &Lab, count: usize) -> anyhow::Result<()> {
    until("the pods", || async {
        let pods = lab.pods().await?;
        Ok(pods.values().filter(|pod| pod.phase == NodePodPhase::Running).count() == count)
    })
    .await
}

/// From before the intent is sent to when the kernel has started the process.
async fn start(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    const ROUNDS: usize = 4;
    let node = lab.node("n1").await?;
    let (mut single, mut burst) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + 1 {
        let mut sent: BTreeMap<PodId, Timestamp> = BTreeMap::new();
        let intent = |pod: &PodId| (key::intent(&node.name, pod), manifest(pod.as_str(), ""));
        if round < ROUNDS {
            for (n, pod) in pods(50).into_iter().enumerate() {
                let (key, manifest) = intent(&pod);
                sent.insert(pod, SystemClock.wall());
                lab.put(&key, manifest).await?;
                sleep(Duration::from_millis(60 + (n as u64 * 7) % 40)).await;
            }
        } else {
            let set =
                |(key, manifest): (_, String)| Op::Set { key, value: manifest.into(), flags: 0 };
            let ops: Vec<Op> = pods(50).iter().map(intent).map(set).collect();
            let now = SystemClock.wall();
            sent.extend(pods(50).into_iter().map(|pod| (pod, now)));
            let _ = lab.store.txn(&ops).await?;
        }
        until_running(lab, 50).await?;
        for ((pod, _), status) in lab.pods().await? {
            let started = status.processes[0].started_at.context("it runs")?;
            let times = if round < ROUNDS { &mut single } else { &mut burst };
            times.push(since(sent[&pod], started));
        }
        lab.store.delete_tree(&key::node_intents(&node.name)).await?;
        until("the end", || async { Ok(lab.pods().await?.is_empty()) }).await?;
    }
    let (echo, fork) = (echo(lab).await?, fork()?);
    let ((p50, p99), (burst_p50, burst_p99)) = (percentiles(single), percentiles(burst));
    let of = |what: &str| format!("intent written → process running: {what}");
    Ok(vec![
        Figure::ms(of("p50"), p50),
        Figure::ms(of("p99"), p99).at_most(50.0),
        Figure::ms(of("50 intents at once, p50"), burst_p50),
        Figure::ms(of("50 intents at once, p99"), burst_p99),
        Figure::ms(of("beside it, a write until a blocking read shows it, p99"), echo.1),
        Figure::ms(of("beside it, fork and exec of the same program, p99"), fork.1),
    ])
}

/// Time until a blocking read shows a write, without an agent.
async fn echo(lab: &Lab) -> anyhow::Result<(Duration, Duration)> {
    let mut times = Vec::new();
    let at = rcfarm_store::Key::parse("bench-echo")?;
    let mut index = Index::ZERO;
    for n in 0..200 {
        let store = lab.store.clone();
        let (key, query) = (at.clone(), Query::after(index, Duration::from_secs(5)));
        let read = tokio::spawn(async move { store.get(&key, query).await });
        sleep(Duration::from_millis(20)).await;
        let sent = Instant::now();
        lab.put(&at, n.to_string()).await?;
        let answer = read.await??;
        if index > Index::ZERO {
            times.push(sent.elapsed());
        }
        index = answer.index;
    }
    Ok(percentiles(times))
}

fn fork() -> anyhow::Result<(Duration, Duration)> {
    let mut times = Vec::new();
    for _ in 0..100 {
        let begun = Instant::now();
        let mut child = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn()?;
        times.push(begun.elapsed());
        child.kill()?;
        child.wait()?;
    }
    Ok(percentiles(times))
}

/// Time from `kill -9` of a pod's process to the RC status with one healthy pod less.
async fn exit(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    const RCS: usize = 20;
    let _farm = lab.farm()?;
    let node = lab.node("n1").await?;
    let mut controllers = Vec::new();
    for pod in pods(RCS) {
        let more = "    restart: {policy: always, backoff: 300ms}\n";
        let id = lab.controller(&manifest(pod.as_str(), more), 1, None).await?;
        controllers.push((id, pod));
    }
    until_running(lab, RCS).await?;
    // Status writes that change only health are limited to one per 2 s; the pause avoids that limit.
    sleep(Duration::from_secs(5)).await;
    let mut times = Vec::new();
    for round in 0..5 {
        for (id, pod) in &controllers {
            let place = (pod.clone(), node.name.clone());
            let healthy = || async { Ok(lab.controller_status(*id).await?.replicas.healthy == 1) };
            until("a healthy pod", healthy).await?;
            let status = lab.pods().await?.remove(&place).context("a status")?;
            let pid = status.processes[0].pid.context("a process")?;
            let at = key::rc_status(*id);
            let index = lab.store.get(&at, Query::PLAIN).await?.index;
            let store = lab.store.clone();
            let query = Query::after(index, Duration::from_secs(30));
            let read = tokio::spawn(async move { store.get(&at, query).await });
            sleep(Duration::from_millis(if round == 0 { 250 } else { 100 })).await;
            let killed = Instant::now();
            Command::new("kill").args(["-9", &pid.to_string()]).status()?;
            read.await??;
            times.push(killed.elapsed());
            let seen = lab.controller_status(*id).await?.replicas.healthy;
            anyhow::ensure!(seen == 0, "the status changed for another reason");
        }
    }
    let (echo, (p50, p99)) = (echo(lab).await?, percentiles(times));
    let of = |what: &str| format!("pod exits → its controller's status says so: {what}");
    Ok(vec![
        Figure::ms(of("p50"), p50),
        Figure::ms(of("p99"), p99).at_most(50.0),
        Figure::ms(of("beside it, a write until a blocking read shows it, p99"), echo.1),
    ])
}

/// Requests of idle agents.
async fn fleet(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    const AGENTS: usize = 200;
    const FOR: Duration = Duration::from_secs(60);
    let dir = tempfile::tempdir()?;
    let names: Vec<NodeName> =
        (0..AGENTS).map(|n| format!("n{n:03}").parse()).collect::<Result<_, _>>()?;
    for name in &names {
        let intent = |pod: &PodId| Op::Set {
            key: key::intent(name, pod),
            value: manifest(pod.as_str(), "").into(),
            flags: 0,
        };
        let _ = lab.store.txn(&pods(10).iter().map(intent).collect::<Vec<_>>()).await?;
    }
    let begun = Instant::now();
    let agents = Agents::start(lab, &names, dir.path());
    until_running(lab, AGENTS * 10).await?;
    let up = begun.elapsed();
    sleep(Duration::from_secs(5)).await;
    let before = lab.store.requests();
    sleep(FOR).await;
    let after = lab.store.requests();
    let per_second = |count: u64| count as f64 / FOR.as_secs_f64() / AGENTS as f64;
    let of = |what: &str| format!("{AGENTS} agents, {} pods: {what}", AGENTS * 10);
    let mut figures = vec![
        Figure::s(of("until all are reported"), up),
        Figure::new(
            of("requests of one agent at rest"),
            per_second(after.values().sum::<u64>() - before.values().sum::<u64>()),
            "/s",
        )
        .at_most(1.0),
    ];
    for (kind, count) in &after {
        let count = per_second(count - before[kind]);
        if count > 0.0 {
            figures.push(Figure::new(of(&format!("of these, {kind}")), count, "/s"));
        }
    }
    agents.stop().await;
    Ok(figures)
}

/// Agents in this process, with a driver that only pretends to run pods.
struct Agents {
    shutdown: CancellationToken,
    running: JoinSet<Result<(), AgentError>>,
}

impl Agents {
    fn start(lab: &Lab, names: &[NodeName], data: &Path) -> Agents {
        let shutdown = CancellationToken::new();
        let mut running = JoinSet::new();
        for name in names {
            let settings = AgentSettings::new(name.clone(), "127.0.0.1", data.join(name.as_str()));
            let ids = Arc::new(IdSource::from_entropy());
            let env = Env::new(lab.store.clone(), Arc::new(SystemClock), ids);
            running.spawn(Agent::new(settings, env, Arc::new(FakeDriver)).run(shutdown.clone()));
        }
        Agents { shutdown, running }
    }

    async fn stop(mut self) {
        self.shutdown.cancel();
        while self.running.join_next().await.is_some() {}
    }
}

/// Requests of agents without pods while intents of other nodes are written.
async fn idle_fleet(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    const AGENTS: usize = 1_000;
    const FOR: Duration = Duration::from_secs(60);
    const PER_SECOND: u32 = 100;
    let dir = tempfile::tempdir()?;
    let names: Vec<NodeName> =
        (0..AGENTS).map(|n| format!("n{n:04}").parse()).collect::<Result<_, _>>()?;
    let agents = Agents::start(lab, &names, dir.path());
    until("all nodes", || async {
        let nodes = lab.store.list(&key::nodes(), Query::PLAIN).await?.value;
        Ok(nodes.iter().filter(|entry| entry.session.is_some()).count() == AGENTS)
    })
    .await?;
    sleep(Duration::from_secs(15)).await;
    let (before, begun) = (lab.store.requests(), Instant::now());
    let mut written = 0;
    while begun.elapsed() < FOR {
        // Late ones are made up for.
        while begun.elapsed() >= Duration::from_secs(1) / PER_SECOND * written {
            let foreign = format!("f{:03}", written % 200).parse()?;
            let pod = format!("pod-{written:05}").parse()?;
            lab.put(&key::intent(&foreign, &pod), manifest("pod", "")).await?;
            written += 1;
        }
        sleep(Duration::from_millis(2)).await;
    }
    let (after, took) = (lab.store.requests(), begun.elapsed().as_secs_f64());
    agents.stop().await;
    let of = |what: &str| format!("{AGENTS} agents without pods: {what}");
    let mut figures =
        vec![Figure::new(of("intents of other nodes"), f64::from(written) / took, "/s")];
    let mut total = 0.0;
    for (kind, count) in &after {
        let count = (count - before[kind]) as f64 / took / AGENTS as f64;
        total += count;
        if count > 0.0 {
            figures.push(Figure::new(of(&format!("of these, {kind}")), count, "/s"));
        }
    }
    total -= f64::from(written) / took / AGENTS as f64;
    figures.insert(1, Figure::new(of("requests of one agent"), total, "/s").at_most(1.0));
    Ok(figures)
}

async fn pids(lab: &Lab) -> anyhow::Result<BTreeMap<PodId, Option<i32>>> {
    let pods = lab.pods().await?.into_iter();
    Ok(pods.map(|((pod, _), status)| (pod, status.processes[0].pid)).collect())
}

/// An agent is killed and started again.
async fn adopt(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let mut node = lab.node("n1").await?;
    for pod in pods(50) {
        lab.put(&key::intent(&node.name, &pod), manifest(pod.as_str(), "")).await?;
    }
    until_running(lab, 50).await?;
    let (before, session) = (pids(lab).await?, node.session(lab).await?);
    node.kill_agent();
    sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    node.start(lab)?;
    until("another session", || async {
        let now = node.session(lab).await?;
        Ok(now.is_some() && now != session)
    })
    .await?;
    // The health keys were deleted with the old session and return with the first reports.
    until("health", || async {
        let keys = lab.store.keys(&key::healths(), None, Query::PLAIN).await?.value;
        Ok(keys.len() == 50)
    })
    .await?;
    let took = begun.elapsed();
    let (after, statuses) = (pids(lab).await?, lab.pods().await?);
    let same = before.iter().filter(|(pod, pid)| after.get(*pod) == Some(*pid)).count();
    let restarts: u64 = statuses.values().map(|pod| pod.processes[0].restarts).sum();
    let of = |what: &str| format!("agent killed and started again, 50 pods: {what}");
    Ok(vec![
        Figure::count(of("restarted"), restarts as usize).at_most(0.0),
        Figure::count(of("lost"), 50 - same).at_most(0.0),
        Figure::s(of("until all are told anew"), took),
    ])
}

/// A node dies with a single instance on it.
async fn kill(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let _farm = lab.farm()?;
    let dir = tempfile::tempdir()?;
    let at = dir.path().display();
    // A live process owns the file. A killed process cannot delete it, so its pid is checked.
    let script = format!(
        "if [ -e {at}/pid ] && kill -0 $(cat {at}/pid) 2>/dev/null; then echo twice >> {at}/twice; fi; \
         echo $$ > {at}/pid; exec sleep 600"
    );
    let manifest = format!(
        "id: single\nsingle_instance: true\nlaunchables:\n  main:\n    launchable_type: process\n    \
         command: [sh, -c, {}]\n",
        json!(script)
    );
    let mut nodes = Vec::new();
    for name in ["n1", "n2", "n3"] {
        nodes.push(lab.node(name).await?);
    }
    let id = lab.controller(&manifest, 1, None).await?;
    let pod: PodId = "single".parse()?;
    let (mut gone, mut replaced, mut running, mut whole) = (vec![], vec![], vec![], vec![]);
    for round in 0..3 {
        until("the single instance", || async {
            let status = lab.controller_status(id).await?;
            Ok(status.replicas.healthy == 1 && status.replicas.current == 1)
        })
        .await?;
        let on = intended_on(lab, &pod).await?.context("an intent")?;
        let victim = nodes.iter_mut().find(|node| node.name == on).context("its node")?;
        // Every second time only the agent is killed, and the shim must end the process before it may run elsewhere.
        let killed = Instant::now();
        if round % 2 == 0 {
            victim.kill_everything()
        } else {
            victim.kill_agent()
        }
        let held = || async { Ok(victim.session(lab).await?.is_none()) };
        until("the end of its session", held).await?;
        gone.push(killed.elapsed());
        let begun = Instant::now();
        until("another intent", || async {
            Ok(intended_on(lab, &pod).await?.is_some_and(|n| n != on))
        })
        .await?;
        replaced.push(begun.elapsed());
        until("another process", || async {
            let pods = lab.pods().await?;
            Ok(pods
                .iter()
                .any(|((p, n), s)| *p == pod && *n != on && s.phase == NodePodPhase::Running))
        })
        .await?;
        running.push(begun.elapsed());
        whole.push(killed.elapsed());
        let victim = nodes.iter_mut().find(|node| node.name == on).context("its node")?;
        victim.start(lab)?;
    }
    let twice = std::fs::read_to_string(dir.path().join("twice")).unwrap_or_default();
    let worst = |times: Vec<Duration>| times.into_iter().max().unwrap_or_default();
    let bar = (NODE_GRACE + Duration::from_secs(1)).as_secs_f64();
    let of = |what: &str| format!("node killed, dynamic RC, worst of 3: {what}");
    Ok(vec![
        Figure::s(of("until its session is gone"), worst(gone)),
        Figure::s(of("from then to another intent"), worst(replaced)).at_most(bar),
        Figure::s(of("from then until the single instance runs elsewhere"), worst(running)),
        Figure::s(of("from the kill until it runs elsewhere"), worst(whole)),
        Figure::count(of("times it was alive twice"), twice.lines().count()).at_most(0.0),
    ])
}

async fn intended_on(lab: &Lab, pod: &PodId) -> anyhow::Result<Option<NodeName>> {
    let keys = lab.store.keys(&key::intents(), None, Query::PLAIN).await?.value;
    let mut places = keys.iter().filter_map(|key| key::node_and_pod(&key::intents(), key));
    Ok(places.find(|(_, id)| id == pod).map(|(node, _)| node))
}

/// 20 pods of 5 controllers leave four of eight nodes; each controller keeps 3 of its 4 healthy.
async fn drain(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let _farm = lab.farm()?;
    let mut nodes: Vec<Node> = Vec::new();
    for n in 1..=4 {
        nodes.push(lab.node(&format!("n{n}")).await?);
    }
    let pods = pods(5);
    for pod in &pods {
        lab.controller(&manifest(pod.as_str(), ""), 4, Some(3)).await?;
    }
    until_running(lab, 20).await?;
    for n in 5..=8 {
        nodes.push(lab.node(&format!("n{n}")).await?);
    }
    sleep(Duration::from_secs(3)).await;
    let begun = Instant::now();
    for node in &nodes[..4] {
        let entry = lab.get(&key::node(&node.name)).await?.context("a record")?;
        let mut record: serde_json::Value = serde_json::from_slice(&entry.value)?;
        record["state"] = json!("draining");
        lab.put(&key::node(&node.name), record.to_string()).await?;
    }
    // Each state that a blocking read shows is checked.
    let (mut index, mut least, mut states) = (Index::ZERO, usize::MAX, 0);
    loop {
        let query = Query::after(index, Duration::from_millis(200));
        let answer = lab.store.list(&key::healths(), query).await?;
        states += usize::from(answer.index > index);
        index = answer.index;
        for pod in &pods {
            let under = key::service_healths(pod);
            let own = answer.value.iter().filter(|entry| under.tail(&entry.key).is_some());
            let well = own.filter(|entry| Health::decode(&entry.value) == Health::Passing).count();
            least = least.min(well);
        }
        let keys = lab.store.keys(&key::intents(), None, Query::PLAIN).await?.value;
        let left: BTreeSet<NodeName> = keys
            .iter()
            .filter_map(|key| Some(key::node_and_pod(&key::intents(), key)?.0))
            .collect();
        if nodes[..4].iter().all(|node| !left.contains(&node.name)) {
            break;
        }
        anyhow::ensure!(begun.elapsed() < crate::lab::PATIENCE, "never empty");
    }
    let took = begun.elapsed();
    let of = |what: &str| format!("drain of 20 pods of 5 RCs, minimum 3 of 4: {what}");
    Ok(vec![
        Figure::count(
            of("healthy pods below the minimum, at the worst moment"),
            3usize.saturating_sub(least),
        )
        .at_most(0.0),
        Figure::count(of("states of health looked at"), states),
        Figure::s(of("until the four nodes are empty"), took),
    ])
}

/// Consul is killed while intents change, and comes back.
async fn restart(lab: &mut Lab) -> anyhow::Result<Vec<Figure>> {
    let node = lab.node("n1").await?;
    let steady = pods(50);
    for pod in &steady {
        lab.put(&key::intent(&node.name, pod), manifest(pod.as_str(), "")).await?;
    }
    until_running(lab, 50).await?;
    let before = pids(lab).await?;
    let more: Vec<PodId> =
        (0..40).map(|n| format!("more-{n:02}").parse()).collect::<Result<_, _>>()?;
    // Half of the changes come before the restart, half after it; some new intents are deleted again.
    for pod in &more[..20] {
        lab.put(&key::intent(&node.name, pod), manifest(pod.as_str(), "")).await?;
        sleep(Duration::from_millis(20)).await;
    }
    lab.kill_consul();
    sleep(Duration::from_secs(5)).await;
    lab.start_consul().await?;
    let back = Instant::now();
    for (pod, old) in more[20..].iter().zip(&more[..20]) {
        lab.put(&key::intent(&node.name, pod), manifest(pod.as_str(), "")).await?;
        lab.store.delete(&key::intent(&node.name, old), DeleteMode::Always).await?;
    }
    let values = |entries: Vec<rcfarm_store::Entry>| {
        let tail = |key: &str| key.rsplit('/').next().unwrap_or_default().to_owned();
        let pair = |entry: rcfarm_store::Entry| (tail(&entry.key), entry.value);
        entries.into_iter().map(pair).collect::<BTreeMap<_, _>>()
    };
    until("reality like the intents", || async {
        let intended = lab.store.list(&key::node_intents(&node.name), Query::PLAIN).await?.value;
        let real = lab.store.list(&key::node_realities(&node.name), Query::PLAIN).await?.value;
        Ok(values(intended) == values(real))
    })
    .await?;
    let took = back.elapsed();
    let after = pids(lab).await?;
    let same = before.iter().filter(|(pod, pid)| after.get(*pod) == Some(*pid)).count();
    let of = |what: &str| format!("Consul killed for 5 s while intents change: {what}");
    Ok(vec![
        Figure::count(of("of 50 pods that stay, stopped"), 50 - same).at_most(0.0),
        Figure::s(of("from its return until reality is as intended"), took).at_most(5.0),
    ])
}
