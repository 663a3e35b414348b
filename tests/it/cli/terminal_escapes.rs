//! What others wrote into Consul, keys and values, reaches the terminal without control characters: by every command,
//! in each format, on standard output and as errors.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::HttpCluster;
use rcfarm_store::{Behavior, NewSession, Store};

/// Colours, the title of the window, a C1 control character, and a reversed direction of text.
const HOSTILE: &str = "PWNED\u{1b}[31m\u{1b}]0;title\u{7}\u{9b}2J\u{7f}\u{202e}\r";

/// Commands that print what is in Consul. `b` stands for records that cannot be decoded or are not valid.
const PRINTING: &[&str] = &[
    "apply -f bad.yaml",
    "audit acknowledge --dry-run",
    "audit list",
    "audit prune --keep 30d --dry-run",
    "audit verify",
    "cell config get",
    "cell config plan cells.yaml",
    "cell status b",
    "cell status PWNED",
    "cell tree",
    "cell what-if -f hostile.yaml",
    "cell config apply cells.yaml",
    "complete -- rc get",
    "complete -- job get",
    "cron delete b --no-wait",
    "cron explain a",
    "cron explain b",
    "cron get a",
    "cron get b",
    "cron list",
    "cron next b",
    "cron resume b",
    "cron run b",
    "cron suspend b",
    "doctor",
    "farm confirm f1",
    "farm list",
    "flow delete b --no-wait",
    "flow explain a",
    "flow explain b",
    "flow list",
    "flow status a",
    "flow status b",
    "flow template delete b",
    "flow template get a",
    "flow template get b",
    "flow template list",
    "flow tree a",
    "flow tree b",
    "job abort b",
    "job complete b",
    "job delete b",
    "job dispatch a",
    "job explain a",
    "job explain b",
    "job get a",
    "job get b",
    "job label b note=x",
    "job list",
    "job restart b",
    "job restart-pod b w 0",
    "job restart-task b w",
    "job resume b",
    "job suspend b",
    "job terminate b",
    "job tree a",
    "job tree b",
    "job wait a --timeout 0s",
    "label get node n1",
    "label get rc web",
    "label list job",
    "label list node",
    "label list pod",
    "label list rc",
    "label remove node n1 absent",
    "label set node n1 a=b",
    "node drain n1 --no-wait",
    "node get n1",
    "node get n2",
    "node list",
    "node remove n1",
    "node undrain n1",
    "plan -f bad.yaml",
    "plan -f hostile.yaml",
    "apply -f hostile.yaml",
    "pod get web",
    "pod list",
    "job type get A",
    "job type get B",
    "job type list",
    "priority-class get a",
    "priority-class get b",
    "priority-class list",
    "queue close b",
    "queue get a",
    "queue get b",
    "queue group get a",
    "queue group list",
    "queue group delete a",
    "queue list",
    "queue open b",
    "queue scheduler get a",
    "queue scheduler list",
    "queue scheduler delete a",
    "queue update b --order fifo",
    "rc explain web",
    "rc explain 00000000-0000-0000-0000-00000000000b",
    "rc get web",
    "rc get 00000000-0000-0000-0000-00000000000b",
    "rc list",
    "rc orphans",
    "rc plan web",
    "rc plan 00000000-0000-0000-0000-00000000000b",
    "rc pods web",
    "rc scale 00000000-0000-0000-0000-00000000000b 1",
    "rc status web",
    "rc status 00000000-0000-0000-0000-00000000000b",
    "rc enable 00000000-0000-0000-0000-00000000000b",
    "rc disable 00000000-0000-0000-0000-00000000000b",
    "rc update 00000000-0000-0000-0000-00000000000b --strategy dynamic",
    "rc delete 00000000-0000-0000-0000-00000000000b",
    "rc delete web",
    "queue delete b",
    "priority-class delete b",
    "job type delete B",
];

/// Commands that are not run here, with the reason.
const OTHERS: &[(&str, &str)] = &[
    ("rc create", "prints an id"),
    ("rc watch", "prints what `rc status` prints, until it is stopped"),
    ("queue create", "prints the user's own words"),
    ("priority-class create", "prints the user's own words"),
    ("job run", "prints the user's own words"),
    ("job logs", "prints what processes wrote, byte for byte, as kubectl does"),
    ("pod logs", "prints what processes wrote, byte for byte, as kubectl does"),
    ("farm run", "logs: the subscriber escapes them"),
    ("node run", "logs: the subscriber escapes them"),
    ("dev", "runs a store of its own"),
    ("demo-server", "reads nothing"),
    ("completion", "reads nothing"),
    ("version", "reads nothing"),
    ("man", "reads nothing"),
];

fn is_control(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c)
}

