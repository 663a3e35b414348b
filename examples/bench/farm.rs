//! The farm under test: a child process.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rcfarm::daemon::by_labels;
use rcfarm::farm::{Farm, FarmSettings};
use rcfarm::placement::NoDiscovery;
use rcfarm::telemetry::{self, LogFormat};
use rcfarm_api::labels::Selector;
use rcfarm_consul::{Consul, NOISY_TARGETS};
use rcfarm_store::Env;
use rcfarm_store::TxnLimits;
use rcfarm_store::session::{KeeperRuntime, SessionSettings};
use rcfarm_store::time::{IdSource, SystemClock};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

/// Runs a farm until SIGTERM, or until standard input ends. Each line of input is answered with the requests sent
/// so far.
pub async fn serve(store: Arc<Consul>, session: Arc<Consul>, name: &str) -> anyhow::Result<()> {
    telemetry::init(LogFormat::Text, "info", &NOISY_TARGETS).map_err(anyhow::Error::msg)?;
    let shutdown = CancellationToken::new();
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stop = shutdown.clone();
    tokio::spawn(async move {
        terminated.recv().await;
        stop.cancel();
    });
    let settings = FarmSettings {
        name: name.parse()?,
        selector: Selector::everything(),
        session: SessionSettings::default(),
        limits: TxnLimits::default(),
        node_grace: rcfarm::farm::NODE_GRACE,
        job_ttl: None,
        ssh_keys: rcfarm_store::sealing::KeySealing::Refused,
        finds_leftovers: true,
    };
    let ids = Arc::new(IdSource::from_entropy());
    // The session's requests have a client and a thread of their own, as in `rcfarm farm run`.
    let keeper = KeeperRuntime::own_thread(session.clone())?;
    let heartbeats = keeper.heartbeats();
    let env = Env::new(store.clone(), Arc::new(SystemClock), ids).with_keeper(keeper);
    let farm = Farm::of_all_kinds(settings, env, by_labels(), Arc::new(NoDiscovery));
    let (report, stop) = (farm.report(), shutdown.clone());
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {
            let mut requests: Requests = BTreeMap::new();
            for (kind, count) in store.requests().into_iter().chain(session.requests()) {
                *requests.entry(kind.to_owned()).or_default() += count;
            }
            let buckets = heartbeats.buckets();
            let count = |from: f64| buckets.iter().filter(|b| b.0 > from).map(|b| b.1).sum();
            let lost = report.lock().map_or(0, |report| report.epochs_lost);
            let seen = FarmCounters { requests, lost, beats: count(0.0), late: count(0.25) };
            println!("{}", serde_json::json!(seen));
        }
        stop.cancel();
    });
    Ok(farm.run(shutdown).await?)
}

pub struct FarmProcess {
    child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// Requests that a farm has sent since its start, by kind.
pub type Requests = BTreeMap<String, u64>;

/// What a farm has counted since its start.
#[derive(Debug, Serialize, Deserialize)]
pub struct FarmCounters {
    requests: Requests,
    /// Lost sessions.
    pub lost: u64,
    /// Heartbeats that were answered.
    pub beats: u64,
    /// Of these, more than 250 ms after they were due.
    pub late: u64,
}

impl FarmProcess {
    pub fn start(address: &str, name: &str, logs: &Path) -> anyhow::Result<FarmProcess> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["farm", address, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(logs.join(format!("{name}.log")))?)
            .kill_on_drop(true)
            .spawn()?;
        let questions = child.stdin.take().context("no pipe")?;
        let answers = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        Ok(FarmProcess { child, questions, answers })
    }

    pub fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the farm has ended")
    }

    /// Fails when the farm has ended by itself.
    pub fn must_run(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the farm has ended ({status}); its log says why (--logs DIR)"),
            None => Ok(()),
        }
    }

    pub async fn requests(&mut self) -> anyhow::Result<Requests> {
        Ok(self.counters().await?.requests)
    }

    pub async fn counters(&mut self) -> anyhow::Result<FarmCounters> {
        self.questions.write_all(b"\n").await?;
        let line = self.answers.next_line().await?.context("the farm has ended")?;
        Ok(serde_json::from_str(&line)?)
    }

    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// SIGTERM; returns at once.
    pub fn terminate(&self) -> anyhow::Result<()> {
        let pid = self.pid()?.to_string();
        std::process::Command::new("kill").args(["-TERM", &pid]).status()?;
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.terminate()?;
        tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await??;
        Ok(())
    }
}
