//! Consul answers 404 both for "nothing there" and for "you may not look" (`consul-semantics.md` §0 #13), and a
//! restored snapshot or a slip of the hand can empty a tree. So a tree that shrinks suddenly is not trusted.

use std::fmt;

use crate::failpoints::{Failpoint, enabled};

/// Why a tree is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UntrustedReason {
    /// It was this large and is now less than half of it.
    Shrunk {
        /// Entries when last trusted.
        from: usize,
        /// Entries now.
        to: usize,
    },
    /// Consul says that rights hide a part of it.
    Filtered,
}

impl fmt::Display for UntrustedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UntrustedReason::Shrunk { from, to } => {
                write!(f, "it shrank from {from} to {to} entries")
            }
            UntrustedReason::Filtered => write!(f, "the token may read only a part of it"),
        }
    }
}

/// A tree may lose this many entries at once before the guard holds removals back.
const FEW: usize = 4;

/// Judges a tree that had `trusted` entries when last trusted and has `now`.
#[must_use]
pub fn judge(trusted: usize, now: usize, filtered: bool) -> Option<UntrustedReason> {
    if enabled(Failpoint::NoEmptinessGuard) {
        return None;
    }
    if filtered {
        return Some(UntrustedReason::Filtered);
    }
    let lost = trusted.saturating_sub(now);
    let gone = now == 0 && trusted > 1;
    (gone || (lost > FEW && now < trusted.div_ceil(2)))
        .then_some(UntrustedReason::Shrunk { from: trusted, to: now })
}

/// Whether a tree that is empty now was not so when last read, or was not believed: then it is asked whether it may be
/// read at all. Of a single entry that is gone nothing else would show that it is only hidden.
#[must_use]
pub fn emptied(entries: usize, untrusted: Option<&UntrustedReason>) -> bool {
    !enabled(Failpoint::NoEmptinessGuard) && (entries > 0 || untrusted.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_loses_more_than_half_at_once_is_not_trusted() {
        for (trusted, now, is_trusted) in [
            (0, 0, true),
            (1, 0, true),
            (2, 0, false),
            (4, 1, true),
            (10, 5, true),
            (10, 4, false),
            (1000, 500, true),
            (1000, 499, false),
            (3, 100, true),
        ] {
            assert_eq!(judge(trusted, now, false).is_none(), is_trusted, "{trusted} -> {now}");
        }
        assert_eq!(judge(5, 5, true), Some(UntrustedReason::Filtered));
    }
}
