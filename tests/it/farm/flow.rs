//! JobFlows with farms and fake nodes, in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rcfarm_api::audit::Details;
use rcfarm_api::flow::{FlowPhase, FlowReason, FlowStatus};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::{Stored as _, key};
use rcfarm_emulator::FaultOutcome;
use rcfarm_testing::fake_nodes::{FakeNodes, FakePod};
use rcfarm_testing::wait::{until, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

use crate::harness::{Cluster, SECOND, node};

fn id() -> Namespaced {
    "default/f".parse().unwrap()
}

/// Nodes on which pods end at once, with the code that their command names.
fn nodes(cluster: &Cluster) -> FakeNodes {
    let exit_code = move |pod: &FakePod<'_>| {
        let code = pod.command.last().and_then(|code| code.parse().ok());
        (!pod.is_new).then_some(code.unwrap_or(0))
    };
    let store = Arc::new(cluster.store.clone());
    FakeNodes::start(store, cluster.clock.clone(), Box::new(exit_code))
}

/// A job of one pod that exits with `code`, and fails with it.
fn job_spec(code: u32) -> Value {
    let container = json!({"name": "c", "command": ["exit", code.to_string()]});
    json!({"maxRetry": 0, "tasks": [{"name": "t", "replicas": 1, "minAvailable": 1,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}]})
}

async fn template(cluster: &Cluster, name: &str, spec: Value) {
    let id: Namespaced = format!("default/{name}").parse().unwrap();
    let document = json!({"kind": "JobTemplate", "spec": spec});
    cluster.put(key::job_template(&id), document.to_string()).await;
}

/// Two templates: one whose jobs complete, and one whose jobs fail.
async fn templates(cluster: &Cluster) {
    template(cluster, "t", job_spec(0)).await;
    template(cluster, "bad", job_spec(1)).await;
}

fn step(name: &str, targets: &[&str]) -> Value {
    let mut step = json!({"name": name, "template": "t"});
    if !targets.is_empty() {
        step["dependsOn"] = json!({"targets": targets});
    }
    step
}

async fn submit(cluster: &Cluster, spec: Value) {
    let document = json!({"kind": "JobFlow", "spec": spec});
    cluster.put(key::job_flow(&id()), document.to_string()).await;
}

async fn status(cluster: &Cluster) -> FlowStatus {
    cluster.read(key::job_flow_status(&id())).await.unwrap_or_default()
}

/// The last segments of the keys of jobs.
async fn jobs(cluster: &Cluster) -> Vec<String> {
    let prefix = key::jobs();
    let keys = cluster.keys(&prefix).await;
    let names = keys.iter().filter(|key| !prefix.is_sentinel(key));
    names.map(|key| key.rsplit('/').next().unwrap().to_owned()).collect()
}

async fn until_phase(cluster: &Cluster, phase: FlowPhase) {
    within(1800 * SECOND, &format!("{phase}"), || async {
        let status = status(cluster).await;
        status.state.phase == phase && status.completion_time.is_some()
    })
    .await;
}

/// How often each job was created, by the steps of the flow and by the changes of jobs.
async fn made(cluster: &Cluster) -> [BTreeMap<String, usize>; 2] {
    let mut made = [BTreeMap::new(), BTreeMap::new()];
    for record in cluster.audit().await {
        match record.details().unwrap() {
            Details::RecordStep(step) => {
                for job in step.jobs_created {
                    *made[0].entry(job).or_default() += 1;
                }
            }
            Details::JobChanged(change) if change.action == "Created" => {
                *made[1].entry(change.job.name.to_string()).or_default() += 1;
            }
            _ => {}
        }
    }
    made
}

