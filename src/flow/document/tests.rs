use super::*;
use crate::job::document::from_yaml;

fn id() -> Namespaced {
    "default/test".parse().unwrap()
}

/// As Volcano's users write it.
const VOLCANO: &str = "
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: test, namespace: default}
spec:
  jobRetainPolicy: delete
  flows:
    - name: a
    - name: b
      dependsOn: {targets: ['a']}
    - name: c
      dependsOn:
        targets: ['b']
        probe:
          httpGetList: [{taskName: t, path: /healthy, port: 8080, httpHeader: {name: X-Probe, value: '1'}}]
          tcpSocketList: [{taskName: t, port: 8080}]
          taskStatusList: [{taskName: t, phase: Completed}]
    - name: d
      dependsOn: {targets: ['b']}
      patch: {jobSpec: {queue: high}}
    - name: e
      dependsOn: {targets: ['c', 'd']}
";

#[test]
fn volcanos_document_is_read() {
    let spec = read(&id(), &from_yaml(VOLCANO).unwrap()).unwrap();
    assert!(spec.warnings.is_empty(), "{:?}", spec.warnings);
    assert_eq!((spec.retain, spec.on_failure), (RetainPolicy::Delete, FailurePolicy::Keep));
    let targets: Vec<&[usize]> = spec.steps.iter().map(|step| &step.targets[..]).collect();
    assert_eq!(targets, [&[][..], &[0], &[1], &[1], &[2, 3]]);
    let checks: Vec<&ProbeCheck> = spec.steps[2].probes.iter().map(|probe| &probe.check).collect();
    let header = Some(("X-Probe".to_owned(), "1".to_owned()));
    assert_eq!(*checks[0], ProbeCheck::Http { path: "/healthy".to_owned(), port: 8080, header });
    assert_eq!(*checks[2], ProbeCheck::Phase(PodPhase::Succeeded));
    assert_eq!(spec.steps[3].patch, Some(json!({"queue": "high"})));
    assert_eq!(spec.order.len(), 5);
    let hashes: std::collections::BTreeSet<&str> =
        spec.steps.iter().map(|step| step.hash.as_str()).collect();
    assert_eq!(hashes.len(), 5, "they differ in what they say");
}

/// Paths of the problems of steps.
fn paths(flows: Value) -> Vec<String> {
    paths_of(json!({"spec": {"flows": flows}}))
}

fn paths_of(document: Value) -> Vec<String> {
    let found = read(&id(), &document).err().unwrap_or_default();
    found.into_iter().map(|error| error.path).collect()
}

#[test]
fn problems_are_named_by_path() {
    let after = |targets: Value| json!({"name": "b", "dependsOn": {"targets": targets}});
    let a = json!({"name": "a"});
    assert_eq!(paths(json!([a])), [""; 0]);
    assert_eq!(paths(json!([a, {"name": "a"}])), ["spec.flows[1].name"]);
    assert_eq!(paths(json!([a, after(json!(["x"]))])), ["spec.flows[1].dependsOn.targets[0]"]);
    assert_eq!(paths(json!([a, after(json!([7]))])), ["spec.flows[1].dependsOn.targets[0]"]);
    assert_eq!(paths(json!([a, after(json!(["b"]))])), ["spec.flows[1].dependsOn.targets"]);
    assert_eq!(paths(json!([])), ["spec.flows"]);
    assert_eq!(paths(json!([{}])), ["spec.flows[0].name"]);
    assert_eq!(paths(json!([{"name": 7}])), ["spec.flows[0].name"]);
    assert_eq!(paths(json!([{"name": "a b"}])), ["spec.flows[0].name"]);
    assert_eq!(paths(json!([{"name": "A"}])), ["spec.flows[0].name"]);
    assert_eq!(paths(json!([{"name": "n".repeat(60)}])), ["spec.flows[0].name"]);
    assert_eq!(paths(json!([{"name": "a", "retry": 99}])), ["spec.flows[0].retry"]);
    assert_eq!(
        paths(json!([{"name": "a", "retry": 2}, {"name": "a-retry2"}])),
        ["spec.flows[1].name"]
    );
    assert_eq!(
        paths(json!([{"name": "a", "patch": {"jobSpec": []}}])),
        ["spec.flows[0].patch.jobSpec"]
    );
    assert_eq!(paths(json!([{"name": "a", "patch": {"spec": {}}}])), ["spec.flows[0].patch.spec"]);
    assert_eq!(paths(json!([{"name": "a", "if": "x"}])), ["spec.flows[0].if"]);
    assert_eq!(
        paths(json!([{"name": "a", "dependsOn": {"type": "afterany"}}])),
        ["spec.flows[0].dependsOn.type"]
    );
    assert_eq!(
        paths_of(json!({"spec": {"flows": [a], "jobRetainPolicy": "keep"}})),
        ["spec.jobRetainPolicy"]
    );
    assert_eq!(paths_of(json!({"kind": "JobTemplate", "spec": {"flows": [a]}})), ["kind"]);
    assert_eq!(paths_of(json!({"apiVersion": "v1", "spec": {"flows": [a]}})), ["apiVersion"]);
    assert_eq!(paths_of(json!({})), ["spec.flows"]);
    let cycle = json!([{"name": "a", "dependsOn": {"targets": ["c"]}},
        {"name": "b", "dependsOn": {"targets": ["a"]}}, {"name": "c", "dependsOn": {"targets": ["b"]}}]);
    let error = read(&id(), &json!({"spec": {"flows": cycle}})).unwrap_err().remove(0);
    assert_eq!(error.path, "spec.flows[0].dependsOn.targets");
    assert!(error.problem.ends_with("a -> c -> b -> a"), "{}", error.problem);
}

