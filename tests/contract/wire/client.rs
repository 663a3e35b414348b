//! Minimal HTTP/1.1 client. Sends unusual requests unchanged (`//`, `%2E%2E`, redirects, `HEAD`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Larger bodies wait for `100 Continue`, so that a server can refuse them by their length.
const ASK_FIRST: usize = 64 * 1024;

/// A server, and the key prefix of one case.
#[derive(Clone)]
pub struct Wire {
    at: SocketAddr,
    own: String,
}

#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    head: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Wire {
    /// Client of the server at `at`; keys start with the case's id.
    pub fn new(at: SocketAddr, case: &str) -> Self {
        static CASES: AtomicU64 = AtomicU64::new(0);
        let n = CASES.fetch_add(1, Ordering::Relaxed);
        // Other processes may use the same server.
        Wire { at, own: format!("{case}-{}-{n}", std::process::id()) }
    }

    pub fn key(&self, tail: &str) -> String {
        format!("{}/{tail}", self.own)
    }

    /// Path of a key of this case; a query string may follow.
    pub fn kv(&self, tail: &str) -> String {
        format!("/v1/kv/{}", self.key(tail))
    }

    /// Name of a node, service or check, used only by this case.
    pub fn name(&self, tail: &str) -> String {
        format!("{}-{tail}", self.own.to_lowercase())
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, b"").await
    }

    pub async fn put(&self, path: &str, body: impl AsRef<[u8]>) -> Reply {
        self.send("PUT", path, body.as_ref()).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send("DELETE", path, b"").await
    }

    pub async fn put_json(&self, path: &str, body: &Value) -> Reply {
        self.put(path, body.to_string()).await
    }

    pub async fn txn(&self, ops: &[Value]) -> Reply {
        let ops: Vec<Value> = ops.iter().map(|op| json!({ "KV": op })).collect();
        self.put_json("/v1/txn", &Value::Array(ops)).await
    }

    /// Entry of an existing key.
    pub async fn entry(&self, tail: &str) -> Value {
        let reply = self.get(&self.kv(tail)).await;
        assert_eq!(reply.status, 200, "{tail}: {reply:?}");
        reply.json()[0].clone()
    }

    /// New session with these fields; by default without checks and lock-delay.
    pub async fn session(&self, more: Value) -> String {
        let mut body = json!({ "NodeChecks": [], "LockDelay": "0s" });
        for (field, value) in more.as_object().unwrap() {
            body[field] = value.clone();
        }
        let reply = self.put_json("/v1/session/create", &body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["ID"].as_str().unwrap().to_owned()
    }

    /// Starts a blocking read of at most 60 s.
    pub fn watch(&self, path: &str, index: u64) -> JoinHandle<Reply> {
        let wire = self.clone();
        let sep = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{sep}index={index}&wait=60s");
        tokio::spawn(async move { wire.get(&path).await })
    }

    /// Sends one request and reads the whole answer.
    pub async fn send(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        let reply = self.exchange(method, path, body).await;
        reply.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    async fn exchange(&self, method: &str, path: &str, body: &[u8]) -> std::io::Result<Reply> {
        let mut stream = BufStream::new(TcpStream::connect(self.at).await?);
        let asks = body.len() > ASK_FIRST;
        let expect = if asks { "Expect: 100-continue\r\n" } else { "" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: consul\r\nConnection: close\r\n{expect}Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        if !asks {
            stream.write_all(body).await?;
        }
        stream.flush().await?;
        let mut reply = read_head(&mut stream).await?;
        if reply.status == 100 {
            stream.write_all(body).await?;
            stream.flush().await?;
            reply = read_head(&mut stream).await?;
        }
        if method != "HEAD" {
            reply.body = read_body(&mut stream, &reply).await?;
        }
        Ok(reply)
    }
}

async fn read_head(stream: &mut BufStream<TcpStream>) -> std::io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status =
        status.ok_or_else(|| std::io::Error::other(format!("no status line: {line:?}")))?;
    let mut head = Vec::new();
    loop {
        line.clear();
        stream.read_line(&mut line).await?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => head.push((name.to_owned(), value.to_owned())),
            None if line.trim_end().is_empty() => {
                return Ok(Reply { status, head, body: Vec::new() });
            }
            None => return Err(std::io::Error::other(format!("no header line: {line:?}"))),
        }
    }
}

async fn read_body(stream: &mut BufStream<TcpStream>, reply: &Reply) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if reply.header("transfer-encoding") != Some("chunked") {
        stream.read_to_end(&mut body).await?;
        return Ok(body);
    }
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let size = usize::from_str_radix(line.trim_end(), 16).map_err(std::io::Error::other)?;
        let from = body.len();
        body.resize(from + size, 0);
        stream.read_exact(&mut body[from..]).await?;
        line.clear();
        stream.read_line(&mut line).await?;
        if size == 0 {
            return Ok(body);
        }
    }
}

impl Reply {
    /// A header, case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// `X-Consul-Index`.
    pub fn index(&self) -> u64 {
        let index = self.header("x-consul-index");
        index.and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("no index in {self:?}"))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim_end().to_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("HTTP {} without JSON ({e}): {}", self.status, self.text()))
    }

    /// Asserts the status and a part of the text that is equal in all versions of Consul.
    #[track_caller]
    pub fn is(&self, status: u16, core: &str) {
        assert!(
            self.status == status && self.text().contains(core),
            "wanted {status} {core:?}, got {} {:?}",
            self.status,
            self.text()
        );
    }
}

/// Value of an entry as text; "" for null.
pub fn value(entry: &Value) -> String {
    let bytes = BASE64.decode(entry["Value"].as_str().unwrap_or("")).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Value as encoded in transactions.
pub fn base64(text: &str) -> String {
    BASE64.encode(text)
}

#[track_caller]
pub fn number(entry: &Value, field: &str) -> u64 {
    entry[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {entry}"))
}
