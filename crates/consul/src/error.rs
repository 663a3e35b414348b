//! Classification of failures: was the request applied, and may it be retried? (`consul-semantics.md` §6.2)

use std::fmt;
use std::time::Duration;

use consulrs::error::ClientError;
use rustify::errors::ClientError as RestError;

use rcfarm_api::ids::SessionId;
use rcfarm_store::StoreError;

/// Action and subject of a request, for messages such as "writing a/b".
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestContext<'a> {
    pub(super) doing: &'static str,
    pub(super) about: &'a str,
    pub(super) session: Option<&'a SessionId>,
}

impl<'a> RequestContext<'a> {
    pub(super) fn new(doing: &'static str, about: &'a str) -> Self {
        RequestContext { doing, about, session: None }
    }
}

impl fmt::Display for RequestContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.doing, self.about)
    }
}

/// An answer of Consul that is no success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Refused {
    pub(super) fn new(status: u16, body: &[u8]) -> Self {
        Refused { status, body: String::from_utf8_lossy(body).into_owned() }
    }

    pub(super) fn says(&self, text: &str) -> bool {
        self.body.contains(text)
    }

    /// Classifies the answer. Texts are matched as substrings, because up to two `rpc error making call: ` may precede
    /// them.
    pub(super) fn error(&self, asked: &RequestContext<'_>) -> StoreError {
        let says_any = |texts: &[&str]| texts.iter().any(|text| self.says(text));
        let detail = || shortened(&self.body);
        match self.status {
            403 => return forbidden(asked, &detail()),
            413 => return StoreError::TooLarge { detail: detail() },
            429 | 503 => return StoreError::Overloaded { status: self.status },
            // A proxy lost the connection to its agent: the request may have been applied.
            502 | 504 => return StoreError::Interrupted { detail: detail() },
            500 => {}
            _ => return StoreError::Rejected { status: self.status, body: detail() },
        }
        if says_any(NO_LEADER) {
            return StoreError::NoLeader;
        }
        if says_any(BROKEN_OFF) {
            return StoreError::Interrupted { detail: detail() };
        }
        if says_any(DENIED) {
            return forbidden(asked, &detail());
        }
        match asked.session {
            Some(session) if self.says("invalid session") => {
                StoreError::SessionGone { session: session.clone() }
            }
            _ => StoreError::Rejected { status: self.status, body: detail() },
        }
    }
}

/// Texts of errors before anything reached the Raft log. They are matched first, because such a text may contain one of
/// [`BROKEN_OFF`].
const NO_LEADER: &[&str] = &[
    "No cluster leader",
    "node is not the leader",
    "leadership transfer in progress",
    "timed out enqueuing operation",
    "failed to get conn",
    "lead thread didn't get connection",
    "connection refused",
];

/// Texts of errors after which the request may be in the Raft log.
const BROKEN_OFF: &[&str] = &[
    "leadership lost while committing log",
    "snapshot restored while committing log",
    "raft is already shutdown",
    "rpc error making call: EOF",
    "unexpected EOF",
    "stream closed",
    "stream reset",
    "session shutdown",
    "connection write timeout",
    "broken pipe",
    "connection reset",
    "i/o timeout",
    "i/o deadline reached",
    "use of closed network connection",
    "context deadline exceeded",
];

/// Texts of errors for missing rights.
pub(super) const DENIED: &[&str] = &["Permission denied", "ACL not found"];

pub(super) fn forbidden(asked: &RequestContext<'_>, says: &str) -> StoreError {
    StoreError::Forbidden { what: format!("{asked}: {says}") }
}

/// Address and time-out of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route<'a> {
    pub(super) address: &'a str,
    pub(super) limit: Duration,
}

/// Classifies a failure of the transport.
pub(super) fn transport(error: &reqwest::Error, route: Route<'_>) -> StoreError {
    let detail = format!("{}: {}", route.address, deepest_cause(error));
    // Before time-outs: a connect that timed out has sent nothing.
    if error.is_connect() || error.is_builder() {
        return StoreError::Unreachable { detail };
    }
    if error.is_timeout() {
        return StoreError::Timeout { after: route.limit };
    }
    StoreError::Interrupted { detail }
}

