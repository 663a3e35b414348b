//! The HTTP API: status codes, headers, limits. The contract suite tests the answer to each request.

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::Request as Asked;
use super::super::serve::{respond, serve};
use super::*;

struct Reply {
    status: StatusCode,
    response: Response<()>,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

async fn ask(c: &Emulator, method: Method, path: &str, body: impl Into<Body>) -> Reply {
    let request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
    let (parts, body) = respond(c, request).await.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let status = parts.status;
    let body = String::from_utf8_lossy(&body).into_owned();
    Reply { status, response: Response::from_parts(parts, ()), body }
}

async fn put(c: &Emulator, path: &str, body: impl Into<Body>) -> Reply {
    ask(c, Method::PUT, path, body).await
}

async fn fetch(c: &Emulator, path: &str) -> Reply {
    ask(c, Method::GET, path, "").await
}

#[tokio::test(start_paused = true)]
async fn an_absent_key_is_404_with_an_index_and_no_content_type() {
    let reply = fetch(&consul(), "/v1/kv/none").await;
    assert_eq!((reply.status.as_u16(), reply.body.as_str()), (404, ""));
    assert_eq!(reply.header("x-consul-index"), Some("1"));
    assert_eq!(reply.header("content-type"), None);
    assert_eq!(reply.header("x-rcfarm-embedded"), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn key_is_the_raw_path_decoded_once() {
    let c = consul();
    for (path, key) in [("a%20b", "a b"), ("a%252Fb", "a%2Fb"), ("a%2Fb", "a/b"), ("a+b", "a+b")] {
        assert_eq!(put(&c, &format!("/v1/kv/{path}"), "v").await.body, "true");
        assert!(c.inspect(|t| t.kv.get(key).is_some()), "{key}");
    }
    let before = c.snapshot();
    for path in ["a//b", "a/../b", "a/%2E%2E/b", "/a"] {
        let reply = put(&c, &format!("/v1/kv/{path}?x=1"), "v").await;
        assert_eq!(reply.status, StatusCode::MOVED_PERMANENTLY, "{path}");
        assert!(reply.header("location").unwrap().ends_with("?x=1"));
    }
    for path in ["a%00", "a%0A", "a%zz"] {
        assert_eq!(put(&c, &format!("/v1/kv/{path}"), "v").await.status, StatusCode::BAD_REQUEST);
    }
    assert_eq!(c.snapshot(), before, "nothing was written");
}

#[tokio::test(start_paused = true)]
async fn unknown_path_lists_the_known_ones() {
    let c = consul();
    let reply = fetch(&c, "/v1/acl/tokens").await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    assert!(reply.body.contains("/v1/acl/tokens is not served") && reply.body.contains("kv/"));
    let reply = ask(&c, Method::POST, "/v1/txn", "[]").await;
    assert_eq!((reply.status.as_u16(), reply.header("allow")), (405, Some("OPTIONS,PUT")));
    let node = r#"[{"Node":{"Verb":"set","Node":{"Node":"n"}}},{"KV":{"Verb":"set","Key":"k"}}]"#;
    let reply = put(&c, "/v1/txn", node).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert!(reply.body.contains("Node operations are not modelled"), "{}", reply.body);
    assert!(get(&c, "k").await.is_none());
    let http = r#"{"Name":"web","Check":{"HTTP":"http://127.0.0.1/","Interval":"1s"}}"#;
    let reply = put(&c, "/v1/agent/service/register", http).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert!(reply.body.contains("only TTL checks and aliases"), "{}", reply.body);
    let reply = fetch(&c, "/v1/catalog/nodes?filter=x").await;
    assert!(reply.body.contains("?filter is not modelled"), "{}", reply.body);
}

#[tokio::test(start_paused = true)]
async fn errors_have_consuls_messages() {
    let c = consul();
    for (error, status, words) in [
        (StoreError::NoLeader, 500, "No cluster leader"),
        (StoreError::Interrupted { detail: "cut".to_owned() }, 500, "rpc error making call: EOF"),
        (StoreError::Overloaded { status: 429 }, 429, ""),
        (StoreError::Forbidden { what: "k".to_owned() }, 403, "Permission denied"),
    ] {
        let fails = FaultOutcome::Fail(error);
        let faulty = c.with_faults(Arc::new(move |_: &Asked<'_>| Fate::of(fails.clone())));
        let reply = put(&faulty, "/v1/kv/k", "v").await;
        assert_eq!((reply.status.as_u16(), reply.body.as_str()), (status, words));
    }
}

#[tokio::test(start_paused = true)]
async fn body_limit_ignores_content_length() {
    let c = consul();
    for (size, status) in [(MAX_VALUE, 200), (MAX_VALUE + 1, 413)] {
        assert_eq!(put(&c, "/v1/kv/k", vec![b'x'; size]).await.status.as_u16(), status);
        let spaces = format!("[{}]", " ".repeat(size - 2));
        let reply = put(&c, "/v1/txn", spaces).await;
        assert_eq!(reply.status.as_u16(), status);
        assert!(
            status == 200 || reply.body.contains("too large, max size: 524288"),
            "{}",
            reply.body
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_lock_and_fence_over_http() {
    let c = consul();
    let asked = json!({ "Name": "farm", "TTL": "10s", "NodeChecks": [], "LockDelay": "0s", "Behavior": "delete" });
    let created = put(&c, "/v1/session/create", asked.to_string()).await.json();
    let s = created["ID"].as_str().unwrap();
    assert_eq!(put(&c, &format!("/v1/kv/lock?acquire={s}"), "me").await.body, "true");
    let held = fetch(&c, "/v1/kv/lock").await;
    let entry = &held.json()[0];
    assert_eq!((entry["Session"].as_str(), entry["LockIndex"].as_u64()), (Some(s), Some(1)));
    assert_eq!(held.header("x-consul-index"), Some(entry["ModifyIndex"].to_string().as_str()));
    let txn = json!([
        { "KV": { "Verb": "check-session", "Key": "lock", "Session": s } },
        { "KV": { "Verb": "set", "Key": "data", "Value": "djE=" } },
    ]);
    assert_eq!(put(&c, "/v1/txn", txn.to_string()).await.status, StatusCode::OK);

    let index = held.header("x-consul-index").unwrap();
    let start = Instant::now();
    let gone = fetch(&c, &format!("/v1/kv/lock?index={index}&wait=60s")).await;
    assert_eq!(
        (gone.status.as_u16(), start.elapsed()),
        (404, 20 * SEC),
        "expired at twice its TTL"
    );
    let refused = put(&c, "/v1/txn", txn.to_string()).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert_eq!(refused.json()["Errors"][0]["OpIndex"], 0);
    assert_eq!(fetch(&c, "/v1/kv/data?raw").await.body, "v1");
    let renewed = put(&c, &format!("/v1/session/renew/{s}"), "").await;
    assert_eq!(renewed.status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn read_without_wait_waits_five_minutes() {
    let c = consul();
    let index = set(&c, "k", "v").await.modify_index;
    for wait in ["", "&wait=", "&wait=0s", "&wait=-1s"] {
        let start = Instant::now();
        fetch(&c, &format!("/v1/kv/k?index={index}{wait}")).await;
        let took = start.elapsed().as_secs();
        assert!((300..=319).contains(&took), "{wait}: {took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_and_its_health_over_http() {
    let c = consul();
    let service = json!({
        "Name": "farm", "ID": "farm-1", "Meta": { "v": "1" },
        "Check": { "TTL": "3s", "DeregisterCriticalServiceAfter": "1m" },
    });
    assert_eq!(put(&c, "/v1/agent/service/register", service.to_string()).await.body, "");
    assert_eq!(fetch(&c, "/v1/health/service/farm?passing").await.json(), json!([]));
    put(&c, "/v1/agent/check/pass/service:farm-1?note=ok", "").await;
    let passing = fetch(&c, "/v1/health/service/farm?passing").await;
    assert_eq!(passing.json()[0]["Service"]["Meta"]["v"], "1");
    let index = passing.header("x-consul-index").unwrap();
    let start = Instant::now();
    let silent = fetch(&c, &format!("/v1/health/service/farm?passing&index={index}")).await;
    assert_eq!((silent.json(), start.elapsed()), (json!([]), 3 * SEC));
    let unknown = put(&c, "/v1/agent/check/pass/nope", "").await;
    assert_eq!(unknown.body, "CheckID \"nope\" does not have associated TTL");
    let about = fetch(&c, "/v1/agent/self").await.json();
    assert_eq!(about["Config"]["NodeName"], "embedded");
}

// ---- on a socket ---------------------------------------------------------------------------------------

/// A server that ends when this is dropped.
struct Running(std::net::SocketAddr, JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.1.abort();
    }
}

async fn running(c: &Emulator, connections: usize) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = serve(listener, c.clone(), connections);
    Running(address, tokio::spawn(async move { match serving.await {} }))
}

/// Sends bytes and reads until the server closes the connection.
async fn talk(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn headers_are_written_as_consul_writes_them() {
    let c = consul();
    set(&c, "k", "v").await;
    let server = running(&c, 10).await;
    let mut stream = TcpStream::connect(server.0).await.unwrap();
    let answer =
        talk(&mut stream, "GET /v1/kv/k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    for line in [
        "HTTP/1.1 200 OK\r\n",
        "\r\nX-Consul-Index: ",
        "\r\nX-Consul-Knownleader: true\r\n",
        "\r\nX-Consul-Lastcontact: 0\r\n",
    ] {
        assert!(answer.contains(line), "{line:?} in {answer}");
    }
}

#[tokio::test]
async fn chunked_body_is_limited_and_the_connection_reused() {
    let c = consul();
    let server = running(&c, 10).await;
    let mut stream = TcpStream::connect(server.0).await.unwrap();
    let put = "PUT /v1/kv/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{}\r\n0\r\n\r\n", MAX_VALUE + 1, "x".repeat(MAX_VALUE + 1));
    let answer = talk(&mut stream, &format!("{put}{chunk}")).await;
    assert!(
        answer.starts_with("HTTP/1.1 413 ") && answer.contains("Connection: close"),
        "{answer}"
    );
    assert!(get(&c, "k").await.is_none());

    let mut stream = TcpStream::connect(server.0).await.unwrap();
    let refused = "POST /v1/kv/k HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody";
    let next =
        "PUT /v1/kv/k HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n\r\nv";
    let answer = talk(&mut stream, &format!("{refused}{next}")).await;
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("HTTP/1.1 200 OK"), "{answer}");
}

#[tokio::test]
async fn connections_over_the_limit_are_closed_without_an_answer() {
    let c = consul();
    let server = running(&c, 1).await;
    let mut first = TcpStream::connect(server.0).await.unwrap();
    let request = "GET /v1/status/leader HTTP/1.1\r\nHost: x\r\n\r\n";
    first.write_all(request.as_bytes()).await.unwrap();
    let mut byte = [0];
    first.read_exact(&mut byte).await.unwrap();
    let mut second = TcpStream::connect(server.0).await.unwrap();
    assert_eq!(talk(&mut second, "").await, "");
    drop(first);
    // The slot is free once the server has seen the end of the first connection.
    loop {
        let mut third = TcpStream::connect(server.0).await.unwrap();
        let closing = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        if third.write_all(closing.as_bytes()).await.is_ok() {
            let mut answer = String::new();
            if third.read_to_string(&mut answer).await.is_ok() && answer.starts_with("HTTP/1.1 200")
            {
                break;
            }
        }
    }
}

#[tokio::test]
async fn closed_clients_are_dropped_and_stopped_server_closes() {
    let c = consul();
    let index = set(&c, "k", "v").await.modify_index;
    let server = running(&c, 10).await;
    let blocking = format!("GET /v1/kv/k?index={index}&wait=5m HTTP/1.1\r\nHost: x\r\n\r\n");
    let blocked = async |n: usize| {
        while c.blocked() != n {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut stream = TcpStream::connect(server.0).await.unwrap();
    stream.write_all(blocking.as_bytes()).await.unwrap();
    blocked(1).await;
    drop(stream);
    blocked(0).await;

    let mut stream = TcpStream::connect(server.0).await.unwrap();
    stream.write_all(blocking.as_bytes()).await.unwrap();
    blocked(1).await;
    drop(server);
    assert_eq!(talk(&mut stream, "").await, "");
    assert_eq!(c.blocked(), 0);
}
