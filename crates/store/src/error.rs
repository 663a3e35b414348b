//! Failures of the store. A refusal is not among them.

use rcfarm_api::ids::SessionId;

/// What a failed request did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryVerdict {
    /// It was not applied and never will be.
    NotApplied,
    /// Nobody knows; it may even be applied seconds from now (`consul-semantics.md` §0 #14). Read before deciding.
    Unknown,
}

/// A failure, with what a caller needs to know: may it be tried again, and may it have happened?
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The agent could not be reached; nothing was sent.
    #[error("Consul cannot be reached: {detail}")]
    Unreachable {
        /// The transport's words.
        detail: String,
    },
    /// No answer in time.
    #[error("no answer from Consul within {after:?}")]
    Timeout {
        /// The limit that passed.
        after: std::time::Duration,
    },
    /// The connection died, or the leader went away in the middle of the request.
    #[error("Consul broke off the request: {detail}")]
    Interrupted {
        /// The transport's or Consul's words.
        detail: String,
    },
    /// The cluster has no leader now.
    #[error("the Consul cluster has no leader")]
    NoLeader,
    /// Consul asks for fewer requests (429, 503).
    #[error("Consul refuses for load (HTTP {status})")]
    Overloaded {
        /// 429 or 503.
        status: u16,
    },
    /// The token may not do this.
    #[error("permission denied: {what} (check CONSUL_HTTP_TOKEN and its policy)")]
    Forbidden {
        /// What was asked for.
        what: String,
    },
    /// The session does not exist (any more).
    #[error("session {session} is gone")]
    SessionGone {
        /// The session.
        session: SessionId,
    },
    /// Too many operations or bytes.
    #[error("request too large: {detail}")]
    TooLarge {
        /// Consul's words.
        detail: String,
    },
    /// Any other refusal by Consul: a bad parameter, an unknown check, …
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
        /// What was read.
        what: String,
        /// What was wrong.
        detail: String,
    },
}

impl StoreError {
    /// Whether the same request may succeed later.
    #[must_use]
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

    /// What the failed request did, if it was a write.
    #[must_use]
    pub fn verdict(&self) -> RetryVerdict {
        match self {
            StoreError::Timeout { .. }
            | StoreError::Interrupted { .. }
            | StoreError::Decode { .. } => RetryVerdict::Unknown,
            _ => RetryVerdict::NotApplied,
        }
    }

    /// Whether a write that failed so may have been applied.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.verdict() == RetryVerdict::Unknown
    }
}
