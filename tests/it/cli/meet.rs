//! Runs `examples/meet.yaml` on `rcfarm dev`: three processes that find each other.

use std::path::Path;

use serde_json::Value;

use super::dev::DevProcess;
use crate::harness::program;
use rcfarm_testing::process::free_ports;
use rcfarm_testing::wait::{PATIENCE, in_time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_members_of_the_example_meet() {
    let dir = tempfile::tempdir().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/meet.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    // Ports of two nodes, and three ports for members that may share a node.
    let [first, _, port, _, _] = free_ports();
    let ports = format!(
        "- name: pytorch\n              ports: [{{name: pytorchjob-port, containerPort: {port}}}]\n"
    );
    let text = text.replacen("- name: pytorch\n", &ports, 1);
    assert!(text.contains("containerPort"), "the example names its container");
    std::fs::write(dir.path().join("meet.yaml"), text).unwrap();

    let data = dir.path().join("nodes").to_str().unwrap().to_owned();
    let first = first.to_string();
    let arguments = ["dev", "--nodes", "2", "--first-port", &first, "--data-dir", &data];
    let mut dev = program("127.0.0.1:0", dir.path()).command(&arguments);
    // Contains python3.
    dev.env("PATH", std::env::var_os("PATH").unwrap());
    let mut dev = DevProcess::start(dev.into()).await;
    let ask = async |arguments: &[&str]| program(&dev.address, dir.path()).run(arguments).await;

    ask(&["apply", "-f", "meet.yaml"]).await.ok();
    let waited = tokio::time::timeout(PATIENCE, ask(&["job", "wait", "meet"])).await;
    let shown = ask(&["job", "explain", "meet"]).await;
    let waited = waited.unwrap_or_else(|_| panic!("it does not end: {shown:?}\n{}", dev.log()));
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
    dev.signal("TERM");
    assert!(in_time("its end", dev.child.wait()).await.unwrap().success());
}
