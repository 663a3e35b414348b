//! The rows of the table.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rand::RngExt as _;
use rcfarm_api::Stored;
use rcfarm_api::key;
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_consul::Consul;
use rcfarm_store::{Entry, Index, Op, Query, Reader as _};
use tokio::time::{Instant, sleep};

use crate::clock::IndexClock;
use crate::farm::{FarmProcess, Requests};
use crate::fleet::{self, Rc};
use crate::machine;
use crate::pass;
use crate::raw::{self, Echo};
use crate::report::Figure;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Row {
    /// 1,000 records of 3 replicas wait, 200 nodes; the farm starts.
    #[value(name = "cold-1000")]
    Cold1000,
    /// 10,000 records of 3 replicas wait, 2,000 nodes; the farm starts.
    #[value(name = "cold-10000")]
    Cold10000,
    /// A record is created while the farm is idle, and taken away again.
    Create,
    /// Records arrive at 20 a second, 500 are there.
    Arrivals,
    /// One replica more, 100 records are there.
    ScaleOne,
    /// From 100 replicas to 500.
    #[value(name = "scale-500")]
    Scale500,
    /// 1,000 records, and nothing happens.
    Idle,
    /// Two farms, one of them is killed.
    Kill,
    /// Two farms, one of them is told to stop.
    Term,
    /// 10,000 jobs of one pod are submitted at once; their pods end at once.
    #[value(name = "jobs-10000")]
    Jobs10000,
    /// The same with 1,000 jobs.
    #[value(name = "jobs-1000")]
    Jobs1000,
    /// An array of 10,000 tasks, 1,000 at a time; their pods end at once.
    #[value(name = "array-10000")]
    Array10000,
    /// A flow of 100 layers of ten steps, each of which waits for all of the layer before it; its pods end at once.
    #[value(name = "flow-1000")]
    Flow1000,
    /// 10,000 CronJobs that are due once a year, and none.
    CronIdle,
    /// Pods of one record are taken away by hand, 200 times, beside 5,000 pods of others.
    Deallocate,
    /// A job of 1,000 pods on 1,000 nodes.
    #[value(name = "gang-1000")]
    Gang1000,
    /// The owner of a job is killed in the middle of the restart of its gang.
    #[value(name = "gang-kill")]
    GangKill,
    /// Passes of a scheduler over 10,000 waiting groups, without Consul.
    Pass,
    /// 2,000 jobs of different sizes that fit on none of 1,000 nodes, for `--idle` seconds; others that fit come.
    Waiting,
    /// 5,000 records at rest, and 10 changes of nodes' records a second.
    NodeChanges,
}

impl Row {
    pub const ALL: [Row; 20] = [
        Row::Cold1000,
        Row::Cold10000,
        Row::Create,
        Row::Arrivals,
        Row::ScaleOne,
        Row::Scale500,
        Row::Idle,
        Row::Kill,
        Row::Term,
        Row::Jobs1000,
        Row::Jobs10000,
        Row::Array10000,
        Row::Flow1000,
        Row::CronIdle,
        Row::Deallocate,
        Row::Gang1000,
        Row::GangKill,
        Row::Pass,
        Row::Waiting,
        Row::NodeChanges,
    ];
}

/// Where the rows are measured.
pub struct Bench {
    pub store: Arc<Consul>,
    pub address: String,
    pub consul_pid: Option<u32>,
    pub logs: PathBuf,
    pub idle: u64,
}

/// Limit for a row to settle.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// A farm is done when nothing has been written for this long.
pub const QUIET: Duration = Duration::from_millis(250);
/// Sampling interval for a farm that writes thousands of transactions.
pub const SAMPLING: Duration = Duration::from_millis(5);

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

impl Bench {
    pub fn pids(&self) -> Vec<u32> {
        self.consul_pid.into_iter().collect()
    }

