//! Starts, limits and ends of jobs on `rcfarm dev`: what waits for whom, how often it runs, and what is said of its end.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::job_programs::JobsDev;
use rcfarm_testing::wait::until;

/// A path in the directory of the test.
fn path(dev: &JobsDev, name: &str) -> PathBuf {
    dev.dir.path().join(name)
}

fn lines(dev: &JobsDev, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path(dev, file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A task of one container that runs the script with one processor, `DIR` being the directory of the test.
fn task(dev: &JobsDev, name: &str, replicas: u32, script: &str) -> Value {
    let container = json!({"name": "c", "command": ["sh", "-c", script],
        "env": [{"name": "DIR", "value": dev.dir.path()}], "resources": {"requests": {"cpu": 1}}});
    json!({"name": name, "replicas": replicas,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}})
}

/// The document of a Volcano job. `more`: the fields of its spec beside the tasks.
fn job(name: &str, tasks: &[Value], more: Value) -> Value {
    let mut spec = more;
    spec["tasks"] = json!(tasks);
    json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
}

/// A PyTorchJob of a master.
fn pytorch(dev: &JobsDev, name: &str, restart: &str, script: &str, policy: Value) -> Value {
    let mut member = task(dev, "Master", 1, script);
    member["template"]["spec"]["containers"][0]["name"] = json!("pytorch");
    member.as_object_mut().unwrap().remove("name");
    member["restartPolicy"] = json!(restart);
    json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
        "spec": {"runPolicy": policy, "pytorchReplicaSpecs": {"Master": member}}})
}

async fn state(dev: &JobsDev, job: &str, reason: &str) {
    let mut last = Value::Null;
    until(&format!("{job}: {reason}"), async || {
        last = dev.status(job).await["state"].clone();
        last["reason"] == reason
    })
    .await;
}

