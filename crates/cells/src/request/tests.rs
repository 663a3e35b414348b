//! What requests are read as, and what is refused: `hived.md` §5.1, in its order.

use super::*;
use crate::CellConfig;
use crate::group::GroupKey;

const DESIGN: &str = include_str!("../../testdata/design.yaml");

fn parse(text: &str) -> Result<PodRequest, BadRequest> {
    PodRequest::parse(text, "ns", "pod")
}

fn refused(text: &str, message: &str) {
    let error = parse(text).expect_err("it is refused");
    assert!(error.message.contains(message), "{error}");
}

#[test]
fn v1_defaults() {
    let request = parse("{virtualCluster: VC1, leafCellNumber: 2}").expect("it is legal");
    assert_eq!(request.group.key, GroupKey::new("VC1", "ns/pod"));
    assert_eq!(request.group.members, [Members { pods: 1, cells: 2, cell_type: None }]);
    assert_eq!((request.group.priority, request.member), (0, 0));
    assert!(request.group.ignore_suggested_nodes && !request.group.lazy_preemption_enable);
    assert_eq!((request.group.cell_type, request.group.pinned_cell_id), (None, None));
}

#[test]
fn v1_members_are_merged_in_ascending_order() {
    let text = "{virtualCluster: VC1, gpuNumber: 4, gpuType: V, affinityGroup: {name: g, members: [{podNumber: 1, \
                gpuNumber: 4}, {podNumber: 2, gpuNumber: 1}, {podNumber: 3, gpuNumber: 4}]}}";
    let request = parse(text).expect("old names are understood");
    let members = |pods, cells| Members { pods, cells, cell_type: None };
    assert_eq!(request.group.members, [members(2, 1), members(4, 4)]);
    assert_eq!(request.member, 1);
    assert_eq!(request.group.cell_type.as_deref(), Some("V"));
}

#[test]
fn v1_refusals() {
    refused(
        "",
        "Pod annotation hivedscheduler.microsoft.com/pod-scheduling-spec: Annotation does not exist or is empty",
    );
    refused("{priority: high}", "Failed to unmarshal YAML");
    refused("{leafCellNumber: 1}", "VirtualCluster is empty");
    refused("{virtualCluster: A, priority: -2}", "Priority is less than -1");
    refused("{virtualCluster: A, priority: 1001}", "Priority is greater than 1000");
    refused("{virtualCluster: A}", "LeafCellNumber is non-positive");
    let group =
        |group: &str| format!("{{virtualCluster: A, leafCellNumber: 1, affinityGroup: {group}}}");
    refused(
        &group("{members: [{podNumber: 1, leafCellNumber: 1}]}"),
        "AffinityGroup.Name is empty",
    );
    refused(&group("{name: g, members: [{leafCellNumber: 1}]}"), "non-positive PodNumber");
    refused(&group("{name: g, members: [{podNumber: 1}]}"), "non-positive LeafCellNumber");
    refused(&group("{name: g}"), "AffinityGroup.Members does not contains current Pod");
    refused(
        &group("{name: g, members: [{podNumber: 1, leafCellNumber: 2}]}"),
        "does not contains current Pod",
    );
    refused(
        &group("{name: g, members: [{podNumber: 9000000000, leafCellNumber: 1}]}"),
        "is greater than 100000",
    );
    refused("{version: v3, virtualCluster: A}", "Unknown Version v3");
}

#[test]
fn v2_nested_groups() {
    let text = "
version: v2
virtualCluster: VC1
priority: 1
cellType: SWITCH
cellNumber: 1
podRootGroup:
  name: root
  withinOneCell: RACK
  childGroups:
  - {name: a, withinOneCell: NODE, pod: {podMinNumber: 3, podMaxNumber: 3, cellsPerPod: {cellType: SWITCH, cellNumber: 1}}}
  - {name: b, pod: {podMinNumber: 2, podMaxNumber: 2, cellsPerPod: {cellType: SWITCH, cellNumber: 1}, containsCurrentPod: true}}
";
    let request = parse(text).expect("it is legal");
    assert_eq!(request.member, 1);
    assert_eq!(request.group.pod_count(), 5);
    let nested = request.group.nested.expect("it is nested");
    assert_eq!(nested.within_one_cell.as_deref(), Some("RACK"));
    assert_eq!(nested.children[0].within_one_cell.as_deref(), Some("NODE"));
    assert_eq!(nested.children[1].member, Some(1));
    let alone = parse("{version: v2, virtualCluster: A, cellType: NODE, cellNumber: 1}")
        .expect("it is legal");
    assert_eq!(alone.group.key.name, "ns/pod");
    assert_eq!(alone.group.members[0].cell_type.as_deref(), Some("NODE"));
}

/// A group of two members with different types of cells, as the annotation of a pod of one of them has it.
fn of_two_types(types: [&str; 2], current: usize) -> String {
    let member = |n: usize| {
        format!(
            "{{name: {n}, pod: {{podMinNumber: 1, podMaxNumber: 1, cellsPerPod: {{cellType: {}, cellNumber: 1}}, \
             containsCurrentPod: {}}}}}",
            types[n],
            n == current
        )
    };
    format!(
        "{{version: v2, virtualCluster: VC1, cellType: {}, cellNumber: 1, podRootGroup: {{name: g, childGroups: [{}, {}]}}}}",
        types[current],
        member(0),
        member(1)
    )
}

