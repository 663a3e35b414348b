//! Faults on a real cluster of Consul servers: injection, recording and verdict.
//!
//! Three servers, and three farms (the built program), each connected to its own server; two users change records by
//! CAS. Two sequences of faults run concurrently, in an order that a seed decides ([`chaos`]). Servers are killed,
//! restarted and frozen, one or two at a time. Farms are killed, stopped, frozen beyond the TTL of their check, and
//! lose their sessions. The seed does not decide the timing.
//!
//! # What is proved
//!
//! A watch skips intermediate states, so no recorder sees all writes. The proof uses what Consul keeps of each write:
//!
//! - *No lost update.* Each write of a user has an audit record in the same transaction. At the end every acknowledged
//!   write is in the log at the acknowledged index, and no failed one is. The applied writes of a key form a chain:
//!   each replaced the version that its user had read, and the last one is in Consul.
//! - *Atomicity.* Each recorded version of a pod's labels and intent has the ModifyIndex of an audit record of that
//!   pod.
//! - *The record guard.* Each change by a farm has the count that the record requested at that index. No change is made
//!   for a disabled or deleted record.
//! - *Ownership* (invariant 1). A lock with ModifyIndex `m` in an answer that is true at index `t` was held by its
//!   session from `m` to `t`. Each change by a farm within such a span was made by that holder. The recorder reads
//!   consistently, at least every 500 ms, so nearly all changes are within a span; the summary counts them. Each
//!   start of a farm has its own name.
//! - *The chain.* Revisions of a status only grow.
//! - *Audit equality* (invariant 15). `rcfarm audit verify` finds no difference, and at most one record per change.
//! - *Liveness* (invariant 27). After the faults every enabled controller gets its pods.
//!
//! # What is not
//!
//! - Two sessions of one start of a farm: a write under the old session that is applied while the same process holds
//!   the lock under a new session would pass. The contract suite and the simulator cover this.
//! - Changes whose holder was not recorded; they are only counted.
//! - Network partitions: packets to a frozen server wait in the kernel and are answered later. The simulator covers
//!   lost packets and one-way partitions.

pub mod chaos;
pub mod cluster;
pub mod farms;
pub mod history;
pub mod load;
pub mod verdict;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcfarm_api::Stored;
use rcfarm_api::audit::{AuditRecord, Logged};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_node::simulated;
use rcfarm_store::time::{IdSource, SystemClock};
use rcfarm_store::{Entry, Prefix, Query, Store};
use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::program::Program;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use chaos::Injected;
use cluster::Cluster;
use farms::Farms;
use history::Recorder;
use load::{Journal, User};
use verdict::{Rest, Verdict, judge, unrest};

/// Longer than any step on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

const USERS: usize = 2;

/// Settings of a run.
pub struct Run {
    /// Decides the order of the faults.
    pub seed: u64,
    /// Minimum duration of the faults.
    pub length: Duration,
    /// Minimum counts before the faults end.
    pub floors: Floors,
    /// Maximum duration of the faults.
    pub at_most: Duration,
    /// Path of the built program.
    pub rcfarm: PathBuf,
    /// Directory for data and logs.
    pub scratch: PathBuf,
}

/// Minimum counts of a run; 0 by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Floors {
    /// Different faults.
    pub faults: usize,
    /// Applied writes of users.
    pub applied: usize,
    /// Transitions in the audit log.
    pub transitions: usize,
    /// Versions of pod keys.
    pub pods: usize,
    /// Transitions and statuses with a recorded holder.
    pub holder_seen: usize,
}

impl Floors {
    pub fn are_reached(&self, injected: &Injected, verdict: &Verdict) -> bool {
        injected.len() >= self.faults
            && verdict.applied >= self.applied
            && verdict.transitions >= self.transitions
            && verdict.pods >= self.pods
            && verdict.holder_seen >= self.holder_seen
    }
}

/// Result of a run.
pub struct Report {
    /// Injected faults.
    pub injected: Injected,
    pub verdict: Verdict,
    /// Number of recorded answers.
    pub samples: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = &self.verdict;
        let faults: Vec<String> = self.injected.iter().map(|(n, c)| format!("{c} {n}")).collect();
        writeln!(f, "faults: {} ({})", self.injected.values().sum::<usize>(), faults.join(", "))?;
        writeln!(
            f,
            "users' writes: {} acknowledged, {} refused or failed, {} unknown (of which {} applied)",
            v.applied, v.not_applied, v.unknown, v.unknown_applied
        )?;
        writeln!(
            f,
            "checked: {} transitions, {} statuses (the holder was seen for {} of both), {} versions of pods' \
             keys, {} samples",
            v.transitions, v.statuses, v.holder_seen, v.pods, self.samples
        )?;
        write!(f, "violations: {}", v.violations.len())
    }
}