    pub async fn measure(&self, row: Row) -> anyhow::Result<Vec<Figure>> {
        match row {
            Row::Cold1000 => self.cold(1_000, 200).await,
            Row::Cold10000 => self.cold(10_000, 2_000).await,
            Row::Create => self.create().await,
            Row::Arrivals => self.arrivals().await,
            Row::ScaleOne => self.scale_one().await,
            Row::Scale500 => self.scale_500().await,
            Row::Idle => self.rest().await,
            Row::Kill => self.failover(true).await,
            Row::Term => self.failover(false).await,
            Row::Jobs1000 => self.jobs(1_000).await,
            Row::Jobs10000 => self.jobs(10_000).await,
            Row::Array10000 => self.array(10_000, 1_000).await,
            Row::Flow1000 => self.flow(100, 10).await,
            Row::CronIdle => self.cron_idle(10_000).await,
            Row::Deallocate => self.deallocate(200).await,
            Row::Gang1000 => self.gang(1_000).await,
            Row::GangKill => self.gang_kill().await,
            Row::Pass => pass::alone(),
            Row::Waiting => self.waiting(1_000, 2_000).await,
            Row::NodeChanges => self.node_changes().await,
        }
    }

    pub fn start(&self, name: &str) -> anyhow::Result<FarmProcess> {
        FarmProcess::start(&self.address, name, &self.logs)
    }

    /// An idle farm that has created all pods of `rcs` records with `replicas` each.
    pub async fn settled(
        &self,
        nodes: usize,
        rcs: usize,
        replicas: usize,
    ) -> anyhow::Result<(FarmProcess, Vec<Rc>)> {
        fleet::make_nodes(&self.store, nodes).await?;
        fleet::make_sentinel(&self.store).await?;
        let rcs = fleet::make_rcs(&self.store, rcs, replicas).await?;
        let farm = self.start("bench-a")?;
        self.wait_for_pods(rcs.len() * replicas).await?;
        // The caches that are read least often settle too.
        sleep(Duration::from_secs(3)).await;
        Ok((farm, rcs))
    }

