//! Example documents of Volcano and Kubeflow, and a violation of each rule.

mod budget;
mod cells;
mod labels;
mod listed;
mod plugins;
mod pod;
mod times;

use serde_json::{Value, json};

use super::*;
use rcfarm_api::FieldError;
use rcfarm_api::command::CommandAction;
use rcfarm_api::job::spec::{Plugin, PolicyEvent, Restart};

fn id() -> Namespaced {
    "default/j".parse().unwrap()
}

fn yaml(text: &str) -> Value {
    from_yaml(text).unwrap()
}

fn accepted(text: &str) -> Read {
    let document = yaml(text);
    let id = name(&document).unwrap();
    read(&id, &document).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn fields(issues: &[FieldError]) -> Vec<&str> {
    issues.iter().map(|issue| issue.path.as_str()).collect()
}

const VOLCANO: &str = r#"
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: tensorflow-benchmark
  labels: {"volcano.sh/job-type": Tensorflow}
spec:
  minAvailable: 3
  schedulerName: volcano
  plugins: {env: [], svc: []}
  policies: [{event: PodEvicted, action: RestartJob}]
  queue: research
  maxRetry: 5
  tasks:
    - replicas: 1
      name: ps
      template:
        spec:
          imagePullSecrets: [{name: default-secret}]
          containers:
            - command: [sh, -c, "echo $(VC_TASK_INDEX)"]
              image: volcanosh/example-tf:0.0.1
              name: tensorflow
              ports: [{containerPort: 2222, name: tfjob-port}]
              resources: {requests: {cpu: 1000m, memory: 2048Mi}, limits: {cpu: "2", memory: 4Gi, nvidia.com/gpu: 1}}
          restartPolicy: Never
    - replicas: 2
      name: worker
      dependsOn: {name: [ps], iteration: any}
      policies:
        - {event: TaskCompleted, action: CompleteJob}
        - {exitCode: 3, action: RestartTask, timeout: 1m30s}
      template:
        spec:
          nodeSelector: {pool: gpu}
          containers: [{name: tensorflow, image: x, command: [python3, t.py], args: ["--n", "2"]}]
          restartPolicy: OnFailure
"#;

#[test]
fn a_volcano_job_is_read_as_it_is() {
    let read = accepted(VOLCANO);
    let job = &read.spec;
    assert_eq!((job.framework, job.replicas(), job.min_available), (Framework::Volcano, 3, 3));
    assert_eq!((job.queue.as_str(), job.max_retry), ("research", 5));
    assert_eq!(job.plugins.keys().copied().collect::<Vec<_>>(), [Plugin::Env, Plugin::Svc]);
    assert_eq!(job.policies[0].action, CommandAction::RestartJob);
    let [ps, worker] = &job.tasks[..] else { panic!() };
    assert_eq!((ps.restart, worker.restart), (Restart::Never, Restart::OnFailure));
    let container = &ps.template.containers[0];
    assert_eq!(container.command, ["sh", "-c", "echo $(VC_TASK_INDEX)"]);
    assert_eq!(container.requests, "cpu=1,memory=2Gi,gpu=1".parse().unwrap());
    assert_eq!(container.limits, "cpu=2,memory=4Gi,gpu=1".parse().unwrap());
    assert_eq!(ps.template.port("tensorflow", "tfjob-port"), Some(2222));
    assert_eq!(
        (worker.depends_on.as_slice(), worker.any_dependency),
        (&["ps".to_owned()][..], true)
    );
    assert_eq!(worker.template.node_selector.to_string(), "pool=gpu");
    assert_eq!(worker.template.containers[0].command, ["python3", "t.py", "--n", "2"]);
    assert_eq!(worker.policies[0].events, [PolicyEvent::TaskCompleted].into());
    assert_eq!(worker.policies[1].exit_code, Some(3));
    assert_eq!(worker.policies[1].timeout, Some(Duration::from_secs(90)));
    assert_eq!(job.clean_pods, CleanPods::Running);
    assert_eq!(read.labels["volcano.sh/job-type"], "Tensorflow");
    assert_eq!(
        fields(&read.warnings),
        [
            "spec.tasks[0].template.spec.containers[0].image",
            "spec.tasks[0].template.spec.imagePullSecrets",
            "spec.tasks[1].template.spec.containers[0].image",
            "spec.schedulerName",
        ],
        "each field that is not honoured is named"
    );
}

fn kubeflow(kind: &str, members: &str) -> String {
    format!(
        "apiVersion: kubeflow.org/v1\nkind: {kind}\nmetadata: {{name: mnist, namespace: team-a}}\nspec:\n{members}"
    )
}

fn member(replicas: u32, container: &str) -> String {
    format!(
        "{{replicas: {replicas}, template: {{spec: {{containers: [{{name: {container}, command: [python, m.py]}}]}}}}}}"
    )
}

#[test]
fn kubeflows_jobs_are_read_as_they_are() {
    let tf = kubeflow(
        "TFJob",
        &format!(
            "  successPolicy: AllWorkers\n  runPolicy: {{cleanPodPolicy: Running, backoffLimit: 4, \
             activeDeadlineSeconds: 3600, ttlSecondsAfterFinished: 60, suspend: true, \
             schedulingPolicy: {{minAvailable: 2, queue: gpu, priorityClass: high, minResources: {{cpu: 4}}}}}}\n  \
             tfReplicaSpecs:\n    worker: {}\n    PS: {}\n",
            member(2, "tensorflow"),
            member(1, "tensorflow")
        ),
    );
    let job = accepted(&tf).spec;
    let names: Vec<&str> = job.tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["PS", "Worker"], "in the operator's order, and in its spelling");
    assert_eq!((job.min_available, job.queue.as_str(), job.suspend), (2, "gpu", true));
    assert_eq!((job.backoff_limit, job.clean_pods), (Some(4), CleanPods::Running));
    assert_eq!(job.active_deadline, Some(Duration::from_secs(3600)));
    assert_eq!(job.ttl, Some(Duration::from_secs(60)));
    assert!(job.all_workers_must_succeed);
    assert_eq!(job.tasks[0].restart, Restart::Never);
    assert_eq!(job.min_resources, Some("cpu=4".parse().unwrap()));

    let pytorch = kubeflow(
        "PyTorchJob",
        &format!(
            "  nprocPerNode: \"2\"\n  elasticPolicy: {{minReplicas: 1, maxReplicas: 3, rdzvBackend: c10d, maxRestarts: 3}}\n  \
             pytorchReplicaSpecs:\n    Worker: {}\n",
            member(3, "pytorch")
        ),
    );
    let job = accepted(&pytorch).spec;
    assert_eq!((job.tasks[0].restart, job.clean_pods), (Restart::OnFailure, CleanPods::None));
    assert_eq!(job.processes_per_node.as_deref(), Some("2"));
    assert_eq!(job.elastic.unwrap().max, Some(3));

    let mpi = kubeflow(
        "MPIJob",
        &format!(
            "  slotsPerWorker: 2\n  mpiReplicaSpecs:\n    Launcher: {}\n    Worker: {}\n",
            member(1, "mpi"),
            member(2, "mpi")
        ),
    );
    assert_eq!(accepted(&mpi).spec.slots_per_worker, 2);
    let xgboost = kubeflow(
        "XGBoostJob",
        &format!(
            "  xgbReplicaSpecs:\n    Master: {}\n    Worker: {}\n",
            member(1, "xgboost"),
            member(2, "xgboost")
        ),
    );
    assert_eq!(accepted(&xgboost).spec.replicas(), 3);
}

