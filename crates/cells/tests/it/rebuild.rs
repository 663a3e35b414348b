//! Restarts and reconfiguration.

use std::sync::Arc;

use jiff::Timestamp;
use rcfarm_cells::config::{CellTypeSpec, PhysicalCellSpec};
use rcfarm_cells::{
    AffinityGroupState, CellConfig, CellDecision, CellHealthiness, CellScheduler, GroupKey,
    RebuildNote, StalePlan,
};

use crate::driven::{DESIGN, DrivenCells, bind, spec};
use crate::vectors_m::{MINI, gang};
use crate::vectors_t::t1_pods;

fn rebuild(
    driven: &DrivenCells,
    config: &CellConfig,
    reverse: bool,
) -> (CellScheduler, Vec<RebuildNote>) {
    let model = Arc::new(config.validate().unwrap_or_else(|errors| panic!("{errors:#?}")));
    let mut records = driven.cells.records();
    if reverse {
        records.reverse();
    }
    let nodes: Vec<String> = model.nodes().map(str::to_owned).collect();
    let nodes = nodes.iter().map(|node| {
        (node.as_str(), driven.cells.node_health(node).unwrap_or(CellHealthiness::Healthy))
    });
    CellScheduler::rebuild(model, nodes, records, Timestamp::UNIX_EPOCH)
}

/// Vector R0, amended (defect B5): the order of records and nodes does not matter, and reservations outlive the restart.
#[test]
fn r0_restart_restores_everything_in_any_order() {
    let config = CellConfig::parse(DESIGN).expect("it can be read");
    let mut driven = DrivenCells::new(&config);
    t1_pods(&mut driven);
    for reverse in [false, true] {
        let (cells, notes) = rebuild(&driven, &config, reverse);
        assert_eq!(driven.cells.difference(&cells), None);
        assert_eq!(notes, []);
        let group11 = GroupKey::new("VC1", "group11");
        assert_eq!(cells.group_state(&group11), Some(AffinityGroupState::Preempting));
        assert_eq!(cells.victims(&group11), [GroupKey::new("VC1", "group5")]);
    }
}

#[test]
fn p14_one_bound_pod_restores_its_gang() {
    let mut driven = DrivenCells::yaml(MINI);
    let g = gang("A", "g", 2, 4, 0);
    assert_eq!(driven.schedule("a0", &g).node(), "n0");
    let config = CellConfig::parse(MINI).expect("it can be read");
    (driven.cells, _) = rebuild(&driven, &config, false);
    assert_eq!(driven.schedule("a1", &g), bind("n1", 0..4));
}

