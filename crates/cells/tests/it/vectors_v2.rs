//! The reference's file cases of version 2: `hived.md` §4.4.

use rcfarm_cells::request::{
    PodGroupMemberCellSpec, PodGroupMemberSpec, PodGroupSchedulingSpec, PodRootGroupSpec,
};

use crate::driven::{DrivenCells, Outcome, Phase, bind, preempt};

const G1: &str = include_str!("../../testdata/v2-group1.yaml");
const G2: &str = include_str!("../../testdata/v2-group2.yaml");
const G3: &str = include_str!("../../testdata/v2-group3.yaml");

/// Pods of a cell type, `cells` each, within one cell of a type.
fn pods(count: i64, cells: i64, cell_type: &str, within: &str) -> PodRootGroupSpec {
    PodRootGroupSpec {
        name: "child".to_owned(),
        within_one_cell: within.to_owned(),
        pod: Some(PodGroupMemberSpec {
            pod_min_number: count,
            pod_max_number: count,
            cells_per_pod: PodGroupMemberCellSpec {
                cell_type: cell_type.to_owned(),
                cell_number: cells,
            },
            contains_current_pod: false,
        }),
        ..PodRootGroupSpec::default()
    }
}

struct Cases(DrivenCells, u32);

impl Cases {
    fn new(config: &str) -> Cases {
        Cases(DrivenCells::yaml(config), 0)
    }

    /// Schedules all pods of a new group; the answer for each, until one gets no place.
    fn all(&mut self, vc: &str, priority: i64, root: &PodRootGroupSpec) -> Vec<Outcome> {
        self.1 += 1;
        let mut root = root.clone();
        root.name = format!("group{}", self.1);
        let groups = 1 + root.child_groups.len();
        let mut outcomes = Vec::new();
        for at in 0..groups {
            let mut root = root.clone();
            let group = if at == 0 { &mut root } else { &mut root.child_groups[at - 1] };
            let Some(pod) = &mut group.pod else { continue };
            pod.contains_current_pod = true;
            let (count, cells) = (pod.pod_min_number, pod.cells_per_pod.clone());
            let spec = PodGroupSchedulingSpec {
                version: "v2".to_owned(),
                virtual_cluster: vc.to_owned(),
                priority,
                cell_type: cells.cell_type,
                cell_number: cells.cell_number,
                pod_root_group: Some(root),
                ..PodGroupSchedulingSpec::default()
            };
            for n in 0..count {
                let pod = format!("{}-{at}-{n}", self.1);
                let request = spec.request("test", &pod).expect("it is legal");
                outcomes.push(self.0.decide(&pod, &request, Phase::Preempting, None));
                if !matches!(outcomes.last(), Some(Outcome::Bind(..))) {
                    return outcomes;
                }
            }
        }
        outcomes
    }

    fn first(&mut self, vc: &str, priority: i64, root: &PodRootGroupSpec) -> Outcome {
        self.all(vc, priority, root).remove(0)
    }
}

fn node(n: u32, devices: impl IntoIterator<Item = i32>) -> Outcome {
    bind(&format!("0.0.0.{n}"), devices)
}

#[test]
fn g1c1_pods_within_a_node() {
    let mut cases = Cases::new(G1);
    assert_eq!(cases.all("VC1", 1, &pods(1, 5, "V100", "")), [node(1, 0..5)]);
    let four = cases.all("VC1", 2, &pods(4, 1, "V100", "V100-NODE"));
    assert_eq!(four, [node(2, [0]), node(2, [1]), node(2, [2]), node(2, [3])]);
}

#[test]
fn g1c2_pods_within_a_socket() {
    let mut cases = Cases::new(G1);
    assert_eq!(cases.all("VC1", 1, &pods(1, 1, "V100", "")), [node(1, [0])]);
    let four = cases.all("VC1", 2, &pods(4, 1, "V100", "V100-SOCKET"));
    assert_eq!(four, [node(1, [4]), node(1, [5]), node(1, [6]), node(1, [7])]);
}

#[test]
fn g1c3_pods_of_switches() {
    let mut cases = Cases::new(G1);
    cases.all("VC1", 1, &pods(1, 1, "V100", ""));
    let four = cases.all("VC1", 2, &pods(4, 1, "V100-SWITCH", ""));
    assert_eq!(four[..3], [node(1, [2, 3]), node(1, [4, 5]), node(1, [6, 7])]);
    assert_eq!(four.len(), 4);
}

#[test]
fn g1c4_pods_of_two_within_a_node() {
    let mut cases = Cases::new(G1);
    cases.all("VC1", 1, &pods(1, 1, "V100", ""));
    let four = cases.all("VC1", 2, &pods(4, 2, "V100", "V100-NODE"));
    assert_eq!(four, [node(2, [0, 1]), node(2, [2, 3]), node(2, [4, 5]), node(2, [6, 7])]);
}

#[test]
fn g1c5_nodes_within_a_rack() {
    let mut cases = Cases::new(G1);
    cases.all("VC1", 1, &pods(1, 1, "V100", ""));
    let two = cases.all("VC1", 2, &pods(2, 1, "V100-NODE", "V100-RACK"));
    assert_eq!(two, [node(3, 0..8), node(4, 0..8)]);
}

