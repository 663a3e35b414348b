//! Vectors of the mini cluster, observed on the reference: `hived.md` §4.2. `m…` and `p…` are its numbers, `b…` those of
//! its defects in `hived.md` §7.4.

use rcfarm_cells::AffinityGroupState::{Allocated, BeingPreempted, Preempting};

use crate::driven::{DrivenCells, Phase, Spec, bind, preempt, spec};

/// Two racks of two nodes of two pairs of devices. A has a rack, B two nodes.
pub const MINI: &str = "
physicalCluster:
  cellTypes:
    PAIR: {childCellType: GPU, childCellNumber: 2}
    NODE: {childCellType: PAIR, childCellNumber: 2, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 2}
  physicalCells:
  - {cellType: RACK, cellChildren: [{cellAddress: n0}, {cellAddress: n1}]}
  - {cellType: RACK, cellChildren: [{cellAddress: n2}, {cellAddress: n3}]}
virtualClusters:
  A: {virtualCells: [{cellType: RACK, cellNumber: 1}]}
  B: {virtualCells: [{cellType: RACK.NODE, cellNumber: 2}]}
";

fn mini() -> DrivenCells {
    DrivenCells::yaml(MINI)
}

/// `pods` pods with `leaves` devices each.
pub fn gang(vc: &str, group: &str, pods: i64, leaves: i64, priority: i64) -> Spec {
    spec(vc, priority, "GPU", leaves, group, &[(pods, leaves)])
}

fn one(vc: &str, group: &str, leaves: i64) -> Spec {
    gang(vc, group, 1, leaves, 0)
}

fn lent(group: &str, leaves: i64) -> Spec {
    gang("B", group, 1, leaves, -1)
}

#[test]
fn m1_safety() {
    let mut driven = mini();
    for (n, (node, device)) in
        [("n0", 0), ("n0", 1), ("n0", 2), ("n0", 3), ("n1", 0)].into_iter().enumerate()
    {
        let group = format!("a{n}");
        assert_eq!(driven.schedule(&group, &one("A", &group, 1)), bind(node, [device]));
    }
    assert_eq!(driven.schedule("b0", &one("B", "b0", 4)).node(), "n2");
    assert_eq!(driven.schedule("b1", &one("B", "b1", 4)).node(), "n3");
    driven
        .schedule("b2", &one("B", "b2", 4))
        .waits("insufficient capacity when scheduling in VC B");
}

#[test]
fn m2_splitting_leaves_room_for_the_rack() {
    let mut driven = mini();
    assert_eq!(driven.schedule("b0", &one("B", "b0", 4)).node(), "n0");
    assert_eq!(driven.schedule("a0", &gang("A", "a", 2, 4, 0)).node(), "n2");
    assert_eq!(driven.schedule("a1", &gang("A", "a", 2, 4, 0)).node(), "n3");
    assert_eq!(driven.schedule("b1", &one("B", "b1", 4)).node(), "n1");
}

#[test]
fn m3_guaranteed_preempts_opportunistic() {
    let mut driven = mini();
    for n in 0..4 {
        let (pod, node) = (format!("o{n}"), format!("n{n}"));
        assert_eq!(driven.schedule(&pod, &gang("B", "o", 4, 4, -1)).node(), node);
    }
    let a = one("A", "a", 1);
    let all = ["o0", "o1", "o2", "o3"];
    assert_eq!(driven.filter("a", &a), preempt(&all));
    assert_eq!(driven.state("A", "a"), None);
    assert_eq!(driven.schedule("a", &a), preempt(&all));
    assert_eq!(driven.state("A", "a"), Some(Preempting));
    assert_eq!(driven.cells.leaf("n0", 0), Some(("Reserving", 0)));
    assert_eq!(driven.cells.leaf("n0", 1), Some(("Used", -1)));
    for n in 0..4 {
        assert_eq!(driven.schedule("a", &a), preempt(&all[n..]));
        driven.delete(all[n]);
    }
    assert_eq!(driven.filter("a", &a), bind("n0", [0]));
}

