//! The adapter against a scripted server: which requests it sends, and how it classifies answers. The contract suite
//! tests Consul's own answers.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use rcfarm_api::ids::SessionId;
use rcfarm_store::session::{FarmMember, Keeper, SessionSettings};
use rcfarm_store::time::{IdSource, SystemClock, monotonic};
use rcfarm_store::{
    Answer, Behavior, Claim, Commit, DeleteMode, Env, Epoch, Index, Key, NewSession, Op, Prefix,
    PutMode, Query, Reader, Refusal, Store, StoreError, TtlService, Txn, TxnLimits, TxnOutcome,
    Writer,
};

const SESSION: &str = "adf4238a-882b-9ddc-4a9d-5b6758e4159e";

/// What the server does with a request.
#[derive(Clone)]
enum Reply {
    Answer(u16, &'static str, String),
    HangUp,
    Silence,
}

fn answer(status: u16, body: &str) -> Reply {
    Reply::Answer(status, "", body.to_owned())
}

fn indexed(status: u16, body: &str) -> Reply {
    Reply::Answer(status, "X-Consul-Index: 7\r\n", body.to_owned())
}

/// A server that answers every request by `reply` and records the requests.
struct Server {
    address: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (reply, kept) = (Arc::new(reply), seen.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, reply.clone(), kept.clone()));
            }
        });
        Server { address, seen }
    }

    fn config(&self) -> ConsulConfig {
        ConsulConfig { address: Some(self.address.clone()), ..ConsulConfig::default() }
    }

    fn client(&self) -> Consul {
        Consul::new(&self.config()).unwrap()
    }

    /// Method, target and body of every request so far.
    fn requests(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let line = |request: &String| {
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            let first = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1");
            format!("{first} {body}").trim_end().to_owned()
        };
        seen.iter().map(line).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    reply: Arc<impl Fn(&str) -> Reply>,
    seen: Arc<Mutex<Vec<String>>>,
) -> io::Result<()> {
    loop {
        let request = read_request(&mut stream).await?;
        seen.lock().unwrap().push(request.clone());
        match reply(&request) {
            Reply::Answer(status, headers, body) => {
                let length = body.len();
                let text = format!(
                    "HTTP/1.1 {status} -\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
                );
                stream.write_all(text.as_bytes()).await?;
            }
            Reply::HangUp => return Ok(()),
            Reply::Silence => std::future::pending().await,
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> io::Result<String> {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let header = |line: &str| line.strip_prefix("content-length: ")?.parse::<usize>().ok();
        if body.len() >= head.lines().find_map(header).unwrap_or(0) {
            return Ok(text);
        }
    }
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn prefix(text: &str) -> Prefix {
    Prefix::parse(text).unwrap()
}

fn session() -> SessionId {
    SessionId::from(SESSION)
}

fn set(text: &str) -> Op {
    Op::Set { key: key(text), value: Bytes::from_static(b"v"), flags: 0 }
}

fn service() -> TtlService {
    TtlService {
        name: "rcfarm-farm".into(),
        id: "farm-a".into(),
        meta: [("version".to_owned(), "1".to_owned())].into(),
        ttl: Duration::from_secs(2),
        deregister_after: Duration::from_secs(60),
    }
}

fn new_session() -> NewSession {
    NewSession {
        name: "farm a".into(),
        ttl: Some(Duration::from_secs(30)),
        lock_delay: Duration::ZERO,
        behavior: Behavior::Delete,
        checks: vec!["service:farm-a".into()],
    }
}

async fn call_everything(consul: &Consul) {
    let wait = Query::after(Index(7), Duration::from_millis(1_500));
    let _ = consul.get(&key("a/b"), Query::CONSISTENT).await;
    let _ = consul.list(&prefix("a"), wait).await;
    let _ = consul.keys(&prefix(""), Some("/"), Query::PLAIN).await;
    let _ = consul.session(&session()).await;
    let _ = consul.sessions().await;
    let _ = consul.service_health("web").await;
    let _ = consul.leader().await;
    for mode in [PutMode::Set, PutMode::Cas(Index(0)), PutMode::Acquire(session())] {
        let _ = consul.put(&key("a/b"), Bytes::from_static(b"v"), 3, mode).await;
    }
    let _ = consul.put(&key("a/b"), Bytes::new(), 0, PutMode::Release(session())).await;
    let _ = consul.delete(&key("a/b"), DeleteMode::Always).await;
    let _ = consul.delete(&key("a/b"), DeleteMode::Cas(Index(9))).await;
    let _ = consul.delete_tree(&prefix("a")).await;
    let _ = consul.txn(&[set("a/b")]).await;
    let _ = consul.create_session(&new_session()).await;
    let _ = consul.renew_session(&session()).await;
    let _ = consul.destroy_session(&session()).await;
    let _ = consul.register_service(&service()).await;
    let _ = consul.pass_check("service:farm-a", "fine").await;
    let _ = consul.deregister_service("farm-a").await;
}

#[tokio::test]
async fn each_call_sends_the_documented_request() {
    let server = Server::start(|_| indexed(200, "null")).await;
    let config = ConsulConfig { datacenter: Some("dc1".into()), ..server.config() };
    call_everything(&Consul::new(&config).unwrap()).await;
    let expected = [
        "GET /v1/kv/a/b?dc=dc1&consistent",
        "GET /v1/kv/a/?dc=dc1&recurse&index=7&wait=1500ms",
        "GET /v1/kv/?dc=dc1&keys&separator=%2F",
        "GET /v1/session/info/adf4238a-882b-9ddc-4a9d-5b6758e4159e?dc=dc1",
        "GET /v1/session/list?dc=dc1",
        "GET /v1/health/service/web?dc=dc1",
        "GET /v1/status/leader?dc=dc1",
        "PUT /v1/kv/a/b?dc=dc1&flags=3 v",
        "PUT /v1/kv/a/b?cas=0&dc=dc1&flags=3 v",
        "PUT /v1/kv/a/b?acquire=adf4238a-882b-9ddc-4a9d-5b6758e4159e&dc=dc1&flags=3 v",
        "PUT /v1/kv/a/b?dc=dc1&flags=0&release=adf4238a-882b-9ddc-4a9d-5b6758e4159e",
        "DELETE /v1/kv/a/b?dc=dc1",
        "DELETE /v1/kv/a/b?cas=9&dc=dc1",
        "DELETE /v1/kv/a/?dc=dc1&recurse=true",
        r#"PUT /v1/txn?dc=dc1 [{"KV":{"Verb":"set","Key":"a/b","Value":"dg==","Flags":0}}]"#,
        r#"PUT /v1/session/create?dc=dc1 {"Behavior":"delete","LockDelay":"0s","Name":"farm a","NodeChecks":[],"ServiceChecks":[{"ID":"service:farm-a"}],"TTL":"30s"}"#,
        "PUT /v1/session/renew/adf4238a-882b-9ddc-4a9d-5b6758e4159e?",
        "PUT /v1/session/destroy/adf4238a-882b-9ddc-4a9d-5b6758e4159e?",
        r#"PUT /v1/agent/service/register?dc=dc1 {"Check":{"DeregisterCriticalServiceAfter":"60s","Status":"passing","TTL":"2s"},"ID":"farm-a","Meta":{"version":"1"},"Name":"rcfarm-farm"}"#,
        r#"PUT /v1/agent/check/update/service:farm-a? {"Output":"","Status":"passing"}"#,
        r#"PUT /v1/agent/check/update/service:farm-a? {"Output":"fine","Status":"passing"}"#,
        "PUT /v1/agent/service/deregister/farm-a?",
    ];
    for (sent, expected) in server.requests().iter().zip(expected) {
        assert_eq!(sent, expected);
    }
    assert_eq!(server.requests().len(), expected.len());
}

#[tokio::test]
async fn credentials_go_with_every_request_and_into_no_log() {
    let server = Server::start(|_| answer(500, "no")).await;
    let config = ConsulConfig {
        address: Some(format!("http://{}/front/door", server.address)),
        token: Some("hunter2".into()),
        http_auth: Some("root:hunter3".into()),
        namespace: Some("team".into()),
        partition: Some("part".into()),
        ..ConsulConfig::default()
    };
    let log = Arc::new(Mutex::new(Vec::new()));
    let logged = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || Log(logged.clone()))
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let consul = Consul::new(&config).unwrap();
    call_everything(&consul).await;
    tracing::info!(?config, ?consul);
    drop(guard);

    let seen = server.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 21);
    for request in seen {
        assert!(request.split(' ').nth(1).unwrap().starts_with("/front/door/v1/"), "{request}");
        for header in [
            "x-consul-token: hunter2\r\n",
            "authorization: Basic cm9vdDpodW50ZXIz\r\n",
            "x-consul-namespace: team\r\n",
            "x-consul-partition: part\r\n",
        ] {
            assert!(request.contains(header), "{header} is missing in {request}");
        }
    }
    let log = String::from_utf8(log.lock().unwrap().clone()).unwrap();
    assert!(log.contains("session/renew"), "the libraries log their requests: {log}");
    for secret in ["hunter", "cm9vdDpodW50ZXIz"] {
        assert!(!log.contains(secret), "{log}");
    }
}

struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Each call, raw and through consulrs, that is refused for its token is sent again with that of the changed file.
#[tokio::test]
async fn refused_call_is_sent_again_with_the_replaced_token() {
    let server = Server::start(|request| match request.contains("x-consul-token: new\r\n") {
        true => indexed(200, "null"),
        false => answer(403, "ACL not found"),
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let config = ConsulConfig { token_file: Some(file.clone()), ..server.config() };
    for call in 0..3 {
        std::fs::write(&file, "old").unwrap();
        let consul = Consul::new(&config).unwrap();
        let twin = consul.another(&config).unwrap();
        std::fs::write(&file, "new").unwrap();
        let outcome = match call {
            0 => consul.get(&key("a"), Query::PLAIN).await.map(drop),
            1 => consul.txn(&[set("a")]).await.map(drop),
            _ => consul.destroy_session(&session()).await,
        };
        assert_eq!(outcome.err().filter(|e| matches!(e, StoreError::Forbidden { .. })), None);
        let tried = server.seen.lock().unwrap().drain(..).count();
        assert_eq!(tried, 2, "call {call}");
        // Its other client has the new token at once.
        twin.leader().await.err();
        assert_eq!(server.seen.lock().unwrap().drain(..).count(), 1);
    }
    // The file is the same: no second attempt.
    std::fs::write(&file, "old").unwrap();
    let consul = Consul::new(&config).unwrap();
    let error = consul.get(&key("a"), Query::PLAIN).await.unwrap_err();
    assert!(matches!(error, StoreError::Forbidden { .. }), "{error}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn service_is_registered_again_when_the_token_has_changed() {
    let server = Server::start(|request| match request.contains("x-consul-token: old\r\n") {
        true if request.contains("/update/") && request.contains("late") => {
            answer(403, "ACL not found")
        }
        _ => answer(200, ""),
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "old").unwrap();
    let config = ConsulConfig { token_file: Some(file.clone()), ..server.config() };
    let consul = Consul::new(&config).unwrap();
    let registrations = || server.requests().iter().filter(|r| r.contains("/register")).count();
    let service = service();
    consul.register_service(&service).await.unwrap();
    assert_eq!(consul.pass_check(&service.check_id(), "").await, Ok(true));
    assert_eq!(registrations(), 1);
    std::fs::write(&file, "new").unwrap();
    for _ in 0..2 {
        assert_eq!(consul.pass_check(&service.check_id(), "late").await, Ok(true));
        assert_eq!(registrations(), 2, "once for each token");
    }
}

#[tokio::test]
async fn a_404_without_an_index_is_an_error() {
    let server = Server::start(|_| indexed(404, "")).await;
    let consul = server.client();
    let nothing = Answer { value: vec![], index: Index(7), filtered: false };
    assert_eq!(consul.list(&prefix("a"), Query::PLAIN).await, Ok(nothing));
    let absent = Answer { value: None, index: Index(7), filtered: false };
    assert_eq!(consul.get(&key("a"), Query::PLAIN).await, Ok(absent));

    let server = Server::start(|_| answer(404, "404 page not found")).await;
    let error = server.client().list(&prefix("a"), Query::PLAIN).await.unwrap_err();
    assert_eq!(error, StoreError::Rejected { status: 404, body: "404 page not found".into() });

    let server = Server::start(|_| answer(200, "[]")).await;
    let error = server.client().list(&prefix("a"), Query::PLAIN).await.unwrap_err();
    assert!(matches!(error, StoreError::Decode { .. }), "{error}");
}

#[tokio::test]
async fn list_filtered_by_acls_is_marked() {
    let headers = "X-Consul-Index: 7\r\nX-Consul-Results-Filtered-By-ACLs: true\r\n";
    let server = Server::start(move |_| Reply::Answer(200, headers, "[]".into())).await;
    assert!(server.client().list(&prefix("a"), Query::PLAIN).await.unwrap().filtered);
}

#[tokio::test]
async fn wait_is_never_sent_as_zero() {
    let server = Server::start(|_| indexed(200, "[]")).await;
    let consul = server.client();
    for (after, at_most) in [(7, 0), (0, 1_000)] {
        let query = Query::after(Index(after), Duration::from_millis(at_most));
        consul.list(&prefix("a"), query).await.unwrap();
    }
    let expected = ["GET /v1/kv/a/?recurse&index=7&wait=1ms", "GET /v1/kv/a/?recurse"];
    assert_eq!(server.requests(), expected);
    let counts = consul.requests();
    assert_eq!((counts["blocking_read"], counts["read"]), (1, 1));
}

#[tokio::test]
async fn stale_is_for_plain_reads() {
    let server = Server::start(|_| indexed(200, "[]")).await;
    let config = ConsulConfig { stale: Some(true), ..server.config() };
    let consul = Consul::new(&config).unwrap();
    for query in [Query::PLAIN, Query::CONSISTENT] {
        consul.list(&prefix("a"), query).await.unwrap();
    }
    let expected = ["GET /v1/kv/a/?recurse&stale", "GET /v1/kv/a/?recurse&consistent"];
    assert_eq!(server.requests(), expected);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let moved = || Reply::Answer(301, "Location: /v1/kv/b\r\n", String::new());
    let server = Server::start(move |_| moved()).await;
    let consul = server.client();
    let put = consul.put(&key("a"), Bytes::from_static(b"v"), 0, PutMode::Set).await;
    assert!(matches!(put, Err(StoreError::Rejected { status: 301, .. })), "{put:?}");
    let txn = consul.txn(&[set("a")]).await;
    assert!(matches!(txn, Err(StoreError::Rejected { status: 301, .. })), "{txn:?}");
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn write_without_an_answer_has_an_unknown_outcome() {
    let server = Server::start(|_| Reply::HangUp).await;
    let consul = server.client();
    let raw = consul.txn(&[set("a")]).await.unwrap_err();
    let through = consul.put(&key("a"), Bytes::new(), 0, PutMode::Set).await.unwrap_err();
    for error in [raw, through] {
        assert!(matches!(error, StoreError::Interrupted { .. }), "{error}");
        assert!(error.outcome_unknown() && error.to_string().contains(&server.address), "{error}");
    }
}

#[tokio::test]
async fn write_without_a_connection_was_not_applied() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let config = ConsulConfig { address: Some(address.clone()), ..ConsulConfig::default() };
    let consul = Consul::new(&config).unwrap();
    let raw = consul.txn(&[set("a")]).await.unwrap_err();
    let through = consul.put(&key("a"), Bytes::new(), 0, PutMode::Set).await.unwrap_err();
    for error in [raw, through] {
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        assert!(!error.outcome_unknown() && error.to_string().contains(&address), "{error}");
    }
}

#[tokio::test]
async fn session_creation_waits_for_its_check() {
    let attempts = Mutex::new(0);
    let server = Server::start(move |_| {
        let mut attempts = attempts.lock().unwrap();
        *attempts += 1;
        match *attempts {
            1 => answer(500, "rpc error making call: Missing check 'service:farm-a' registration"),
            2 => answer(500, "Check 'service:farm-a' is in critical state"),
            3 => answer(200, &format!(r#"{{"ID":"{SESSION}"}}"#)),
            _ => answer(500, "Invalid Session TTL '1000000000'"),
        }
    })
    .await;
    let consul = server.client();
    assert_eq!(consul.create_session(&new_session()).await, Ok(session()));
    let error = consul.create_session(&new_session()).await.unwrap_err();
    assert!(matches!(error, StoreError::Rejected { status: 500, .. }), "{error}");
    assert_eq!(consul.requests()["session"], 4);
}

#[tokio::test]
async fn keeper_does_without_a_check_that_the_agent_cannot_sync() {
    let server = Server::start(|request| match request {
        create if create.starts_with("PUT /v1/session/create") => {
            match create.contains("service:rcfarm-farm-a") {
                true => {
                    answer(500, "rpc error making call: Missing check 'service:x' registration")
                }
                false => answer(200, &format!(r#"{{"ID":"{SESSION}"}}"#)),
            }
        }
        _ => answer(200, ""),
    })
    .await;
    let ids = Arc::new(IdSource::from_seed(1));
    let env = Env::new(Arc::new(server.client()), Arc::new(SystemClock), ids.clone());
    let member = FarmMember::farm(&"a".parse().unwrap(), &ids.uuid());
    let keeper = Keeper::new(&env, member, SessionSettings::default());
    // One refusal may be an agent that is slow to sync.
    for _ in 0..2 {
        let error = keeper.open().await.map(drop).unwrap_err();
        assert!(matches!(error, StoreError::Rejected { status: 500, .. }), "{error}");
    }
    let kept = keeper.open().await.unwrap();
    assert!(kept.epoch().is_live() && kept.check().is_none());
    assert!(kept.check_problem().unwrap().contains("Missing check"));
    let deregistered = server.requests().into_iter().filter(|r| r.contains("/deregister/")).count();
    assert_eq!(deregistered, 1, "the unused service");
    keeper.close(kept, true).await;
}

#[tokio::test]
async fn deadline_that_passes_during_the_wait_for_a_permit_stops_the_write() {
    let server = Server::start(|_| Reply::Silence).await;
    let config = ConsulConfig { max_requests: Some(1), ..server.config() };
    let consul = Arc::new(Consul::new(&config).unwrap());
    let writers =
        [Writer::new(consul.clone()), Writer::together(consul.clone(), TxnLimits::default())];
    for writer in writers {
        let later = monotonic() + Duration::from_secs(3600);
        let epoch = Epoch::new(session(), later);
        let claim = Claim::new(key("lock/a"), epoch.clone());
        let occupied = {
            let consul = consul.clone();
            tokio::spawn(async move { consul.get(&key("a"), Query::PLAIN).await.map(drop) })
        };
        while server.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut txn = Txn::under(&claim);
        txn.push(set("a"));
        let commit = writer.commit(txn);
        let mut commit = std::pin::pin!(commit);
        tokio::select! {
            biased;
            early = &mut commit => panic!("it did not wait for the only permit: {early:?}"),
            () = std::future::ready(()) => {}
        }
        epoch.end();
        occupied.abort();
        assert_eq!(commit.await, Ok(Commit::ClaimLost));
        let sent: Vec<String> = server.requests();
        assert!(sent.iter().all(|request| !request.contains("/v1/txn")), "{sent:?}");
        server.seen.lock().unwrap().clear();
    }
}

/// The token is refused, and while the answer is on its way a new one is there and the claim is lost.
#[tokio::test]
async fn refused_write_is_not_repeated_after_its_claim_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let lost: Arc<Mutex<Option<Epoch>>> = Arc::default();
    let (ending, renewed) = (lost.clone(), file.clone());
    let server = Server::start(move |_| {
        std::fs::write(&renewed, "new").unwrap();
        if let Some(epoch) = ending.lock().unwrap().take() {
            epoch.end();
        }
        answer(403, "ACL not found")
    })
    .await;
    let config = ConsulConfig { token_file: Some(file.clone()), ..server.config() };
    for is_lost in [true, false] {
        std::fs::write(&file, "old").unwrap();
        let writer = Writer::new(Arc::new(Consul::new(&config).unwrap()));
        let epoch = Epoch::new(session(), monotonic() + Duration::from_secs(3600));
        let mut txn = Txn::under(&Claim::new(key("lock/a"), epoch.clone()));
        txn.push(set("a"));
        *lost.lock().unwrap() = is_lost.then_some(epoch);
        let outcome = writer.commit(txn).await;
        let sent = server.seen.lock().unwrap().drain(..).count();
        match is_lost {
            true => assert_eq!((outcome, sent), (Ok(Commit::ClaimLost), 1)),
            false => assert_eq!((outcome.is_err(), sent), (true, 2), "repeated with the new token"),
        }
    }
}

#[tokio::test]
async fn renewal_distinguishes_gone_from_failed() {
    for (status, body, expected) in [
        (200, "[{}]", Ok(true)),
        (404, "Session id 'x' not found", Ok(false)),
        (500, "rpc error making call: No cluster leader", Err(StoreError::NoLeader)),
    ] {
        let server = Server::start(move |_| answer(status, body)).await;
        assert_eq!(server.client().renew_session(&session()).await, expected);
    }
}

#[tokio::test]
async fn passing_an_unknown_check_returns_false() {
    for (status, body, expected) in [
        (200, "", true),
        (500, "CheckID \"service:farm-a\" does not have associated TTL", false),
        (404, "Unknown check ID \"service:farm-a\"", false),
    ] {
        let server = Server::start(move |_| answer(status, body)).await;
        assert_eq!(server.client().pass_check("service:farm-a", "").await, Ok(expected));
    }
    let server = Server::start(|_| answer(500, "Unknown service \"farm-a\"")).await;
    assert_eq!(server.client().deregister_service("farm-a").await, Ok(()));
}

#[tokio::test]
async fn ids_that_consulrs_would_mangle_are_not_sent() {
    let server = Server::start(|_| answer(200, "")).await;
    let consul = server.client();
    for id in ["my farm", "..", "a/b", ""] {
        assert!(consul.pass_check(id, "").await.is_err(), "{id}");
        assert!(consul.deregister_service(id).await.is_err(), "{id}");
        assert!(consul.renew_session(&SessionId::from(id)).await.is_err(), "{id}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn heartbeats_do_not_wait_behind_ordinary_requests() {
    let server = Server::start(|request| match request.contains("/renew/") {
        true => answer(200, "[]"),
        false => Reply::Silence,
    })
    .await;
    let config = ConsulConfig { max_requests: Some(1), ..server.config() };
    let consul = Arc::new(Consul::new(&config).unwrap());
    let stuck: Vec<_> = ["a", "b"]
        .map(|name| {
            let consul = consul.clone();
            tokio::spawn(async move { consul.txn(&[set(name)]).await })
        })
        .into();
    while server.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(consul.renew_session(&session()).await, Ok(true));
    // One transaction is under way, the other waits for its slot.
    let counts = consul.requests();
    assert_eq!((counts["transaction"], counts["heartbeat"]), (1, 1));
    assert_eq!(server.requests().len(), 2);
    stuck.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn transaction_reports_all_refusals_and_its_index() {
    let refused =
        r#"{"Results":null,"Errors":[{"OpIndex":0,"What":"stale"},{"OpIndex":2,"What":"held"}]}"#;
    let server = Server::start(move |_| answer(409, refused)).await;
    let refusal = |op, what: &str| Refusal { op, what: what.to_owned() };
    let expected = TxnOutcome::Refused(vec![refusal(0, "stale"), refusal(2, "held")]);
    assert_eq!(server.client().txn(&[set("a")]).await, Ok(expected));

    // A checked lock with a newer index, a key that already had its value, and a changed key.
    let entry = |key: &str, index: u64| {
        format!(r#"{{"KV":{{"Key":"{key}","Value":null,"CreateIndex":1,"ModifyIndex":{index}}}}}"#)
    };
    let entries = [entry("lock", 90), entry("same", 3), entry("new", 40)].join(",");
    let committed = format!(r#"{{"Results":[{entries}],"Errors":null}}"#);
    let server = Server::start(move |_| answer(200, &committed)).await;
    let check = Op::CheckSession { key: key("lock"), session: session() };
    let outcome = server.client().txn(&[check.clone(), set("same"), set("new")]).await.unwrap();
    let TxnOutcome::Committed { index, entries } = outcome else { panic!("{outcome:?}") };
    assert_eq!((index, entries.len()), (Index(40), 3));
    let outcome = server.client().txn(&[check]).await.unwrap();
    assert!(matches!(outcome, TxnOutcome::Committed { index: Index::ZERO, .. }), "{outcome:?}");
}

#[tokio::test]
async fn missing_rights_are_an_error_of_a_transaction() {
    let denied = r#"{"Results":null,"Errors":[{"OpIndex":1,"What":"Permission denied"}]}"#;
    let server = Server::start(move |_| answer(409, denied)).await;
    let check = Op::CheckNotExists { key: key("b") };
    let error = server.client().txn(&[check, set("a")]).await.unwrap_err();
    assert_eq!(error, StoreError::Forbidden { what: "set a: Permission denied".into() });
}
