use serde_json::{Value, json};

use super::*;
use crate::job::document;
use crate::job::frameworks::Cluster;
use rcfarm_api::Index;
use rcfarm_api::manifest::{PeerChange, PeerSignal, SshStanza, VARIABLES_FILE};

fn id() -> Namespaced {
    "default/t".parse().unwrap()
}

fn template(name: &str, ports: Value) -> Value {
    json!({"spec": {"restartPolicy": "Never",
        "containers": [{"name": name, "command": ["x"], "ports": ports}]}})
}

fn kubeflow(
    kind: &str,
    specs: &str,
    container: &str,
    tasks: &[(&str, u32)],
    more: Value,
) -> JobSpec {
    let member = |(task, replicas): &(&str, u32)| {
        (
            (*task).to_owned(),
            json!({"replicas": replicas, "template": template(container, json!([]))}),
        )
    };
    let tasks: serde_json::Map<String, Value> = tasks.iter().map(member).collect();
    let mut spec = more;
    spec[specs] = json!(tasks);
    document::read(&id(), &json!({"kind": kind, "spec": spec})).unwrap().spec
}

fn volcano(plugins: Value, tasks: &[(&str, u32)]) -> JobSpec {
    let task = |(name, replicas): &(&str, u32)| json!({"name": name, "replicas": replicas, "template": template("c", json!([]))});
    let tasks: Vec<Value> = tasks.iter().map(task).collect();
    document::read(&id(), &json!({"spec": {"plugins": plugins, "tasks": tasks}})).unwrap().spec
}

/// Members on nodes of their own, some of which give ports; two share an address.
fn placed(job: &JobSpec) -> BTreeMap<Slot, ClusterPeer> {
    let slots =
        job.tasks.iter().flat_map(|task| (0..task.replicas).map(|n| Slot::new(&task.name, n)));
    let peer = |(n, slot)| {
        let n: u16 = n;
        let assigned = n.is_multiple_of(2).then_some(20_000 + n);
        (slot, ClusterPeer { host: format!("10.0.0.{}", n / 2), offset: n % 2, assigned })
    };
    (0..).zip(slots).map(peer).collect()
}

/// Every job that tells its members of each other.
fn jobs() -> Vec<JobSpec> {
    let tf = [("Chief", 1), ("PS", 2), ("Worker", 3)];
    let mw = [("Master", 1), ("Worker", 2)];
    let roles = [("ps", 1), ("worker", 2)];
    vec![
        kubeflow("TFJob", "tfReplicaSpecs", "tensorflow", &tf, json!({})),
        kubeflow(
            "TFJob",
            "tfReplicaSpecs",
            "tensorflow",
            &tf[1..],
            json!({"enableDynamicWorker": true}),
        ),
        kubeflow("PyTorchJob", "pytorchReplicaSpecs", "pytorch", &mw, json!({})),
        kubeflow(
            "PyTorchJob",
            "pytorchReplicaSpecs",
            "pytorch",
            &mw[1..],
            json!({"elasticPolicy": {"rdzvBackend": "c10d"}}),
        ),
        kubeflow("XGBoostJob", "xgbReplicaSpecs", "xgboost", &mw, json!({})),
        kubeflow(
            "MPIJob",
            "mpiReplicaSpecs",
            "mpi",
            &[("Launcher", 1), ("Worker", 2)],
            json!({"slotsPerWorker": 2}),
        ),
        volcano(json!({"svc": []}), &[("a-b", 2), ("c", 1)]),
        volcano(json!({"tensorflow": []}), &roles),
        volcano(json!({"pytorch": []}), &[("master", 1), ("worker", 2)]),
        volcano(json!({"mpi": []}), &[("master", 1), ("worker", 2)]),
        volcano(json!({"ray": []}), &[("head", 1), ("worker", 2)]),
    ]
}

/// Whoever reads `peers.env` in place of the environment must find the same names and the same form.
#[test]
fn variables_of_the_file_are_those_of_the_environment() {
    for job in jobs() {
        let peers = placed(&job);
        let of = |slot: &Slot| peers[slot].clone();
        let cluster = Cluster { id: &id(), job: &job, peer: &of };
        let told = told_tasks(&job);
        let record = record(&job, JobUid(Index(7)), 1, &peers, &told);
        let mut compared = 0;
        for slot in peers.keys() {
            let env = frameworks::of(job.framework).environment(&cluster, slot);
            let env: BTreeMap<String, String> =
                env.into_iter().map(|variable| (variable.name, variable.value)).collect();
            let stanza = stanza(&job, slot).unwrap_or_default();
            assert!(stanza.tasks().all(|task| told.contains(task)), "{slot}");
            for (name, parts) in stanza.variables {
                let only = PeersStanza {
                    variables: [(name.clone(), parts)].into(),
                    ..PeersStanza::default()
                };
                let text = only.rendered(&record).remove(VARIABLES_FILE).unwrap();
                assert_eq!(
                    text,
                    format!("{name}='{}'\n", env[&name]),
                    "{slot} of {:?}",
                    job.framework
                );
                compared += 1;
            }
        }
        let has_files = !stanza(&job, &job_slot(&job)).unwrap().files.is_empty();
        assert!(compared > 0 || has_files, "{:?}", job.framework);
    }
}