impl Run {
    /// Executes the run. Panics if the test environment fails; violations by farms are in the verdict.
    pub async fn make(&self) -> Report {
        let ids = IdSource::from_seed(self.seed);
        let mut cluster = Cluster::start(&self.scratch).await;
        let stores = cluster.stores.clone();
        let farm = |server: &ConsulServer| {
            Program::new(&self.rcfarm, &server.http().to_string(), &self.scratch)
        };
        let programs: Vec<Program> = cluster.servers.iter().map(farm).collect();
        let journal = Journal::default();
        let user = |n: usize| User::new(n, stores.clone(), ids.fork(), journal.clone());
        let mut first = user(USERS);
        first.make_nodes().await;

        let recorder = Recorder::start(&stores);
        let mut farms = Farms::start(&self.scratch, &programs);
        let (stop, mut users) = (CancellationToken::new(), JoinSet::new());
        for n in 0..USERS {
            users.spawn(user(n).work(stop.clone()));
        }
        let nodes =
            simulated::run(stores[0].clone(), Arc::new(SystemClock), |_| true, stop.clone());
        let nodes = tokio::spawn(nodes);

        let (injected, over) = (Mutex::default(), CancellationToken::new());
        let (server_ids, farm_ids) = (ids.fork(), ids.fork());
        let tried = async || {
            let so_far = Rest { audit: some_log(&stores).await, ..Rest::default() };
            let writes = journal.lock().unwrap().clone();
            self.floors.are_reached(
                &injected.lock().unwrap(),
                &judge(&recorder.so_far(), &writes, &so_far),
            )
        };
        let ((), mut wrong, ()) = tokio::join!(
            chaos::of_servers(&mut cluster, &server_ids, &injected, &over),
            chaos::of_farms(&mut farms, &stores, &farm_ids, &injected, &over),
            async {
                let start = Instant::now();
                sleep(self.length).await;
                while start.elapsed() < self.at_most && !tried().await {
                    sleep(Duration::from_secs(1)).await;
                }
                over.cancel();
            },
        );

        stop.cancel();
        while let Some(ended) = users.join_next().await {
            ended.expect("a user panicked");
        }
        let start = Instant::now();
        while first.tidy_up().await.is_err() {
            assert!(start.elapsed() < PATIENCE, "the cluster does not recover");
            sleep(Duration::from_millis(200)).await;
        }
        come_to_rest(stores[0].as_ref()).await;
        for n in 0..farms.len() {
            if !farms.stop(n).await {
                wrong.push(format!("farm {} was told to stop and failed", farms.name(n)));
            }
        }
        let history = recorder.stop().await;
        nodes.await.expect("the nodes panicked");

        let store = stores[0].as_ref();
        let writes = journal.lock().unwrap().clone();
        let mut verdict = judge(&history, &writes, &at_rest(store).await);
        verdict.violations.extend(wrong);
        let left = locks_left(store).await;
        verdict.violations.extend(left.iter().map(|lock| format!("{}: left behind", lock.key)));
        let verified = programs[0].run(&["audit", "verify"]).await;
        if verified.code != 0 {
            verdict.violations.push(format!("audit verify: {verified:?}"));
        }
        let injected = injected.into_inner().unwrap();
        Report { injected, verdict, samples: history.samples }
    }
}

/// Waits until all controllers are as desired. The verdict reports those that are not.
async fn come_to_rest(store: &dyn Store) {
    let rest = async {
        let mut quiet = 0;
        // Twice, because a change between two reads could look like rest.
        while quiet < 2 {
            sleep(Duration::from_millis(250)).await;
            let labels = list(store, &key::labels(LabelKind::Pod)).await;
            let statuses = list(store, &key::rc_statuses()).await;
            let restless = unrest(&of_users(store).await, &labels, &statuses);
            quiet = if restless.is_empty() { quiet + 1 } else { 0 };
        }
    };
    let _ = timeout(PATIENCE, rest).await;
}

/// Locks left after all farms have ended. A farm killed together with its server leaves its locks until its session's
/// TTL has passed, twice at most.
async fn locks_left(store: &dyn Store) -> Vec<Entry> {
    let start = Instant::now();
    loop {
        let locks = list(store, &key::rc_locks()).await;
        if locks.is_empty() || start.elapsed() > PATIENCE {
            return locks;
        }
        sleep(Duration::from_millis(250)).await;
    }
}

async fn of_users(store: &dyn Store) -> Vec<Entry> {
    let mut entries = list(store, &key::rcs()).await;
    entries.extend(list(store, &key::labels(LabelKind::ReplicationController)).await);
    entries.extend(list(store, &key::labels(LabelKind::Node)).await);
    entries
}

async fn at_rest(store: &dyn Store) -> Rest {
    let log = list(store, &key::audit_logs()).await;
    let length = log.len();
    let mut audit: Vec<Logged> = log.into_iter().filter_map(logged).collect();
    assert_eq!(audit.len(), length, "only audit records stand in the log");
    audit.sort_by_key(|logged| (logged.index, logged.id));
    Rest {
        of_users: of_users(store).await,
        labels: list(store, &key::labels(LabelKind::Pod)).await,
        intents: list(store, &key::intents()).await,
        statuses: list(store, &key::rc_statuses()).await,
        audit,
    }
}

fn logged(entry: Entry) -> Option<Logged> {
    let id = key::audit_logs().tail(&entry.key)?.parse().ok()?;
    let record = AuditRecord::decode(&entry.value).ok()?;
    Some(Logged { id, index: entry.create_index, record })
}

/// Audit log from the first server that answers.
async fn some_log(stores: &[Arc<dyn Store>]) -> Vec<Logged> {
    let logs = key::audit_logs();
    for store in stores {
        let asked = store.list(&logs, Query::PLAIN);
        if let Ok(Ok(answer)) = timeout(Duration::from_secs(2), asked).await {
            return answer.value.into_iter().filter_map(logged).collect();
        }
    }
    Vec::new()
}

async fn list(store: &dyn Store, prefix: &Prefix) -> Vec<Entry> {
    let start = Instant::now();
    loop {
        match store.list(prefix, Query::CONSISTENT).await {
            Ok(answer) => return answer.value,
            Err(error) => assert!(start.elapsed() < PATIENCE, "the cluster is whole, but: {error}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}
