//! One blocking query per tree, with the index rules that Consul's answers need (`consul-semantics.md` §4.4).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

pub use super::incremental::Transferred;
use super::incremental::{IncrementalReader, Sizes};
use super::{Answer, Consistency, Entry, Index, Prefix, Query, Reader, StoreError};

/// How long a blocking read may wait. A dropped one keeps its connection slot at the agent until then.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Where a watch stands: which index to wait on, and when to read everything again regardless.
///
/// Pure: it is told the answers and the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    after: Index,
    full_at: Instant,
    full_every: Duration,
}

impl Position {
    /// The start: the first read answers at once.
    #[must_use]
    pub fn start(now: Instant, full_every: Duration) -> Self {
        Position { after: Index::ZERO, full_at: now + full_every, full_every }
    }

    /// The query to send now. Once in a while it is a read from scratch: after a restored snapshot a blocked
    /// query shows old data under an index that never comes again. Such a read is one that the leader confirms:
    /// a deposed one would answer with the past (`consul-semantics.md` §0 #3).
    #[must_use]
    pub fn query(&self, now: Instant) -> Query {
        if self.after == Index::ZERO || now >= self.full_at {
            return Query::CONSISTENT;
        }
        let rest = self.full_at.saturating_duration_since(now);
        Query::after(self.after, LONGEST_WAIT.min(rest).max(Duration::from_secs(1)))
    }

    /// Takes an answer's index. An index that went backwards means "read from the start next time".
    #[must_use]
    pub fn answered(self, index: Index, now: Instant) -> Self {
        let index = index.max(Index(1));
        let full_at = if now >= self.full_at { now + self.full_every } else { self.full_at };
        let after = if index < self.after { Index::ZERO } else { index };
        Position { after, full_at, ..self }
    }

    /// After an error nothing is known: read from the start.
    #[must_use]
    pub fn failed(self) -> Self {
        Position { after: Index::ZERO, ..self }
    }
}

/// How a watch spaces its reads, so that a large tree that changes often does not drown Consul.
///
/// Each read consumes `cost_factor` times what it cost; time refills it, and the next read waits until no
/// more than `burst` of it is left. So single changes, however large the tree, are read at once, and under
/// unceasing ones reading takes at most the share `1 / (1 + cost_factor)` of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollPolicy {
    /// At least this long from one answer to the next request.
    pub min_pause: Duration,
    /// A read that took `d` consumes `d * cost_factor` of the budget.
    pub cost_factor: u32,
    /// So much may be consumed before reads are delayed.
    pub burst: Duration,
    /// Never longer than this.
    pub max_pause: Duration,
    /// What of a large tree is read when it has changed.
    pub reading: Reading,
}

/// What of a tree of [`Sizes::many`] entries or more is read when it has changed. Consul takes 4 ms for a list of 100 records
/// and 15 ms for one of 700, and less than 2 ms for their keys; so the keys are what is waited on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The parts that have changed, this long after the wake-up.
    Parts(Duration),
    /// All of it, this long after the wake-up: for what nobody waits for.
    Whole(Duration),
}

impl PollPolicy {
    /// For trees on which latency depends.
    pub const PROMPT: PollPolicy = PollPolicy {
        min_pause: Duration::ZERO,
        cost_factor: 2,
        burst: Duration::from_millis(100),
        max_pause: Duration::from_secs(5),
        reading: Reading::Parts(Duration::ZERO),
    };
    /// For trees that become large and change without pause while much is under way: a single change is read at once,
    /// under unceasing ones each of them is read a ninth of the time.
    pub const BULK: PollPolicy = PollPolicy {
        min_pause: Duration::ZERO,
        cost_factor: 8,
        burst: Duration::from_millis(100),
        max_pause: Duration::from_secs(5),
        reading: PollPolicy::PROMPT.reading,
    };
    /// For locks, which we ourselves change most: not while the first transaction under a new one is under way.
    pub const LOCKS: PollPolicy =
        PollPolicy { reading: Reading::Parts(Duration::from_millis(20)), ..PollPolicy::PROMPT };
    /// For large trees that are only looked at to check what is already known.
    pub const RESYNC: PollPolicy = PollPolicy {
        min_pause: Duration::from_millis(500),
        cost_factor: 60,
        burst: Duration::ZERO,
        max_pause: Duration::from_secs(60),
        reading: Reading::Whole(Duration::ZERO),
    };
    /// For the trees that grow with the pods, which only farms write: they are read whole, never while the transaction
    /// that woke their watch is still being answered, and not both at once.
    pub const PODS: PollPolicy = PollPolicy {
        cost_factor: 400,
        max_pause: Duration::from_secs(20),
        reading: Reading::Whole(Duration::from_millis(150)),
        ..PollPolicy::RESYNC
    };
    /// See [`PollPolicy::PODS`].
    pub const INTENTS: PollPolicy =
        PollPolicy { reading: Reading::Whole(Duration::from_millis(300)), ..PollPolicy::PODS };
}

