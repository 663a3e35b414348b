//! Programs of jobs as real processes on `rcfarm dev`.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::dev::DevProcess;
use crate::harness::program;
use rcfarm_testing::process::free_ports;
use rcfarm_testing::program::Ran;
use rcfarm_testing::wait::{PATIENCE, in_time};
use serde_json::{Value, json};

/// `rcfarm dev` for jobs, killed when dropped.
pub struct JobsDev {
    pub dev: DevProcess,
    pub dir: tempfile::TempDir,
}

impl JobsDev {
    pub async fn start(arguments: &[&str]) -> JobsDev {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("nodes").to_str().unwrap().to_owned();
        let [first] = free_ports::<1>().map(|port| port.to_string());
        let all = ["dev", "--first-port", &first, "--data-dir", &data];
        let mut dev = program("127.0.0.1:0", dir.path()).command(&[&all, arguments].concat());
        dev.env("PATH", std::env::var_os("PATH").unwrap());
        JobsDev { dev: DevProcess::start(dev.into()).await, dir }
    }

    pub async fn one_node() -> JobsDev {
        JobsDev::start(&["--nodes", "1"]).await
    }

    pub async fn run(&self, arguments: &[&str]) -> Ran {
        in_time("an answer", program(&self.dev.address, self.dir.path()).run(arguments)).await
    }

    pub async fn apply(&self, document: &str) -> Ran {
        std::fs::write(self.dir.path().join("job.yaml"), document).unwrap();
        self.run(&["apply", "-f", "job.yaml"]).await
    }

    pub async fn apply_json(&self, document: &Value) {
        self.apply(&document.to_string()).await.ok();
    }

    /// Waits for the job's end.
    pub async fn wait(&self, job: &str) -> Ran {
        let wait = ["job", "wait", job];
        let waited = program(&self.dev.address, self.dir.path());
        match tokio::time::timeout(PATIENCE, waited.run(&wait)).await {
            Ok(ended) => ended,
            Err(_) => panic!("{job} does not end: {:?}", self.run(&["job", "explain", job]).await),
        }
    }

