//! Volcano's admission rules that apply here (`volcano.md` §6), by number. Each violation is given to the command line,
//! and written directly to the store of a farm. Both must name the field; the farm must go on with other records.
//!
//! J: creating a job. C: its schema. U: updating it. Q: queues. G: PodGroups, written directly only.

use rcfarm_api::key;
use serde_json::{Value, json};

use crate::harness::{Cluster, HttpCluster, SECOND};
use rcfarm_testing::wait::within;

/// A record that violates a rule.
struct Rule {
    number: &'static str,
    /// Name of the record.
    name: String,
    document: Value,
    /// Expected message: path of the field, and a part of the text.
    field: &'static str,
    words: &'static str,
}

fn task(name: &str) -> Value {
    json!({"name": name, "replicas": 2, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}]}}})
}

/// A valid job.
fn job(name: &str) -> Value {
    json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name, "namespace": "default"},
        "spec": {"minAvailable": 3, "tasks": [task("a"), task("b")]}})
}

fn bend(document: &mut Value, at: &str, value: Value) {
    let (parent, name) = at.rsplit_once('/').unwrap();
    let parent = document.pointer_mut(parent).unwrap();
    match name.parse::<usize>() {
        Ok(n) => parent[n] = value,
        Err(_) => parent[name] = value,
    }
}

/// Number, changed field, new value, and the expected message.
type Bent = (&'static str, &'static str, Value, &'static str, &'static str);

fn bent_jobs() -> Vec<Bent> {
    vec![
        ("J1", "/spec/tasks", json!([]), "spec.tasks", "No task specified in job spec"),
        ("J2", "/spec/plugins", json!({"mpi": []}), "spec.plugins.mpi", "was not found"),
        ("J3", "/spec/networkTopology", json!({"mode": "hard"}), "spec.networkTopology", "labels"),
        ("J4", "/spec/tasks/0/minAvailable", json!(3), "spec.tasks[0].minAvailable", "greater"),
        ("J5", "/spec/tasks/1/name", json!("a"), "spec.tasks[1].name", "duplicated task name"),
        (
            "J6",
            "/spec/policies",
            json!([{"action": "AbortJob", "event": "PodFailed", "exitCode": 1}]),
            "spec.policies[0]",
            "simultaneously",
        ),
        (
            "J7",
            "/spec/tasks/1/policies",
            json!([{"action": "AbortJob"}]),
            "spec.tasks[1].policies[0]",
            "either event or exitCode",
        ),
        (
            "J8",
            "/spec/policies",
            json!([{"action": "AbortJob", "event": "PodFell"}]),
            "spec.policies[0].event",
            "write one of *, PodFailed",
        ),
        (
            "J9",
            "/spec/policies",
            json!([{"action": "Dance", "event": "PodFailed"}]),
            "spec.policies[0].action",
            "AbortJob",
        ),
        (
            "J10",
            "/spec/policies",
            json!([{"action": "AbortJob", "event": "PodFailed"},
                {"action": "RestartJob", "events": ["PodFailed"]}]),
            "spec.policies[1]",
            "duplicate event PodFailed",
        ),
        (
            "J11",
            "/spec/policies",
            json!([{"action": "AbortJob", "exitCode": 0}]),
            "spec.policies[0].exitCode",
            "0 is not a valid error code",
        ),
        (
            "J12",
            "/spec/policies",
            json!([{"action": "AbortJob", "exitCode": 3},
                {"action": "RestartJob", "exitCode": 3}]),
            "spec.policies[1].exitCode",
            "duplicate exitCode",
        ),
        (
            "J13",
            "/spec/policies",
            json!([{"action": "AbortJob", "event": "*"},
                {"action": "RestartJob", "event": "PodFailed"}]),
            "spec.policies",
            "no other policy",
        ),
        ("J15", "/spec/tasks/0/name", json!("x".repeat(60)), "spec.tasks[0]", "longer than 63"),
        (
            "J16",
            "/spec/tasks/1/template/spec/containers",
            json!([{"name": "c", "command": ["true"], "ports": [{"containerPort": 0}]}]),
            "spec.tasks[1].template.spec.containers[0].ports[0].containerPort",
            "whole number from 1",
        ),
        (
            "J17",
            "/spec/tasks/0/topologyPolicy",
            json!("single-numa-node"),
            "spec.tasks[0].topologyPolicy",
            "NUMA",
        ),
        (
            "J18",
            "/spec/tasks/0/partitionPolicy",
            json!({"totalPartitions": 0}),
            "spec.tasks[0].partitionPolicy",
            "not divided",
        ),
        ("J19", "/spec/minAvailable", json!(5), "spec.minAvailable", "greater than the 4 replicas"),
        ("J20", "/spec/plugins", json!({"rai": []}), "spec.plugins.rai", "unable to find"),
        ("J21", "/spec/volumes", json!([{"mountPath": "/d"}]), "spec.volumes", "put the data"),
        (
            "J26",
            "/spec/tasks",
            json!([{"name": "a", "replicas": 1, "dependsOn": {"name": ["b"]}, "template": task("a")["template"]},
                {"name": "b", "replicas": 2, "dependsOn": {"name": ["a"]}, "template": task("b")["template"]}]),
            "spec.tasks",
            "not a DAG: a -> b -> a",
        ),
        (
            "J27",
            "/spec/tasks/0/dependsOn",
            json!({"name": ["x"]}),
            "spec.tasks[0].dependsOn.name",
            "vertex is not defined: x",
        ),
        (
            "J28",
            "/spec/tasks/0/dependsOn",
            json!({"name": ["b", "b"]}),
            "spec.tasks[0].dependsOn.name",
            "named twice",
        ),
        ("C1", "/spec/minAvailable", json!(-1), "spec.minAvailable", "whole number from 0"),
        ("C2", "/spec/maxRetry", json!(-1), "spec.maxRetry", "whole number from 0"),
        (
            "C3",
            "/spec/ttlSecondsAfterFinished",
            json!(-1),
            "spec.ttlSecondsAfterFinished",
            "whole number from 0",
        ),
        ("C4", "/spec/tasks/0/replicas", json!(-1), "spec.tasks[0].replicas", "whole number"),
        ("C5", "/spec/minSuccess", json!(0), "spec.minSuccess", "whole number from 1"),
        ("C6", "/spec/tasks/0/name", json!("A.b"), "spec.tasks[0].name", "no name of a host"),
        ("C7", "/spec/queue", json!("a/b"), "spec.queue", "are allowed"),
    ]
}

