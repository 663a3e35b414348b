//! Jobs of a kind that a record describes (decision 42): a PyTorchJob that is described does what the built-in one does.

use super::*;
use crate::job::manifest::Placed;
use crate::job::peers::told_tasks;
use crate::job::{frameworks, peers, writes};
use JobPhase as P;

/// `spec` of a type with the rules of Kubeflow's PyTorchJob.
fn torch() -> Value {
    let with_master =
        |name: &str, value: &str| json!({"name": name, "value": value, "onlyWith": "Master"});
    json!({
        "apiVersion": "kubeflow.org/v1", "replicaSpecs": "pytorchReplicaSpecs", "container": "pytorch",
        "port": {"name": "pytorchjob-port", "number": 23456}, "restartPolicy": "OnFailure",
        "replicaTypes": [
            {"name": "Master", "min": 1, "max": 1, "master": true}, {"name": "Worker", "min": 1}],
        "environment": [
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            {"name": "MASTER_PORT", "value": "${port:Master:0}"},
            {"name": "PET_MASTER_PORT", "value": "${port:Master:0}"},
            {"name": "MASTER_ADDR", "value": "${host:Master:0}"},
            {"name": "PET_MASTER_ADDR", "value": "${host:Master:0}"},
            with_master("WORLD_SIZE", "${world_size}"),
            with_master("RANK", "${rank}"),
            with_master("PET_NODE_RANK", "${rank}"),
            {"name": "PET_NPROC_PER_NODE", "value": "auto"},
            {"name": "PET_NNODES", "value": "${world_size}"},
        ],
    })
}

/// The same job, built in and described.
fn both(members: &[(&str, u32)], policy: &Value) -> [Scenario; 2] {
    let container = json!({"name": "pytorch", "command": ["t"],
        "ports": [{"name": "pytorchjob-port", "containerPort": 7000}]});
    let member = |(name, replicas): &(&str, u32)| {
        let template = json!({"spec": {"containers": [container]}});
        ((*name).to_owned(), json!({"replicas": replicas, "template": template}))
    };
    let members: serde_json::Map<String, Value> = members.iter().map(member).collect();
    let document = |kind: &str| {
        json!({"apiVersion": "kubeflow.org/v1", "kind": kind,
            "spec": {"runPolicy": policy, "pytorchReplicaSpecs": members}})
    };
    let mut described = document("TorchJob");
    described["spec"]["jobType"] = torch();
    [document("PyTorchJob"), described].map(Scenario::new)
}

/// Manifests, labels and peers of all members, by member.
fn pods(life: &Scenario) -> Vec<String> {
    let job = life.job();
    let slots = job.tasks.iter().flat_map(|task| {
        let slot = |index| Slot::new(&task.name, index);
        (0..task.replicas).map(slot).collect::<Vec<_>>()
    });
    let node = |n: usize| format!("n{}", n / 2).parse().unwrap();
    let places: BTreeMap<Slot, NodeName> =
        slots.enumerate().map(|(n, slot)| (slot, node(n))).collect();
    let ports = [(Slot::new("Master", 0), 20_000)].into();
    let address = |node: &NodeName| format!("10.0.0.{}", &node.as_str()[1..]);
    let placed = Placed {
        id: &life.id,
        uid: JobUid(Index(7)),
        job: &job,
        places: &places,
        ports: &ports,
        address: &address,
        pod_ids: PodIdFormat::Hashed,
        tasks: None,
    };
    let rules = frameworks::of(job.framework);
    let mut all = vec![format!("{:?} {:?}", rules.meets_at(&job), told_tasks(&job))];
    for task in &job.tasks {
        all.push(format!("{:?} {}", rules.listens(&job, task), rules.listeners(&job, task)));
    }
    for (slot, node) in &places {
        let create = Create { slot: slot.clone(), node: node.clone(), version: 0, attempt: 0 };
        let made = writes::made_one(&placed, &create, &placed.peers()).unwrap();
        let labels = writes::labels_of(&job, &made.identity);
        all.push(format!("{}\n{labels:?}\n{:?}", made.manifest, peers::stanza(&job, slot)));
    }
    all
}

/// What a status says, without messages.
fn said(life: &Scenario) -> Value {
    fn without_messages(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("message");
                fields.values_mut().for_each(without_messages);
            }
            Value::Array(all) => all.iter_mut().for_each(without_messages),
            _ => {}
        }
    }
    let mut status = serde_json::to_value(&life.status).unwrap();
    without_messages(&mut status);
    let text = status.to_string().replace("\"TorchJob", "\"PyTorchJob");
    let mut status: Value = serde_json::from_str(&text).unwrap();
    // The described document has its type besides.
    for hash in ["shape", "shapeWithoutRequests"] {
        status.as_object_mut().unwrap().remove(hash);
    }
    json!({"status": status, "phases": format!("{:?}", life.phases), "slots": life.slots(),
        "made": format!("{:?}", life.made)})
}

