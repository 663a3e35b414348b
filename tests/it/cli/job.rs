//! `rcfarm apply`, `plan` and `job …`, with and without a farm.

use std::time::Duration;

use rcfarm_api::key;
use serde_json::{Value, json};

use crate::harness::HttpCluster;

const JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: mnist}
spec:
  queue: default
  tasks:
    - {name: ps, replicas: 1, template: &t {spec: {restartPolicy: Never, containers: [
        {name: c, image: x/y, command: [sleep, '60']}]}}}
    - {name: worker, replicas: 2, template: *t}
";

fn write(cluster: &HttpCluster, name: &str, text: &str) {
    std::fs::write(cluster.dir.path().join(name), text).unwrap();
}

#[tokio::test]
async fn succeeded_member_is_not_listed_as_unhealthy() {
    let cluster = HttpCluster::new().await;
    for (pod, code) in [("good", 0), ("bad", 3)] {
        let exit = json!({"time": "2026-01-01T00:00:00Z", "exit_code": code, "exit_status": 0});
        let processes = json!([{"launchable_id": "c", "phase": "Ended", "last_exit": exit}]);
        let status = json!({"phase": "Ended", "health": "critical", "process_status": processes});
        cluster.put(format!("status/pods/{pod}/n1"), status.to_string()).await;
    }
    let list = cluster.run(&["pod", "list"]).await.ok();
    let health = |pod: &str| {
        let line = list.lines().find(|line| line.starts_with(pod)).unwrap();
        line.split_whitespace().nth(3).unwrap().to_owned()
    };
    assert_eq!((health("good"), health("bad")), ("-".to_owned(), "critical".to_owned()), "{list}");
    let rows = cluster.json(&["pod", "list", "good"]).await;
    assert_eq!(rows[0]["health"], "critical", "programs get what the node said");
}

#[tokio::test]
async fn a_file_is_planned_applied_changed_and_refused() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "job.yaml", JOB);
    for wrong in [&["plan"][..], &["plan", "-f", "missing.yaml"]] {
        assert!(!cluster.run(wrong).await.plan_failed().is_empty());
    }
    let plan = cluster.run(&["plan", "-f", "job.yaml"]).await;
    assert_eq!(plan.code, 1, "{plan:?}");
    assert!(plan.stdout.contains("default/mnist (Job): would be created"), "{}", plan.stdout);
    assert!(plan.stdout.contains("+ 2 x worker") && plan.stdout.contains("3 members"), "{plan:?}");
    assert!(plan.stdout.contains("spec.tasks[0].template.spec.containers[0].image"), "{plan:?}");

    let applied = cluster.run(&["apply", "-f", "job.yaml"]).await;
    assert!(applied.stderr.contains("containers[0].image"), "{applied:?}");
    assert_eq!(applied.ok(), "default/mnist: created\n");
    assert_eq!(cluster.run(&["plan", "-f", "job.yaml"]).await.code, 0);
    assert_eq!(cluster.run(&["apply", "-f", "job.yaml"]).await.ok(), "default/mnist: unchanged\n");

    write(&cluster, "job.yaml", &JOB.replace("replicas: 2", "replicas: 3"));
    let plan = cluster.run(&["plan", "-f", "job.yaml"]).await;
    assert!(plan.stdout.contains("~ spec.tasks[1].replicas: 2 -> 3"), "{plan:?}");
    assert_eq!(cluster.run(&["apply", "-f", "job.yaml"]).await.ok(), "default/mnist: changed\n");

    write(&cluster, "job.yaml", &JOB.replace("queue: default", "queue: other"));
    let refused = cluster.run(&["apply", "-f", "job.yaml"]).await.failed();
    assert!(refused.contains("spec.queue") && refused.contains("only counts"), "{refused}");

    let two =
        format!("{JOB}---\n{}", JOB.replace("mnist", "m2").replace("name: worker", "name: ps"));
    write(&cluster, "two.yaml", &two.replace("replicas: 1", "replicas: -1"));
    let refused = cluster.run(&["apply", "-f", "two.yaml"]).await.failed();
    for words in
        ["default/mnist: field spec.tasks[0].replicas", "default/m2: field spec.tasks[1].name"]
    {
        assert!(refused.contains(words), "{refused}");
    }
    assert!(refused.contains("nothing was changed"), "{refused}");
    let jobs = cluster.json(&["job", "list"]).await;
    assert_eq!(jobs.as_array().unwrap().len(), 1);
    let audit = cluster.json(&["audit", "list"]).await;
    let actions: Vec<&Value> =
        audit.as_array().unwrap().iter().map(|r| &r["record"]["event_details"]["action"]).collect();
    assert_eq!(actions, ["Created", "Changed"]);
}

