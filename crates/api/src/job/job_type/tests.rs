use serde_json::json;

use super::*;
use crate::manifest::{PeerForm, PeersForm};

fn paddle() -> Value {
    json!({"apiVersion": "rcfarm/v1", "kind": "JobType", "metadata": {"name": "PaddleJob"}, "spec": {
        "replicaSpecs": "paddleReplicaSpecs",
        "container": "paddle",
        "port": {"name": "paddlejob-port", "number": 36543},
        "replicaTypes": [
            {"name": "Master", "master": true, "max": 1,
                "environment": [{"name": "ROLE", "value": "leads ${job}"}]},
            {"name": "Worker", "min": 1},
        ],
        "environment": [
            {"name": "ROLE", "value": "${type}"},
            {"name": "MASTER", "value": "${address:Master:0}", "onlyWith": "Master"},
        ],
    }})
}

/// The problems of a record with a changed field.
fn problems(pointer: &str, value: Value) -> Vec<FieldError> {
    let mut record = paddle();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    record.pointer_mut(parent).unwrap()[field] = value;
    match JobTypeRecord::decode(record.to_string().as_bytes()) {
        Ok(record) => record.check(&"PaddleJob".parse().unwrap()),
        Err(error) => vec![error],
    }
}

#[test]
fn record_is_kept_and_copied_into_jobs() {
    let record = JobTypeRecord::decode(paddle().to_string().as_bytes()).unwrap();
    let name: ObjectName = "PaddleJob".parse().unwrap();
    assert_eq!(record.check(&name), []);
    assert_eq!(serde_json::from_slice::<Value>(&record.encode()).unwrap(), paddle());
    let types = JobTypes([(name, record)].into());
    let copy = types.copy("PaddleJob").unwrap();
    let of_job = JobType::of_job(&"default/j".parse().unwrap(), "PaddleJob", &copy).unwrap();
    assert_eq!(serde_json::to_value(&of_job.spec).unwrap(), copy);
    assert_eq!(types.copy("OtherJob"), None);
    assert_eq!(of_job.deciding().collect::<Vec<_>>(), ["Master", "Worker"]);
    let names = |of: &str| -> Vec<String> {
        of_job.environment(of).iter().map(|one| format!("{}={}", one.name, one.value)).collect()
    };
    assert_eq!(names("Master"), ["MASTER=${address:Master:0}", "ROLE=leads ${job}"]);
    assert_eq!(names("worker"), ["ROLE=${type}", "MASTER=${address:Master:0}"]);
}

#[test]
fn each_field_is_checked_with_its_path() {
    for (pointer, value, path) in [
        ("/kind", json!("Job"), "kind"),
        ("/apiVersion", json!("v1"), "apiVersion"),
        ("/spec/replicaSpecs", json!("runPolicy"), "spec.replicaSpecs"),
        ("/spec/replicaSpecs", json!("a b"), "spec.replicaSpecs"),
        ("/spec/container", json!("Paddle"), "spec.container"),
        ("/spec/port/name", json!(""), "spec.port.name"),
        ("/spec/port/number", json!(0), "spec.port.number"),
        ("/spec/port", Value::Null, "spec.environment[1].value"),
        ("/spec/restartPolicy", json!("Sometimes"), "spec.restartPolicy"),
        ("/spec/replicaTypes", json!([]), "spec.replicaTypes"),
        ("/spec/replicaTypes/0/name", json!("a-b"), "spec.replicaTypes[0].name"),
        ("/spec/replicaTypes/1/name", json!("MASTER"), "spec.replicaTypes[1].name"),
        ("/spec/replicaTypes/0/max", json!(0), "spec.replicaTypes[0].replicas"),
        ("/spec/replicaTypes/1/max", json!(0), "spec.replicaTypes[1].max"),
        ("/spec/environment/0/name", json!("1A"), "spec.environment[0].name"),
        ("/spec/environment/0/name", json!("MASTER"), "spec.environment[1].name"),
        ("/spec/environment/0/value", json!("${nothing}"), "spec.environment[0].value"),
        ("/spec/environment/0/value", json!("${rank"), "spec.environment[0].value"),
        ("/spec/environment/0/value", json!("${hosts:PS}"), "spec.environment[0].value"),
        ("/spec/environment/0/value", json!("x".repeat(5000)), "spec.environment[0].value"),
        ("/spec/environment/1/onlyWith", json!("PS"), "spec.environment[1].onlyWith"),
        ("/spec/success", json!({"types": ["PS"]}), "spec.success.types[0]"),
        ("/spec/success", json!({"when": "Never"}), "spec.success.when"),
        ("/spec/later", json!(1), "spec"),
        ("/spec/hook", json!("Pending"), "spec.hook"),
        ("/spec/hook", json!({"url": "ftp://h/"}), "spec.hook.url"),
        ("/spec/hook", json!({"url": "http://"}), "spec.hook.url"),
        ("/spec/hook", json!({"url": "http://u:p@h/"}), "spec.hook.url"),
        ("/spec/hook", json!({"url": "http://h/a b"}), "spec.hook.url"),
        ("/spec/hook", json!({"url": "http://h", "timeoutSeconds": 0}), "spec.hook.timeoutSeconds"),
        (
            "/spec/hook",
            json!({"url": "http://h", "timeoutSeconds": 31}),
            "spec.hook.timeoutSeconds",
        ),
        ("/spec/hook", json!({"url": "http://h", "token": "x"}), "spec.hook"),
    ] {
        let found = problems(pointer, value.clone());
        assert!(found.iter().any(|one| one.path.starts_with(path)), "{pointer} {value}: {found:?}");
    }
    let long: Vec<Value> =
        (0..20).map(|n| json!({"name": format!("A{n}"), "value": "x".repeat(4000)})).collect();
    assert_eq!(problems("/spec/environment", json!(long))[0].path, "spec");
    let many: Vec<Value> = (0..65).map(|n| json!({"name": format!("A{n}"), "value": ""})).collect();
    assert_eq!(problems("/spec/environment", json!(many)).len(), 2, "of each type");
}

