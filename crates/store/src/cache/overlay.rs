//! Values that are newer than a cache: its user's own writes, and single reads.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::Snapshot;
use crate::Index;
use crate::failpoints::{Failpoint, enabled};
use crate::time::monotonic;

/// Read-your-own-writes on top of a [`super::Cache`]. A value counts until a snapshot shows the index of its write
/// ([`Snapshot::shows`]); from then on the snapshot counts.
#[derive(Debug, Clone)]
pub struct Overlay<K, V>(BTreeMap<K, Pending<V>>);

/// `value`: `None` where the key was deleted. `index`: of the write, which was answered at `at`.
#[derive(Debug, Clone)]
struct Pending<V> {
    value: Option<V>,
    index: Index,
    at: Instant,
}

impl<V> Pending<V> {
    fn is_newer_than<T>(&self, seen: &Snapshot<T>) -> bool {
        !enabled(Failpoint::OwnWritesForgotten) && !seen.shows(self.index, Some(self.at))
    }
}

impl<K: Ord + Clone, V: Clone> Overlay<K, V> {
    /// Notes that `key` got this value at `index`, or was deleted (`None`). Call it when the answer arrives.
    pub fn wrote(&mut self, key: K, value: Option<V>, index: Index) {
        self.0.insert(key, Pending { value, index, at: monotonic() });
    }

    /// Forgets what `seen` shows. Changes nothing for readers; limits memory.
    pub fn forget_shown<T>(&mut self, seen: &Snapshot<T>) {
        self.0.retain(|_, pending| pending.is_newer_than(seen));
    }

    /// What `key` got after `seen` was read; `Some(None)`: it was deleted.
    pub fn pending<T>(&self, seen: &Snapshot<T>, key: &K) -> Option<Option<&V>> {
        let pending = self.0.get(key).filter(|pending| pending.is_newer_than(seen))?;
        Some(pending.value.as_ref())
    }

    /// The value of `key`; `cached` gets it from the snapshot.
    pub fn get<'a, T>(
        &'a self,
        seen: &'a Snapshot<T>,
        key: &K,
        cached: impl FnOnce(&'a T) -> Option<&'a V>,
    ) -> Option<&'a V> {
        self.pending(seen, key).unwrap_or_else(|| cached(&seen.value))
    }

    /// Brings `cached`, values from `seen`, up to date.
    pub fn apply<T>(&self, seen: &Snapshot<T>, cached: &mut BTreeMap<K, V>) {
        for (key, pending) in self.0.iter().filter(|(_, pending)| pending.is_newer_than(seen)) {
            match &pending.value {
                Some(value) => drop(cached.insert(key.clone(), value.clone())),
                None => drop(cached.remove(key)),
            }
        }
    }
}

impl<K, V> Default for Overlay<K, V> {
    fn default() -> Self {
        Overlay(BTreeMap::new())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::SURELY_LATER;
    use super::*;

    type State = BTreeMap<u8, u64>;

    fn snapshot(index: u64, value: &State) -> Snapshot<State> {
        Snapshot { index: Index(index), value: Arc::new(value.clone()), ..Snapshot::default() }
    }

    #[derive(Debug, Clone)]
    enum Event {
        OwnWrite(u8, bool),
        ForeignWrite(u8, bool),
        /// The cache is read, so many writes late; never an older state than before.
        Read(usize),
        Forget,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..4u8, any::<bool>()).prop_map(|(key, is_set)| Event::OwnWrite(key, is_set)),
            (0..4u8, any::<bool>()).prop_map(|(key, is_set)| Event::ForeignWrite(key, is_set)),
            (0..4usize).prop_map(Event::Read),
            Just(Event::Forget),
        ]
    }

    proptest! {
        /// Each key shows the store as it was at the snapshot, or at the last own write of the key if that is later.
        #[test]
        fn shows_the_later_of_snapshot_and_own_write(events in prop::collection::vec(event(), 0..40)) {
            // The state of the store at each index.
            let mut history = vec![State::new()];
            let mut overlay = Overlay::<u8, u64>::default();
            let (mut own, mut seen) = (BTreeMap::<u8, usize>::new(), 0);
            for event in events {
                let mut now = history[history.len() - 1].clone();
                let index = history.len() as u64;
                match event {
                    Event::OwnWrite(key, is_set) | Event::ForeignWrite(key, is_set) => {
                        let value = is_set.then_some(index);
                        match value {
                            Some(value) => _ = now.insert(key, value),
                            None => _ = now.remove(&key),
                        }
                        if matches!(event, Event::OwnWrite(..)) {
                            own.insert(key, history.len());
                            overlay.wrote(key, value, Index(index));
                        }
                        history.push(now);
                    }
                    Event::Read(late) => seen = seen.max((history.len() - 1).saturating_sub(late)),
                    Event::Forget => overlay.forget_shown(&snapshot(seen as u64, &history[seen])),
                }
                let cached = snapshot(seen as u64, &history[seen]);
                let mut all = history[seen].clone();
                overlay.apply(&cached, &mut all);
                for key in 0..4 {
                    let last_own = own.get(&key).copied().unwrap_or(0);
                    let expected = history[seen.max(last_own)].get(&key);
                    prop_assert_eq!(overlay.get(&cached, &key, |state| state.get(&key)), expected);
                    prop_assert_eq!(all.get(&key), expected);
                    prop_assert_eq!(overlay.pending(&cached, &key).is_some(), last_own > seen);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_sent_long_after_the_answer_counts_whatever_its_index() {
        let mut overlay = Overlay::default();
        overlay.wrote(1, Some(7), Index(9));
        let mut seen = snapshot(3, &State::new());
        seen.asked = Some(monotonic() + SURELY_LATER);
        assert_eq!(overlay.pending(&seen, &1), Some(Some(&7)));
        seen.asked = Some(monotonic() + SURELY_LATER + Duration::from_millis(1));
        assert_eq!(overlay.pending(&seen, &1), None);
    }
}
