//! What a farm counts and measures while it runs, for `/metrics`. Nothing here is written to Consul.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use rcfarm_api::ids::RecordId;

/// Upper bounds of the buckets of all histograms, in seconds.
const SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

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
    /// Depths of the queues of each scheduler record.
    queues: Mutex<BTreeMap<(&'static str, RecordId), QueueDepths>>,
}

impl Default for FarmMetrics {
    fn default() -> Self {
        let seconds = || Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> _);
        FarmMetrics {
            reconcile_seconds: seconds(),
            reconciles: Family::default(),
            commit_seconds: seconds(),
            commits: Family::default(),
            records: Mutex::default(),
            queues: Mutex::default(),
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
        let groups = Family::<OfQueue, Gauge>::default();
        for (queue, depths) in lock(&self.queues).values().flatten() {
            for (phase, count) in depths {
                let of = OfQueue { queue: queue.clone(), phase };
                groups.get_or_create(&of).set(signed(*count));
            }
        }
        let help = "PodGroups of a queue by phase, from the farm that owns the scheduler record";
        registry.register("queue_groups", help, groups);
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
}

impl RecordMetrics {
    pub fn new(farm: Arc<FarmMetrics>, kind: &'static str, id: RecordId) -> Arc<Self> {
        Arc::new(RecordMetrics { farm, kind, id })
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
        lock(&self.farm.records).insert((self.kind, self.id.clone()), gauges);
    }

    /// Replaces the depths of the queues of this scheduler record.
    pub fn shows_queues(&self, depths: QueueDepths) {
        lock(&self.farm.queues).insert((self.kind, self.id.clone()), depths);
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
        first.shows(RecordGauges { state: state.clone(), is_quarantined: true, pods: pods(3, 2) });
        second.shows(RecordGauges { state, is_quarantined: false, pods: pods(4, 4) });
        first.reconciled(ReconcileOutcome::Done, Duration::from_millis(20));
        first.committed(CommitOutcome::Conflict, Duration::from_millis(3));
        first.shows_queues([("q".to_owned(), vec![("Pending", 9)])].into());
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
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        drop(first);
        let text = exposition(&metrics);
        assert!(text.contains("rcfarm_pods{kind=\"rc\",count=\"desired\"} 4\n"), "{text}");
        assert!(!text.contains("rcfarm_queue_groups{"), "another farm has the record now: {text}");
    }
}