#[tokio::test]
async fn delete_names_each_failure_and_refuses_files_without_jobs() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "empty.yaml", "# nothing yet\n---\n");
    let refused = cluster.run(&["job", "delete", "-f", "empty.yaml"]).await.failed();
    assert!(refused.contains("there is no job in empty.yaml"), "{refused}");
    let refused = cluster.run(&["job", "run", "-n", "0", "--follow", "--", "true"]).await.failed();
    assert!(refused.contains("--replicas"), "{refused}");
    let refused = cluster.run(&["job", "delete", "x", "y"]).await.failed();
    for words in ["there is no job default/x", "there is no job default/y"] {
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(
        refused.matches("hint: see which there are: rcfarm job list").count(),
        2,
        "{refused}"
    );
}

#[tokio::test]
async fn mistakes_in_documents_are_named_in_words_of_the_document() {
    let cluster = HttpCluster::new().await;
    let refused = async |text: &str| {
        write(&cluster, "wrong.yaml", text);
        cluster.run(&["plan", "-f", "wrong.yaml"]).await.plan_failed()
    };
    let with = |from: &str, to: &str| JOB.replace(from, to);
    for (text, words) in [
        (with("{name: mnist}", "{name: 123}"), "a name is a text; put quotes around it"),
        (with("{name: mnist}", "{generateName: m-}"), "generateName makes none; write name"),
        ("[{kind: Job}]".to_owned(), "it is a list of objects"),
        ("a: 1\na: 2\n".to_owned(), "duplicate mapping key: a at line 2"),
        (
            "kind: Service\nmetadata: {name: e}\n---\nkind: Service\nmetadata: {name: e}\n"
                .to_owned(),
            "\"Service\" is no kind of job",
        ),
        (
            with(
                "command: [sleep, '60']",
                "command: [sleep, '60'], env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]",
            ),
            "requests and limits are not given to variables",
        ),
    ] {
        let said = refused(&text).await;
        assert!(said.contains(words), "{said}");
        for word in ["Options", "twice", "config maps"] {
            assert!(!said.contains(word), "{said}");
        }
    }
    let item = "apiVersion: batch.volcano.sh/v1alpha1\n  kind: Job\n  metadata: {name: mnist}";
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {item}\n{}", {
        let spec = JOB.split_once("spec:").unwrap().1;
        format!("  spec:{}", spec.replace('\n', "\n  "))
    });
    write(&cluster, "list.yaml", &list);
    assert_eq!(cluster.run(&["apply", "-f", "list.yaml"]).await.ok(), "default/mnist: created\n");
    // Of the fields that differ, those that may change are not named.
    let changed = with("queue: default", "queue: other\n  minAvailable: 2")
        .replace("replicas: 2", "replicas: 3");
    write(&cluster, "job.yaml", &changed);
    let said = cluster.run(&["apply", "-f", "job.yaml"]).await.failed();
    assert!(said.contains("(changed: spec.queue)"), "{said}");
    let wants = with(
        "command: [sleep, '60']",
        "command: [sleep, '60'], resources: {requests: {cpu: 2, memory: 1.5Gi}, limits: {cpu: 1}}",
    );
    let wants = wants
        .replace("mnist", "more")
        .replace("  queue:", "  policies: [{exitCode: 300, action: AbortJob}]\n  queue:");
    write(&cluster, "job.yaml", &wants);
    let plan = cluster.run(&["plan", "-f", "job.yaml"]).await;
    assert_eq!(plan.code, 1, "{plan:?}");
    for words in ["more cpu than the limit of 1", "no process ends with 300"] {
        assert!(plan.stdout.contains(words), "{plan:?}");
    }
}

