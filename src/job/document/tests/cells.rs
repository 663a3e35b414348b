//! HiveD's annotation on templates.

use serde_json::{Value, json};

use crate::job::document::read;
use rcfarm_api::job::spec::JobSpec;

const PATH: &str =
    "spec.tasks[0].template.metadata.annotations.hivedscheduler.microsoft.com/pod-scheduling-spec";

fn task(name: &str, replicas: u32, annotation: Option<&str>, resources: Value) -> Value {
    let mut template = json!({"spec": {"containers": [
        {"name": "c", "command": ["true"], "resources": resources}]}});
    if let Some(text) = annotation {
        template["metadata"] = json!({"annotations": {
            "hivedscheduler.microsoft.com/pod-scheduling-spec": text}});
    }
    json!({"name": name, "replicas": replicas, "template": template})
}

fn job(tasks: &[Value]) -> Result<JobSpec, Vec<String>> {
    let id = "team/train".parse().unwrap();
    let read = read(&id, &json!({"spec": {"tasks": tasks}}));
    read.map(|read| read.spec).map_err(|bad| bad.iter().map(ToString::to_string).collect())
}

fn refused(tasks: &[Value], path: &str, words: &str) {
    let bad = job(tasks).unwrap_err();
    assert!(bad[0].starts_with(&format!("field {path}: ")), "{bad:#?}");
    assert!(bad[0].contains(words), "{bad:#?}");
}

#[test]
fn job_without_a_named_group_is_the_group_of_its_members() {
    let one = "{virtualCluster: A, leafCellNumber: 2}";
    let two = "{virtualCluster: A, leafCellNumber: 1}";
    let gpus = json!({"limits": {"nvidia.com/gpu": 2}});
    let tasks = [task("worker", 3, Some(one), gpus), task("ps", 1, Some(two), json!({}))];
    let spec = job(&tasks).unwrap();
    let cells = spec.cells.unwrap();
    assert_eq!(cells.group.key.to_string(), "A/team/train");
    let members: Vec<(u32, u32)> = cells.group.members.iter().map(|m| (m.pods, m.cells)).collect();
    assert_eq!(members, [(1, 1), (3, 2)]);
    assert_eq!(cells.tasks, [("ps".to_owned(), 0), ("worker".to_owned(), 1)].into());
    assert_eq!(spec.tasks[1].template.resources().amount("gpu"), 1, "those of its cells");
    assert_eq!(spec.tasks[0].template.resources().amount("gpu"), 2, "as it is written");
    assert!(job(&[task("w", 1, None, json!({}))]).unwrap().cells.is_none());
}

#[test]
fn request_that_is_wrong_is_refused_with_its_path() {
    let of = |text: &str| [task("w", 2, Some(text), json!({}))];
    for (text, words) in [
        ("", "Annotation does not exist or is empty"),
        ("{leafCellNumber: 1}", "VirtualCluster is empty"),
        ("{virtualCluster: A}", "LeafCellNumber is non-positive"),
        ("{virtualCluster: A, leafCellNumber: 1, priority: 1001}", "greater than 1000"),
        ("{virtualCluster: A, leafCellNumber: [", "Failed to unmarshal YAML"),
        (
            "{virtualCluster: A, leafCellNumber: 1, affinityGroup: {name: g, members: [{podNumber: 3, leafCellNumber: 1}]}}",
            "the group has 3 pods of 1 cells, the tasks of the job have 2",
        ),
        (
            "{virtualCluster: A, leafCellNumber: 1, affinityGroup: {name: g, members: [{podNumber: 2, leafCellNumber: 2}]}}",
            "does not contains current Pod",
        ),
    ] {
        refused(&of(text), PATH, words);
    }
    let good = "{virtualCluster: A, leafCellNumber: 2}";
    let gpus = |n: u32| json!({"limits": {"nvidia.com/gpu": n}});
    refused(&[task("w", 1, Some(good), gpus(3))], PATH, "it asks for 2 devices");
    let alone = [task("w", 1, Some(good), gpus(2)), task("ps", 1, None, json!({}))];
    refused(&alone, PATH, "task ps has none");
    let other = "{virtualCluster: B, leafCellNumber: 2, affinityGroup: {name: g, members: [{podNumber: 2, leafCellNumber: 2}]}}";
    let named = other.replace("virtualCluster: B", "virtualCluster: A");
    let both = [task("v", 1, Some(&named), gpus(2)), task("w", 1, Some(other), gpus(2))];
    refused(&both, &PATH.replace("[0]", "[1]"), "another group than the first task");
    let mut number = task("w", 1, Some(good), json!({}));
    let annotations = &mut number["template"]["metadata"]["annotations"];
    annotations["hivedscheduler.microsoft.com/pod-scheduling-spec"] = json!(1);
    refused(&[number], PATH, "it must be a text");
}

