//! Configurations of the reference, and what is refused.

use super::*;

const DESIGN: &str = include_str!("../../testdata/design.yaml");

const SMALL: &str = "
physicalCluster:
  cellTypes:
    PAIR: {childCellType: GPU, childCellNumber: 2}
    NODE: {childCellType: PAIR, childCellNumber: 2, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 2}
  physicalCells:
  - {cellType: RACK, cellChildren: [{cellAddress: n0}, {cellAddress: n1, pinnedCellId: p}]}
  - {cellType: RACK, cellChildren: [{cellAddress: n2}, {cellAddress: n3}]}
virtualClusters:
  A: {virtualCells: [{cellType: RACK, cellNumber: 1}]}
  B: {pinnedCells: [{pinnedCellId: p}]}
";

fn model(text: &str) -> Result<CellModel, Vec<FieldError>> {
    CellConfig::parse(text).expect("it can be read").validate()
}

/// The errors of the small configuration with a text replaced: path, and a part of problem and fix.
fn refused(from: &str, to: &str, path: &str, problem: &str, fix: &str) {
    assert!(SMALL.contains(from), "{from}");
    let errors = model(&SMALL.replace(from, to)).expect_err("it is refused");
    let error = &errors[0];
    assert_eq!(error.path, path, "{errors:#?}");
    assert!(error.problem.contains(problem), "{errors:#?}");
    assert!(error.fix.contains(fix), "{errors:#?}");
}

#[test]
fn the_reference_s_examples_are_accepted_unchanged() {
    let files = [
        DESIGN,
        include_str!("../../testdata/basic.yaml"),
        include_str!("../../testdata/feature-1.yaml"),
        include_str!("../../testdata/feature-2.yaml"),
        include_str!("../../testdata/feature-3.yaml"),
        include_str!("../../testdata/feature-33.yaml"),
        include_str!("../../testdata/feature-4.yaml"),
        include_str!("../../testdata/feature-5.yaml"),
        include_str!("../../testdata/feature-6.yaml"),
        include_str!("../../testdata/feature-7.yaml"),
        include_str!("../../testdata/feature-8.yaml"),
        include_str!("../../testdata/v2-group1.yaml"),
        include_str!("../../testdata/v2-group2.yaml"),
        include_str!("../../testdata/v2-group3.yaml"),
    ];
    for (n, text) in files.iter().enumerate() {
        let model = model(text).unwrap_or_else(|errors| panic!("file {n}: {errors:#?}"));
        assert!(model.nodes().count() > 0);
    }
    let nothing = model(include_str!("../../testdata/default.yaml")).expect("it is legal");
    assert_eq!(nothing.nodes().count(), 0);
}

