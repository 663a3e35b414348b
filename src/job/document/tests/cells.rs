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
