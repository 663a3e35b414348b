//! Nodes that fail to start pods. Pure.
//!
//! A failed start is held against a node if pods of the same manifest failed on no other node, and run on another one.
//! Otherwise the manifest is at fault. A node at which several such manifests failed becomes suspect, each time for
//! longer; not while pods of more other records are well there: it starts pods, so their manifests are at fault.
//!
//! The state is in memory. After a restart, or on another farm, it starts empty.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use rcfarm_api::backoff;
use rcfarm_api::ids::NodeName;

/// A node becomes suspect when manifests of this many records, which run elsewhere, failed there within [`WINDOW`].
const RECORDS: usize = 2;
/// Time after which a failure is forgotten.
const WINDOW: Duration = Duration::from_secs(600);
/// How long a node is suspect at first; doubled each time.
const FIRST: Duration = Duration::from_secs(60);
/// Longest time for which a node is suspect. After as long without failures it starts from [`FIRST`] again.
const LONGEST: Duration = Duration::from_secs(3_600);

/// What nodes are to start: a manifest of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordManifest {
    /// Any name that identifies the record.
    pub record: String,
    /// Hash of the manifest; 0 for all pods of a job, whose manifests differ.
    pub hash: u64,
}

/// Suspicion of one node.
#[derive(Debug, Clone, Default)]
struct NodeFailures {
    until: Option<Instant>,
    times: u32,
}

#[derive(Debug, Clone, Default)]
struct ManifestFailures {
    /// Nodes where it failed, and when last.
    nodes: BTreeMap<NodeName, Instant>,
    /// It was seen to run on a node where it did not fail.
    runs_elsewhere: bool,
}

/// Failures to start pods, by node and manifest.
#[derive(Debug, Clone, Default)]
pub struct NodeFailureTracker {
    nodes: BTreeMap<NodeName, NodeFailures>,
    manifests: BTreeMap<RecordManifest, ManifestFailures>,
}

impl NodeFailureTracker {
    /// Notes that a node cannot start a pod. Follow it with [`NodeFailureTracker::runs`] for the nodes where pods of the
    /// same manifest run. `well` returns the number of records with passing pods on a node. Returns for how long the node
    /// is suspect, if that begins now.
    pub fn failed(
        &mut self,
        node: &NodeName,
        manifest: &RecordManifest,
        well: impl FnOnce(&NodeName) -> usize,
        now: Instant,
    ) -> Option<Duration> {
        self.manifests.retain(|_, failures| {
            failures.nodes.retain(|_, at| now < *at + WINDOW);
            !failures.nodes.is_empty()
        });
        let failures = self.manifests.entry(manifest.clone()).or_default();
        failures.nodes.insert(node.clone(), now);
        self.judge(node, well, now)
    }

    /// Notes that a pod runs on a node. `well` as for [`NodeFailureTracker::failed`]. Returns a node that becomes suspect
    /// by that, and for how long.
    pub fn runs(
        &mut self,
        node: &NodeName,
        manifest: &RecordManifest,
        well: impl FnOnce(&NodeName) -> usize,
        now: Instant,
    ) -> Option<(NodeName, Duration)> {
        let failures = self.manifests.get_mut(manifest)?;
        // Where it failed it has started after all.
        failures.nodes.remove(node);
        failures.runs_elsewhere = true;
        let failed = failures.nodes.keys().next()?.clone();
        let pause = self.judge(&failed, well, now)?;
        Some((failed, pause))
    }

    /// Whether pods of the record failed to start lately.
    pub fn knows(&self, record: &str) -> bool {
        let first = RecordManifest { record: record.to_owned(), hash: 0 };
        self.manifests.range(first..).next().is_some_and(|(of, _)| of.record == record)
    }

    /// Makes a node suspect if enough speaks against it.
    fn judge(
        &mut self,
        node: &NodeName,
        well: impl FnOnce(&NodeName) -> usize,
        now: Instant,
    ) -> Option<Duration> {
        let failures = self.nodes.entry(node.clone()).or_default();
        if failures.until.is_some_and(|until| now >= until + LONGEST) {
            *failures = NodeFailures::default();
        }
        // A node that was suspect before becomes suspect again with the next failure.
        let enough = if failures.times == 0 { RECORDS } else { 1 };
        // Failures from before the node became suspect no longer count.
        let since = failures.until;
        let blames_node = |failed: &ManifestFailures| {
            failed.runs_elsewhere
                && failed.nodes.len() == 1
                && failed
                    .nodes
                    .get(node)
                    .is_some_and(|at| now < *at + WINDOW && since.is_none_or(|since| *at >= since))
        };
        if failures.until.is_some_and(|until| now < until) {
            return None;
        }
        let blaming = self.manifests.iter().filter(|(_, failed)| blames_node(failed));
        let records: BTreeSet<&str> = blaming.map(|(of, _)| of.record.as_str()).collect();
        if records.len() < enough || well(node) > records.len() {
            return None;
        }
        let pause = backoff(FIRST, LONGEST, failures.times);
        failures.times = failures.times.saturating_add(1);
        failures.until = Some(now + pause);
        Some(pause)
    }

    /// Whether a node is suspect.
    pub fn is_suspect(&self, node: &NodeName, now: Instant) -> bool {
        self.nodes.get(node).and_then(|failures| failures.until).is_some_and(|until| now < until)
    }

