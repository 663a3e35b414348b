//! Compares environment variables with Kubeflow's and Volcano's, and tests when a job is done.

use serde_json::{Value, json};

use super::*;
use crate::job::document::read;

fn job(document: Value) -> JobSpec {
    let id: Namespaced = "ns2/J".to_lowercase().parse().unwrap();
    read(&id, &document).unwrap_or_else(|problems| panic!("{problems:?}")).spec
}

fn member(replicas: u32, container: &str) -> Value {
    json!({"replicas": replicas, "template": {"spec": {"containers": [
        {"name": container, "command": ["run"]},
    ]}}})
}

/// Addresses as DNS would give them in Kubernetes.
fn by_name(domain: &'static str) -> impl Fn(&Slot) -> ClusterPeer {
    move |slot| ClusterPeer { host: format!("j-{slot}{domain}"), offset: 0, assigned: None }
}

fn environment(
    job: &JobSpec,
    task: &str,
    index: u32,
    domain: &'static str,
) -> Vec<(String, String)> {
    let id: Namespaced = "ns2/j".parse().unwrap();
    let peer = by_name(domain);
    let cluster = Cluster { id: &id, job, peer: &peer };
    let env = of(job.framework).environment(&cluster, &Slot::new(task, index));
    env.into_iter().map(|variable| (variable.name, variable.value)).collect()
}

fn value<'e>(env: &'e [(String, String)], name: &str) -> &'e str {
    &env.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}: {env:?}")).1
}

fn tf(members: &[(&str, u32)], more: Value) -> JobSpec {
    let members: serde_json::Map<String, Value> =
        members.iter().map(|(name, n)| ((*name).to_owned(), member(*n, "tensorflow"))).collect();
    let mut spec = json!({"tfReplicaSpecs": members});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    job(json!({"kind": "TFJob", "spec": spec}))
}

#[test]
fn tf_config_is_the_references_text() {
    let domain = ".ns2.svc.tf.training.org";
    let pair = tf(&[("PS", 1), ("Worker", 1)], json!({}));
    let env = environment(&pair, "Worker", 0, domain);
    assert_eq!(
        value(&env, "TF_CONFIG"),
        concat!(
            r#"{"cluster":{"ps":["j-ps-0.ns2.svc.tf.training.org:2222"],"#,
            r#""worker":["j-worker-0.ns2.svc.tf.training.org:2222"]},"#,
            r#""task":{"type":"worker","index":0},"environment":"cloud"}"#
        )
    );
    let four = tf(&[("Evaluator", 1), ("Worker", 2), ("Chief", 1)], json!({}));
    assert_eq!(
        value(&environment(&four, "Worker", 1, ""), "TF_CONFIG"),
        concat!(
            r#"{"cluster":{"chief":["j-chief-0:2222"],"evaluator":["j-evaluator-0:2222"],"#,
            r#""worker":["j-worker-0:2222","j-worker-1:2222"]},"#,
            r#""task":{"type":"worker","index":1},"environment":"cloud"}"#
        )
    );
    let alone = tf(&[("Worker", 1)], json!({}));
    assert!(environment(&alone, "Worker", 0, "").is_empty(), "one member is not distributed");
    let dynamic = tf(&[("PS", 2), ("Worker", 3)], json!({"enableDynamicWorker": true}));
    assert_eq!(
        value(&environment(&dynamic, "Worker", 1, ""), "TF_CONFIG"),
        concat!(
            r#"{"cluster":{"worker":{"1":"j-worker-1:2222"},"ps":["j-ps-0:2222","j-ps-1:2222"]},"#,
            r#""task":{"type":"worker","index":1}}"#
        )
    );
    assert_eq!(
        value(&environment(&dynamic, "PS", 1, ""), "TF_CONFIG"),
        r#"{"cluster":{"worker":{},"ps":["j-ps-1:2222"]},"task":{"type":"ps","index":1}}"#
    );
}

