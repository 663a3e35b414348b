//! What a farm counts and measures while it runs, for `/metrics`. Nothing here is written to Consul.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use rcfarm_api::ids::RecordId;
use rcfarm_store::time::monotonic;

/// Upper bounds of the buckets of what the farm does, in seconds.
const SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Upper bounds of the buckets of what waits for nodes, in seconds: up to a day.
const WAITS: [f64; 12] =
    [0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0];

/// How many queues have waits of their own. Those that come after them share the label [`OTHER_QUEUES`], since a
/// histogram stays after its queue is deleted.
const QUEUES_MEASURED: usize = 100;

/// Label of the queues beyond [`QUEUES_MEASURED`]. No queue has such a name.
const OTHER_QUEUES: &str = "_other";

/// Label of a kind of record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfKind {
    pub kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    kind: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    kind: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCount {
    kind: String,
    count: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct OfOneQueue {
    queue: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCache {
    tree: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQueue {
    queue: String,
    phase: &'static str,
}

/// How a reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileOutcome {
    Done,
    /// Consul failed, or its answer was not as new as required.
    Retried,
    /// The record failed, or its controller panicked.
    Failed,
    ClaimLost,
}

impl ReconcileOutcome {
    /// All of them.
    #[cfg(test)]
    pub const ALL: [ReconcileOutcome; 4] = {
        use ReconcileOutcome::{ClaimLost, Done, Failed, Retried};
        [Done, Retried, Failed, ClaimLost]
    };

    fn name(self) -> &'static str {
        match self {
            ReconcileOutcome::Done => "done",
            ReconcileOutcome::Retried => "retried",
            ReconcileOutcome::Failed => "failed",
            ReconcileOutcome::ClaimLost => "claim_lost",
        }
    }
}

/// How a transaction of a controller ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    Applied,
    /// Somebody else had changed what it required.
    Conflict,
    ClaimLost,
    /// The request failed and was not applied.
    Failed,
    /// The request failed, and its status tells whether it was applied.
    Unknown,
}

impl CommitOutcome {
    /// All of them.
    #[cfg(test)]
    pub const ALL: [CommitOutcome; 5] = {
        use CommitOutcome::{Applied, ClaimLost, Conflict, Failed, Unknown};
        [Applied, Conflict, ClaimLost, Failed, Unknown]
    };

    fn name(self) -> &'static str {
        match self {
            CommitOutcome::Applied => "applied",
            CommitOutcome::Conflict => "conflict",
            CommitOutcome::ClaimLost => "claim_lost",
            CommitOutcome::Failed => "failed",
            CommitOutcome::Unknown => "unknown",
        }
    }
}

/// What the status of a record says, as gauges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordGauges {
    /// Its state or phase in a word: `AsDesired`, `Running`.
    pub state: String,
    pub is_quarantined: bool,
    /// How many pods are wanted and how many have a node, of kinds whose controllers place them.
    pub placement: Option<(u64, u64)>,
    /// Numbers of its pods, by what is counted: `desired`, `healthy`.
    pub pods: Vec<(&'static str, u64)>,
}

