//! Records the prefixes that farms write, during the test.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rcfarm_api::Stored;
use rcfarm_api::ids::{RcId, SessionId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::rc::status::RcStatus;
use rcfarm_store::{BlockingWait, Consistency, Entry, Index, Prefix, Query, Store};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Holder of a lock, from the lock's ModifyIndex up to `through`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    /// Value of the lock.
    pub farm: String,
    pub session: SessionId,
    /// Last index at which it was certainly held.
    pub through: Index,
}

/// All recorded versions, by ModifyIndex.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub locks: BTreeMap<RcId, BTreeMap<Index, Tenure>>,
    /// Pod labels, by key.
    pub labels: BTreeMap<(String, Index), Bytes>,
    /// Intents, by key.
    pub intents: BTreeMap<(String, Index), Bytes>,
    pub statuses: BTreeMap<RcId, BTreeMap<Index, RcStatus>>,
    /// Number of recorded answers.
    pub samples: usize,
    /// Impossible observations.
    pub contradictions: Vec<String>,
}

/// Holder of a lock at an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder<'h> {
    /// This farm, certainly.
    Farm(&'h str),
    /// Not recorded.
    Unseen,
}

impl History {
    /// Owner of a controller when `index` was written.
    pub fn holder(&self, rc: RcId, index: Index) -> Holder<'_> {
        let tenures = self.locks.get(&rc);
        let last = tenures.and_then(|tenures| tenures.range(..=index).next_back());
        match last {
            Some((_, tenure)) if index <= tenure.through => Holder::Farm(&tenure.farm),
            _ => Holder::Unseen,
        }
    }

    /// Records a lock as it was at `through`.
    pub fn saw_lock(&mut self, entry: &Entry, through: Index) {
        let tail = key::rc_locks().tail(&entry.key).and_then(|tail| tail.parse().ok());
        let (Some(rc), Some(session)) = (tail, entry.session.clone()) else { return };
        let farm = String::from_utf8_lossy(&entry.value).into_owned();
        let tenure = Tenure { farm, session, through };
        let tenures = self.locks.entry(rc).or_default();
        let seen = tenures.entry(entry.modify_index).or_insert_with(|| tenure.clone());
        if seen.session != tenure.session {
            let (a, b, at) = (&seen.session, &tenure.session, entry.modify_index);
            self.contradictions.push(format!("{} at {at}: held by {a} and by {b}", entry.key));
        }
        seen.through = seen.through.max(through);
    }

    fn saw(&mut self, tree: Tree, entry: Entry, through: Index) {
        let version = entry.modify_index;
        match tree {
            Tree::Locks => self.saw_lock(&entry, through),
            Tree::Labels => drop(self.labels.insert((entry.key, version), entry.value)),
            Tree::Intents => drop(self.intents.insert((entry.key, version), entry.value)),
            Tree::Statuses => {
                let tail = key::rc_statuses().tail(&entry.key);
                let rc = tail.and_then(|tail| tail.strip_suffix("/rcfarm")?.parse::<RcId>().ok());
                match (rc, RcStatus::decode(&entry.value)) {
                    (Some(rc), Ok(status)) => {
                        self.statuses.entry(rc).or_default().insert(version, status);
                    }
                    _ => self.contradictions.push(format!("{} is no status", entry.key)),
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Tree {
    Locks,
    Labels,
    Intents,
    Statuses,
}

impl Tree {
    const ALL: [Tree; 4] = [Tree::Locks, Tree::Labels, Tree::Intents, Tree::Statuses];

    fn prefix(self) -> Prefix {
        match self {
            Tree::Locks => key::rc_locks(),
            Tree::Labels => key::labels(LabelKind::Pod),
            Tree::Intents => key::intents(),
            Tree::Statuses => key::rc_statuses(),
        }
    }
}

/// Watches the prefixes until it is stopped.
pub struct Recorder {
    seen: Arc<ObservedHistory>,
    watches: JoinSet<()>,
}

#[derive(Default)]
struct ObservedHistory {
    history: Mutex<History>,
    /// Newest index in any answer; a consistent read that starts later is true at it.
    newest: AtomicU64,
}

impl Recorder {
    pub fn start(stores: &[Arc<dyn Store>]) -> Recorder {
        let seen = Arc::new(ObservedHistory::default());
        let mut watches = JoinSet::new();
        for tree in Tree::ALL {
            watches.spawn(watch(tree, stores.to_vec(), seen.clone()));
        }
        Recorder { seen, watches }
    }

    pub fn so_far(&self) -> History {
        self.seen.history.lock().unwrap().clone()
    }

    pub async fn stop(mut self) -> History {
        self.watches.shutdown().await;
        std::mem::take(&mut *self.seen.history.lock().unwrap())
    }
}

/// Short, so that an unchanged lock is seen at later and later indexes.
const WAIT: Duration = Duration::from_millis(500);

async fn watch(tree: Tree, stores: Vec<Arc<dyn Store>>, seen: Arc<ObservedHistory>) {
    let (mut at, mut after) = (0, Index::ZERO);
    loop {
        let newest = Index(seen.newest.load(Ordering::SeqCst));
        let wait = (after > Index::ZERO).then_some(BlockingWait { after, at_most: WAIT });
        let query = Query { consistency: Consistency::Consistent, wait };
        let asked = timeout(WAIT * 4, stores[at].list(&tree.prefix(), query)).await;
        let Ok(Ok(answer)) = asked else {
            (at, after) = ((at + 1) % stores.len(), Index::ZERO);
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        after = if answer.index < after { Index::ZERO } else { answer.index };
        let changed = answer.value.iter().map(|entry| entry.modify_index).max();
        seen.newest.fetch_max(changed.unwrap_or_default().0, Ordering::SeqCst);
        let through = newest.max(answer.index);
        let mut history = seen.history.lock().unwrap();
        history.samples += 1;
        for entry in answer.value {
            history.saw(tree, entry, through);
        }
    }
}