fn pytorch(members: &[(&str, u32)], more: Value) -> JobSpec {
    let members: serde_json::Map<String, Value> =
        members.iter().map(|(name, n)| ((*name).to_owned(), member(*n, "pytorch"))).collect();
    let mut spec = json!({"pytorchReplicaSpecs": members});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    job(json!({"kind": "PyTorchJob", "spec": spec}))
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut all: Vec<_> =
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    all.sort();
    all
}

fn sorted(mut env: Vec<(String, String)>) -> Vec<(String, String)> {
    env.sort();
    env
}

#[test]
fn pytorchs_members_know_their_master_rank_and_world() {
    let three = pytorch(&[("Master", 1), ("Worker", 2)], json!({}));
    assert_eq!(
        sorted(environment(&three, "Worker", 1, "")),
        pairs(&[
            ("PYTHONUNBUFFERED", "1"),
            ("MASTER_PORT", "23456"),
            ("PET_MASTER_PORT", "23456"),
            ("MASTER_ADDR", "j-master-0"),
            ("PET_MASTER_ADDR", "j-master-0"),
            ("WORLD_SIZE", "3"),
            ("RANK", "2"),
            ("PET_NODE_RANK", "2"),
            ("PET_NPROC_PER_NODE", "auto"),
            ("PET_NNODES", "3"),
        ])
    );
    assert_eq!(value(&environment(&three, "Master", 0, ""), "RANK"), "0");
    let many = pytorch(&[("Master", 1), ("Worker", 2)], json!({"nprocPerNode": "4"}));
    assert_eq!(value(&environment(&many, "Master", 0, ""), "WORLD_SIZE"), "12");
    let elastic = pytorch(
        &[("Worker", 3)],
        json!({"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d",
            "rdzvPort": 1234, "rdzvHost": "localhost", "rdzvId": "rdzv-id", "maxRestarts": 3,
            "rdzvConf": [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]}}),
    );
    assert_eq!(
        sorted(environment(&elastic, "Worker", 0, "")),
        pairs(&[
            ("PYTHONUNBUFFERED", "1"),
            ("PET_NPROC_PER_NODE", "auto"),
            ("PET_NNODES", "1:3"),
            ("PET_RDZV_ENDPOINT", "localhost:1234"),
            ("PET_RDZV_BACKEND", "c10d"),
            ("PET_RDZV_ID", "rdzv-id"),
            ("PET_RDZV_CONF", "a=1,b=2"),
            ("PET_MAX_RESTARTS", "3"),
        ])
    );
    let bare = pytorch(&[("Worker", 3)], json!({"elasticPolicy": {"minReplicas": 1}}));
    let env = environment(&bare, "Worker", 0, "");
    assert_eq!(value(&env, "PET_RDZV_ENDPOINT"), "j-worker-0:23456");
    assert_eq!(value(&env, "PET_NNODES"), "3");
}

