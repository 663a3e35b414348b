//! The rows about CronJobs and JobFlows.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rcfarm_api::flow::FlowStatus;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::key;
use rcfarm_api::{Index, Stored};
use rcfarm_store::{Entry, Op, Prefix, Query, Reader as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::clock::IndexClock;
use crate::farm::FarmProcess;
use crate::fleet;
use crate::machine;
use crate::raw;
use crate::report::Figure;
use crate::rows::{Bench, PATIENCE, QUIET, sent, total};

/// Each record is looked at again after 300 to 450 s: the window of a measurement is to have that.
const UNTIL_RESYNC: Duration = Duration::from_secs(300);
/// Limit for a flow.
const FLOW_PATIENCE: Duration = Duration::from_secs(1_200);

/// What a farm uses at rest.
struct AtRest {
    requests: f64,
    cpu: f64,
    rss: f64,
}

fn job_spec() -> Value {
    json!({"queue": "default", "tasks": [{"name": "main", "replicas": 1,
        "template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "main", "command": ["true"], "resources": {"requests": {"cpu": "1"}}}]}}}]})
}

/// Entries by the last segment of their keys.
async fn by_name(bench: &Bench, prefix: &Prefix) -> anyhow::Result<BTreeMap<String, Entry>> {
    let listed = bench.store.list(prefix, Query::PLAIN).await?.value;
    let name = |entry: &Entry| entry.key.rsplit('/').next().unwrap_or_default().to_owned();
    Ok(listed.into_iter().map(|entry| (name(&entry), entry)).collect())
}

impl Bench {
    async fn at_rest(&self, farm: &mut FarmProcess) -> anyhow::Result<AtRest> {
        let before = (total(&farm.requests().await?), machine::cpu(farm.pid()?)?);
        let start = Instant::now();
        sleep(Duration::from_secs(self.idle)).await;
        let (requests, seconds) = (total(&farm.requests().await?), start.elapsed().as_secs_f64());
        let cpu = (machine::cpu(farm.pid()?)? - before.1).as_secs_f64();
        Ok(AtRest {
            requests: (requests - before.0) as f64 / seconds,
            cpu: 100.0 * cpu / seconds,
            rss: machine::memory(farm.pid()?)?.0,
        })
    }

    /// What `count` CronJobs that are due once a year cost at rest.
    pub async fn cron_idle(&self, count: usize) -> anyhow::Result<Vec<Figure>> {
        fleet::make_nodes(&self.store, 200).await?;
        fleet::make_sentinel(&self.store).await?;
        let mut farm = self.idle_farm("bench-a").await?;
        sleep(Duration::from_secs(10)).await;
        let none = self.at_rest(&mut farm).await?;
        let document = json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "CronJob",
            "spec": {"schedule": "0 0 1 1 *", "timeZone": "Europe/Berlin",
                "jobTemplate": {"spec": job_spec()}}});
        let one = bytes::Bytes::from(document.to_string());
        let op = |n: usize| {
            let id: Namespaced = format!("default/cron-{n:05}").parse()?;
            Ok(Op::Set { key: key::cron_job(&id), value: one.clone(), flags: 0 })
        };
        let ops: anyhow::Result<Vec<Op>> = (0..count).map(op).collect();
        let start = Instant::now();
        fleet::write_all(&self.store, ops?).await?;
        let statuses = key::cron_job_statuses();
        loop {
            farm.must_run()?;
            let keys = self.store.keys(&statuses, None, Query::PLAIN).await?.value;
            let there = keys.iter().filter(|key| !statuses.is_sentinel(key)).count();
            if there >= count {
                break;
            }
            if start.elapsed() > PATIENCE * 2 {
                bail!("{there} of {count} CronJobs have a status");
            }
            sleep(Duration::from_secs(1)).await;
        }
        let claimed = start.elapsed().as_secs_f64();
        sleep(UNTIL_RESYNC).await;
        let many = self.at_rest(&mut farm).await?;
        let (_, most) = machine::memory(farm.pid()?)?;
        farm.stop().await?;
        let of = |what: &str| format!("{count} CronJobs at rest: {what}");
        Ok(vec![
            Figure::new(of("requests a second, more than none"), many.requests - none.requests, "")
                .at_most(1.0),
            Figure::new(of("processor, more than none"), many.cpu - none.cpu, "% of a core")
                .at_most(1.0),
            Figure::new(of("RSS, more than none"), many.rss - none.rss, "MiB").at_most(47.7),
            Figure::new(of("requests a second, none"), none.requests, ""),
            Figure::new(of("processor, none"), none.cpu, "% of a core"),
            Figure::new(of("RSS, none"), none.rss, "MiB"),
            Figure::new(of("RSS, most"), most, "MiB"),
            Figure::new(of("until all have a status"), claimed, "s"),
        ])
    }

    /// A flow of `layers` times `width` steps, each of which waits for all of the layer before it.
    pub async fn flow(&self, layers: usize, width: usize) -> anyhow::Result<Vec<Figure>> {
        let nodes = self.nodes(100, 32).await?;
        let mut farm = self.idle_farm("bench-a").await?;
        let template = json!({"apiVersion": "flow.volcano.sh/v1alpha1", "kind": "JobTemplate",
            "spec": job_spec()});
        let id: Namespaced = "default/bench".parse()?;
        let steps = (0..layers * width).map(|n| {
            let mut step = json!({"name": step(n / width, n % width), "template": "bench"});
            if n >= width {
                let before: Vec<String> =
                    (0..width).map(|m| self::step(n / width - 1, m)).collect();
                step["dependsOn"] = json!({"targets": before});
            }
            step
        });
        let flow = json!({"apiVersion": "flow.volcano.sh/v1alpha1", "kind": "JobFlow",
            "spec": {"flows": steps.collect::<Vec<_>>()}});
        let ended = IndexClock::blocking(self.store.clone(), key::job_statuses()).await?;
        let made = IndexClock::blocking(self.store.clone(), key::jobs()).await?;
        let before = (farm.requests().await?, machine::cpu(farm.pid()?)?, self.consul_cpu()?);
        let start = Instant::now();
        for (key, value) in [(key::job_template(&id), template), (key::job_flow(&id), flow)] {
            let op = Op::Set { key, value: value.to_string().into(), flags: 0 };
            fleet::write_all(&self.store, vec![op]).await?;
        }
        let status = loop {
            farm.must_run()?;
            let entry = self.store.get(&key::job_flow_status(&id), Query::PLAIN).await?.value;
            let status = entry.map(|entry| FlowStatus::decode(&entry.value)).transpose()?;
            let status = status.unwrap_or_default();
            if status.completion_time.is_some() {
                break status;
            }
            if start.elapsed() > FLOW_PATIENCE {
                bail!("it is not over: {} {}", status.reason, status.message);
            }
            sleep(QUIET * 4).await;
        };
        let took = start.elapsed().as_secs_f64();
        let cpu = (machine::cpu(farm.pid()?)? - before.1).as_secs_f64();
        let consul = (self.consul_cpu()? - before.2).as_secs_f64();
        let requests = farm.requests().await?;
        let (_, most) = machine::memory(farm.pid()?)?;
        let jobs = by_name(self, &key::jobs()).await?;
        let statuses = by_name(self, &key::job_statuses()).await?;
        let mut overheads = Vec::new();
        for layer in 1..layers {
            let index = |n: usize| {
                let name = format!("bench-{}", step(layer - 1, n));
                statuses.get(&name).map(|entry| entry.modify_index).context("no status")
            };
            let indexes: anyhow::Result<Vec<Index>> = (0..width).map(index).collect();
            let ready = ended.when(indexes?.into_iter().max().unwrap_or_default())?;
            for n in 0..width {
                let job = jobs.get(&format!("bench-{}", step(layer, n))).context("no job")?;
                overheads.push(made.when(job.create_index)?.saturating_duration_since(ready));
            }
        }
        drop((ended, made));
        farm.stop().await?;
        nodes.stop().await?;
        fleet::wipe(&self.store).await?;
        let bare = raw::one_after_the_other(&self.store, width, 100).await?.as_secs_f64() * 10.0;
        overheads.sort();
        let at = |share: f64| {
            let n = ((overheads.len() - 1) as f64 * share).round() as usize;
            overheads[n].as_secs_f64() * 1e3
        };
        let steps = (layers * width) as f64;
        let used = |kind: &str| (sent(&requests, kind) - sent(&before.0, kind)) / steps;
        let of = |what: &str| format!("flow of {steps} steps, {width} wide: {what}");
        Ok(vec![
            Figure::new(of("overhead per step, p50"), at(0.5), "ms"),
            Figure::new(of("overhead per step, p99"), at(0.99), "ms").at_most(50.0),
            Figure::new(of("a bare transaction of as many pods"), bare, "ms"),
            Figure::new(of("steps completed"), status.completed_jobs.len() as f64, "")
                .at_least(steps),
            Figure::new(of("from submit to its end"), took, "s"),
            Figure::new(
                of("transactions of the flow, per step"),
                status.revision as f64 / steps,
                "",
            ),
            Figure::new(of("transactions of the farm, per step"), used("transaction"), ""),
            Figure::new(of("reads, per step"), used("read"), ""),
            Figure::new(of("blocking reads, per step"), used("blocking_read"), ""),
            Figure::new(of("processor, farm, per step"), 1e3 * cpu / steps, "ms"),
            Figure::new(of("processor, Consul, per step"), 1e3 * consul / steps, "ms"),
            Figure::new(of("RSS, most"), most, "MiB"),
        ])
    }
}

/// The name of a step.
fn step(layer: usize, n: usize) -> String {
    format!("s{layer}-{n}")
}