    async fn wait_for_pods(&self, wanted: usize) -> anyhow::Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while fleet::intents(&self.store).await? < wanted {
            if Instant::now() > give_up {
                bail!("{} of {wanted} pods", fleet::intents(&self.store).await?);
            }
            sleep(QUIET).await;
        }
        Ok(())
    }

    async fn cold(&self, count: usize, nodes: usize) -> anyhow::Result<Vec<Figure>> {
        let raw_3 = raw::rate(&self.store, 3).await?;
        let raw_30 = raw::rate(&self.store, 30).await?;
        fleet::make_nodes(&self.store, nodes).await?;
        fleet::make_rcs(&self.store, count, 3).await?;
        let clock = IndexClock::sampled(self.store.clone(), SAMPLING).await?;
        let start = Instant::now();
        let mut farm = self.start("bench-a")?;
        let pods = loop {
            clock.still(QUIET, PATIENCE).await?;
            farm.must_run()?;
            let pods = fleet::pods(&self.store).await?;
            if pods.len() >= 3 * count {
                break pods;
            }
            if start.elapsed() > PATIENCE {
                bail!("{} of {} pods", pods.len(), 3 * count);
            }
            sleep(QUIET).await;
        };
        let last = clock.when(last_of(&pods))?.duration_since(start).as_secs_f64();
        let first = pods.iter().map(|pod| pod.create_index).min().unwrap_or_default();
        let first = clock.when(first)?.duration_since(start);
        let cpu = machine::cpu(farm.pid()?)?.as_secs_f64();
        let requests = farm.requests().await?;
        let (rss, most) = machine::memory(farm.pid()?)?;
        let connections = machine::connections(farm.pid()?)?;
        farm.stop().await?;
        let rate = count as f64 / last;
        let of = |what: &str| format!("cold start, {count} RCs × 3: {what}");
        let figures = vec![
            Figure::new(of("all scheduled"), last, "s"),
            Figure::new(of("transactions"), rate, "/s"),
            Figure::new(of("raw, 10 operations"), raw_3, "/s"),
            Figure::new(of("raw, 64 operations"), raw_30, "/s"),
            Figure::new(of("share of raw"), 100.0 * rate / raw_3, "%"),
            Figure::new(of("first pod"), ms(first), "ms"),
            Figure::new(of("RSS"), rss, "MiB"),
            Figure::new(of("RSS, most"), most, "MiB"),
            Figure::new(of("processor"), cpu, "s"),
            Figure::new(of("connections"), connections as f64, ""),
            Figure::new(of("transactions sent"), sent(&requests, "transaction"), ""),
            Figure::new(of("reads sent"), sent(&requests, "read"), ""),
            Figure::new(of("blocking reads sent"), sent(&requests, "blocking_read"), ""),
        ];
        let bars: &[(usize, f64)] = if count == 1_000 {
            &[(0, 1.5), (6, 80.0), (9, 20.0)]
        } else {
            &[(0, 12.0), (7, 300.0)]
        };
        let mut figures: Vec<Figure> = figures;
        for (at, bar) in bars {
            figures[*at] = figures[*at].clone().at_most(*bar);
        }
        if count == 1_000 {
            figures[0] = figures[0].clone().p2("52 s tuned");
            figures[4] = figures[4].clone().at_least(50.0).p2("1.5 % (N = 500)");
            figures[6] = figures[6].clone().p2("1.1 GB; tuned 176 MB");
        }
        Ok(figures)
    }

    async fn create(&self) -> anyhow::Result<Vec<Figure>> {
        let (farm, _) = self.settled(200, 1, 1).await?;
        let ours = percentiles(self.creations(true).await?);
        farm.stop().await?;
        let echo = Echo::start(self.store.clone()).await?;
        let floor = percentiles(self.creations(false).await?);
        echo.stop(&self.store).await?;
        let of = "RC created → first intent";
        let mut figures = latencies(of, ours, floor);
        figures[0] = figures[0].clone().at_most(5.0).p2("9.1 ms");
        figures[1] = figures[1].clone().at_most(10.0).p2("15.5 ms");
        Ok(figures)
    }

    /// Creates records one after the other and deletes them again. Measures the creation.
    async fn creations(&self, by_farm: bool) -> anyhow::Result<Vec<Duration>> {
        let clock = IndexClock::blocking(self.store.clone(), key::intents()).await?;
        let others = fleet::intents(&self.store).await?;
        let mut times = Vec::new();
        for n in 0..300 {
            let rc = Rc::new(1_000 + n);
            let before = clock.latest();
            let start = Instant::now();
            rc.write(&self.store, 1).await?;
            times.push(clock.beyond(before, PATIENCE).await?.duration_since(start));
            if by_farm {
                rc.write(&self.store, 0).await?;
                while fleet::intents(&self.store).await? > others {
                    sleep(Duration::from_millis(10)).await;
                }
            }
            rc.delete(&self.store).await?;
            sleep(gap(40, 80)).await;
        }
        Ok(times)
    }

    async fn arrivals(&self) -> anyhow::Result<Vec<Figure>> {
        let (farm, rcs) = self.settled(200, 500, 3).await?;
        let (ours, more) = self.arrive(10_000).await?;
        farm.stop().await?;
        for rc in more {
            rc.delete(&self.store).await?;
        }
        let echo = Echo::start(self.store.clone()).await?;
        let (floor, _) = self.arrive(20_000).await?;
        echo.stop(&self.store).await?;
        let of = format!("RCs arriving at 20/s, {} present → first intent", rcs.len());
        let mut figures = latencies(&of, percentiles(ours), percentiles(floor));
        figures[0] = figures[0].clone().p2("568 ms");
        figures[1] = figures[1].clone().at_most(50.0).p2("1125 ms");
        Ok(figures)
    }

    /// Creates records at random times, 20 a second.
    async fn arrive(&self, from: usize) -> anyhow::Result<(Vec<Duration>, Vec<Rc>)> {
        let clock = IndexClock::blocking(self.store.clone(), key::intents()).await?;
        let pods = fleet::intents(&self.store).await?;
        let mut written = Vec::new();
        for n in 0..300 {
            let u: f64 = rand::rng().random();
            sleep(Duration::from_secs_f64(-(1.0 - u).ln() / 20.0)).await;
            let (rc, store) = (Rc::new(from + n), self.store.clone());
            let start = Instant::now();
            written.push((rc, start, tokio::spawn(async move { rc.write(&store, 1).await })));
        }
        self.wait_for_pods(pods + written.len()).await?;
        let first = fleet::first_pods(&self.store).await?;
        let (mut times, mut rcs) = (Vec::new(), Vec::new());
        for (rc, start, write) in written {
            write.await??;
            let created = first.get(&rc.id).context("no pod")?;
            times.push(clock.when(*created)?.duration_since(start));
            rcs.push(rc);
        }
        Ok((times, rcs))
    }

    async fn scale_one(&self) -> anyhow::Result<Vec<Figure>> {
        let (farm, rcs) = self.settled(200, 100, 3).await?;
        let ours = percentiles(self.scalings(&rcs).await?);
        farm.stop().await?;
        let echo = Echo::start(self.store.clone()).await?;
        let floor = percentiles(self.scalings(&rcs).await?);
        echo.stop(&self.store).await?;
        let mut figures = latencies("replicas +1, 100 RCs present → intent", ours, floor);
        figures[0] = figures[0].clone().p2("16.9 ms");
        figures[1] = figures[1].clone().at_most(10.0).p2("34 ms");
        Ok(figures)
    }

    async fn scalings(&self, rcs: &[Rc]) -> anyhow::Result<Vec<Duration>> {
        let clock = IndexClock::blocking(self.store.clone(), key::intents()).await?;
        let mut times = Vec::new();
        for n in 0..300 {
            sleep(gap(40, 80)).await;
            let before = clock.latest();
            let start = Instant::now();
            rcs[n % rcs.len()].write(&self.store, 4 + n / rcs.len()).await?;
            times.push(clock.beyond(before, PATIENCE).await?.duration_since(start));
        }
        Ok(times)
    }

    async fn scale_500(&self) -> anyhow::Result<Vec<Figure>> {
        let (mut farm, rcs) = self.settled(600, 1, 100).await?;
        let clock = IndexClock::blocking(self.store.clone(), key::intents()).await?;
        let before = farm.requests().await?;
        let start = Instant::now();
        rcs[0].write(&self.store, 500).await?;
        self.wait_for_pods(500).await?;
        let last = clock.when(last_of(&fleet::pods(&self.store).await?))?.duration_since(start);
        let after = farm.requests().await?;
        farm.stop().await?;
        let used = |kind: &str| sent(&after, kind) - sent(&before, kind);
        let of = |what: &str| format!("replicas 100 → 500: {what}");
        Ok(vec![
            Figure::new(of("transactions"), used("transaction"), "")
                .at_most(16.0)
                .p2("986 requests"),
            Figure::new(of("reads besides the watches"), used("read"), "").at_most(0.0),
            Figure::new(of("last intent"), ms(last), "ms"),
        ])
    }

    async fn rest(&self) -> anyhow::Result<Vec<Figure>> {
        let (mut farm, _) = self.settled(200, 1_000, 3).await?;
        sleep(Duration::from_secs(10)).await;
        let before = (farm.requests().await?, machine::cpu(farm.pid()?)?, self.consul_cpu()?);
        let start = Instant::now();
        sleep(Duration::from_secs(self.idle)).await;
        let (requests, seconds) = (farm.requests().await?, start.elapsed().as_secs_f64());
        let cpu = (machine::cpu(farm.pid()?)? - before.1).as_secs_f64();
        let consul = (self.consul_cpu()? - before.2).as_secs_f64();
        let (rss, _) = machine::memory(farm.pid()?)?;
        let connections = machine::connections(farm.pid()?)? as f64;
        farm.stop().await?;
        let all = (total(&requests) - total(&before.0)) as f64;
        let of = |what: &str| format!("at rest, 1000 RCs: {what}");
        Ok(vec![
            Figure::new(of("requests a second"), all / seconds, "")
                .at_most(3.0)
                .p2("133 (500 RCs); tuned 0.13"),
            Figure::new(of("processor, farm"), 100.0 * cpu / seconds, "% of a core")
                .at_most(2.0)
                .p2("56 % (500 RCs)"),
            Figure::new(of("processor, Consul"), 100.0 * consul / seconds, "% of a core")
                .p2("47 % (500 RCs)"),
            Figure::new(of("connections"), connections, "").at_most(20.0),
            Figure::new(of("RSS"), rss, "MiB").at_most(80.0).p2("1.1 GB; tuned 176 MB"),
        ])
    }

    /// Nodes change their records, as agents do that restart; nobody's eligible nodes change.
    async fn node_changes(&self) -> anyhow::Result<Vec<Figure>> {
        let (farm, rcs) = self.settled(200, 5_000, 1).await?;
        let write = |n: usize| {
            let address = format!("10.{}.0.1", n / 200);
            let record = NodeRecord { address, ..NodeRecord::default() };
            let key = key::node(&fleet::node(n % 200));
            vec![Op::Set { key, value: record.encode(), flags: 0 }]
        };
        for n in 0..200 {
            fleet::write_all(&self.store, write(n)).await?;
        }
        sleep(Duration::from_secs(15)).await;
        let mut used = Vec::new();
        for is_changing in [false, true] {
            let (before, start) = (machine::cpu(farm.pid()?)?, Instant::now());
            let mut n = 200;
            while start.elapsed() < Duration::from_secs(self.idle) {
                if is_changing {
                    fleet::write_all(&self.store, write(n)).await?;
                }
                n += 1;
                sleep(Duration::from_millis(100)).await;
            }
            let cpu = (machine::cpu(farm.pid()?)? - before).as_secs_f64();
            used.push(100.0 * cpu / start.elapsed().as_secs_f64());
        }
        farm.stop().await?;
        let of = format!("{} RCs: processor, farm", rcs.len());
        Ok(vec![
            Figure::new(format!("{of}, at rest"), used[0], "% of a core"),
            Figure::new(format!("{of}, 10 node records/s"), used[1], "% of a core").at_most(5.0),
        ])
    }

    pub fn consul_cpu(&self) -> anyhow::Result<Duration> {
        self.consul_pid.map_or(Ok(Duration::ZERO), machine::cpu)
    }

    /// Two farms share 1,000 records; one ends. Measures until the other has written the last status under its own
    /// fence.
    async fn failover(&self, kill: bool) -> anyhow::Result<Vec<Figure>> {
        let (leaver, _) = self.settled(200, 1_000, 3).await?;
        let heir = self.start("bench-b")?;
        let give_up = Instant::now() + PATIENCE;
        let share = loop {
            sleep(Duration::from_secs(3)).await;
            let (share, _) = self.owned_by("bench-a").await?;
            if share <= 650 {
                break share;
            }
            if Instant::now() > give_up {
                bail!("the second farm got no share");
            }
        };
        let clock = IndexClock::sampled(self.store.clone(), SAMPLING).await?;
        let start = Instant::now();
        if kill {
            leaver.kill().await?
        } else {
            leaver.terminate()?
        }
        let last = loop {
            sleep(QUIET).await;
            clock.still(QUIET, PATIENCE).await?;
            if let (0, last) = self.owned_by("bench-a").await? {
                break last;
            }
            if Instant::now() > give_up {
                bail!("the other farm did not take over");
            }
        };
        let took = clock.when(last)?.duration_since(start).as_secs_f64();
        heir.stop().await?;
        let (name, bar, p2) = match kill {
            true => ("kill -9 of one of two farms", 3.0, "never; 34 s with writes"),
            false => ("SIGTERM to one of two farms", 0.5, "never; 33 s with writes"),
        };
        Ok(vec![
            Figure::new(format!("{name}: all its RCs acted on"), took, "s").at_most(bar).p2(p2),
            Figure::new(format!("{name}: RCs moved"), share as f64, ""),
        ])
    }

    /// Number of records whose status a farm wrote last, and the index of the last status of all.
    async fn owned_by(&self, farm: &str) -> anyhow::Result<(usize, Index)> {
        let statuses = self.store.list(&key::rc_statuses(), Query::PLAIN).await?.value;
        let owner = |entry: &Entry| {
            let status = RcStatus::decode(&entry.value).unwrap_or_default();
            status.owner.is_some_and(|owner| owner.farm.as_str() == farm)
        };
        let owned = statuses.iter().filter(|entry| owner(entry)).count();
        Ok((owned, last_of(&statuses)))
    }
}

