//! Asks the server of a job type what the type cannot say (decision 43): POST of JSON, with limits of time and size.
//!
//! The server gets the job's document, and answers with texts for the environment of members. It is asked once per job,
//! before any pod is made. The answer becomes part of the job's document.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use rcfarm_api::FieldError;
use rcfarm_api::from_object;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::job_type::{API_VERSION, HookAnswer, HookServer};
use rcfarm_api::job::spec::JobUid;
use rcfarm_node::agent::health::http_client;

/// Bytes of an answer, at most.
pub const LARGEST_ANSWER: usize = 32 * 1024;
/// Calls of this process at once.
const MOST_CALLS: usize = 8;
/// Bytes of a refusal that are shown.
const SHOWN: usize = 200;

static CALLS: Semaphore = Semaphore::const_new(MOST_CALLS);

/// What a server is asked.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HookRequest {
    api_version: &'static str,
    kind: &'static str,
    job: Namespaced,
    uid: JobUid,
    /// The job's document, with its type.
    document: Value,
}

impl HookRequest {
    /// Asks about a job.
    #[must_use]
    pub fn new(job: &Namespaced, uid: JobUid, document: Value) -> HookRequest {
        let (api_version, kind) = (API_VERSION, "JobTypeRequest");
        HookRequest { api_version, kind, job: job.clone(), uid, document }
    }
}

/// Asks a server. Takes up to its time limit.
///
/// # Errors
/// Why there is no answer, for people. It does not name the address, which is in the record.
pub async fn call_hook(server: &HookServer, request: &HookRequest) -> Result<HookAnswer, String> {
    let limit = Duration::from_secs(server.timeout_seconds.into());
    let asked = async {
        let _permit = CALLS.acquire().await.map_err(|error| error.to_string())?;
        send(&server.url, request).await
    };
    let late = |_| Err(format!("no answer within {limit:?}"));
    tokio::time::timeout(limit, asked).await.unwrap_or_else(late)
}

async fn send(url: &str, request: &HookRequest) -> Result<HookAnswer, String> {
    let lost = |error: reqwest::Error| error.without_url().to_string();
    let mut answer = http_client()?.post(url).json(request).send().await.map_err(lost)?;
    let status = answer.status();
    if status.is_redirection() {
        return Err(format!("it answered {status}: redirects are not followed"));
    }
    let most = if status.is_success() { LARGEST_ANSWER } else { SHOWN };
    let mut body = Vec::new();
    while body.len() <= most
        && let Some(part) = answer.chunk().await.map_err(lost)?
    {
        body.extend_from_slice(&part);
    }
    if !status.is_success() {
        body.truncate(SHOWN);
        return Err(format!("it answered {status}: {}", String::from_utf8_lossy(&body)));
    }
    if body.len() > LARGEST_ANSWER {
        return Err(format!("its answer has more than {LARGEST_ANSWER} bytes"));
    }
    let body: Value =
        serde_json::from_slice(&body).map_err(|error| format!("its answer is no JSON: {error}"))?;
    let fix = "compare with docs/guide/jobs.md";
    from_object(body, fix).map_err(|error: FieldError| format!("its answer: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that answers each request with `answer`; without one it answers never.
    async fn server(answer: Option<String>) -> HookServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 64 * 1024];
                let _ = stream.read(&mut request).await;
                if let Some(answer) = &answer {
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
                open.push(stream);
            }
        });
        HookServer { url, timeout_seconds: 1 }
    }

    fn answer(status: &str, body: &str) -> Option<String> {
        Some(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    }

    async fn asked(answer: Option<String>) -> Result<HookAnswer, String> {
        let job = "default/j".parse().unwrap();
        let request = HookRequest::new(&job, JobUid::default(), json!({"kind": "PaddleJob"}));
        call_hook(&server(answer).await, &request).await
    }

    #[tokio::test]
    async fn good_answer_of_a_hook_is_taken() {
        let body = json!({"environment": [{"name": "A", "value": "${rank}"}],
            "replicaTypes": {"Worker": [{"name": "B", "value": "1"}]}});
        let answer = asked(answer("200 OK", &body.to_string())).await.unwrap();
        assert_eq!(answer.environment[0].value, "${rank}");
        assert_eq!(answer.replica_types["Worker"][0].name, "B");
    }

    #[tokio::test]
    async fn bad_answers_of_a_hook_are_told_apart() {
        let large = "x".repeat(LARGEST_ANSWER + 1);
        let moved =
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        for (answer, said) in [
            (answer("500 Internal Server Error", "no luck"), "500 Internal Server Error: no luck"),
            (answer("500 Internal Server Error", &large), "500 Internal Server Error: xxx"),
            (answer("200 OK", &large), "more than 32768 bytes"),
            (answer("200 OK", "{"), "no JSON"),
            (answer("200 OK", r#"{"environment": {}}"#), "field environment"),
            (answer("200 OK", r#"{"env": []}"#), "unknown field `env`"),
            (Some(moved.to_owned()), "redirects are not followed"),
            (None, "no answer within 1s"),
            (Some("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_owned()), "no answer within"),
        ] {
            let why = asked(answer).await.unwrap_err();
            assert!(why.contains(said) && !why.contains("127.0.0.1"), "{said}: {why}");
            assert!(why.len() < 500, "{why}");
        }
    }

    #[tokio::test]
    async fn hook_that_is_not_there_is_an_error() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let server = HookServer { url: format!("http://127.0.0.1:{port}/"), timeout_seconds: 5 };
        let job = "default/j".parse().unwrap();
        let request = HookRequest::new(&job, JobUid::default(), Value::Null);
        assert!(call_hook(&server, &request).await.is_err());
    }
}
