//! A kind of jobs that a record describes (decision 42), with the built program, a real Consul and real processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::with_job_node;
use crate::harness::RealCluster;
use rcfarm_api::key;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::program::Ran;
use rcfarm_testing::wait::until;

const EXAMPLE: &str = include_str!("../../../examples/job_type.yaml");

/// What the master of these tests checks of its environment.
const CHECKS: &str = "test $PADDLE_JOB_ID = default-NAME && test $PADDLE_NNODES = 3 && test $PADDLE_RANK = 0 \
    && test $PADDLE_MASTER = n1:$PORT && test $PADDLE_TRAINERS = n1,n1";

/// The type and the job of the example. The master ends with the code of `command`.
fn documents(name: &str, command: &str) -> [String; 2] {
    let (of_type, job) = EXAMPLE.split_once("---\n").unwrap();
    let job = job.replace("name: paddle}\nspec", &format!("name: {name}}}\nspec"));
    [of_type.to_owned(), job.replace("env | grep PADDLE", command)]
}

struct Stage {
    _agent: Daemon,
    cluster: RealCluster,
}

impl Stage {
    async fn new() -> Stage {
        let (_agent, cluster) = with_job_node().await;
        Stage { _agent, cluster }
    }

    async fn apply(&self, text: &str) -> Ran {
        std::fs::write(self.cluster.dir.path().join("file.yaml"), text).unwrap();
        self.cluster.run(&["apply", "-f", "file.yaml"]).await
    }

    async fn record(&self, name: &str) -> Value {
        let text = self.cluster.get(&format!("rcfarm/jobs/default/{name}")).await.unwrap();
        serde_json::from_str(&text).unwrap()
    }

