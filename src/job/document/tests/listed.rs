//! `docs/reference/fields.md`: every field of each kind of document, and what becomes of it.

use serde_json::{Value, json};

use super::super::fields::asked::{self, Asked, Handled, without_indexes};
use super::*;
use crate::batch::queue_machine::golden;
use rcfarm_api::Stored;
use rcfarm_api::queue::spec::{QueueRecord, QueueSpec};

/// A pod template with each object that has fields of its own.
fn template(container: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "a"}, "annotations": {"note": "a"}},
        "spec": {
            "restartPolicy": "Never", "nodeSelector": {"pool": "gpu"},
            "securityContext": {"runAsUser": 1000}, "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{
                "name": container, "command": ["a"], "args": ["a"], "image": "i",
                "workingDir": "/", "securityContext": {},
                "env": [{"name": "A", "value": "a"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "ports": [{"name": "p", "containerPort": 80}],
                "resources": {"requests": {"cpu": 1}, "limits": {"cpu": 1}},
                "readinessProbe": {"httpGet": {"port": 80}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }, {
                "name": "exec", "command": ["a"], "readinessProbe": {"exec": {"command": ["a"]}},
            }, {
                "name": "tcp", "command": ["a"], "readinessProbe": {"tcpSocket": {"port": 80}},
            }],
        },
    })
}

fn metadata() -> Value {
    json!({"name": "j", "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "q",
        "volcano.sh/preemptable": "true"}, "annotations": {"volcano.sh/preemptable": "true"}})
}

fn run_policy() -> Value {
    json!({"schedulingPolicy": {"minAvailable": 1, "minResources": {"cpu": 1}, "priorityClass": "high"},
        "restartDelay": {"first": "1s"}})
}

/// A document of each kind, with each object that has fields of its own.
fn documents() -> Vec<Value> {
    let volcano = json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata(),
        "spec": {"priorityClassName": "high", "policies": [{"event": "PodFailed", "action": "RestartJob"}],
            "plugins": {"env": [], "ssh": ["--ssh-key-file-path=/root/.ssh"], "svc": ["--disable-network-policy=true"],
                "pytorch": ["--wait-master-enabled=true"], "tensorflow": [], "mpi": ["--port=22"]},
            "runPolicy": run_policy(), "restartDelay": {"first": "1s"},
            "tasks": [{"name": "master", "replicas": 1, "dependsOn": {"name": []}, "template": template("c"),
                "policies": [{"event": "PodFailed", "action": "RestartJob"}]}]}});
    let kubeflow = |kind: &str, field: &str, member: &str, container: &str, more: Value| {
        let mut spec = json!({field: {member: {"replicas": 1, "template": template(container)}},
            "runPolicy": run_policy(), "restartDelay": {"first": "1s"}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata(), "spec": spec})
    };
    let elastic = json!({"elasticPolicy": {"minReplicas": 1, "metrics": []}});
    let mut pod = template("c");
    pod["metadata"] = metadata();
    pod["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] = json!("q");
    pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] = json!("g");
    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    pod["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    pod["spec"]["priorityClassName"] = json!("high");
    vec![
        volcano,
        kubeflow("TFJob", "tfReplicaSpecs", "Worker", "tensorflow", json!({})),
        kubeflow("PyTorchJob", "pytorchReplicaSpecs", "Worker", "pytorch", elastic),
        kubeflow("MPIJob", "mpiReplicaSpecs", "Launcher", "mpi", json!({"mainContainer": "mpi"})),
        kubeflow("XGBoostJob", "xgbReplicaSpecs", "Master", "xgboost", json!({})),
        pod,
    ]
}

/// The fields of a document, and those of its pod template apart.
fn listed(document: &Value) -> (Asked, Asked) {
    asked::take();
    let (_, _, issues) = read_as(framework(document).unwrap(), &id(), document);
    let mut all = asked::take();
    let warnings = issues.warnings.into_iter().map(|issue| (Handled::Warned, issue));
    let problems = issues.problems.into_iter().map(|issue| (Handled::Refused, issue));
    for (handled, issue) in warnings.chain(problems) {
        all.insert(without_indexes(&issue.path), (handled, issue.problem));
    }
    let mut own = Asked::new();
    let mut template = Asked::new();
    for (path, handled) in all {
        let path = path.replace(".Worker", ".<type>").replace(".Launcher", ".<type>");
        let path = path.replace(".Master", ".<type>");
        match path.split_once(".template.") {
            Some((_, below)) => drop(template.insert(below.to_owned(), handled)),
            None => drop(own.insert(path, handled)),
        }
    }
    (own, template)
}

fn table(fields: &Asked) -> String {
    let mut text = "| field | | |\n|---|---|---|\n".to_owned();
    for (path, (handled, why)) in fields {
        let word = match handled {
            Handled::Honoured => "honoured",
            Handled::Warned => "warned",
            Handled::Refused => "refused",
        };
        let why = why.replace('|', "\\|").replace('<', "\\<");
        text.push_str(&format!("| `{path}` | {word} | {} |\n", why.trim()));
    }
    text + "\n"
}