/// Decodes a valid job after one change.
fn bent(change: impl FnOnce(&mut Value)) -> Result<Read, Vec<FieldError>> {
    let task = |name: &str| {
        json!({"name": name, "replicas": 2, "template": {"spec": {"containers": [
            {"name": "c", "command": ["true"]},
        ]}}})
    };
    let mut document = json!({"spec": {"minAvailable": 3, "tasks": [task("a"), task("b")]}});
    change(&mut document);
    read(&id(), &document)
}

#[test]
fn each_rule_of_admission_names_the_field_and_what_is_wrong() {
    assert!(bent(|_| {}).is_ok());
    let cases: Vec<(&str, Value, &str, &str)> = vec![
        ("/spec/tasks", json!([]), "spec.tasks", "No task specified"),
        ("/spec/tasks/1/name", json!("a"), "spec.tasks[1].name", "duplicated task name"),
        ("/spec/tasks/0/name", json!("A_b"), "spec.tasks[0].name", "no name of a host"),
        ("/spec/tasks/0/name", json!("b-1"), "spec.tasks[1].name", "could have one name"),
        ("/spec/tasks/0/name", json!("x".repeat(63)), "spec.tasks[0]", "longer than 63"),
        ("/spec/tasks/0/replicas", json!(-1), "spec.tasks[0].replicas", "whole number"),
        (
            "/spec/tasks/0/replicas",
            json!(2_000_000_000),
            "spec.tasks[0].replicas",
            "at most 100000",
        ),
        ("/spec/tasks/1/replicas", json!(99_999), "spec.tasks[1].replicas", "these make 100001"),
        ("/spec/tasks/0/replicas", json!("2"), "spec.tasks[0].replicas", "whole number"),
        (
            "/spec/tasks/0/minAvailable",
            json!(3),
            "spec.tasks[0].minAvailable",
            "'replicas' in task",
        ),
        ("/spec/minAvailable", json!(5), "spec.minAvailable", "greater than the 4 replicas"),
        ("/spec/minAvailable", json!(-1), "spec.minAvailable", "whole number"),
        ("/spec/minSuccess", json!(0), "spec.minSuccess", "whole number from 1"),
        ("/spec/minSuccess", json!(9), "spec.minSuccess", "never be reached"),
        ("/spec/maxRetry", json!(-1), "spec.maxRetry", "whole number"),
        ("/spec/ttlSecondsAfterFinished", json!(-5), "spec.ttlSecondsAfterFinished", "whole"),
        ("/spec/policies", json!([{"action": "AbortJob"}]), "spec.policies[0]", "either event"),
        (
            "/spec/policies",
            json!([{"action": "AbortJob", "event": "PodFailed", "exitCode": 1}]),
            "spec.policies[0]",
            "simultaneously",
        ),
        (
            "/spec/policies",
            json!([{"action": "AbortJob", "exitCode": 0}]),
            "spec.policies[0].exitCode",
            "0 is not a valid",
        ),
        (
            "/spec/policies",
            json!([{"action": "AbortJob", "exitCode": 1}, {"action": "RestartJob", "exitCode": 1}]),
            "spec.policies[1].exitCode",
            "duplicate",
        ),
        (
            "/spec/policies",
            json!([{"action": "AbortJob", "event": "PodFailed"},
                {"action": "RestartJob", "events": ["PodEvicted", "PodFailed"]}]),
            "spec.policies[1]",
            "duplicate event PodFailed",
        ),
        (
            "/spec/policies",
            json!([{"action": "AbortJob", "event": "*"}, {"action": "RestartJob", "exitCode": 1}]),
            "spec.policies",
            "if there is *",
        ),
        (
            "/spec/policies",
            json!([{"action": "Dance", "event": "PodFailed"}]),
            "spec.policies[0].action",
            "AbortJob, RestartJob",
        ),
        (
            "/spec/policies",
            json!([{"action": "AbortJob", "events": ["PodFell"]}]),
            "spec.policies[0].events[0]",
            "PodEvicted",
        ),
        (
            "/spec/policies",
            json!([{"action": "AbortJob", "event": "PodFailed", "timeout": "soon"}]),
            "spec.policies[0].timeout",
            "90s, 5m",
        ),
        ("/spec/plugins", json!({"dgl": []}), "spec.plugins.dgl", "unable to find job plugin"),
        (
            "/spec/plugins",
            json!({"mpi": []}),
            "spec.plugins.mpi",
            "master task \"master\" was not found",
        ),
        ("/spec/volumes", json!([{"mountPath": "/data"}]), "spec.volumes", "put the data"),
        ("/spec/queue", json!("a/b"), "spec.queue", "allowed"),
        (
            "/spec/tasks/0/dependsOn",
            json!({"name": ["a"]}),
            "spec.tasks[0].dependsOn.name",
            "itself",
        ),
        (
            "/spec/tasks/0/dependsOn",
            json!({"name": ["x"]}),
            "spec.tasks[0].dependsOn.name",
            "not defined: x",
        ),
        (
            "/spec/tasks/0/dependsOn",
            json!({"name": ["b", "b"]}),
            "spec.tasks[0].dependsOn.name",
            "named twice",
        ),
        (
            "/spec/tasks/0/topologyPolicy",
            json!("restricted"),
            "spec.tasks[0].topologyPolicy",
            "NUMA",
        ),
        (
            "/spec/tasks/0/partitionPolicy",
            json!({}),
            "spec.tasks[0].partitionPolicy",
            "not divided",
        ),
        ("/spec/networkTopology", json!({"mode": "hard"}), "spec.networkTopology", "nodeSelector"),
        ("/spec/minAvailabel", json!(1), "spec.minAvailabel", "no such field"),
        ("/kind", json!("Deployment"), "kind", "no kind of job"),
        ("/kind", json!("Pod"), "spec.tasks", "no such field"),
        ("/spec/tasks/0/replicas", json!(100_001), "spec.tasks[0].replicas", "at most 100000"),
        ("/spec/plugins", json!({"svc": "x"}), "spec.plugins.svc", "list of arguments"),
        ("/spec/plugins", json!({"svc": [1]}), "spec.plugins.svc[0]", "must be a text"),
        ("/spec/plugins", json!({"env": ["--x=1"]}), "spec.plugins.env[0]", "no argument \"x\""),
        (
            "/spec/plugins",
            json!({"pytorch": ["--master=a", "--worker"]}),
            "spec.plugins.pytorch[1]",
            "--worker=VALUE",
        ),
        (
            "/spec/plugins",
            json!({"tensorflow": ["--port=http"]}),
            "spec.plugins.tensorflow[0]",
            "no port",
        ),
        ("/apiVersion", json!("v1"), "apiVersion", "batch.volcano.sh/v1alpha1"),
        ("/metadata", json!({"name": "other"}), "metadata.name", "must be \"j\""),
        (
            "/spec/runPolicy",
            json!({"managedBy": "x.io/y"}),
            "spec.runPolicy.managedBy",
            "another program",
        ),
    ];
    for (at, value, field, words) in cases {
        let problems = bent(|document| set(document, at, value.clone())).unwrap_err();
        let found = problems.iter().any(|p| p.path == field && p.problem.contains(words));
        assert!(found, "{at} = {value}: wanted {field} ... {words}, found {problems:?}");
    }
    let circle = bent(|document| {
        set(document, "/spec/tasks/0/dependsOn", json!({"name": ["b"]}));
        set(document, "/spec/tasks/1/dependsOn", json!({"name": ["a"]}));
    });
    assert!(circle.unwrap_err()[0].problem.contains("a -> b -> a"));
}

