//! What must never happen, looked at after every applied write. The numbers are those of the list of invariants.
//!
//! | file | invariants |
//! |---|---|
//! | `ownership.rs` | 1 owner, 2 deadline, 3 selector, 4 nothing left behind |
//! | `replication.rs` | 6 counts, 7 places, 8 whole pods, 9 own pods, 10 disabled, 11 health, 12 bad records, 13 no cause, 14 promises |
//! | `audit.rs` | 15 the log is the state, one entry per transition, an unbroken chain |
//! | `liveness.rs` | 27 desired state, 28 take-over, 29 rest, 12 again: after the faults have ended |
//!
//! Invariant 5 (each layer holds alone) is what the mutations show: `docs/contribute/failpoints.md`. Jobs, gangs and queues (16 to
//! 25) have a scenario of their own, in `../batch/`. A new group here is one function of a [`AppliedWrite`] and the
//! [`Picture`], called in [`check`], and what it reads of the store is decoded in `picture.rs`.
//!
//! What a farm decides it decides on views that are a moment old, and not everything is guarded in the transaction.
//! Where a rule is about such things (labels of nodes, health), it holds if there was a moment within [`VIEW`] at
//! which the write would have been right.

pub mod audit;
pub mod liveness;
pub mod ownership;
mod picture;
pub mod replication;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use picture::{Item, Picture, PicturePod, Unfit};

use super::checker::SimActor;
use super::process::WallClock;
use rcfarm_api::ids::{FarmName, RcId, SessionId};
use rcfarm_api::key;
use rcfarm_api::labels::Selector;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_emulator::{KvChange, KvOp, Verb};

/// A view that a live farm acts on is at most this old.
pub const VIEW: Duration = Duration::from_secs(25);

/// Something that must not happen, and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The number in the list of invariants.
    pub invariant: u32,
    /// What happened.
    pub what: String,
}

/// Collects violations.
pub type Say<'a> = &'a mut dyn FnMut(u32, String);

/// One applied write of one actor.
pub struct AppliedWrite<'a> {
    /// When, since the start.
    pub at: Duration,
    /// Whose.
    pub actor: SimActor,
    /// What it changed, and of what kind that is.
    pub changes: Vec<(Item, &'a KvChange)>,
    /// The record that a controller's transaction is about, and its status before; see [`record_of`].
    pub record: Option<(RcId, RcStatus)>,
}

/// What is known of a process.
#[derive(Debug, Clone)]
pub struct SimProcess {
    /// The farm.
    pub farm: FarmName,
    /// Which records it may claim.
    pub selector: Selector,
}

/// What the checks know besides the store.
#[derive(Default)]
pub struct CheckFacts {
    /// The processes, each start of a farm being one.
    pub processes: BTreeMap<u32, SimProcess>,
    /// The clock that each goes by.
    pub clocks: BTreeMap<u32, Arc<WallClock>>,
    /// Whose each session is.
    pub sessions: BTreeMap<SessionId, u32>,
    /// Since when each process has looked at the store.
    pub looks_since: BTreeMap<u32, Duration>,
    /// The session that each process relies on.
    pub current: BTreeMap<u32, SessionId>,
    /// Records whose pods a user changed by hand, so that the log cannot know them, and when last.
    pub by_hand: BTreeMap<RcId, Duration>,
}

/// The record that a controller's transaction is about: the one whose status it replaces.
#[must_use]
pub fn record_of(ops: &[KvOp]) -> Option<RcId> {
    let statuses = key::rc_statuses();
    ops.iter().filter(|op| op.verb != Verb::Get).find_map(|op| {
        let tail = statuses.tail(&op.key)?.split_once('/')?.0;
        tail.parse().ok()
    })
}

impl AppliedWrite<'_> {
    /// The record that it is about.
    #[must_use]
    pub fn record(&self) -> Option<RcId> {
        self.record.as_ref().map(|(id, _)| *id)
    }

    /// Whose pods it changed: those that had them, and those that have them now.
    #[must_use]
    pub fn owners_of_pods(&self) -> BTreeSet<RcId> {
        let pods = self.changes.iter().filter(|(item, _)| matches!(item, Item::Pod(_)));
        let sides = pods.flat_map(|(_, change)| [&change.before, &change.after]).flatten();
        sides.filter_map(|entry| PicturePod::of(entry).rc).collect()
    }

    /// The process, if one did it.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        match self.actor {
            SimActor::Process(n) => Some(n),
            _ => None,
        }
    }
}

/// Looks at one write; `picture` is what it left.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    picture: &Picture,
    facts: &CheckFacts,
    say: Say<'_>,
) {
    ownership::check(applied_write, picture, facts, say);
    replication::check(applied_write, picture, facts, say);
    audit::check(applied_write, picture, facts, say);
}
