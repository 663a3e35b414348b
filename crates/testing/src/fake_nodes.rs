//! Nodes without agents and processes. They report intended pods as running, and as ended when the test says so.
//!
//! Keys read: `intent/`. Keys written: `reality/<node>/<pod>`, `status/pods/<pod>/<node>`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rcfarm_api::Stored;
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::node::status::{LastExit, NodePodPhase, PodStatus, ProcessStatus};
use rcfarm_api::pod_group::pod_ids::without_hash;
use rcfarm_store::time::Clock;
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{Entry, Op, Reader, Store, StoreError, TxnLimits};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How fast the nodes are.
#[derive(Debug, Clone, Copy)]
pub struct NodeTimes {
    /// Interval at which they act on the intents that they have read.
    pub acts_every: Duration,
    /// Pause between two reads of all intents, which take Consul long when there are thousands.
    pub between_reads: Duration,
}

impl NodeTimes {
    /// Short enough that a test in virtual time sees each change at once.
    const TESTS: NodeTimes =
        NodeTimes { acts_every: Duration::from_millis(100), between_reads: Duration::ZERO };
}

/// Transactions that are sent at once.
const CONCURRENT_TXNS: usize = 8;

/// A pod to be reported, with the input for its exit code.
#[derive(Debug)]
pub struct FakePod<'a> {
    pub id: &'a PodId,
    /// `<job>-<task>-<index>` of a job's pod, otherwise the id.
    pub name: &'a str,
    /// The command of its first container or launchable.
    pub command: &'a [String],
    /// Attempt of the member (`job.attempt` in the manifest).
    pub attempt: u64,
    /// Attempt of the whole job (`job.version` in the manifest).
    pub version: u64,
    /// How many pods of its job are reported as real, on all nodes.
    pub of_job: usize,
    /// Whether it was not reported before: its start and its end are then one transaction.
    pub is_new: bool,
}

/// Exit code of a pod that has ended, `None` while it runs.
pub type ExitCode = Box<dyn Fn(&FakePod<'_>) -> Option<i32> + Send + Sync>;

/// Starts by fake nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartLog {
    /// Number of starts by [`FakePod::name`].
    pub starts: BTreeMap<String, usize>,
    /// Pods that were real on two nodes at once.
    pub doubled: BTreeSet<String>,
    /// Attempts of a member that were started twice.
    pub repeated: BTreeSet<String>,
}

/// Fake nodes that run in a task, aborted when dropped.
pub struct FakeNodes {
    log: Arc<Mutex<StartLog>>,
    task: JoinHandle<()>,
}

impl FakeNodes {
    /// Starts all nodes for which pods are intended.
    pub fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>, exit_code: ExitCode) -> FakeNodes {
        let log = Arc::new(Mutex::default());
        let run = run(store, clock, exit_code, log.clone(), NodeTimes::TESTS);
        let task = tokio::spawn(async {
            let Err(error) = run.await;
            panic!("the fake nodes cannot go on: {error}");
        });
        FakeNodes { log, task }
    }

    /// Number of starts by [`FakePod::name`].
    ///
    /// # Panics
    /// When an attempt was started twice.
    #[must_use]
    pub fn starts(&self) -> BTreeMap<String, usize> {
        let log = lock(&self.log);
        assert_eq!(log.repeated, BTreeSet::new(), "attempts that were started twice");
        log.starts.clone()
    }
}

impl Drop for FakeNodes {
    fn drop(&mut self) {
        self.task.abort();
        if !std::thread::panicking() {
            let _ = self.starts();
        }
    }
}

fn name_of(id: &PodId) -> &str {
    without_hash(id).unwrap_or(id.as_str())
}

fn lock(log: &Mutex<StartLog>) -> MutexGuard<'_, StartLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the nodes until a request fails.
///
/// # Errors
/// Those of the store.
pub async fn run(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    exit_code: ExitCode,
    log: Arc<Mutex<StartLog>>,
    times: NodeTimes,
) -> Result<std::convert::Infallible, StoreError> {
    let reader: Arc<dyn Reader> = store.clone();
    let mut tree = TreeWatch::new(reader, key::intents(), Duration::from_secs(300));
    let (send, mut intents) = watch::channel(Ok(Vec::new()));
    // Ends with this future, which holds the only receiver.
    tokio::spawn(async move {
        loop {
            let read = tree.next().await.map(|answer| answer.value);
            if send.send(read).is_err() {
                return;
            }
            if !times.between_reads.is_zero() {
                tokio::time::sleep(times.between_reads).await;
            }
        }
    });
    let mut pods = Pods::default();
    loop {
        tokio::time::sleep(times.acts_every).await;
        let mut ops = Vec::new();
        if intents.has_changed().unwrap_or(false) || pods.is_behind {
            let intended = intents.borrow_and_update().clone()?;
            ops = pods.follow(&intended, &exit_code, clock.wall(), &mut lock(&log));
        }
        ops.extend(pods.ends(&exit_code, clock.wall()));
        let even = TxnLimits::default().ops / 2 * 2;
        let batches: Vec<Vec<Op>> = ops.chunks(even).map(<[Op]>::to_vec).collect();
        stream::iter(batches)
            .map(|batch| {
                let store = store.clone();
                async move { store.txn(&batch).await.map(drop) }
            })
            .buffer_unordered(CONCURRENT_TXNS)
            .try_collect::<()>()
            .await?;
    }
}

