//! `rcfarm audit …` without a farm.

use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::harness::HttpCluster;
use rcfarm_testing::wait::until;

#[tokio::test]
async fn list_filters_by_time_and_controller() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    cluster.run(&["label", "set", "node", "n1", "role=web"]).await.ok();
    // Written by p2 in 2019, under a random UUID.
    let p2 = r#"{"event_type":"REPLICATION_CONTROLLER_RETARGET","event_details":{"pod_id":"old","availability_zone":"az1","cluster_name":"prod","nodes":["n1"]},"timestamp":"2019-12-31T16:00:00Z","schema_version":1}"#;
    cluster.put("audit_logs/0b7e51a4-43ca-4e06-9d44-2c4ec8c6c0b5", p2).await;

    assert_eq!(cluster.events().await.len(), 3);
    let recent = cluster.run(&["audit", "list", "--since", "1h"]).await.ok();
    assert!(recent.contains("LABELS_CHANGED") && !recent.contains("2019"), "{recent}");
    let of_one = cluster.json(&["audit", "list", "--rc", &id[..8]]).await;
    assert_eq!(of_one.as_array().unwrap().len(), 1);

    let text = cluster.run(&["audit", "list"]).await.ok();
    let header: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["TIME", "EVENT", "CONTROLLER", "POD", "BY", "WHAT"]);
    assert!(text.contains("user:alice") && text.contains("node n1 role=web"), "{text}");
    // Where no variable names the user, as in cron, there is the number.
    let nobody = cluster.program.with_env("USER", "");
    nobody.run(&["label", "set", "node", "n1", "by=number"]).await.ok();
    let text = cluster.run(&["audit", "list"]).await.ok();
    let own = format!("user:uid-{}", rustix::process::geteuid().as_raw());
    assert!(text.lines().any(|l| l.contains(&own) && l.contains("by=number")), "{text}");
}

#[tokio::test]
async fn a_deleted_controller_is_still_found_by_its_id() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    cluster.run(&["rc", "delete", &id]).await.ok();
    let log = cluster.json(&["audit", "list", "--rc", &id]).await;
    assert_eq!(log.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn follow_prints_records_as_they_come() {
    let cluster = HttpCluster::new().await;
    cluster.create(&[]).await;
    let mut child = cluster.spawn(&["audit", "list", "--follow"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().contains("_CREATED"));
    cluster.run(&["rc", "scale", "web", "2"]).await.ok();
    assert!(lines.next_line().await.unwrap().unwrap().contains("1 -> 2"));
    cluster.run(&["rc", "disable", "web"]).await.ok();
    assert!(lines.next_line().await.unwrap().unwrap().contains("_DISABLED"));
    child.kill().await.unwrap();
}

#[tokio::test]
async fn verify_finds_what_was_changed_without_a_record() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&["--replicas", "2"]).await;
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));

    cluster.pod("n1", &id).await;
    let ran = cluster.run(&["audit", "verify"]).await;
    assert_eq!(ran.code, 2);
    assert!(ran.stdout.contains("there are pods on n1, which the log does not have"), "{ran:?}");

    let key = format!("replication_controllers/{id}");
    let by_hand = cluster.get(&key).await.unwrap().replace(":2,", ":7,");
    cluster.put(&key, &by_hand).await;
    let ran = cluster.run(&["audit", "verify", "-o", "json"]).await;
    let shown: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let kinds: Vec<&str> = shown["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["kind"].as_str().unwrap())
        .collect();
    assert_eq!((ran.code, kinds), (2, vec!["nodes", "desired"]));
    assert_eq!(shown["differences"][1]["logged"], 2);
    assert_eq!(shown["differences"][1]["actual"], 7);
}

#[tokio::test]
async fn what_is_no_record_is_told_and_passed_over() {
    let cluster = HttpCluster::new().await;
    cluster.create(&[]).await;
    cluster.put("audit_logs/0b7e51a4-43ca-4e06-9d44-2c4ec8c6c0b5", "{}").await;
    let ran = cluster.run(&["audit", "verify"]).await;
    assert!(ran.stderr.contains("0b7e51a4-43ca-4e06-9d44-2c4ec8c6c0b5"), "{ran:?}");
    assert_eq!(ran.code, 0);
}