#[test]
fn m4_guaranteed_avoids_lent_cells() {
    let mut driven = mini();
    assert_eq!(driven.schedule("o0", &lent("o0", 4)).node(), "n0");
    assert_eq!(driven.schedule("a", &one("A", "a", 4)).node(), "n2");
    assert_eq!(driven.schedule("b0", &one("B", "b0", 4)).node(), "n1");
    assert_eq!(driven.schedule("b1", &one("B", "b1", 4)), preempt(&["o0"]));
}

/// Amended (defect B1): once the preemptor has gone, the group is Allocated again, and its second pod gets its place.
#[test]
fn m5_cancelled_preemption_reverts() {
    let mut driven = mini();
    let g0 = gang("A", "g0", 2, 4, 0);
    driven.schedule("a0", &g0);
    assert_eq!(driven.schedule("h0", &gang("A", "h", 2, 4, 5)), preempt(&["a0"]));
    assert_eq!(driven.state("A", "g0"), Some(BeingPreempted));
    driven.delete("h0");
    assert_eq!(driven.state("A", "g0"), Some(Allocated));
    assert_eq!(driven.cells.leaf("n0", 0), Some(("Used", 0)));
    assert_eq!(driven.schedule("a1", &g0).node(), "n1");
}

/// Amended (defect B1): a further pod of a group that is being preempted waits; the reference crashes.
#[test]
fn m6_pod_of_a_preempted_group_waits() {
    let mut driven = mini();
    let g0 = gang("A", "g0", 2, 4, 0);
    driven.schedule("a0", &g0);
    driven.schedule("h0", &gang("A", "h", 2, 4, 5));
    driven.schedule("a1", &g0).waits("the group is being preempted by A/h");
}

/// Amended (defect B2): the higher priority ends the reservation; the reference lets the lower one preempt it.
#[test]
fn m7_bind_onto_reserved_cells_cancels_the_reservation() {
    let mut driven = mini();
    for pod in ["a0", "a1"] {
        driven.schedule(pod, &gang("A", "g0", 2, 4, 0));
    }
    let h = gang("A", "h", 2, 4, 5);
    assert_eq!(driven.schedule("h0", &h), preempt(&["a0", "a1"]));
    driven.delete("a0");
    driven.delete("a1");
    assert_eq!(driven.cells.leaf("n0", 0), Some(("Reserved", 5)));
    assert_eq!(driven.filter("k0", &gang("A", "k", 2, 4, 9)).node(), "n0");
    assert_eq!(driven.state("A", "h"), None);
    driven.schedule("h0", &h).waits("insufficient capacity");
}

#[test]
fn m8_lazy_preemption() {
    let mut driven = mini();
    for pod in ["a0", "a1"] {
        driven.schedule(pod, &gang("A", "g0", 2, 4, 0).lazy());
    }
    let h = gang("A", "h", 2, 4, 5);
    assert_eq!(driven.schedule("h0", &h).node(), "n2");
    assert_eq!(driven.schedule("h1", &h).node(), "n3");
    assert_eq!(driven.state("A", "g0"), Some(Allocated));
    assert_eq!(driven.preemptor("A", "g0").as_deref(), Some("h"));
    assert_eq!(driven.cells.leaf("n0", 0), Some(("Used", -1)));
    let b = one("B", "b", 4);
    assert_eq!(driven.schedule("b", &b), preempt(&["a0", "a1"]));
    driven.delete("a0");
    driven.delete("a1");
    assert_eq!(driven.schedule("b", &b).node(), "n0");
}

/// Amended (defect B7): a decision that is not committed changes nothing, and the guarantee comes back when the preemptor
/// goes.
#[test]
fn m8c_lazy_preemption_is_undone() {
    let mut driven = mini();
    driven.schedule("b0", &one("B", "b0", 4));
    driven.schedule("b1", &one("B", "b1", 4));
    for pod in ["a0", "a1"] {
        driven.schedule(pod, &gang("A", "g0", 2, 4, 0).lazy());
    }
    let h = gang("A", "h", 2, 4, 5);
    assert_eq!(driven.filter("h0", &h), preempt(&["a0", "a1"]));
    assert_eq!(driven.preemptor("A", "g0"), None);
    assert_eq!(driven.schedule("h0", &h), preempt(&["a0", "a1"]));
    assert_eq!(driven.state("A", "g0"), Some(BeingPreempted));
    assert_eq!(driven.preemptor("A", "g0").as_deref(), Some("h"));
    driven.delete("h0");
    assert_eq!(driven.state("A", "g0"), Some(Allocated));
    assert_eq!(driven.preemptor("A", "g0"), None);
    assert_eq!(driven.cells.leaf("n2", 0), Some(("Used", 0)));
}