/// As in Volcano's `example/task-start-dependency`: nobody names `minAvailable`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependent_task_starts_when_all_members_of_the_other_are_ready() {
    let dev = JobsDev::one_node().await;
    let mut first = task(&dev, "first", 2, "echo first >> $DIR/started; exec sleep 600");
    let ready =
        json!({"exec": {"command": ["test", "-e", path(&dev, "ready")]}, "periodSeconds": 1});
    first["template"]["spec"]["containers"][0]["readinessProbe"] = ready;
    let mut second = task(&dev, "second", 2, "echo second >> $DIR/started");
    second["dependsOn"] = json!({"name": ["first"]});
    second["policies"] = json!([{"event": "TaskCompleted", "action": "CompleteJob"}]);
    dev.apply_json(&job("order", &[first, second], json!({}))).await;
    until("the first task runs", async || dev.status("order").await["running"] == 2).await;
    until("its programs run", async || lines(&dev, "started") == ["first", "first"]).await;
    let told = dev.run(&["job", "explain", "order"]).await.ok();
    assert!(told.contains("task second waits for first (0 of 2 ready)"), "{told}");
    assert!(told.contains("WaitingForDependency"), "{told}");
    let tree = dev.run(&["job", "tree", "order", "-o", "json"]).await.json();
    assert_eq!(tree["tasks"][1]["pods"], json!([]), "{tree:#}");

    std::fs::write(path(&dev, "ready"), "").unwrap();
    assert_eq!(dev.wait("order").await.code, 0);
    assert_eq!(lines(&dev, "started"), ["first", "first", "second", "second"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_without_replicas_holds_nothing_and_completes_once_it_has_some() {
    let dev = JobsDev::start(&["--nodes", "1", "--capacity", "cpu=2"]).await;
    let script = "until [ -e $DIR/go ]; do sleep 0.1; done";
    let scaled = |name: &str, replicas: u32| {
        job(name, &[task(&dev, "a", replicas, script)], json!({"minAvailable": replicas}))
    };
    let tf = |replicas: u32| {
        let mut member = task(&dev, "Worker", replicas, script);
        member["template"]["spec"]["containers"][0]["name"] = json!("tensorflow");
        member.as_object_mut().unwrap().remove("name");
        json!({"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "tf"},
            "spec": {"tfReplicaSpecs": {"Worker": member}}})
    };
    dev.apply_json(&scaled("down", 2)).await;
    dev.run(&["job", "wait", "down", "--for", "running"]).await.ok();
    dev.apply_json(&scaled("down", 0)).await;
    dev.apply_json(&scaled("made", 0)).await;
    dev.apply_json(&tf(0)).await;
    for name in ["down", "made", "tf"] {
        state(&dev, name, "NoMembers").await;
        let told = dev.run(&["job", "explain", name]).await.ok();
        assert!(told.contains("its replicas are 0; raise them to start it"), "{told}");
    }
    let allocated = async || {
        let queue = dev.run(&["queue", "get", "default", "-o", "json"]).await.json();
        queue["status"]["allocated"].clone()
    };
    until("they are charged nothing", async || {
        allocated().await.as_object().is_none_or(serde_json::Map::is_empty)
    })
    .await;
    // It needs the whole node.
    dev.apply_json(&job("other", &[task(&dev, "a", 2, "true")], json!({}))).await;
    assert_eq!(dev.wait("other").await.code, 0);

    std::fs::write(path(&dev, "go"), "").unwrap();
    dev.apply_json(&scaled("down", 2)).await;
    dev.apply_json(&scaled("made", 2)).await;
    dev.apply_json(&tf(2)).await;
    for name in ["down", "made", "tf"] {
        assert_eq!(dev.wait(name).await.code, 0, "{name}");
        assert_eq!(dev.status(name).await["state"]["phase"], "Completed", "{name}");
    }
}

/// N restarts are N + 1 runs, whoever makes them: the farm, or the node in place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backoff_limit_is_the_number_of_restarts() {
    let dev = JobsDev::one_node().await;
    let cases =
        [("ExitCode", 137, 0), ("ExitCode", 137, 2), ("OnFailure", 1, 1), ("OnFailure", 1, 2)];
    let name = |restart: &str, limit: usize| format!("{}-{limit}", restart.to_lowercase());
    for (restart, code, limit) in cases {
        let name = name(restart, limit);
        let script = format!("echo run >> $DIR/{name}; exit {code}");
        let policy = json!({"backoffLimit": limit, "restartDelay": {"first": "100ms"}});
        dev.apply_json(&pytorch(&dev, &name, restart, &script, policy)).await;
    }
    for (restart, code, limit) in cases {
        let name = name(restart, limit);
        assert_eq!(dev.wait(&name).await.code, 2, "{name}");
        let status = dev.status(&name).await;
        assert_eq!(status["state"]["reason"], "BackoffLimitExceeded", "{status:#}");
        let told = dev.run(&["job", "explain", &name]).await.ok();
        let said = format!("members were restarted {limit} times, {limit} is the limit");
        assert!(told.contains(&said), "{name}: {told}");
        assert!(told.contains(&format!("exit code {code}")), "{name}: {told}");
        assert_eq!(lines(&dev, &name).len(), limit + 1, "{name}");
    }
}

/// The reason of an end is what made the job end, in its state, its last condition and in what is said of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_says_which_policy_command_or_member_caused_it() {
    let dev = JobsDev::one_node().await;
    let sleeps = |name: &str| task(&dev, name, 1, "exec sleep 600");
    let on = |event: &str, action: &str| json!({"policies": [{"event": event, "action": action}]});
    let failed = task(&dev, "bad", 1, "exit 3");
    let mut again = on("PodFailed", "RestartJob");
    again["maxRetry"] = json!(1);
    again["restartDelay"] = json!({"first": "100ms"});
    let volcano = |name: &str, first: Value, more: Value| job(name, &[first, sleeps("rest")], more);
    dev.apply_json(&volcano("ended", failed.clone(), on("PodFailed", "TerminateJob"))).await;
    dev.apply_json(&volcano("aborted", failed.clone(), on("PodFailed", "AbortJob"))).await;
    let done = task(&dev, "good", 1, "true");
    dev.apply_json(&volcano("done", done, on("TaskCompleted", "CompleteJob"))).await;
    dev.apply_json(&volcano("again", failed, again)).await;
    dev.apply_json(&volcano("told", sleeps("a"), json!({}))).await;
    dev.apply_json(&pytorch(&dev, "code", "ExitCode", "exit 5", json!({}))).await;
    let deadline = json!({"activeDeadlineSeconds": 1});
    dev.apply_json(&pytorch(&dev, "late", "Never", "exec sleep 600", deadline)).await;
    dev.run(&["job", "wait", "told", "--for", "running"]).await.ok();
    dev.run(&["job", "terminate", "told", "--reason", "no longer needed"]).await.ok();
    let bad = "PodFailed of bad-0 with exit code 3";
    for (name, phase, reason, message) in [
        ("ended", "Terminated", "Stopped", format!("TerminateJob: {bad}")),
        ("aborted", "Aborted", "Stopped", format!("AbortJob: {bad}")),
        ("done", "Completed", "PolicyAction", "CompleteJob: TaskCompleted of good".to_owned()),
        (
            "again",
            "Failed",
            "MaxRetryReached",
            format!("RestartJob: {bad}, and 1 retries were made"),
        ),
        (
            "told",
            "Terminated",
            "Stopped",
            "TerminateJob by user:alice: no longer needed".to_owned(),
        ),
        ("code", "Failed", "MemberFailed", "master-0 ended with exit code 5".to_owned()),
        ("late", "Failed", "DeadlineExceeded", "it ran longer than 1 s".to_owned()),
    ] {
        dev.run(&["job", "wait", name, "--for", "stopped"]).await;
        let explained = dev.run(&["job", "explain", name, "-o", "json"]).await.json();
        let state = &explained["state"];
        assert_eq!(
            (&state["phase"], &state["reason"]),
            (&json!(phase), &json!(reason)),
            "{name}: {state}"
        );
        let said = state["message"].as_str().unwrap();
        assert!(said.starts_with(&message), "{name}: {said}");
        let verdict = format!("{phase} ({reason}): {said}");
        let conditions = explained["conditions"].as_array().unwrap();
        let last = conditions.iter().rfind(|condition| condition["status"] == "True");
        assert_eq!(last.map(|last| &last["message"]), Some(&json!(said)), "{name}: {explained:#}");
        let text = dev.run(&["job", "explain", name]).await.ok();
        assert!(text.contains(&verdict), "{name}: {text}");
        let ended = dev.run(&["job", "wait", name, "--for", "stopped"]).await;
        assert!(ended.stdout.contains(&message), "{name}: {ended:?}");
    }
}

