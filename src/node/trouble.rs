//! Nodes on which pods of many records cannot be started: one such pod is the pod's fault, several are the node's. Pure.
//!
//! A farm keeps this in memory. Another, or the same after a restart, finds out anew, at the price of a few pods that do
//! not start.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::ids::{NodeName, PodId};
use crate::time::backoff;

/// So many pods of different ids within [`WINDOW`], and the node is suspected.
const PODS: usize = 3;
/// See [`PODS`].
const WINDOW: Duration = Duration::from_secs(600);
/// For so long at first; each time that follows is twice as long.
const FIRST: Duration = Duration::from_secs(60);
/// The longest suspicion. A node that did well for as long is as good as any.
const LONGEST: Duration = Duration::from_secs(3_600);

/// What is held against a node.
#[derive(Debug, Clone, Default)]
struct Trouble {
    pods: BTreeMap<PodId, Instant>,
    until: Option<Instant>,
    times: u32,
}

/// What is held against each node.
#[derive(Debug, Clone, Default)]
pub struct Troubles(BTreeMap<NodeName, Trouble>);

impl Troubles {
    /// A node said that it cannot start a pod. For how long it is suspected, if that begins now.
    pub fn failed(&mut self, node: &NodeName, pod: &PodId, now: Instant) -> Option<Duration> {
        let trouble = self.0.entry(node.clone()).or_default();
        if trouble.until.is_some_and(|until| now >= until + LONGEST) {
            *trouble = Trouble::default();
        }
        trouble.pods.retain(|_, at| now < *at + WINDOW);
        trouble.pods.insert(pod.clone(), now);
        // Once suspected, a node has to show that it does better: the next failure is enough.
        let enough = if trouble.times == 0 { PODS } else { 1 };
        if trouble.until.is_some_and(|until| now < until) || trouble.pods.len() < enough {
            return None;
        }
        let pause = backoff(FIRST, LONGEST, trouble.times);
        trouble.times = trouble.times.saturating_add(1);
        trouble.until = Some(now + pause);
        trouble.pods.clear();
        Some(pause)
    }

    /// Whether a node is suspected.
    #[must_use]
    pub fn is_suspect(&self, node: &NodeName, now: Instant) -> bool {
        self.0.get(node).and_then(|trouble| trouble.until).is_some_and(|until| now < until)
    }

    /// The nodes that are suspected, and until when.
    pub fn suspects(&self, now: Instant) -> impl Iterator<Item = (&NodeName, Instant)> {
        let until = |(node, trouble): (_, &Trouble)| Some((node, trouble.until?));
        self.0.iter().filter_map(until).filter(move |(_, until)| now < *until)
    }

    /// When the next suspicion ends.
    #[must_use]
    pub fn next_end(&self, now: Instant) -> Option<Instant> {
        self.0.values().filter_map(|trouble| trouble.until).filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_pods_make_a_node_suspect_for_ever_longer_and_one_does_not() {
        let (n1, n2): (NodeName, NodeName) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let pod = |n: u32| -> PodId { format!("p{n}").parse().unwrap() };
        let (mut troubles, start) = (Troubles::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        for n in 0..100 {
            assert_eq!(troubles.failed(&n1, &pod(1), after(n)), None, "always the same pod");
        }
        assert_eq!(troubles.failed(&n1, &pod(2), after(100)), None);
        assert_eq!(troubles.failed(&n2, &pod(3), after(100)), None, "another node");
        assert_eq!(troubles.failed(&n1, &pod(4), after(800)), None, "the others are long ago");
        assert_eq!(troubles.failed(&n1, &pod(5), after(801)), None);
        assert_eq!(troubles.failed(&n1, &pod(6), after(802)), Some(FIRST));
        assert!(troubles.is_suspect(&n1, after(861)) && !troubles.is_suspect(&n2, after(861)));
        let suspects: Vec<_> = troubles.suspects(after(861)).collect();
        assert_eq!(suspects, [(&n1, after(862))]);
        assert_eq!(troubles.next_end(after(861)), Some(after(862)));
        assert_eq!(troubles.suspects(after(862)).count(), 0);
        assert_eq!(troubles.failed(&n1, &pod(7), after(861)), None, "it is suspected already");
        assert!(!troubles.is_suspect(&n1, after(862)));
        assert_eq!(troubles.failed(&n1, &pod(8), after(900)), Some(FIRST * 2));
        let long = after(900) + FIRST * 2 + LONGEST;
        assert_eq!(troubles.failed(&n1, &pod(8), long), None, "it did well for long");
    }
}
