//! Timers of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rcfarm_api::ids::SessionId;

/// An event that is due at some time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The TTL of a check ends: it turns critical.
    Check { node: String, check: String },
    /// A check was critical for `deregister_after`: the agent deregisters its service.
    Forget { node: String, check: String },
    /// A session was not renewed for twice its TTL: it expires.
    Session(SessionId),
    /// Old tombstones are removed.
    Reap,
}

/// Timers by time; those due at the same moment fire in the order of [`Timer`].
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_time: BTreeSet<(Duration, Timer)>,
    by_what: BTreeMap<Timer, Duration>,
}

impl Timers {
    pub(super) fn set(&mut self, timer: Timer, at: Duration) {
        self.clear(&timer);
        self.by_what.insert(timer.clone(), at);
        self.by_time.insert((at, timer));
    }

    pub(super) fn clear(&mut self, timer: &Timer) {
        if let Some((timer, at)) = self.by_what.remove_entry(timer) {
            self.by_time.remove(&(at, timer));
        }
    }

    pub(super) fn runs(&self, timer: &Timer) -> bool {
        self.by_what.contains_key(timer)
    }

    pub(super) fn next(&self) -> Option<Duration> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes the next timer that is due.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<(Duration, Timer)> {
        if self.next()? > now {
            return None;
        }
        let (at, timer) = self.by_time.pop_first()?;
        self.by_what.remove(&timer);
        Some((at, timer))
    }
}