#[tokio::test]
async fn pruning_keeps_what_the_log_stands_for() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    for count in 2..80 {
        cluster.run(&["rc", "scale", &id, &count.to_string()]).await.ok();
    }
    let dry = cluster.run(&["audit", "prune", "--keep", "0s", "--dry-run"]).await.ok();
    assert_eq!(dry, "would delete 79 records, kept 0\n");
    assert_eq!(cluster.events().await.len(), 79);
    assert_eq!(
        cluster.run(&["audit", "prune", "--keep", "1h"]).await.ok(),
        "deleted 0 records, kept 79\n"
    );

    let shown = cluster.json(&["audit", "prune", "--keep", "0s"]).await;
    assert_eq!((&shown["deleted"], &shown["kept"]), (&79.into(), &0.into()));
    assert_eq!(cluster.events().await, ["AUDIT_CHECKPOINT"]);
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));
    cluster.run(&["rc", "scale", &id, "1"]).await.ok();
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("2 records"));
}

/// As after p2-rctl set-replicas, pods moved by p2's farm, and p2-rctl delete.
#[tokio::test]
async fn changes_by_others_are_acknowledged() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&["--replicas", "2"]).await;
    let gone = cluster.create_of("id: gone\n", &[]).await;
    let text = cluster.get(format!("replication_controllers/{id}")).await.unwrap();
    let text = text.replace("\"replicas_desired\":2", "\"replicas_desired\":1");
    cluster.put(format!("replication_controllers/{id}"), text).await;
    cluster.pod("n1", &id).await;
    cluster.delete(format!("replication_controllers/{gone}")).await;
    let ran = cluster.run(&["audit", "verify"]).await;
    assert_eq!(ran.code, 2);
    assert!(ran.stdout.contains("rcfarm audit acknowledge"), "{ran:?}");

    let would = cluster.run(&["audit", "acknowledge", "--dry-run"]).await.ok();
    assert!(would.contains("the state of 2 controllers"), "{would}");
    cluster.run(&["audit", "acknowledge", "--rc", &gone]).await.ok();
    assert_eq!(cluster.run(&["audit", "verify"]).await.code, 2, "the other still differs");
    cluster.run(&["audit", "acknowledge"]).await.ok();
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));
    let log = cluster.run(&["audit", "list", "--rc", &id]).await.ok();
    assert!(log.contains("EXTERNAL_CHANGE_ACKNOWLEDGED") && log.contains("user:alice"), "{log}");
    // It stays so after a prune.
    cluster.run(&["audit", "prune", "--keep", "0s"]).await.ok();
    cluster.run(&["audit", "verify"]).await.ok();
}

#[tokio::test]
async fn list_filters_by_queue_and_node() {
    let cluster = HttpCluster::new().await;
    cluster.run(&["queue", "create", "q1"]).await.ok();
    cluster.run(&["queue", "create", "q2"]).await.ok();
    cluster.run(&["label", "set", "node", "n1", "role=web"]).await.ok();
    for (filter, count) in [(["--queue", "q1"], 1), (["--node", "n1"], 1), (["--job", "a/b"], 0)] {
        let log = cluster.json(&[&["audit", "list"][..], &filter[..]].concat()).await;
        assert_eq!(log.as_array().unwrap().len(), count, "{filter:?}: {log}");
    }
}

#[tokio::test]
async fn raw_edits_of_jobs_are_told_and_can_be_accepted() {
    let cluster = HttpCluster::new().await;
    let job = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: mnist}\nspec: {tasks: [{name: w, \
        replicas: 1, template: {spec: {containers: [{name: c, command: [sleep, '60']}]}}}]}\n";
    std::fs::write(cluster.dir.path().join("job.yaml"), job).unwrap();
    let verify = async || cluster.run(&["audit", "verify"]).await;
    let farm = cluster.start("f1");
    cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
    let status = "rcfarm/job_status/default/mnist";
    until("it has a status", async || cluster.get(status).await.is_some()).await;
    let said = verify().await.ok();
    assert!(said.contains("1 jobs and 0 other records agree"), "{said}");
    farm.stop().await;
    // Each by hand: the status, the record, the deletion of both.
    let key = "rcfarm/jobs/default/mnist";
    let changes = [
        (
            status,
            Some(("\"phase\":\"Pending\"", "\"phase\":\"Completed\"")),
            "the log says Pending",
        ),
        (key, Some(("sleep", "true")), "its record is not the one"),
        (key, None, "the log has it, and it has no record"),
    ];
    for (key, edit, words) in changes {
        match edit {
            Some((from, to)) => {
                let text = cluster.get(key).await.unwrap().replace(from, to);
                cluster.put(key, text).await;
            }
            None => {
                cluster.delete(key).await;
                cluster.delete(status).await;
            }
        }
        let said = verify().await;
        let line = format!("differs: job default/mnist: {words}");
        assert!(said.code == 2 && said.stdout.contains(&line), "{said:?}");
        cluster.run(&["audit", "acknowledge"]).await.ok();
        assert!(verify().await.ok().contains("agree"));
        cluster.run(&["audit", "prune", "--keep", "0s"]).await.ok();
        assert!(verify().await.ok().contains("agree"));
    }
    let log = cluster.json(&["audit", "list", "--job", "default/mnist"]).await;
    assert_eq!(log, json!([]), "nothing is kept of a job that is gone");
}