    async fn phase(&self, name: &str, phase: &str) -> Value {
        until(&format!("{name} is {phase}"), || async {
            let job = self.cluster.json(&["job", "get", name]).await;
            job["status"]["state"]["phase"] == phase
        })
        .await;
        self.cluster.json(&["job", "get", name]).await["status"].take()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_of_a_described_kind_runs_to_its_end() {
    let stage = Stage::new().await;
    let farm = stage.cluster.farm_process("a", &[]);
    let checks = CHECKS.replace("NAME", "good").replace("$PORT", "${PADDLE_MASTER#*:}");
    let [of_type, good] = documents("good", &checks);
    let refused = stage.apply(&good).await.failed();
    assert!(refused.contains("rcfarm/job_types/PaddleJob"), "{refused}");
    stage.apply(&format!("{of_type}---\n{good}")).await.ok();
    let status = stage.phase("good", "Completed").await;
    assert_eq!(status["state"]["reason"], "LeaderSucceeded", "the workers slept on");

    // The kind is known from now on. A master that fails fails the job.
    let [_, bad] = documents("bad", "exit 3");
    stage.apply(&bad).await.ok();
    let status = stage.phase("bad", "Failed").await;
    assert_eq!(status["state"]["reason"], "MemberFailed", "{status}");

    // A record that is written to Consul gets the type from the farm, and keeps it.
    let [_, raw] = documents("raw", "sleep 600");
    let document = rcfarm::job::document::from_yaml(&raw).unwrap();
    stage.cluster.put("rcfarm/jobs/default/raw", document.to_string()).await;
    stage.phase("raw", "Running").await;
    let copy = stage.record("raw").await["spec"]["jobType"].take();
    assert_eq!(copy["replicaSpecs"], "paddleReplicaSpecs", "{copy}");
    let changed = stage.apply(&of_type.replace("types: [Master, Worker]", "types: [Worker]")).await;
    assert!(changed.stderr.contains("keep the type that they have"), "{changed:?}");
    stage.apply(&raw).await.ok();
    assert!(stage.apply(&raw).await.ok().contains("unchanged"));
    assert_eq!(stage.record("raw").await["spec"]["jobType"], copy);

    // So it needs the record no more.
    let list = stage.cluster.run(&["job", "type", "list"]).await.ok();
    assert!(list.contains("PaddleJob") && list.contains("1 x Master, 1 x Worker"), "{list}");
    let deleted = stage.cluster.run(&["job", "type", "delete", "PaddleJob"]).await;
    assert!(deleted.stderr.contains("3 jobs of the kind go on"), "{deleted:?}");
    assert!(stage.cluster.list(&key::job_types()).await.is_empty());
    let [_, late] = documents("late", "true");
    let document = rcfarm::job::document::from_yaml(&late).unwrap();
    stage.cluster.put("rcfarm/jobs/default/late", document.to_string()).await;
    until("the late one is told what is missing", || async {
        let job = stage.cluster.json(&["job", "get", "late"]).await;
        let status = job["status"].to_string();
        status.contains("InvalidRecord") && status.contains("rcfarm/job_types/PaddleJob")
    })
    .await;
    // Once there is a record again, the farm finds it.
    stage.apply(&of_type).await.ok();
    stage.phase("late", "Completed").await;
    let verified = stage.cluster.run(&["audit", "verify"]).await;
    assert_eq!(verified.code, 0, "{verified:?}");
    for job in ["good", "bad", "raw", "late"] {
        stage.cluster.run(&["job", "delete", job, "--timeout", "80s"]).await.ok();
    }
    farm.stop().await;
}

/// A server of a type's hook. It answers nothing until it is told to; then with a variable. It counts its answers.
struct Hook {
    url: String,
    answers: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
}

impl Hook {
    async fn new() -> Hook {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (answers, answered) = (Arc::new(AtomicBool::new(false)), Arc::<AtomicUsize>::default());
        let (may, count) = (answers.clone(), answered.clone());
        tokio::spawn(async move {
            let body = r#"{"environment": [{"name": "FROM_HOOK", "value": "rank ${rank}"}]}"#;
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 64 * 1024];
                let _ = stream.read(&mut request).await;
                if may.load(Ordering::SeqCst) {
                    count.fetch_add(1, Ordering::SeqCst);
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
                }
                open.push(stream);
            }
        });
        Hook { url, answers, answered }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_waits_for_its_hook_and_keeps_its_answer() {
    let stage = Stage::new().await;
    let hook = Hook::new().await;
    let farm = stage.cluster.farm_process("a", &[]);
    let [of_type, job] = documents("hooked", "test \"$FROM_HOOK\" = \"rank 0\"");
    let server = format!("  hook: {{url: '{}', timeoutSeconds: 1}}\n", hook.url);
    stage.apply(&format!("{of_type}{server}---\n{job}")).await.ok();
    until("the job says that the hook is silent", || async {
        let status = stage.cluster.json(&["job", "get", "hooked"]).await["status"].take();
        status["state"]["reason"] == "HookFailed"
            && status["state"]["message"].to_string().contains("no answer within 1s")
    })
    .await;
    let copy = stage.record("hooked").await["spec"]["jobType"].take();
    assert_eq!(copy["hook"], "Pending", "the address is the record's alone");
    // Others go on meanwhile.
    let run = ["job", "run", "--name", "other", "--replicas", "1", "--", "true"];
    stage.cluster.run(&run).await.ok();
    stage.phase("other", "Completed").await;
    hook.answers.store(true, Ordering::SeqCst);
    stage.phase("hooked", "Completed").await;
    let copy = stage.record("hooked").await["spec"]["jobType"].take();
    assert_eq!(copy["hook"], "Answered");
    assert!(copy["environment"].to_string().contains("FROM_HOOK"), "{copy}");
    assert_eq!(hook.answered.load(Ordering::SeqCst), 1, "it is asked once");
    stage.apply(&job).await.ok();
    assert_eq!(stage.record("hooked").await["spec"]["jobType"], copy, "for good");
    for job in ["hooked", "other"] {
        stage.cluster.run(&["job", "delete", job, "--timeout", "80s"]).await.ok();
    }
    farm.stop().await;
}