fn job(name: &str) -> Value {
    json!({
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "annotations": {"note": HOSTILE}},
        "spec": {"tasks": [{"name": "w", "replicas": 1, "template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "command": ["echo", HOSTILE]}]
        }}}]}
    })
}

async fn write_records(cluster: &HttpCluster, rc: &str) {
    let bad = "00000000-0000-0000-0000-00000000000b";
    let text = |value: Value| value.to_string();
    let condition = |kind: &str| {
        json!({"type": kind, "status": false, "reason": "InvalidRecord", "message": HOSTILE,
               "last_transition_time": "2026-01-01T00:00:00Z"})
    };
    let labels = json!({"note": HOSTILE, "role": "web"});
    let records = [
        (format!("labels/replication_controller/{rc}"), json!({"pod_id": "web", "note": HOSTILE})),
        (
            format!("status/replication_controllers/{rc}/rcfarm"),
            json!({
                "observed_index": 1, "revision": 1, "last_error": HOSTILE,
                "replicas": {"desired": 1, "current": 1, "healthy": 0, "eligible": 1},
                "conditions": [condition("Valid"), condition("Scheduled"), condition("Placed")],
                "owner": {"farm": "f1", "since": "2026-01-01T00:00:00Z"},
                "quarantined_nodes": {"n1": {"until": "2030-01-01T00:00:00Z", "failures": 3,
                    "why": HOSTILE, "observed_index": 1}},
            }),
        ),
        (
            format!("replication_controllers/{bad}"),
            json!({"id": bad, "manifest": format!("id: {HOSTILE}"), "node_selector": HOSTILE,
                   "pod_labels": {"x": HOSTILE}, "replicas_desired": 1}),
        ),
        ("labels/node/n1".to_owned(), labels.clone()),
        (
            "labels/pod/n1/web".to_owned(),
            json!({"pod_id": "web", "replication_controller_id": rc, "note": HOSTILE}),
        ),
        (
            "labels/pod/n1/orphan".to_owned(),
            json!({"pod_id": HOSTILE,
            "replication_controller_id": "00000000-0000-0000-0000-0000000000ff"}),
        ),
        ("labels/job/default/a".to_owned(), labels),
        (
            "rcfarm/nodes/n1".to_owned(),
            json!({"address": HOSTILE, "problem": HOSTILE, "http": HOSTILE, "agent_version": HOSTILE,
                   "labels": {"a": HOSTILE}, "capacity": {"cpu_milli": 1000}}),
        ),
        ("rcfarm/nodes/n2".to_owned(), json!({"state": HOSTILE})),
        (
            "status/pods/web/n1".to_owned(),
            json!({"status": HOSTILE, "phase": "Running", "message": HOSTILE, "notes": [HOSTILE],
                   "devices": [HOSTILE], "cannot_start": HOSTILE,
                   "process_status": [{"launchable_id": HOSTILE, "entry_point": HOSTILE,
                       "phase": "Running", "output": HOSTILE, "message": HOSTILE}]}),
        ),
        (
            "health/web/n1".to_owned(),
            json!({"Id": "web", "Node": "n1", "Service": "web", "Status": HOSTILE, "Unfit": HOSTILE,
                   "CannotStart": HOSTILE}),
        ),
        ("rcfarm/allocations/n1".to_owned(), json!({"pods": {"x": {"owner": HOSTILE}}})),
        ("rcfarm/queues/a".to_owned(), json!({"spec": {}, "note": HOSTILE})),
        (
            "rcfarm/queue_status/a".to_owned(),
            json!({"state": "Unknown", "message": HOSTILE, "ignored": [HOSTILE]}),
        ),
        ("rcfarm/queues/b".to_owned(), json!({"spec": {"order": HOSTILE}})),
        (
            "rcfarm/cells/config".to_owned(),
            json!({"physicalCluster": {
                    "cellTypes": {HOSTILE: {"childCellType": HOSTILE.to_owned() + "GPU", "childCellNumber": 1,
                        "isNodeLevel": true}},
                    "physicalCells": [{"cellType": HOSTILE, "cellAddress": HOSTILE}]},
                "virtualClusters": {HOSTILE: {"virtualCells": [{"cellType": HOSTILE, "cellNumber": 1}]},
                    "PWNED": {}}}),
        ),
        ("rcfarm/priority_classes/a".to_owned(), json!({"value": 7, "description": HOSTILE})),
        ("rcfarm/priority_classes/b".to_owned(), json!({"value": HOSTILE})),
        (
            "rcfarm/job_types/A".to_owned(),
            json!({"spec": {"replicaSpecs": HOSTILE, "container": HOSTILE, "hook": {"url": HOSTILE},
                   "port": {"name": HOSTILE, "number": 7}, "success": {"types": [HOSTILE]},
                   "environment": [{"name": HOSTILE, "value": HOSTILE}],
                   "replicaTypes": [{"name": HOSTILE}]}}),
        ),
        ("rcfarm/job_types/B".to_owned(), json!({"spec": HOSTILE})),
        ("rcfarm/jobs/default/a".to_owned(), job("a")),
        (
            "rcfarm/job_status/default/a".to_owned(),
            json!({"uid": "7", "lastError": HOSTILE,
                   "state": {"phase": "Pending", "reason": "WaitingForAdmission",
                             "message": HOSTILE, "lastTransitionTime": "2026-01-01T00:00:00Z"},
                   "failures": [{"task": "w", "index": 0, "node": "n1", "version": 0, "attempt": 0,
                        "time": "2026-01-01T00:00:00Z", "exitCode": 1, "reason": "Error",
                        "message": HOSTILE, "output": HOSTILE}]}),
        ),
        ("rcfarm/jobs/default/b".to_owned(), json!({"kind": HOSTILE, "spec": {"tasks": HOSTILE}})),
        (
            "rcfarm/cron_jobs/default/a".to_owned(),
            json!({"kind": "CronJob", "metadata": {"annotations": {"note": HOSTILE}},
                   "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": job("a")["spec"]}}}),
        ),
        (
            "rcfarm/cron_jobs/default/b".to_owned(),
            json!({"kind": HOSTILE, "spec": {"schedule": HOSTILE, "timeZone": HOSTILE,
                   "jobTemplate": {"spec": {"tasks": HOSTILE}}}}),
        ),
        (
            "rcfarm/job_templates/default/a".to_owned(),
            json!({"kind": "JobTemplate", "metadata": {"annotations": {"note": HOSTILE}},
                   "spec": job("a")["spec"]}),
        ),
        (
            "rcfarm/job_templates/default/b".to_owned(),
            json!({"kind": HOSTILE, "spec": {"tasks": HOSTILE}}),
        ),
        (
            "rcfarm/job_flows/default/a".to_owned(),
            json!({"kind": "JobFlow", "metadata": {"annotations": {"note": HOSTILE}},
                   "spec": {"flows": [{"name": "a"}]}}),
        ),
        (
            "rcfarm/job_flow_status/default/a".to_owned(),
            json!({"uid": 1, "revision": 1, "reason": "StepFailed", "message": HOSTILE,
                   "lastError": HOSTILE}),
        ),
        (
            "rcfarm/job_flows/default/b".to_owned(),
            json!({"kind": HOSTILE, "spec": {"flows": [{"name": HOSTILE, "dependsOn":
                   {"targets": [HOSTILE]}}], "jobRetainPolicy": HOSTILE}}),
        ),
        (
            "rcfarm/pod_groups/default/a".to_owned(),
            json!({"spec": {"queue": "a", "minMember": 1}, "members": [], "note": HOSTILE}),
        ),
        (
            "rcfarm/pod_group_status/default/a".to_owned(),
            json!({"phase": "Pending", "reason": "QueueClosed", "message": HOSTILE, "of": 1,
                   "since": 1, "revision": 1}),
        ),
        (
            "rcfarm/schedulers/a".to_owned(),
            json!({"spec": {"nodeSelector": HOSTILE, "algorithm": HOSTILE}, "note": HOSTILE}),
        ),
        (
            "rcfarm/commands/default/01890000-0000-7000-8000-000000000001".to_owned(),
            json!({"action": "AbortJob", "target": {"kind": "Job", "job": "default/a"},
                   "reason": HOSTILE, "issued_by": HOSTILE}),
        ),
        (
            "audit_logs/01890000-0000-7000-8000-000000000002".to_owned(),
            json!({"event_type": "LABELS_CHANGED", "timestamp": "2026-01-01T00:00:00Z",
                   "schema_version": 1, "event_details": {"kind": "node", "id": "n1",
                   "actor": format!("user:{HOSTILE}"), "reason": HOSTILE, "set": {"a": HOSTILE},
                   "removed": [HOSTILE]}}),
        ),
        (
            "audit_logs/01890000-0000-7000-8000-000000000003".to_owned(),
            json!({"event_type": HOSTILE, "timestamp": "2026-01-01T00:00:00Z", "schema_version": 1,
                   "event_details": {"note": HOSTILE}}),
        ),
    ];
    for (key, value) in records {
        cluster.put(key, text(value)).await;
    }
    // A status is shown only if it is about the stored record.
    let created = cluster.entry("rcfarm/cron_jobs/default/a").await.unwrap().create_index;
    let status = json!({"uid": created, "revision": 1, "reason": "JobNameTaken", "message": HOSTILE,
        "schedule": HOSTILE, "lastError": HOSTILE});
    cluster.put("rcfarm/cron_job_status/default/a", text(status)).await;
    let session = cluster
        .store
        .create_session(&NewSession {
            name: HOSTILE.to_owned(),
            ttl: None,
            lock_delay: std::time::Duration::ZERO,
            behavior: Behavior::Delete,
            checks: Vec::new(),
        })
        .await
        .unwrap();
    let presence = json!({"session": session, "selector": "", "version": HOSTILE,
        "since": "2026-01-01T00:00:00Z", "scheduler": HOSTILE, "suspicions": [HOSTILE],
        "check_problem": HOSTILE, "unusable_keys": [HOSTILE], "suspect_nodes": ["n1"]});
    cluster.put_locked("rcfarm/farms/f1", &presence.to_string(), &session).await;
    // Keys that this program would not write.
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for prefix in [
        "replication_controllers/",
        "labels/node/",
        "status/pods/",
        "rcfarm/jobs/default/",
        "rcfarm/cron_jobs/default/",
        "rcfarm/job_flows/default/",
        "rcfarm/job_templates/default/",
        "rcfarm/job_types/",
        "rcfarm/queues/",
        "rcfarm/nodes/",
        "audit_logs/",
        "rcfarm/bell/",
        "rcfarm/farms/",
        "intent/n1/",
        "labels/pod/n1/",
    ] {
        // Consul refuses such a key in an address, not in a transaction.
        let set =
            json!({"Verb": "set", "Key": format!("{prefix}PWNED\u{1b}[31m\u{7}"), "Value": ""});
        let url = format!("http://{}/v1/txn", cluster.address);
        let answer = client.put(url).json(&json!([{"KV": set}])).send().await.unwrap();
        let status = answer.status();
        assert!(status.is_success(), "{prefix}: {}", answer.text().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_prints_control_characters_of_records() {
    let cluster = HttpCluster::new().await;
    let rc = cluster.create(&[]).await;
    write_records(&cluster, &rc).await;
    let hostile = serde_json::to_string(&job("c")).unwrap();
    std::fs::write(cluster.dir.path().join("hostile.yaml"), hostile).unwrap();
    let cells = json!({"physicalCluster": {}, HOSTILE: 1});
    std::fs::write(cluster.dir.path().join("cells.yaml"), cells.to_string()).unwrap();
    let bad = json!({"kind": HOSTILE, "metadata": {"name": HOSTILE}});
    std::fs::write(cluster.dir.path().join("bad.yaml"), bad.to_string()).unwrap();
    let mut wrong = Vec::new();
    let mut silent = Vec::new();
    for command in PRINTING {
        let words: Vec<&str> = command.split(' ').collect();
        let mut shown = false;
        // Those that change something do so once.
        let reads = [
            "list", "get", "status", "explain", "plan", "tree", "pods", "orphans", "doctor",
            "verify",
        ];
        let formats: &[&str] = match words.iter().any(|word| reads.contains(word)) {
            true => &["table", "json", "yaml"],
            false => &["table"],
        };
        for format in formats {
            let ran =
                cluster.run(&[&["-o", format, "--color", "never"], &words[..]].concat()).await;
            assert!(!ran.stderr.contains("Usage: "), "{command}: {}", ran.stderr);
            let text = format!("{}{}", ran.stdout, ran.stderr);
            shown |= text.contains("PWNED");
            if let Some(c) = text.chars().find(|c| is_control(*c)) {
                let line = text.lines().find(|line| line.contains(c)).unwrap_or_default();
                wrong.push(format!("{command} -o {format}: {c:?} in {line:?}"));
            }
        }
        if !shown {
            silent.push(*command);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Otherwise the test would prove nothing: most commands show what others wrote.
    assert!(silent.len() * 2 < PRINTING.len(), "{silent:#?}");
}

/// Every command of the program is run above, or has a reason.
#[test]
fn every_command_is_looked_at() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/cli.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `rcfarm "));
    let command = |row: &str| -> String {
        let is_verb = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        let words: Vec<&str> = row
            .split([' ', '`'])
            .take_while(is_verb)
            .filter(|word| !word.is_empty() && !word.starts_with('-'))
            .collect();
        words.join(" ")
    };
    let all: BTreeSet<String> = rows.map(command).collect();
    assert!(all.len() > 60, "the table is no longer found: {all:?}");
    let is_known = |command: &&String| {
        let begins =
            |line: &&str| line.split(' ').take(command.split(' ').count()).eq(command.split(' '));
        PRINTING.iter().any(begins) || OTHERS.iter().any(|(name, _)| name == command)
    };
    let missing: Vec<&String> = all.iter().filter(|command| !is_known(command)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}