fn set(document: &mut Value, at: &str, value: Value) {
    let (parent, name) = at.rsplit_once('/').unwrap();
    let parent = if parent.is_empty() { document } else { document.pointer_mut(parent).unwrap() };
    parent.as_object_mut().unwrap().insert(name.to_owned(), value);
}

#[test]
fn unsupported_pod_template_fields_are_refused_by_name() {
    let spec = "/spec/tasks/0/template/spec";
    let at = "spec.tasks[0].template.spec";
    for (field, value) in [
        ("initContainers", json!([{"name": "i"}])),
        ("affinity", json!({"nodeAffinity": {}})),
        ("nodeName", json!("n1")),
    ] {
        let problems =
            bent(|document| set(document, &format!("{spec}/{field}"), value.clone())).unwrap_err();
        assert_eq!(fields(&problems), [format!("{at}.{field}")]);
    }
    let container = format!("{spec}/containers/0");
    for (field, value, path) in [
        ("command", json!([]), "command"),
        ("envFrom", json!([{"configMapRef": {}}]), "envFrom"),
        (
            "env",
            json!([{"name": "A", "valueFrom": {"secretKeyRef": {}}}]),
            "env[0].valueFrom.secretKeyRef",
        ),
        ("env", json!([{"name": "A", "value": 1}]), "env[0].value"),
        ("resources", json!({"requests": {"cpu": "lots"}}), "resources.requests.cpu"),
        ("ports", json!([{"containerPort": 70_000}]), "ports[0].containerPort"),
        ("comand", json!(["a"]), "comand"),
        ("readinessProbe", json!({"tcpSocket": {"port": "web"}}), "readinessProbe.tcpSocket.port"),
        ("readinessProbe", json!({"httpGet": {"port": 0}}), "readinessProbe.httpGet.port"),
        ("readinessProbe", json!({"periodSeconds": 5}), "readinessProbe"),
        (
            "readinessProbe",
            json!({"tcpSocket": {"port": 80}, "exec": {"command": ["true"]}}),
            "readinessProbe",
        ),
    ] {
        let problems =
            bent(|document| set(document, &format!("{container}/{field}"), value.clone()))
                .unwrap_err();
        assert_eq!(fields(&problems), [format!("{at}.containers[0].{path}")]);
    }
    let volume =
        |volume: Value| bent(|document| set(document, &format!("{spec}/volumes"), json!([volume])));
    assert!(
        volume(json!({"name": "d", "hostPath": {"path": "/data"}})).unwrap().warnings.is_empty()
    );
    let empty = volume(json!({"name": "d", "emptyDir": {}})).unwrap();
    assert_eq!(fields(&empty.warnings), [format!("{at}.volumes[0].emptyDir")]);
    let claim = volume(json!({"name": "d", "persistentVolumeClaim": {"claimName": "x"}})).unwrap();
    assert_eq!(fields(&claim.warnings), [format!("{at}.volumes[0].persistentVolumeClaim")]);
    let map = volume(json!({"name": "d", "configMap": {"name": "x"}}));
    assert_eq!(fields(&map.unwrap_err()), [format!("{at}.volumes[0].configMap")]);
}

