//! `rcfarm job logs` and other commands that wait, on records and logs that the test writes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcfarm_api::ids::Namespaced;
use rcfarm_api::key;
use rcfarm_emulator::serve::{CONSULS_CONNECTIONS, serve};
use rcfarm_emulator::{Emulator, Fate, FaultOutcome, Faults, Request};
use rcfarm_node::agent::logs::rotate;
use rcfarm_node::agent::serve::{LogAccess, LogServer};
use rcfarm_node::http::{self, HttpListener};
use rcfarm_store::StoreError;
use rcfarm_testing::program::{Program, Ran};
use rcfarm_testing::wait::{eventually, in_time, until};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::process::{Child, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use crate::harness::{Cluster, program};

/// Number of reads of each kind, and of reads of jobs' statuses that are still to fail.
#[derive(Default)]
struct Reads {
    of_node: AtomicUsize,
    of_labels: AtomicUsize,
    of_status: AtomicUsize,
    to_fail: AtomicUsize,
    failed: AtomicUsize,
}

impl Faults for Reads {
    fn fate(&self, request: &Request<'_>) -> Fate {
        match request {
            Request::Get(key) if key.starts_with("rcfarm/nodes/") => &self.of_node,
            Request::List(prefix) if prefix.starts_with("labels/pod/") => &self.of_labels,
            Request::Get(key) | Request::List(key) if key.starts_with("rcfarm/job") => {
                let left = |left: usize| left.checked_sub(1);
                let fails =
                    self.to_fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok();
                if key.starts_with("rcfarm/job_status/") {
                    self.of_status.fetch_add(1, Ordering::SeqCst);
                }
                if fails {
                    self.failed.fetch_add(1, Ordering::SeqCst);
                    return Fate::of(FaultOutcome::Fail(StoreError::NoLeader));
                }
                return Fate::DELIVER;
            }
            _ => return Fate::DELIVER,
        }
        .fetch_add(1, Ordering::SeqCst);
        Fate::DELIVER
    }
}

impl Reads {
    fn of_node(&self) -> usize {
        self.of_node.load(Ordering::SeqCst)
    }
}

/// A job `m` whose members are all on node `n1`, written as a farm and an agent would.
struct Members {
    cluster: Cluster,
    reads: Arc<Reads>,
    program: Program,
    dir: tempfile::TempDir,
    count: u32,
    uid: u64,
    revision: u64,
}

impl Members {
    async fn new(count: u32) -> Members {
        let cluster = Cluster::on(Emulator::default());
        let dir = tempfile::tempdir().unwrap();
        let reads = Arc::new(Reads::default());
        let store = cluster.store.with_faults(reads.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let program = program(&listener.local_addr().unwrap().to_string(), dir.path());
        tokio::spawn(serve(listener, store, CONSULS_CONNECTIONS));

        let container = json!({"name": "c", "command": ["x"]});
        let template = json!({"spec": {"containers": [container]}});
        let task = json!({"name": "a", "replicas": count, "template": template});
        let job = json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
            "metadata": {"name": "m"}, "spec": {"tasks": [task]}});
        std::fs::write(dir.path().join("m.json"), job.to_string()).unwrap();
        program.run(&["apply", "-f", "m.json"]).await.ok();
        let uid = cluster.entry(key::job(&id())).await.unwrap().create_index.0;
        let socket = dir.path().join("agent.sock");
        cluster.put("rcfarm/nodes/n1", json!({"log_socket": socket}).to_string()).await;
        let mut members = Members { cluster, reads, program, dir, count, uid, revision: 0 };
        for index in 0..count {
            members.start(index, 0).await;
        }
        members.pods_are("Starting").await;
        members.job_is("Running").await;
        members
    }

    /// Makes the pod of an attempt.
    async fn start(&self, index: u32, attempt: u32) {
        let labels = json!({
            "volcano.sh/job-name": "m", "volcano.sh/job-namespace": "default",
            "volcano.sh/task-spec": "a", "volcano.sh/task-index": index.to_string(),
            "volcano.sh/job-version": "0", "rcfarm/attempt": attempt.to_string(),
            "rcfarm/job_uid": self.uid.to_string(),
        });
        self.cluster.put(format!("labels/pod/n1/m-a-{index}"), labels.to_string()).await;
        let home = self.log(index).parent().unwrap().to_owned();
        std::fs::create_dir_all(&home).unwrap();
        let manifest = json!({"job": {"id": "default/m", "uid": self.uid, "task": "a",
            "index": index, "version": 0, "attempt": attempt}});
        let stored = json!({"manifest": manifest.to_string(), "owner": null});
        std::fs::write(home.join("pod.json"), stored.to_string()).unwrap();
    }

    /// Removes the pod of an attempt. Its log is kept.
    fn forget(&self, index: u32, attempt: u32) {
        let home = self.log(index).parent().unwrap().to_owned();
        let kept = format!("ended/m-a-{index}/{}.{attempt}", self.uid);
        let kept = self.dir.path().join(kept);
        std::fs::create_dir_all(&kept).unwrap();
        std::fs::rename(self.log(index), kept.join("c.log")).unwrap();
        std::fs::remove_dir_all(home).unwrap();
    }

    fn log(&self, index: u32) -> PathBuf {
        self.dir.path().join(format!("pods/m-a-{index}/c.log"))
    }

    fn append(&self, index: u32, text: &str) {
        let log = std::fs::File::options().create(true).append(true).open(self.log(index));
        log.unwrap().write_all(text.as_bytes()).unwrap();
    }

    async fn pods_are(&self, phase: &str) {
        for index in 0..self.count {
            let status = json!({"phase": phase}).to_string();
            self.cluster.put(format!("status/pods/m-a-{index}/n1"), status).await;
        }
    }

    async fn job_is(&mut self, phase: &str) {
        self.revision += 1;
        let status = json!({"uid": self.uid, "revision": self.revision,
            "state": {"phase": phase, "reason": "Test"}});
        self.cluster.put(key::job_status(&id()), status.to_string()).await;
    }

    async fn end(&mut self) {
        self.pods_are("Ended").await;
        self.job_is("Completed").await;
    }

    /// Starts the server of the agent's logs.
    fn serve_logs(&self) -> LogsServed {
        let socket = self.dir.path().join("agent.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = HttpListener::Unix(UnixListener::bind(&socket).unwrap());
        let (node, data_dir) = ("n1".parse().unwrap(), self.dir.path().to_owned());
        let shutdown = CancellationToken::new();
        let server = LogServer { node, data_dir, access: LogAccess::Connected };
        let task = tokio::spawn(server.run(listener, shutdown.clone()));
        LogsServed { shutdown, task }
    }

    fn spawn(&self, arguments: &[&str]) -> Following {
        let mut command = Command::from(self.program.command(arguments));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Following { child, lines }
    }
}

struct LogsServed {
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl LogsServed {
    async fn stop(self) {
        self.shutdown.cancel();
        in_time("the server ends", self.task).await.unwrap();
    }
}

struct Following {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Following {
    async fn line(&mut self) -> Option<String> {
        in_time("a line", self.lines.next_line()).await.unwrap()
    }

    /// The rest of its output, and its errors.
    async fn end(mut self) -> Ran {
        let mut stdout = String::new();
        while let Some(line) = self.line().await {
            stdout.push_str(&(line + "\n"));
        }
        let ended = in_time("the end", self.child.wait_with_output()).await.unwrap();
        Ran { stdout, ..ended.into() }
    }
}

fn id() -> Namespaced {
    "m".parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_reads_more_logs_of_a_node_than_its_agent_serves_at_once() {
    let mut job = Members::new(100).await;
    let served = job.serve_logs();
    (0..100).for_each(|index| job.append(index, "first\n"));
    job.pods_are("Running").await;
    let mut following = job.spawn(&["job", "logs", "m", "--follow"]);
    let mut first = BTreeMap::new();
    while first.len() < 100 {
        let line = following.line().await.unwrap();
        assert!(line.ends_with(" | first") && first.insert(line.clone(), ()).is_none(), "{line}");
    }
    // Health checks are answered meanwhile.
    let stream = UnixStream::connect(job.dir.path().join("agent.sock")).await.unwrap();
    assert_eq!(http::get(stream, "x", "/healthz", None).await.unwrap().status(), 200);
    (0..100).for_each(|index| job.append(index, "last"));
    job.end().await;
    let ended = following.end().await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let mut lines: Vec<&str> = ended.stdout.lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<String> = (0..100).map(|index| format!("a-{index} | last")).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected, "{ended:?}");
    assert!(!ended.stderr.contains("not read"), "{ended:?}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_waits_for_a_log_and_goes_on_after_its_agent_was_restarted() {
    let mut job = Members::new(1).await;
    let served = job.serve_logs();
    let mut following = job.spawn(&["job", "logs", "m", "--follow"]);
    // The log is not there at the first read.
    eventually("it was looked for again", || job.reads.of_node() >= 2).await;
    job.append(0, "one\n");
    assert_eq!(following.line().await.as_deref(), Some("one"));
    served.stop().await;
    job.append(0, "two\n");
    let before = job.reads.of_node();
    eventually("it was looked for again", || job.reads.of_node() > before).await;
    let served = job.serve_logs();
    assert_eq!(following.line().await.as_deref(), Some("two"));
    let lists = job.reads.of_labels.load(Ordering::SeqCst);
    assert!(lists <= 3, "pods are listed when the job's status has changed, not {lists} times");
    job.append(0, "three");
    job.end().await;
    let ended = following.end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "three\n"), "{ended:?}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_names_logs_that_were_not_read_and_fails_if_that_is_all() {
    let mut job = Members::new(2).await;
    job.append(0, "one\n");
    job.end().await;
    for more in [&[][..], &["--follow"]] {
        let failed = job.program.run(&[&["job", "logs", "m"], more].concat()).await.failed();
        assert!(failed.contains("the agent of n1 serves logs on its own machine"), "{failed}");
    }
    let served = job.serve_logs();
    for more in [&[][..], &["--follow"]] {
        let read = job.program.run(&[&["job", "logs", "m"], more].concat()).await;
        assert_eq!((read.code, read.stdout.as_str()), (0, "a-0 | one\n"), "{read:?}");
        assert!(read.stderr.contains("a-1") && read.stderr.contains("no log of"), "{read:?}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_gives_up_in_time_when_the_store_fails_meanwhile() {
    let job = Members::new(1).await;
    let following = job.spawn(&["job", "delete", "m", "--timeout", "1s"]);
    let is_marked = async || {
        let entry = job.cluster.entry(key::job(&id())).await.unwrap();
        String::from_utf8_lossy(&entry.value).contains("deletionTimestamp")
    };
    until("it is marked", is_marked).await;
    job.reads.to_fail.store(usize::MAX, Ordering::SeqCst);
    let ended = following.end().await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("gave up waiting after 1s"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_wait_for_a_job_outlast_an_election() {
    let mut job = Members::new(1).await;
    job.append(0, "one\n");
    let served = job.serve_logs();
    for arguments in [
        &["job", "logs", "m", "--follow"][..],
        &["job", "wait", "m"],
        &["job", "get", "m", "--watch"],
    ] {
        job.job_is("Running").await;
        let before = job.reads.of_status.load(Ordering::SeqCst);
        let mut following = job.spawn(arguments);
        let has_begun = || job.reads.of_status.load(Ordering::SeqCst) >= before + 2;
        eventually("it waits", has_begun).await;
        let failed = job.reads.failed.load(Ordering::SeqCst);
        job.reads.to_fail.store(2, Ordering::SeqCst);
        job.job_is("Running").await;
        let has_failed = || job.reads.failed.load(Ordering::SeqCst) >= failed + 2;
        eventually("reads fail", has_failed).await;
        job.end().await;
        if arguments[1] == "get" {
            while !following.line().await.unwrap().contains("Completed") {}
            continue;
        }
        let ended = following.end().await;
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_prints_each_line_once_across_rotations_and_a_restart_of_the_agent() {
    let mut job = Members::new(1).await;
    let mut served = job.serve_logs();
    job.append(0, "one\ntwo\n");
    let mut following = job.spawn(&["job", "logs", "m", "--follow"]);
    for line in ["one", "two"] {
        assert_eq!(following.line().await.as_deref(), Some(line));
    }
    assert!(rotate(&job.log(0), 1).unwrap());
    job.append(0, "3\n");
    assert_eq!(following.line().await.as_deref(), Some("3"));
    // What is written while nobody reads is rotated away.
    served.stop().await;
    job.append(0, "four\n");
    assert!(rotate(&job.log(0), 1).unwrap());
    job.append(0, "5\n");
    served = job.serve_logs();
    for line in ["four", "5"] {
        assert_eq!(following.line().await.as_deref(), Some(line));
    }
    job.append(0, "six\n");
    job.end().await;
    let ended = following.end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "six\n"), "{ended:?}");
    let whole = job.program.run(&["job", "logs", "m", "--lines", "0"]).await.ok();
    assert_eq!(whole, "one\ntwo\n3\nfour\n5\nsix\n");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_reads_the_end_of_an_attempt_and_all_of_the_next_one() {
    let mut job = Members::new(1).await;
    let served = job.serve_logs();
    job.append(0, "one\n");
    let mut following = job.spawn(&["job", "logs", "m", "--follow"]);
    assert_eq!(following.line().await.as_deref(), Some("one"));
    served.stop().await;
    job.append(0, "last\n");
    job.forget(0, 0);
    // The log of the next attempt is at the same path, and longer.
    job.start(0, 1).await;
    job.append(0, "next 1\nnext 2\n");
    let served = job.serve_logs();
    assert_eq!(following.line().await.as_deref(), Some("last"));
    job.job_is("Running").await;
    for line in ["next 1", "next 2"] {
        assert_eq!(following.line().await.as_deref(), Some(line));
    }
    job.end().await;
    let ended = following.end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, ""), "{ended:?}");
    assert!(!ended.stderr.contains("not read"), "{ended:?}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_an_attempt_that_cannot_be_read_are_named_with_the_reason() {
    let job = Members::new(20).await;
    let attempt = ["job", "logs", "m", "--attempt", "1"];
    job.append(0, "one\n");
    let failed = job.program.run(&attempt).await.failed();
    assert!(failed.contains("the agent of n1 serves logs on its own machine"), "{failed}");

    // All pods are gone, all logs but one were deleted, and the agent of another node does not answer.
    for index in 0..20 {
        job.append(index, "");
        job.forget(index, 0);
        job.cluster.delete(format!("labels/pod/n1/m-a-{index}")).await;
    }
    let ended = job.dir.path().join("ended");
    (1..20).for_each(|index| std::fs::remove_dir_all(ended.join(format!("m-a-{index}"))).unwrap());
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let record = json!({"http": silent.local_addr().unwrap().to_string()});
    job.cluster.put("rcfarm/nodes/n2", record.to_string()).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    tokio::spawn(async move {
        while silent.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let served = job.serve_logs();
    let read = job.program.run(&attempt).await;
    assert_eq!((read.code, read.stdout.as_str()), (0, "a-0 | one\n"), "{read:?}");
    for index in 1..20 {
        assert!(read.stderr.contains(&format!("a-{index}: no node that answers")), "{read:?}");
    }
    assert!(read.stderr.contains("n2: n2 does not answer"), "{read:?}");
    // Once for each form of the pods' ids, at most for the first member and for the first that is nowhere.
    assert!(asked.load(Ordering::SeqCst) <= 4, "{asked:?} requests to a node that does not answer");
    served.stop().await;
}

/// An agent of 0.1.0 passes over the attempt, names no position, and sends the log that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_another_attempt_is_not_printed_as_the_one_that_was_asked_for() {
    let job = Members::new(1).await;
    job.cluster.delete("labels/pod/n1/m-a-0").await;
    job.start(0, 1).await;
    let listener = UnixListener::bind(job.dir.path().join("agent.sock")).unwrap();
    let old = axum::Router::new().fallback(async || "of the second\n");
    tokio::spawn(async move { axum::serve(listener, old).await });
    let refused = job.program.run(&["job", "logs", "m", "--attempt", "1"]).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("knows no attempts"), "{refused:?}");
    let second = job.program.run(&["job", "logs", "m", "--attempt", "2"]).await.ok();
    assert_eq!(second, "of the second\n", "the pod that is there is of this attempt");
}
