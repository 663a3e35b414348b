//! Jobs and queues by command line, with the built program, a real Consul, an agent and real processes.

use rcfarm_api::key;
use rcfarm_testing::program::Ran;
use serde_json::Value;

use super::with_job_node;
use crate::harness::RealCluster;
use rcfarm_testing::daemon::Daemon;
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
    cluster: RealCluster,
}

impl Stage {
    async fn new() -> Stage {
        let (_agent, cluster) = with_job_node().await;
        let stage = Stage { _agent, cluster };
        stage.cluster.run(&["queue", "create", "research", "--capability", "cpu=8"]).await.ok();
        stage
    }

    async fn apply(&self, name: &str) -> Ran {
        let file = self.cluster.dir.path().join("job.yaml");
        std::fs::write(&file, JOB.replace("NAME", name)).unwrap();
        self.cluster.run(&["apply", "-f", "job.yaml"]).await
    }

    async fn job(&self, name: &str) -> Value {
        self.cluster.json(&["job", "get", name]).await["status"].take()
    }

    async fn phase(&self, name: &str, phase: &str) {
        until(&format!("{name} is {phase}"), || async {
            self.job(name).await["state"]["phase"] == phase
        })
        .await;
    }

    /// Waits until the three members of `a` and `b` run with these attempts.
    async fn runs(&self, name: &str, tries: [u64; 3], version: u64) {
        until(&format!("{name} runs, {tries:?}, attempt {version}"), || async {
            let status = self.job(name).await;
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
        let keys = self.cluster.keys(&tree).await;
        keys.iter().filter(|key| !tree.is_sentinel(key)).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_acts_once_on_a_job_of_real_processes() {
    let stage = Stage::new().await;
    let farm = stage.cluster.farm_process("a", &[]);
    let ok = async |arguments: &[&str]| stage.cluster.run(arguments).await.ok();
    stage.apply("j").await.ok();
    stage.runs("j", [0, 0, 0], 0).await;
    ok(&["job", "restart-pod", "j", "a", "1"]).await;
    stage.runs("j", [0, 1, 0], 0).await;
    ok(&["job", "restart-task", "j", "a", "--reason", "why not"]).await;
    stage.runs("j", [1, 2, 0], 0).await;
    ok(&["job", "restart", "j"]).await;
    stage.runs("j", [2, 3, 1], 1).await;
    assert_eq!(stage.job("j").await["retryCount"], 0, "a person's restarts are no retries");

    ok(&["job", "suspend", "j"]).await;
    stage.phase("j", "Aborted").await;
    assert_eq!(stage.job("j").await["state"]["reason"], "Suspended");
    let intents = stage.cluster.list(&key::intents()).await;
    assert!(intents.is_empty(), "{intents:?}");
    ok(&["job", "resume", "j"]).await;
    stage.runs("j", [3, 4, 2], 1).await;

    ok(&["job", "abort", "j"]).await;
    stage.phase("j", "Aborted").await;
    ok(&["job", "resume", "j"]).await;
    stage.runs("j", [4, 5, 3], 1).await;
    ok(&["job", "complete", "j"]).await;
    stage.phase("j", "Completed").await;
    let waited = stage.cluster.run(&["job", "wait", "j"]).await;
    assert_eq!(waited.code, 0);

    stage.apply("k").await.ok();
    stage.runs("k", [0, 0, 0], 0).await;
    ok(&["job", "terminate", "k"]).await;
    stage.phase("k", "Terminated").await;
    let waited = stage.cluster.run(&["job", "wait", "k"]).await;
    assert_eq!(waited.code, 2, "that is no success");

    assert_eq!(stage.commands().await, 0, "each was consumed");
    let steps = stage.cluster.json(&["audit", "list"]).await;
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
        ok(&["job", "delete", job, "--timeout", "80s"]).await;
    }
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_queue_admits_nothing_until_it_is_opened() {
    let stage = Stage::new().await;
    let farm = stage.cluster.farm_process("a", &[]);
    let ok = async |arguments: &[&str]| stage.cluster.run(arguments).await.ok();
    stage.apply("first").await.ok();
    stage.runs("first", [0, 0, 0], 0).await;
    ok(&["queue", "close", "research"]).await;
    let refused = stage.apply("second").await;
    let said = &refused.stderr;
    assert_eq!(refused.code, 1, "{said}");
    assert!(said.contains("default/second: spec.queue: queue research is closed"), "{said}");
    // Written directly to Consul, the job waits.
    let record = rcfarm::job::document::from_yaml(&JOB.replace("NAME", "second")).unwrap();
    stage.cluster.put("rcfarm/jobs/default/second", record.to_string()).await;
    until("the second one is told why", || async {
        stage.job("second").await["state"]["reason"] == "QueueClosed"
    })
    .await;
    until("it is closing", || async {
        let queue = stage.cluster.json(&["queue", "get", "research"]).await;
        queue["status"]["state"] == "Closing"
    })
    .await;
    assert_eq!(stage.job("first").await["state"]["phase"], "Running", "what runs goes on");
    ok(&["queue", "open", "research"]).await;
    stage.runs("second", [0, 0, 0], 0).await;
    for job in ["first", "second"] {
        ok(&["job", "delete", job, "--timeout", "80s"]).await;
    }
    farm.stop().await;
}

/// What is done by hand to the labels of a running member.
#[derive(Clone, Copy)]
enum Edit {
    /// `None`: the label is removed.
    Label(&'static str, Option<&'static str>),
    Deleted,
}

/// What becomes of the member.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    /// It gets the uid again.
    Adopted,
    /// It goes on without an owner, also when the job is deleted.
    Released,
    /// Another pod takes its place.
    Replaced,
    /// It goes on without labels until the job is deleted.
    Unlabelled,
}

/// The lines of the claim table (`kubeflow.md` §1.12) that an edit of labels leads to.
const EDITS: [(&str, Edit, Then); 5] = [
    ("name", Edit::Label("volcano.sh/job-name", Some("k")), Then::Released),
    ("index", Edit::Label("volcano.sh/task-index", Some("7")), Then::Released),
    ("uid", Edit::Label("rcfarm/job_uid", None), Then::Adopted),
    ("other", Edit::Label("rcfarm/job_uid", Some("1")), Then::Replaced),
    ("none", Edit::Deleted, Then::Unlabelled),
];

/// Labels of a member, as the test edits them.
struct Labels<'s> {
    stage: &'s Stage,
    key: String,
}

impl Labels<'_> {
    async fn read(&self) -> Option<Value> {
        let text = self.stage.cluster.get(&self.key).await?;
        Some(serde_json::from_str(&text).unwrap())
    }

    async fn uid(&self) -> Option<Value> {
        self.read().await?.get("rcfarm/job_uid").cloned()
    }

    async fn is_intended(&self) -> bool {
        let intent = self.key.replacen("labels/pod/", "intent/", 1);
        self.stage.cluster.get(&intent).await.is_some()
    }

    async fn edit(&self, edit: Edit) {
        let Edit::Label(name, value) = edit else {
            return self.stage.cluster.delete(&self.key).await;
        };
        let mut labels = self.read().await.unwrap();
        match value {
            Some(value) => labels[name] = value.into(),
            None => drop(labels.as_object_mut().unwrap().remove(name)),
        }
        self.stage.cluster.put(&self.key, labels.to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_with_edited_labels_follow_the_claim_table_and_the_job_restarts_and_ends() {
    let stage = Stage::new().await;
    let farm = stage.cluster.farm_process("a", &[]);
    for (job, edit, then) in EDITS {
        stage.apply(job).await.ok();
        stage.runs(job, [0, 0, 0], 0).await;
        let labels = stage.cluster.keys(&key::labels(key::LabelKind::Pod)).await;
        let key = labels.into_iter().find(|key| key.contains(&format!("/{job}-a-1"))).unwrap();
        let labels = Labels { stage: &stage, key };
        let uid = labels.uid().await;
        labels.edit(edit).await;
        let reason = async || stage.job(job).await["state"]["reason"].clone();
        match then {
            Then::Adopted => {
                until("it is adopted", || async { labels.uid().await == uid }).await;
                stage.runs(job, [0, 0, 0], 0).await;
            }
            Then::Released => {
                until("it is released", || async { labels.uid().await.is_none() }).await;
                until("the status says so", || async { reason().await == "PlaceTaken" }).await;
                assert_eq!(stage.job(job).await["running"], 2, "{job}");
            }
            Then::Replaced => {
                until("another takes its place", || async {
                    labels.uid().await == uid && stage.job(job).await["running"] == 3
                })
                .await;
            }
            Then::Unlabelled => {
                until("the status says so", || async { reason().await == "PlaceTaken" }).await;
            }
        }
        stage.cluster.run(&["job", "restart", job]).await.ok();
        until(&format!("the restart of {job}"), || async {
            let status = stage.job(job).await;
            let is_whole = status["running"] == 3;
            let waits = status["state"]["reason"] == "PlaceTaken";
            status["version"] == 1 && (is_whole || waits)
        })
        .await;
        stage.cluster.run(&["job", "delete", job, "--timeout", "80s"]).await.ok();
        assert_eq!(labels.is_intended().await, then == Then::Released, "{job}: {then:?}");
    }
    farm.stop().await;
}

/// Lines 4, 6 and 7 of the claim table: a pod with a member's labels and without an owner is not adopted if it has no
/// intent, or if the job is being deleted. Then a pod with the job's uid and other labels is not released, either.
#[tokio::test(flavor = "multi_thread")]
async fn pods_are_not_adopted_without_intent_nor_claimed_by_a_job_that_ends() {
    let stage = Stage::new().await;
    let farm = stage.cluster.farm_process("a", &[]);
    let slow = JOB
        .replace("[sleep, '600']", "[sh, -c, \"trap '' TERM; while :; do sleep 1; done\"]")
        .replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 8");
    let file = stage.cluster.dir.path().join("slow.yaml");
    std::fs::write(&file, slow.replace("NAME", "slow")).unwrap();
    stage.cluster.run(&["apply", "-f", "slow.yaml"]).await.ok();
    stage.runs("slow", [0, 0, 0], 0).await;
    let pods = stage.cluster.keys(&key::labels(key::LabelKind::Pod)).await;
    let key = |task: &str| pods.iter().find(|key| key.contains(task)).unwrap().clone();
    let member = Labels { stage: &stage, key: key("/slow-a-1") };
    let mut other = member.read().await.unwrap();
    other["volcano.sh/job-name"] = "k".into();
    let mislabelled = key("/slow-a-0").replacen("/n1/", "/n2/", 1);
    let mut labels = member.read().await.unwrap();
    labels.as_object_mut().unwrap().remove("rcfarm/job_uid");
    let elsewhere = Labels { stage: &stage, key: member.key.replacen("/n1/", "/n2/", 1) };
    stage.cluster.put(&elsewhere.key, labels.to_string()).await;
    stage.cluster.run(&["job", "restart-pod", "slow", "b", "0"]).await.ok();
    stage.runs("slow", [0, 0, 1], 0).await;
    assert_eq!(elsewhere.read().await, Some(labels.clone()), "it has no intent");

    let deletion = ["job", "delete", "slow", "--timeout", "80s"];
    let intended = async {
        until("its members are being stopped", || async { !member.is_intended().await }).await;
        let pod = member.key.rsplit('/').next().unwrap();
        let intent = elsewhere.key.replacen("labels/pod/", "intent/", 1);
        stage.cluster.put(&intent, format!("id: {pod}\nlaunchables: {{}}\n")).await;
        stage.cluster.put(&mislabelled, other.to_string()).await;
    };
    let (deleted, ()) = tokio::join!(stage.cluster.run(&deletion), intended);
    deleted.ok();
    assert_eq!(elsewhere.read().await, Some(labels), "the job is being deleted");
    assert!(elsewhere.is_intended().await);
    assert_eq!(stage.cluster.get(&mislabelled).await, Some(other.to_string()));
    farm.stop().await;
}
