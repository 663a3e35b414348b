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

/// Two chains: a rack of two nodes, and a node of its own. `research` has a node of each.
const TWO_CHAINS: &str = "\
physicalCluster:
  cellTypes:
    NODE: {childCellType: GPU, childCellNumber: 2, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 2}
    BOX: {childCellType: GPU, childCellNumber: 2, isNodeLevel: true}
  physicalCells:
    - {cellType: RACK, cellChildren: [{cellAddress: n1}, {cellAddress: n2}]}
    - {cellType: BOX, cellAddress: n3}
virtualClusters:
  research: {virtualCells: [{cellType: RACK.NODE, cellNumber: 1}, {cellType: BOX, cellNumber: 1}]}
  product: {virtualCells: [{cellType: RACK.NODE, cellNumber: 1}]}
";

/// A running group that has all devices of a node. `cell`: its virtual cell; none: it is opportunistic.
async fn holds(
    cluster: &HttpCluster,
    name: &str,
    vc: &str,
    node: &str,
    cell: Option<(&str, &str)>,
) {
    let mut pod = json!({"node": node, "devices": "0-1", "pod": "w/0"});
    let mut record = json!({
        "request": {"key": {"virtualCluster": vc, "name": name}, "priority": -1,
            "ignoreSuggestedNodes": true, "members": [{"pods": 1, "cells": 2}]},
        "chain": "RACK",
    });
    if let Some((cell, of)) = cell {
        pod["cell"] = json!(cell);
        pod["leaves"] = json!("0-1");
        record["request"]["priority"] = json!(0);
        record["preassigned"] = json!({cell: of});
    }
    record["pods"] = json!([pod]);
    let status = json!({"phase": "Running", "placement": {"state": "Bound",
        "members": {"w": [node]}, "cells": record}});
    cluster.put(format!("rcfarm/pod_group_status/default/{name}"), status.to_string()).await;
}

#[tokio::test]
async fn what_if_says_where_a_job_goes_and_who_goes_for_it() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "job.yaml", &job("research"));
    let ask = ["cell", "what-if", "-f", "job.yaml"];
    let none = cluster.run(&ask).await;
    assert_eq!(none.code, 2, "{none:?}");
    assert!(none.stderr.contains("rcfarm cell config apply FILE"), "{none:?}");
    write(&cluster, "cells.yaml", TWO_CHAINS);
    cluster.run(&["cell", "config", "apply", "cells.yaml"]).await.ok();
    let bad = cluster.run(&ask).await;
    assert_eq!(bad.code, 1, "no node has labels: {bad:?}");
    for node in ["n1", "n2", "n3"] {
        cluster.put(format!("labels/node/{node}"), "{}".to_owned()).await;
    }
    let shown = cluster.run(&ask).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.stdout.starts_with("default/train: placed in chain "), "{shown:?}");
    let answer = &cluster.json(&ask).await[0];
    assert_eq!((&answer["placed"], &answer["victims"]), (&json!(true), &json!([])));
    let pod = &answer["pods"][0];
    assert_eq!((&pod["pod"], &pod["devices"]), (&json!("w/0"), &json!("0,1")));
    assert!(pod["virtual_cell"].as_str().unwrap().starts_with("research/"), "{pod}");

    // All of the rest is lent: one has to go.
    for (name, node) in [("lent-1", "n1"), ("lent-2", "n2"), ("lent-3", "n3")] {
        holds(&cluster, name, "product", node, None).await;
    }
    let answer = &cluster.json(&ask).await[0];
    let victims = answer["victims"].as_array().unwrap();
    assert_eq!((victims.len(), &answer["placed"]), (1, &json!(true)), "{answer}");
    let shown = cluster.run(&ask).await;
    assert_eq!(shown.code, 0, "it would be placed once they have stopped");
    assert!(
        shown.stdout.contains(", once a group has stopped\n  stops: product/lent-"),
        "{shown:?}"
    );
    assert!(shown.stdout.contains("(PodGroup default/lent-"), "{shown:?}");

    // What the virtual cluster was promised is taken, in both chains.
    holds(&cluster, "lent-1", "research", "n1", Some(("research/0", "NODE"))).await;
    holds(&cluster, "lent-3", "research", "n3", Some(("research/1", "BOX"))).await;
    let shown = cluster.run(&ask).await;
    assert_eq!(shown.code, 1, "{shown:?}");
    for chain in ["  chain RACK: insufficient capacity", "  chain BOX: insufficient capacity"] {
        assert!(shown.stdout.contains(chain), "{shown:?}");
    }
    // It has cells itself.
    let text = job("research").replace("name: train", "name: lent-1");
    let text = text.replace("virtualCluster", "affinityGroup: {name: lent-1, members: [{podNumber: 1, leafCellNumber: 2}]}\n            virtualCluster");
    write(&cluster, "job.yaml", &text);
    let answer = &cluster.json(&ask).await[0];
    assert_eq!((&answer["holds"], &answer["pods"][0]["node"]), (&json!(true), &json!("n1")));
}

