//! Blocked reads and their wake-ups.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::Notify;

use super::index::{Subject, Tables};
use super::model::{Applied, Cause};

/// Id of a blocked read; ids increase.
pub(super) type WatcherId = u64;

#[derive(Debug)]
struct Watcher {
    subject: Subject,
    wake: Arc<Notify>,
    dismissed: Option<Dismissal>,
}

/// Why a blocked read must answer without a newer index.
#[derive(Debug, Clone)]
pub(super) enum Dismissal {
    /// The state was replaced: answer from the previous one.
    Replaced(Arc<Tables>),
    /// A wake-up without cause: answer from the current state.
    Spurious,
}

/// All blocked reads. Each has its own `Notify`, and they wake in the order in which they began, so runs repeat exactly.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    next: WatcherId,
    all: BTreeMap<WatcherId, Watcher>,
    keys: BTreeMap<String, BTreeSet<WatcherId>>,
    prefixes: BTreeMap<String, BTreeSet<WatcherId>>,
    others: BTreeMap<Subject, BTreeSet<WatcherId>>,
}

impl Watchers {
    pub(super) fn add(&mut self, subject: Subject) -> (WatcherId, Arc<Notify>) {
        let id = self.next;
        self.next += 1;
        match &subject {
            Subject::Key(key) => self.keys.entry(key.clone()).or_default().insert(id),
            Subject::Prefix(prefix) => self.prefixes.entry(prefix.clone()).or_default().insert(id),
            other => self.others.entry(other.clone()).or_default().insert(id),
        };
        let wake = Arc::new(Notify::new());
        self.all.insert(id, Watcher { subject, wake: wake.clone(), dismissed: None });
        (id, wake)
    }

    /// Removes a read that answered or was dropped.
    pub(super) fn remove(&mut self, id: WatcherId) {
        let Some(watcher) = self.all.remove(&id) else { return };
        match &watcher.subject {
            Subject::Key(key) => forget(&mut self.keys, key, id),
            Subject::Prefix(prefix) => forget(&mut self.prefixes, prefix, id),
            other => forget(&mut self.others, other, id),
        }
    }

    /// Number of blocked reads, by prefix.
    pub(super) fn by_prefix(&self) -> BTreeMap<String, usize> {
        self.prefixes.iter().map(|(prefix, ids)| (prefix.clone(), ids.len())).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Why a woken read must answer now. `None`: it evaluates its index first.
    pub(super) fn dismissal(&self, id: WatcherId) -> Option<Dismissal> {
        self.all.get(&id)?.dismissed.clone()
    }

    /// Wakes the reads whose subject a write changed.
    pub(super) fn wake(&self, applied: &Applied) {
        if self.all.is_empty() {
            return;
        }
        let mut due = BTreeSet::new();
        for change in &applied.changes {
            due.extend(self.keys.get(&change.key).into_iter().flatten());
            self.above(&change.key, &mut due);
        }
        let other = |subject: Subject| self.others.get(&subject).into_iter().flatten();
        for change in &applied.sessions {
            due.extend(other(Subject::Session(change.session().id.clone())));
            due.extend(other(Subject::Sessions));
        }
        if applied.cause == Cause::Catalog {
            for service in &applied.services {
                due.extend(other(Subject::Service(service.clone())));
            }
            for table in [Subject::Nodes, Subject::Checks, Subject::Services] {
                due.extend(other(table));
            }
        }
        due.iter().filter_map(|id| self.all.get(id)).for_each(|w| w.wake.notify_one());
    }

    /// Makes every blocked read answer.
    pub(super) fn dismiss_all(&mut self, dismissal: &Dismissal) {
        for watcher in self.all.values_mut() {
            watcher.dismissed = Some(dismissal.clone());
            watcher.wake.notify_one();
        }
    }

    /// Adds the reads of prefixes of `key` to `due`. Each step goes to the greatest watched prefix that can still match,
    /// so the number of steps is about that of the matches.
    fn above(&self, key: &str, due: &mut BTreeSet<WatcherId>) {
        let mut end = Bound::Included(key);
        while let Some((prefix, ids)) =
            self.prefixes.range::<str, _>((Bound::Unbounded, end)).next_back()
        {
            if key.starts_with(prefix.as_str()) {
                due.extend(ids);
                end = Bound::Excluded(prefix.as_str());
            } else {
                end = Bound::Included(common(key, prefix));
            }
        }
    }
}

/// The longest common prefix of two texts.
fn common<'a>(a: &'a str, b: &str) -> &'a str {
    let end = a.char_indices().zip(b.chars()).find(|((_, x), y)| x != y);
    let end = end.map_or(a.len().min(b.len()), |((at, _), _)| at);
    &a[..end]
}

fn forget<K: Ord>(map: &mut BTreeMap<K, BTreeSet<WatcherId>>, key: &K, id: WatcherId) {
    if let Some(ids) = map.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matching(prefixes: &[&str], key: &str) -> Vec<String> {
        let mut watchers = Watchers::default();
        for prefix in prefixes {
            watchers.add(Subject::Prefix((*prefix).to_owned()));
        }
        let mut due = BTreeSet::new();
        watchers.above(key, &mut due);
        due.into_iter().map(|id| prefixes[usize::try_from(id).unwrap()].to_owned()).collect()
    }

    #[test]
    fn finds_every_watched_prefix_of_a_key_and_no_other() {
        let all = ["", "a", "a/", "a/b", "a/b/c", "a/bc", "a/z", "b", "ä", "a/b/c/d"];
        assert_eq!(matching(&all, "a/b/c"), ["", "a", "a/", "a/b", "a/b/c"]);
        assert_eq!(matching(&all, "ä/x"), ["", "ä"]);
        assert_eq!(matching(&all, "ö"), [""]);
        assert_eq!(matching(&["zz", "b/", "a/"], "c"), Vec::<String>::new());
    }

    proptest::proptest! {
        #[test]
        fn the_search_agrees_with_trying_each(
            prefixes in proptest::collection::btree_set("[ab/]{0,4}", 0..20),
            key in "[ab/]{1,6}",
        ) {
            let all: Vec<&str> = prefixes.iter().map(String::as_str).collect();
            let expected: Vec<&str> = all.iter().copied().filter(|p| key.starts_with(p)).collect();
            proptest::prop_assert_eq!(matching(&all, &key), expected);
        }
    }
}