#[test]
fn a_probe_may_name_a_port_of_its_container() {
    let container = "/spec/tasks/0/template/spec/containers/0";
    let named = bent(|document| {
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        set(document, &format!("{container}/ports"), ports);
        let probe = json!({"httpGet": {"port": "web", "path": "healthz"}});
        set(document, &format!("{container}/readinessProbe"), probe);
    });
    let health = named.unwrap().spec.tasks[0].template.containers[0].health.clone().unwrap();
    assert_eq!(health.http.as_deref(), Some("http://127.0.0.1:8080/healthz"));
}

#[test]
fn min_resources_are_read_and_refused_where_they_are_no_amounts() {
    let bent = |amounts: Value| {
        let policy = json!({"schedulingPolicy": {"minResources": amounts}});
        bent(|document| set(document, "/spec/runPolicy", policy))
    };
    let read = bent(json!({"cpu": "1500m", "nvidia.com/gpu": 2})).unwrap();
    assert_eq!(fields(&read.warnings), [""; 0]);
    assert_eq!(read.spec.min_resources, Some("cpu=1500m,gpu=2".parse().unwrap()));
    let refused = bent(json!({"cpu": "many"})).unwrap_err();
    assert_eq!(fields(&refused), ["spec.runPolicy.schedulingPolicy.minResources.cpu"]);
}

