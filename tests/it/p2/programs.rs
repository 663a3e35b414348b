//! square/p2's programs: run, run and recorded, or replayed.
//!
//! A recording holds, for each run of a program, its arguments, exit code, output, and the writes that Consul accepted
//! from it. It is made through a proxy in front of Consul. A replay makes the same writes in the same order, and fails
//! when the test runs another program, or with other arguments, than it did when it was recorded.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::process::Command;

use crate::harness::RealCluster;
use rcfarm_testing::wait::in_time;

/// A write to Consul's KV; `None`: the key was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    key: String,
    value: Option<String>,
}

/// One run of a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    program: String,
    arguments: Vec<String>,
    code: i32,
    output: String,
    writes: Vec<Written>,
}

pub enum Programs {
    Live(PathBuf),
    Recording {
        dir: PathBuf,
        /// Where the programs find the proxy that records what they write.
        address: String,
        writes: Arc<Mutex<Vec<Written>>>,
        runs: Vec<Run>,
        file: PathBuf,
    },
    Replayed {
        left: std::vec::IntoIter<Run>,
        file: PathBuf,
    },
}

/// Directory of p2's programs; `None`: they are not here.
///
/// # Panics
/// When nobody has said that they cannot be had: a test must not pass because something was forgotten.
pub fn directory() -> Option<PathBuf> {
    let named = std::env::var_os("P2_BIN").map(PathBuf::from);
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".p2/bin");
    let found = named.or(Some(built)).filter(|dir| dir.join("p2-rctl").is_file());
    assert!(
        found.is_some() || std::env::var_os("P2_ABSENT").is_some(),
        "square/p2's programs are not here. Run .ci/get-p2, or set P2_BIN. Where they cannot be had, set P2_ABSENT=1: \
         recorded runs are then replayed, and tests that need the programs themselves do nothing."
    );
    found
}

fn recording(test: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/p2/{test}.json"))
}

impl Programs {
    /// For a test with this name.
    pub async fn new(test: &str, cluster: &RealCluster) -> Programs {
        let file = recording(test);
        match (directory(), std::env::var_os("P2_RECORD")) {
            (Some(dir), Some(_)) => {
                let writes = Arc::new(Mutex::new(Vec::new()));
                let address = proxy(cluster.address.clone(), writes.clone()).await;
                Programs::Recording { dir, address, writes, runs: Vec::new(), file }
            }
            (Some(dir), None) => Programs::Live(dir),
            (None, _) => {
                eprintln!("REPLAYED from {}: p2's programs are not here.", file.display());
                let text = std::fs::read_to_string(&file).expect("a recording: P2_RECORD=1");
                let runs: Vec<Run> = serde_json::from_str(&text).expect("a recording");
                Programs::Replayed { left: runs.into_iter(), file }
            }
        }
    }

    /// Runs a program to its end; returns its exit code and what it printed.
    pub async fn run(
        &mut self,
        cluster: &RealCluster,
        program: &str,
        arguments: &[&str],
    ) -> (i32, String) {
        match self {
            Programs::Live(dir) => {
                output(command(dir, cluster, &cluster.address, program, arguments)).await
            }
            Programs::Recording { dir, address, writes, runs, file } => {
                let (code, output) =
                    output(command(dir, cluster, address, program, arguments)).await;
                runs.push(Run {
                    program: program.to_owned(),
                    arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
                    code,
                    output: output.clone(),
                    writes: std::mem::take(&mut *writes.lock().unwrap()),
                });
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                let text = serde_json::to_string_pretty(runs).unwrap() + "\n";
                std::fs::write(file, text).unwrap();
                (code, output)
            }
            Programs::Replayed { left, file } => {
                let run = left.next().unwrap_or_else(|| {
                    panic!("{}: {program} was not recorded: P2_RECORD=1", file.display())
                });
                assert_eq!(
                    (run.program.as_str(), run.arguments.iter().map(|a| &a[..]).collect()),
                    (program, arguments.to_vec()),
                    "{}: record again with P2_RECORD=1",
                    file.display()
                );
                for Written { key, value } in run.writes {
                    match value {
                        Some(value) => cluster.put(key, value).await,
                        None => cluster.delete(key).await,
                    }
                }
                (run.code, run.output)
            }
        }
    }

