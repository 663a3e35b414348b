//! Reservations of cells, with the built program, a real Consul, two agents and real processes.

use rcfarm_api::audit::Details;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_store::time::monotonic;

use crate::harness::RealCluster;
use rcfarm_testing::wait::until;

const CELLS: &str = "\
physicalCluster:
  cellTypes:
    NODE: {childCellType: GPU, childCellNumber: 4, isNodeLevel: true}
  physicalCells: [{cellType: NODE, cellAddress: n1}, {cellType: NODE, cellAddress: n2}]
virtualClusters:
  A: {virtualCells: [{cellType: NODE, cellNumber: 1}]}
  B: {virtualCells: [{cellType: NODE, cellNumber: 1}]}
";

/// A job of one node. Its process ends by the SIGKILL after its grace: while it lasts, a reservation stands.
const JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: NAME}
spec:
  tasks:
    - name: w
      replicas: 1
      template:
        spec:
          cells: {virtualCluster: B, priority: PRIORITY, leafCellNumber: 4}
          restartPolicy: Never
          terminationGracePeriodSeconds: 8
          containers: [{name: c, command: [sh, -c, \"trap '' TERM; while true; do sleep 1; done\"]}]
";

fn id(name: &str) -> Namespaced {
    format!("default/{name}").parse().unwrap()
}

async fn submit(cluster: &RealCluster, name: &str, priority: &str) {
    let job = JOB.replace("NAME", name).replace("PRIORITY", priority);
    std::fs::write(cluster.dir.path().join("job.yaml"), job).unwrap();
    cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
}

async fn group(cluster: &RealCluster, name: &str) -> PodGroupStatus {
    cluster.read(key::pod_group_status(&id(name))).await.unwrap_or_default()
}

/// Groups that were told to make room for another one, in the order of the audit log.
async fn told(cluster: &RealCluster) -> Vec<String> {
    let groups = |record: rcfarm_api::audit::AuditRecord| {
        let Ok(Details::GroupsOrdered(ordered)) = record.details() else { return Vec::new() };
        let running = ordered.groups.into_iter().filter(|group| {
            let is_running = group.from == group.to && group.from.as_deref() != Some("Pending");
            group.reason == "Evicted" && is_running && group.preemptor.is_some()
        });
        running.map(|group| group.group.to_string()).collect()
    };
    cluster.audit().await.into_iter().flat_map(groups).collect()
}

/// Session of the farm that owns the queues, and its name as the last transaction says.
async fn owner(cluster: &RealCluster) -> (Option<String>, String) {
    let locks = cluster.list(&key::scheduler_locks()).await;
    let session = locks.first().and_then(|lock| lock.session.as_ref()).map(ToString::to_string);
    let status = cluster.value(key::scheduler_status(&"default".parse().unwrap())).await;
    (session, status["farm"].as_str().unwrap_or_default().to_owned())
}

/// The farm that has made a reservation is killed, and the other one goes on: the same victim, told and stopped once, and
/// the reserved place. The times are printed, and not checked.
#[tokio::test(flavor = "multi_thread")]
async fn reservation_survives_the_farm_that_made_it() {
    let cluster = RealCluster::real().await;
    let settings = ["--capacity", "cpu=4,gpu=4", "--check-ttl", "6s"];
    let agents = ["n1", "n2"].map(|name| cluster.agent_process(name, &settings));
    std::fs::write(cluster.dir.path().join("cells.yaml"), CELLS).unwrap();
    cluster.run(&["cell", "config", "apply", "cells.yaml"]).await.ok();
    let farms = ["a", "b"].map(|name| (name, cluster.farm_process(name, &[])));
    for name in ["lent-0", "lent-1"] {
        submit(&cluster, name, "-1").await;
        let wait = ["job", "wait", name, "--for", "running", "--timeout", "60s"];
        cluster.run(&wait).await.ok();
    }
    submit(&cluster, "own", "0").await;
    until("the reservation stands, and its victim is told", async || {
        group(&cluster, "own").await.reservation.is_some() && told(&cluster).await.len() == 1
    })
    .await;
    let (session, name) = owner(&cluster).await;
    let (_, farm) = farms.iter().find(|(of, _)| *of == name).expect("it is one of the two");
    farm.signal("KILL");
    let killed = monotonic();
    let reserved = group(&cluster, "own").await.reservation.expect("the grace is not over");
    let victims = told(&cluster).await;
    until("the other farm owns the queues", async || {
        let (now, _) = owner(&cluster).await;
        now.is_some() && now != session
    })
    .await;
    println!("taken over {:.2} s after the kill", (monotonic() - killed).as_secs_f64());
    let kept = group(&cluster, "own").await;
    if let Some(still) = &kept.reservation {
        assert_eq!(still, &reserved, "the same reservation");
    }
    cluster.run(&["job", "wait", "own", "--for", "running", "--timeout", "90s"]).await.ok();
    println!("own runs {:.2} s after the kill", (monotonic() - killed).as_secs_f64());
    let own = group(&cluster, "own").await.placement.expect("it runs");
    let places = |pods: &[rcfarm_api::cells::PodPlacementRecord]| {
        pods.iter().map(|pod| (pod.node.clone(), pod.devices.clone())).collect::<Vec<_>>()
    };
    assert_eq!(places(&own.cells.expect("it has cells").pods), places(&reserved.pods));
    assert_eq!(told(&cluster).await, victims, "nobody is told twice, and no other");
    let mut versions = Vec::new();
    for name in ["lent-0", "lent-1"] {
        let status: JobStatus = cluster.read(key::job_status(&id(name))).await.unwrap();
        versions.push((format!("default/{name}"), status.version));
    }
    for (name, version) in &versions {
        assert_eq!(*version, u64::from(victims.contains(name)), "{versions:?}");
    }
    for name in ["own", "lent-0", "lent-1"] {
        cluster.run(&["job", "delete", name, "--timeout", "80s"]).await.ok();
    }
    for agent in agents {
        agent.stop().await;
    }
    for (_, farm) in farms.into_iter().filter(|(of, _)| *of != name) {
        farm.stop().await;
    }
}