#[tokio::test]
async fn records_say_what_caused_them_and_with_which_code() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(2).await;
    let _farm = cluster.start("f1");
    let id = cluster.create(&["--wait"]).await;
    let record = cluster.entry(format!("replication_controllers/{id}")).await.unwrap();
    // The farm repairs it: nobody changed the record.
    cluster.delete("intent/n1/web").await;
    until("it is repaired", async || cluster.get("intent/n1/web").await.is_some()).await;
    let log = cluster.json(&["audit", "list", "--rc", &id]).await;
    let causes: Vec<_> = log.as_array().unwrap().iter().map(|r| &r["record"]["cause"]).collect();
    let version = rcfarm_api::VERSION;
    let index = record.modify_index;
    assert_eq!(
        causes,
        [
            &json!({"kind": "external", "version": version}),
            &json!({"kind": "external", "index": index, "version": version}),
            &json!({"kind": "decision", "index": index, "version": version}),
        ]
    );
}

#[tokio::test]
async fn raw_edits_of_records_are_told_and_can_be_accepted() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&["--replicas", "0"]).await;
    cluster.run(&["queue", "create", "research", "--weight", "2"]).await.ok();
    cluster.run(&["queue", "create", "gone"]).await.ok();
    let verify = async || cluster.run(&["audit", "verify"]).await;
    assert!(verify().await.ok().contains("agree"));
    // The pods and the count are as before.
    let key = format!("replication_controllers/{id}");
    let edit = async |field: &str, to: &str| {
        let mut record = cluster.value(&key).await;
        record[field] = json!(to);
        cluster.put(&key, record.to_string()).await;
    };
    for (field, to) in [("manifest", "id: web\n"), ("node_selector", "role=db")] {
        edit(field, to).await;
        let said = verify().await;
        assert_eq!(said.code, 2, "{said:?}");
        assert!(
            said.stdout.contains(&format!("differs: {id}: its record is not the one")),
            "{said:?}"
        );
        cluster.run(&["audit", "acknowledge"]).await.ok();
        assert!(verify().await.ok().contains("agree"));
    }
    // A command's own change is told again; also after a prune.
    cluster.run(&["rc", "disable", "web"]).await.ok();
    cluster.run(&["audit", "prune", "--keep", "0s"]).await.ok();
    assert!(verify().await.ok().contains("agree"));
    edit("manifest", "id: web\n# edited\n").await;
    cluster.put("rcfarm/queues/research", r#"{"spec":{"weight":3}}"#).await;
    cluster.delete("rcfarm/queues/gone").await;
    let said = verify().await;
    for words in ["its record is not the one", "differs: queue research", "differs: queue gone"] {
        assert!(said.stdout.contains(words), "{words}: {said:?}");
    }
    cluster.run(&["audit", "acknowledge"]).await.ok();
    assert!(verify().await.ok().contains("agree"));
    cluster.run(&["queue", "update", "research", "--weight", "4"]).await.ok();
    cluster.run(&["queue", "close", "research"]).await.ok();
    cluster.run(&["queue", "delete", "research"]).await.ok();
    cluster.run(&["rc", "delete", "web", "--force"]).await.ok();
    assert!(verify().await.ok().contains("agree"));
}

const RECORDS: &str = "\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
---
apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {name: a}
spec:
  tasks: [{name: w, replicas: 1, template: {spec: {restartPolicy: Never, containers: [{name: c, command: [sleep, '60']}]}}}]
---
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: test}
spec: {jobRetainPolicy: retain, flows: [{name: a}]}
";

const CRON: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: '30 2 * * *'
  jobTemplate:
    spec:
      tasks: [{name: w, replicas: 1, template: {spec: {restartPolicy: Never, containers: [{name: c, command: [sleep, '60']}]}}}]
";