    pub async fn status(&self, job: &str) -> Value {
        self.run(&["job", "get", job, "-o", "json"]).await.json()["status"].clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shells_get_their_own_dollars() {
    let dev = JobsDev::one_node().await;
    let job = r#"
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: shell}
spec:
  plugins: {env: []}
  tasks:
    - name: a
      replicas: 1
      template:
        spec:
          restartPolicy: Never
          containers:
            - name: c
              env: [{name: X, value: old}, {name: FULL, value: "$(X)-$(NOPE)-$$(X)"}]
              command: [sh, -c]
              args:
                - >-
                  echo $(date +%s) $((1+2)); for X in 1 2; do echo ${X}; done;
                  echo "$FULL"; echo $(X) $(echo "$VC_TASK_INDEX") $(VC_TASK_INDEX)
"#;
    dev.apply(job).await.ok();
    let waited = dev.run(&["job", "wait", "shell"]).await;
    let log = dev.run(&["job", "logs", "shell"]).await.ok();
    assert_eq!(waited.code, 0, "{waited:?} {log}");
    let lines: Vec<&str> = log.lines().collect();
    let (time, sum) = lines[0].split_once(' ').unwrap();
    assert!(time.parse::<u64>().is_ok_and(|time| time > 1_700_000_000) && sum == "3", "{log}");
    assert_eq!(lines[1..], ["1", "2", "old-$(NOPE)-$(X)", "old 0 0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_run_followed_and_deleted_without_files() {
    let dev = JobsDev::one_node().await;
    let script = "echo \"member $VC_TASK_INDEX of $(printf two), '${NAME}', $$\"";
    let run = ["job", "run", "--name", "r", "-n", "2", "--env", "NAME=a$(X)", "--cpu", "500m"];
    let ran = dev.run(&[&run[..], &["--follow", "--", "sh", "-c", script]].concat()).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    for member in 0..2 {
        let line = format!("task-{member} | member {member} of two, 'a$(X)', ");
        let found = ran.stdout.lines().filter_map(|text| text.strip_prefix(&line));
        let pids: Vec<&str> = found.collect();
        assert!(pids.len() == 1 && pids[0].parse::<u32>().is_ok(), "{ran:?}");
    }
    let log = dev.run(&["job", "logs", "r"]).await.ok();
    assert_eq!(log.lines().count(), 2, "{log}");
    assert!(log.starts_with("task-0 | member 0"), "{log}");
    let log = dev.run(&["job", "logs", "r", "--index", "1"]).await.ok();
    assert!(log.starts_with("member 1"), "one log has no prefix: {log}");
    let again = dev.run(&["job", "run", "--name", "r", "--", "true"]).await.failed();
    assert!(again.contains("there is a job default/r already"), "{again}");

    let bad = dev.run(&["job", "run", "--name", "bad", "-f", "--", "sh", "-c", "exit 3"]).await;
    assert_eq!(bad.code, 2, "{bad:?}");
    assert!(bad.stderr.contains("exit code 3"), "{bad:?}");
    let queue = dev.run(&["job", "run", "-q", "none", "--", "true"]).await.failed();
    assert!(queue.contains("queue none"), "{queue}");

    let deleted = dev.run(&["job", "delete", "r", "bad", "none"]).await;
    assert_eq!(deleted.code, 1, "{deleted:?}");
    assert!(deleted.stderr.contains("there is no job default/none"), "{deleted:?}");
    assert_eq!(deleted.stdout, "default/r: deleted\ndefault/bad: deleted\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_files_are_applied_followed_and_deleted() {
    let dev = JobsDev::one_node().await;
    let job = |name: &str| {
        format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  tasks:\n    \
             - {{name: a, replicas: 1, template: {{spec: {{restartPolicy: Never, containers: [\n        \
             {{name: c, command: [echo, '{name}']}}, {{name: d, command: [echo, second]}}]}}}}}}\n"
        )
    };
    let write = |name: &str, text: &str| std::fs::write(dev.dir.path().join(name), text).unwrap();
    std::fs::create_dir(dev.dir.path().join("jobs")).unwrap();
    write("one.yaml", &job("one"));
    write("jobs/b.yml", &job("b"));
    write("jobs/a.yaml", &job("a"));
    write("jobs/notes.txt", "no job");
    let applied = dev.run(&["apply", "-f", "one.yaml", "-f", "jobs"]).await;
    let created = "default/one: created\ndefault/a: created\ndefault/b: created\n";
    assert_eq!(applied.stdout, created, "{applied:?}");
    // Before its pod has started.
    let log = dev.run(&["job", "logs", "one", "--follow"]).await.ok();
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a-0/c | one", "a-0/d | second"]);
    let log = dev.run(&["job", "logs", "one", "--container", "d"]).await.ok();
    assert!(log.contains("second") && !log.contains("| one"), "{log}");
    let twice = dev.run(&["plan", "-f", "jobs", "-f", "jobs/a.yaml"]).await.plan_failed();
    assert!(twice.contains("default/a is there twice"), "{twice}");
    let deleted = dev.run(&["job", "delete", "-f", "jobs", "-f", "one.yaml"]).await.ok();
    assert_eq!(deleted.lines().count(), 3, "{deleted}");
    let none = dev.run(&["job", "list", "-o", "json"]).await.json();
    assert_eq!(none, serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_job_are_watched() {
    let dev = JobsDev::one_node().await;
    for arguments in [&["job", "get", "w", "--watch"][..], &["job", "list", "-w"]] {
        dev.run(&["job", "run", "--name", "w", "--", "sleep", "600"]).await.ok();
        let mut command = program(&dev.dev.address, dev.dir.path()).command(arguments);
        command.stdout(Stdio::piped());
        let mut watch = Command::from(command).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        let mut shows = async |what: &str| {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.contains(what) {
                    return;
                }
            }
            panic!("the watch ended before it has shown {what}");
        };
        in_time("its state", shows("default/w  Running")).await;
        // What follows happens while it is watched.
        dev.run(&["job", "terminate", "w"]).await.ok();
        in_time("its end", shows("default/w  Terminated")).await;
        dev.run(&["job", "delete", "w"]).await.ok();
        in_time("its deletion", shows("default/w  deleted")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_an_array_run_once_each_with_their_index() {
    let dev = JobsDev::one_node().await;
    let (log, first) = (dev.dir.path().join("log"), dev.dir.path().join("first"));
    let (log, first) = (log.display(), first.display());
    let program = format!(
        r#"echo "$RCFARM_ARRAY_INDEX $VC_TASK_INDEX" >> {log}
           case $RCFARM_ARRAY_INDEX in 4) exit 3;; 6) mkdir {first} || exit 0; exit 1;; esac"#
    );
    dev.apply_json(&json!({
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": {"name": "sweep", "annotations": {"rcfarm/array": "0-18:2%3"}},
        "spec": {
            "plugins": {"env": []}, "restartDelay": {"first": "10ms"},
            "policies": [{"exitCode": 1, "action": "RestartPod"}],
            "tasks": [{"name": "t", "replicas": 1, "template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "command": ["sh", "-c", program]}]}}}],
        },
    }))
    .await;
    let waited = dev.wait("sweep").await;
    assert_eq!(waited.code, 2, "one has failed: {waited:?}");
    let mut ran: Vec<u32> = std::fs::read_to_string(dev.dir.path().join("log"))
        .unwrap()
        .lines()
        .map(|line| {
            let (index, also) = line.split_once(' ').unwrap();
            assert_eq!(index, also, "Volcano's variable has the index of the task, too");
            index.parse().unwrap()
        })
        .collect();
    ran.sort_unstable();
    assert_eq!(ran, [0, 2, 4, 6, 6, 8, 10, 12, 14, 16, 18]);
    let shown = dev.run(&["job", "get", "sweep"]).await.ok();
    for words in ["(10 tasks, 3 at a time)", "0,2,6,8,10,12,14,16,18\n", "9 completed, 1 failed"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let status = dev.status("sweep").await;
    assert_eq!(status["array"]["failedIndexes"], "4", "{status}");
}

/// From an index of an array to its failure and its log; and jobs of `job run` that follow each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_a_task_of_an_array_is_found_by_its_index() {
    let dev = JobsDev::one_node().await;
    let program = "echo index $RCFARM_ARRAY_INDEX; [ $RCFARM_ARRAY_INDEX != 1 ]";
    let run = ["job", "run", "--name", "sweep", "--array", "0-5%2", "--", "sh", "-c", program];
    dev.run(&run).await.ok();
    let next = ["job", "run", "--name", "next", "--depends-on", "afterany:sweep", "--", "true"];
    dev.run(&next).await.ok();
    let never = ["job", "run", "--name", "never", "--depends-on", "sweep", "--", "true"];
    dev.run(&never).await.ok();
    assert_eq!(dev.wait("sweep").await.code, 2);
    assert_eq!(dev.wait("next").await.code, 0);
    let why = dev.run(&["job", "explain", "never"]).await.ok();
    assert!(why.contains("afterok: sweep is Failed, so it never starts"), "{why}");

    // It has failed, and its member has run other tasks since.
    let log = dev.run(&["job", "logs", "sweep", "--array-index", "1"]).await.ok();
    assert_eq!(log, "index 1\n");
    let log = dev.run(&["job", "logs", "sweep", "--array-index", "1", "--previous"]).await.ok();
    assert_eq!(log, "index 1\n");
    let last = dev.status("sweep").await["array"]["members"].clone();
    let last: Vec<u64> =
        last.as_object().unwrap().values().map(|index| index.as_u64().unwrap()).collect();
    for index in 0..6 {
        let text = index.to_string();
        let log = dev.run(&["job", "logs", "sweep", "--array-index", &text]).await;
        match last.contains(&index) {
            true => assert_eq!(log.ok(), format!("index {index}\n")),
            false if index == 1 => {}
            false => assert!(log.failed().contains("its member has run another task since")),
        }
    }
    let none = dev.run(&["job", "logs", "sweep", "--array-index", "6"]).await.failed();
    assert!(none.contains("default/sweep has no task of index 6"), "{none}");
    let tree = dev.run(&["job", "tree", "sweep"]).await.ok();
    assert!(last.iter().all(|index| tree.contains(&format!(", index {index},"))), "{tree}");
    let why = dev.run(&["job", "explain", "sweep"]).await.ok();
    let row = why.lines().find(|line| line.starts_with("failed indexes")).unwrap();
    assert!(row.ends_with(" 1") && why.contains(" (index 1) on "), "{why}");
}