/// Polls until `holds` is true.
async fn until(cluster: &HttpCluster, holds: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let shown = cluster.json(&["job", "get", "mnist"]).await;
        if holds(&shown) {
            return shown;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:#}", cluster.json(&["job", "get", "mnist"]).await);
}

/// Writes `reality/` of a node without an agent: equal to the intents.
async fn follow(cluster: &HttpCluster) {
    let intents = cluster.list(&key::intents()).await;
    for entry in &intents {
        let real = entry.key.replacen("intent/", "reality/", 1);
        cluster.put(&real, std::str::from_utf8(&entry.value).unwrap()).await;
    }
    for entry in cluster.list(&key::realities()).await {
        let intent = entry.key.replacen("reality/", "intent/", 1);
        if !intents.iter().any(|other| other.key == intent) {
            cluster.delete(&entry.key).await;
        }
    }
}

#[tokio::test]
async fn a_job_is_looked_at_asked_and_deleted() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(2).await;
    let _farm = cluster.start("a");
    write(&cluster, "job.yaml", JOB);
    cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
    let phase = |shown: &Value, phase: &str| shown["status"]["state"]["phase"] == json!(phase);
    until(&cluster, |shown| shown["status"]["pending"] == json!(3)).await;
    follow(&cluster).await;
    until(&cluster, |shown| phase(shown, "Running")).await;
    assert_eq!(cluster.run(&["job", "wait", "mnist", "--for", "running"]).await.code, 0);
    let list = cluster.run(&["job", "list"]).await.ok();
    assert!(list.contains("default/mnist") && list.contains("3/3"), "{list}");
    let tree = cluster.run(&["job", "tree", "mnist"]).await.ok();
    assert!(tree.contains("worker  2 of 2 pods") && tree.contains("mnist-worker-1"), "{tree}");
    let explained = cluster.run(&["job", "explain", "mnist"]).await.ok();
    assert!(explained.contains("Running (EnoughRunning)"), "{explained}");

    let unknown = cluster.run(&["job", "restart-pod", "mnist", "worker", "7"]).await.failed();
    assert!(unknown.contains("has 2 pods"), "{unknown}");
    cluster.run(&["job", "abort", "mnist", "--reason", "lunch"]).await.ok();
    until(&cluster, |shown| phase(shown, "Aborting") || phase(shown, "Aborted")).await;
    follow(&cluster).await;
    let stopped = cluster.run(&["job", "wait", "mnist", "--for", "stopped"]).await.ok();
    assert!(stopped.contains("Aborted"), "{stopped}");
    let in_vain = cluster.run(&["job", "restart", "mnist"]).await.failed();
    assert!(in_vain.contains("Aborted") && in_vain.contains("job resume"), "{in_vain}");
    cluster.run(&["job", "resume", "mnist"]).await.ok();
    until(&cluster, |shown| shown["status"]["pending"] == json!(3)).await;
    follow(&cluster).await;
    until(&cluster, |shown| phase(shown, "Running")).await;

    cluster.run(&["job", "terminate", "mnist"]).await.ok();
    until(&cluster, |shown| phase(shown, "Terminating") || phase(shown, "Terminated")).await;
    follow(&cluster).await;
    until(&cluster, |shown| phase(shown, "Terminated")).await;
    let done = cluster.run(&["job", "suspend", "mnist"]).await.failed();
    assert!(done.contains("is Terminated: nothing leads on"), "{done}");
    cluster.put("rcfarm/jobs/default/bad", "{").await;
    let bad = ["job", "wait", "bad", "--timeout", "3s"];
    let mut said = String::new();
    for _ in 0..20 {
        said = cluster.run(&bad).await.failed();
        if said.contains("InvalidRecord") {
            break;
        }
    }
    assert!(said.contains("InvalidRecord"), "{said}");

    cluster.run(&["job", "delete", "mnist", "--no-wait"]).await.ok();
    for _ in 0..200 {
        follow(&cluster).await;
        if cluster.run(&["job", "get", "mnist"]).await.code == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let gone = cluster.run(&["job", "get", "mnist"]).await.failed();
    assert!(gone.contains("there is no job default/mnist"), "{gone}");
    cluster.delete("rcfarm/jobs/default/bad").await;
    assert_eq!(cluster.json(&["job", "list"]).await, json!([]));
}

/// The group's allocation is released while the pods still run.
#[tokio::test]
async fn deleted_job_leaves_nothing_but_a_users_pod_group() {
    let cluster = HttpCluster::new().await;
    let group =
        |owner: &str| format!(r#"{{"spec":{{"tasks":[{{"name":"w","replicas":1}}]{owner}}}}}"#);
    let own = group(r#","owner":{"kind":"Job","name":"left","uid":"7"}"#);
    cluster.put("rcfarm/pod_groups/default/left", &own).await;
    cluster.put("rcfarm/pod_groups/default/hers", &group("")).await;
    cluster.put("rcfarm/job_status/default/left", "{}").await;
    cluster.put("rcfarm/job_status/default/hers", "{}").await;
    let mark = r#"{"id":"left-w-0","job":{"id":"default/left","uid":7,"task":"w","index":0,"version":0,"attempt":0}}"#;
    cluster.put("reality/n1/left-w-0", mark).await;
    let early = cluster.run(&["job", "delete", "left", "--no-wait"]).await.failed();
    assert!(early.contains("1 of its pods are still being stopped"), "{early}");
    let there = async |key: &str| cluster.get(key).await.is_some();
    assert!(there("rcfarm/pod_groups/default/left").await);
    cluster.delete("reality/n1/left-w-0").await;
    cluster.run(&["job", "delete", "left"]).await.ok();
    cluster.run(&["job", "delete", "hers"]).await.ok();
    assert!(!there("rcfarm/pod_groups/default/left").await);
    assert!(there("rcfarm/pod_groups/default/hers").await);
}

/// A job of one member that waits for others.
fn waiting(name: &str, depends_on: &str) -> String {
    format!(
        "kind: Job\nmetadata: {{name: {name}, annotations: {{rcfarm/depends-on: '{depends_on}'}}}}\nspec:\n  tasks: [\
         {{name: t, replicas: 1, template: {{spec: {{restartPolicy: Never, containers: [{{name: c, command: ['true']}}]}}}}}}]\n"
    )
}

#[tokio::test]
async fn circles_of_waiting_jobs_are_refused_and_waits_explained() {
    let cluster = HttpCluster::new().await;
    let apply = async |documents: &[String]| {
        std::fs::write(cluster.dir.path().join("jobs.yaml"), documents.join("---\n")).unwrap();
        cluster.run(&["apply", "-f", "jobs.yaml"]).await
    };
    let bad = apply(&[waiting("a", "after:b")]).await.failed();
    assert!(bad.contains("metadata.annotations.rcfarm/depends-on: \"after\" is none of"), "{bad}");
    let all = [waiting("a", "afterok:b"), waiting("b", "afterany:c"), waiting("c", "afterok:a")];
    let circle = apply(&all).await.failed();
    assert!(circle.contains("in a circle: a -> b -> c -> a"), "{circle}");
    apply(&all[..2]).await.ok();
    let circle = apply(&all[2..]).await.failed();
    assert!(circle.contains("in a circle: c -> a -> b -> c"), "stored ones count: {circle}");
    let _farm = cluster.start("f1");
    rcfarm_testing::wait::until("its farm has claimed it", async || {
        let why = cluster.run(&["job", "explain", "b"]).await.ok();
        why.contains("it waits for other jobs: afterany: there is no job c")
    })
    .await;
    let why = cluster.run(&["job", "explain", "a"]).await.ok();
    assert!(why.contains("afterok: b has not ended"), "{why}");
    let list = cluster.json(&["job", "list"]).await;
    for row in list.as_array().unwrap() {
        assert_eq!(
            (&row["phase"], &row["reason"]),
            (&"Pending".into(), &"WaitingForDependency".into())
        );
    }
}

/// Indexes 0 to 6 and 9 have ended: what is left are the tasks of the last two members.
#[tokio::test]
async fn explain_names_members_of_an_array_whose_tasks_are_left() {
    let cluster = HttpCluster::new().await;
    let document = "apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: grid, annotations: {rcfarm/array: 0-9%5}}
spec: {tasks: [{name: t, replicas: 1, template: {spec: {restartPolicy: Never, containers: [{name: c, command: [a]}]}}}]}
";
    std::fs::write(cluster.dir.path().join("job.yaml"), document).unwrap();
    cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
    let created = cluster.entry("rcfarm/jobs/default/grid").await.unwrap().create_index;
    let status = json!({"uid": created, "state": {"phase": "Running", "reason": "EnoughRunning",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        "array": {"completedIndexes": "0-6,9", "members": {"0": 4, "1": 5, "2": 6, "3": 7, "4": 8}}});
    cluster.put("rcfarm/job_status/default/grid", status.to_string()).await;
    let why = cluster.json(&["job", "explain", "grid"]).await;
    let missing = why["missing"].as_array().unwrap();
    let named: Vec<_> = missing
        .iter()
        .map(|one| (one["member"].to_string(), one["array_index"].as_u64()))
        .collect();
    assert_eq!(named.len(), 2, "{why}");
    assert_eq!(named[0].1, Some(7), "{named:?}");
    assert!(named[0].0.contains('3') && named[1].0.contains('4') && named[1].1 == Some(8));
    assert_eq!(why["array"]["completedIndexes"], "0-6,9");
    let text = cluster.run(&["job", "explain", "grid"]).await.ok();
    assert!(text.contains("t-3 (index 7)") && text.contains("0-6,9"), "{text}");
}
