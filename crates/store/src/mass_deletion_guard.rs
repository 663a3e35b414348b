//! Mass-deletion guard: a tree that suddenly shrinks is not trusted, and nothing is removed because of it.
//!
//! Consul answers 404 both for an empty prefix and for one that the token may not read (`consul-semantics.md` §0 #13).
//! A restored snapshot or an operator's mistake can empty a tree too.

use std::fmt;

/// Why a tree is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UntrustedReason {
    /// More than half of its entries vanished at once.
    Shrunk {
        /// Entries when last trusted.
        from: usize,
        /// Entries now.
        to: usize,
    },
    /// Consul reports that ACLs hide a part of it.
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

/// A loss of at most this many entries is trusted, unless the tree is then empty.
const SMALL_LOSS: usize = 4;

/// Judges a tree of `now` entries that had `trusted` entries when last trusted. `None`: it is trusted.
pub fn judge(trusted: usize, now: usize, filtered: bool) -> Option<UntrustedReason> {
    if filtered {
        return Some(UntrustedReason::Filtered);
    }
    let lost = trusted.saturating_sub(now);
    let gone = now == 0 && trusted > 1;
    (gone || (lost > SMALL_LOSS && now < trusted.div_ceil(2)))
        .then_some(UntrustedReason::Shrunk { from: trusted, to: now })
}

/// Whether the token's rights must be checked for a tree that is empty now: it had entries when last read, or was not
/// trusted. [`judge`] trusts the loss of a single entry, although lost rights may only hide it.
pub fn emptied(entries: usize, untrusted: Option<&UntrustedReason>) -> bool {
    entries > 0 || untrusted.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judge_distrusts_a_tree_that_loses_more_than_half_at_once() {
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