#[test]
fn v2_pods_of_different_types_are_of_one_group() {
    let of = |current| parse(&of_two_types(["DGX2-V100-NODE", "DGX2-V100"], current)).unwrap();
    let (first, second) = (of(0), of(1));
    assert_eq!((first.member, second.member), (0, 1));
    assert_eq!(first.group, second.group);
    assert_eq!(first.group.cell_type, None);
    // Members without a type have that of the annotation.
    let untyped = "{version: v2, virtualCluster: A, cellType: NODE, cellNumber: 1, podRootGroup: {name: g, pod: \
                   {podMinNumber: 1, podMaxNumber: 1, cellsPerPod: {cellNumber: 1}, containsCurrentPod: true}}}";
    assert_eq!(parse(untyped).unwrap().group.cell_type.as_deref(), Some("NODE"));
}

#[test]
fn v2_chains_have_the_types_of_all_members() {
    let model = CellConfig::parse(DESIGN).expect("it can be read").validate().expect("it is legal");
    let check = |types| {
        let request = parse(&of_two_types(types, 0)).expect("it is legal");
        let names: Vec<String> = super::chains(&request.group, &model)
            .map(|chain| model.chain(chain).name.clone())
            .collect();
        (names, request.group.check(&model, "p").map_err(|bad| bad.message))
    };
    let (names, checked) = check(["DGX2-V100-NODE", "DGX2-V100"]);
    assert!(checked.is_ok() && !names.is_empty(), "{names:?} {checked:?}");
    assert!(names.iter().all(|name| name.contains("DGX2-V100")), "{names:?}");
    let (names, checked) = check(["DGX2-V100-NODE", "CT1"]);
    assert_eq!(names, [] as [String; 0]);
    assert!(checked.unwrap_err().ends_with("no chain has together: CT1, DGX2-V100-NODE"));
    let (_, checked) = check(["DGX2-V100-NODE", "X"]);
    assert!(
        checked.unwrap_err().contains("leaf cell type X which the whole cluster does not have")
    );
}

#[test]
fn v2_refusals() {
    let v2 = |rest: &str| {
        format!("{{version: v2, virtualCluster: A, cellNumber: 1, podRootGroup: {rest}}}")
    };
    let pod = |min, max, number, current| {
        format!(
            "{{podMinNumber: {min}, podMaxNumber: {max}, cellsPerPod: {{cellNumber: {number}}}, containsCurrentPod: {current}}}"
        )
    };
    refused("{version: v2, virtualCluster: A}", "CellNumber is non-positive");
    refused(&v2("{}"), "PodRootGroup.Name is empty");
    refused(&v2(&format!("{{name: g, pod: {}}}", pod(0, 1, 1, true))), "non-positive PodMinNumber");
    refused(&v2(&format!("{{name: g, pod: {}}}", pod(1, 0, 1, true))), "non-positive PodMaxNumber");
    refused(
        &v2(&format!("{{name: g, pod: {}}}", pod(1, 1, 0, true))),
        "non-positive CellsPerPod.CellNumber",
    );
    refused(
        &v2(&format!("{{name: g, pod: {}}}", pod(1, 2, 1, true))),
        "PodMaxNumber other than PodMinNumber",
    );
    refused(
        &v2(&format!("{{name: g, pod: {}}}", pod(1, 1, 1, false))),
        "does not contain current Pod",
    );
    refused(
        &v2(&format!("{{name: g, pod: {0}, childGroups: [{{pod: {0}}}]}}", pod(1, 1, 1, true))),
        "multiple ContainsCurrentPod",
    );
    refused(
        &v2(&format!("{{name: g, pods: [{}]}}", pod(1, 1, 1, true))),
        "Do not support PodGroup.Pods field",
    );
}

#[test]
fn requests_are_checked_against_the_configuration() {
    let model = CellConfig::parse(DESIGN).expect("it can be read").validate().expect("it is legal");
    let check = |text: &str| {
        let request = parse(&format!("{{leafCellNumber: 1, {text}}}")).expect("it is legal");
        request.group.check(&model, "uid(ns/pod)").map_err(|error| error.message)
    };
    let refused = |text: &str, message: &str| {
        assert_eq!(check(text), Err(format!("[uid(ns/pod)]: {message}")));
    };
    refused("virtualCluster: X", "VC X does not exists!");
    refused(
        "virtualCluster: VC2, pinnedCellId: VC1-YQW-CT1",
        "VC VC2 does not have pinned cell VC1-YQW-CT1",
    );
    refused(
        "virtualCluster: VC1, pinnedCellId: VC1-YQW-CT1, priority: -1",
        "opportunistic pod not supported to use pinned cell VC1-YQW-CT1",
    );
    refused(
        "virtualCluster: VC1, leafCellType: X",
        "Pod requesting leaf cell type X which the whole cluster does not have",
    );
    refused(
        "virtualCluster: VC2, leafCellType: DGX2-V100",
        "Pod requesting leaf cell type DGX2-V100 which VC VC2 does not have",
    );
    // Stricter than the reference, which ignores the type beside a pinned cell.
    refused(
        "virtualCluster: VC1, pinnedCellId: VC1-YQW-CT1, leafCellType: X",
        "Pod requesting leaf cell type X which pinned cell VC1-YQW-CT1 does not have",
    );
    assert_eq!(check("virtualCluster: VC2, leafCellType: DGX2-V100, priority: -1"), Ok(()));
    assert_eq!(check("virtualCluster: VC1, pinnedCellId: VC1-YQW-CT1, leafCellType: CT1"), Ok(()));
}
