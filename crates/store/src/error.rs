//! Failures of requests to Consul. Refusals (lost CAS, busy lock) are not errors.

use rcfarm_api::ids::SessionId;

/// Whether a failed write was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryVerdict {
    /// Not applied, and never will be.
    NotApplied,
    /// Unknown. It may even be applied seconds later (`consul-semantics.md` §0 #14). Read before deciding.
    Unknown,
}

/// A failed request. [`StoreError::is_retryable`] and [`StoreError::verdict`] classify it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The Consul agent could not be reached; nothing was sent.
    #[error("Consul cannot be reached: {detail}")]
    Unreachable {
        /// Message of the transport.
        detail: String,
    },
    /// No answer in time.
    #[error("no answer from Consul within {after:?}")]
    Timeout {
        /// The timeout.
        after: std::time::Duration,
    },
    /// The connection broke, or the leader was lost, during the request.
    #[error("Consul broke off the request: {detail}")]
    Interrupted {
        /// Message of the transport or of Consul.
        detail: String,
    },
    /// The cluster has no leader.
    #[error("the Consul cluster has no leader")]
    NoLeader,
    /// Consul limits the request rate (429, 503).
    #[error("Consul refuses for load (HTTP {status})")]
    Overloaded {
        /// 429 or 503.
        status: u16,
    },
    /// The token may not do this.
    #[error("permission denied: {what} (check CONSUL_HTTP_TOKEN and its policy)")]
    Forbidden {
        /// Method and path, or the prefix, that was refused.
        what: String,
    },
    /// The session does not exist.
    #[error("session {session} is gone")]
    SessionGone {
        /// The session.
        session: SessionId,
    },
    /// Too many operations or bytes.
    #[error("request too large: {detail}")]
    TooLarge {
        /// Message of Consul.
        detail: String,
    },
    /// Any other error answer of Consul, such as a bad parameter or an unknown check.
    #[error("Consul answered HTTP {status}: {body}")]
    Rejected {
        /// HTTP status.
        status: u16,
        /// The body, shortened.
        body: String,
    },
    /// The answer could not be understood.
    #[error("cannot decode Consul's answer about {what}: {detail}")]
    Decode {
        /// What the request was about.
        what: String,
        /// Message of the decoder.
        detail: String,
    },
}

impl StoreError {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            StoreError::Unreachable { .. }
                | StoreError::Timeout { .. }
                | StoreError::Interrupted { .. }
                | StoreError::NoLeader
                | StoreError::Overloaded { .. }
        )
    }

    /// Whether the request was applied, if it was a write.
    pub fn verdict(&self) -> RetryVerdict {
        match self {
            StoreError::Timeout { .. }
            | StoreError::Interrupted { .. }
            | StoreError::Decode { .. } => RetryVerdict::Unknown,
            _ => RetryVerdict::NotApplied,
        }
    }

    /// Whether a write that failed so may have been applied.
    pub fn outcome_unknown(&self) -> bool {
        self.verdict() == RetryVerdict::Unknown
    }
}
