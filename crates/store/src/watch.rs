//! Watch of one tree by blocking queries, with Consul's rules for indexes (`consul-semantics.md` §4.4).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

pub use super::incremental::Transferred;
use super::incremental::{IncrementalReader, Sizes};
use super::{
    Answer, Consistency, Entry, Index, Prefix, PrefixLister, Query, Reader, StoreError, TokenBucket,
};
use crate::time::monotonic;

/// Longest wait of a blocking query. A query that the client dropped occupies the Consul agent until then.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Position of a watch: the index to wait on, and when the next full read is due. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    after: Index,
    full_at: Instant,
    full_every: Duration,
}

impl Position {
    /// The start: the first read does not wait.
    pub fn start(now: Instant, full_every: Duration) -> Self {
        Position { after: Index::ZERO, full_at: now + full_every, full_every }
    }

    /// The query to send now: a blocking query, or every `full_every` a full read. After a restored snapshot a blocking
    /// query may wait for an index that never comes again. Full reads are consistent: a deposed leader would return old
    /// data (`consul-semantics.md` §0 #3).
    pub fn query(&self, now: Instant) -> Query {
        if self.after == Index::ZERO || now >= self.full_at {
            return Query::CONSISTENT;
        }
        let rest = self.full_at.saturating_duration_since(now);
        Query::after(self.after, LONGEST_WAIT.min(rest).max(Duration::from_secs(1)))
    }

    /// The position after the answer of a blocking query. An index that decreased makes the next read a full read.
    #[must_use]
    pub fn answered(self, index: Index) -> Self {
        let index = index.max(Index(1));
        let after = if index < self.after { Index::ZERO } else { index };
        Position { after, ..self }
    }

    /// The position after a full read. A blocking query that ends when one is due, as each does in a tree at rest, is
    /// none.
    #[must_use]
    pub fn read_in_full(self, index: Index, now: Instant) -> Self {
        Position { full_at: now + self.full_every, ..self.answered(index) }
    }

    /// The position after an error: the next read is a full read.
    #[must_use]
    pub fn failed(self) -> Self {
        Position { after: Index::ZERO, ..self }
    }
}

/// Pacing of a watch's reads, so that a large tree that changes often does not overload Consul.
///
/// Token bucket: a read that took `d` consumes `d * cost_factor`; the bucket refills in real time and holds `burst`. A
/// read waits while the bucket is overdrawn. Upper bound of time spent reading: `1 / (1 + cost_factor)`. Single
/// changes are read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollPolicy {
    /// Shortest pause from one answer to the next request.
    pub min_pause: Duration,
    /// A read that took `d` consumes `d * cost_factor` of the budget.
    pub cost_factor: u32,
    /// Budget that may be consumed before reads are delayed.
    pub burst: Duration,
    /// Longest pause.
    pub max_pause: Duration,
    /// What is read of a large tree when it has changed.
    pub reading: Reading,
}

/// What is read of a changed tree with [`Sizes::many`] entries or more. The watch waits on the keys alone: Consul takes
/// 4 ms to list 100 records and 15 ms for 700, but less than 2 ms for their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The changed parts, this long after the wake-up.
    Parts(Duration),
    /// The whole tree, this long after the wake-up. For trees whose changes are not urgent.
    Whole(Duration),
}

impl PollPolicy {
    /// For trees whose changes are urgent.
    pub const PROMPT: PollPolicy = PollPolicy {
        min_pause: Duration::ZERO,
        cost_factor: 2,
        burst: Duration::from_millis(100),
        max_pause: Duration::from_secs(5),
        reading: Reading::Parts(Duration::ZERO),
    };
    /// For large trees that change without pause under load. A single change is read at once; reads take at most a ninth
    /// of the time.
    pub const BULK: PollPolicy = PollPolicy {
        min_pause: Duration::ZERO,
        cost_factor: 8,
        burst: Duration::from_millis(100),
        max_pause: Duration::from_secs(5),
        reading: PollPolicy::PROMPT.reading,
    };
    /// For locks, which this farm changes most. The 20 ms keep the read away from the first transaction under a new lock.
    pub const LOCKS: PollPolicy =
        PollPolicy { reading: Reading::Parts(Duration::from_millis(20)), ..PollPolicy::PROMPT };
    /// For large trees that are read only to check what is already known.
    pub const RESYNC: PollPolicy = PollPolicy {
        min_pause: Duration::from_millis(500),
        cost_factor: 60,
        burst: Duration::ZERO,
        max_pause: Duration::from_secs(60),
        reading: Reading::Whole(Duration::ZERO),
    };
    /// For labels of pods. Like intents, they grow with the pods and only farms write them, so they are read whole. The
    /// delay lets the transaction that woke the watch finish first, and is not that of [`PollPolicy::INTENTS`], so that
    /// the two reads do not coincide.
    pub const PODS: PollPolicy = PollPolicy {
        cost_factor: 400,
        max_pause: Duration::from_secs(20),
        reading: Reading::Whole(Duration::from_millis(150)),
        ..PollPolicy::RESYNC
    };
    /// For intents: [`PollPolicy::PODS`] with another delay.
    pub const INTENTS: PollPolicy =
        PollPolicy { reading: Reading::Whole(Duration::from_millis(300)), ..PollPolicy::PODS };