    /// What a program that only reads shows of the cluster as it is now. `None`: there is no program to ask.
    pub async fn shown(
        &self,
        cluster: &RealCluster,
        program: &str,
        arguments: &[&str],
    ) -> Option<String> {
        let (Programs::Live(dir) | Programs::Recording { dir, .. }) = self else { return None };
        let (code, text) =
            output(command(dir, cluster, &cluster.address, program, arguments)).await;
        assert_eq!(code, 0, "{program} {arguments:?}: {text}");
        Some(text)
    }
}

pub fn command(
    dir: &Path,
    cluster: &RealCluster,
    consul: &str,
    program: &str,
    arguments: &[&str],
) -> std::process::Command {
    let mut command = std::process::Command::new(dir.join(program));
    command.arg("--consul").arg(consul).args(arguments);
    command.current_dir(cluster.dir.path()).stdin(Stdio::null());
    command
}

pub async fn output(command: std::process::Command) -> (i32, String) {
    let mut command = Command::from(command);
    let output = in_time("a program of p2", command.kill_on_drop(true).output()).await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

/// Passes requests on to Consul and notes the writes that it accepts. Returns the proxy's address.
async fn proxy(consul: String, writes: Arc<Mutex<Vec<Written>>>) -> String {
    let client = reqwest::Client::builder().no_proxy();
    let client = client.redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let pass = move |request: Request| {
        let (client, consul, writes) = (client.clone(), consul.clone(), writes.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, usize::MAX).await.unwrap();
            let url = format!("http://{consul}{}", parts.uri);
            let method = parts.method.as_str().parse::<reqwest::Method>().unwrap();
            let answer = client.request(method, url).body(body.clone()).send().await.unwrap();
            let mut response = Response::builder().status(answer.status().as_u16());
            for (name, value) in answer.headers() {
                if name != "content-length" && name != "transfer-encoding" {
                    response = response.header(name.as_str(), value.as_bytes());
                }
            }
            let is_done = answer.status().is_success();
            let text = answer.bytes().await.unwrap();
            if is_done && &text[..] != b"false" {
                let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
                writes.lock().unwrap().extend(written(parts.method.as_str(), path, query, &body));
            }
            response.body(Body::from(text)).unwrap()
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(axum::serve(listener, axum::Router::new().fallback(pass)).into_future());
    address
}

/// The writes of one accepted request. Locks are passed over: they end with the program's session.
fn written(method: &str, path: &str, query: &str, body: &[u8]) -> Vec<Written> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    if query.contains("acquire=") || query.contains("release=") {
        return Vec::new();
    }
    match (method, path.strip_prefix("/v1/kv/")) {
        ("PUT", Some(key)) => vec![Written { key: key.to_owned(), value: Some(text(body)) }],
        ("DELETE", Some(key)) => vec![Written { key: key.to_owned(), value: None }],
        ("PUT", None) if path == "/v1/txn" => {
            let ops: Vec<Value> = serde_json::from_slice(body).unwrap();
            let write = |op: Value| {
                let kv = &op["KV"];
                let key = kv["Key"].as_str()?.to_owned();
                match kv["Verb"].as_str()? {
                    "set" | "cas" => {
                        let value = STANDARD.decode(kv["Value"].as_str()?).ok()?;
                        Some(Written { key, value: Some(text(&value)) })
                    }
                    "delete" | "delete-cas" => Some(Written { key, value: None }),
                    _ => None,
                }
            };
            ops.into_iter().filter_map(write).collect()
        }
        _ => Vec::new(),
    }
}
