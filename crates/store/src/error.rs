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

    /// What to do if TLS, or its absence, is the cause. `None`: it is not, as far as the message says.
    #[must_use]
    pub fn tls_remedy(&self) -> Option<&'static str> {
        let is_of_tls = matches!(
            self,
            StoreError::Unreachable { .. }
                | StoreError::Interrupted { .. }
                | StoreError::Rejected { .. }
        );
        let text = self.to_string().to_lowercase();
        let mut remedies = TLS_REMEDIES.iter().filter(|_| is_of_tls);
        let found = remedies.find(|(words, _)| words.iter().any(|word| text.contains(word)));
        // A server that misses a client certificate may close the connection before its reason is read.
        let is_closed = is_of_tls && text.contains("https://") && text.contains("channel closed");
        found.map(|(_, remedy)| *remedy).or(is_closed.then_some(
            "the server closed the connection; if it wants a client certificate: --client-cert and --client-key, \
             CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY",
        ))
    }
}

/// Remedies for failures of TLS: words of the error, in lower case, and what to do.
const TLS_REMEDIES: [(&[&str], &str); 6] = [
    (
        &["http request to an https server"],
        "this port speaks TLS: give the address as https://HOST:PORT, or set CONSUL_HTTP_SSL=true",
    ),
    (
        &["corrupt message", "invalidcontenttype", "wrong version number"],
        "this port does not speak TLS: give the address as http://HOST:PORT, or the agent's HTTPS port",
    ),
    (
        &[
            "unknownissuer",
            "unknown issuer",
            "unknown authority",
            "causedasendentity",
            "badsignature",
        ],
        "the server's certificate is of an authority that is not trusted here: name it with --ca-file or CONSUL_CACERT",
    ),
    (
        &["notvalidforname", "not valid for name"],
        "the server's certificate has another name: give that name as the address, with --tls-server-name, or in \
         CONSUL_TLS_SERVER_NAME",
    ),
    (
        &[
            "certificate expired",
            "certificateexpired",
            "certificate: expired",
            "certificate has expired",
            "notvalidyet",
            "not valid yet",
        ],
        "renew the server's certificate, or correct the clock of this machine",
    ),
    (
        &[
            "certificaterequired",
            "certificate required",
            "badcertificate",
            "bad certificate",
            "handshakefailure",
        ],
        "the server wants a client certificate of its authority: --client-cert and --client-key, CONSUL_CLIENT_CERT and \
         CONSUL_CLIENT_KEY",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_of_tls_follows_the_message() {
        for (detail, remedy) in [
            ("invalid peer certificate: UnknownIssuer", "--ca-file"),
            ("invalid peer certificate: BadSignature", "--ca-file"),
            ("invalid peer certificate: certificate not valid for name \"x\"", "--tls-server-name"),
            ("received fatal alert: CertificateRequired", "--client-cert"),
            ("https://127.0.0.1:8501/: channel closed", "--client-cert"),
            ("received corrupt message of type InvalidContentType", "http://"),
            ("invalid peer certificate: Expired", "renew"),
            ("received fatal alert: CertificateExpired", "renew"),
        ] {
            let error = StoreError::Unreachable { detail: detail.to_owned() };
            let found = error.tls_remedy().unwrap_or_default();
            assert!(found.contains(remedy), "{detail}: {found}");
        }
        let refused = StoreError::Unreachable { detail: "connection refused".to_owned() };
        assert_eq!(refused.tls_remedy(), None);
        let body = "session expired, log in again".to_owned();
        let of_a_proxy = StoreError::Rejected { status: 403, body };
        assert_eq!(of_a_proxy.tls_remedy(), None);
        let body = "Client sent an HTTP request to an HTTPS server.\n".to_owned();
        let error = StoreError::Rejected { status: 400, body };
        assert!(error.tls_remedy().unwrap().contains("https://"));
    }
}
