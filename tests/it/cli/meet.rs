//! Runs `examples/meet.yaml` on `rcfarm dev`, three times at once: three processes each that find each other.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::dev::DevProcess;
use crate::harness::program;
use rcfarm_testing::process::free_ports;
use rcfarm_testing::wait::{PATIENCE, in_time};

const JOBS: [&str; 3] = ["meet-1", "meet-2", "meet-3"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_meet_only_those_of_their_own_job() {
    let dir = tempfile::tempdir().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/meet.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    let names = JOBS.map(|job| format!("{job}.yaml"));
    for (job, name) in JOBS.iter().zip(&names) {
        let text = text.replacen("name: meet\n", &format!("name: {job}\n"), 1);
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    // Ports of two nodes, and ports for the masters, which may share a node.
    let [first, _, job_port, _, _, _, _, last] = free_ports();
    let data = dir.path().join("nodes").to_str().unwrap().to_owned();
    let (first, ports) = (first.to_string(), format!("{job_port}-{last}"));
    let arguments =
        ["dev", "--nodes", "2", "--first-port", &first, "--job-ports", &ports, "--data-dir", &data];
    let mut dev = program("127.0.0.1:0", dir.path()).command(&arguments);
    // Contains python3.
    dev.env("PATH", std::env::var_os("PATH").unwrap());
    let mut dev = DevProcess::start(dev.into()).await;
    let ask = async |arguments: &[&str]| program(&dev.address, dir.path()).run(arguments).await;

    for name in &names {
        ask(&["apply", "-f", name]).await.ok();
    }
    let mut masters = BTreeSet::new();
    for job in JOBS {
        let waited = tokio::time::timeout(PATIENCE, ask(&["job", "wait", job])).await;
        let shown = ask(&["job", "explain", job]).await;
        let waited = waited.unwrap_or_else(|_| panic!("it does not end: {shown:?}\n{}", dev.log()));
        assert_eq!(waited.code, 0, "{waited:?} {shown:?}");
        for (task, index, rank) in [("Master", "0", 0), ("Worker", "0", 1), ("Worker", "1", 2)] {
            let log = ask(&["job", "logs", job, "--task", task, "--index", index]).await.ok();
            let wanted = format!("rank {rank} of 3 met the others at 127.0.0.1:");
            let met = log.strip_prefix(&wanted).unwrap_or_else(|| panic!("{job}: {log}"));
            let (port, sum) = met.split_once("; ").unwrap();
            assert_eq!(sum.trim(), "the ranks add up to 3", "{job}: {log}");
            masters.insert((port.to_owned(), job));
        }
        let got: Value = ask(&["job", "get", job, "-o", "json"]).await.json();
        let conditions = got["status"]["conditions"].as_array().unwrap();
        let succeeded = |c: &Value| c["type"] == "Succeeded" && c["status"] == "True";
        assert!(conditions.iter().any(succeeded), "{got:#}");
        assert!(got["status"]["failures"].is_null(), "{got:#}");
    }
    let ports: BTreeSet<&String> = masters.iter().map(|(port, _)| port).collect();
    assert_eq!((masters.len(), ports.len()), (3, 3), "each job has a port of its own: {masters:?}");
    for job in JOBS {
        ask(&["job", "delete", job]).await.ok();
    }
    dev.signal("TERM");
    assert!(in_time("its end", dev.child.wait()).await.unwrap().success());
}