/// Budget of a watch: the time consumed by its reads that has not been refilled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget(Duration);

impl Budget {
    /// The budget after a read that cost `cost` to transfer and digest, `rested` after the one before.
    #[must_use]
    pub fn after_read(self, poll_policy: PollPolicy, rested: Duration, cost: Duration) -> Budget {
        let owed = self.0.saturating_sub(rested).saturating_add(cost * poll_policy.cost_factor);
        Budget(owed.min(poll_policy.max_pause.saturating_add(poll_policy.burst)))
    }

    /// How long the next read waits.
    #[must_use]
    pub fn pause(self, poll_policy: PollPolicy) -> Duration {
        poll_policy
            .min_pause
            .max(self.0.saturating_sub(poll_policy.burst))
            .min(poll_policy.max_pause)
    }
}

/// A prefix being watched. Each call of [`TreeWatch::next`] gives the whole tree as it is then.
///
/// Of a large tree not all need be read for that: see [`Reading`]. What then comes back holds, of every key, all that
/// the answer's index promises, and of some keys more.
pub struct TreeWatch {
    reader: Arc<dyn Reader>,
    prefix: Prefix,
    position: Position,
    full_every: Duration,
    confirmed: bool,
    reading: Reading,
    sizes: Sizes,
    parts: IncrementalReader,
    /// Entries of the last answer.
    entries: usize,
    /// What was read for it.
    transferred: Transferred,
}

/// A server that answers at once without news is asked again after this long.
const NO_NEWS_PAUSE: Duration = Duration::from_millis(10);

impl TreeWatch {
    /// A watch on `prefix` that reads everything anew at least every `full_every`.
    #[must_use]
    pub fn new(reader: Arc<dyn Reader>, prefix: Prefix, full_every: Duration) -> Self {
        Self::reading(reader, prefix, full_every, PollPolicy::PROMPT.reading)
    }

