//! Members of jobs as real processes on `rcfarm dev`: starts that fail, and ends that are no failures.

use serde_json::{Value, json};

use super::job_programs::JobsDev;
use rcfarm_testing::wait::{PATIENCE, until};

/// A Volcano job of one member.
fn job(name: &str, container: Value, restart: &str, more: Value) -> Value {
    let mut container = container;
    container["name"] = json!("c");
    let template = json!({"spec": {"restartPolicy": restart, "containers": [container]}});
    let mut spec = json!({"tasks": [{"name": "a", "replicas": 1, "template": template}]});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_that_cannot_be_started_ends_the_job_as_start_error() {
    let dev = JobsDev::start(&["--nodes", "1"]).await;
    let unexecutable = dev.dir.path().join("plain.txt");
    std::fs::write(&unexecutable, "text").unwrap();
    let nowhere = json!({"command": ["true"], "workingDir": "/no/such/dir"});
    let abort = json!({"policies": [{"event": "PodFailed", "action": "AbortJob"}]});
    let exit_128 = json!({"policies": [{"exitCode": 128, "action": "CompleteJob"}]});
    for (name, container, more, phase, why) in [
        (
            "typo",
            json!({"command": ["python33"]}),
            json!({}),
            "Failed",
            "python33 cannot be started: No such file",
        ),
        ("plain", json!({"command": [unexecutable]}), json!({}), "Failed", "Permission denied"),
        (
            "nowhere",
            nowhere,
            json!({}),
            "Failed",
            "the working directory /no/such/dir does not exist",
        ),
        (
            "aborted",
            json!({"command": ["python33"]}),
            abort,
            "Aborted",
            "python33 cannot be started",
        ),
        (
            "handled",
            json!({"command": ["python33"]}),
            exit_128,
            "Completed",
            "python33 cannot be started",
        ),
    ] {
        dev.apply_json(&job(name, container, "Never", more)).await;
        let until = if phase == "Aborted" { "stopped" } else { "end" };
        dev.run(&["job", "wait", name, "--for", until]).await;
        let status = dev.status(name).await;
        assert_eq!(status["state"]["phase"], phase, "{name}: {status:#}");
        assert!(status["startTime"].is_string(), "{name}: {status:#}");
        let failure = &status["failures"][0];
        assert_eq!((&failure["exitCode"], &failure["reason"]), (&json!(128), &json!("StartError")));
        let told = dev.run(&["job", "explain", name]).await.ok();
        assert!(told.contains("StartError") && told.contains(why), "{name}: {told}");
    }
    let told = dev.run(&["job", "wait", "typo"]).await;
    assert_eq!(told.code, 2, "{told:?}");
    assert!(told.stdout.contains("python33 cannot be started: No such file"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_of_a_program_that_cannot_be_started_are_limited() {
    let dev = JobsDev::start(&["--nodes", "1"]).await;
    for (name, restart, policy) in [
        ("code", "ExitCode", json!({"backoffLimit": 2})),
        ("failure", "OnFailure", json!({"backoffLimit": 2})),
        ("late", "OnFailure", json!({"activeDeadlineSeconds": 2})),
    ] {
        let container = json!({"name": "pytorch", "command": ["python33"]});
        let member = json!({"replicas": 1, "restartPolicy": restart,
            "template": {"spec": {"containers": [container]}}});
        let spec = json!({"runPolicy": policy, "pytorchReplicaSpecs": {"Master": member}});
        dev.apply_json(&json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": {"name": name}, "spec": spec}))
            .await;
    }
    for (name, reason) in [
        ("code", "BackoffLimitExceeded"),
        ("failure", "BackoffLimitExceeded"),
        ("late", "DeadlineExceeded"),
    ] {
        let ended = dev.wait(name).await;
        assert_eq!(ended.code, 2, "{ended:?}");
        let status = dev.status(name).await;
        assert_eq!(status["state"]["reason"], reason, "{name}: {status:#}");
        let told = dev.run(&["job", "explain", name]).await.ok();
        assert!(told.contains("python33 cannot be started"), "{name}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_killed_by_its_nodes_lease_has_not_failed() {
    let dev = JobsDev::start(&["--nodes", "1"]).await;
    let container = json!({"command": ["sleep", "600"]});
    let more = json!({"maxRetry": 1, "policies": [{"event": "PodFailed", "action": "AbortJob"}]});
    dev.apply_json(&job("never", container.clone(), "Never", more)).await;
    let more = json!({"policies": [{"event": "PodEvicted", "action": "CompleteJob"}]});
    dev.apply_json(&job("evicted", container, "Never", more)).await;
    for name in ["never", "evicted"] {
        dev.run(&["job", "wait", name, "--for", "running"]).await.ok();
    }
    let running = async |job: &str| {
        let tree = dev.run(&["job", "tree", job, "-o", "json"]).await.json();
        let pod = tree["tasks"][0]["pods"][0].clone();
        (pod["phase"] == "Running").then(|| pod["attempt"].as_u64().unwrap())
    };
    assert_eq!(running("never").await, Some(0));
    // Longer than a lease: the shims stop the processes.
    dev.dev.signal("STOP");
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    dev.dev.signal("CONT");
    until("it runs again", async || running("never").await.is_some_and(|attempt| attempt > 0))
        .await;
    dev.run(&["job", "wait", "never", "--for", "running"]).await.ok();
    let status = dev.status("never").await;
    assert_eq!(status["retryCount"], 0, "{status:#}");
    assert_eq!(status["state"]["phase"], "Running", "{status:#}");
    assert!(status["failures"].is_null(), "{status:#}");
    let ended = dev.wait("evicted").await;
    assert_eq!(ended.code, 0, "{ended:?}");
}

/// The limit removes the members' pods with their logs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_of_a_failed_member_stays_when_its_pod_is_gone() {
    let dev = JobsDev::start(&["--nodes", "1"]).await;
    let script = "for n in $(seq 3000); do echo line $n; done; echo the cause; exit 3";
    let script = script.replace("$(seq 3000)", "`seq 3000`");
    let container = json!({"name": "pytorch", "command": ["sh", "-c", script]});
    let member = json!({"replicas": 1, "restartPolicy": "OnFailure",
        "template": {"spec": {"containers": [container]}}});
    let spec = json!({"runPolicy": {"backoffLimit": 1, "cleanPodPolicy": "All"},
        "pytorchReplicaSpecs": {"Master": member}});
    dev.apply_json(&json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": "crash"}, "spec": spec}))
        .await;
    assert_eq!(dev.wait("crash").await.code, 2);
    until("its pod is gone", async || {
        let tree = dev.run(&["job", "tree", "crash", "-o", "json"]).await.json();
        tree["tasks"][0]["pods"].as_array().unwrap().is_empty()
    })
    .await;
    let output = dev.run(&["job", "logs", "crash", "--previous"]).await.ok();
    assert!(output.ends_with("line 3000\nthe cause\n"), "{output}");
    assert!(output.len() <= 4 * 1024, "{}", output.len());
    let told = dev.run(&["job", "explain", "crash"]).await.ok();
    assert!(told.contains("master-0 on node-1: exit code 3: pytorch: exited with 3"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_moves_members_of_jobs() {
    let dev = JobsDev::start(&["--nodes", "2"]).await;
    let more = json!({"minAvailable": 2});
    let mut document = job("two", json!({"command": ["sleep", "600"]}), "Never", more);
    document["spec"]["tasks"][0]["replicas"] = json!(2);
    dev.apply_json(&document).await;
    dev.run(&["job", "wait", "two", "--for", "running"]).await.ok();
    dev.run(&["node", "drain", "node-1", "--deadline", "60s"]).await.ok();
    until("both run on the other node", async || {
        let tree = dev.run(&["job", "tree", "two", "-o", "json"]).await.json();
        let pods = tree["tasks"][0]["pods"].as_array().unwrap().clone();
        let runs = |pod: &Value| pod["node"] == "node-2" && pod["phase"] == "Running";
        pods.len() == 2 && pods.iter().all(runs)
    })
    .await;
    assert_eq!(dev.status("two").await["retryCount"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_get_and_drain_name_members_that_a_budget_keeps() {
    let dev = JobsDev::start(&["--nodes", "2"]).await;
    let mut document = job("kept", json!({"command": ["sleep", "600"]}), "Never", json!({}));
    document["metadata"]["annotations"] = json!({"volcano.sh/jdb-min-available": "60%"});
    document["spec"]["tasks"][0]["replicas"] = json!(1);
    dev.apply_json(&document).await;
    dev.run(&["job", "wait", "kept", "--for", "running"]).await.ok();
    let tree = dev.run(&["job", "tree", "kept", "-o", "json"]).await.json();
    let node = tree["tasks"][0]["pods"][0]["node"].as_str().unwrap().to_owned();
    let drain = dev.run(&["node", "drain", &node, "--deadline", "1s"]).await;
    assert_eq!(drain.code, 1, "{drain:?}");
    let budget = "its disruption budget is minAvailable 60%, and 1 of 1 members run";
    for (text, wanted) in [
        (&drain.stdout, "BudgetExhausted"),
        (&drain.stderr, budget),
        (&drain.stderr, "wait until others of the job run elsewhere, or delete the job"),
    ] {
        assert!(text.contains(wanted), "{wanted}: {drain:?}");
    }
    let shown = dev.run(&["node", "get", &node, "-o", "json"]).await.json();
    let stays = &shown["pods"][0]["stays"];
    assert_eq!(stays["reason"], "BudgetExhausted", "{shown:#}");
    assert!(stays["message"].as_str().unwrap().contains(budget), "{shown:#}");
    let table = dev.run(&["node", "get", &node]).await.ok();
    assert!(table.contains("BudgetExhausted"), "{table}");
}

/// Pods that have ended use nothing, also while others of their job run, or once it is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_members_give_back_what_they_had() {
    let dev = JobsDev::start(&["--nodes", "1", "--capacity", "cpu=2"]).await;
    let replica = |command: Value| {
        let resources = json!({"requests": {"cpu": 1}});
        let container = json!({"name": "tensorflow", "command": command, "resources": resources});
        json!({"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}})
    };
    let servers =
        json!({"Worker": replica(json!(["true"])), "PS": replica(json!(["sleep", "600"]))});
    let spec = json!({"tfReplicaSpecs": servers, "runPolicy": {"cleanPodPolicy": "None"}});
    dev.apply_json(&json!({"apiVersion": "kubeflow.org/v1", "kind": "TFJob",
        "metadata": {"name": "servers"}, "spec": spec}))
        .await;
    assert_eq!(dev.wait("servers").await.code, 0);
    let one = |name: &str, command: Value| {
        let container = json!({"command": command, "resources": {"requests": {"cpu": 1}}});
        job(name, container, "Never", json!({}))
    };
    // Its parameter server runs on, its worker has ended.
    dev.apply_json(&one("next", json!(["sleep", "600"]))).await;
    let waited = dev.run(&["job", "wait", "next", "--for", "running"]);
    let waited = tokio::time::timeout(PATIENCE, waited).await;
    assert!(waited.is_ok(), "{:?}", dev.run(&["job", "explain", "next"]).await);
    let queue = dev.run(&["queue", "get", "default", "-o", "json"]).await.json();
    assert_eq!(queue["status"]["allocated"], json!({"cpu": "2", "pods": 2}), "{queue:#}");

    // One that is to run again waits for a place.
    dev.run(&["job", "delete", "servers"]).await.ok();
    let mut pair = one("pair", json!(["sh", "-c", "test $VC_TASK_INDEX = 0 || sleep 600"]));
    pair["spec"]["plugins"] = json!({"env": []});
    pair["spec"]["tasks"][0]["replicas"] = json!(2);
    dev.run(&["job", "delete", "next"]).await.ok();
    dev.apply_json(&pair).await;
    let succeeded = async |count: u32| dev.status("pair").await["succeeded"] == count;
    until("one has ended", async || succeeded(1).await).await;
    dev.apply_json(&one("other", json!(["sleep", "600"]))).await;
    dev.run(&["job", "wait", "other", "--for", "running"]).await.ok();
    dev.run(&["job", "restart-pod", "pair", "a", "0"]).await.ok();
    until("it has no place", async || succeeded(0).await).await;
    let allocated = async || {
        let queue = dev.run(&["queue", "get", "default", "-o", "json"]).await.json();
        queue["status"]["allocated"].clone()
    };
    assert_eq!(allocated().await, json!({"cpu": "2", "pods": 2}));
    dev.run(&["job", "delete", "other"]).await.ok();
    until("it has run again", async || succeeded(1).await).await;
}

/// Nodes keep the logs of attempts whose pods are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_each_attempt_can_be_read_when_its_pod_is_gone() {
    let dev = JobsDev::start(&["--nodes", "2"]).await;
    let script = "echo \"$RCFARM_POD has run\"; test -e $MARK && exit 0; touch $MARK; exit 3";
    let mark = dev.dir.path().join("mark").to_str().unwrap().to_owned();
    let container =
        json!({"command": ["sh", "-c", script], "env": [{"name": "MARK", "value": mark}]});
    let more = json!({"maxRetry": 3, "restartDelay": {"first": "0s"},
        "policies": [{"event": "PodFailed", "action": "RestartJob"}]});
    dev.apply_json(&job("twice", container, "Never", more)).await;
    assert_eq!(dev.wait("twice").await.code, 0);
    assert_eq!(dev.status("twice").await["version"], 1);
    for attempt in ["1", "2"] {
        let output = dev.run(&["job", "logs", "twice", "--attempt", attempt]).await.ok();
        assert!(output.starts_with("twice-a-0-") && output.ends_with(" has run\n"), "{output}");
        assert_eq!(output.lines().count(), 1, "of this attempt alone: {output}");
    }
    let none = dev.run(&["job", "logs", "twice", "--attempt", "3"]).await;
    assert_ne!(none.code, 0);
    assert!(none.stderr.contains("no node has the logs of attempt 3"), "{none:?}");
}

/// Of five members three have a place: `explain` names the others, with the reason of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_do_not_run_are_named_with_the_reason() {
    let dev = JobsDev::start(&["--nodes", "1", "--capacity", "cpu=3", "--job-ttl", "1h"]).await;
    let container = json!({"command": ["sleep", "600"], "resources": {"requests": {"cpu": 1}}});
    let mut document = job("some", container.clone(), "Never", json!({"minAvailable": 3}));
    document["spec"]["tasks"][0]["replicas"] = json!(5);
    dev.apply_json(&document).await;
    dev.run(&["job", "wait", "some", "--for", "running"]).await.ok();
    let explained = dev.run(&["job", "explain", "some", "-o", "json"]).await.json();
    let missing = explained["missing"].as_array().unwrap();
    let members: Vec<_> = missing.iter().map(|one| one["member"]["index"].as_u64()).collect();
    assert_eq!(members, [Some(3), Some(4)], "{explained:#}");
    let text = dev.run(&["job", "explain", "some"]).await.ok();
    let why = "a-4: InsufficientCapacity: room for 0 of 1 on 1 nodes that match; node-1: cpu: 1 wanted, 0 of 3 free";
    assert!(text.contains(why), "{text}");
    assert!(text.contains("ran for") && !text.contains("not Running"), "{text}");

    // What is free is what others have left, not what the gang itself would take.
    let big = json!({"command": ["true"], "resources": {"requests": {"cpu": 2}}});
    let mut two = job("two", big, "Never", json!({"minAvailable": 2}));
    two["spec"]["tasks"][0]["replicas"] = json!(2);
    dev.run(&["job", "delete", "some"]).await.ok();
    dev.apply_json(&two).await;
    until("it says why", async || {
        let text = dev.run(&["job", "explain", "two"]).await.ok();
        text.contains("node-1, for 2 pods of the gang: cpu: 4 wanted, 3 of 3 free")
    })
    .await;

    // Pods that have ended are counted apart, and are not shown as critical.
    dev.apply_json(&job("done", json!({"command": ["true"]}), "Never", json!({}))).await;
    dev.apply_json(&job("bad", json!({"command": ["false"]}), "Never", json!({}))).await;
    assert_eq!(dev.wait("done").await.code, 0);
    assert_eq!(dev.wait("bad").await.code, 2);
    let nodes = dev.run(&["node", "list"]).await.ok();
    assert!(nodes.contains("0 (2 ended)"), "{nodes}");
    let node = dev.run(&["node", "get", "node-1"]).await.ok();
    assert!(node.contains("done-a-0") && node.contains("bad-a-0"), "{node}");
    assert!(!node.contains("critical"), "{node}");

    let asked = dev.run(&["job", "delete", "--all"]).await.failed();
    assert!(asked.contains("the 3 jobs in default: bad, done, two"), "{asked}");
    assert!(asked.contains("--yes"), "{asked}");
    dev.run(&["job", "delete", "--all", "--in", "other", "--yes"]).await.ok();
    assert_eq!(dev.run(&["job", "list", "-o", "json"]).await.json().as_array().unwrap().len(), 3);
    let deleted = dev.run(&["job", "delete", "--all", "--yes"]).await.ok();
    assert_eq!(deleted.lines().count(), 3, "{deleted}");
    assert_eq!(dev.run(&["job", "list", "-o", "json"]).await.json(), json!([]));
}

/// Members keep counting when their pods are cleaned up. On dev a job goes after a while by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleaned_up_members_count_and_jobs_of_dev_expire() {
    let dev = JobsDev::start(&["--nodes", "1", "--job-ttl", "0s"]).await;
    let policy = json!({"cleanPodPolicy": "All"});
    let kept = json!({"runPolicy": policy, "ttlSecondsAfterFinished": 3600});
    dev.apply_json(&job("kept", json!({"command": ["true"]}), "Never", kept)).await;
    assert_eq!(dev.wait("kept").await.code, 0);
    until("its pod is gone", async || {
        let tree = dev.run(&["job", "tree", "kept", "-o", "json"]).await.json();
        tree["tasks"][0]["pods"].as_array().unwrap().is_empty()
    })
    .await;
    let status = dev.status("kept").await;
    assert_eq!((&status["succeeded"], &status["failed"]), (&json!(1), &json!(0)), "{status:#}");
    dev.apply_json(&job("short", json!({"command": ["true"]}), "Never", json!({}))).await;
    until("it is gone", async || {
        dev.run(&["job", "list", "-o", "json"]).await.json().as_array().unwrap().len() == 1
    })
    .await;
    assert_eq!(dev.status("kept").await["state"]["phase"], "Completed");
}

/// Each process of the first attempt but the one that fails sleeps, so only new ones can end the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_is_restarted_when_one_worker_fails() {
    let dev = JobsDev::start(&["--nodes", "2"]).await;
    let shared = dev.dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let script = "cd \"$SHARED\"; [ -e again ] && exit 0; touch rank-$RANK; \
        [ $RANK = 2 ] || exec sleep 600; \
        until [ -e rank-0 ] && [ -e rank-1 ]; do sleep 0.1; done; touch again; exit 7";
    let container = json!({"name": "pytorch", "command": ["sh", "-c", script],
        "env": [{"name": "SHARED", "value": shared}]});
    let member = |replicas: u32| {
        json!({"replicas": replicas, "restartPolicy": "OnFailure",
            "template": {"spec": {"containers": [container]}}})
    };
    let policy =
        json!({"restartScope": "Gang", "backoffLimit": 1, "restartDelay": {"first": "100ms"}});
    let spec = json!({"runPolicy": policy,
        "pytorchReplicaSpecs": {"Master": member(1), "Worker": member(2)}});
    dev.apply_json(&json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": "gang"}, "spec": spec}))
        .await;
    let ended = dev.wait("gang").await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let status = dev.status("gang").await;
    assert_eq!((&status["version"], &status["retryCount"]), (&json!(1), &json!(0)), "{status:#}");
    assert_eq!(status["failures"][0]["exitCode"], 7, "{status:#}");
    let restarted = "worker-1 ended with exit code 7; all members are started again";
    let phases = status["phases"].as_array().unwrap();
    assert!(phases.iter().any(|phase| phase["status"] == "Restarting"), "{status:#}");
    let log = dev.run(&["audit", "list", "--job", "gang", "-o", "json"]).await.ok();
    assert!(log.contains(restarted), "{log}");
}