/// The reference's `testReconfiguration`. Its group5 keeps its guarantee here, too: the reservation that had taken it ends,
/// since one of its nodes is gone.
#[test]
fn t7_work_preserving_reconfiguration() {
    let mut config = CellConfig::parse(DESIGN).expect("it can be read");
    let mut driven = DrivenCells::new(&config);
    t1_pods(&mut driven);

    let flat = CellTypeSpec {
        child_cell_type: "DGX2-V100".to_owned(),
        child_cell_number: 16,
        is_node_level: true,
    };
    config.physical_cluster.cell_types.insert("DGX2-V100-NODE".to_owned(), flat);
    let vc2 = config.virtual_clusters.get_mut("VC2").expect("VC2");
    vc2.virtual_cells[0].cell_number = 1;
    let cells = &mut config.physical_cluster.physical_cells;
    cells[7].cell_children[0].cell_children[0].cell_address = "0.0.3.100".to_owned();
    let node = |name: &str| PhysicalCellSpec {
        cell_type: "DGX2-V100-NODE".to_owned(),
        cell_address: name.to_owned(),
        ..PhysicalCellSpec::default()
    };
    let mut rack = std::mem::replace(&mut cells[8], node("0.0.4.0"));
    cells.extend(["0.0.4.1", "0.0.4.2", "0.0.4.3"].map(node));
    for (n, pair) in rack.cell_children.iter_mut().enumerate() {
        for (i, child) in pair.cell_children.iter_mut().enumerate() {
            child.cell_address = format!("0.0.4.10{}", n * 2 + i);
        }
    }
    cells.push(rack);

    let (cells, notes) = rebuild(&driven, &config, false);
    assert_eq!(cells.violations(), Vec::<String>::new());
    let guaranteed = |vc: &str, group: &str| {
        cells.group(&GroupKey::new(vc, group)).expect("it keeps running").guaranteed()
    };
    for (vc, group) in [("VC2", "group9"), ("VC1", "group13"), ("VC2", "group15")] {
        assert!(!guaranteed(vc, group), "{group}");
    }
    for (vc, group) in
        [("VC1", "group1"), ("VC1", "group5"), ("VC1", "group12"), ("VC2", "group16")]
    {
        assert!(guaranteed(vc, group), "{group}");
    }
    assert_eq!(cells.leaf("0.0.3.1", 0), Some(("Used", 1)));
    assert_eq!(cells.leaf("0.0.3.100", 0), Some(("Free", -2)));
    let noted = |group: &str, part: &str| {
        notes.iter().any(|note| note.group.name == group && note.note.contains(part))
    };
    assert!(noted("group5", "no cell has device 0 of node 0.0.3.0"), "{notes:#?}");
    assert!(noted("group11", "its reservation has ended"), "{notes:#?}");
    assert!(noted("group9", "it runs on as opportunistic"), "{notes:#?}");

    driven.cells = cells;
    let pods: Vec<String> = driven.groups_of.keys().cloned().collect();
    for pod in pods {
        driven.delete(&pod);
    }
    assert_eq!(driven.cells.groups().count(), 0);
}

/// HiveD writes 3.9 MB for such a gang.
#[test]
fn record_of_a_large_gang_is_small() {
    let text = "
physicalCluster:
  cellTypes:
    NODE: {childCellType: GPU, childCellNumber: 8, isNodeLevel: true}
    ROOM: {childCellType: NODE, childCellNumber: 128}
  physicalCells: [{cellType: ROOM}]
virtualClusters: {A: {virtualCells: [{cellType: ROOM, cellNumber: 1}]}}
";
    let mut driven = DrivenCells::yaml(text);
    let gang = spec("A", 0, "GPU", 8, "g", &[(128, 8)]);
    for n in 0..128 {
        driven.schedule(&format!("0190a3c4-0000-7000-8000-{n:012}"), &gang).node();
    }
    let record = driven.cells.record(&GroupKey::new("A", "g")).expect("it exists");
    let text = serde_json::to_string(&record).expect("it encodes");
    assert!(text.len() <= 30_000, "{} bytes", text.len());
}

#[test]
fn a_gang_is_committed_at_once() {
    let mut driven = DrivenCells::yaml(MINI);
    let request = gang("A", "g", 2, 4, 0).0.request("test", "g").expect("it is legal");
    let Ok(CellDecision::Bind(plan)) = driven.cells.plan(&request, "g", None) else {
        panic!("it fits");
    };
    let pods = ["g-0".to_owned(), "g-1".to_owned()];
    driven.cells.commit_gang(&plan, &pods, Timestamp::UNIX_EPOCH).expect("nothing has changed");
    let key = GroupKey::new("A", "g");
    let group = driven.cells.group(&key).expect("it has its cells");
    assert_eq!(group.allocated_pods().collect::<Vec<_>>(), ["g-0", "g-1"]);
    assert_eq!(driven.cells.commit(&plan, "g-2", Timestamp::UNIX_EPOCH), Err(StalePlan));
    driven.cells.pod_gone(&key, "g-0");
    assert!(driven.cells.group(&key).is_some());
    driven.cells.pod_gone(&key, "g-1");
    assert!(driven.cells.group(&key).is_none());
}