fn gap(from: u64, to: u64) -> Duration {
    Duration::from_millis(rand::rng().random_range(from..to))
}

pub fn last_of(entries: &[Entry]) -> Index {
    entries.iter().map(|entry| entry.modify_index).max().unwrap_or_default()
}

pub fn total(requests: &Requests) -> u64 {
    requests.values().sum()
}

pub fn sent(requests: &Requests, kind: &str) -> f64 {
    requests.get(kind).copied().unwrap_or(0) as f64
}

/// A latency, the same requests without a farm, and the ratio of both.
fn latencies(of: &str, ours: (f64, f64), floor: (f64, f64)) -> Vec<Figure> {
    vec![
        Figure::new(format!("{of}, p50"), ours.0, "ms"),
        Figure::new(format!("{of}, p99"), ours.1, "ms"),
        Figure::new(format!("{of}, no farm, p50"), floor.0, "ms"),
        Figure::new(format!("{of}, no farm, p99"), floor.1, "ms"),
        Figure::new(format!("{of}, p50, times that"), ours.0 / floor.0, "×"),
        Figure::new(format!("{of}, p99, times that"), ours.1 / floor.1, "×"),
    ]
}

/// p50 and p99 in milliseconds.
fn percentiles(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort();
    let at = |share: f64| ms(times[((times.len() - 1) as f64 * share).round() as usize]);
    (at(0.5), at(0.99))
}
