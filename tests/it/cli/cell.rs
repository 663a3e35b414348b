//! `rcfarm cell …`, and HiveD's configuration in `apply -f`.

use serde_json::json;

use crate::harness::HttpCluster;

const CELLS: &str = "\
physicalCluster:
  cellTypes:
    NODE: {childCellType: GPU, childCellNumber: 2, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 2}
  physicalCells:
    - {cellType: RACK, cellChildren: [{cellAddress: n1}, {cellAddress: n2, pinnedCellId: debug}]}
virtualClusters:
  research: {virtualCells: [{cellType: RACK.NODE, cellNumber: 1}]}
  product: {pinnedCells: [{pinnedCellId: debug}]}
";

fn write(cluster: &HttpCluster, name: &str, text: &str) {
    std::fs::write(cluster.dir.path().join(name), text).unwrap();
}

#[tokio::test]
async fn configurations_of_the_reference_are_accepted_unchanged() {
    let cluster = HttpCluster::new().await;
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cells/testdata");
    let mut tried = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        // One has nothing but comments, others are requests.
        if name == "default.yaml" || name.starts_with("v2-") {
            continue;
        }
        let path = format!("{directory}/{name}");
        let planned = cluster.run(&["cell", "config", "plan", &path]).await;
        assert_eq!(planned.code, 1, "{name}: {planned:?}");
        let applied = cluster.run(&["cell", "config", "apply", &path]).await.ok();
        assert!(applied.starts_with("cells: "), "{name}: {applied}");
        assert_eq!(cluster.run(&["plan", "-f", &path]).await.code, 0, "{name}: nothing to do");
        cluster.run(&["cell", "tree", "--devices"]).await.ok();
        tried += 1;
    }
    assert!(tried >= 10, "{tried}");
}

#[tokio::test]
async fn plan_apply_tree_and_status_of_cells() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "cells.yaml", &format!("webServerAddress: ':9096'\nracks: 1\n{CELLS}"));
    let none = cluster.run(&["cell", "tree"]).await.failed();
    assert!(none.contains("rcfarm cell config apply FILE"), "{none}");
    let planned = cluster.run(&["cell", "config", "plan", "cells.yaml"]).await;
    for line in ["+ node n1: 2 devices", "+ virtual cluster product: pinned debug"] {
        assert!(planned.stdout.contains(line), "{planned:?}");
    }
    let applied = cluster.run(&["cell", "config", "apply", "cells.yaml"]).await;
    assert_eq!(applied.stdout, "cells: created\n");
    assert!(applied.stderr.contains("field racks has no effect"), "{applied:?}");
    assert!(!applied.stderr.contains("webServerAddress"), "{applied:?}");
    assert_eq!(cluster.events().await, ["CELLS_CHANGED"]);

    cluster.put("labels/node/n1".to_owned(), "{}".to_owned()).await;
    let racks = cluster.json(&["cell", "tree"]).await;
    let [n1, n2] = [0, 1].map(|n| &racks[0]["cellChildren"][n]);
    assert_eq!(n1["cellHealthiness"], "Healthy");
    assert_eq!((&n2["cellHealthiness"], &n2["vc"]), (&json!("Bad"), &json!("product")));
    let tree = cluster.run(&["cell", "tree"]).await.ok();
    let nodes: Vec<&str> = tree.lines().filter(|line| line.contains("NODE")).collect();
    assert!(nodes.len() == 2 && nodes[0].starts_with("  NODE"), "{tree}");
    assert!(!tree.contains("GPU"), "devices are left out: {tree}");
    let status = cluster.json(&["cell", "status", "product"]).await;
    assert_eq!(status[0]["physicalCell"], "0/n2");
    let unknown = cluster.run(&["cell", "status", "nobody"]).await.failed();
    assert!(unknown.contains("product, research"), "{unknown}");

    let grown = CELLS.replace("cellNumber: 1", "cellNumber: 2");
    write(&cluster, "cells.yaml", &grown);
    let refused = cluster.run(&["cell", "config", "apply", "cells.yaml"]).await.failed();
    assert!(refused.contains("virtualClusters.research.virtualCells[0].cellNumber"), "{refused}");
    let pool = CELLS.replace(
        "    - {cellType: RACK, ",
        "    - {cellType: NODE, cellAddress: n3}\n    - {cellType: RACK, ",
    );
    write(&cluster, "cells.yaml", &pool);
    let planned = cluster.run(&["plan", "-f", "cells.yaml"]).await;
    assert_eq!((planned.code, planned.stdout.contains("+ node n3")), (1, true), "{planned:?}");
    let applied = cluster.run(&["apply", "-f", "cells.yaml"]).await.ok();
    assert_eq!(applied, "cells: changed\n");
    assert_eq!(cluster.run(&["plan", "-f", "cells.yaml"]).await.code, 0);
}

