//! Configurations of cells, and jobs that ask for cells.

use serde_json::{Value, json};

use super::users::Workload;
use crate::fleet::node;
use rcfarm_api::key;

/// Number of configurations; the first one is the one of the beginning and the end.
pub const CONFIGS: usize = 4;
const ANNOTATION: &str = "hivedscheduler.microsoft.com/pod-scheduling-spec";

/// A configuration: two racks of two nodes each. The second to last lacks a virtual cluster, the last is not valid.
fn config(n: usize) -> Value {
    if n == 3 {
        return json!({"physicalCluster": {"cellTypes": 7}});
    }
    let rack = |cells: Value| json!({"cellType": "RACK", "cellChildren": cells});
    let cell = |n: usize| json!({"cellAddress": node(n)});
    let pinned = json!({"cellAddress": node(3), "pinnedCellId": "debug"});
    let virtuals = |of: &str| json!([{"cellType": of, "cellNumber": 1}]);
    let mut clusters = json!({"A": {"virtualCells": virtuals("RACK")}});
    let b = |of: &str| json!({"virtualCells": virtuals(of), "pinnedCells": [{"pinnedCellId": "debug"}]});
    match n {
        0 => clusters["B"] = b("RACK.NODE"),
        1 => clusters = json!({"A": {"virtualCells": virtuals("RACK.NODE")}, "B": b("RACK")}),
        _ => {}
    }
    json!({
        "physicalCluster": {
            "cellTypes": {
                "PAIR": {"childCellType": "GPU", "childCellNumber": 2},
                "NODE": {"childCellType": "PAIR", "childCellNumber": 2, "isNodeLevel": true},
                "RACK": {"childCellType": "NODE", "childCellNumber": 2},
            },
            "physicalCells": [rack(json!([cell(0), cell(1)])), rack(json!([cell(2), pinned]))],
        },
        "virtualClusters": clusters,
    })
}

/// The document of a job that asks for cells. Guaranteed ones fit into their virtual cluster.
#[must_use]
pub fn document(kind: &str, n: usize) -> Value {
    let is_a = n.is_multiple_of(2) && kind != "pin";
    let is_lent = matches!(kind, "hog" | "lent");
    let shapes: &[(u32, u32)] = match (kind, is_a) {
        ("hog", _) => &[(4, 4), (2, 4)],
        ("lent", _) => &[(2, 4), (3, 2), (4, 1)],
        ("pin", _) => &[(1, 4), (2, 2)],
        (_, true) => &[(2, 4), (2, 2), (1, 4), (4, 2)],
        (_, false) => &[(1, 4), (2, 2), (1, 2)],
    };
    let (pods, devices) = shapes[n / 2 % shapes.len()];
    let priority = match kind {
        "high" => 10,
        "pin" => 5,
        _ if is_lent => -1,
        _ => 0,
    };
    let more = match kind {
        "lazy" => "lazyPreemptionEnable: true\n",
        "pin" => "pinnedCellId: debug\n",
        _ => "",
    };
    let vc = if is_a { "A" } else { "B" };
    let annotation =
        format!("virtualCluster: {vc}\npriority: {priority}\nleafCellNumber: {devices}\n{more}");
    let template = json!({
        "metadata": {"annotations": {ANNOTATION: annotation}},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "command": ["true"], "resources": {"requests": {"cpu": "100m"}}}]},
    });
    let queue = if n % 3 == 1 && !is_lent { "loose" } else { "default" };
    json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": {
        "queue": queue, "maxRetry": 5, "restartDelay": {"first": "1s", "longest": "4s"},
        "policies": [{"event": "PodFailed", "action": "RestartJob"}],
        "tasks": [{"name": "w", "replicas": pods, "template": template}],
    }})
}

impl Workload {
    /// Writes a configuration of cells.
    pub fn configure_cells(&self, n: usize) {
        self.put(&key::cell_config(), config(n).to_string());
    }
}