/// Jobs that cannot be decoded or are invalid by themselves.
fn bad_jobs() -> Vec<Rule> {
    let rule = |(number, at, value, field, words): Bent| {
        let name = number.to_lowercase();
        let mut document = job(&name);
        bend(&mut document, at, value);
        Rule { number, name, document, field, words }
    };
    let mut rules: Vec<Rule> = bent_jobs().into_iter().map(rule).collect();
    rules.push(Rule {
        number: "J14",
        name: "J.14".to_owned(),
        document: job("J.14"),
        field: "metadata.name",
        words: "no name of a host",
    });
    rules
}

/// Jobs whose queues refuse them.
fn jobs_of_bad_queues() -> Vec<Rule> {
    let rule = |(number, queue, words): (&'static str, &str, &'static str)| {
        let name = number.to_lowercase();
        let mut document = job(&name);
        bend(&mut document, "/spec/queue", json!(queue));
        Rule { number, name, document, field: "spec.queue", words }
    };
    [
        ("J22", "nowhere", "there is no queue nowhere"),
        ("J23", "closed", "queue closed is closed"),
        ("J24", "root", "there is no queue root"),
        ("J25", "above", "above has queues below it"),
    ]
    .map(rule)
    .into()
}

/// Queues used by [`jobs_of_bad_queues`].
fn their_queues() -> [(&'static str, Value); 3] {
    [
        ("closed", json!({"state": "Closed"})),
        ("above", json!({})),
        ("below", json!({"parent": "above"})),
    ]
}

/// Invalid queues, and their arguments at the command line; `None`: impossible there.
fn bad_queues() -> Vec<(Rule, Option<Vec<&'static str>>)> {
    type Row = (&'static str, Value, &'static str, &'static str, Option<&'static str>);
    let rows: [Row; 8] = [
        ("Q1", json!({"weight": 0}), "spec.weight", "1 to 65535", Some("--weight 0")),
        ("Q2", json!({"state": "Closing"}), "spec.state", "Closing", None),
        (
            "Q3",
            json!({"capability": {"cpu": 1}, "guarantee": {"resource": {"cpu": 2}}}),
            "spec.guarantee.resource.cpu",
            "more than the capability",
            Some("--capability cpu=1 --guarantee cpu=2"),
        ),
        ("Q4", json!({"parent": "q4"}), "spec.parent", "the queue itself", Some("--parent q4")),
        ("Q5", json!({"parent": "no"}), "spec.parent", "there is no queue no", Some("--parent no")),
        ("Q6", json!({"parent": "deep4"}), "spec.parent", "5 deep", Some("--parent deep4")),
        (
            "Q7",
            json!({"parent": "small", "capability": {"cpu": 9}}),
            "spec.capability.cpu",
            "more than small has",
            Some("--parent small --capability cpu=9"),
        ),
        (
            "Q8",
            json!({"parent": "small", "guarantee": {"resource": {"cpu": 5}}}),
            "spec.guarantee.resource.cpu",
            "guaranteed 5 together",
            Some("--parent small --guarantee cpu=5"),
        ),
    ];
    let rule = |(number, spec, field, words, flags): Row| {
        let (name, document) = (number.to_lowercase(), json!({"spec": spec}));
        let flags = flags.map(|flags| flags.split(' ').collect());
        (Rule { number, name, document, field, words }, flags)
    };
    rows.into_iter().map(rule).collect()
}

/// Valid queues that [`bad_queues`] refers to.
fn good_queues() -> Vec<(String, Value)> {
    let deep = |n: usize| match n {
        0 => ("deep0".to_owned(), json!({})),
        n => (format!("deep{n}"), json!({"parent": format!("deep{}", n - 1)})),
    };
    let mut queues: Vec<(String, Value)> = (0..5).map(deep).collect();
    queues.push(("small".to_owned(), json!({"capability": {"cpu": 4}})));
    queues
}

fn group(spec: Value) -> String {
    json!({"spec": spec}).to_string()
}

/// PodGroups that violate a rule.
fn bad_groups() -> Vec<(&'static str, String, &'static str, &'static str)> {
    let tasks = json!([{"name": "w", "replicas": 2}]);
    let of = |queue: &str| group(json!({"queue": queue, "tasks": tasks}));
    vec![
        ("G1", of("nowhere"), "QueueMissing", "spec.queue: there is no queue nowhere"),
        ("G2", of("closed"), "QueueClosed", "spec.queue: queue closed is closed"),
        ("G3", of("above"), "QueueHasChildren", "spec.queue: above has queues below it"),
        (
            "G4",
            group(json!({"minMember": 3, "tasks": tasks})),
            "InvalidRecord",
            "field spec.minMember: 3 is more than the 2 members",
        ),
        ("G5", group(json!({"tasks": []})), "InvalidRecord", "field spec.tasks: there is none"),
        ("G6", group(json!({"minMember": -1})), "InvalidRecord", "field spec.minMember"),
        ("G7", "{".to_owned(), "InvalidRecord", "not JSON"),
    ]
}

#[tokio::test]
async fn cli_names_the_field_of_each_bad_job_and_writes_none() {
    let cluster = HttpCluster::new().await;
    for (name, spec) in their_queues() {
        cluster.put(format!("rcfarm/queues/{name}"), json!({"spec": spec}).to_string()).await;
    }
    // U1 to U3: a changed immutable field, a new task, too few members.
    cluster.put("rcfarm/jobs/default/u", job("u").to_string()).await;
    cluster.put("rcfarm/jobs/default/v", job("v").to_string()).await;
    cluster.put("rcfarm/jobs/default/w", job("w").to_string()).await;
    let before = cluster.everything();
    let changed = |name: &str, at: &str, value: Value, field, words| {
        let mut document = job(name);
        bend(&mut document, at, value);
        Rule { number: "U", name: name.to_owned(), document, field, words }
    };
    let mut rules = bad_jobs();
    rules.extend(jobs_of_bad_queues());
    let more = json!([task("a"), task("b"), task("c")]);
    rules.push(changed("u", "/spec/maxRetry", json!(7), "spec.maxRetry", "only counts"));
    rules.push(changed("v", "/spec/tasks", more, "spec.tasks", "only counts"));
    rules.push(changed("w", "/spec/minAvailable", json!(9), "spec.minAvailable", "greater than"));
    let documents: Vec<String> = rules.iter().map(|rule| rule.document.to_string()).collect();
    let good = job("good").to_string();
    let text = format!("{}\n---\n{good}\n", documents.join("\n---\n"));
    std::fs::write(cluster.dir.path().join("bad.yaml"), text).unwrap();
    for verb in ["apply", "plan"] {
        let ran = cluster.run(&[verb, "-f", "bad.yaml"]).await;
        let said = if verb == "plan" { ran.plan_failed() } else { ran.failed() };
        for Rule { number, name, field, words, .. } in &rules {
            let of_it = |line: &str| {
                let rest = line.trim_start().strip_prefix(&format!("default/{name}: "));
                rest.is_some_and(|rest| rest.contains(field) && rest.contains(words))
            };
            assert!(said.lines().any(of_it), "{number} {name}: {field} … {words} in\n{said}");
        }
        assert!(!said.contains("default/good") && said.contains("nothing was changed"), "{said}");
    }
    assert_eq!(cluster.everything(), before);
}

#[tokio::test]
async fn cli_names_the_field_of_each_bad_queue_and_writes_none() {
    let cluster = HttpCluster::new().await;
    for (name, spec) in good_queues() {
        cluster.put(format!("rcfarm/queues/{name}"), json!({"spec": spec}).to_string()).await;
    }
    let before = cluster.everything();
    for (Rule { number, name, document, field, words }, flags) in bad_queues() {
        let said = match flags {
            Some(flags) => cluster.run(&[&["queue", "create", &name][..], &flags].concat()).await,
            None => {
                std::fs::write(cluster.dir.path().join("q.yaml"), document.to_string()).unwrap();
                cluster.run(&["queue", "create", &name, "-f", "q.yaml"]).await
            }
        };
        let said = said.failed();
        assert!(said.contains(field) && said.contains(words), "{number}: {said}");
    }
    // Q9: the reserved name of the root queue.
    let said = cluster.run(&["queue", "create", "root"]).await.failed();
    assert!(said.contains("name of all queues"), "{said}");
    assert_eq!(cluster.everything(), before);
}

async fn value(cluster: &Cluster, key: &str) -> Value {
    let value = cluster.get(key).await;
    value.map(|value| serde_json::from_str(&value).unwrap()).unwrap_or_default()
}

async fn says(cluster: &Cluster, number: &str, key: &str, at: &str, words: &[&str]) {
    within(30 * SECOND, &format!("{number}: {key} says {words:?}"), || async {
        let status = value(cluster, key).await;
        let said = status.pointer(at).cloned().unwrap_or(status);
        let said = said.to_string();
        words.iter().all(|word| said.contains(word))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn farm_names_bad_fields_in_status_and_others_go_on() {
    let cluster = Cluster::new(4).await;
    for (name, spec) in
        good_queues().into_iter().chain(their_queues().map(|(n, s)| (n.to_owned(), s)))
    {
        cluster.put(format!("rcfarm/queues/{name}"), json!({"spec": spec}).to_string()).await;
    }
    let farm = cluster.start("a");
    let put_job = async |name: &str, document: &Value| {
        cluster.put(format!("rcfarm/jobs/default/{name}"), document.to_string()).await;
    };
    let pods = async |of: &str| {
        let labels = key::labels(key::LabelKind::Pod);
        let keys = cluster.keys(&labels).await;
        keys.iter().filter(|key| key.contains(&format!("/{of}-"))).count()
    };
    put_job("good", &job("good")).await;
    put_job("u", &job("u")).await;
    within(30 * SECOND, "two good jobs have pods", || async {
        (pods("good").await, pods("u").await) == (4, 4)
    })
    .await;
    for rule in bad_jobs().iter().chain(&jobs_of_bad_queues()) {
        put_job(&rule.name, &rule.document).await;
    }
    put_job("c8", &json!("no mapping")).await;
    let mut changed = job("u");
    bend(&mut changed, "/spec/maxRetry", json!(7));
    put_job("u", &changed).await;
    for (rule, _) in bad_queues() {
        cluster.put(format!("rcfarm/queues/{}", rule.name), rule.document.to_string()).await;
    }
    for (number, record, ..) in bad_groups() {
        cluster.put(format!("rcfarm/pod_groups/hand/{}", number.to_lowercase()), record).await;
    }
    let status = |name: &str| format!("rcfarm/job_status/default/{name}");
    for Rule { number, name, field, words, .. } in bad_jobs() {
        let field = format!("{field}: ");
        says(&cluster, number, &status(&name), "/state", &["\"InvalidRecord\"", &field, words])
            .await;
    }
    let whole = ["\"InvalidRecord\"", "(whole value): it must be a mapping"];
    says(&cluster, "C8", &status("c8"), "/state", &whole).await;
    for Rule { number, name, words, .. } in jobs_of_bad_queues() {
        let wanted = ["\"Queue", "spec.queue: ", words];
        says(&cluster, number, &status(&name), "/state", &wanted).await;
    }
    says(&cluster, "U1", &status("u"), "/state", &["\"ShapeChanged\"", "spec: only counts"]).await;
    for (Rule { number, name, field, words, .. }, _) in bad_queues() {
        let key = format!("rcfarm/queue_status/{name}");
        says(&cluster, number, &key, "/message", &[&format!("field {field}: "), words]).await;
        assert_eq!(value(&cluster, &key).await["state"], "Unknown", "{number}");
    }
    for (number, _, reason, words) in bad_groups() {
        let key = format!("rcfarm/pod_group_status/hand/{}", number.to_lowercase());
        says(&cluster, number, &key, "", &[&format!("\"{reason}\""), words]).await;
    }
    // Valid records are still reconciled; the invalid ones had no effect.
    let mut more = job("good");
    bend(&mut more, "/spec/tasks/0/replicas", json!(5));
    put_job("good", &more).await;
    within(30 * SECOND, "the good job grows", || async { pods("good").await == 7 }).await;
    assert_eq!(pods("u").await, 4, "what runs is left alone");
    let labels = key::labels(key::LabelKind::Pod);
    let all = cluster.keys(&labels).await;
    assert_eq!(all.len(), 7 + 4, "{all:?}");
    farm.stop().await;
}