    /// Charges `budget` for a read that took `cost` to transfer and index; returns the pause before the next read.
    pub fn pause_after_read(
        &self,
        budget: &mut TokenBucket,
        cost: Duration,
        now: Instant,
    ) -> Duration {
        let most = self.max_pause.saturating_add(self.burst);
        budget.consume(cost * self.cost_factor, most, now);
        let overdrawn = budget.consumed(now).saturating_sub(self.burst);
        self.min_pause.max(overdrawn).min(self.max_pause)
    }
}

/// Watch of one prefix. Each call of [`TreeWatch::next`] returns the whole tree.
///
/// A large tree may be read in parts ([`Reading`]). Each entry is then at least as new as the answer's index; some are
/// newer.
pub struct TreeWatch {
    lister: Arc<PrefixLister>,
    position: Position,
    full_every: Duration,
    confirmed: bool,
    reading: Reading,
    sizes: Sizes,
    parts: IncrementalReader,
    /// Entries of the last answer.
    entries: usize,
    transferred: Transferred,
}

/// Pause after an answer that was neither new nor waited for.
const NO_NEWS_PAUSE: Duration = Duration::from_millis(10);

impl TreeWatch {
    /// A watch on `prefix` with a full read every `full_every`. Large trees are read in parts.
    pub fn new(reader: Arc<dyn Reader>, prefix: Prefix, full_every: Duration) -> Self {
        let lister = Arc::new(PrefixLister::new(reader, prefix));
        Self::reading(lister, full_every, PollPolicy::PROMPT.reading)
    }

    /// A watch that reads large trees as `reading` says.
    pub fn reading(lister: Arc<PrefixLister>, full_every: Duration, reading: Reading) -> Self {
        let (position, sizes) = (Position::start(monotonic(), full_every), Sizes::default());
        TreeWatch {
            lister,
            position,
            full_every,
            confirmed: false,
            reading,
            sizes,
            parts: IncrementalReader::new(sizes),
            entries: 0,
            transferred: Transferred::default(),
        }
    }

    /// The watched prefix.
    pub fn prefix(&self) -> &Prefix {
        self.lister.prefix()
    }

    /// Whether the last answer was consistent.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// How much was transferred for the last answer.
    pub fn transferred(&self) -> Transferred {
        self.transferred
    }

    /// Makes the next read a full read, which does not wait.
    pub fn reset(&mut self) {
        self.position = Position::start(monotonic(), self.full_every);
    }

    /// Waits until the tree changes or the wait ends, and returns the whole tree.
    ///
    /// # Errors
    /// Any [`StoreError`]; the next read is then a full read. The caller has to pause between calls.
    pub async fn next(&mut self) -> Result<Answer<Vec<Entry>>, StoreError> {
        loop {
            let query = self.position.query(monotonic());
            self.confirmed = query.consistency == Consistency::Consistent;
            let is_whole = query.wait.is_none() || self.entries < self.sizes.many;
            let read = match is_whole {
                true => self.read_whole(query).await.map(Some),
                false => self.wait_and_read(query).await,
            };
            match read {
                Ok(Some(answer)) => {
                    self.position = match query.wait {
                        Some(_) => self.position.answered(answer.index),
                        None => self.position.read_in_full(answer.index, monotonic()),
                    };
                    self.entries = answer.value.len();
                    return Ok(answer);
                }
                Ok(None) => {}
                Err(error) => {
                    self.position = self.position.failed();
                    return Err(error);
                }
            }
        }
    }

