//! Which doorbells were answered, and when they are taken down.
//!
//! Not at once: the answer is a transaction of the record's task, and the write that takes the doorbell down would stand
//! before it in Consul's log, which on a server with a disk costs it a sync. And many are taken down in one go.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::records::Doorbells;
use rcfarm_api::Index;
use rcfarm_api::ids::RecordId;

/// A doorbell by kind and record, and the index at which it was rung.
pub(super) type Rung = ((String, RecordId), Index);

/// So long after its answer a doorbell is taken down.
const AFTER: Duration = Duration::from_millis(250);

/// So long after it could not be, that is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Handled doorbells and when to delete them.
#[derive(Debug, Default)]
pub(super) struct Answering {
    answered: BTreeMap<(String, RecordId), Index>,
    /// Of these, those that still hang.
    hanging: Vec<Rung>,
    due: Option<Instant>,
}

impl Answering {
    /// Whether this very ring was answered.
    pub(super) fn is_answered(&self, bell: &(String, RecordId), index: Index) -> bool {
        self.answered.get(bell) == Some(&index)
    }

    /// A ring was answered.
    pub(super) fn answered(&mut self, bell: (String, RecordId), index: Index, now: Instant) {
        self.answered.insert(bell.clone(), index);
        self.hanging.push((bell, index));
        self.due.get_or_insert(now + AFTER);
    }

    /// Bells that are gone need not be remembered.
    pub(super) fn forget_all_but(&mut self, doorbells: &Doorbells) {
        self.answered.retain(|bell, _| doorbells.0.contains_key(bell));
    }

    /// When doorbells are to be taken down next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The doorbells to be taken down, in groups of at most so many.
    pub(super) fn take(&mut self, at_most: usize) -> Vec<Vec<Rung>> {
        self.due = None;
        let all = std::mem::take(&mut self.hanging);
        all.chunks(at_most.max(1)).map(<[Rung]>::to_vec).collect()
    }

    /// These could not be taken down: that is tried again.
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

    #[test]
    fn a_ring_is_answered_once_and_taken_down_later() {
        let (now, bell) = (Instant::now(), ("rc".to_owned(), RecordId::from("a")));
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
}
