//! Faults of the connection between one process and Consul.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use rcfarm_store::Prefix;
use rcfarm_store::time::monotonic;

/// Faults of one process's connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkFaults {
    /// Longest travel time of a request or an answer.
    #[serde(with = "millis")]
    pub latency: Duration,
    /// Longest extra delay of answers to lists; their content is as old.
    #[serde(with = "millis")]
    pub slow_lists: Duration,
    /// Requests that never arrive, in a thousand.
    pub lost: u32,
    /// Requests that are executed and never answered, in a thousand.
    pub reply_lost: u32,
    /// Writes that are interrupted and executed up to 5 s later, in a thousand.
    pub late: u32,
    /// Reads that a deposed leader answers, in a thousand.
    pub stale: u32,
    /// Lists whose index is 1, as after a restored snapshot, in a thousand.
    pub index_reset: u32,
    /// Requests that are refused for load (429, 503) or size (413), in a thousand.
    pub overloaded: u32,
    /// No message arrives in either direction.
    pub cut: bool,
    /// Answers do not arrive; requests do.
    pub deaf: bool,
    /// There is no leader: every request fails but a stale read.
    pub leaderless: bool,
    /// Writes wait until then.
    #[serde(skip)]
    pub stalled_until: Option<Instant>,
    /// The token may not read below this prefix: lists are empty, single reads are refused.
    #[serde(skip)]
    pub hidden: Option<Prefix>,
    /// The token may not write.
    pub forbidden: bool,
    /// The agent refuses to register services.
    pub no_checks: bool,
}

impl NetworkFaults {
    /// Whether writes wait now.
    #[must_use]
    pub fn stalls(&self) -> bool {
        self.stalled_until.is_some_and(|until| until > monotonic())
    }
}

/// Durations in whole milliseconds.
pub mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes one.
    ///
    /// # Errors
    /// What the serializer says.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    /// Reads one.
    ///
    /// # Errors
    /// What the deserializer says.
    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}