fn job_slot(job: &JobSpec) -> Slot {
    Slot::new(&job.tasks[0].name, 0)
}

#[test]
fn files_of_the_frameworks() {
    let text = |job: &JobSpec, slot: &Slot, path: &str| {
        let record = record(job, JobUid(Index(7)), 1, &placed(job), &told_tasks(job));
        stanza(job, slot).unwrap().rendered(&record).remove(path).unwrap()
    };
    let jobs = jobs();
    let [tf, .., mpi, svc, _, _, _, _] = &jobs[..] else { panic!() };
    let config: Value =
        serde_json::from_str(&text(tf, &Slot::new("Worker", 1), "tf_config.json")).unwrap();
    assert_eq!(config["cluster"]["ps"], json!(["10.0.0.0:2223", "10.0.0.1:20002"]));
    assert_eq!(config["task"], json!({"type": "worker", "index": 1}));
    let hosts = text(mpi, &Slot::new("Launcher", 0), "hostfile");
    assert_eq!(hosts, "10.0.0.0 slots=2\n10.0.0.1 slots=2\n");
    assert_eq!(stanza(mpi, &Slot::new("Worker", 0)), None);
    for (task, hosts) in [("a-b", "10.0.0.0\n10.0.0.0\n"), ("c", "10.0.0.1\n")] {
        assert_eq!(text(svc, &Slot::new("c", 0), &format!("etc/volcano/{task}.host")), hosts);
    }
}

#[test]
fn jobs_whose_members_are_told_of_nobody_have_no_files() {
    let alone = [("Worker", 1)];
    for job in [
        kubeflow("TFJob", "tfReplicaSpecs", "tensorflow", &alone, json!({})),
        kubeflow("PyTorchJob", "pytorchReplicaSpecs", "pytorch", &alone, json!({})),
        volcano(json!({"env": []}), &[("w", 2)]),
        JobSpec {
            on_peer_change: OnPeerChange::Nothing,
            ..volcano(json!({"svc": []}), &[("w", 2)])
        },
    ] {
        assert_eq!(stanza(&job, &job_slot(&job)), None, "{job:?}");
        assert!(told_tasks(&job).is_empty());
    }
}

#[test]
fn stanza_says_what_processes_are_told() {
    for (on_peer_change, on_change) in [
        (OnPeerChange::Files, None),
        (OnPeerChange::Restart, Some(PeerChange::Restart)),
        (OnPeerChange::Signal(PeerSignal::Usr1), Some(PeerChange::Signal(PeerSignal::Usr1))),
    ] {
        for job in jobs() {
            let job = JobSpec { on_peer_change, ..job };
            assert_eq!(stanza(&job, &job_slot(&job)).unwrap().on_change, on_change);
            // A member that is told of nobody is not told of moves.
            let alone = JobSpec { on_peer_change, ..volcano(json!({"env": []}), &[("w", 2)]) };
            assert_eq!(stanza(&alone, &job_slot(&alone)), None);
        }
    }
}

/// The keys come with every way of telling members of each other, and alone.
#[test]
fn plugin_ssh_gives_each_member_its_port() {
    let ssh = |plugins: Value, on_peer_change| {
        let job = JobSpec { on_peer_change, ..volcano(plugins, &[("m", 1), ("w", 2)]) };
        assert_eq!(told_tasks(&job), ["m", "w"].map(str::to_owned).into());
        stanza(&job, &Slot::new("w", 1)).unwrap()
    };
    let alone = ssh(json!({"ssh": []}), OnPeerChange::Restart);
    assert_eq!(alone.ssh, Some(SshStanza { port: 22 }));
    // Only files that say something else are told of.
    assert_eq!((alone.on_change, alone.files.len()), (None, 0));
    let both = ssh(json!({"ssh": ["--ssh-port=2222"], "svc": []}), OnPeerChange::Restart);
    assert_eq!(both.ssh, Some(SshStanza { port: 2222 }));
    assert_eq!((both.on_change, both.files.len()), (Some(PeerChange::Restart), 2));
    let only = ssh(json!({"ssh": [], "svc": []}), OnPeerChange::Nothing);
    assert_eq!(only, PeersStanza { ssh: only.ssh.clone(), ..PeersStanza::default() });
    assert!(only.ssh.is_some());
    let job = |plugins| volcano(plugins, &[("w", 1)]);
    assert!(has_files(&job(json!({"ssh": [], "svc": []}))));
    assert!(!has_files(&job(json!({"ssh": []}))));
}

/// Only the tasks that somebody is told of are in the record, and a member without a node is `null`.
#[test]
fn record_has_the_told_tasks() {
    let job = kubeflow(
        "PyTorchJob",
        "pytorchReplicaSpecs",
        "pytorch",
        &[("Master", 1), ("Worker", 2)],
        json!({}),
    );
    let told = told_tasks(&job);
    let known = record(&job, JobUid(Index(7)), 3, &placed(&job), &told);
    let text = serde_json::to_string(&known).unwrap();
    assert_eq!(
        text,
        r#"{"uid":7,"revision":3,"tasks":{"Master":[{"host":"10.0.0.0","port":20000}]}}"#
    );
    let nobody = record(&job, JobUid(Index(7)), 3, &BTreeMap::new(), &told);
    assert_eq!(nobody.tasks["Master"], [None]);
}

