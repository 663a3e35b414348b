use serde_json::{Value, json};

use super::*;
use crate::job::document;
use rcfarm_api::job::spec::Framework;

fn id() -> Namespaced {
    "default/train".parse().unwrap()
}

fn found(name: &str, task: &str, index: &str, owner: Reference) -> FoundService {
    FoundService {
        name: name.to_owned(),
        job: id(),
        task: task.to_owned(),
        index: index.to_owned(),
        owner,
        is_deleting: false,
    }
}

/// A `PyTorchJob` with so many workers, whose default container has these ports.
fn job(workers: u32, ports: Value) -> JobSpec {
    let containers = json!([{"name": "init", "command": ["x"], "ports": [{"containerPort": 1}]},
        {"name": "pytorch", "command": ["x"], "ports": ports}]);
    let template = json!({"spec": {"containers": containers}});
    let worker = json!({"replicas": workers, "template": template});
    let document =
        json!({"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Worker": worker}}});
    document::read(&id(), &document).unwrap().spec
}

fn names(services: &[&FoundService]) -> Vec<String> {
    services.iter().map(|service| service.name.clone()).collect()
}

/// `GetServiceSlices`, the lines of the table in `kubeflow.md` §1.10, as amended by D1, D2 and D3.
#[test]
fn service_slices_by_the_table() {
    /// Indexes of the services, replicas; indexes to create, names to remove.
    type Case = (&'static [&'static str], u32, &'static [u32], &'static [&'static str]);
    let cases: [Case; 11] = [
        (&[], 0, &[], &[]),
        (&["0"], 0, &[], &["s0"]),
        (&[], 1, &[0], &[]),
        (&["0", "1", "2"], 3, &[], &[]),
        (&["0", "1", "2"], 4, &[3], &[]),
        (&["0", "1", "2"], 2, &[], &["s2"]),
        (&["0", "1", "2", "4"], 3, &[], &["s3"]),
        (&["0", "4"], 3, &[1, 2], &["s1"]),
        (&["0", "0", "1"], 3, &[2], &["s1"]),
        (&["-1", "0"], 2, &[1], &["s0"]),
        (&["x", "0"], 2, &[1], &["s0"]),
    ];
    for (indexes, replicas, create, remove) in cases {
        let of =
            |(n, index): (usize, &&str)| found(&format!("s{n}"), "Worker", index, Reference::Mine);
        let services: Vec<FoundService> = indexes.iter().enumerate().map(of).collect();
        let services: Vec<&FoundService> = services.iter().collect();
        let slices = ServiceSlices::of(&services, 0..replicas);
        assert_eq!(slices.create, create.iter().copied().collect(), "{indexes:?} of {replicas}");
        assert_eq!(names(&slices.remove), remove, "{indexes:?} of {replicas}");
        let all = slices.keep.len() + slices.create.len();
        assert_eq!(all, replicas as usize, "each index has one");
    }
}

/// `FilterServicesForReplicaType`, a test of `kubeflow.md` §1.10.
#[test]
fn services_of_a_type_in_their_order() {
    let services = ["a", "b", "c", "d", "e"].map(|name| {
        let task = if matches!(name, "a" | "c" | "e") { "foo" } else { "bar" };
        found(name, task, "0", Reference::Mine)
    });
    let services: Vec<&FoundService> = services.iter().collect();
    assert_eq!(names(&of_type(&services, "Foo")), ["a", "c", "e"]);
}

/// `TestClaimServices`: the six rows of the claim of services, by the table of `kubeflow.md` §1.12.
#[test]
fn services_are_claimed_as_pods() {
    use Reference::{Mine, Nobody, Other};
    let matching = |name: &str, owner| found(name, "Worker", "0", owner);
    let foreign = |name: &str, owner| FoundService {
        job: "default/other".parse().unwrap(),
        ..matching(name, owner)
    };
    let leaving = |service: FoundService| FoundService { is_deleting: true, ..service };
    type Row<'a> = (u8, bool, Vec<FoundService>, &'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let rows: [Row<'_>; 7] = [
        (1, false, vec![matching("a", Nobody), foreign("b", Nobody)], &["a"], &["a"], &[]),
        (2, true, vec![matching("a", Nobody)], &[], &[], &[]),
        (3, true, vec![matching("a", Mine), matching("b", Nobody)], &["a"], &[], &[]),
        (4, false, vec![matching("a", Mine), matching("b", Other)], &["a"], &[], &[]),
        (5, false, vec![matching("a", Mine), foreign("b", Mine)], &["a"], &[], &["b"]),
        (
            6,
            false,
            vec![leaving(matching("a", Mine)), leaving(foreign("b", Mine))],
            &["a"],
            &[],
            &["b"],
        ),
        (6, false, vec![leaving(matching("a", Nobody))], &[], &[], &[]),
    ];
    for (row, owner_deleting, services, own, adopt, release) in rows {
        let claimed = services_of_job(&id(), owner_deleting, &services);
        assert_eq!(names(&claimed.own), own, "row {row}");
        assert_eq!(names(&claimed.adopt), adopt, "row {row}");
        assert_eq!(names(&claimed.release), release, "row {row}");
    }
}

fn reconciled(
    job: &JobSpec,
    wanted: Range<u32>,
    own: &[&FoundService],
) -> (Vec<String>, Vec<String>) {
    let peer = |_: &Slot| None;
    let seen = ServicesObserved { id: &id(), job, task: &job.tasks[0], wanted, own, peer: &peer };
    let plan = reconcile(&seen);
    let created = plan.create.into_values().map(|service| service.name).collect();
    (created, names(&plan.remove))
}

/// `ReconcileServices` of `kubeflow.md` §1.10: services follow the replicas, and a service that is gone comes back (D13).
#[test]
fn services_follow_the_members() {
    let (first, third) = (
        found("train-worker-0", "Worker", "0", Reference::Mine),
        found("train-worker-2", "Worker", "2", Reference::Mine),
    );
    let own = [&first, &third];
    let two = job(2, json!([]));
    let (created, removed) = reconciled(&two, 0..2, &own);
    assert_eq!(
        (created, removed),
        (vec!["train-worker-1".to_owned()], vec!["train-worker-2".to_owned()])
    );
    // A member that is out of range gets none, whoever asks.
    assert_eq!(reconciled(&two, 2..3, &[]), (vec![], vec![]));
    for without in
        [JobSpec { services: false, ..two.clone() }, JobSpec { deleting: true, ..two.clone() }]
    {
        let (created, removed) = reconciled(&without, 0..2, &own);
        assert_eq!((created.len(), removed.len()), (0, 2));
    }
}

/// `CreateNewService` of `kubeflow.md` §1.10: ports are those of the default container, which may have none.
#[test]
fn ports_of_a_service_are_those_of_the_default_container() {
    let service = |job: &JobSpec| {
        let peer = |_: &Slot| None;
        let task = &job.tasks[0];
        let seen = ServicesObserved { id: &id(), job, task, wanted: 1..2, own: &[], peer: &peer };
        reconcile(&seen).create.remove(&1).unwrap()
    };
    let port = |name: &str, port: u16| json!({"name": name, "containerPort": port});
    let named = job(2, json!([port("pytorchjob-port", 99), port("web", 80), port("a b", 7)]));
    let of = service(&named);
    assert_eq!(of.name, "train-worker-1");
    assert_eq!(of.tags, ["default", "train", "Worker", "1"]);
    assert_eq!(of.port, Some(ServicePort::Number(99)));
    let meta = [("port-pytorchjob-port", "99"), ("port-web", "80")];
    assert_eq!(of.meta, meta.map(|(name, port)| (name.to_owned(), port.to_owned())).into());
    // The operator's default.
    assert_eq!(service(&job(2, json!([]))).port, Some(ServicePort::Number(23456)));
    let mut mpi = job(2, json!([]));
    mpi.framework = Framework::Mpi;
    mpi.tasks[0].template.containers[1].name = "mpi".to_owned();
    assert_eq!(service(&mpi).port, None, "a container without ports has a service without ports");
    mpi.tasks[0].template.containers[1].ports = vec![(None, 22)];
    assert_eq!(service(&mpi).port, Some(ServicePort::Number(22)));
    // A document without the default container is refused.
    let document = json!({"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Worker": {
        "template": {"spec": {"containers": [{"name": "other", "command": ["x"]}]}}}}}});
    assert!(document::read(&id(), &document).is_err());
}

