//! Nodes that fail to start pods. Pure.
//!
//! A failed start is held against a node if the record's pods failed on no other node; otherwise the record is at fault.
//! A node at which pods of several such records failed becomes suspect, each time for longer.
//!
//! The state is in memory. After a restart, or on another farm, it starts empty.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use rcfarm_api::backoff;
use rcfarm_api::ids::NodeName;

/// A node becomes suspect when pods of this many records failed there within [`WINDOW`].
const RECORDS: usize = 3;
/// Time after which a failure is forgotten.
const WINDOW: Duration = Duration::from_secs(600);
/// How long a node is suspect at first; doubled each time.
const FIRST: Duration = Duration::from_secs(60);
/// Longest time for which a node is suspect. After as long without failures it starts from [`FIRST`] again.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Suspicion of one node.
#[derive(Debug, Clone, Default)]
struct NodeFailures {
    until: Option<Instant>,
    times: u32,
}

/// Failures to start pods, by node and record.
#[derive(Debug, Clone, Default)]
pub struct NodeFailureTracker {
    nodes: BTreeMap<NodeName, NodeFailures>,
    /// Nodes where pods of each record failed, and when last.
    records: BTreeMap<String, BTreeMap<NodeName, Instant>>,
}

impl NodeFailureTracker {
    /// Notes that a node cannot start a pod of `record` (any name that identifies the record). Returns for how long the
    /// node is suspect, if that begins now.
    pub fn failed(&mut self, node: &NodeName, record: &str, now: Instant) -> Option<Duration> {
        self.records.retain(|_, failed| {
            failed.retain(|_, at| now < *at + WINDOW);
            !failed.is_empty()
        });
        let failed = self.records.entry(record.to_owned()).or_default();
        failed.insert(node.clone(), now);
        if failed.len() > 1 {
            return None;
        }
        let failures = self.nodes.entry(node.clone()).or_default();
        if failures.until.is_some_and(|until| now >= until + LONGEST) {
            *failures = NodeFailures::default();
        }
        // A node that was suspect before becomes suspect again with the next failure.
        let enough = if failures.times == 0 { RECORDS } else { 1 };
        // Failures from before the node became suspect no longer count.
        let since = failures.until;
        let only_here = |failed: &&BTreeMap<NodeName, Instant>| {
            failed.len() == 1
                && failed.get(node).is_some_and(|at| since.is_none_or(|since| *at >= since))
        };
        if failures.until.is_some_and(|until| now < until)
            || self.records.values().filter(only_here).count() < enough
        {
            return None;
        }
        let pause = backoff(FIRST, LONGEST, failures.times);
        failures.times = failures.times.saturating_add(1);
        failures.until = Some(now + pause);
        Some(pause)
    }

    /// Whether a node is suspect.
    #[must_use]
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

    #[test]
    fn failures_of_many_controllers_avoid_a_node_ever_longer() {
        let (n1, n2): (NodeName, NodeName) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let (mut failure_tracker, start) = (NodeFailureTracker::default(), monotonic());
        let after = |seconds| start + Duration::from_secs(seconds);
        for n in 0..100 {
            assert_eq!(failure_tracker.failed(&n1, "r1", after(n)), None, "always the same record");
        }
        assert_eq!(failure_tracker.failed(&n1, "r2", after(100)), None);
        assert_eq!(failure_tracker.failed(&n2, "r3", after(100)), None, "another node");
        assert_eq!(failure_tracker.failed(&n1, "r4", after(800)), None, "the others are long ago");
        assert_eq!(failure_tracker.failed(&n1, "r5", after(801)), None);
        assert_eq!(failure_tracker.failed(&n1, "r6", after(802)), Some(FIRST));
        assert!(
            failure_tracker.is_suspect(&n1, after(861))
                && !failure_tracker.is_suspect(&n2, after(861))
        );
        let suspects: Vec<_> = failure_tracker.suspects(after(861)).collect();
        assert_eq!(suspects, [(&n1, after(862))]);
        assert_eq!(failure_tracker.suspects(after(862)).count(), 0);
        assert_eq!(failure_tracker.failed(&n1, "r7", after(861)), None, "it is suspected already");
        assert!(!failure_tracker.is_suspect(&n1, after(862)));
        assert_eq!(failure_tracker.failed(&n1, "r8", after(900)), Some(FIRST * 2));
        let long = after(900) + FIRST * 2 + LONGEST;
        assert_eq!(failure_tracker.failed(&n1, "r8", long), None, "it did well for long");
    }

    #[test]
    fn records_that_start_nowhere_take_no_fleet_with_them() {
        let (mut failure_tracker, now) = (NodeFailureTracker::default(), monotonic());
        let mut suspects = 0;
        for node in 0..20 {
            let node: NodeName = format!("n{node}").parse().unwrap();
            for record in 0..5 {
                let began = failure_tracker.failed(&node, &format!("bad-{record}"), now);
                suspects += usize::from(began.is_some());
            }
        }
        assert_eq!(suspects, 1, "where they were first, they might have been the node's fault");
    }
}