#[test]
fn frameworks_have_rules_of_their_own() {
    let problem = |text: &str| {
        let document = yaml(text);
        read(&name(&document).unwrap(), &document).unwrap_err()
    };
    let two_masters = kubeflow(
        "PyTorchJob",
        &format!("  pytorchReplicaSpecs: {{Master: {}}}\n", member(2, "pytorch")),
    );
    assert_eq!(fields(&problem(&two_masters)), ["spec.pytorchReplicaSpecs.Master.replicas"]);
    let no_workers = kubeflow(
        "PyTorchJob",
        &format!("  pytorchReplicaSpecs: {{Worker: {}}}\n", member(0, "pytorch")),
    );
    assert_eq!(fields(&problem(&no_workers)), ["spec.pytorchReplicaSpecs.Worker.replicas"]);
    let other_container =
        kubeflow("TFJob", &format!("  tfReplicaSpecs: {{Worker: {}}}\n", member(1, "main")));
    assert_eq!(
        fields(&problem(&other_container)),
        ["spec.tfReplicaSpecs.Worker.template.spec.containers"]
    );
    let unknown_type =
        kubeflow("TFJob", &format!("  tfReplicaSpecs: {{Boss: {}}}\n", member(1, "tensorflow")));
    assert_eq!(fields(&problem(&unknown_type)), ["spec.tfReplicaSpecs.Boss"]);
    let no_launcher =
        kubeflow("MPIJob", &format!("  mpiReplicaSpecs: {{Worker: {}}}\n", member(1, "mpi")));
    assert_eq!(fields(&problem(&no_launcher)), ["spec.mpiReplicaSpecs.Launcher"]);
    let elastic = kubeflow(
        "PyTorchJob",
        &format!(
            "  elasticPolicy: {{minReplicas: 3, maxReplicas: 2}}\n  pytorchReplicaSpecs: {{Worker: {}}}\n",
            member(2, "pytorch")
        ),
    );
    assert_eq!(fields(&problem(&elastic)), ["spec.elasticPolicy.minReplicas"]);
    let absurd = format!(
        "  pytorchReplicaSpecs: {{Master: {}, Worker: {}}}\n",
        member(2_000_000_000, "pytorch"),
        member(2_147_483_647, "pytorch")
    );
    let absurd = kubeflow("PyTorchJob", &absurd);
    assert!(fields(&problem(&absurd)).contains(&"spec.pytorchReplicaSpecs.Master.replicas"));
    let many = format!(
        "  nprocPerNode: \"4000000000\"\n  pytorchReplicaSpecs: {{Master: {}, Worker: {}}}\n",
        member(1, "pytorch"),
        member(2, "pytorch")
    );
    let many = accepted(&kubeflow("PyTorchJob", &many)).spec;
    let peer = |_: &rcfarm_api::job::spec::Slot| crate::job::frameworks::ClusterPeer {
        host: "h".into(),
        offset: 0,
        assigned: None,
    };
    let cluster = crate::job::frameworks::Cluster { id: &id(), job: &many, peer: &peer };
    let slot = rcfarm_api::job::spec::Slot::new("Worker", 0);
    let env = crate::job::frameworks::of(many.framework).environment(&cluster, &slot);
    let size = env.iter().find(|variable| variable.name == "WORLD_SIZE").unwrap();
    assert_eq!(size.value, u32::MAX.to_string(), "it is absurd, and nothing breaks");
    let queue = "  runPolicy: {schedulingPolicy: {queue: a/b}}\n";
    let queue = format!("{queue}  tfReplicaSpecs: {{Worker: {}}}\n", member(1, "tensorflow"));
    let queue = kubeflow("TFJob", &queue);
    assert_eq!(fields(&problem(&queue)), ["spec.runPolicy.schedulingPolicy.queue"]);
    let nothing = kubeflow("XGBoostJob", "  runPolicy: {}\n");
    assert_eq!(fields(&problem(&nothing)), ["spec.xgbReplicaSpecs"]);
}

