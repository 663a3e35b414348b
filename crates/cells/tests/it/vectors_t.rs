//! The reference's own test, `TestHivedAlgorithm`, on its design cluster.

use rcfarm_cells::AffinityGroupState::{Allocated, BeingPreempted, Preempting};
use rcfarm_cells::CellConfig;

use crate::driven::{DESIGN, DrivenCells, Outcome, Phase, Spec, bind, preempt, spec};

const V: &str = "DGX2-V100";
const YQW: &str = "VC1-YQW-DGX2";

fn design() -> CellConfig {
    CellConfig::parse(DESIGN).expect("it can be read")
}

/// As the reference's test: strict about suggested nodes, all of which are suggested.
fn pinned(priority: i64, group: &str, members: &[(i64, i64)]) -> Spec {
    spec("VC1", priority, V, 16, group, members).pinned(YQW).strict()
}

fn on_all(driven: &mut DrivenCells, pod: &str, spec: &Spec) -> Outcome {
    let nodes = driven.all_nodes().into_iter().collect();
    driven.schedule_in(pod, &spec.clone().strict(), Phase::Preempting, Some(&nodes))
}

/// Amended: pod8 gets 1.0.0.1 in place of 1.0.0.0, pod24 0.0.0.0 and pod25 0.0.0.1 in place of the reverse. There the
/// reference takes the order in which its free lists were permuted while nodes became healthy (`hived.md` §4.6); here it
/// is the order of the configuration.
pub fn t1_pods(driven: &mut DrivenCells) {
    let group5 = || pinned(1, "group5", &[(2, 16)]).lazy();
    let group9 = |leaves| spec("VC2", 1, "", leaves, "group9", &[(1, 7), (1, 5)]).lazy();
    let group11 = || pinned(2, "group11", &[(2, 16)]).lazy();
    let gang = |vc, priority, group| spec(vc, priority, V, 16, group, &[(2, 16)]).lazy();

    let one = |priority, group| spec("VC1", priority, V, 1, group, &[(1, 1)]).lazy();
    assert_eq!(on_all(driven, "pod1", &one(0, "group1")), bind("0.0.1.0", [0]));
    assert_eq!(on_all(driven, "pod2", &one(1, "group2")), bind("0.0.1.0", [1]));
    let pod3 = spec("VC1", 2, V, 8, "group3", &[(1, 8)]).lazy();
    assert_eq!(on_all(driven, "pod3", &pod3), bind("0.0.1.0", 8..16));
    assert_eq!(on_all(driven, "pod4", &one(-1, "group4")), bind("0.0.5.0", [0]));
    assert_eq!(on_all(driven, "pod5", &group5()), bind("0.0.3.0", 0..16));
    assert_eq!(on_all(driven, "pod6", &group5()), bind("0.0.3.1", 0..16));
    let pod7 = spec("VC2", 1, "DGX1-P100", 8, "group7", &[(3, 8)]).lazy();
    on_all(driven, "pod7", &pod7).waits("insufficient capacity when scheduling in VC VC2");
    assert_eq!(on_all(driven, "pod8", &group9(7)), bind("1.0.0.1", 0..7));
    assert_eq!(on_all(driven, "pod9", &group9(5)), bind("1.0.0.2", 0..5));
    for pod in ["pod16", "pod17"] {
        assert_eq!(on_all(driven, pod, &group11()), preempt(&["pod5", "pod6"]));
    }
    assert_eq!(driven.state("VC1", "group11"), Some(Preempting));
    assert_eq!(driven.state("VC1", "group5"), Some(BeingPreempted));
    assert_eq!(driven.preemptor("VC1", "group5").as_deref(), Some("group11"));
    assert_eq!(on_all(driven, "pod18", &gang("VC1", 1, "group12")), bind("0.0.3.2", 0..16));
    assert_eq!(on_all(driven, "pod19", &gang("VC1", 1, "group12")), bind("0.0.3.3", 0..16));
    assert_eq!(on_all(driven, "pod20", &gang("VC1", 1, "group13")), bind("0.0.4.0", 0..16));
    assert_eq!(on_all(driven, "pod21", &gang("VC1", 1, "group13")), bind("0.0.4.1", 0..16));
    assert_eq!(on_all(driven, "pod22", &gang("VC1", -1, "group14")), bind("0.0.4.2", 0..16));
    assert_eq!(on_all(driven, "pod23", &gang("VC1", -1, "group14")), bind("0.0.4.3", 0..16));
    let ct1 = |priority, group| spec("VC2", priority, "CT1", 2, group, &[(1, 2)]);
    assert_eq!(on_all(driven, "pod24", &ct1(0, "group15").lazy()), bind("0.0.0.0", 0..2));
    assert_eq!(on_all(driven, "pod25", &ct1(1, "group16")), bind("0.0.0.1", 0..2));
    assert_eq!(driven.preemptor("VC2", "group15").as_deref(), Some("group16"));
    assert_eq!(driven.state("VC2", "group15"), Some(Allocated));
}