#[tokio::test]
async fn what_if_of_jobs_without_cells_is_an_error() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "cells.yaml", CELLS);
    cluster.run(&["cell", "config", "apply", "cells.yaml"]).await.ok();
    let plain = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec:\n  tasks:\n  - {name: w, \
                 replicas: 1, template: {spec: {restartPolicy: Never, containers: [{name: c, command: [a]}]}}}\n";
    for (text, why) in [(plain, "asks for no cells"), (CELLS, "has no jobs")] {
        write(&cluster, "job.yaml", text);
        let answer = cluster.run(&["cell", "what-if", "-f", "job.yaml"]).await;
        assert_eq!(answer.code, 2, "{answer:?}");
        assert!(answer.stderr.contains(why), "{answer:?}");
    }
}

#[tokio::test]
async fn tree_and_status_name_groups_that_are_not_as_they_were() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "cells.yaml", CELLS);
    cluster.run(&["cell", "config", "apply", "cells.yaml"]).await.ok();
    holds(&cluster, "moved", "research", "n9", Some(("research/0", "NODE"))).await;
    let note = "! group research/moved: no cell has device 0 of node n9";
    let tree = cluster.run(&["cell", "tree"]).await.ok();
    assert!(tree.lines().any(|line| line.starts_with(note)), "{tree}");
    let status = cluster.run(&["cell", "status", "research"]).await.ok();
    assert!(status.lines().any(|line| line.starts_with(note)), "{status}");
    let other = cluster.run(&["cell", "status", "product"]).await.ok();
    assert!(!other.contains("moved"), "{other}");
    let json = cluster.run(&["cell", "tree", "-o", "json"]).await;
    assert!(json.stdout.starts_with('[') && json.stderr.contains("research/moved"), "{json:?}");

    let mut lazy = json!({
        "request": {"key": {"virtualCluster": "research", "name": "moved"}, "priority": 0,
            "ignoreSuggestedNodes": true, "lazyPreemptionEnable": true,
            "members": [{"pods": 1, "cells": 2}]},
        "chain": "RACK", "pods": [{"node": "n1", "devices": "0-1", "pod": "w/0"}],
    });
    lazy["lazyPreemption"] = json!({"preemptor": "high", "preemptionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"phase": "Running", "placement": {"state": "Bound",
        "members": {"w": ["n1"]}, "cells": lazy}});
    cluster.put("rcfarm/pod_group_status/default/moved".to_owned(), status.to_string()).await;
    holds(&cluster, "high", "research", "n2", Some(("research/0", "NODE"))).await;
    let status = cluster.run(&["cell", "status", "research"]).await.ok();
    let note = "! group research/moved runs on as opportunistic since 2026-01-01T00:00:00Z: research/high has its cells";
    assert!(status.contains(note), "{status}");
}

#[tokio::test]
async fn explain_lists_the_reason_of_each_chain() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "cells.yaml", TWO_CHAINS);
    write(&cluster, "job.yaml", &job("research"));
    cluster.run(&["apply", "-f", "cells.yaml", "-f", "job.yaml"]).await.ok();
    let uid = cluster.json(&["job", "get", "train"]).await["uid"].clone();
    let chains = json!([{"chain": "RACK", "reason": "full"}, {"chain": "BOX", "reason": "bad"}]);
    let status = json!({"phase": "Pending", "reason": "InsufficientCapacity", "ownerUid": uid.to_string().trim_matches('"'),
        "message": "chain RACK: full; chain BOX: bad", "chainReasons": chains});
    cluster.put("rcfarm/pod_group_status/default/train".to_owned(), status.to_string()).await;
    let shown = cluster.json(&["job", "explain", "train"]).await;
    assert_eq!(shown["group"]["chains"], chains, "{shown}");
    let text = cluster.run(&["job", "explain", "train"]).await.ok();
    assert!(text.contains("chain RACK: full\n"), "{text}");
}