/// Groups of a queue, by phase.
pub type QueueDepths = BTreeMap<String, Vec<(&'static str, u64)>>;

/// Counters, histograms and gauges of one farm. Records are in the gauges as long as the farm owns them, so the sum over
/// all farms covers each record once.
#[derive(Debug)]
pub struct FarmMetrics {
    reconcile_seconds: Family<OfKind, Histogram>,
    reconciles: Family<OfOutcome, Counter>,
    commit_seconds: Family<OfKind, Histogram>,
    commits: Family<OfOutcome, Counter>,
    records: Mutex<BTreeMap<(&'static str, RecordId), RecordGauges>>,
    /// Depths of the queues of each scheduler record, and since when the oldest group waits in each.
    queues: Mutex<QueuesOfSchedulers>,
    placement_seconds: Family<OfKind, Histogram>,
    queue_wait_seconds: Family<OfOneQueue, Histogram>,
    /// Queues that have a histogram of their own.
    measured: Mutex<BTreeSet<OfOneQueue>>,
    watch_lag_seconds: Family<OfCache, Histogram>,
}

/// By kind and id of the scheduler record.
type QueuesOfSchedulers = BTreeMap<(&'static str, RecordId), (QueueDepths, OldestWaits)>;

/// Since when the group waits that has waited longest, by queue.
pub type OldestWaits = BTreeMap<String, Instant>;

impl Default for FarmMetrics {
    fn default() -> Self {
        let seconds = || Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> _);
        let waits = (|| Histogram::new(WAITS)) as fn() -> _;
        FarmMetrics {
            reconcile_seconds: seconds(),
            reconciles: Family::default(),
            commit_seconds: seconds(),
            commits: Family::default(),
            records: Mutex::default(),
            queues: Mutex::default(),
            placement_seconds: Family::new_with_constructor(waits),
            queue_wait_seconds: Family::new_with_constructor(waits),
            measured: Mutex::default(),
            watch_lag_seconds: Family::new_with_constructor(
                (|| Histogram::new(SECONDS)) as fn() -> _,
            ),
        }
    }
}

impl FarmMetrics {
    /// Registers everything, with the gauges as they are now.
    pub fn register(&self, registry: &mut Registry) {
        let help =
            "Duration of a reconcile of one record; of kind scheduler, of a pass over all groups";
        let seconds = self.reconcile_seconds.clone();
        registry.register_with_unit("reconcile", help, Unit::Seconds, seconds);
        let help = "Reconciles by outcome";
        registry.register("reconciles", help, self.reconciles.clone());
        let help = "Duration of a transaction of a controller, waits for other requests included";
        let seconds = self.commit_seconds.clone();
        registry.register_with_unit("commit", help, Unit::Seconds, seconds);
        let help =
            "Transactions of controllers by outcome; conflict: others changed what it required";
        registry.register("commits", help, self.commits.clone());
        self.register_records(registry);
        self.register_queues(registry);
        let help = "Time from when pods were wanted until all had a node";
        let seconds = self.placement_seconds.clone();
        registry.register_with_unit("placement", help, Unit::Seconds, seconds);
        let help = "Time from a commit of this farm until its cache of the tree showed it";
        let seconds = self.watch_lag_seconds.clone();
        registry.register_with_unit("watch_lag", help, Unit::Seconds, seconds);
    }

    fn register_queues(&self, registry: &mut Registry) {
        let groups = Family::<OfQueue, Gauge>::default();
        let oldest = Family::<OfOneQueue, Gauge<f64, AtomicU64>>::default();
        for (depths, since) in lock(&self.queues).values() {
            for (queue, depths) in depths {
                for (phase, count) in depths {
                    let of = OfQueue { queue: queue.clone(), phase };
                    groups.get_or_create(&of).set(signed(*count));
                }
                let wait = since.get(queue).map_or(Duration::ZERO, |since| monotonic() - *since);
                let of = OfOneQueue { queue: queue.clone() };
                oldest.get_or_create(&of).set(wait.as_secs_f64());
            }
        }
        let help = "PodGroups of a queue by phase, from the farm that owns the scheduler record";
        registry.register("queue_groups", help, groups);
        let help = "How long the group waits that has waited longest for its queue; 0: none waits";
        registry.register_with_unit("queue_oldest_wait", help, Unit::Seconds, oldest);
        let help = "Time that groups waited until their queue admitted them";
        let seconds = self.queue_wait_seconds.clone();
        registry.register_with_unit("queue_wait", help, Unit::Seconds, seconds);
    }

    /// The cache of a tree shows a commit of this farm so long after its answer.
    pub fn caught_up(&self, tree: &str, lag: Duration) {
        let of = OfCache { tree: tree.to_owned() };
        self.watch_lag_seconds.get_or_create(&of).observe(lag.as_secs_f64());
    }

    fn queue(&self, name: &str) -> OfOneQueue {
        let of = OfOneQueue { queue: name.to_owned() };
        let mut measured = lock(&self.measured);
        if measured.len() < QUEUES_MEASURED {
            measured.insert(of.clone());
        }
        if measured.contains(&of) { of } else { OfOneQueue { queue: OTHER_QUEUES.to_owned() } }
    }

    fn register_records(&self, registry: &mut Registry) {
        let (states, pods) =
            (Family::<OfState, Gauge>::default(), Family::<OfCount, Gauge>::default());
        let quarantined = Family::<OfKind, Gauge>::default();
        for ((kind, _), gauges) in &*lock(&self.records) {
            let kind = (*kind).to_owned();
            let of = OfState { kind: kind.clone(), state: gauges.state.clone() };
            states.get_or_create(&of).inc();
            for (count, number) in &gauges.pods {
                let of = OfCount { kind: kind.clone(), count };
                pods.get_or_create(&of).inc_by(signed(*number));
            }
            let of = OfKind { kind };
            quarantined.get_or_create(&of).inc_by(i64::from(gauges.is_quarantined));
        }
        registry.register("records", "Records owned by this farm, by state or phase", states);
        let help =
            "Records owned by this farm that are left alone for a while because they kept failing";
        registry.register("records_quarantined", help, quarantined);
        registry.register("pods", "Pods of the records owned by this farm", pods);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The metrics of one claimed record. The last clone's end takes the record out of the gauges.
#[derive(Debug)]
pub struct RecordMetrics {
    farm: Arc<FarmMetrics>,
    kind: &'static str,
    id: RecordId,
    placing: Mutex<PlacingTimes>,
}

/// Since when a record lacks pods, as far as this farm has seen it.
#[derive(Debug, Default)]
struct PlacingTimes {
    /// When the reconcile under way began.
    begun: Option<Instant>,
    /// When the reconcile began that first found pods missing.
    since: Option<Instant>,
    /// Pods that had a node.
    placed: u64,
}

impl PlacingTimes {
    /// Takes in how many pods are wanted and have a node. Returns how long all of them were waited for, once they have
    /// one.
    fn seen(&mut self, (wanted, placed): (u64, u64), now: Instant) -> Option<Duration> {
        let begun = self.begun.unwrap_or(now);
        let is_more = placed > std::mem::replace(&mut self.placed, placed);
        if placed < wanted {
            self.since.get_or_insert(begun);
            return None;
        }
        let since = self.since.take().or(is_more.then_some(begun))?;
        Some(now - since)
    }
}

impl RecordMetrics {
    pub fn new(farm: Arc<FarmMetrics>, kind: &'static str, id: RecordId) -> Arc<Self> {
        Arc::new(RecordMetrics { farm, kind, id, placing: Mutex::default() })
    }

    /// A reconcile begins.
    pub fn begins(&self, at: Instant) {
        lock(&self.placing).begun = Some(at);
    }

    /// All pods of something have a node, so long after they were wanted.
    pub fn placed(&self, kind: &'static str, wait: Duration) {
        let of = OfKind { kind: kind.to_owned() };
        self.farm.placement_seconds.get_or_create(&of).observe(wait.as_secs_f64());
    }

    /// A queue admitted a group that had waited so long.
    pub fn admitted(&self, queue: &str, wait: Duration) {
        let of = self.farm.queue(queue);
        self.farm.queue_wait_seconds.get_or_create(&of).observe(wait.as_secs_f64());
    }

    /// Counts a reconcile that took so long.
    pub fn reconciled(&self, outcome: ReconcileOutcome, took: Duration) {
        let (kind, outcome) = (self.kind.to_owned(), outcome.name());
        self.farm.reconciles.get_or_create(&OfOutcome { kind: kind.clone(), outcome }).inc();
        self.farm.reconcile_seconds.get_or_create(&OfKind { kind }).observe(took.as_secs_f64());
    }

    /// Counts a transaction that took so long, waits for other requests included.
    pub fn committed(&self, outcome: CommitOutcome, took: Duration) {
        let (kind, outcome) = (self.kind.to_owned(), outcome.name());
        self.farm.commits.get_or_create(&OfOutcome { kind: kind.clone(), outcome }).inc();
        self.farm.commit_seconds.get_or_create(&OfKind { kind }).observe(took.as_secs_f64());
    }

    /// The record's status was read or written.
    pub fn shows(&self, gauges: RecordGauges) {
        let mut placing = lock(&self.placing);
        match gauges.placement {
            Some(placement) => {
                if let Some(wait) = placing.seen(placement, monotonic()) {
                    self.placed(self.kind, wait);
                }
            }
            None => placing.since = None,
        }
        drop(placing);
        lock(&self.farm.records).insert((self.kind, self.id.clone()), gauges);
    }

    /// Replaces the depths of the queues of this scheduler record, and their oldest waits.
    pub fn shows_queues(&self, depths: QueueDepths, oldest: OldestWaits) {
        lock(&self.farm.queues).insert((self.kind, self.id.clone()), (depths, oldest));
    }
}

impl Drop for RecordMetrics {
    fn drop(&mut self) {
        let record = (self.kind, self.id.clone());
        lock(&self.farm.records).remove(&record);
        lock(&self.farm.queues).remove(&record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposition(metrics: &FarmMetrics) -> String {
        let mut registry = Registry::with_prefix("rcfarm");
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn gauges_sum_up_the_records_that_are_owned() {
        let metrics = Arc::new(FarmMetrics::default());
        let record = |name: &str| RecordMetrics::new(metrics.clone(), "rc", name.into());
        let (first, second) = (record("a"), record("b"));
        let pods = |desired, healthy| vec![("desired", desired), ("healthy", healthy)];
        let state = "AsDesired".to_owned();
        first.shows(RecordGauges {
            state: state.clone(),
            is_quarantined: true,
            pods: pods(3, 2),
            ..RecordGauges::default()
        });
        second.shows(RecordGauges { state, pods: pods(4, 4), ..RecordGauges::default() });
        first.reconciled(ReconcileOutcome::Done, Duration::from_millis(20));
        first.committed(CommitOutcome::Conflict, Duration::from_millis(3));
        let since = monotonic() - Duration::from_secs(90);
        let depths = ["q", "empty"].map(|queue| (queue.to_owned(), vec![("Pending", 9)]));
        first.shows_queues(depths.into(), [("q".to_owned(), since)].into());
        first.admitted("q", Duration::from_secs(2));
        first.placed("pod_group", Duration::from_secs(2));
        metrics.caught_up("labels/pod", Duration::from_millis(2));
        let text = exposition(&metrics);
        for line in [
            "rcfarm_records{kind=\"rc\",state=\"AsDesired\"} 2",
            "rcfarm_records_quarantined{kind=\"rc\"} 1",
            "rcfarm_pods{kind=\"rc\",count=\"healthy\"} 6",
            "rcfarm_reconciles_total{kind=\"rc\",outcome=\"done\"} 1",
            "rcfarm_reconcile_seconds_bucket{le=\"0.025\",kind=\"rc\"} 1",
            "rcfarm_commits_total{kind=\"rc\",outcome=\"conflict\"} 1",
            "rcfarm_commit_seconds_count{kind=\"rc\"} 1",
            "rcfarm_queue_groups{queue=\"q\",phase=\"Pending\"} 9",
            "rcfarm_queue_oldest_wait_seconds{queue=\"empty\"} 0.0",
            "rcfarm_queue_wait_seconds_bucket{le=\"1.0\",queue=\"q\"} 0",
            "rcfarm_queue_wait_seconds_bucket{le=\"5.0\",queue=\"q\"} 1",
            "rcfarm_placement_seconds_count{kind=\"pod_group\"} 1",
            "rcfarm_watch_lag_seconds_bucket{le=\"0.005\",tree=\"labels/pod\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        let oldest = text.lines().find_map(|line| {
            line.strip_prefix("rcfarm_queue_oldest_wait_seconds{queue=\"q\"} ")?.parse::<f64>().ok()
        });
        assert!(oldest.is_some_and(|seconds| seconds >= 90.0), "{text}");
        drop(first);
        let text = exposition(&metrics);
        assert!(text.contains("rcfarm_pods{kind=\"rc\",count=\"desired\"} 4\n"), "{text}");
        assert!(!text.contains("rcfarm_queue_groups{"), "another farm has the record now: {text}");
    }

    #[test]
    fn queues_beyond_the_limit_share_one_label() {
        let metrics = Arc::new(FarmMetrics::default());
        let record = RecordMetrics::new(metrics.clone(), "scheduler", "default".into());
        for round in 1..=2 {
            for n in 0..QUEUES_MEASURED + 7 {
                record.admitted(&format!("q{n}"), Duration::from_secs(1));
            }
            let text = exposition(&metrics);
            let count = |queue: &str| {
                let name = format!("rcfarm_queue_wait_seconds_count{{queue=\"{queue}\"}} ");
                text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<usize>().ok())
            };
            assert_eq!((count("q0"), count(OTHER_QUEUES)), (Some(round), Some(7 * round)));
            let series = text.lines().filter(|line| line.contains("queue_wait_seconds_count"));
            assert_eq!(series.count(), QUEUES_MEASURED + 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn placement_is_timed_from_the_reconcile_that_found_pods_missing() {
        let start = monotonic();
        let at = |second| start + Duration::from_secs(second);
        let mut times = PlacingTimes { begun: Some(at(1)), ..PlacingTimes::default() };
        // All at once, then nothing new.
        assert_eq!(times.seen((3, 3), at(2)), Some(Duration::from_secs(1)));
        assert_eq!(times.seen((3, 3), at(3)), None);
        // Fewer are wanted.
        assert_eq!(times.seen((2, 2), at(4)), None);
        // In parts, over several reconciles.
        times.begun = Some(at(10));
        assert_eq!(times.seen((4, 3), at(11)), None);
        times.begun = Some(at(20));
        assert_eq!(times.seen((4, 4), at(21)), Some(Duration::from_secs(11)));
        // A pod is lost with its node and replaced.
        times.begun = Some(at(30));
        assert_eq!(times.seen((4, 3), at(30)), None);
        assert_eq!(times.seen((4, 4), at(32)), Some(Duration::from_secs(2)));
    }
}