#[test]
fn t1_normal_operations() {
    let mut driven = DrivenCells::new(&design());
    t1_pods(&mut driven);

    let refused = |driven: &mut DrivenCells, spec: Spec| on_all(driven, "pod10", &spec);
    let vc2 = |priority, leaf_type, leaves, group, members: &[(i64, i64)]| {
        spec("VC2", priority, leaf_type, leaves, group, members).lazy()
    };
    let p100 = "DGX1-P100";
    refused(&mut driven, vc2(1, V, 1, "group6", &[(1, 1)]))
        .refused("Pod requesting leaf cell type DGX2-V100 which VC VC2 does not have");
    refused(&mut driven, vc2(1, p100, 2, "group8", &[(1, 8)]))
        .refused("AffinityGroup.Members does not contains current Pod");
    refused(&mut driven, spec("surprise!", 1, p100, 1, "group10", &[(1, 1)]))
        .refused("VC surprise! does not exists!");
    refused(&mut driven, vc2(1, p100, 1, "group10", &[(1, 1)]).pinned("surprise!"))
        .refused("VC VC2 does not have pinned cell surprise!");
    refused(&mut driven, vc2(1001, p100, 1, "group10", &[(1, 1)]))
        .refused("Priority is greater than 1000");

    let pod26 = spec("VC2", 2, "CT1", 2, "group17", &[(1, 2)]);
    assert_eq!(on_all(&mut driven, "pod26", &pod26), preempt(&["pod25"]));

    let waiting = ["pod16", "pod17", "pod26"];
    let bound: Vec<String> =
        driven.groups_of.keys().filter(|pod| !waiting.contains(&pod.as_str())).cloned().collect();
    for pod in bound.iter().rev() {
        driven.delete(pod);
    }
    for pod in waiting {
        driven.delete(pod);
    }
    assert_eq!(driven.cells.groups().count(), 0);
}