/// The port that its node gave to a member stands in its service, wherever that port is named.
#[test]
fn service_has_the_port_that_the_node_gave() {
    let job = job(1, json!([{"name": "pytorchjob-port", "containerPort": 99}]));
    let peer =
        |_: &Slot| Some(ClusterPeer { host: "h".to_owned(), offset: 0, assigned: Some(20_007) });
    let task = &job.tasks[0];
    let seen = ServicesObserved { id: &id(), job: &job, task, wanted: 0..1, own: &[], peer: &peer };
    let service = reconcile(&seen).create.remove(&0).unwrap();
    assert_eq!(service.port, Some(ServicePort::Number(20_007)));
    assert_eq!(service.meta["port-pytorchjob-port"], "20007");
}

#[test]
fn member_whose_name_is_none_of_a_service_has_none() {
    let long: Namespaced = format!("default/{}", "a".repeat(60)).parse().unwrap();
    let job = job(1, json!([]));
    let (peer, task) = (|_: &Slot| None, &job.tasks[0]);
    let seen = ServicesObserved { id: &long, job: &job, task, wanted: 0..1, own: &[], peer: &peer };
    assert_eq!(reconcile(&seen), ServicePlan::default());
}

/// `TestDeletePodsAndServices`: `cleanPodPolicy` for services (`kubeflow.md` §1.5, §1.10, D8).
#[test]
fn services_are_cleaned_by_the_policy() {
    use PodPhase::{Failed, Pending, Running, Succeeded};
    for (policy, cleaned) in [
        (CleanPods::None, [false, false, false, false]),
        (CleanPods::Running, [true, true, false, false]),
        (CleanPods::All, [true, true, true, true]),
    ] {
        let phases = [Pending, Running, Succeeded, Failed];
        assert_eq!(phases.map(|phase| is_cleaned(policy, phase)), cleaned, "{policy:?}");
    }
}