/// Amended (defect B4): a group keeps the setting, so a reservation of a group that ignores suggested nodes stays.
#[test]
fn m9_suggested_nodes() {
    let mut driven = mini();
    let a = |group| one("A", group, 4);
    assert_eq!(driven.schedule_on("a0", &a("a0"), &[]).node(), "n0");
    driven.delete("a0");
    driven.schedule_on("a1", &a("a1").strict(), &[]).waits("non-suggested node");
    assert_eq!(driven.schedule_on("a1", &a("a1").strict(), &["n1"]).node(), "n1");
    driven.delete("a1");

    for n in 0..4 {
        driven.schedule(&format!("o{n}"), &lent(&format!("o{n}"), 4));
    }
    assert_eq!(driven.schedule("p", &a("p")), preempt(&["o0"]));
    assert_eq!(driven.schedule_on("p", &a("p"), &["n3"]), preempt(&["o0"]));
    assert_eq!(driven.state("A", "p"), Some(Preempting));
}

#[test]
fn m11_cells_are_held_until_the_last_pod_ends() {
    let mut driven = mini();
    let g = gang("A", "g", 2, 4, 0);
    assert_eq!(driven.schedule("a0", &g).node(), "n0");
    assert_eq!(driven.schedule("a1", &g).node(), "n1");
    driven
        .schedule("a2", &g)
        .refused("Requesting more pods than the configured number for 4 leaf cells (2 pods)");
    driven.delete("a0");
    driven.schedule("b", &one("A", "b", 1)).waits("insufficient capacity");
    assert_eq!(driven.schedule("a3", &g).node(), "n0");
    driven.delete("a1");
    driven.delete("a3");
    assert_eq!(driven.state("A", "g"), None);
}

#[test]
fn m12_bad_nodes() {
    let mut driven = mini();
    driven.bad("n0");
    assert_eq!(driven.schedule("a0", &gang("A", "a", 2, 4, 0)).node(), "n2");
    assert_eq!(driven.schedule("b0", &one("B", "b0", 4)).node(), "n1");
    driven.schedule("b1", &one("B", "b1", 4)).waits("have to use at least one bad node 0/n0");
    assert_eq!(driven.cells.doomed(), [("B/0".to_owned(), "0/n0".to_owned())]);
}

#[test]
fn m13_preemption_to_its_end() {
    let mut driven = mini();
    for pod in ["a0", "a1"] {
        driven.schedule(pod, &gang("A", "g0", 2, 4, 0));
    }
    let h = gang("A", "h", 2, 4, 5);
    assert_eq!(driven.schedule("h0", &h), preempt(&["a0", "a1"]));
    assert_eq!(driven.schedule("h1", &h), preempt(&["a0", "a1"]));
    driven.delete("a0");
    driven.delete("a1");
    assert_eq!(driven.cells.leaf("n1", 3), Some(("Reserved", 5)));
    assert_eq!(driven.schedule("h0", &h).node(), "n0");
    assert_eq!(driven.state("A", "h"), Some(Allocated));
    assert_eq!(driven.schedule("h1", &h).node(), "n1");
    assert_eq!(driven.cells.leaf("n1", 3), Some(("Used", 5)));
}

#[test]
fn m14_equal_priority_does_not_preempt() {
    let mut driven = mini();
    driven.schedule("a0", &gang("A", "g", 2, 4, 3));
    driven.schedule("a1", &gang("A", "h", 2, 4, 3)).waits("insufficient capacity");
}