const SIZES: [&[(&str, u32)]; 4] =
    [&[("Master", 1), ("Worker", 3)], &[("Master", 1)], &[("Worker", 2)], &[("Worker", 1)]];

#[test]
fn described_pytorch_has_the_pods_of_the_built_in() {
    for members in SIZES {
        let [built_in, described] = both(members, &json!({})).map(|life| pods(&life));
        let described: Vec<String> = described
            .iter()
            .map(|pod| pod.replace("torchjob-controller", "pytorchjob-controller"))
            .collect();
        assert!(built_in.iter().any(|pod| pod.contains("PET_NNODES")), "{built_in:?}");
        for (one, other) in built_in.iter().zip(&described) {
            assert_eq!(one, other, "{members:?}");
        }
        assert_eq!(built_in.len(), described.len());
    }
}

/// A step of a life, which does the same in both.
type Step = fn(&mut Scenario);

#[test]
fn described_pytorch_has_the_life_of_the_built_in() {
    let gang = json!({"restartScope": "Gang"});
    let few = json!({"backoffLimit": 1, "cleanPodPolicy": "All"});
    for members in SIZES {
        for policy in [json!({}), gang.clone(), few.clone()] {
            let ends: [Step; 5] = [
                |_| {},
                |life| _ = life.run(),
                |life| {
                    let slot = life.pods.first().unwrap().slot.clone();
                    life.end(&slot.task, slot.index, 0);
                },
                |life| {
                    let slot = life.pods.last().unwrap().slot.clone();
                    life.end(&slot.task, slot.index, 1);
                },
                |life| _ = life.wait(60),
            ];
            for orders in [[1, 2, 3, 4], [1, 3, 4, 2], [1, 3, 3, 4], [1, 2, 2, 4], [4, 1, 4, 2]] {
                let mut lives = both(members, &policy);
                for step in orders {
                    for life in &mut lives {
                        life.reconcile();
                        if !life.pods.is_empty() || step == 4 {
                            ends[step](life);
                        }
                    }
                    let [built_in, described] = &lives;
                    assert_eq!(said(built_in), said(described), "{members:?} {policy} {orders:?}");
                }
            }
        }
    }
}

/// A job of one type, whose members' ends count by a rule.
fn ruled(success: &Value, may_fail: bool) -> Scenario {
    let member = json!({"restartPolicy": "Never",
        "template": {"spec": {"containers": [{"name": "main", "command": ["t"]}]}}});
    let job_type = json!({"replicaSpecs": "replicaSpecs", "container": "main", "success": success,
        "replicaTypes": [
            {"name": "Lead", "master": true}, {"name": "Helper", "replicas": 2, "mayFail": may_fail}]});
    let members = json!({"lead": member, "HELPER": member});
    Scenario::new(
        json!({"kind": "TeamJob", "spec": {"jobType": job_type, "replicaSpecs": members}}),
    )
}

#[test]
fn rule_of_success_says_whose_end_counts() {
    // Rule, members that succeed, phase.
    for (rule, ends, phase) in [
        (json!({}), &[("Lead", 0)][..], P::Completed),
        (json!({}), &[("Helper", 0), ("Helper", 1)], P::Running),
        (json!({"types": ["Helper"]}), &[("Lead", 0)], P::Running),
        (json!({"types": ["Helper"]}), &[("Helper", 0)], P::Running),
        (json!({"types": ["Helper"]}), &[("Helper", 0), ("Helper", 1)], P::Completed),
        (json!({"types": ["Helper"], "when": "First"}), &[("Helper", 1)], P::Running),
        (json!({"types": ["Helper"], "when": "First"}), &[("Helper", 0)], P::Completed),
        (json!({"types": ["Helper"], "when": "Any"}), &[("Helper", 1)], P::Completed),
        (json!({"types": ["Helper"], "when": "Any"}), &[("Lead", 0)], P::Running),
    ] {
        let mut life = ruled(&rule, false);
        assert_eq!(life.run(), P::Running);
        assert_eq!(life.slots(), ["helper-0", "helper-1", "lead-0"]);
        let mut last = P::Running;
        for (task, index) in ends {
            last = life.end(task, *index, 0);
        }
        assert_eq!(last, phase, "{rule} {ends:?}");
    }
}

#[test]
fn failed_member_fails_the_job_unless_its_type_may_fail() {
    for (task, may_fail, phase) in [
        ("Lead", false, P::Failed),
        ("Lead", true, P::Failed),
        ("Helper", false, P::Failed),
        ("Helper", true, P::Running),
    ] {
        let mut life = ruled(&json!({}), may_fail);
        life.run();
        assert_eq!(life.end(task, 0, 1), phase, "{task} {may_fail}");
    }
}