#[tokio::test(start_paused = true)]
async fn flow_makes_jobs_in_order_and_succeeds() {
    let cluster = Cluster::new(2).await;
    let _nodes = nodes(&cluster);
    templates(&cluster).await;
    let farm = cluster.start("a");
    let flows =
        json!([step("d", &["b", "c"]), step("a", &[]), step("b", &["a"]), step("c", &["a"])]);
    submit(&cluster, json!({"flows": flows})).await;
    until_phase(&cluster, FlowPhase::Succeed).await;
    let status = status(&cluster).await;
    assert_eq!((status.completed_jobs.len(), status.reason), (4, FlowReason::AllStepsEnded));
    let order: Vec<&str> = status.job_status_list.iter().map(|job| job.step.as_str()).collect();
    assert_eq!((order[0], order[3]), ("a", "d"));
    assert!(status.job_status_list.iter().all(|job| job.end_timestamp.is_some()));
    let conditions = &status.conditions[&"f-a".parse().unwrap()];
    assert!(!conditions.task_status_count.is_empty() && conditions.running_duration.is_some());
    assert_eq!(jobs(&cluster).await, ["f-a", "f-b", "f-c", "f-d"]);
    let job: Value = cluster.value("rcfarm/jobs/default/f-b").await;
    assert_eq!(job["metadata"]["labels"]["volcano.sh/createdByJobTemplate"], "default.t");
    let [steps, changes] = made(&cluster).await;
    assert!(steps == changes && steps.values().all(|times| *times == 1), "{steps:?}");
    // Jobs that go are not made again; those of a flow that is deleted go with it.
    cluster.delete("rcfarm/jobs/default/f-a").await;
    cluster.put("rcfarm/bell/flow/default/f", "x").await;
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(jobs(&cluster).await, ["f-b", "f-c", "f-d"]);
    let document = json!({"kind": "JobFlow", "metadata": {"deletionTimestamp": "2026-01-01T00:21:00Z"},
        "spec": {"flows": flows}});
    cluster.put(key::job_flow(&id()), document.to_string()).await;
    within(60 * SECOND, "everything of it is gone", || async {
        let keys = [key::job_flow(&id()), key::job_flow_status(&id())];
        let gone =
            cluster.entry(&keys[0]).await.is_none() && cluster.entry(&keys[1]).await.is_none();
        gone && jobs(&cluster).await.is_empty()
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failing_flow_retries_skips_and_runs_what_waits_for_a_failure() {
    let cluster = Cluster::new(2).await;
    let _nodes = nodes(&cluster);
    templates(&cluster).await;
    let farm = cluster.start("a");
    let flows = json!([
        {"name": "a", "template": "bad", "retry": 1},
        step("b", &["a"]),
        {"name": "cleanup", "template": "t", "dependsOn": {"targets": ["b"], "type": "afterany"}},
        {"name": "tell", "template": "bad", "dependsOn": {"targets": ["a"], "type": "afternotok"},
         "patch": {"jobSpec": {"tasks": [{"name": "t", "template": {"spec": {"containers": [
             {"name": "c", "command": ["exit", "0"]}]}}}]}}},
    ]);
    submit(&cluster, json!({"flows": flows, "jobRetainPolicy": "delete"})).await;
    until_phase(&cluster, FlowPhase::Failed).await;
    let status = status(&cluster).await;
    assert_eq!(jobs(&cluster).await, ["f-a", "f-a-retry1", "f-cleanup", "f-tell"], "{status:?}");
    assert_eq!(status.skipped_steps, ["b".parse().unwrap()]);
    assert_eq!((status.completed_jobs.len(), status.failed_jobs.len()), (2, 1));
    assert!(
        status.message.contains("f-a-retry1 of step a has failed after 1 retries"),
        "{}",
        status.message
    );
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stopping_flow_terminates_siblings() {
    let cluster = Cluster::new(2).await;
    // Pods of the step `long` go on until they are stopped.
    let exit_code = |pod: &FakePod<'_>| match pod.name.contains("long") || pod.is_new {
        true => None,
        false => Some(1),
    };
    let store = Arc::new(cluster.store.clone());
    let _nodes = FakeNodes::start(store, cluster.clock.clone(), Box::new(exit_code));
    templates(&cluster).await;
    let farm = cluster.start("a");
    let flows = json!([step("long", &[]), step("a", &[])]);
    submit(&cluster, json!({"flows": flows, "failurePolicy": "stop"})).await;
    until_phase(&cluster, FlowPhase::Failed).await;
    let status = status(&cluster).await;
    assert_eq!(status.terminated_jobs, ["f-long".parse().unwrap()]);
    assert!(cluster.keys(&key::commands()).await.iter().all(|key| key.ends_with("/_")));
    farm.stop().await;
}

/// Answers each connection with 200, as a member that is ready.
async fn answer_ok(listener: TcpListener) {
    while let Ok((mut connection, _)) = listener.accept().await {
        let mut request = [0; 1024];
        // A probe of TCP sends nothing.
        if connection.read(&mut request).await.is_ok_and(|count| count > 0) {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            _ = connection.write_all(answer).await;
        }
    }
}

/// In real time: the farm connects to a port of this machine, which opens late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_waits_until_its_network_probes_pass() {
    let cluster = Cluster::new(1).await;
    let address = json!({"address": "127.0.0.1"});
    cluster.put(key::node(&node(0)), address.to_string()).await;
    let store = Arc::new(cluster.store.clone());
    // The first step's pod runs until the end of the test.
    let ends = |pod: &FakePod<'_>| (!pod.is_new && pod.name.starts_with("f-b")).then_some(0);
    let _nodes = FakeNodes::start(store, cluster.clock.clone(), Box::new(ends));
    templates(&cluster).await;
    let farm = cluster.start("a");
    // A port that nobody listens on as long as it is not listened on.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let mut waiting = step("b", &["a"]);
    waiting["dependsOn"]["probe"] = json!({
        "httpGetList": [{"taskName": "t", "path": "/ready", "port": port}],
        "tcpSocketList": [{"taskName": "t", "port": port}],
    });
    submit(&cluster, json!({"flows": [step("a", &[]), waiting]})).await;
    let refused = format!("127.0.0.1:{port}");
    until("it waits for its probes, and says which", async || {
        let status = status(&cluster).await;
        status.reason == FlowReason::ProbeWaiting && status.message.contains(&refused)
    })
    .await;
    assert_eq!(jobs(&cluster).await, ["f-a"]);
    let server = tokio::spawn(answer_ok(socket.listen(16).unwrap()));
    until("its job is made and ends", async || {
        let status = status(&cluster).await;
        status.completed_jobs.iter().any(|job| job.as_str() == "f-b")
    })
    .await;
    assert_eq!(status(&cluster).await.running_jobs.len(), 1, "its target runs on");
    server.abort();
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn template_that_comes_later_wakes_the_flow() {
    let cluster = Cluster::new(2).await;
    let _nodes = nodes(&cluster);
    let farm = cluster.start("a");
    submit(&cluster, json!({"flows": [step("a", &[])], "jobRetainPolicy": "delete"})).await;
    within(60 * SECOND, "it waits", || async {
        status(&cluster).await.reason == FlowReason::TemplateMissing
    })
    .await;
    template(&cluster, "t", json!({"tasks": [{"name": "t", "replicas": "x"}]})).await;
    within(5 * SECOND, "it says what is wrong", || async {
        status(&cluster).await.message.contains("spec.tasks[0].replicas")
    })
    .await;
    template(&cluster, "t", job_spec(0)).await;
    within(5 * SECOND, "it makes the job", || async {
        !status(&cluster).await.job_status_list.is_empty()
    })
    .await;
    until_phase(&cluster, FlowPhase::Succeed).await;
    within(60 * SECOND, "the job is not retained", || async { jobs(&cluster).await.is_empty() })
        .await;
    assert_eq!(status(&cluster).await.completed_jobs.len(), 1);
    farm.stop().await;
}

/// A flow of 20 steps: chains that meet, a retry, a failure that others wait for. Jobs go 60 s after their end. The farm
/// dies at each of the flow's transactions once.
#[tokio::test(start_paused = true)]
async fn killed_farm_makes_each_job_once_at_every_transaction() {
    let mut flows = vec![step("s0", &[])];
    for n in 1..18 {
        let before = [format!("s{}", n - 1), format!("s{}", n / 3)];
        flows.push(step(&format!("s{n}"), &[&before[usize::from(n % 2 == 0)]]));
    }
    flows.push(json!({"name": "bad", "retry": 1}));
    let last = json!({"targets": ["s17", "bad"], "type": "afterany"});
    flows.push(json!({"name": "last", "template": "t", "dependsOn": last}));
    assert_eq!(flows.len(), 20);
    let mut is_over = [false; 2];
    for nth in 0..200 {
        for (kind, fate) in [FaultOutcome::Lose, FaultOutcome::LoseReply].into_iter().enumerate() {
            if is_over[kind] {
                continue;
            }
            let what = format!("{fate:?} of the {nth}th");
            let cluster = Cluster::new(2).await;
            let _nodes = nodes(&cluster);
            let mut short = job_spec(0);
            short["ttlSecondsAfterFinished"] = json!(1);
            template(&cluster, "t", short).await;
            template(&cluster, "bad", job_spec(1)).await;
            let (farm, count) =
                cluster.start_dying(&["rcfarm/job_flow_status/"], nth, fate.clone());
            submit(&cluster, json!({"flows": flows, "failurePolicy": "continue"})).await;
            within(3600 * SECOND, &what, || async {
                count.load(Ordering::SeqCst) > nth
                    || status(&cluster).await.completion_time.is_some()
            })
            .await;
            is_over[kind] = count.load(Ordering::SeqCst) <= nth;
            farm.kill().await;
            let heir = cluster.start("b");
            until_phase(&cluster, FlowPhase::Failed).await;
            let [steps, changes] = made(&cluster).await;
            assert!(
                steps.values().chain(changes.values()).all(|times| *times == 1),
                "{what}: {steps:?}"
            );
            assert_eq!((steps.len(), &steps), (21, &changes), "{what}: none is left out");
            heir.stop().await;
        }
    }
    assert_eq!(is_over, [true; 2], "each transaction was reached");
}

#[tokio::test(start_paused = true)]
async fn deletion_by_hand_leaves_the_jobs_and_a_new_flow_has_nothing_of_the_old_one() {
    let cluster = Cluster::new(0).await;
    templates(&cluster).await;
    let farm = cluster.start("a");
    submit(&cluster, json!({"flows": [step("a", &[])]})).await;
    within(60 * SECOND, "its job is made", || async { jobs(&cluster).await == ["f-a"] }).await;
    cluster.delete(key::job_flow(&id())).await;
    within(60 * SECOND, "its status is gone", || async {
        cluster.entry(key::job_flow_status(&id())).await.is_none()
    })
    .await;
    submit(&cluster, json!({"flows": [step("a", &[]), step("b", &[])]})).await;
    within(60 * SECOND, "the name is taken, and the other job is made", || async {
        let status = status(&cluster).await;
        status.reason == FlowReason::JobNameTaken && status.job_status_list.len() == 1
    })
    .await;
    cluster.delete("rcfarm/jobs/default/f-a").await;
    within(60 * SECOND, "its own job is made", || async {
        status(&cluster).await.job_status_list.len() == 2
    })
    .await;
    submit(&cluster, json!({"flows": [step("a", &["a"])]})).await;
    within(60 * SECOND, "it is refused", || async {
        let status = status(&cluster).await;
        status.reason == FlowReason::InvalidRecord
            && status.message.contains("spec.flows[0].dependsOn")
    })
    .await;
    let document = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:21:00Z"}, "spec": 7});
    cluster.put(key::job_flow(&id()), document.to_string()).await;
    within(60 * SECOND, "it is deleted although it is invalid", || async {
        cluster.entry(key::job_flow(&id())).await.is_none() && jobs(&cluster).await.is_empty()
    })
    .await;
    farm.stop().await;
}

/// No record of the kind is claimed any more, so nothing but the look for leftovers finds it.
#[tokio::test(start_paused = true)]
async fn status_of_a_flow_deleted_without_a_farm_is_collected() {
    let cluster = Cluster::new(0).await;
    templates(&cluster).await;
    let farm = cluster.start("a");
    submit(&cluster, json!({"flows": [step("a", &[])]})).await;
    within(60 * SECOND, "its job is made", || async { jobs(&cluster).await == ["f-a"] }).await;
    farm.stop().await;
    cluster.delete(key::job_flow(&id())).await;
    let farm = cluster.start("b");
    within(60 * SECOND, "its status is gone", || async {
        cluster.entry(key::job_flow_status(&id())).await.is_none()
    })
    .await;
    assert_eq!(jobs(&cluster).await, ["f-a"], "its jobs stay, as where a farm runs");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn flows_that_have_ended_cost_no_requests() {
    let mut requests = Vec::new();
    for count in [0, 100] {
        let cluster = Cluster::new(2).await;
        let _nodes = nodes(&cluster);
        templates(&cluster).await;
        let (farm, counter) = cluster.start_counted("a");
        for n in 0..count {
            let id: Namespaced = format!("default/f{n}").parse().unwrap();
            let document = json!({"kind": "JobFlow", "spec": {"flows": [step("a", &[])]}});
            cluster.put(key::job_flow(&id), document.to_string()).await;
        }
        tokio::time::sleep(600 * SECOND).await;
        let ended = cluster.list(&key::job_flow_statuses()).await;
        assert!(
            ended.iter().all(|entry| entry.value.windows(9).any(|part| part == b"\"Succeed\""))
        );
        // Their jobs are not what is counted.
        for key in cluster.keys(&key::jobs()).await {
            if !key.ends_with("/_") {
                cluster.delete(key).await;
            }
        }
        tokio::time::sleep(900 * SECOND).await;
        counter.reset();
        tokio::time::sleep(1800 * SECOND).await;
        requests.push(counter.total());
        farm.stop().await;
    }
    let more = requests[1].saturating_sub(requests[0]);
    // Blocking queries of records, statuses and templates, and a periodic comparison of statuses.
    assert!(more <= 300, "{requests:?} requests in half an hour");
}

/// 20 layers of ten steps, each of which follows all of the layer before it: transactions of the flow for each step.
#[tokio::test(start_paused = true)]
async fn wide_flow_takes_few_transactions_for_each_step() {
    const WIDE: usize = 10;
    let cluster = Cluster::new(4).await;
    let _nodes = nodes(&cluster);
    templates(&cluster).await;
    let farm = cluster.start("a");
    let names = |layer: usize| (0..WIDE).map(move |n| format!("s{layer}-{n}"));
    let layer = |layer: usize| {
        let before: Vec<String> = if layer == 0 { Vec::new() } else { names(layer - 1).collect() };
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        names(layer).map(|name| step(&name, &before)).collect::<Vec<_>>()
    };
    let steps: Vec<Value> = (0..20).flat_map(layer).collect();
    submit(&cluster, json!({"flows": steps})).await;
    until_phase(&cluster, FlowPhase::Succeed).await;
    let revision = usize::try_from(status(&cluster).await.revision).unwrap();
    println!("{revision} transactions of a flow of {} steps", steps.len());
    assert!(revision <= 2 * steps.len(), "{revision}");
    farm.stop().await;
}

/// Flows whose probes wait for members that do not answer, as many as reconcile at once and more.
#[tokio::test(start_paused = true)]
async fn hanging_probes_delay_no_other_flow() {
    const HANGING: usize = 70;
    let cluster = Cluster::new(2).await;
    let exit_code = |pod: &FakePod<'_>| {
        let code = pod.command.last().and_then(|code| code.parse().ok());
        code.filter(|_| !pod.is_new)
    };
    let store = Arc::new(cluster.store.clone());
    let _nodes = FakeNodes::start(store, cluster.clock.clone(), Box::new(exit_code));
    for n in 0..2 {
        let capacity = "cpu=1000".parse().unwrap();
        let address = "127.0.0.1".to_owned();
        let record = NodeRecord { address, capacity, ..NodeRecord::default() };
        cluster.put(key::node(&node(n)), record.encode()).await;
    }
    templates(&cluster).await;
    let mut long = job_spec(0);
    long["tasks"][0]["replicas"] = json!(5);
    long["tasks"][0]["template"]["spec"]["containers"][0]["command"] = json!(["sleep"]);
    template(&cluster, "long", long).await;
    // Takes connections, and does not answer: five members and 16 probes take the limit of ten seconds.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let path = |n| json!({"taskName": "t", "path": format!("/{n}"), "port": port});
    let probes: Vec<Value> = (0..16).map(path).collect();
    let depends = json!({"targets": ["a"], "probe": {"httpGetList": probes}});
    let flows = json!([{"name": "a", "template": "long"},
        {"name": "b", "template": "t", "dependsOn": depends}]);
    let farm = cluster.start("a");
    let put = async |name: &str, flows: &Value| {
        let id: Namespaced = format!("default/{name}").parse().unwrap();
        let document = json!({"kind": "JobFlow", "spec": {"flows": flows}});
        cluster.put(key::job_flow(&id), document.to_string()).await;
    };
    for n in 0..HANGING {
        put(&format!("hanging{n}"), &flows).await;
    }
    for n in 0..30 {
        put(&format!("calm{n}"), &json!([step("a", &[])])).await;
        let job: Namespaced = format!("default/calm{n}-a").parse().unwrap();
        within(2 * SECOND, "the calm flow makes its step", || async {
            cluster.entry(key::job(&job)).await.is_some()
        })
        .await;
        tokio::time::sleep(SECOND).await;
    }
    let mut unanswered = 0;
    for entry in cluster.list(&key::job_flow_statuses()).await {
        let Ok(status) = FlowStatus::decode(&entry.value) else { continue };
        let in_vain = ["no answer within", "its probes took longer than"];
        unanswered += usize::from(in_vain.iter().any(|why| status.message.contains(why)));
    }
    assert!(unanswered > 0, "probes were made in vain");
    // Then the members answer.
    server.set_nonblocking(true).unwrap();
    let server = tokio::net::TcpListener::from_std(server).unwrap();
    let answering = tokio::spawn(async move {
        while let Ok((mut stream, _)) = server.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            });
        }
    });
    within(600 * SECOND, "all probes pass", || async {
        let jobs = jobs(&cluster).await;
        (0..HANGING).all(|n| jobs.contains(&format!("hanging{n}-b")))
    })
    .await;
    answering.abort();
    farm.stop().await;
}