#[test]
fn bare_pod_asks_for_cells() {
    let document = |text: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "team",
            "annotations": {"hivedscheduler.microsoft.com/pod-scheduling-spec": text}},
            "spec": {"containers": [{"name": "c", "command": ["true"], "resources": {"limits": {
                "hivedscheduler.microsoft.com/pod-scheduling-enable": 1}}}]}})
    };
    let id = "team/train".parse().unwrap();
    let old = "virtualCluster: A\ngpuType: K80\ngpuNumber: 4\n";
    let spec = read(&id, &document(old)).unwrap().spec;
    let cells = spec.cells.unwrap();
    assert_eq!(cells.group.cell_type.as_deref(), Some("K80"), "the old names, too");
    assert_eq!(spec.tasks[0].template.resources().to_string(), "gpu=4");
    let several = "virtualCluster: A\nleafCellNumber: 4\naffinityGroup: {name: g, members: [{podNumber: 2, leafCellNumber: 4}]}\n";
    let bad = read(&id, &document(several)).unwrap_err();
    let path = "metadata.annotations.hivedscheduler.microsoft.com/pod-scheduling-spec";
    assert_eq!(bad[0].path, path, "{bad:?}");
}

/// Each annotation has the type of its own pod's cells.
#[test]
fn tasks_of_one_nested_group_have_different_types() {
    let annotation = |current: usize| {
        let member = |n: usize, of: &str| {
            format!(
                "{{name: m{n}, pod: {{podMinNumber: 1, podMaxNumber: 1, cellsPerPod: {{cellType: {of}, cellNumber: 1}}, \
                 containsCurrentPod: {}}}}}",
                n == current
            )
        };
        let of = ["NODE", "GPU"];
        format!(
            "{{version: v2, virtualCluster: A, cellType: {}, cellNumber: 1, podRootGroup: {{name: g, childGroups: [{}, {}]}}}}",
            of[current],
            member(0, of[0]),
            member(1, of[1])
        )
    };
    let gpus = |n: u32| json!({"limits": {"nvidia.com/gpu": n}});
    let tasks = [
        task("big", 1, Some(&annotation(0)), gpus(4)),
        task("small", 1, Some(&annotation(1)), gpus(1)),
    ];
    let cells = job(&tasks).unwrap().cells.unwrap();
    assert_eq!(cells.tasks, [("big".to_owned(), 0), ("small".to_owned(), 1)].into());
    assert_eq!(cells.group.cell_type, None);
}

/// The field says the same as the annotation, as an object.
#[test]
fn cells_are_a_field_of_the_pods_spec_too() {
    let text = "{virtualCluster: A, leafCellNumber: 2, priority: 5}";
    let mut by_field = task("w", 3, None, json!({}));
    by_field["template"]["spec"]["cells"] =
        json!({"virtualCluster": "A", "leafCellNumber": 2, "priority": 5});
    let annotated = job(&[task("w", 3, Some(text), json!({}))]).unwrap();
    let field = job(std::slice::from_ref(&by_field)).unwrap();
    assert_eq!(field.cells, annotated.cells);
    assert_eq!(field.tasks[0].template.resources().amount("gpu"), 2);

    let path = "spec.tasks[0].template.spec.cells";
    let mut both = by_field.clone();
    both["template"]["metadata"] = json!({"annotations": {
        "hivedscheduler.microsoft.com/pod-scheduling-spec": text}});
    refused(&[both], path, "says it, too");
    for (value, words) in
        [(json!("a"), "must be an object"), (json!({}), "VirtualCluster is empty")]
    {
        by_field["template"]["spec"]["cells"] = value;
        refused(std::slice::from_ref(&by_field), path, words);
    }
    let id = "team/train".parse().unwrap();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "team"},
        "spec": {"cells": {"virtualCluster": "A", "leafCellNumber": 4},
            "containers": [{"name": "c", "command": ["true"]}]}});
    let cells = read(&id, &pod).unwrap().spec.cells.unwrap();
    assert_eq!(cells.group.members[0].cells, 4);
}

/// HiveD's containers have their devices from the annotation that its scheduler writes.
#[test]
fn isolation_annotation_is_a_variable_of_the_agent() {
    let with = |path: &str| {
        let mut task = task("w", 1, Some("{virtualCluster: A, leafCellNumber: 1}"), json!({}));
        task["template"]["spec"]["containers"][0]["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES",
            "valueFrom": {"fieldRef": {"fieldPath": path}}}]);
        job(&[task])
    };
    for name in ["pod-leaf-cell-isolation", "pod-gpu-isolation"] {
        let spec =
            with(&format!("metadata.annotations['hivedscheduler.microsoft.com/{name}']")).unwrap();
        let env = &spec.tasks[0].template.containers[0].env;
        let value = env
            .iter()
            .find(|(name, _)| name == "NVIDIA_VISIBLE_DEVICES")
            .map(|(_, value)| value.as_str());
        assert_eq!(value, Some("$(RCFARM_ISOLATION)"));
    }
    let bad =
        with("metadata.annotations['hivedscheduler.microsoft.com/pod-bind-info']").unwrap_err();
    assert!(bad[0].contains("is not known to nodes"), "{bad:?}");
}