/// Fields of a queue: of the spec, and what `queue create` says of them.
fn queue() -> Asked {
    let limits = json!({"cpu": 1});
    let spec = json!({"weight": 2, "priority": 1, "capability": limits, "guarantee": {"resource": limits},
        "reclaimable": false, "parent": "p", "state": "Closed", "dequeueStrategy": "fifo", "maxPasses": 1,
        "scheduler": "s", "deserved": limits, "extendClusters": [], "affinity": {}, "type": ""});
    let metadata = json!({"annotations": {"volcano.sh/hierarchy": "root"}});
    let record = json!({"spec": spec, "metadata": metadata}).to_string();
    let record = QueueRecord::decode(record.as_bytes()).unwrap();
    let written = serde_json::to_value(&record.spec).unwrap();
    let known = serde_json::to_value(QueueSpec::default()).unwrap();
    assert!(known.as_object().unwrap().keys().all(|field| spec.get(field).is_some()));
    let mut fields: Asked = written
        .as_object()
        .unwrap()
        .keys()
        .map(|field| (format!("spec.{field}"), (Handled::Honoured, String::new())))
        .collect();
    for path in record.ignored() {
        let why = match path.as_str() {
            "spec.weight" | "spec.reclaimable" => {
                "there are no fair shares and no borrowing; it is kept"
            }
            _ => "it is kept, and nothing acts upon it",
        };
        fields.insert(path, (Handled::Warned, why.to_owned()));
    }
    fields
}

/// As `tests/it/cli/priority_class.rs` finds them.
const PRIORITY_CLASS: &str = "\
## PriorityClass

| field | | |
|---|---|---|
| `apiVersion`, `kind`, `metadata` | honoured |  |
| `description` | honoured |  |
| `globalDefault` | honoured | one class at most |
| `preemptionPolicy` | honoured | `Never`; `PreemptLowerPriority` is warned about: nothing is preempted |
| `value` | honoured | it and `preemptionPolicy` may not change |

";

/// As `crates/api/src/job/job_type.rs` reads them. Its jobs have the fields of Kubeflow's.
const JOB_TYPE: &str = "\
## JobType

| field | | |
|---|---|---|
| `apiVersion`, `kind`, `metadata` | honoured |  |
| `spec.apiVersion` | honoured |  |
| `spec.container` | honoured |  |
| `spec.environment[].name`, `.value`, `.onlyWith` | honoured | values are a closed list |
| `spec.hook.url`, `.timeoutSeconds` | honoured | of a record; a job's copy has `Pending` or `Answered` |
| `spec.port.name`, `.number` | honoured |  |
| `spec.replicaSpecs` | honoured |  |
| `spec.replicaTypes[].name`, `.replicas`, `.min`, `.max`, `.required`, `.master`, `.mayFail` | honoured |  |
| `spec.replicaTypes[].environment` | honoured | as `spec.environment` |
| `spec.restartPolicy` | honoured |  |
| `spec.success.types`, `.when` | honoured | `All`, `First`, `Any` |

";

#[test]
fn the_page_lists_every_field_of_each_kind() {
    let mut text = "# Fields\n\nEvery field of each kind of document that `apply` and `plan` take, from the code that \
        reads it.\n\n- *Honoured*: it takes effect, or it describes the document (times, labels, annotations) and is \
        kept.\n- *Warned*: the document is taken without it, and a warning names its path. Of some fields only certain \
        values\n  are; the reason says which.\n- *Refused*: the document is not taken, and path and remedy are named. \
        So is every field that is not listed.\n\n`[]` stands for each element of a list, `<type>` for Master, Worker \
        and so on.\n\n"
        .to_owned();
    let mut template = Asked::new();
    for document in documents() {
        let kind = document["kind"].as_str().unwrap().to_owned();
        let (mut own, below) = listed(&document);
        if kind == "Pod" {
            // Its spec is a template's.
            own.retain(|path, _| !path.starts_with("spec") || !template.contains_key(path));
        }
        assert!(own.contains_key("metadata.name"), "{kind}");
        text.push_str(&format!("## {kind}\n\n{}", table(&own)));
        template.extend(below);
    }
    text.push_str(&format!(
        "## Pod template\n\nOf each kind above, and of a Pod.\n\n{}",
        table(&template)
    ));
    text.push_str(
        "## Queue\n\nAs `rcfarm queue create -f` takes it. Unknown fields are kept and named.\n\n",
    );
    text.push_str(&table(&queue()));
    text.push_str(PRIORITY_CLASS);
    text.push_str(JOB_TYPE);
    golden("docs/reference/fields.md", &text);
}

/// Each that was passed over in silence before.
#[test]
fn what_asks_a_scheduler_for_something_is_named_by_its_path() {
    let label = |name: &str| {
        let metadata = json!({"name": "j", "labels": {name: "q"}});
        let task = json!({"name": "a", "replicas": 1, "template": {"metadata": {"annotations": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "command": ["cat", "/etc/volcano/a.host"]}]}}});
        json!({"metadata": metadata, "spec": {"tasks": [task]}})
    };
    let read = |document: &Value| super::read(&id(), document);
    let preemptable = read(&label("volcano.sh/preemptable")).unwrap();
    let template = "spec.tasks[0].template";
    assert_eq!(
        fields(&preemptable.warnings),
        [
            "metadata.labels.volcano.sh/preemptable",
            &format!("{template}.metadata.annotations.a"),
            &format!("{template}.spec.containers[0].command"),
        ]
    );
    // Kueue's label names the queue, unless the spec does.
    let mut kueue = label("kueue.x-k8s.io/queue-name");
    assert_eq!(read(&kueue).unwrap().spec.queue, "q");
    kueue["spec"]["runPolicy"]["suspend"] = json!(true);
    assert!(fields(&read(&kueue).unwrap().warnings).contains(&"spec.runPolicy.suspend"));
    kueue["spec"]["queue"] = json!("other");
    let both = read(&kueue).unwrap();
    assert_eq!(both.spec.queue, "other", "the label had no effect in earlier versions");
    assert!(fields(&both.warnings).contains(&"metadata.labels.kueue.x-k8s.io/queue-name"));
}