/// `hived.md` §1.1: full addresses, default segments, device numbers in the order of the configuration.
#[test]
fn addresses_are_inferred() {
    let model = model(DESIGN).expect("it is legal");
    for address in ["8/17/0.0.4.2/0/0/0/0", "8/17/0.0.4.2/1/3/7/15", "3/1.0.0.0/1/1/3", "1.0.0.2/9"]
    {
        assert!(model.physical.addresses.iter().any(|of| of == address), "{address}");
    }
    for address in ["VC1/8/1/3/7/15/31", "VC1/6/0", "VC2/4/1"] {
        assert!(model.virtuals.addresses.iter().any(|of| of == address), "{address}");
    }
    let node = model.nodes["1.0.0.0"];
    let cell = model.node_cells[node as usize][0];
    let leaves = model.leaves(&model.physical, cell);
    let devices: Vec<i32> = leaves.map(|leaf| model.device_numbers[leaf as usize]).collect();
    assert_eq!(devices, [1, 3, 4, 7, 0, 2, 6, 5]);
    assert_eq!(model.devices("1.0.0.2"), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_chain_that_no_virtual_cluster_uses_is_fine() {
    assert!(model(&SMALL.replace("RACK, cellNumber: 1", "RACK, cellNumber: 0")).is_ok());
    let text = SMALL.split("virtualClusters").next().expect("a part").to_owned();
    assert!(model(&text.replace("pinnedCellId: p", "pinnedCellId: q")).is_ok());
}

#[test]
fn a_wrong_type_of_a_field_has_its_path() {
    let error = CellConfig::parse("physicalCluster: {cellTypes: {X: {childCellNumber: many}}}")
        .expect_err("it is no number");
    assert_eq!(error.path, "physicalCluster.cellTypes.X.childCellNumber");
}

#[test]
fn undeclared_types_are_refused() {
    let path = "physicalCluster.physicalCells[0].cellType";
    let racks = "- {cellType: RACK, cellChildren: [{cellAddress: n0}";
    refused(
        racks,
        "- {cellType: X, cellChildren: [{cellAddress: n0}",
        path,
        "not in physicalCluster.cellTypes",
        "declared type",
    );
    refused(
        racks,
        "- {cellType: GPU, cellChildren: [{cellAddress: n0}",
        path,
        "not in physicalCluster.cellTypes",
        "leaf type",
    );
}

#[test]
fn top_cells_are_nodes_or_above() {
    let path = "physicalCluster.physicalCells[0].cellType";
    refused(
        ", isNodeLevel: true",
        "",
        path,
        "no type from \"RACK\" downwards is a node",
        "isNodeLevel",
    );
    refused(
        "- {cellType: RACK, cellChildren: [{cellAddress: n0}, {cellAddress: n1, pinnedCellId: p}]}",
        "- {cellType: PAIR}",
        path,
        "no type from \"PAIR\"",
        "top cells",
    );
}

#[test]
fn two_node_levels_are_refused() {
    let path = "physicalCluster.physicalCells[0].cellType";
    refused(
        "GPU, childCellNumber: 2}",
        "GPU, childCellNumber: 2, isNodeLevel: true}",
        path,
        "several node levels: PAIR, NODE",
        "one of them",
    );
}

#[test]
fn child_types_are_finite_and_have_children() {
    let types = "physicalCluster.cellTypes";
    refused(
        "childCellType: GPU, childCellNumber: 2",
        "childCellType: RACK, childCellNumber: 2",
        &format!("{types}.NODE.childCellType"),
        "contains itself",
        "leaf type",
    );
    refused(
        "childCellType: GPU, childCellNumber: 2",
        "childCellType: GPU, childCellNumber: 0",
        &format!("{types}.PAIR.childCellNumber"),
        "it is 0",
        "at least 1",
    );
    refused(
        "childCellType: GPU, childCellNumber: 2",
        "childCellType: GPU, childCellNumber: -1",
        &format!("{types}.PAIR.childCellNumber"),
        "it is -1",
        "at least 1",
    );
    refused(
        "childCellType: GPU, childCellNumber: 2",
        "childCellNumber: 2",
        &format!("{types}.PAIR.childCellType"),
        "empty",
        "name the type",
    );
    refused(
        "childCellType: GPU, childCellNumber: 2",
        "childCellType: GPU, childCellNumber: 9000000000",
        "physicalCluster.physicalCells[0].cellType",
        "more than 262144 cells",
        "lower",
    );
}

#[test]
fn children_are_all_listed_or_none() {
    let path = "physicalCluster.physicalCells[1].cellChildren";
    refused(
        "{cellAddress: n2}, {cellAddress: n3}",
        "{cellAddress: n2}",
        path,
        "has 1 children",
        "list all",
    );
    refused(
        "{cellAddress: n3}",
        "{cellAddress: n3}, {cellAddress: n4}",
        path,
        "has 3 children",
        "list all",
    );
    refused(
        "{cellAddress: n3}",
        "{cellAddress: n3, cellType: RACK}",
        &format!("{path}[1].cellType"),
        "its parent's children are \"NODE\"",
        "leave it out",
    );
}

#[test]
fn addresses_are_segments_and_devices_are_numbers() {
    let at = "physicalCluster.physicalCells[1].cellChildren[1]";
    refused(
        "{cellAddress: n3}",
        "{cellAddress: n/3}",
        &format!("{at}.cellAddress"),
        "slash",
        "own segment",
    );
    let with = |device: &str| {
        format!(
            "{{cellAddress: n3, cellChildren: [{{cellChildren: [{{cellAddress: {device}}}, {{cellAddress: 7}}]}}, {{}}]}}"
        )
    };
    let leaf = format!("{at}.cellChildren[0].cellChildren[0].cellAddress");
    refused("{cellAddress: n3}", &with("gpu0"), &leaf, "not a device number", "0 or more");
    refused("{cellAddress: n3}", &with("-1"), &leaf, "not a device number", "0 or more");
    refused(
        "{cellAddress: n3}",
        &with("2"),
        &format!("{at}.cellChildren[1].cellAddress"),
        "device 2 of node \"n3\"",
        "one cell",
    );
    refused(
        "{cellAddress: n3}",
        "{cellAddress: n2}",
        &format!("{at}.cellAddress"),
        "device 0 of node \"n2\"",
        "one cell",
    );
}

#[test]
fn virtual_cells_follow_a_chain() {
    let path = "virtualClusters.A.virtualCells[0].cellType";
    let of = "cellType: RACK, cellNumber";
    refused(
        of,
        "cellType: X, cellNumber",
        path,
        "\"X\" is not in physicalCluster.cellTypes",
        "top cell",
    );
    refused(
        of,
        "cellType: NODE, cellNumber",
        path,
        "no physical cell has the type \"NODE\"",
        "top cell",
    );
    refused(
        of,
        "cellType: RACK.X, cellNumber",
        path,
        "\"X\" does not follow \"RACK\"",
        "each level",
    );
    refused(of, "cellType: RACK.GPU, cellNumber", path, "does not follow", "each level");
    refused(
        of,
        "cellType: RACK.NODE.PAIR.GPU.GPU, cellNumber",
        path,
        "does not follow",
        "each level",
    );
    refused(
        "cellNumber: 1",
        "cellNumber: -1",
        "virtualClusters.A.virtualCells[0].cellNumber",
        "it is -1",
        "0 or more",
    );
    refused(
        "cellNumber: 1",
        "cellNumber: 900000000",
        "virtualClusters.A.virtualCells[0].cellNumber",
        "more than 262144",
        "lower",
    );
    refused("  A: {", "  A/B: {", "virtualClusters.A/B", "slash", "rename");
}

/// One rack is not free as a whole, since one of its nodes is pinned.
#[test]
fn quotas_fit_together() {
    let path = "virtualClusters.A.virtualCells[0].cellNumber";
    refused(
        "cellNumber: 1",
        "cellNumber: 2",
        path,
        "need 2 cells of type \"RACK\" (chain \"RACK\", level 4), 1 can",
        "lower the number",
    );
    let nodes = "cellType: RACK, cellNumber: 1}, {cellType: RACK.NODE, cellNumber";
    assert!(model(&SMALL.replace("cellType: RACK, cellNumber: 1", &format!("{nodes}: 1"))).is_ok());
    refused(
        "cellType: RACK, cellNumber: 1",
        &format!("{nodes}: 2"),
        "virtualClusters.A.virtualCells[1].cellNumber",
        "need 2 cells of type \"NODE\"",
        "add physical cells",
    );
}

#[test]
fn pinned_cells_are_one_to_one() {
    refused(
        "pinnedCells: [{pinnedCellId: p}]",
        "pinnedCells: [{pinnedCellId: q}]",
        "virtualClusters.B.pinnedCells[0].pinnedCellId",
        "no physical cell is pinned as \"q\"",
        "pinnedCellId",
    );
    refused(
        "  B: {",
        "  C: {pinnedCells: [{pinnedCellId: p}]}\n  B: {",
        "virtualClusters.C.pinnedCells[0].pinnedCellId",
        "virtual cluster \"B\" already has",
        "once",
    );
    refused(
        "{cellAddress: n2}",
        "{cellAddress: n2, pinnedCellId: p}",
        "physicalCluster.physicalCells[1].cellChildren[0].pinnedCellId",
        "is pinned as \"p\", too",
        "of its own",
    );
    refused(
        "{cellType: RACK, cellChildren: [{cellAddress: n0}",
        "{cellType: RACK, pinnedCellId: r, cellChildren: [{cellAddress: n0}",
        "physicalCluster.physicalCells[0].cellChildren[1].pinnedCellId",
        "part of pinned cell \"r\"",
        "one of the two",
    );
}

#[test]
fn a_configuration_comes_back_as_it_was() {
    let config = CellConfig::parse(DESIGN).expect("it can be read");
    let text = serde_json::to_string(&config).expect("it encodes");
    assert_eq!(CellConfig::parse(&text), Ok(config));
}
