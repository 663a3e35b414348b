//! State machine of a status chain. Pure: no I/O, no clock.
//!
//! It holds the index and value of the status as the owner knows them, and what may still happen to transactions whose
//! answers were lost. [`super`] builds the transactions and reads.
//!
//! ```text
//!            next()            answered(): applied
//!   current ───────> in flight ───────────────────> current, at the new index
//!      ^                 │ refused: the record or shared operations only ──> current
//!      │                 │ refused: anything else ──> behind
//!      │                 │ outcome unknown ──> behind; read back: own status ──> current
//!      └──── refreshed() ┴── behind
//! ```

use std::time::Duration;

use rcfarm_api::{Index, backoff};

/// Pause after a refused transaction; doubled with each refusal in a row.
const AFTER_REFUSAL: Duration = Duration::from_millis(50);
/// Upper bound of the pause after refusals.
const LONGEST_AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// A value that each transaction of its owner replaces.
pub trait Revisioned: Clone + Default + PartialEq {
    /// Incremented by each transaction of an owner.
    fn revision(&mut self) -> &mut u64;
}

/// What a transaction does to the status.
#[derive(Debug, Clone, PartialEq)]
pub enum StatusWrite<S> {
    /// Replaces it. The chain sets `revision`.
    Replace(S),
    Delete,
    /// Leaves it unchanged. The transaction is no link of the chain; its own operations must make it idempotent.
    Leave,
}

/// Consul's answer to a transaction of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitAnswer {
    Applied(Index),
    /// Not applied: these parts were refused.
    Refused(RefusedParts),
    /// Not applied, and never will be.
    NotApplied,
    /// The answer was lost: it may be applied now, later, or never.
    Unknown,
}

/// The parts of a transaction that Consul refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusedParts {
    /// The record is not the one that the plan saw.
    pub record: bool,
    /// The status, an operation on keys of this owner, or the audit record.
    pub own: bool,
    /// Positions among [`super::Change::shared`].
    pub shared: Vec<usize>,
}

/// What the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The transaction was applied at this index.
    Applied(Index),
    /// It was not applied.
    NotApplied,
    /// Unknown: read the status and pass it to [`Machine::read_back`].
    ReadBack,
}

/// State of an owner in the chain of its record's statuses.
#[derive(Debug, Clone)]
pub struct Machine<S> {
    index: Index,
    status: S,
    /// Status and caches may be older than the last write. Both are read before the next plan.
    behind: bool,
    /// Replacements of the status at `index` whose answers were lost. Any of them may still be applied, until another
    /// transaction was.
    lost: Vec<S>,
    /// Whether transactions that only check the status may be in flight. They can be applied as long as it stays at
    /// `index`.
    open: bool,
    /// Refusals since a transaction was last applied.
    refusals: u32,
}

impl<S: Revisioned> Machine<S> {
    /// Starts from a status read at the claim. `None`: it was not read, so the owner is behind.
    ///
    /// The previous owner may have left transactions in flight, so the machine is open.
    pub fn new(read: Option<(Index, S)>) -> Self {
        let behind = read.is_none();
        let (index, status) = read.unwrap_or_default();
        Machine { index, status, behind, lost: Vec::new(), open: true, refusals: 0 }
    }

    /// The status as last read or written; the default if there is none.
    pub fn status(&self) -> &S {
        &self.status
    }

    /// ModifyIndex of the status; 0 if there is none.
    pub fn index(&self) -> Index {
        self.index
    }

    /// Whether status and caches must be read before the next plan.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Requires that status and caches are read before the next plan.
    pub fn fall_behind(&mut self) {
        self.behind = true;
    }

    /// Whether transactions that only check the status may be in flight.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Sets whether transactions that only check the status may be in flight.
    pub fn set_open(&mut self, open: bool) {
        self.open = open;
    }

    /// The write to send: a replacement gets the next revision.
    pub fn next(&self, write: StatusWrite<S>) -> StatusWrite<S> {
        let mut write = write;
        if let StatusWrite::Replace(status) = &mut write {
            let mut before = self.status.clone();
            *status.revision() = *before.revision() + 1;
        }
        write
    }

    /// Processes the answer to a transaction that carried `sent`, as returned by [`Machine::next`].
    pub fn answered(&mut self, sent: StatusWrite<S>, answer: &CommitAnswer) -> Next {
        match answer {
            CommitAnswer::Applied(index) => {
                self.applied(sent, *index);
                Next::Applied(*index)
            }
            CommitAnswer::Refused(refused) => {
                self.refuse(refused);
                Next::NotApplied
            }
            CommitAnswer::NotApplied => Next::NotApplied,
            CommitAnswer::Unknown => {
                self.behind = true;
                match sent {
                    StatusWrite::Replace(status) => {
                        self.lost.push(status);
                        Next::ReadBack
                    }
                    // A missing status does not say who deleted it. An unchanged one says nothing.
                    StatusWrite::Delete | StatusWrite::Leave => Next::NotApplied,
                }
            }
        }
    }

    /// Processes what was read after [`Next::ReadBack`]. `true`: the transaction sent last was applied, at this index.
    ///
    /// Otherwise the owner stays behind: the plan was not applied, or an earlier transaction was, or somebody else
    /// wrote the status.
    pub fn read_back(&mut self, index: Index, status: &S) -> bool {
        // With several lost attempts, any may have been applied: they may write the same status with different
        // operations.
        let [only] = &self.lost[..] else { return false };
        if index == self.index || status != only {
            return false;
        }
        let own = status.clone();
        self.applied(StatusWrite::Replace(own), index);
        self.behind = false;
        true
    }

    /// Processes a status that was read before the caches were read again.
    pub fn refreshed(&mut self, index: Index, status: S) {
        if index != self.index {
            self.lost.clear();
        }
        (self.index, self.status) = (index, status);
    }

    /// The caches are as new as the status.
    pub fn caught_up(&mut self) {
        self.behind = false;
    }

    /// Counts a refusal. If more than the record or shared operations was refused, the owner's own view is out of date.
    pub fn refuse(&mut self, refused: &RefusedParts) {
        self.refusals = self.refusals.saturating_add(1);
        self.behind |= refused.own;
    }

    /// The pause before the next attempt, without jitter.
    pub fn pause(&self) -> Duration {
        backoff(AFTER_REFUSAL, LONGEST_AFTER_REFUSAL, self.refusals.saturating_sub(1))
    }

    fn applied(&mut self, write: StatusWrite<S>, index: Index) {
        self.refusals = 0;
        match write {
            StatusWrite::Replace(status) => (self.index, self.status) = (index, status),
            StatusWrite::Delete => (self.index, self.status) = (Index::ZERO, S::default()),
            StatusWrite::Leave => return,
        }
        self.lost.clear();
        self.open = false;
    }
}

#[cfg(test)]
mod tests;