#[test]
fn t2_suggested_nodes() {
    let mut driven = DrivenCells::new(&design());
    let pod36 = spec("VC1", -1, "", 1, "group1", &[(1, 1)]).lazy().strict();
    assert_eq!(driven.schedule_on("pod36", &pod36, &["0.0.1.0"]), bind("0.0.1.0", [0]));
    driven.delete("pod36");
    let one = |group| spec("VC1", 1, V, 1, group, &[(1, 1)]).lazy().pinned(YQW).strict();
    assert_eq!(driven.schedule_on("pod37", &one("group1"), &["0.0.3.0"]), bind("0.0.3.0", [0]));
    assert_eq!(driven.schedule_on("pod38", &one("group2"), &["0.0.3.1"]), bind("0.0.3.1", [0]));
    driven.delete("pod37");
    driven.delete("pod38");

    let all = driven.all_nodes();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let others: Vec<&str> = all.iter().copied().filter(|&node| node != "0.0.3.1").collect();
    let pod27 = pinned(1, "group18", &[(2, 16)]);
    driven.schedule_on("pod27", &pod27, &others).waits("bad or non-suggested node");
    assert_eq!(driven.schedule_on("pod27", &pod27, &all).node(), "0.0.3.0");

    let pod33 = pinned(3, "group24", &[(2, 16)]).lazy();
    let nodes = all.iter().map(|&node| node.to_owned()).collect();
    let filtered = driven.schedule_in("pod33", &pod33, Phase::Filtering, Some(&nodes));
    assert_eq!(filtered, preempt(&["pod27"]));
    assert_eq!(driven.state("VC1", "group24"), None);
    driven.schedule_on("pod33", &pod33, &others).waits("non-suggested node");
    assert_eq!(driven.state("VC1", "group24"), None);
    assert_eq!(driven.schedule_on("pod33", &pod33, &all), preempt(&["pod27"]));
    assert_eq!(driven.state("VC1", "group24"), Some(Preempting));
    driven.schedule_on("pod33", &pod33, &others).waits("non-suggested node");
    assert_eq!(driven.state("VC1", "group24"), None);
}

/// Stricter than the reference's test: the groups keep their guarantee, too.
#[test]
fn t3_backtracking_reverts_lazy_preemption() {
    let mut config = design();
    let vc1 = config.virtual_clusters.get_mut("VC1").expect("VC1");
    vc1.virtual_cells[0].cell_number = 0;
    vc1.virtual_cells[3].cell_number = 3;
    let mut driven = DrivenCells::new(&config);
    let gang =
        |priority, group, pods| spec("VC1", priority, V, 16, group, &[(pods, 16)]).lazy().strict();
    let pod39 = driven.schedule_on("pod39", &gang(1, "group27", 2), &["0.0.3.2", "0.0.3.3"]);
    assert_eq!(pod39, bind("0.0.3.2", 0..16));
    let pod40 = driven.schedule_on("pod40", &gang(1, "group28", 1), &["0.0.4.3"]);
    assert_eq!(pod40, bind("0.0.4.3", 0..16));
    let nodes = ["0.0.3.2", "0.0.3.3", "0.0.4.3"];
    driven.schedule_on("pod41", &gang(2, "group29", 4), &nodes).waits("");
    for group in ["group27", "group28"] {
        assert_eq!(driven.state("VC1", group), Some(Allocated));
        assert_eq!(driven.preemptor("VC1", group), None);
    }
}

#[test]
fn t4_stateful_preemption() {
    let mut driven = DrivenCells::new(&design());
    let go = |driven: &mut DrivenCells, pod: &str, spec: Spec| on_all(driven, pod, &spec);
    let two = [(2, 16)];
    let one = [(1, 16)];
    assert_eq!(go(&mut driven, "pod28", pinned(1, "group19", &two)), bind("0.0.3.0", 0..16));
    assert_eq!(go(&mut driven, "pod29", pinned(2, "group20", &one).lazy()), preempt(&["pod28"]));
    go(&mut driven, "pod30", pinned(1, "group21", &one).lazy()).waits("insufficient capacity");
    assert_eq!(go(&mut driven, "pod31", pinned(2, "group22", &one).lazy()), preempt(&["pod28"]));
    go(&mut driven, "pod32", pinned(2, "group23", &one).lazy()).waits("insufficient capacity");
    assert_eq!(go(&mut driven, "pod33", pinned(3, "group24", &two).lazy()), preempt(&["pod28"]));
    assert_eq!(driven.state("VC1", "group20"), None);
    assert_eq!(driven.state("VC1", "group22"), None);
    driven.delete("pod28");
    assert_eq!(go(&mut driven, "pod34", pinned(4, "group25", &one)), bind("0.0.3.0", 0..16));
    assert_eq!(driven.state("VC1", "group24"), None);
    assert_eq!(go(&mut driven, "pod35", pinned(5, "group26", &two).lazy()), preempt(&["pod34"]));
    assert_eq!(driven.cells.leaf("0.0.3.0", 0), Some(("Reserving", 5)));
    assert_eq!(driven.cells.leaf("0.0.3.1", 0), Some(("Reserved", 5)));
    driven.delete("pod35");
    assert_eq!(driven.state("VC1", "group26"), None);
    for device in 0..16 {
        assert_eq!(driven.cells.leaf("0.0.3.0", device), Some(("Used", 4)));
        assert_eq!(driven.cells.leaf("0.0.3.1", device), Some(("Free", -2)));
    }
}