#[tokio::test]
async fn other_documents_do_not_replace_the_cells() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "cells.yaml", CELLS);
    cluster.run(&["cell", "config", "apply", "cells.yaml"]).await.ok();
    for text in ["", "physicalclusters: {}", "- 1", "kind: Job"] {
        write(&cluster, "other.yaml", text);
        let refused = cluster.run(&["cell", "config", "apply", "other.yaml"]).await.failed();
        assert!(refused.contains("no configuration of cells"), "{text:?}: {refused}");
    }
    write(&cluster, "twice.yaml", &format!("{CELLS}---\n{CELLS}"));
    let refused = cluster.run(&["apply", "-f", "twice.yaml"]).await.failed();
    assert!(refused.contains("second configuration of cells"), "{refused}");
    assert_eq!(cluster.run(&["plan", "-f", "cells.yaml"]).await.code, 0);
}

/// Texts that look like numbers are addresses as they are written, wherever the file is read.
#[tokio::test]
async fn addresses_stay_as_they_are_written() {
    let cluster = HttpCluster::new().await;
    let text = CELLS.replace("n1", "01").replace("n2", "1.10");
    write(&cluster, "cells.yaml", &text);
    cluster.run(&["apply", "-f", "cells.yaml"]).await.ok();
    let racks = cluster.json(&["cell", "tree"]).await;
    assert_eq!(racks[0]["cellChildren"][0]["cellAddress"], "0/01");
    assert_eq!(racks[0]["cellChildren"][1]["cellAddress"], "0/1.10");
    assert_eq!(cluster.run(&["cell", "config", "plan", "cells.yaml"]).await.code, 0);
}

fn job(vc: &str) -> String {
    format!(
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: train}}\nspec:\n  tasks:\n  - name: w\n    \
         replicas: 1\n    template:\n      metadata:\n        annotations:\n          \
         hivedscheduler.microsoft.com/pod-scheduling-spec: |\n            virtualCluster: {vc}\n            \
         leafCellNumber: 2\n      spec: {{restartPolicy: Never, containers: [{{name: c, command: [sleep, '60']}}]}}\n"
    )
}

#[tokio::test]
async fn jobs_ask_for_cells_that_there_are() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "cells.yaml", CELLS);
    write(&cluster, "job.yaml", &job("research"));
    let path = "spec.tasks[0].template.metadata.annotations.hivedscheduler.microsoft.com/pod-scheduling-spec";
    let refused = cluster.run(&["apply", "-f", "job.yaml"]).await.failed();
    assert!(refused.contains(path) && refused.contains("cell config apply"), "{refused}");
    // With the cells in the same command.
    let applied = cluster.run(&["apply", "-f", "job.yaml", "-f", "cells.yaml"]).await.ok();
    assert_eq!(applied, "cells: created\ndefault/train: created\n");
    write(&cluster, "job.yaml", &job("sales"));
    let refused = cluster.run(&["plan", "-f", "job.yaml"]).await.plan_failed();
    assert!(refused.contains(path) && refused.contains("VC sales does not exists!"), "{refused}");
}

#[tokio::test]
async fn plan_names_running_groups_whose_cells_go() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "cells.yaml", CELLS);
    cluster.run(&["cell", "config", "apply", "cells.yaml"]).await.ok();
    let held = json!({
        "request": {"key": {"virtualCluster": "research", "name": "g"}, "priority": 0,
            "ignoreSuggestedNodes": true, "members": [{"pods": 1, "cells": 2}]},
        "chain": "RACK", "preassigned": {"research/0": "NODE"},
        "pods": [{"node": "n1", "devices": "0-1", "cell": "research/0", "leaves": "0-1", "pod": "w/0"}],
    });
    let status = json!({"phase": "Running", "placement": {"state": "Bound",
        "members": {"w": ["n1"]}, "cells": held}});
    cluster.put("rcfarm/pod_group_status/default/train".to_owned(), status.to_string()).await;
    let status = cluster.json(&["cell", "status", "research"]).await;
    assert_eq!(
        (&status[0]["usedLeafCells"], &status[0]["physicalCell"]),
        (&json!(2), &json!("0/n1"))
    );
    let tree = cluster.run(&["cell", "tree", "--devices"]).await.ok();
    assert!(tree.contains("research/g"), "{tree}");
    let less = CELLS.replace("cellAddress: n1", "cellAddress: n9");
    write(&cluster, "cells.yaml", &less);
    let planned = cluster.run(&["cell", "config", "plan", "cells.yaml"]).await;
    for words in ["- node n1", "! group research/g: no cell has device 0 of node n1"] {
        assert!(planned.stdout.contains(words), "{planned:?}");
    }
}
