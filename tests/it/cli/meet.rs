//! `examples/meet.yaml` as it stands: three processes on the nodes of `rcfarm dev` that find each other.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::world::{command, run};

/// Longer than it takes.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_members_of_the_example_meet() {
    let dir = tempfile::tempdir().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/meet.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    // Another port than the usual one: on this machine it may be in use.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ports = format!(
        "- name: pytorch\n              ports: [{{name: pytorchjob-port, containerPort: {port}}}]\n"
    );
    let text = text.replacen("- name: pytorch\n", &ports, 1);
    assert!(text.contains("containerPort"), "the example names its container");
    std::fs::write(dir.path().join("meet.yaml"), text).unwrap();

    let data = dir.path().join("nodes").to_str().unwrap().to_owned();
    let first = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let arguments = ["dev", "--nodes", "2", "--first-port", &first, "--data-dir", &data];
    let mut dev = command("127.0.0.1:0", dir.path(), &arguments)
        // Where python3 is.
        .env("PATH", std::env::var_os("PATH").unwrap())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    let address = loop {
        let line = lines.next_line().await.unwrap().expect("it says where the store is");
        if let Some((_, rest)) = line.split_once("http://") {
            break rest.split(',').next().unwrap().to_owned();
        }
    };
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let ask = async |arguments: &[&str]| run(command(&address, dir.path(), arguments)).await;

    ask(&["apply", "-f", "meet.yaml"]).await.ok();
    let waited = tokio::time::timeout(PATIENCE, ask(&["job", "wait", "meet"])).await;
    let shown = ask(&["job", "explain", "meet"]).await;
    let waited = waited.unwrap_or_else(|_| panic!("it does not end: {shown:?}"));
    assert_eq!(waited.code, 0, "{waited:?} {shown:?}");
    for (task, index, rank) in [("Master", "0", 0), ("Worker", "0", 1), ("Worker", "1", 2)] {
        let log = ask(&["job", "logs", "meet", "--task", task, "--index", index]).await.ok();
        let wanted =
            format!("rank {rank} of 3 met the others at 127.0.0.1:{port}; the ranks add up to 3");
        assert!(log.contains(&wanted), "{log}");
    }
    let got: Value = ask(&["job", "get", "meet", "-o", "json"]).await.json();
    let conditions = got["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "Succeeded" && c["status"] == true), "{got:#}");
    ask(&["job", "delete", "meet"]).await.ok();
    let pid = dev.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(dev.wait().await.unwrap().success());
}