#[test]
fn kinds_are_names_that_nothing_else_has() {
    for (kind, is_legal) in [
        ("PaddleJob", true),
        ("X", true),
        ("PyTorchJob", false),
        ("JobType", false),
        ("paddleJob", false),
        ("Paddle-Job", false),
        ("", false),
    ] {
        assert_eq!(check_kind(kind).is_ok(), is_legal, "{kind}");
    }
    assert!(check_kind(&"A".repeat(51)).is_err());
}

#[test]
fn text_is_divided_into_its_values() {
    use TemplatePart as P;
    let text = |text: &str| P::Text(text.to_owned());
    let worker = || "Worker".to_owned();
    for (source, parts) in [
        ("", vec![]),
        ("plain $HOME $(X)", vec![text("plain $HOME $(X)")]),
        ("a$${b}${rank}", vec![text("a${b}"), P::Value(EnvValue::Rank)]),
        ("${replicas:Worker}", vec![P::Value(EnvValue::Replicas(Some(worker())))]),
        ("${port}", vec![P::Own(PeerForm::Port)]),
        (
            "tcp://${address:Worker:2}",
            vec![
                text("tcp://"),
                P::One { replica_type: worker(), index: 2, form: PeerForm::Endpoint },
            ],
        ),
        ("${hosts:Worker}", vec![P::All { replica_type: worker(), form: PeersForm::Hosts }]),
    ] {
        assert_eq!(P::parse(source).unwrap(), parts, "{source}");
    }
    for wrong in ["${", "${}", "${host:Worker}", "${hosts}", "${port:Worker:-1}", "${a:b:c:d}"] {
        assert!(P::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn answer_of_a_hook_becomes_part_of_the_copy() {
    let mut record = paddle();
    record["spec"]["hook"] = json!({"url": "http://127.0.0.1:9/x?a=@"});
    let record = JobTypeRecord::decode(record.to_string().as_bytes()).unwrap();
    let name: ObjectName = "PaddleJob".parse().unwrap();
    assert_eq!(record.check(&name), []);
    let copy = JobTypes([(name, record.clone())].into()).copy("PaddleJob").unwrap();
    assert_eq!(copy["hook"], "Pending", "without the address");
    let job = "default/j".parse().unwrap();
    let of_job = JobType::of_job(&job, "PaddleJob", &copy).unwrap();
    let own = JobType::of_job(&job, "PaddleJob", &serde_json::to_value(&record.spec).unwrap());
    assert_eq!(own.unwrap_err()[0].path, "spec.jobType.hook", "a job names no server");
    let answer = |text: Value| of_job.spec.clone().answered(serde_json::from_value(text).unwrap());
    let spec = answer(
        json!({"environment": [{"name": "ROLE", "value": "x"}, {"name": "NEW", "value": ""}],
        "replicaTypes": {"Master": [{"name": "MASTER", "value": "me"}]}}),
    )
    .unwrap();
    assert_eq!(spec.hook, Some(JobTypeHook::Job(HookState::Answered)));
    let names = |all: &[EnvTemplate]| -> Vec<String> {
        all.iter().map(|one| format!("{}={}", one.name, one.value)).collect()
    };
    assert_eq!(names(&spec.environment), ["MASTER=${address:Master:0}", "ROLE=x", "NEW="]);
    assert_eq!(names(&spec.replica_types[0].environment), ["ROLE=leads ${job}", "MASTER=me"]);
    for (wrong, path) in [
        (json!({"replicaTypes": {"PS": []}}), "replicaTypes.PS"),
        (json!({"environment": [{"name": "A", "value": "${secret}"}]}), "environment[2].value"),
        (json!({"environment": [{"name": "A B", "value": ""}]}), "environment[2].name"),
    ] {
        assert_eq!(answer(wrong).unwrap_err()[0].path, path);
    }
}
