//! Jobs and queues by command line, with the built program, a real Consul, an agent and real processes.

use rcfarm_api::key;
use rcfarm_store::{PutMode, Query};
use serde_json::Value;

use super::{Daemon, RealConsul};
use rcfarm_testing::wait::until;

const JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: NAME}
spec:
  queue: research
  tasks:
    - {name: a, replicas: 2, template: &t {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1,
        containers: [{name: c, command: [sleep, '600'], resources: {requests: {cpu: 1}}}]}}}
    - {name: b, replicas: 1, template: *t}
";

struct Stage {
    _agent: Daemon,
    consul: RealConsul,
}

impl Stage {
    async fn new() -> Stage {
        let consul = RealConsul::new(0).await;
        let more = ["--capacity", "cpu=8", "--label", "pool=jobs"];
        let agent = consul.agent("n1", &more, consul.dir.path());
        let stage = Stage { _agent: agent, consul };
        stage.consul.ok(&["queue", "create", "research", "--capability", "cpu=8"]);
        stage
    }

    fn apply(&self, name: &str) {
        let file = self.consul.dir.path().join(format!("{name}.yaml"));
        std::fs::write(&file, JOB.replace("NAME", name)).unwrap();
        self.consul.ok(&["apply", "-f", file.to_str().unwrap()]);
    }

    fn job(&self, name: &str) -> Value {
        let shown = self.consul.ok(&["job", "get", name, "-o", "json"]);
        serde_json::from_str::<Value>(&shown).unwrap()["status"].clone()
    }

    async fn phase(&self, name: &str, phase: &str) {
        until(&format!("{name} is {phase}"), || async {
            self.job(name)["state"]["phase"] == phase
        })
        .await;
    }

    /// Waits until the three members of `a` and `b` run with these attempts.
    async fn runs(&self, name: &str, tries: [u64; 3], version: u64) {
        until(&format!("{name} runs, {tries:?}, attempt {version}"), || async {
            let status = self.job(name);
            let attempt = |task: &str, n: &str| {
                status["tasks"][task]["attempts"][n].as_u64().unwrap_or_default()
            };
            status["state"]["phase"] == "Running"
                && status["running"] == 3
                && [attempt("a", "0"), attempt("a", "1"), attempt("b", "0")] == tries
                && status["version"] == version
        })
        .await;
    }

    async fn commands(&self) -> usize {
        let tree = key::commands();
        let listed = self.consul.store.list(&tree, Query::CONSISTENT).await.unwrap().value;
        listed.iter().filter(|entry| !tree.is_sentinel(&entry.key)).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_acts_once_on_a_job_of_real_processes() {
    let stage = Stage::new().await;
    let farm = stage.consul.farm("a");
    let ok = |arguments: &[&str]| stage.consul.ok(arguments);
    stage.apply("j");
    stage.runs("j", [0, 0, 0], 0).await;
    ok(&["job", "restart-pod", "j", "a", "1"]);
    stage.runs("j", [0, 1, 0], 0).await;
    ok(&["job", "restart-task", "j", "a", "--reason", "why not"]);
    stage.runs("j", [1, 2, 0], 0).await;
    ok(&["job", "restart", "j"]);
    stage.runs("j", [2, 3, 1], 1).await;
    assert_eq!(stage.job("j")["retryCount"], 0, "a person's restarts are no retries");

    ok(&["job", "suspend", "j"]);
    stage.phase("j", "Aborted").await;
    assert_eq!(stage.job("j")["state"]["reason"], "Suspended");
    let intents = stage.consul.list(&key::intents()).await;
    assert!(intents.is_empty(), "{intents:?}");
    ok(&["job", "resume", "j"]);
    stage.runs("j", [3, 4, 2], 1).await;

    ok(&["job", "abort", "j"]);
    stage.phase("j", "Aborted").await;
    ok(&["job", "resume", "j"]);
    stage.runs("j", [4, 5, 3], 1).await;
    ok(&["job", "complete", "j"]);
    stage.phase("j", "Completed").await;
    let waited = stage.consul.run(&["job", "wait", "j"]);
    assert_eq!(waited.code, 0);

    stage.apply("k");
    stage.runs("k", [0, 0, 0], 0).await;
    ok(&["job", "terminate", "k"]);
    stage.phase("k", "Terminated").await;
    let waited = stage.consul.run(&["job", "wait", "k"]);
    assert_eq!(waited.code, 2, "that is no success");

    assert_eq!(stage.commands().await, 0, "each was consumed");
    let steps = ok(&["audit", "list", "-o", "json"]);
    let steps: Value = serde_json::from_str(&steps).unwrap();
    let commands = steps.as_array().unwrap().iter().filter_map(|entry| {
        entry["record"]["event_details"]["command"].as_str().map(str::to_owned)
    });
    let mut commands: Vec<String> = commands.collect();
    commands.sort();
    let count = commands.len();
    commands.dedup();
    // Each has two records: when it was given, and when it was executed.
    assert_eq!(commands.len() * 2, count, "{commands:?}");
    for job in ["j", "k"] {
        ok(&["job", "delete", job, "--timeout", "80s"]);
    }
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_queue_admits_nothing_until_it_is_opened() {
    let stage = Stage::new().await;
    let farm = stage.consul.farm("a");
    let ok = |arguments: &[&str]| stage.consul.ok(arguments);
    stage.apply("first");
    stage.runs("first", [0, 0, 0], 0).await;
    ok(&["queue", "close", "research"]);
    let second = stage.consul.dir.path().join("second.yaml");
    let text = JOB.replace("NAME", "second");
    std::fs::write(&second, &text).unwrap();
    let refused = stage.consul.run(&["apply", "-f", second.to_str().unwrap()]);
    let said = &refused.stderr;
    assert_eq!(refused.code, 1, "{said}");
    assert!(said.contains("default/second: spec.queue: queue research is closed"), "{said}");
    // Written directly to Consul, the job waits.
    let record = rcfarm::job::document::from_yaml(&text).unwrap().to_string();
    let key = key::job(&"default/second".parse().unwrap());
    assert!(stage.consul.store.put(&key, record.into(), 0, PutMode::Set).await.unwrap());
    until("the second one is told why", || async {
        stage.job("second")["state"]["reason"] == "QueueClosed"
    })
    .await;
    let queue = || {
        let shown = ok(&["queue", "get", "research", "-o", "json"]);
        serde_json::from_str::<Value>(&shown).unwrap()
    };
    until("it is closing", || async { queue()["status"]["state"] == "Closing" }).await;
    assert_eq!(stage.job("first")["state"]["phase"], "Running", "what runs goes on");
    ok(&["queue", "open", "research"]);
    stage.runs("second", [0, 0, 0], 0).await;
    for job in ["first", "second"] {
        ok(&["job", "delete", job, "--timeout", "80s"]);
    }
    farm.stop().await;
}