fn nodes(names: &[&str]) -> BTreeSet<NodeName> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

/// The nodes that are written, and those whose record is deleted.
fn written(change: &PeersChange) -> (Vec<String>, Vec<String>) {
    let node = |key: &rcfarm_api::key::Key| key.as_str().split('/').nth(2).unwrap().to_owned();
    let (mut set, mut deleted) = (Vec::new(), Vec::new());
    for op in &change.ops {
        match op {
            Op::Set { key, .. } => set.push(node(key)),
            Op::Delete { key } => deleted.push(node(key)),
            other => panic!("{other:?}"),
        }
    }
    (set, deleted)
}

#[test]
fn records_follow_addresses_and_nodes() {
    let job = volcano(json!({"svc": []}), &[("w", 2)]);
    let told = told_tasks(&job);
    let peers = placed(&job);
    let first = record(&job, JobUid(Index(7)), 1, &peers, &told);
    let later = record(&job, JobUid(Index(7)), 9, &peers, &told);
    let mut moved = peers.clone();
    moved.values_mut().next().unwrap().host = "10.9.9.9".to_owned();
    let moved = record(&job, JobUid(Index(7)), 9, &moved, &told);
    let another = record(&job, JobUid(Index(8)), 9, &peers, &told);
    let start = change(&id(), None, Some((&first, nodes(&["a", "b"]))));
    assert_eq!(written(&start), (vec!["a".to_owned(), "b".to_owned()], vec![]));
    let before = start.published.as_ref();
    type Wanted<'a> = Option<(&'a PeersRecord, &'a [&'a str])>;
    let cases: [(&str, Wanted<'_>, &[&str], &[&str]); 7] = [
        ("nothing changed", Some((&later, &["a", "b"])), &[], &[]),
        ("a node came", Some((&later, &["a", "b", "c"])), &["c"], &[]),
        ("a node left", Some((&later, &["a"])), &[], &["b"]),
        ("a member moved", Some((&moved, &["a", "c"])), &["a", "c"], &["b"]),
        ("another job of the name", Some((&another, &["a"])), &["a"], &["b"]),
        ("no node", Some((&later, &[])), &[], &["a", "b"]),
        ("the end", None, &[], &["a", "b"]),
    ];
    for (case, wanted, set, deleted) in cases {
        let wanted = wanted.map(|(record, names)| (record, nodes(names)));
        let is_wanted = wanted.as_ref().is_some_and(|(_, nodes)| !nodes.is_empty());
        let change = change(&id(), before, wanted);
        let (was_set, was_deleted) = written(&change);
        assert_eq!(
            (was_set, was_deleted),
            (
                set.iter().map(ToString::to_string).collect(),
                deleted.iter().map(ToString::to_string).collect()
            ),
            "{case}"
        );
        assert_eq!(change.published.is_some(), is_wanted, "{case}");
    }
}

#[test]
fn status_names_all_nodes_before_their_records_are_written() {
    let of =
        |hash: &str, names: &[&str]| PublishedPeers { hash: hash.to_owned(), nodes: nodes(names) };
    let (old, new) = (of("1", &["a", "b"]), of("2", &["b", "c"]));
    let both = of("", &["a", "b", "c"]);
    assert_eq!(announced(Some(&old), Some(&new)), Some(both.clone()));
    assert_eq!(announced(Some(&both), Some(&new)), None);
    assert_eq!(announced(None, Some(&new)), Some(of("", &["b", "c"])));
    assert_eq!(announced(Some(&both), Some(&of("3", &["d"]))), Some(of("", &["a", "b", "c", "d"])));
    assert_eq!(announced(Some(&old), None), Some(of("", &["a", "b"])));
}

#[test]
fn records_that_are_too_large_are_not_written() {
    let job = volcano(json!({"svc": []}), &[("w", 2)]);
    let small = record(&job, JobUid(Index(7)), 1, &placed(&job), &told_tasks(&job));
    assert!(fits(&job, &small, &nodes(&["a"])));
    let many: Vec<String> = (0..6_000).map(|n| format!("node-{n:06}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(!fits(&job, &small, &nodes(&many)), "the status would be too large");
    let peer = PeerAddress { host: "h".repeat(LARGEST_RECORD - 200), port: None };
    let one = PeersRecord { tasks: [("w".to_owned(), vec![Some(peer)])].into(), ..small.clone() };
    assert!(fits(&job, &one, &nodes(&many[..60])));
    assert!(!fits(&job, &one, &nodes(&many[..100])), "Consul would keep them all in memory");
    let peer = PeerAddress { host: "h".repeat(LARGEST_RECORD), port: None };
    let large = PeersRecord { tasks: [("w".to_owned(), vec![Some(peer)])].into(), ..small };
    assert!(!fits(&job, &large, &nodes(&["a"])));
}