    async fn read_whole(&mut self, query: Query) -> Result<Answer<Vec<Entry>>, StoreError> {
        let answer = self.lister.list(query).await?;
        self.transferred = Transferred { entries: answer.value.len(), names: 0 };
        match self.reading {
            Reading::Parts(_) => self.parts.replace_all(&answer.value),
            Reading::Whole(_) => {}
        }
        Ok(answer)
    }

    /// Waits until a key changes and then reads what [`Reading`] says. `None`: nothing has changed.
    async fn wait_and_read(
        &mut self,
        query: Query,
    ) -> Result<Option<Answer<Vec<Entry>>>, StoreError> {
        let (folded, pause) = match self.reading {
            Reading::Parts(pause) => (None, pause),
            Reading::Whole(pause) => (Some("/"), pause),
        };
        let after = query.wait.map_or(Index::ZERO, |wait| wait.after);
        let keys = self.lister.reader().keys(self.prefix(), folded, query).await?;
        if keys.index <= after {
            let is_cut = keys.filtered || keys.value.len() != self.entries;
            if folded.is_none() && is_cut {
                // Lost rights change the list but no index.
                return self.read_whole(Query::CONSISTENT).await.map(Some);
            }
            self.position = self.position.answered(keys.index);
            sleep(NO_NEWS_PAUSE).await;
            return Ok(None);
        }
        sleep(pause).await;
        let parts = match self.reading {
            Reading::Parts(_) => self.parts.changed(self.lister.reader(), after, keys).await?,
            Reading::Whole(_) => None,
        };
        let Some(parts) = parts else { return self.read_whole(query).await.map(Some) };
        self.transferred = parts.transferred;
        Ok(Some(parts.answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(300);

    #[test]
    fn decreased_index_makes_the_next_read_full() {
        let now = monotonic();
        let p = Position::start(now, EVERY).read_in_full(Index(40), now);
        assert_eq!(p.query(now).wait.unwrap().after, Index(40));
        assert_eq!(p.answered(Index(39)).query(now), Query::CONSISTENT);
    }

    #[test]
    fn index_zero_is_waited_on_as_one() {
        let now = monotonic();
        let p = Position::start(now, EVERY).read_in_full(Index(0), now);
        assert_eq!(p.query(now).wait.unwrap().after, Index(1));
    }

    #[test]
    fn full_read_is_due_every_interval() {
        let now = monotonic();
        let p = Position::start(now, EVERY).read_in_full(Index(40), now);
        // The query that waited until then tells of no change.
        let p = p.answered(Index(40));
        assert_eq!(p.query(now + EVERY), Query::CONSISTENT);
        let p = p.read_in_full(Index(40), now + EVERY);
        assert_eq!(p.query(now + EVERY).wait.unwrap().at_most, LONGEST_WAIT);
    }

    #[test]
    fn error_makes_the_next_read_full() {
        let now = monotonic();
        let p = Position::start(now, EVERY).read_in_full(Index(40), now).failed();
        assert_eq!(p.query(now), Query::CONSISTENT);
    }

    #[test]
    fn pause_grows_with_the_cost_of_a_read() {
        let (ms, now) = (Duration::from_millis, monotonic());
        let single = |poll_policy: PollPolicy, cost| {
            poll_policy.pause_after_read(&mut TokenBucket::default(), cost, now)
        };
        assert_eq!(single(PollPolicy::RESYNC, ms(1)), ms(500));
        assert_eq!(single(PollPolicy::RESYNC, ms(300)), ms(18_000));
        assert_eq!(single(PollPolicy::RESYNC, ms(30_000)), ms(60_000));
        assert_eq!(single(PollPolicy::PROMPT, ms(10)), ms(0));
        assert_eq!(single(PollPolicy::PROMPT, ms(100)), ms(100));
    }

    #[test]
    fn budget_delays_only_reads_in_quick_succession() {
        let ms = Duration::from_millis;
        let pauses = |every: Duration| {
            let (mut budget, mut now) = (TokenBucket::default(), monotonic());
            (0..1_000).map(move |_| {
                let pause = PollPolicy::PROMPT.pause_after_read(&mut budget, ms(10), now);
                now += pause.max(every);
                pause
            })
        };
        assert_eq!(pauses(ms(50)).max(), Some(ms(0)));
        assert_eq!(pauses(ms(0)).skip(100).max(), Some(ms(20)));
    }
}