/// It waits for both processors; each of the others needs one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_that_is_passed_is_said_so_and_goes_first_after_max_passes() {
    let dev = JobsDev::start(&["--nodes", "1", "--capacity", "cpu=2"]).await;
    dev.run(&["queue", "create", "q", "--max-passes", "2"]).await.ok();
    let submit = async |name: &str, replicas: u32, script: &str, priority: &str| {
        let more = json!({"queue": "q", "priorityClassName": priority});
        dev.apply_json(&job(name, &[task(&dev, "a", replicas, script)], more)).await;
    };
    let waits_for_file = |file: &str| {
        format!("echo {file} >> $DIR/ran; until [ -e $DIR/{file} ]; do sleep 0.1; done")
    };
    submit("holds", 1, &waits_for_file("end-holds"), "0").await;
    dev.run(&["job", "wait", "holds", "--for", "running"]).await.ok();
    submit("large", 2, "echo large >> $DIR/ran", "1000").await;
    state(&dev, "large", "InsufficientCapacity").await;
    for name in ["one", "two"] {
        submit(name, 1, &format!("echo {name} >> $DIR/ran"), "0").await;
        assert_eq!(dev.wait(name).await.code, 0);
    }
    submit("three", 1, "echo three >> $DIR/ran", "0").await;
    state(&dev, "three", "BehindInQueue").await;
    let told = dev.run(&["job", "explain", "large"]).await.ok();
    assert!(told.contains("by 2 groups of its queue, which fitted when it did not"), "{told}");
    let told = dev.run(&["job", "explain", "three"]).await.ok();
    assert!(
        told.contains("default/large goes first: 2 groups of the queue went before it"),
        "{told}"
    );

    std::fs::write(path(&dev, "end-holds"), "").unwrap();
    for name in ["large", "three"] {
        assert_eq!(dev.wait(name).await.code, 0, "{name}");
    }
    assert_eq!(lines(&dev, "ran"), ["end-holds", "one", "two", "large", "large", "three"]);
}

/// What was asked for is more than there is: less may be asked for until it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_waiting_job_may_be_lowered() {
    let dev = JobsDev::start(&["--nodes", "1", "--capacity", "cpu=2"]).await;
    let wants = |cpu: u32, script: &str| {
        let mut task = task(&dev, "a", 2, script);
        task["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
        job("wants", &[task], json!({}))
    };
    dev.apply_json(&wants(2, "true")).await;
    state(&dev, "wants", "InsufficientCapacity").await;
    let refused = dev.apply(&wants(1, "false").to_string()).await.failed();
    assert!(
        refused.contains("only counts, the priority and times of a job may change: "),
        "{refused}"
    );
    dev.apply_json(&wants(1, "true")).await;
    assert_eq!(dev.wait("wants").await.code, 0);
    let refused = dev.apply(&wants(2, "true").to_string()).await.failed();
    assert!(refused.contains("what its members request, as long as it waits"), "{refused}");
}
