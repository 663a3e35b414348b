//! Handled doorbells, and when their keys are deleted.
//!
//! Doorbell keys are deleted 250 ms after they were handled, so that the delete does not queue ahead of the controller's
//! own transaction in the Raft log, and many deletes share one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::records::Doorbells;
use rcfarm_api::Index;
use rcfarm_api::ids::RecordId;

/// A doorbell by kind and record, and the index at which it was rung.
pub(super) type Rung = ((String, RecordId), Index);

/// Time from handling a doorbell to deleting its key.
const AFTER: Duration = Duration::from_millis(250);

/// Pause before a failed delete is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Most questions to Consul at once, whether the records of doorbells exist: claims and transactions wait for the same
/// connections.
const QUESTIONS: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Answering {
    answered: BTreeMap<(String, RecordId), Index>,
    /// Consul is being asked whether their records exist.
    asking: BTreeSet<Rung>,
    /// Their records exist, but the cache does not have them yet.
    existing: BTreeSet<Rung>,
    /// Those of `answered` whose keys are not deleted yet.
    hanging: Vec<Rung>,
    due: Option<Instant>,
    /// When to ask again after a question without an answer.
    ask_at: Option<Instant>,
}

impl Answering {
    /// Whether the doorbell was handled at this index. A doorbell that is rung again has a higher index.
    pub(super) fn is_answered(&self, bell: &(String, RecordId), index: Index) -> bool {
        self.answered.get(bell) == Some(&index)
    }

    pub(super) fn answered(&mut self, bell: (String, RecordId), index: Index, now: Instant) {
        self.answered.insert(bell.clone(), index);
        self.hanging.push((bell, index));
        self.due.get_or_insert(now + AFTER);
    }

    /// Whether to ask Consul now if a doorbell's record exists. Those that are not asked about now are considered again
    /// after the next answer.
    pub(super) fn begins_to_ask(&mut self, rung: &Rung) -> bool {
        let may_ask = self.asking.len() < QUESTIONS && !self.existing.contains(rung);
        may_ask && self.asking.insert(rung.clone())
    }

    /// Notes Consul's answer: whether the record exists. `None`: there was none; it is asked again after a pause.
    pub(super) fn take_answer(&mut self, rung: Rung, exists: Option<bool>, now: Instant) {
        self.asking.remove(&rung);
        match exists {
            Some(true) => _ = self.existing.insert(rung),
            Some(false) => self.answered(rung.0, rung.1, now),
            None => _ = self.ask_at.get_or_insert(now + AGAIN_AFTER),
        }
    }

    /// Forgets doorbells whose keys are gone.
    pub(super) fn forget_all_but(&mut self, doorbells: &Doorbells) {
        self.answered.retain(|bell, _| doorbells.0.contains_key(bell));
        self.existing.retain(|(bell, index)| doorbells.0.get(bell) == Some(index));
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn ask_at(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Whether to ask now what was not answered. `false` until the next question without an answer.
    pub(super) fn asks_again(&mut self, now: Instant) -> bool {
        self.ask_at.take_if(|at| *at <= now).is_some()
    }

    /// Takes the doorbells to delete, in groups of at most `at_most`.
    pub(super) fn take(&mut self, at_most: usize) -> Vec<Vec<Rung>> {
        self.due = None;
        let all = std::mem::take(&mut self.hanging);
        all.chunks(at_most.max(1)).map(<[Rung]>::to_vec).collect()
    }

    /// Schedules failed deletes again.
    pub(super) fn still_hang(&mut self, doorbells: Vec<Rung>, now: Instant) {
        if !doorbells.is_empty() {
            self.due.get_or_insert(now + AGAIN_AFTER);
            self.hanging.extend(doorbells);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_store::time::monotonic;

    #[test]
    fn a_ring_is_answered_once_and_taken_down_later() {
        let (now, bell) = (monotonic(), ("rc".to_owned(), RecordId::from("a")));
        let mut answering = Answering::default();
        assert_eq!(answering.due(), None);
        answering.answered(bell.clone(), Index(7), now);
        assert!(answering.is_answered(&bell, Index(7)));
        assert!(!answering.is_answered(&bell, Index(8)), "it was rung anew");
        answering.answered(bell.clone(), Index(8), now + AFTER / 2);
        assert_eq!(answering.due(), Some(now + AFTER));
        assert_eq!(answering.take(1).len(), 2);
        assert_eq!((answering.due(), answering.take(1).len()), (None, 0));
        answering.still_hang(vec![(bell.clone(), Index(8))], now);
        assert!(answering.is_answered(&bell, Index(8)), "once answered is enough");
        assert_eq!((answering.due(), answering.take(1).len()), (Some(now + AGAIN_AFTER), 1));
        answering.forget_all_but(&Doorbells::default());
        assert!(!answering.is_answered(&bell, Index(8)));
    }

    /// Thousands of records are created while the cache of records is behind.
    #[test]
    fn few_records_are_asked_about_at_once_and_each_once() {
        let now = monotonic();
        let rung = |n: u64| (("rc".to_owned(), RecordId::from(n.to_string().as_str())), Index(n));
        let mut answering = Answering::default();
        let begun: Vec<u64> = (0..100).filter(|n| answering.begins_to_ask(&rung(*n))).collect();
        assert_eq!(begun, [0, 1, 2, 3]);
        answering.take_answer(rung(0), Some(true), now);
        assert!(!answering.begins_to_ask(&rung(0)), "it exists: its owner handles the doorbell");
        assert!(answering.begins_to_ask(&rung(4)));
        answering.take_answer(rung(1), None, now);
        assert!(!answering.asks_again(now));
        assert_eq!(answering.ask_at(), Some(now + AGAIN_AFTER), "there was no answer");
        assert!(answering.asks_again(now + AGAIN_AFTER) && answering.ask_at().is_none());
        assert!(answering.begins_to_ask(&rung(1)));
        answering.take_answer(rung(2), Some(false), now);
        assert!(answering.is_answered(&rung(2).0, Index(2)));
        assert_eq!(answering.take(10), [vec![rung(2)]]);
        answering.forget_all_but(&Doorbells::default());
        assert!(answering.begins_to_ask(&rung(0)), "it was rung anew");
    }
}
