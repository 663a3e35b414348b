//! The rows about jobs.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rcfarm_api::Stored;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_api::node::record::NodeRecord;
use rcfarm_store::{Op, Query, Reader as _};
use rcfarm_testing::fake_nodes::StartLog;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep};

use crate::clock::IndexClock;
use crate::fleet;
use crate::machine;
use crate::raw;
use crate::report::Figure;
use crate::rows::{Bench, PATIENCE, QUIET, SAMPLING, last_of, sent};

/// A process of fake nodes ([`crate::pods`]).
pub struct NodesProcess {
    child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl NodesProcess {
    async fn seen(&mut self) -> anyhow::Result<StartLog> {
        self.questions.write_all(b"\n").await?;
        let line = self.answers.next_line().await?.context("the nodes have ended")?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Processor time so far.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        machine::cpu(self.child.id().context("the nodes have ended")?)
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        let NodesProcess { mut child, questions, .. } = self;
        drop(questions);
        tokio::time::timeout(Duration::from_secs(20), child.wait()).await??;
        Ok(())
    }
}

pub fn job(n: usize) -> Namespaced {
    format!("default/bench-{n:05}").parse().expect("a legal name")
}

fn task(name: &str, replicas: usize, command: Value) -> Value {
    json!({"name": name, "replicas": replicas, "template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "main", "command": command,
            "resources": {"requests": {"cpu": "1"}}}]}}})
}

fn document(tasks: Vec<Value>, more: Value) -> String {
    let mut spec = json!({"queue": "default", "tasks": tasks});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": spec}).to_string()
}