#[test]
fn g1c6_a_socket_within_a_socket() {
    let mut cases = Cases::new(G1);
    cases.all("VC1", 1, &pods(1, 1, "V100", ""));
    assert_eq!(cases.all("VC1", 2, &pods(1, 1, "V100-SOCKET", "V100-SOCKET")), [node(1, 4..8)]);
}

/// Three groups with five devices on nodes 1 to 3, of which the second ends.
fn three_groups(priority: i64) -> Cases {
    let mut cases = Cases::new(G1);
    for n in 1..=3 {
        assert_eq!(cases.all("VC1", priority, &pods(1, 5, "V100", "")), [node(n, 0..5)]);
    }
    cases.0.delete("2-0-0");
    cases
}

#[test]
fn g1c7_within_a_rack_preempts() {
    let mut cases = three_groups(1);
    let found = cases.first("VC1", 2, &pods(2, 1, "V100-NODE", "V100-RACK"));
    assert_eq!(found, preempt(&["1-0-0"]));
}

#[test]
fn g1c8_without_bound_needs_no_preemption() {
    let mut cases = three_groups(1);
    let found = cases.all("VC1", 2, &pods(2, 1, "V100-NODE", ""));
    assert_eq!(found, [node(2, 0..8), node(4, 0..8)]);
}

#[test]
fn g1c9_lower_priority_waits() {
    let mut cases = three_groups(100);
    cases.first("VC1", 1, &pods(2, 1, "V100-NODE", "V100-RACK")).waits("insufficient capacity");
}

#[test]
fn g2c1_two_virtual_clusters() {
    let mut cases = Cases::new(G2);
    assert_eq!(cases.all("VC1", 1, &pods(1, 5, "V100", "")), [node(1, 0..5)]);
    let three = cases.all("VC1", 1, &pods(3, 1, "V100-SOCKET", ""));
    assert_eq!(three, [node(2, 0..4), node(2, 4..8), node(3, 0..4)]);
    cases.first("VC1", 1, &pods(13, 1, "V100", "V100-RACK")).waits("insufficient capacity");
    assert_eq!(cases.all("VC2", 1, &pods(2, 5, "V100", "")), [node(5, 0..5), node(6, 0..5)]);
    assert_eq!(cases.first("VC1", 1, &pods(13, 1, "V100", "")), node(1, [5]));
}

#[test]
fn g2c2_another_chain() {
    let mut cases = Cases::new(G2);
    assert_eq!(cases.all("VC1", 1, &pods(1, 1, "K80", "")), [bind("1.0.0.1", [0])]);
    assert_eq!(cases.all("VC2", 1, &pods(1, 1, "K80", "")), [bind("1.0.0.3", [0])]);
}

#[test]
fn g2c3_doomed_rack() {
    let mut cases = Cases::new(G2);
    for n in 4..=6 {
        cases.0.bad(&format!("0.0.0.{n}"));
    }
    assert_eq!(cases.first("VC1", 1, &pods(1, 1, "V100", "")), node(3, [0]));
    assert_eq!(cases.first("VC2", 1, &pods(1, 1, "V100", "")), node(1, [0]));
    cases.first("VC1", 1, &pods(4, 1, "V100-SOCKET", "")).waits("bad");
}

fn four_nodes_per_rack() -> Cases {
    let mut cases = Cases::new(G3);
    for n in 5..=7 {
        cases.0.bad(&format!("0.0.0.{n}"));
    }
    cases
}

fn cascade(last_within: &str) -> PodRootGroupSpec {
    let switches = |count, within| pods(count, 1, "V100-SWITCH", within);
    PodRootGroupSpec {
        within_one_cell: "V100-RACK".to_owned(),
        child_groups: vec![
            switches(3, "V100-NODE"),
            switches(3, "V100-NODE"),
            switches(2, last_within),
        ],
        ..PodRootGroupSpec::default()
    }
}

#[test]
fn g3c1_cascade_waits() {
    let mut cases = four_nodes_per_rack();
    assert_eq!(cases.first("VC1", 1, &pods(11, 1, "V100", "V100-RACK")), node(1, [0]));
    assert_eq!(cases.first("VC1", 1, &pods(1, 1, "V100", "")), node(2, [3]));
    assert_eq!(cases.first("VC1", 1, &pods(1, 1, "V100", "")), node(2, [4]));
    cases.0.delete("2-0-0");
    cases.first("VC1", 1, &cascade("V100-NODE")).waits("");
}

#[test]
fn g3c2_cascade_of_nodes() {
    let mut cases = four_nodes_per_rack();
    assert_eq!(cases.first("VC1", 1, &pods(11, 1, "V100", "V100-RACK")), node(1, [0]));
    let found = cases.all("VC1", 1, &cascade("V100-NODE"));
    assert_eq!(
        (&found[0], &found[3], &found[6]),
        (&node(3, [0, 1]), &node(4, [0, 1]), &node(2, [4, 5]))
    );
}

#[test]
fn g3c3_cascade_without_bound() {
    let mut cases = four_nodes_per_rack();
    assert_eq!(cases.first("VC1", 1, &pods(15, 1, "V100", "V100-RACK")), node(1, [0]));
    let found = cases.all("VC1", 1, &cascade(""));
    assert_eq!(found[0], node(3, [0, 1]));
    assert_eq!(found[3], node(4, [0, 1]));
    assert_eq!(found[6..], [node(3, [6, 7]), node(4, [6, 7])]);
}