/// Separates a failure of consulrs into an answer of Consul (`Ok`) and any other failure.
pub(super) fn from_consulrs(
    error: ClientError,
    route: Route<'_>,
    asked: &RequestContext<'_>,
) -> Result<Refused, StoreError> {
    let source = match error {
        ClientError::APIError { code, message } => {
            return Ok(Refused { status: code, body: message.unwrap_or_default() });
        }
        ClientError::RestClientError { source } => source,
        other => return Err(undecodable(asked, &other)),
    };
    Err(match source {
        RestError::RequestError { source, .. } | RestError::ResponseError { source } => {
            match source.downcast_ref::<reqwest::Error>() {
                Some(error) => transport(error, route),
                None => StoreError::Interrupted { detail: source.to_string() },
            }
        }
        RestError::ReqwestBuildError { source } => transport(&source, route),
        RestError::ResponseParseError { source, .. } => undecodable(asked, &source),
        other => undecodable(asked, &other),
    })
}

pub(super) fn undecodable(asked: &RequestContext<'_>, error: &dyn fmt::Display) -> StoreError {
    StoreError::Decode { what: asked.about.to_owned(), detail: error.to_string() }
}

/// The message of the deepest cause. The layers above only repeat that there is one.
pub(super) fn deepest_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    cause.to_string()
}

/// A body shortened to one line of a log.
pub(super) fn shortened(body: &str) -> String {
    const LONGEST: usize = 300;
    let line = body.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_store::RetryVerdict;

    fn classify(status: u16, body: &str) -> StoreError {
        let session = SessionId::from("s");
        let asked =
            RequestContext { session: Some(&session), ..RequestContext::new("writing", "a/b") };
        Refused::new(status, body.as_bytes()).error(&asked)
    }

    #[test]
    fn what_a_500_says_decides_whether_the_write_may_have_happened() {
        for (body, retryable, verdict) in [
            ("No cluster leader", true, RetryVerdict::NotApplied),
            ("node is not the leader", true, RetryVerdict::NotApplied),
            (
                "rpc error getting client: failed to get conn: dial tcp 10.0.0.1:8300: connect: connection reset",
                true,
                RetryVerdict::NotApplied,
            ),
            ("leadership lost while committing log", true, RetryVerdict::Unknown),
            ("EOF", false, RetryVerdict::NotApplied),
            ("rpc error making call: EOF", true, RetryVerdict::Unknown),
            ("stream closed", true, RetryVerdict::Unknown),
            ("write tcp 10.0.0.1:1->10.0.0.2:2: write: broken pipe", true, RetryVerdict::Unknown),
            ("Invalid Session TTL '1000000000'", false, RetryVerdict::NotApplied),
        ] {
            for prefix in
                ["", "rpc error making call: ", "rpc error making call: rpc error making call: "]
            {
                // "EOF" alone is no message of Consul.
                if body == "EOF" && !prefix.is_empty() {
                    continue;
                }
                let error = classify(500, &format!("{prefix}{body}"));
                assert_eq!(
                    (error.is_retryable(), error.verdict()),
                    (retryable, verdict),
                    "{prefix}{body}"
                );
            }
        }
    }

    #[test]
    fn each_status_has_its_meaning() {
        let gone = StoreError::SessionGone { session: SessionId::from("s") };
        assert_eq!(classify(500, "rpc error making call: invalid session \"s\""), gone);
        assert_eq!(classify(429, ""), StoreError::Overloaded { status: 429 });
        assert_eq!(classify(503, ""), StoreError::Overloaded { status: 503 });
        assert!(matches!(classify(413, "too large"), StoreError::TooLarge { .. }));
        assert!(matches!(classify(301, ""), StoreError::Rejected { status: 301, .. }));
        assert!(matches!(classify(404, "nothing here"), StoreError::Rejected { status: 404, .. }));
        assert!(classify(502, "<html>bad gateway</html>").outcome_unknown());
        for (status, body) in
            [(403, "ACL not found"), (500, "rpc error making call: Permission denied")]
        {
            let says = classify(status, body).to_string();
            assert!(says.contains("permission denied: writing a/b: "), "{says}");
        }
    }

    #[test]
    fn a_page_of_html_becomes_one_line() {
        let page = format!("<html>\n  <body>{}</body>", "ü".repeat(1_000));
        let StoreError::Rejected { body, .. } = classify(404, &page) else { panic!() };
        assert!(body.starts_with("<html> <body>ü") && body.chars().count() == 301, "{body}");
    }
}