#[test]
fn only_counts_and_times_may_change_once_a_job_runs() {
    let document = yaml(VOLCANO);
    let with = |at: &str, value: Value| {
        let mut other = document.clone();
        set(&mut other, at, value);
        immutable_hash(&other) == immutable_hash(&document)
    };
    assert!(with("/spec/minAvailable", json!(1)));
    assert!(with("/spec/tasks/1/replicas", json!(7)));
    assert!(with("/spec/tasks/1/minAvailable", json!(1)));
    assert!(with("/spec/priorityClassName", json!("high")));
    assert!(with("/spec/suspend", json!(true)));
    assert!(with("/spec/runPolicy", json!({"suspend": true})));
    assert!(with("/metadata/labels", json!({})));
    let policy = |policy: Value| with("/spec/runPolicy", json!({"schedulingPolicy": policy}));
    assert!(policy(json!({"minAvailable": 2, "priorityClass": "5"})), "as Kubeflow has it");
    assert!(!policy(json!({"queue": "other"})));
    assert!(!with("/spec/queue", json!("other")));
    assert!(!with("/spec/tasks/1/name", json!("w")));
    assert!(!with("/spec/tasks/1/policies", json!([])));
    assert!(!with("/spec/tasks/0/template/spec/restartPolicy", json!("Always")));
}

#[test]
fn ignored_volcano_annotations_and_arguments_are_named() {
    let read = bent(|document| {
        set(
            document,
            "/metadata",
            json!({"annotations": {
            "volcano.sh/preemptable": "true", "team": "a"}, "ownerReferences": []}),
        );
        let template = json!({"annotations": {"volcano.sh/preemptable": "true"}});
        set(document, "/spec/tasks/0/template/metadata", template);
        set(document, "/spec/plugins", json!({"svc": ["--disable-network-policy=true"]}));
    });
    assert_eq!(
        fields(&read.unwrap().warnings),
        [
            "metadata.annotations.volcano.sh/preemptable",
            "metadata.ownerReferences",
            "spec.tasks[0].template.metadata.annotations.volcano.sh/preemptable",
            "spec.plugins.svc[0]",
        ]
    );
}

