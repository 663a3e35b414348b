//! Pods that were given to one node after another, because each went down. Pure.
//!
//! A node that goes down soon after it was given a pod may have gone down because of it. A pod that has taken
//! [`MOST_NODES`] nodes in a row down is set aside: it is given to no other node for 10 minutes, then for twice as long
//! each time, up to a day.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::NodeName;
use crate::{Timestamp, backoff};

/// After this many nodes in a row a pod is set aside.
pub const MOST_NODES: u32 = 3;
/// A node that was given the pod longer ago did not go down because of it.
const SOON: Duration = Duration::from_secs(300);
/// First time for which a pod is set aside; doubled each time.
const FIRST: Duration = Duration::from_secs(600);
/// Longest time for which a pod is set aside.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);
/// Limit of entries in a status.
pub const MOST_CARRIED: usize = 64;
/// Number of nodes that are remembered of one pod.
const MOST_NAMED: usize = 4;

/// A pod whose last nodes went down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// From when it may be, or has been, on its present node.
    pub since: Timestamp,
    /// Number of nodes in a row that went down soon after they were given it.
    pub times: u32,
    /// The last of these, the newest last.
    pub nodes: Vec<NodeName>,
}

impl Carried {
    /// The pod after `node`, which had it, has gone down. `before`: as it was given to `node`.
    #[must_use]
    pub fn from_node(before: Option<&Carried>, node: &NodeName, now: Timestamp) -> Carried {
        let Some(before) = before.filter(|before| before.is_recent(now)) else {
            return Carried { since: now, times: 1, nodes: vec![node.clone()] };
        };
        let mut nodes = before.nodes.clone();
        nodes.push(node.clone());
        nodes.drain(..nodes.len().saturating_sub(MOST_NAMED));
        Carried {
            since: before.goes_on_at().max(now),
            times: before.times.saturating_add(1),
            nodes,
        }
    }

    /// When the pod is given to another node, at the earliest, if its present one goes down.
    #[must_use]
    pub fn goes_on_at(&self) -> Timestamp {
        let Some(beyond) = self.times.checked_add(1).and_then(|n| n.checked_sub(MOST_NODES)) else {
            return self.since;
        };
        self.since.checked_add(backoff(FIRST, LONGEST, beyond)).unwrap_or(Timestamp::MAX)
    }

    /// Whether the pod, whose present node is down, is set aside at `now`.
    #[must_use]
    pub fn is_set_aside(&self, now: Timestamp) -> bool {
        self.is_recent(now) && now < self.goes_on_at()
    }

    /// Whether a node that goes down now counts as one in a row. A time that lies too far ahead was written by a wrong
    /// clock.
    #[must_use]
    pub fn is_recent(&self, now: Timestamp) -> bool {
        let after = |at: Timestamp, pause| at.checked_add(pause).unwrap_or(Timestamp::MAX);
        now < after(self.goes_on_at(), SOON) && self.since < after(now, LONGEST * 2)
    }
}

/// Keeps the [`MOST_CARRIED`] entries with the most nodes, the newest of them.
pub fn keep_most<T>(all: &mut Vec<T>, of: impl Fn(&T) -> &Carried) {
    if all.len() > MOST_CARRIED {
        all.sort_by_key(|one| {
            let Carried { times, since, .. } = of(one);
            std::cmp::Reverse((*times, *since))
        });
        all.truncate(MOST_CARRIED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u32) -> NodeName {
        format!("n{n}").parse().unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn pod_that_takes_nodes_down_is_set_aside_after_three_for_ever_longer() {
        let first = Carried::from_node(None, &node(0), at(30));
        assert!(!first.is_set_aside(at(60)), "one node");
        let second = Carried::from_node(Some(&first), &node(1), at(60));
        assert_eq!((second.since, second.times), (at(60), 2));
        // On the third node since 60 s.
        assert!(second.is_set_aside(at(61)) && second.is_set_aside(at(659)));
        assert!(!second.is_set_aside(at(660)));
        let third = Carried::from_node(Some(&second), &node(2), at(90));
        assert_eq!((third.since, third.times), (at(660), 3), "not before its time");
        assert_eq!(third.nodes, [node(0), node(1), node(2)]);
        let mut carried = third;
        let mut pauses = Vec::new();
        for n in 3..12 {
            let next = Carried::from_node(Some(&carried), &node(n), carried.since);
            pauses.push(next.since.duration_since(carried.since).as_secs() / 60);
            carried = next;
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1280, 1440, 1440]);
        assert_eq!(carried.nodes, [node(8), node(9), node(10), node(11)]);
    }

    #[test]
    fn node_that_goes_down_long_after_it_was_given_the_pod_is_the_first() {
        let two = Carried { since: at(0), times: 1, nodes: vec![node(0)] };
        assert_eq!(Carried::from_node(Some(&two), &node(1), at(299)).times, 2);
        assert_eq!(Carried::from_node(Some(&two), &node(1), at(300)).times, 1);
        // The pause of one that was set aside does not count.
        let three = Carried { since: at(0), times: 2, nodes: vec![node(0), node(1)] };
        assert_eq!(Carried::from_node(Some(&three), &node(2), at(899)).times, 3);
        assert_eq!(Carried::from_node(Some(&three), &node(2), at(900)).times, 1);
        let by_a_wrong_clock = Carried { since: at(1_000_000), ..three };
        assert!(!by_a_wrong_clock.is_set_aside(at(0)));
        assert_eq!(Carried::from_node(Some(&by_a_wrong_clock), &node(2), at(0)).times, 1);
    }
}
