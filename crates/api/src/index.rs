//! Consul's Raft index, as keys and transactions carry it.

use serde::{Deserialize, Serialize};

/// A Raft index. 0 means "none": nothing was read yet, or the key must not exist.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Index(pub u64);

impl Index {
    /// No index: "from the start" in a read, "must not exist" in a CAS.
    pub const ZERO: Index = Index(0);

    /// The index after this one.
    #[must_use]
    pub fn next(self) -> Index {
        Index(self.0 + 1)
    }
}

impl std::fmt::Display for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