#[test]
fn m16_leaves_close_together() {
    let mut driven = mini();
    let mut go = |group: &str, leaves| driven.schedule(group, &one("A", group, leaves));
    assert_eq!(go("a", 1), bind("n0", [0]));
    assert_eq!(go("b", 2), bind("n0", [2, 3]));
    assert_eq!(go("c", 1), bind("n0", [1]));
    assert_eq!(go("d", 3), bind("n1", [0, 1, 2]));
    assert_eq!(go("e", 1), bind("n1", [3]));
}

#[test]
fn m18_opportunistic_stays_away() {
    let mut driven = mini();
    assert_eq!(driven.schedule("a", &one("A", "a", 1)), bind("n0", [0]));
    assert_eq!(driven.schedule("o0", &lent("o0", 1)), bind("n1", [0]));
    assert_eq!(driven.schedule("o1", &lent("o1", 1)), bind("n1", [1]));
    assert_eq!(driven.schedule("o2", &lent("o2", 4)).node(), "n2");
    assert_eq!(driven.schedule("o3", &lent("o3", 2)), bind("n1", [2, 3]));
}

#[test]
fn m20_a_third_group_takes_the_reservation_over() {
    let mut driven = mini();
    for pod in ["a0", "a1"] {
        driven.schedule(pod, &gang("A", "g0", 2, 4, 0));
    }
    let h = gang("A", "h", 2, 4, 5);
    driven.schedule("h0", &h);
    assert_eq!(driven.schedule("k0", &gang("A", "k", 2, 4, 9)), preempt(&["a0", "a1"]));
    assert_eq!(driven.state("A", "h"), None);
    assert_eq!(driven.state("A", "k"), Some(Preempting));
    driven.schedule("h0", &h).waits("insufficient capacity");
    driven.delete("k0");
    assert_eq!(driven.state("A", "g0"), Some(Allocated));
    assert_eq!(driven.cells.leaf("n0", 0), Some(("Used", 0)));
}

#[test]
fn p2_a_gang_stays_in_one_chain() {
    let text = "
physicalCluster:
  cellTypes:
    X: {childCellType: GPU, childCellNumber: 2, isNodeLevel: true}
    Y: {childCellType: GPU, childCellNumber: 2, isNodeLevel: true}
  physicalCells: [{cellType: X, cellAddress: x}, {cellType: Y, cellAddress: y}]
virtualClusters:
  A: {virtualCells: [{cellType: X, cellNumber: 1}, {cellType: Y, cellNumber: 1}]}
";
    let mut driven = DrivenCells::yaml(text);
    driven.schedule("g", &gang("A", "g", 2, 2, 0)).waits("insufficient capacity");
    assert_eq!(driven.schedule("a", &one("A", "a", 2)).node(), "y");
    assert_eq!(driven.schedule("b", &one("A", "b", 2)).node(), "x");
}

#[test]
fn p3_cells_below_a_node_act_as_nodes() {
    let text = MINI
        .replace("{cellType: RACK, cellNumber: 1}", "{cellType: RACK.NODE.PAIR, cellNumber: 2}");
    let mut driven = DrivenCells::yaml(&text);
    driven.schedule("x", &one("A", "x", 4)).waits("insufficient capacity");
    assert_eq!(driven.schedule("a0", &gang("A", "g", 2, 2, 0)), bind("n0", [0, 1]));
    assert_eq!(driven.schedule("a1", &gang("A", "g", 2, 2, 0)), bind("n0", [2, 3]));
}

#[test]
fn p5_pinned_cells() {
    let text = MINI.replace("{cellAddress: n0}", "{cellAddress: n0, pinnedCellId: p}").replace(
        "A: {virtualCells: [{cellType: RACK, cellNumber: 1}]}",
        "A: {virtualCells: [{cellType: RACK.NODE, cellNumber: 1}], pinnedCells: [{pinnedCellId: p}]}",
    );
    let mut driven = DrivenCells::yaml(&text);
    let p = |group, priority| gang("A", group, 1, 4, priority).pinned("p");
    assert_eq!(driven.schedule("a0", &p("a0", 0)).node(), "n0");
    assert_eq!(driven.schedule("a1", &one("A", "a1", 4)).node(), "n1");
    driven.schedule("a2", &one("A", "a2", 4)).waits("insufficient capacity");
    driven
        .schedule("o", &p("o", -1))
        .refused("opportunistic pod not supported to use pinned cell p");
    let b = gang("B", "b", 1, 4, 0).pinned("p");
    driven.schedule("b", &b).refused("VC B does not have pinned cell p");
    driven.delete("a0");
    assert_eq!(driven.schedule("o", &lent("o", 4)).node(), "n0");
    assert_eq!(driven.schedule("a3", &p("a3", 0)), preempt(&["o"]));
}