/// The pods that are reported as real.
#[derive(Default)]
struct Pods {
    real: BTreeMap<(NodeName, PodId), RealPod>,
    /// How many of them belong to each job.
    of_job: BTreeMap<String, usize>,
    /// Number of nodes of each.
    nodes: BTreeMap<PodId, usize>,
    /// Attempts that were started.
    attempts: BTreeSet<String>,
    /// Pods were removed whose replacements are to be started.
    is_behind: bool,
}

struct RealPod {
    manifest: Bytes,
    command: Vec<String>,
    job: Value,
    ended: bool,
}

impl RealPod {
    fn new(manifest: Bytes) -> RealPod {
        let document: Value = serde_json::from_slice(&manifest).unwrap_or_default();
        let first = document["launchables"].as_object().and_then(|all| all.values().next());
        let command = first.and_then(|one| serde_json::from_value(one["command"].clone()).ok());
        let (command, job) = (command.unwrap_or_default(), document["job"].clone());
        RealPod { manifest, command, job, ended: false }
    }

    fn job_id(&self) -> String {
        self.job["id"].to_string()
    }

    fn view<'a>(&'a self, id: &'a PodId, of_job: usize, is_new: bool) -> FakePod<'a> {
        let number = |field: &str| self.job[field].as_u64().unwrap_or(0);
        let (attempt, version) = (number("attempt"), number("version"));
        FakePod { id, name: name_of(id), command: &self.command, attempt, version, of_job, is_new }
    }
}

impl Pods {
    /// Stops pods that are not intended any more, and starts new ones. A pod with a new manifest is stopped in one
    /// period and started in the next.
    fn follow(
        &mut self,
        intended: &[Entry],
        exit_code: &ExitCode,
        now: Timestamp,
        log: &mut StartLog,
    ) -> Vec<Op> {
        let place = |entry: &Entry| key::node_and_pod(&key::intents(), &entry.key);
        let intended: BTreeMap<(NodeName, PodId), &Bytes> =
            intended.iter().filter_map(|entry| Some((place(entry)?, &entry.value))).collect();
        let is_stale = |place: &(NodeName, PodId), pod: &RealPod| {
            intended.get(place).is_none_or(|manifest| **manifest != pod.manifest)
        };
        let stale: Vec<_> = self.real.extract_if(.., |place, pod| is_stale(place, pod)).collect();
        let mut ops = Vec::new();
        let mut stopped = BTreeSet::new();
        for ((node, pod), old) in stale {
            ops.push(Op::Delete { key: key::reality(&node, &pod) });
            ops.push(Op::Delete { key: key::pod_status(&pod, &node) });
            if let Some(count) = self.of_job.get_mut(&old.job_id()) {
                *count -= 1;
            }
            if let Some(count) = self.nodes.get_mut(&pod) {
                *count -= 1;
            }
            stopped.insert((node, pod));
        }
        self.is_behind = stopped.iter().any(|place| intended.contains_key(place));
        for (place, manifest) in intended {
            if self.real.contains_key(&place) || stopped.contains(&place) {
                continue;
            }
            ops.extend(self.start(place, manifest.clone(), exit_code, now, log));
        }
        ops
    }

    fn start(
        &mut self,
        place: (NodeName, PodId),
        manifest: Bytes,
        exit_code: &ExitCode,
        now: Timestamp,
        log: &mut StartLog,
    ) -> [Op; 2] {
        let mut pod = RealPod::new(manifest);
        let id = &place.1;
        *log.starts.entry(name_of(id).to_owned()).or_default() += 1;
        if !pod.job.is_null() && !self.attempts.insert(pod.job.to_string()) {
            log.repeated.insert(pod.job.to_string());
        }
        let nodes = self.nodes.entry(id.clone()).or_default();
        *nodes += 1;
        if *nodes > 1 {
            log.doubled.insert(id.to_string());
        }
        let of_job = self.of_job.entry(pod.job_id()).or_default();
        *of_job += 1;
        let code = exit_code(&pod.view(id, *of_job, true));
        pod.ended = code.is_some();
        let ops = report(&place.0, id, &pod.manifest, code, now);
        self.real.insert(place, pod);
        ops
    }

    /// Reports the pods that have ended since.
    fn ends(&mut self, exit_code: &ExitCode, now: Timestamp) -> Vec<Op> {
        let mut ops = Vec::new();
        for ((node, id), pod) in self.real.iter_mut().filter(|(_, pod)| !pod.ended) {
            let of_job = self.of_job.get(&pod.job_id()).copied().unwrap_or(0);
            if let Some(code) = exit_code(&pod.view(id, of_job, false)) {
                pod.ended = true;
                ops.extend(report(node, id, &pod.manifest, Some(code), now));
            }
        }
        ops
    }
}

/// The operations of an agent's report: the manifest as reality, and a status that is running, or ended with a code.
#[must_use]
pub fn report(
    node: &NodeName,
    pod: &PodId,
    manifest: &Bytes,
    exit_code: Option<i32>,
    now: Timestamp,
) -> [Op; 2] {
    let phase = if exit_code.is_some() { NodePodPhase::Ended } else { NodePodPhase::Running };
    let last_exit =
        exit_code.map(|exit_code| LastExit { time: now, exit_code, exit_status: 0, reason: None });
    let process = ProcessStatus {
        launchable_id: "main".to_owned(),
        phase,
        last_exit,
        started_at: Some(now),
        ..ProcessStatus::default()
    };
    let status = PodStatus {
        status: "launched".to_owned(),
        phase,
        processes: vec![process],
        ..PodStatus::default()
    };
    [
        Op::Set { key: key::reality(node, pod), value: manifest.clone(), flags: 0 },
        Op::Set { key: key::pod_status(pod, node), value: status.encode(), flags: 0 },
    ]
}