/// The fuzzer's seeds cover each kind and decode to the same job after a round trip.
#[test]
fn each_seed_of_the_fuzzer_is_accepted_and_read_back_as_it_was() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/fuzz/job_document");
    let mut kinds = std::collections::BTreeSet::new();
    for seed in std::fs::read_dir(seeds).unwrap() {
        let document = yaml(&std::fs::read_to_string(seed.unwrap().path()).unwrap());
        let id = name(&document).unwrap();
        let read = read(&id, &document).unwrap_or_else(|problems| panic!("{id}: {problems:?}"));
        let (again, same) = decode(&id, document.to_string().as_bytes()).unwrap();
        assert_eq!((&same, immutable_hash(&again)), (&read, immutable_hash(&document)));
        kinds.insert(read.spec.framework);
    }
    assert_eq!(kinds.len(), 6, "{kinds:?}");
}

#[test]
fn durations_and_environment_of_a_template_have_limits() {
    let template = "/spec/tasks/0/template/spec";
    let refused = |at: &str, value: Value| {
        let read = bent(|document| set(document, &format!("{template}{at}"), value));
        read.unwrap_err().into_iter().map(|error| error.path).collect::<Vec<_>>()
    };
    let path = |field: &str| [format!("spec.tasks[0].template.spec.{field}")];
    let week = 7 * 86_400;
    let found = refused("/terminationGracePeriodSeconds", json!(week + 1));
    assert_eq!(found, path("terminationGracePeriodSeconds"));
    let probe = json!({"tcpSocket": {"port": 80}, "periodSeconds": i32::MAX});
    let found = refused("/containers/0/readinessProbe", probe);
    assert_eq!(found, path("containers[0].readinessProbe.periodSeconds"));
    let variable = |n: usize| {
        let value = format!("$(A{0:02})$(A{0:02})", n.wrapping_sub(1));
        json!({"name": format!("A{n:02}"), "value": if n == 0 { "0123456789abcdef" } else { &value }})
    };
    let bomb = Value::Array((0..34).map(variable).collect());
    let found = refused("/containers/0/env", bomb);
    assert_eq!(found, path("containers[0].env.A13"));
    let read = bent(|document| {
        set(document, &format!("{template}/terminationGracePeriodSeconds"), json!(week));
    });
    read.unwrap();
}

#[test]
fn no_text_makes_the_reader_panic() {
    for text in [
        "",
        "null",
        "[]",
        "1",
        "{}",
        "spec: 1",
        "spec: {tasks: 1}",
        "spec: {tasks: [1]}",
        "metadata: []",
    ] {
        let document = yaml(text);
        assert!(read(&id(), &document).is_err(), "{text}");
    }
    assert!(from_yaml("a: [").is_err());
    let nodes = |depth: usize| format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
    for (text, why) in [
        ("a: 1\na: 2".to_owned(), "duplicate mapping key: a at line 2"),
        ("a: 1\n---\na: 2".to_owned(), "there are several documents, and one is expected"),
        (nodes(20_000), "it is too large, too deep, or its aliases expand to too much"),
    ] {
        let said = from_yaml(&text).unwrap_err();
        assert!(said.starts_with(why), "{said}");
        for word in ["Options", "from_str", "budget", "Policy"] {
            assert!(!said.contains(word), "{said}");
        }
    }
    assert!(decode(&id(), b"{").unwrap_err()[0].problem.contains("no JSON"));
}

#[test]
fn documents_of_a_stream_may_begin_on_the_line_of_their_marker() {
    let text = "# a\n---\na: 1\n---\n\n# nothing\n--- # b\nb: |\n  ---x\n--- {c: 3}\n---\t\nd: 4\n...\n%YAML 1.2\n---\ne: 5\n";
    let expected = json!([{"a": 1}, {"b": "---x\n"}, {"c": 3}, {"d": 4}, {"e": 5}]);
    assert_eq!(json!(all_from_yaml(text).unwrap()), expected);
    let error = all_from_yaml("a: 1\n---\nb: [\n").unwrap_err();
    assert!(error.contains("line"), "{error}");
}

/// The parser's limits are those of one document.
#[test]
fn stream_may_have_more_documents_and_values_than_one_document_may() {
    let document = format!("a: [{}]\n---\n", "1, ".repeat(200));
    let all = all_from_yaml(&document.repeat(2_000)).unwrap();
    assert_eq!(all.len(), 2_000);
    let large = format!("a: [{}]\n", "1, ".repeat(400_000));
    assert!(all_from_yaml(&large).unwrap_err().starts_with("it is too large"));
}