#[test]
fn members_that_share_an_address_have_ports_of_their_own() {
    let pair = tf(&[("PS", 1), ("Worker", 1)], json!({}));
    let id: Namespaced = "ns2/j".parse().unwrap();
    let peer = |slot: &Slot| ClusterPeer {
        host: "10.0.0.1".to_owned(),
        offset: u16::from(slot.task == "Worker"),
        assigned: None,
    };
    let cluster = Cluster { id: &id, job: &pair, peer: &peer };
    let env = of(pair.framework).environment(&cluster, &Slot::new("PS", 0));
    assert!(env[0].value.contains(r#""ps":["10.0.0.1:2222"],"worker":["10.0.0.1:2223"]"#));
}

#[test]
fn xgboost_mpi_and_their_values() {
    let spec = json!({"xgbReplicaSpecs": {"Master": member(1, "xgboost"), "Worker": member(2, "xgboost")}});
    let xgboost = job(json!({"kind": "XGBoostJob", "spec": spec}));
    assert_eq!(
        sorted(environment(&xgboost, "Worker", 1, "")),
        pairs(&[
            ("MASTER_PORT", "9999"),
            ("MASTER_ADDR", "j-master-0"),
            ("WORLD_SIZE", "3"),
            ("RANK", "2"),
            ("PYTHONUNBUFFERED", "1"),
            ("WORKER_PORT", "9999"),
            ("WORKER_ADDRS", "j-worker-0,j-worker-1"),
        ])
    );
    let spec = json!({"slotsPerWorker": 2,
        "mpiReplicaSpecs": {"Launcher": member(1, "mpi"), "Worker": member(2, "mpi")}});
    let mpi = job(json!({"kind": "MPIJob", "spec": spec}));
    let env = environment(&mpi, "Launcher", 0, "");
    assert_eq!(value(&env, "RCFARM_MPI_HOSTFILE"), "j-worker-0 slots=2\nj-worker-1 slots=2\n");
    assert_eq!(value(&env, "OMPI_MCA_orte_default_hostfile"), "$(POD_HOME)/hostfile");
    assert!(environment(&mpi, "Worker", 0, "").is_empty());
    let command = mpi::hostfile_command(&["mpirun".to_owned(), "./a".to_owned()]);
    assert_eq!(command[4..], ["mpirun", "./a"]);
}

fn volcano(tasks: &[(&str, u32)], more: Value) -> JobSpec {
    let tasks: Vec<Value> = tasks
        .iter()
        .map(|(name, n)| {
            let mut task = member(*n, "c");
            task["name"] = json!(name);
            task
        })
        .collect();
    let mut spec = json!({"tasks": tasks});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    job(json!({"spec": spec}))
}

#[test]
fn volcanos_plugins_give_the_references_values() {
    let plugins = json!({"plugins": {"env": [], "svc": []}});
    let plain = volcano(&[("ps", 1), ("data-loader", 2)], plugins);
    assert_eq!(
        environment(&plain, "data-loader", 1, ".j"),
        [
            ("VC_TASK_INDEX", "1"),
            ("VK_TASK_INDEX", "1"),
            ("VC_PS_HOSTS", "j-ps-0.j"),
            ("VC_PS_NUM", "1"),
            ("VC_DATA_LOADER_HOSTS", "j-data-loader-0.j,j-data-loader-1.j"),
            ("VC_DATA_LOADER_NUM", "2"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    let quiet = json!({"plugins": {"svc": ["--inject-hosts-env=false"]}});
    assert!(environment(&volcano(&[("a", 2)], quiet), "a", 0, "").is_empty());
    let torch = json!({"plugins": {"pytorch": ["--master=m", "--worker=w", "--port=23457"]}});
    let torch = volcano(&[("m", 1), ("w", 2)], torch);
    let env = environment(&torch, "w", 1, "");
    assert_eq!(value(&env, "MASTER_ADDR"), "j-m-0");
    assert_eq!(value(&env, "MASTER_PORT"), "23457");
    assert_eq!((value(&env, "WORLD_SIZE"), value(&env, "RANK")), ("3", "2"));
    assert_eq!(value(&env, "VC_W_NUM"), "2", "svc comes with it");
    let tf = volcano(&[("ps", 1), ("worker", 1)], json!({"plugins": {"tensorflow": []}}));
    assert_eq!(
        value(&environment(&tf, "worker", 0, ""), "TF_CONFIG"),
        r#"{"cluster":{"ps":["j-ps-0:2222"],"worker":["j-worker-0:2222"]},"task":{"type":"worker","index":0}}"#
    );
    let mpi = volcano(&[("master", 1), ("worker", 2)], json!({"plugins": {"mpi": []}}));
    assert_eq!(value(&environment(&mpi, "master", 0, ""), "MPI_HOST"), "j-worker-0,j-worker-1");
    assert!(!environment(&mpi, "worker", 0, "").iter().any(|(name, _)| name == "MPI_HOST"));
}

fn count(name: &str, [pending, running, succeeded, failed]: [u32; 4]) -> (&str, TaskCount) {
    let members = JobMembers { pending, running, succeeded, failed, ..JobMembers::default() };
    (name, TaskCount { members, first_succeeded: false })
}

fn decide(job: &JobSpec, counts: &[(&'static str, TaskCount)]) -> (PhaseDecision, JobReason) {
    let outcome = of(job.framework).outcome(job, &counts.iter().copied().collect());
    (outcome.verdict, outcome.reason)
}

fn verdict(job: &JobSpec, counts: &[(&'static str, TaskCount)]) -> PhaseDecision {
    decide(job, counts).0
}

/// `ray.go`: the commands replace the containers' own, and need none there.
#[test]
fn ray_starts_its_head_and_joins_it() {
    let container = |name: &str| json!({"spec": {"containers": [{"name": name}]}});
    let cluster = |arguments: Value, names: [&str; 4]| {
        let [head, in_head, worker, in_worker] = names;
        let tasks = json!([{"name": head, "replicas": 1, "template": container(in_head)},
            {"name": worker, "replicas": 2, "template": container(in_worker)}]);
        job(json!({"spec": {"plugins": {"ray": arguments}, "tasks": tasks}}))
    };
    let started = |job: &JobSpec, task: usize| {
        let command = &job.tasks[task].template.containers[0].command;
        let env = environment(job, &job.tasks[task].name, 0, "");
        let mut text = command.join(" ");
        for (name, value) in &env {
            text = text.replace(&format!("$({name})"), value);
        }
        text
    };
    let plain = cluster(json!([]), ["head", "head", "worker", "worker"]);
    assert_eq!(
        [started(&plain, 0), started(&plain, 1)],
        [
            "sh -c ray start --head --block --dashboard-host=0.0.0.0 --port=6379 --dashboard-port=8265 \
             --ray-client-server-port=10001",
            "sh -c ray start --block --address=j-head-0:6379",
        ]
    );
    let env = environment(&plain, "worker", 1, "");
    assert_eq!(value(&env, "VC_HEAD_HOSTS"), "j-head-0", "svc comes with it");
    let named = json!([
        "--head=h",
        "--headContainer=hc",
        "--worker=w",
        "--workerContainer=wc",
        "--port=1",
        "--dashboardPort=2",
        "--clientPort=3"
    ]);
    let named = cluster(named, ["h", "hc", "w", "wc"]);
    assert!(
        started(&named, 0).ends_with(" --port=1 --dashboard-port=2 --ray-client-server-port=3")
    );
    assert_eq!(started(&named, 1), "sh -c ray start --block --address=j-h-0:1");
    let head = Slot::new("head", 0);
    assert_eq!(of(Framework::Volcano).meets_at(&plain), [head], "workers wait for its place");
    let listeners = |task: usize| of(Framework::Volcano).listeners(&plain, &plain.tasks[task]);
    assert_eq!([listeners(0), listeners(1)], [1, 0]);
}

#[test]
fn ssh_tells_open_mpi_of_its_configuration() {
    let plugins = json!({"plugins": {"ssh": []}});
    let job = volcano(&[("a", 2)], plugins);
    let env = environment(&job, "a", 0, "");
    assert_eq!(value(&env, "OMPI_MCA_plm_rsh_args"), "-F $(RCFARM_SSH_CONFIG)");
}

#[test]
fn rule_r_f_j3_f_j4_f_j6_to_f_j13() {
    use PhaseDecision::{Empty, Enough, Failed, Short, Succeeded, TooManyPending};
    let of = |replicas: u32, more: Value| volcano(&[("t", replicas)], more);
    let three = of(3, json!({"minAvailable": 3}));
    assert_eq!(verdict(&three, &[count("t", [0, 3, 0, 0])]), Enough, "F-J3");
    assert_ne!(verdict(&three, &[count("t", [1, 2, 0, 0])]), Enough, "F-J4");
    assert_eq!(verdict(&three, &[count("t", [0, 2, 0, 0])]), Short, "F-J4, the third not made yet");
    let two = of(2, json!({}));
    assert_eq!(verdict(&two, &[count("t", [0, 0, 2, 0])]), Succeeded, "F-J6");
    assert_eq!(verdict(&two, &[count("t", [0, 1, 1, 0])]), Enough, "F-J7");
    let five = of(5, json!({"minAvailable": 3}));
    assert_eq!(verdict(&five, &[count("t", [5, 0, 0, 0])]), TooManyPending, "F-J8");
    assert_eq!(verdict(&five, &[count("t", [3, 2, 0, 0])]), TooManyPending, "F-J8");
    assert_eq!(verdict(&five, &[count("t", [2, 1, 1, 1])]), Enough, "F-J9");
    assert_eq!(verdict(&of(0, json!({})), &[]), Empty, "F-J10");
    let enough = of(3, json!({"minSuccess": 2}));
    assert_eq!(verdict(&enough, &[count("t", [0, 1, 2, 0])]), Succeeded, "F-J11");
    assert_eq!(
        decide(&enough, &[count("t", [0, 0, 1, 2])]),
        (Failed, JobReason::MinSuccessMissed),
        "rule 3b"
    );
    assert_eq!(
        decide(&two, &[count("t", [0, 0, 1, 1])]),
        (Failed, JobReason::TaskMinAvailableMissed),
        "F-J12"
    );
    assert_eq!(
        decide(&of(3, json!({"minAvailable": 2})), &[count("t", [0, 0, 1, 2])]),
        (Failed, JobReason::MinAvailableMissed),
        "F-J12, below the sum of the tasks"
    );
    let mut by_task = volcano(&[("a", 2), ("b", 2)], json!({"minAvailable": 3}));
    by_task.tasks[0].min_available = Some(2);
    by_task.tasks[1].min_available = Some(1);
    let one_of_a = [count("a", [0, 0, 1, 1]), count("b", [0, 0, 2, 0])];
    assert_eq!(decide(&by_task, &one_of_a), (Failed, JobReason::TaskMinAvailableMissed), "F-J13");
    let none_of_a = [count("b", [0, 0, 4, 0])];
    assert_eq!(verdict(&by_task, &none_of_a), Failed, "a task without members counts, too");
}

/// `volcano.md` §3.8: from `RANK`, or masters before workers.
#[test]
fn hcclrank_counts_masters_before_workers() {
    let of = |plugins: Value, env: Value| {
        let task = |name: &str, replicas: u32| {
            let container = json!({"name": "c", "command": ["x"], "env": env});
            let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
            json!({"name": name, "replicas": replicas, "template": template})
        };
        let tasks = [task("master", 2), task("worker", 3), task("other", 1)];
        job(json!({"spec": {"plugins": plugins, "tasks": tasks}}))
    };
    let rank = |job: &JobSpec, task: &str, index: u32| {
        let all = environment(job, task, index, "");
        let own = all.into_iter().find(|(name, _)| name == "RCFARM_HCCL_RANK_INDEX");
        own.map(|(_, value)| value)
    };
    let cases = [("master", 0, "0"), ("master", 1, "1"), ("worker", 0, "2"), ("worker", 2, "4")];
    let plain = of(json!({"hcclrank": []}), json!([]));
    for (task, index, wanted) in cases {
        assert_eq!(rank(&plain, task, index).as_deref(), Some(wanted), "{task}-{index}");
    }
    assert_eq!(rank(&plain, "other", 0), None);
    let named = of(json!({"hcclrank": ["--master=other", "--worker=master"]}), json!([]));
    assert_eq!(rank(&named, "other", 0).as_deref(), Some("0"));
    assert_eq!(rank(&named, "master", 1).as_deref(), Some("2"));
    assert_eq!(rank(&named, "worker", 0), None);
    let given = of(json!({"hcclrank": []}), json!([{"name": "RANK", "value": "7"}]));
    assert_eq!(rank(&given, "other", 0).as_deref(), Some("7"));
    // The pytorch plugin's rank replaces the container's own, and its second master has the rank 0, too.
    let torch = json!({"hcclrank": [], "pytorch": []});
    let torch = of(torch, json!([{"name": "RANK", "value": "7"}]));
    assert_eq!(rank(&torch, "worker", 1).as_deref(), Some("2"));
    assert_eq!(rank(&torch, "master", 1).as_deref(), Some("0"));
    assert_eq!(rank(&of(json!({}), json!([])), "master", 0), None);
}

/// `kubeflow.md` §2.3
#[test]
fn tensorflows_chief_or_workers_decide() {
    use PhaseDecision::{Enough, Failed, Short, Succeeded};
    let led = tf(&[("Chief", 1), ("Worker", 2)], json!({}));
    let with = |chief, worker| [count("Chief", chief), count("Worker", worker)];
    assert_eq!(verdict(&led, &with([1, 0, 0, 0], [0, 2, 0, 0])), Short);
    assert_eq!(verdict(&led, &with([0, 1, 0, 0], [2, 0, 0, 0])), Enough);
    assert_eq!(verdict(&led, &with([0, 0, 1, 0], [0, 2, 0, 0])), Succeeded);
    assert_eq!(verdict(&led, &with([0, 1, 0, 0], [0, 1, 0, 1])), Failed);
    // D9: the first result stays; Kubeflow ends with both.
    assert_eq!(verdict(&led, &with([0, 0, 1, 0], [0, 0, 0, 2])), Succeeded);
    let alone = tf(&[("Worker", 3)], json!({}));
    assert_eq!(verdict(&alone, &[count("Worker", [0, 0, 3, 0])]), Succeeded);
    assert_eq!(verdict(&alone, &[count("Worker", [0, 1, 2, 0])]), Enough);
    // IsWorker0Completed
    let mut first = count("Worker", [0, 1, 1, 0]);
    first.1.first_succeeded = true;
    assert_eq!(verdict(&alone, &[first]), Succeeded);
    let all = tf(&[("Worker", 3)], json!({"successPolicy": "AllWorkers"}));
    assert_eq!(verdict(&all, &[first]), Enough);
    let dynamic = tf(&[("Chief", 1), ("Worker", 2)], json!({"enableDynamicWorker": true}));
    assert_eq!(verdict(&dynamic, &with([0, 1, 0, 0], [0, 1, 0, 1])), Enough);
}

#[test]
fn the_other_frameworks_masters_and_launchers_decide() {
    use PhaseDecision::{Enough, Failed, Short, Succeeded};
    let led = pytorch(&[("Master", 1), ("Worker", 2)], json!({}));
    let with = |master, worker| [count("Master", master), count("Worker", worker)];
    assert_eq!(verdict(&led, &with([0, 1, 0, 0], [2, 0, 0, 0])), Enough);
    assert_eq!(verdict(&led, &with([0, 0, 1, 0], [0, 2, 0, 0])), Succeeded);
    assert_eq!(verdict(&led, &with([0, 1, 0, 0], [0, 1, 0, 1])), Failed);
    let workers = pytorch(&[("Worker", 3)], json!({}));
    assert_eq!(verdict(&workers, &[count("Worker", [0, 2, 1, 0])]), Enough);
    let elastic = pytorch(&[("Worker", 3)], json!({"elasticPolicy": {"minReplicas": 1}}));
    assert_eq!(verdict(&elastic, &[count("Worker", [0, 2, 1, 0])]), Succeeded);
    let spec =
        json!({"mpiReplicaSpecs": {"Launcher": member(1, "mpi"), "Worker": member(2, "mpi")}});
    let mpi = job(json!({"kind": "MPIJob", "spec": spec}));
    let with = |launcher, worker| [count("Launcher", launcher), count("Worker", worker)];
    assert_eq!(verdict(&mpi, &with([0, 1, 0, 0], [1, 1, 0, 0])), Short);
    assert_eq!(verdict(&mpi, &with([0, 1, 0, 0], [0, 2, 0, 0])), Enough);
    assert_eq!(verdict(&mpi, &with([0, 1, 0, 0], [0, 1, 0, 1])), Short, "its launcher says");
    assert_eq!(verdict(&mpi, &with([0, 0, 1, 0], [0, 2, 0, 0])), Succeeded);
    assert_eq!(verdict(&mpi, &with([0, 0, 0, 1], [0, 2, 0, 0])), Failed);
}

/// `kubeflow.md` §1.3
#[test]
fn the_restart_matrix_is_the_measured_one() {
    use AfterFailure::{FailJob, Restart as Again, Stay};
    let (own, lost) = (Again { counts: true }, Again { counts: false });
    for (restart, row) in [
        // no exit code, 0, 1, 127, 128, 137
        (Restart::Always, [lost, own, own, own, own, own]),
        (Restart::OnFailure, [lost, own, own, own, own, own]),
        (Restart::Never, [Stay; 6]),
        // Exit codes 1 to 127 fail the job at once, as in Kubeflow's operator.
        (Restart::ExitCode, [lost, Stay, FailJob, FailJob, own, own]),
    ] {
        let codes = [None, Some(0), Some(1), Some(127), Some(128), Some(137)];
        for (code, wanted) in codes.into_iter().zip(row) {
            let found = after_failure(Framework::TensorFlow, restart, code);
            assert_eq!(found, wanted, "{restart:?} {code:?}");
        }
    }
    for code in [1, 2, 3, 130, 138] {
        let retried = matches!(
            after_failure(Framework::TensorFlow, Restart::ExitCode, Some(code)),
            Again { .. }
        );
        assert_eq!(retried, code >= 128, "TestIsRetryableExitCode {code}");
    }
    assert_eq!(after_failure(Framework::Volcano, Restart::OnFailure, Some(1)), Stay);
}

#[test]
fn members_without_a_place_are_not_among_the_addresses() {
    let id: Namespaced = "ns2/j".parse().unwrap();
    let peer = |slot: &Slot| ClusterPeer {
        host: if slot.index < 2 { format!("h{}", slot.index) } else { String::new() },
        offset: 0,
        assigned: None,
    };
    let task = json!({"name": "w", "replicas": 4, "template": {"spec": {"containers": [
        {"name": "c", "command": ["run"]}]}}});
    let volcano =
        job(json!({"spec": {"minAvailable": 2, "plugins": {"svc": []}, "tasks": [task]}}));
    let tf = tf(&[("Worker", 3)], json!({}));
    for (job, task, name, wanted) in [
        (&volcano, "w", "VC_W_HOSTS", "h0,h1"),
        (
            &tf,
            "Worker",
            "TF_CONFIG",
            r#"{"cluster":{"worker":["h0:2222","h1:2222"]},"task":{"type":"worker","index":0},"environment":"cloud"}"#,
        ),
    ] {
        let cluster = Cluster { id: &id, job, peer: &peer };
        let env = of(job.framework).environment(&cluster, &Slot::new(task, 0));
        let found = env.iter().find(|variable| variable.name == name).unwrap();
        assert_eq!(found.value, wanted);
    }
}

#[test]
fn xgboost_workers_sharing_an_address_get_own_ports() {
    let id: Namespaced = "ns2/j".parse().unwrap();
    let job = job(json!({"kind": "XGBoostJob", "spec": {"xgbReplicaSpecs": {
        "Master": member(1, "xgboost"), "Worker": member(2, "xgboost")}}}));
    let peer = |slot: &Slot| {
        let offset = if slot.task == "Master" { 0 } else { u16::try_from(slot.index).unwrap() + 1 };
        ClusterPeer { host: "h".to_owned(), offset, assigned: None }
    };
    let cluster = Cluster { id: &id, job: &job, peer: &peer };
    for (task, index, port) in
        [("Master", 0, "10000"), ("Worker", 0, "10000"), ("Worker", 1, "10001")]
    {
        let value = |name: &str| {
            let env = of(job.framework).environment(&cluster, &Slot::new(task, index));
            env.into_iter().find(|variable| variable.name == name).map(|variable| variable.value)
        };
        assert_eq!(value("WORKER_PORTS").as_deref(), Some("10000,10001"));
        let env = of(job.framework).environment(&cluster, &Slot::new(task, index));
        let own = env.iter().find(|variable| variable.name == "WORKER_PORT").unwrap();
        assert_eq!(own.value, port, "{task} {index}");
    }
}

#[test]
fn port_that_a_node_gave_is_in_every_environment() {
    let id: Namespaced = "ns2/j".parse().unwrap();
    let torch = json!({"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {
        "Master": member(1, "pytorch"), "Worker": member(2, "pytorch")}}});
    let elastic = json!({"kind": "PyTorchJob", "spec": {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2, "rdzvBackend": "c10d", "rdzvPort": 29400},
        "pytorchReplicaSpecs": {"Worker": member(2, "pytorch")}}});
    let xgboost = json!({"kind": "XGBoostJob", "spec": {"xgbReplicaSpecs": {
        "Master": member(1, "xgboost"), "Worker": member(2, "xgboost")}}});
    let task = |name: &str| {
        json!({"name": name, "replicas": 1, "template": {"spec": {
        "containers": [{"name": "c", "command": ["run"]}]}}})
    };
    let volcano = |plugin: &str, tasks: [&str; 2]| json!({"spec": {"plugins": {plugin: []}, "tasks": tasks.map(task)}});
    let tf_config =
        r#"{"cluster":{"ps":["h:20000"],"worker":["h:20001"]},"task":{"type":"worker","index":0}}"#;
    for (document, slot, name, value, listeners) in [
        (torch, ("Worker", 1), "MASTER_PORT", "20000", [1, 0]),
        (elastic, ("Worker", 1), "PET_RDZV_ENDPOINT", "h:20000", [1, 0]),
        (xgboost, ("Master", 0), "MASTER_PORT", "20000", [1, 2]),
        (volcano("pytorch", ["master", "worker"]), ("worker", 0), "MASTER_PORT", "20000", [1, 0]),
        (volcano("tensorflow", ["ps", "worker"]), ("worker", 0), "TF_CONFIG", tf_config, [1, 1]),
    ] {
        let job = job(document);
        let slots: Vec<Slot> = job
            .tasks
            .iter()
            .flat_map(|task| (0..task.replicas).map(|index| Slot::new(&task.name, index)))
            .collect();
        let peer = |slot: &Slot| {
            let at = slots.iter().position(|other| other == slot).unwrap();
            let assigned = Some(20_000 + u16::try_from(at).unwrap());
            ClusterPeer { host: "h".to_owned(), offset: 7, assigned }
        };
        let cluster = Cluster { id: &id, job: &job, peer: &peer };
        let operator = of(job.framework);
        let env = operator.environment(&cluster, &Slot::new(slot.0, slot.1));
        let found = env.iter().find(|variable| variable.name == name).unwrap();
        assert_eq!(found.value, value);
        let found = job.tasks.iter().map(|task| operator.listeners(&job, task));
        assert!(found.eq(listeners.into_iter().take(job.tasks.len())), "{name}");
    }
}
