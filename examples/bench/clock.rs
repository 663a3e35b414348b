//! Measures when each Consul index was first seen.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rcfarm_consul::Consul;
use rcfarm_store::{Index, Key, Prefix, Query, Reader as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

pub struct IndexClock {
    log: Arc<Log>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Log {
    seen: Mutex<Vec<(Index, Instant)>>,
    changed: Notify,
}

impl Log {
    fn note(&self, index: Index) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.last().is_none_or(|(last, _)| *last < index) {
            seen.push((index, Instant::now()));
            drop(seen);
            self.changed.notify_one();
        }
    }
}

impl Drop for IndexClock {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl IndexClock {
    /// Watches a prefix by a blocking query for its folders. About 1 ms late.
    pub async fn blocking(store: Arc<Consul>, prefix: Prefix) -> anyhow::Result<IndexClock> {
        let first = store.keys(&prefix, Some("/"), Query::PLAIN).await?.index;
        let log = Arc::new(Log::default());
        log.note(first);
        let noted = log.clone();
        let task = tokio::spawn(async move {
            let mut index = first;
            loop {
                let query = Query::after(index, Duration::from_secs(60));
                match store.keys(&prefix, Some("/"), query).await {
                    Ok(answer) => {
                        index = answer.index;
                        noted.note(index);
                    }
                    Err(error) => eprintln!("the clock cannot read: {error}"),
                }
            }
        });
        Ok(IndexClock { log, task })
    }

    /// Polls a missing key, whose answer carries the index of the whole KV store. Up to `every` late, but cheap for a
    /// server under load.
    pub async fn sampled(store: Arc<Consul>, every: Duration) -> anyhow::Result<IndexClock> {
        let nothing = Key::parse("rcfarm-bench-no-such-key")?;
        let log = Arc::new(Log::default());
        log.note(store.get(&nothing, Query::PLAIN).await?.index);
        let noted = log.clone();
        let task = tokio::spawn(async move {
            loop {
                sleep(every).await;
                match store.get(&nothing, Query::PLAIN).await {
                    Ok(answer) => noted.note(answer.index),
                    Err(error) => eprintln!("the clock cannot read: {error}"),
                }
            }
        });
        Ok(IndexClock { log, task })
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Vec<(Index, Instant)>> {
        self.log.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn latest(&self) -> Index {
        self.seen().last().map_or(Index::ZERO, |(index, _)| *index)
    }

    /// When `index` was reached.
    pub fn when(&self, index: Index) -> anyhow::Result<Instant> {
        let seen = self.seen();
        let at = seen.partition_point(|(then, _)| *then < index);
        seen.get(at).map(|(_, at)| *at).with_context(|| format!("index {index} was never seen"))
    }

    /// Waits until an index greater than `before` is seen. Returns when that was.
    pub async fn beyond(&self, before: Index, at_most: Duration) -> anyhow::Result<Instant> {
        let found = async {
            loop {
                let changed = self.log.changed.notified();
                if self.latest() > before {
                    return self.when(Index(before.0 + 1));
                }
                changed.await;
            }
        };
        timeout(at_most, found).await.context("nothing happened")?
    }

    /// Waits until the index has not changed for `quiet`.
    pub async fn still(&self, quiet: Duration, at_most: Duration) -> anyhow::Result<()> {
        let give_up = Instant::now() + at_most;
        while Instant::now() < give_up {
            let last = self.seen().last().map(|(_, at)| *at);
            match last.map(|at| at + quiet) {
                Some(due) if due <= Instant::now() => return Ok(()),
                Some(due) => tokio::time::sleep_until(due).await,
                None => sleep(quiet).await,
            }
        }
        bail!("Consul's index does not stand still within {at_most:?}")
    }
}