#[test]
fn t5_bad_nodes() {
    let mut config = design();
    let vc2 = config.virtual_clusters.get_mut("VC2").expect("VC2");
    vc2.virtual_cells[2].cell_type = "3-DGX2-V100-NODE.DGX2-V100-NODE".to_owned();
    let mut driven = DrivenCells::new(&config);
    let free =
        |driven: &DrivenCells, vc: &str| driven.cells.free_preassigned(vc, "3-DGX2-V100-NODE");
    let node = |vc, group| spec(vc, 0, V, 16, group, &[(1, 16)]).lazy().strict();
    assert_eq!(
        driven.schedule_on("pod42", &node("VC1", "group30"), &["0.0.2.0"]).node(),
        "0.0.2.0"
    );
    driven.bad("0.0.2.1");
    assert_eq!((free(&driven, "VC1"), free(&driven, "VC2")), (vec![true], vec![true]));
    assert_eq!(
        driven.schedule_on("pod43", &node("VC2", "group31"), &["0.0.2.2"]).node(),
        "0.0.2.2"
    );
    assert_eq!(free(&driven, "VC1"), [false]);
    assert_eq!(driven.cells.doomed(), [("VC1/3".to_owned(), "6/0.0.2.1".to_owned())]);
    driven.delete("pod43");
    assert_eq!(free(&driven, "VC1"), [true]);
    driven.bad("0.0.2.2");
    assert_eq!((free(&driven, "VC1"), free(&driven, "VC2")), (vec![false], vec![false]));
    driven.heal("0.0.2.2");
    assert_eq!((free(&driven, "VC1"), free(&driven, "VC2")), (vec![true], vec![true]));
    driven.bad("0.0.2.0");
    driven.bad("0.0.2.2");
    driven.delete("pod42");
    assert_eq!((free(&driven, "VC1"), free(&driven, "VC2")), (vec![false; 2], vec![false]));
}

#[test]
fn t6_safe_relaxed_buddy_allocation() {
    let mut config = design();
    let vc1 = config.virtual_clusters.get_mut("VC1").expect("VC1");
    for (cells, number) in [(0, 4), (2, 0), (3, 0)] {
        vc1.virtual_cells[cells].cell_number = number;
    }
    let vc2 = config.virtual_clusters.get_mut("VC2").expect("VC2");
    vc2.virtual_cells[2].cell_type = "4-DGX2-V100-NODE.2-DGX2-V100-NODE".to_owned();
    vc2.virtual_cells[2].cell_number = 1;
    let mut driven = DrivenCells::new(&config);
    let node = |group| spec("VC1", 0, V, 16, group, &[(1, 16)]).lazy().strict();
    let nodes = ["0.0.3.2", "0.0.3.3", "0.0.4.2", "0.0.4.3"];
    let pod44 = driven.schedule_on("pod44", &node("group32"), &nodes);
    assert_eq!(pod44, bind("0.0.3.2", 0..16));
    driven.bad("0.0.3.3");
    let pod45 = driven.schedule_on("pod45", &node("group33"), &nodes);
    assert_eq!(pod45, bind("0.0.4.2", 0..16));
    driven.bad("0.0.4.3");
    let nodes = ["0.0.3.2", "0.0.3.3", "0.0.4.0", "0.0.4.1", "0.0.4.2", "0.0.4.3"];
    driven.schedule_on("pod46", &node("group34"), &nodes).waits("Mapping the virtual placement");
}