    /// Suspect nodes, and until when.
    pub fn suspects(&self, now: Instant) -> impl Iterator<Item = (&NodeName, Instant)> {
        let until = |(node, failures): (_, &NodeFailures)| Some((node, failures.until?));
        self.nodes.iter().filter_map(until).filter(move |(_, until)| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_store::time::monotonic;

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn manifest(record: &str, hash: u64) -> RecordManifest {
        RecordManifest { record: record.to_owned(), hash }
    }

    #[test]
    fn node_that_fails_what_runs_elsewhere_is_suspect_ever_longer() {
        let (n1, n2, n3) = (node("n1"), node("n2"), node("n3"));
        let (mut tracker, start) = (NodeFailureTracker::default(), monotonic());
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut fails_on = |at: &NodeName, record: &str, then: u64| {
            let began = tracker.failed(at, &manifest(record, 1), |_| 0, after(then));
            assert_eq!(began, None, "not known to run elsewhere");
            (tracker.runs(&n3, &manifest(record, 1), |_| 0, after(then)), tracker.clone())
        };
        for n in 0..100 {
            assert_eq!(fails_on(&n1, "r1", n).0, None, "always the same manifest");
        }
        assert_eq!(fails_on(&n2, "r3", 100).0, None, "another node");
        assert_eq!(fails_on(&n1, "r4", 800).0, None, "the other is long ago");
        let (began, mut tracker) = fails_on(&n1, "r5", 802);
        assert_eq!(began, Some((n1.clone(), FIRST)));
        assert!(tracker.is_suspect(&n1, after(861)) && !tracker.is_suspect(&n2, after(861)));
        assert_eq!(tracker.suspects(after(861)).collect::<Vec<_>>(), [(&n1, after(862))]);
        assert_eq!(tracker.suspects(after(862)).count(), 0);
        let r7 = manifest("r7", 1);
        assert_eq!(tracker.failed(&n1, &r7, |_| 0, after(861)), None);
        assert_eq!(tracker.runs(&n3, &r7, |_| 0, after(861)), None, "it is suspect already");
        // One failure is enough from then on.
        let r8 = manifest("r8", 1);
        assert_eq!(tracker.failed(&n1, &r8, |_| 0, after(900)), None);
        assert_eq!(tracker.runs(&n3, &r8, |_| 0, after(901)), Some((n1.clone(), FIRST * 2)));
        let long = after(901) + FIRST * 2 + LONGEST;
        assert_eq!(tracker.failed(&n1, &r8, |_| 0, long), None);
        assert_eq!(tracker.runs(&n3, &r8, |_| 0, long), None, "it did well for long");
    }

    #[test]
    fn manifests_that_run_nowhere_take_no_node_with_them() {
        let (mut tracker, now) = (NodeFailureTracker::default(), monotonic());
        for record in 0..100 {
            let broken = manifest(&format!("bad-{record}"), 7);
            assert_eq!(tracker.failed(&node("n1"), &broken, |_| 0, now), None);
        }
        // An older version of theirs runs.
        for record in 0..100 {
            let older = manifest(&format!("bad-{record}"), 6);
            assert_eq!(tracker.runs(&node("n2"), &older, |_| 0, now), None);
        }
        assert_eq!(tracker.suspects(now).count(), 0);
        assert!(tracker.knows("bad-7") && !tracker.knows("bad-") && !tracker.knows("bad-777"));
    }

    #[test]
    fn manifests_that_fail_on_several_nodes_are_blamed_before_them() {
        let (mut tracker, now) = (NodeFailureTracker::default(), monotonic());
        for n in 0..5 {
            for record in 0..5 {
                let flaky = manifest(&format!("flaky-{record}"), 7);
                tracker.failed(&node(&format!("n{n}")), &flaky, |_| 0, now);
                let began = tracker.runs(&node("good"), &flaky, |_| 0, now);
                assert!(began.is_none() || n == 0, "{began:?}");
            }
        }
        assert_eq!(tracker.suspects(now).map(|(n, _)| n.as_str()).collect::<Vec<_>>(), ["n0"]);
    }

    #[test]
    fn node_where_more_records_are_well_than_fail_is_not_suspect() {
        let now = monotonic();
        let suspects = |failing: usize, well: usize| {
            let mut tracker = NodeFailureTracker::default();
            for record in 0..failing {
                // Two versions of a record are one record.
                for hash in 1..=2 {
                    let broken = manifest(&format!("bad-{record}"), hash);
                    tracker.failed(&node("n0"), &broken, |_| well, now);
                    tracker.runs(&node("n1"), &broken, |_| well, now);
                }
            }
            tracker.suspects(now).count()
        };
        assert_eq!(suspects(1, 0), 0);
        assert_eq!(suspects(2, 2), 1);
        assert_eq!(suspects(2, 3), 0);
        assert_eq!(suspects(2, 5), 0);
        assert_eq!(suspects(6, 5), 1);
    }

    #[test]
    fn start_that_succeeds_at_last_is_no_failure() {
        let (mut tracker, now) = (NodeFailureTracker::default(), monotonic());
        for record in ["r1", "r2", "r3"] {
            tracker.failed(&node("n1"), &manifest(record, 1), |_| 0, now);
            tracker.runs(&node("n1"), &manifest(record, 1), |_| 0, now);
            assert_eq!(tracker.runs(&node("n2"), &manifest(record, 1), |_| 0, now), None);
        }
        assert_eq!(tracker.suspects(now).count(), 0);
    }
}