/// A job of one pod that runs on, with this request.
pub fn one_pod(cpu: &str) -> String {
    let mut task = task("main", 1, json!(["sleep", "3600"]));
    task["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
    document(vec![task], json!({}))
}

impl Bench {
    /// Nodes with `cpus` each, and a process that acts for their agents.
    pub async fn nodes(&self, count: usize, cpus: usize) -> anyhow::Result<NodesProcess> {
        fleet::make_nodes(&self.store, count).await?;
        let record = |n: usize| {
            let record = NodeRecord {
                address: format!("10.0.{}.{}", n / 256, n % 256),
                capacity: format!("cpu={cpus}").parse()?,
                ..NodeRecord::default()
            };
            Ok(Op::Set { key: key::node(&fleet::node(n)), value: record.encode(), flags: 0 })
        };
        let records: anyhow::Result<Vec<Op>> = (0..count).map(record).collect();
        fleet::write_all(&self.store, records?).await?;
        fleet::make_sentinel(&self.store).await?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["nodes", &self.address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let questions = child.stdin.take().context("no pipe")?;
        let answers = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        Ok(NodesProcess { child, questions, answers })
    }

    /// An idle farm that has created the queue and the scheduler.
    pub async fn idle_farm(&self, name: &str) -> anyhow::Result<crate::farm::FarmProcess> {
        let farm = self.start(name)?;
        let queue = key::queue(&"default".parse()?);
        let give_up = Instant::now() + PATIENCE;
        while self.store.get(&queue, Query::PLAIN).await?.value.is_none() {
            if Instant::now() > give_up {
                bail!("no farm made the queue");
            }
            sleep(QUIET).await;
        }
        sleep(Duration::from_secs(2)).await;
        Ok(farm)
    }

    async fn status(&self, id: &Namespaced) -> anyhow::Result<JobStatus> {
        let entry = self.store.get(&key::job_status(id), Query::PLAIN).await?.value;
        Ok(entry.map(|entry| JobStatus::decode(&entry.value)).transpose()?.unwrap_or_default())
    }

    /// `count` jobs of one pod are submitted at once; measured until all have ended.
    pub async fn jobs(&self, count: usize) -> anyhow::Result<Vec<Figure>> {
        let raw_few = raw::rate(&self.store, 1).await?;
        let raw_full = raw::rate(&self.store, 30).await?;
        let nodes = self.nodes(1_000, 32).await?;
        let mut farm = self.idle_farm("bench-a").await?;
        let clock = IndexClock::sampled(self.store.clone(), SAMPLING).await?;
        let before = (farm.requests().await?, machine::cpu(farm.pid()?)?, self.consul_cpu()?);
        let one = document(vec![task("main", 1, json!(["true"]))], json!({}));
        let ops = (0..count).map(|n| {
            let value = one.clone().into();
            Op::Set { key: key::job(&job(n)), value, flags: 0 }
        });
        let start = Instant::now();
        fleet::write_all(&self.store, ops.collect()).await?;
        let submitted = start.elapsed();
        let last = loop {
            clock.still(QUIET, PATIENCE).await?;
            farm.must_run()?;
            let statuses = self.store.list(&key::job_statuses(), Query::PLAIN).await?.value;
            let done = |entry: &&rcfarm_store::Entry| {
                let status = JobStatus::decode(&entry.value).unwrap_or_default();
                status.state.phase == JobPhase::Completed && status.members.succeeded == 1
            };
            let done = statuses.iter().filter(done).count();
            if done == count {
                break clock.when(last_of(&statuses))?.duration_since(start).as_secs_f64();
            }
            if start.elapsed() > PATIENCE {
                bail!("{done} of {count} jobs are done");
            }
            sleep(QUIET).await;
        };
        let cpu = (machine::cpu(farm.pid()?)? - before.1).as_secs_f64();
        let consul = (self.consul_cpu()? - before.2).as_secs_f64();
        let requests = farm.requests().await?;
        let (_, most) = machine::memory(farm.pid()?)?;
        farm.stop().await?;
        nodes.stop().await?;
        let used = |kind: &str| sent(&requests, kind) - sent(&before.0, kind);
        let of = |what: &str| format!("{count} jobs of one pod: {what}");
        let (bar, of_memory) = (30.0 * count as f64 / 10_000.0, 300.0);
        Ok(vec![
            Figure::new(of("from submit to all finished"), last, "s").at_most(bar),
            Figure::new(of("RSS, most"), most, "MiB").at_most(of_memory),
            Figure::new(of("of it writing the records"), submitted.as_secs_f64(), "s"),
            Figure::new(of("transactions of the farm"), used("transaction"), ""),
            Figure::new(of("these, no farm"), used("transaction") / raw_full, "s"),
            Figure::new(of("raw, 6 operations"), raw_few, "/s"),
            Figure::new(of("raw, 64 operations"), raw_full, "/s"),
            Figure::new(
                of("three of 6 operations per job, no farm"),
                3.0 * count as f64 / raw_few,
                "s",
            ),
            Figure::new(of("reads"), used("read"), ""),
            Figure::new(of("blocking reads"), used("blocking_read"), ""),
            Figure::new(of("processor, farm"), cpu, "s"),
            Figure::new(of("processor, Consul"), consul, "s"),
        ])
    }

    /// An array of `count` tasks of one pod, `limit` at a time; measured until its status says that it has completed.
    pub async fn array(&self, count: usize, limit: usize) -> anyhow::Result<Vec<Figure>> {
        let (raw_few, raw_cpu) = raw::rate_and_cpu(&self.store, 1, self.consul_pid).await?;
        let nodes = self.nodes(1_000, 32).await?;
        let mut farm = self.idle_farm("bench-a").await?;
        let before = (farm.requests().await?, machine::cpu(farm.pid()?)?, self.consul_cpu()?);
        let nodes_before = nodes.cpu()?;
        let mut one = document(vec![task("main", 1, json!(["true"]))], json!({}));
        let indexes = format!("0-{}%{limit}", count - 1);
        one.insert_str(
            1,
            &format!(r#""metadata":{{"annotations":{{"rcfarm/array":"{indexes}"}}}},"#),
        );
        let op = Op::Set { key: key::job(&job(0)), value: one.into(), flags: 0 };
        let start = Instant::now();
        fleet::write_all(&self.store, vec![op]).await?;
        let status = loop {
            farm.must_run()?;
            let status = self.status(&job(0)).await?;
            if status.state.phase == JobPhase::Completed {
                break status;
            }
            if start.elapsed() > PATIENCE {
                bail!("it does not end: {:?} {:?}", status.state, status.members);
            }
            sleep(QUIET).await;
        };
        let took = start.elapsed().as_secs_f64();
        let completed = status.array.map_or(0, |array| array.completed_indexes.len());
        let cpu = (machine::cpu(farm.pid()?)? - before.1).as_secs_f64();
        let consul = (self.consul_cpu()? - before.2).as_secs_f64();
        let of_nodes = (nodes.cpu()? - nodes_before).as_secs_f64();
        let requests = farm.requests().await?;
        let (_, most) = machine::memory(farm.pid()?)?;
        farm.stop().await?;
        nodes.stop().await?;
        fleet::wipe(&self.store).await?;
        let used = |kind: &str| sent(&requests, kind) - sent(&before.0, kind);
        let (reads, blocking_reads) = (used("read"), used("blocking_read"));
        let sent = used("transaction");
        let same = raw::one_after_the_other(&self.store, 30, sent as usize).await?.as_secs_f64();
        let bare = 2.0 * count as f64 / raw_few;
        let bare_cpu = raw_cpu.as_secs_f64() * 2.0 * count as f64;
        let of = |what: &str| format!("array of {count} tasks, {limit} at a time: {what}");
        Ok(vec![
            Figure::new(of("from submit to its end"), took, "s"),
            Figure::new(of("tasks completed"), completed as f64, "").at_least(count as f64),
            Figure::new(of("RSS, most"), most, "MiB").at_most(95.0),
            Figure::new(of("transactions of the farm"), sent, ""),
            Figure::new(of("as many of 64 operations, no farm"), same, "s"),
            Figure::new(of("two of 6 operations per task, no farm"), bare, "s"),
            Figure::new(of("share of these"), took / bare, "").at_most(1.5),
            Figure::new(of("processor, farm"), cpu, "s"),
            Figure::new(of("processor, Consul"), consul, "s"),
            Figure::new(of("processor of two of 6 operations per task, no farm"), bare_cpu, "s"),
            Figure::new(of("share of it"), (cpu + consul) / bare_cpu, ""),
            Figure::new(of("processor, nodes"), of_nodes, "s"),
            Figure::new(of("reads"), reads, ""),
            Figure::new(of("blocking reads"), blocking_reads, ""),
        ])
    }

    /// A job with one pod per node, each node with room for one; measured until all intents exist.
    pub async fn gang(&self, count: usize) -> anyhow::Result<Vec<Figure>> {
        let nodes = self.nodes(count, 1).await?;
        let mut farm = self.idle_farm("bench-a").await?;
        let before = farm.requests().await?;
        let clock = IndexClock::sampled(self.store.clone(), Duration::from_millis(1)).await?;
        let one = document(vec![task("main", count, json!(["sleep", "3600"]))], json!({}));
        let op = Op::Set { key: key::job(&job(0)), value: one.into(), flags: 0 };
        let start = Instant::now();
        fleet::write_all(&self.store, vec![op]).await?;
        let give_up = start + PATIENCE;
        while fleet::intents(&self.store).await? < count {
            if Instant::now() > give_up {
                bail!("{} of {count} intents", fleet::intents(&self.store).await?);
            }
            sleep(QUIET).await;
        }
        let intents = self.store.list(&key::intents(), Query::PLAIN).await?.value;
        let last = intents.iter().map(|entry| entry.create_index).max().unwrap_or_default();
        let last = clock.when(last)?.duration_since(start).as_secs_f64();
        let after = farm.requests().await?;
        drop(clock);
        farm.stop().await?;
        nodes.stop().await?;
        fleet::wipe(&self.store).await?;
        let sent = sent(&after, "transaction") - sent(&before, "transaction");
        let bare = raw::one_after_the_other(&self.store, 30, sent as usize).await?;
        let of = |what: &str| format!("gang of {count} pods on {count} nodes: {what}");
        Ok(vec![
            Figure::new(of("from submit to all intents"), last, "s").at_most(0.5),
            Figure::new(of("transactions of the farm"), sent, ""),
            Figure::new(of("as many of 64 operations, no farm"), bare.as_secs_f64(), "s"),
        ])
    }

    /// Two farms; the owner of a job of 200 pods is killed when its restart has begun.
    pub async fn gang_kill(&self) -> anyhow::Result<Vec<Figure>> {
        const PODS: usize = 200;
        let mut nodes = self.nodes(PODS, 1).await?;
        let mut farms = vec![self.idle_farm("bench-a").await?, self.idle_farm("bench-b").await?];
        sleep(Duration::from_secs(3)).await;
        let policies = json!([{"event": "PodFailed", "action": "RestartJob"}]);
        let fails = task("fails", 1, json!(["fail-when", PODS.to_string()]));
        let tasks = vec![task("main", PODS - 1, json!(["sleep", "3600"])), fails];
        let more = json!({"policies": policies, "restartDelay": {"first": "2s", "longest": "10s"}});
        let op = Op::Set { key: key::job(&job(0)), value: document(tasks, more).into(), flags: 0 };
        fleet::write_all(&self.store, vec![op]).await?;
        let give_up = Instant::now() + PATIENCE;
        let status = loop {
            let status = self.status(&job(0)).await?;
            if status.state.phase == JobPhase::Restarting {
                break status;
            }
            if Instant::now() > give_up {
                bail!("no restart begins: {:?}", status.state);
            }
            sleep(Duration::from_millis(1)).await;
        };
        let owner = status.owner.context("nobody owns it")?.farm;
        let at = usize::from(owner.as_str() == "bench-b");
        let start = Instant::now();
        farms.remove(at).kill().await?;
        let left = fleet::intents(&self.store).await?;
        let after = loop {
            let status = self.status(&job(0)).await?;
            let running = usize::try_from(status.members.running)?;
            if status.state.phase == JobPhase::Running && running == PODS {
                break status;
            }
            if Instant::now() > give_up {
                bail!("it does not run again: {:?} {:?}", status.state, status.members);
            }
            sleep(Duration::from_millis(50)).await;
        };
        let took = start.elapsed().as_secs_f64();
        let seen = nodes.seen().await?;
        let labelled = fleet::pods(&self.store).await?.len();
        for farm in farms {
            farm.stop().await?;
        }
        nodes.stop().await?;
        let not_twice = seen.starts.values().filter(|starts| **starts != 2).count();
        let duplicates =
            seen.doubled.len() + seen.repeated.len() + not_twice + labelled.abs_diff(PODS);
        let other = after.owner.is_some_and(|new| new.farm != owner);
        let of = |what: &str| format!("owner killed in a restart of {PODS} pods: {what}");
        let attempts = f64::from(after.retry_count) + after.version as f64;
        Ok(vec![
            Figure::new(of("pods not yet removed then"), left as f64, ""),
            Figure::new(of("the other farm owns it"), f64::from(u8::from(other)), "").at_least(1.0),
            Figure::new(of("retries and attempts counted, beyond one each"), attempts - 2.0, "")
                .at_most(0.0),
            Figure::new(
                of("pods not started exactly once per attempt, or twice there"),
                duplicates as f64,
                "",
            )
            .at_most(0.0),
            Figure::new(of("until all run again"), took, "s"),
        ])
    }
}