#[test]
fn t8_invalid_initial_assignment() {
    let mut config = design();
    let vc1 = config.virtual_clusters.get_mut("VC1").expect("VC1");
    vc1.virtual_cells[0].cell_type = "CT1-NODE".to_owned();
    vc1.virtual_cells[1].cell_type = "CT1-NODE.CT1".to_owned();
    vc1.virtual_cells[1].cell_number = 2;
    let errors = config.validate().expect_err("it asks for too much");
    assert!(
        errors[0]
            .problem
            .contains("need 2 cells of type \"CT1\" (chain \"CT1-NODE\", level 1), 1 can be had"),
        "{errors:?}"
    );
}

/// The reference's example requests of the design cluster.
#[test]
fn example_requests_of_the_design() {
    let mut driven = DrivenCells::new(&design());
    let jobx = |leaves| spec("VC1", 0, V, leaves, "PCN-ABC", &[(1, 16), (3, 8), (1, 4)]);
    assert_eq!(driven.schedule("a", &jobx(16)), bind("0.0.4.0", 0..16));
    assert_eq!(driven.schedule("b0", &jobx(8)), bind("0.0.3.2", 8..16));
    assert_eq!(driven.schedule("b1", &jobx(8)), bind("0.0.3.3", 0..8));
    assert_eq!(driven.schedule("b2", &jobx(8)), bind("0.0.3.3", 8..16));
    assert_eq!(driven.schedule("c", &jobx(4)), bind("0.0.3.2", 0..4));
    let of = |leaf_type, leaves, group, members: &[(i64, i64)]| {
        spec("VC1", 1000, leaf_type, leaves, group, members)
    };
    // Pods that name no group are groups of one.
    for (pod, node) in [("e0", "0.0.1.0"), ("e1", "0.0.5.0")] {
        let one = of(V, 16, pod, &[(1, 16)]);
        assert_eq!(driven.schedule(pod, &one), bind(node, 0..16));
    }
    let f = of("", 3, "PCN-F", &[(2, 3)]).pinned("VC1-YQW-IB-DGX2");
    assert_eq!(driven.schedule("f0", &f), bind("0.1.0.0", 0..3));
    assert_eq!(driven.schedule("f1", &f), bind("0.1.0.0", 4..7));
    // Of any type. The reference takes the types in a random order; here the order is that of the chains.
    let d = of("", 3, "PCN-D", &[(2, 3)]);
    assert_eq!(driven.schedule("d0", &d), bind("0.0.3.2", 4..7));
    assert_eq!(driven.schedule("d1", &d), bind("0.0.4.1", 0..3));
}

/// The reference's example requests of the basic cluster: each virtual cluster has a node of four devices, VC2 a pinned
/// one besides.
#[test]
fn example_requests_of_the_basic_cluster() {
    let mut driven = DrivenCells::yaml(include_str!("../../testdata/basic.yaml"));
    let jobs = [
        ("VC1", "", "10.151.41.20"),
        ("VC2", "", "10.151.41.22"),
        ("VC2", "VC2-K80", "10.151.41.21"),
    ];
    for (vc, pin, node) in jobs {
        for n in 0..5 {
            let pod = format!("{vc}-{pin}-{n}");
            let leaf_type = if pin.is_empty() { "K80" } else { "" };
            let mut one = spec(vc, 1000, leaf_type, 1, &pod, &[(1, 1)]);
            if !pin.is_empty() {
                one = one.pinned(pin);
            }
            let outcome = driven.schedule(&pod, &one);
            match n {
                4 => outcome.waits("insufficient capacity"),
                _ => assert_eq!(outcome, bind(node, [n])),
            }
        }
    }
}