#[test]
fn probes_are_checked_by_field() {
    let with = |probe: Value| {
        paths(
            json!([{"name": "a"}, {"name": "b", "dependsOn": {"targets": ["a"], "probe": probe}}]),
        )
    };
    let at = |tail: &str| vec![format!("spec.flows[1].dependsOn.probe{tail}")];
    assert_eq!(
        with(json!({"tcpSocketList": [{"taskName": "t", "port": 0}]})),
        at(".tcpSocketList[0].port")
    );
    assert_eq!(
        with(json!({"tcpSocketList": [{"taskName": "t", "port": 65536}]})),
        at(".tcpSocketList[0].port")
    );
    assert_eq!(with(json!({"tcpSocketList": [{"port": 1}]})), at(".tcpSocketList[0].taskName"));
    assert_eq!(with(json!({"execList": []})), at(".execList"));
    assert_eq!(
        with(json!({"taskStatusList": [{"taskName": "t"}]})),
        at(".taskStatusList[0].phase")
    );
    assert_eq!(
        with(json!({"taskStatusList": [{"taskName": "t", "phase": "Done"}]})),
        at(".taskStatusList[0].phase")
    );
    let http = |path: &str, name: &str, value: &str| {
        with(json!({"httpGetList": [{"taskName": "t", "port": 1, "path": path,
            "httpHeader": {"name": name, "value": value}}]}))
    };
    assert_eq!(http("/a?b", "X-A", "b"), [""; 0]);
    assert_eq!(http("//evil/@x", "X-A", "b"), [""; 0]);
    assert_eq!(http("@evil/", "X-A", "b"), at(".httpGetList[0].path"));
    assert_eq!(http("/a b", "X-A", "b"), at(".httpGetList[0].path"));
    assert_eq!(http("/a", "X-A", "b\r\nc"), at(".httpGetList[0].httpHeader.name"));
    assert_eq!(http("/a", "Host", "b"), at(".httpGetList[0].httpHeader.name"));
    let many: Vec<Value> = (1..=17).map(|n| json!({"taskName": "t", "port": n})).collect();
    assert_eq!(with(json!({"tcpSocketList": many})), at(""));
}

#[test]
fn steps_and_their_names_are_limited() {
    let steps = |count: usize, length: usize| -> Value {
        (0..count).map(|n| json!({"name": format!("{n:0length$}"), "template": "t"})).collect()
    };
    assert_eq!(paths(steps(1000, 20)), [""; 0]);
    assert_eq!(paths(steps(1001, 4)), ["spec.flows"]);
    assert_eq!(paths(steps(1000, 58)), ["spec.flows"]);
}
