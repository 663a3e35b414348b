//! Which keys of a pod's report Consul has acknowledged, and whether they are still there. Pure.
//!
//! Others may delete or change them: p2-wipe-reality, an operator, a restored snapshot. The agent compares them with
//! Consul every five minutes, and at once when a key under `reality/<node>/` vanishes, and writes a changed report
//! again. What a report depends on when it is written ([`super::proof`]) is the same then: a report whose status is
//! unchanged depends on that status, one whose status is gone on the intent.

use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::node::status::IntentIndex;
use rcfarm_store::{Entry, Index, Key};

/// The keys that one report of a pod left in Consul.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reported {
    /// The intent that the status names.
    pub(super) intent: IntentIndex,
    /// ModifyIndex of the status.
    pub(super) status: Index,
    /// ModifyIndex of the reality. `None`: the report has none.
    pub(super) reality: Option<Index>,
    /// ModifyIndex of the health key. `None`: the pod has not been started yet.
    pub(super) health: Option<Index>,
}

/// A report that is no longer in Consul as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChangedReport {
    pub(super) written: Reported,
    /// Whether its status has changed. Otherwise only the reality or the health key has.
    pub(super) status: bool,
}

impl Reported {
    /// Most keys of one report.
    pub(super) const KEYS: usize = 3;

    /// What a transaction left, by the entries in its answer. `None`: the answer lacks the status.
    pub(super) fn of(
        node: &NodeName,
        pod: &PodId,
        intent: IntentIndex,
        entries: &[Entry],
    ) -> Option<Reported> {
        let at = |key: Key| {
            let entry = entries.iter().rev().find(|entry| entry.key == key.as_str());
            entry.map(|entry| entry.modify_index)
        };
        Some(Reported {
            intent,
            status: at(key::pod_status(pod, node))?,
            reality: at(key::reality(node, pod)),
            health: at(key::health(pod, node)),
        })
    }

    /// Its keys with their indexes.
    pub(super) fn keys<'r>(
        &'r self,
        pod: &'r PodId,
        node: &NodeName,
    ) -> impl Iterator<Item = (&'r PodId, &'r Reported, Key, Index)> + use<'r> {
        let keys = [
            (key::pod_status(pod, node), Some(self.status)),
            (key::reality(node, pod), self.reality),
            (key::health(pod, node), self.health),
        ];
        keys.into_iter().filter_map(move |(key, index)| Some((pod, self, key, index?)))
    }
}