#[test]
fn p8_reservation_keeps_others_off_its_victims() {
    let mut driven = mini();
    for n in 0..4 {
        assert_eq!(
            driven.schedule(&format!("o{n}"), &lent(&format!("o{n}"), 4)).node(),
            format!("n{n}")
        );
    }
    assert_eq!(driven.schedule("a0", &gang("A", "a", 2, 4, 0)), preempt(&["o0", "o1"]));
    driven.delete("o0");
    assert_eq!(driven.cells.leaf("n0", 0), Some(("Reserved", 0)));
    assert_eq!(driven.cells.leaf("n1", 0), Some(("Reserving", 0)));
    assert_eq!(driven.schedule("b", &one("B", "b", 4)), preempt(&["o2"]));
}

/// Amended (defect B6): names of groups are scoped by virtual cluster, and all pods of a group make the same request.
#[test]
fn p10_groups_are_scoped_and_uniform() {
    let mut driven = mini();
    driven.schedule("a0", &gang("A", "g", 2, 1, 0));
    driven
        .schedule("a1", &spec("A", 0, "GPU", 2, "g", &[(2, 1)]))
        .refused("does not contains current Pod");
    driven
        .schedule("a1", &gang("A", "g", 1, 1, 0))
        .refused("differs from that of affinity group g");
    driven
        .schedule("a1", &gang("A", "g", 2, 1, 5))
        .refused("differs from that of affinity group g");
    assert_eq!(driven.schedule("b0", &gang("B", "g", 2, 1, 5)).node(), "n2");
    assert_eq!(driven.schedule("a1", &gang("A", "g", 2, 1, 0)), bind("n0", [1]));
}

/// Amended (defect B13): free devices 3 and 4, and a gang of 2, 2 and 3.
#[test]
fn p15_packing_is_complete() {
    let mut driven = mini();
    assert_eq!(driven.schedule("x", &one("A", "x", 1)).node(), "n0");
    let g = |leaves| spec("A", 0, "GPU", leaves, "g", &[(2, 2), (1, 3)]);
    assert_eq!(driven.schedule("g0", &g(3)), bind("n0", [1, 2, 3]));
    assert_eq!(driven.schedule("g1", &g(2)), bind("n1", [0, 1]));
    assert_eq!(driven.schedule("g2", &g(2)), bind("n1", [2, 3]));
}

/// Defect B3: the reference crashes in both.
#[test]
fn b3_doomed_cells_survive_healing() {
    let mut driven = mini();
    driven.bad("n3");
    driven.bad("n0");
    assert_eq!(driven.schedule("a0", &one("A", "a0", 2)).node(), "n1");
    driven.heal("n0");
    assert_eq!(driven.schedule("a1", &one("A", "a1", 1)).node(), "n1");

    let mut driven = mini();
    driven.schedule("b", &one("B", "b", 2));
    driven.bad("n3");
    assert_eq!(driven.schedule("a0", &one("A", "a0", 3)).node(), "n2");
    driven.heal("n3");
    driven.delete("a0");
    assert_eq!(driven.schedule("a1", &one("A", "a1", 1)), bind("n2", [0]));
}

/// What the reference waits for with an empty reason, `hived.md` §5.1.
#[test]
fn waits_always_say_why() {
    let text = MINI.replace("virtualClusters:", "virtualClusters:\n  C: {}");
    let mut driven = DrivenCells::yaml(&text);
    let any = spec("C", 0, "", 1, "c", &[(1, 1)]);
    driven.schedule("c", &any).waits("VC C has no cells");
    let large = one("A", "large", 9);
    driven.schedule_in("large", &large, Phase::Filtering, None).waits("insufficient capacity");
}