const CELLS: &str = "\
physicalCluster:
  cellTypes: {NODE: {childCellType: GPU, childCellNumber: 2, isNodeLevel: true}}
  physicalCells: [{cellType: NODE, cellAddress: n1}]
virtualClusters:
  research: {virtualCells: [{cellType: NODE, cellNumber: 1}]}
";

#[tokio::test]
async fn raw_edits_of_other_records_are_told_and_accepted() {
    let cluster = HttpCluster::new().await;
    for (name, text) in [("records.yaml", &*format!("{RECORDS}---\n{CRON}")), ("cells.yaml", CELLS)]
    {
        std::fs::write(cluster.dir.path().join(name), text).unwrap();
        cluster.run(&["apply", "-f", name]).await.ok();
    }
    let verify = async || cluster.run(&["audit", "verify"]).await;
    let said = verify().await.ok();
    assert!(said.contains("0 jobs and 5 other records agree"), "{said}");
    let kinds = [
        ("CronJob default/nightly", "rcfarm/cron_jobs/default/nightly", "30 2", "45 3"),
        ("JobFlow default/test", "rcfarm/job_flows/default/test", "retain", "delete"),
        ("JobTemplate default/a", "rcfarm/job_templates/default/a", "sleep", "true"),
        ("priority class high", "rcfarm/priority_classes/high", "1000", "1001"),
        ("cells", "rcfarm/cells/config", "\"cellNumber\":1", "\"cellNumber\":2"),
    ];
    let agrees = async || {
        for command in ["acknowledge", "prune --keep 0s"] {
            let words: Vec<&str> = ["audit"].into_iter().chain(command.split(' ')).collect();
            cluster.run(&words).await.ok();
            let said = verify().await;
            assert!(said.code == 0 && said.stdout.contains("agree"), "{command}: {said:?}");
        }
    };
    for (name, key, from, to) in kinds {
        // What a command writes is no difference, and nothing is lost by a prune.
        agrees().await;
        let text = cluster.get(key).await.unwrap();
        let edited = text.replace(from, to);
        assert_ne!(text, edited, "{name}");
        cluster.put(key, edited).await;
        let said = verify().await;
        let line = format!("differs: {name}: its record is not the one that a command wrote last");
        assert!(said.code == 2 && said.stdout.contains(&line), "{line}: {said:?}");
        let would = cluster.run(&["audit", "acknowledge", "--dry-run"]).await.ok();
        assert!(would.contains("and 1 other records"), "{would}");
        assert_eq!(verify().await.code, 2, "a dry run accepts nothing");
        agrees().await;

        cluster.delete(key).await;
        let said = verify().await;
        let line = format!("differs: {name}: the log has it, and it has no record");
        assert!(said.code == 2 && said.stdout.contains(&line), "{line}: {said:?}");
        let shown: serde_json::Value =
            serde_json::from_str(&cluster.run(&["audit", "verify", "-o", "json"]).await.stdout)
                .unwrap();
        assert_eq!(shown["record_differences"].as_array().unwrap().len(), 1, "{shown}");
        agrees().await;
    }
    let left = cluster.events().await;
    assert!(left.iter().all(|event| event == "AUDIT_CHECKPOINT"), "{left:?}");
}

/// A farm deletes the status of a record that is gone, but does not say that anybody deleted the record.
#[tokio::test]
async fn record_deleted_by_hand_differs_though_a_farm_runs() {
    let cluster = HttpCluster::new().await;
    std::fs::write(cluster.dir.path().join("cron.yaml"), CRON).unwrap();
    let _farm = cluster.start("f1");
    let status = "rcfarm/cron_job_status/default/nightly";
    let is_there = async || cluster.get(status).await.is_some();
    cluster.run(&["apply", "-f", "cron.yaml"]).await.ok();
    until("it has a status", async || is_there().await).await;
    cluster.delete("rcfarm/cron_jobs/default/nightly").await;
    until("the farm deletes its status", async || !is_there().await).await;
    let said = cluster.run(&["audit", "verify"]).await;
    let line = "differs: CronJob default/nightly: the log has it, and it has no record";
    assert!(said.code == 2 && said.stdout.contains(line), "{said:?}");
    // A command's deletion is in the log, with the jobs and without.
    for more in [&["--keep-jobs"][..], &[]] {
        cluster.run(&["apply", "-f", "cron.yaml"]).await.ok();
        until("it has a status again", async || is_there().await).await;
        cluster.run(&[&["cron", "delete", "nightly"][..], more].concat()).await.ok();
        until("its status is deleted again", async || !is_there().await).await;
        assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));
    }
}