    /// The same, of which large trees are read in another way.
    #[must_use]
    pub fn reading(
        reader: Arc<dyn Reader>,
        prefix: Prefix,
        full_every: Duration,
        reading: Reading,
    ) -> Self {
        let (position, sizes) = (Position::start(Instant::now(), full_every), Sizes::default());
        TreeWatch {
            reader,
            prefix,
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

    /// The prefix.
    #[must_use]
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// Whether the last answer was one that the leader confirmed.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// How much was read for the last answer.
    #[must_use]
    pub fn transferred(&self) -> Transferred {
        self.transferred
    }

    /// Makes the next read answer at once.
    pub fn reset(&mut self) {
        self.position = Position::start(Instant::now(), self.full_every);
    }

    /// Waits for the tree to change (or for the wait to end) and gives it whole.
    ///
    /// # Errors
    /// Any [`StoreError`]; the next call then reads from the start. The caller paces itself.
    pub async fn next(&mut self) -> Result<Answer<Vec<Entry>>, StoreError> {
        loop {
            let query = self.position.query(Instant::now());
            self.confirmed = query.consistency == Consistency::Consistent;
            let all_at_once = query.wait.is_none() || self.entries < self.sizes.many;
            let read = match all_at_once {
                true => self.all(query).await.map(Some),
                false => self.changes(query).await,
            };
            match read {
                Ok(Some(answer)) => {
                    self.position = self.position.answered(answer.index, Instant::now());
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

    async fn all(&mut self, query: Query) -> Result<Answer<Vec<Entry>>, StoreError> {
        let answer = self.reader.list(&self.prefix, query).await?;
        self.transferred = Transferred { entries: answer.value.len(), names: 0 };
        match self.reading {
            Reading::Parts(_) => self.parts.are_all(&answer.value),
            Reading::Whole(_) => {}
        }
        Ok(answer)
    }

    /// Waits for a key to change, and reads what is to be read then. `None`: there is no news.
    async fn changes(&mut self, query: Query) -> Result<Option<Answer<Vec<Entry>>>, StoreError> {
        let (folded, pause) = match self.reading {
            Reading::Parts(pause) => (None, pause),
            Reading::Whole(pause) => (Some("/"), pause),
        };
        let after = query.wait.map_or(Index::ZERO, |wait| wait.after);
        let keys = self.reader.keys(&self.prefix, folded, query).await?;
        if keys.index <= after {
            let is_cut = keys.filtered || keys.value.len() != self.entries;
            if folded.is_none() && is_cut {
                // Rights that were lost change no index.
                return self.all(Query::CONSISTENT).await.map(Some);
            }
            self.position = self.position.answered(keys.index, Instant::now());
            sleep(NO_NEWS_PAUSE).await;
            return Ok(None);
        }
        sleep(pause).await;
        let parts = match self.reading {
            Reading::Parts(_) => self.parts.changed(self.reader.as_ref(), after, keys).await?,
            Reading::Whole(_) => None,
        };
        let Some(parts) = parts else { return self.all(query).await.map(Some) };
        self.transferred = parts.transferred;
        Ok(Some(parts.answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(300);

    #[test]
    fn an_index_that_goes_back_is_read_as_zero() {
        let now = Instant::now();
        let p = Position::start(now, EVERY).answered(Index(40), now);
        assert_eq!(p.query(now).wait.unwrap().after, Index(40));
        assert_eq!(p.answered(Index(39), now).query(now), Query::CONSISTENT);
    }

    #[test]
    fn index_zero_counts_as_one() {
        let now = Instant::now();
        let p = Position::start(now, EVERY).answered(Index(0), now);
        assert_eq!(p.query(now).wait.unwrap().after, Index(1));
    }

    #[test]
    fn now_and_then_everything_is_read_anew() {
        let now = Instant::now();
        let p = Position::start(now, EVERY).answered(Index(40), now);
        assert_eq!(p.query(now + EVERY), Query::CONSISTENT);
        let p = p.answered(Index(40), now + EVERY);
        assert_eq!(p.query(now + EVERY).wait.unwrap().at_most, LONGEST_WAIT);
    }

    #[test]
    fn after_an_error_the_next_read_answers_at_once() {
        let now = Instant::now();
        let p = Position::start(now, EVERY).answered(Index(40), now).failed();
        assert_eq!(p.query(now), Query::CONSISTENT);
    }

    #[test]
    fn a_costly_tree_is_read_less_often() {
        let ms = Duration::from_millis;
        let single = |poll_policy: PollPolicy, cost| {
            Budget::default().after_read(poll_policy, ms(0), cost).pause(poll_policy)
        };
        assert_eq!(single(PollPolicy::RESYNC, ms(1)), ms(500));
        assert_eq!(single(PollPolicy::RESYNC, ms(300)), ms(18_000));
        assert_eq!(single(PollPolicy::RESYNC, ms(30_000)), ms(60_000));
        assert_eq!(single(PollPolicy::PROMPT, ms(10)), ms(0));
        assert_eq!(single(PollPolicy::PROMPT, ms(100)), ms(100));
    }

    #[test]
    fn changes_now_and_then_are_read_at_once_and_unceasing_ones_are_not() {
        let ms = Duration::from_millis;
        let poll_policy = PollPolicy::PROMPT;
        let pauses = |every: Duration| {
            let mut budget = Budget::default();
            (0..1_000).map(move |_| {
                let before = budget.pause(poll_policy);
                budget = budget.after_read(poll_policy, before.max(every), ms(10));
                budget.pause(poll_policy)
            })
        };
        assert_eq!(pauses(ms(50)).max(), Some(ms(0)));
        assert_eq!(pauses(ms(0)).skip(100).max(), Some(ms(20)));
    }
}
