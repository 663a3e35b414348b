//! Jobs whose members would have equal pod ids without a hash, and jobs of a time without one.

use rcfarm_api::ids::PodRef;

use super::*;

/// Pods with an intent.
async fn pods(cluster: &Cluster) -> BTreeSet<PodRef> {
    let keys = keys(cluster, "intent/").await;
    let pod = |key: &String| key::node_and_pod(&key::intents(), key);
    keys.iter().filter_map(pod).map(|(node, pod)| PodRef { node, pod }).collect()
}

#[tokio::test(start_paused = true)]
async fn members_of_equal_names_have_pods_of_their_own() {
    let cluster = Cluster::new(1).await;
    let nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    let jobs = [("team-a/train", "w"), ("team-b/train", "w"), ("ns/a", "b-c"), ("ns/a-b", "c")];
    for (job, member) in jobs {
        let spec = json!({"tasks": [task(member, 2)], "minAvailable": 2});
        submit(&cluster, job, spec).await;
    }
    for (job, _) in jobs {
        let status = reaches(&cluster, job, JobPhase::Running, 20 * SECOND).await;
        assert_eq!(status.members.running, 2, "{job}");
    }
    let ids: BTreeSet<PodId> =
        jobs.iter().flat_map(|(job, task)| [0, 1].map(|n| pod_id(job, task, n))).collect();
    assert_eq!(ids.len(), 8);
    assert_eq!(pods(&cluster).await.into_iter().map(|at| at.pod).collect::<BTreeSet<_>>(), ids);
    assert_eq!(nodes.starts().values().copied().collect::<Vec<_>>(), [2; 4], "each name twice");
    farm.stop().await;
}

/// Writes a job and its PodGroup as a farm without hashes did.
async fn submit_plain(cluster: &Cluster, job: &str, members: u32) {
    let policies = json!([{"event": "PodFailed", "action": "RestartPod"}]);
    let delay = json!({"first": "1s", "longest": "1s"});
    let spec = json!({"tasks": [task("w", members)], "policies": policies, "restartDelay": delay});
    submit(cluster, job, spec).await;
    let uid = cluster.entry(key::job(&id(job))).await.unwrap().create_index;
    let owner = json!({"kind": "Job", "name": id(job).name, "uid": uid.to_string()});
    let group = json!({"spec": {"tasks": [{"name": "w", "replicas": members}], "owner": owner}});
    cluster.put(key::pod_group(&id(job)), group.to_string()).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_keeps_ids_without_a_hash_over_restarts() {
    let cluster = Cluster::new(3).await;
    let nodes = nodes(&cluster, |pod, tries| (pod == "j-w-1" && tries == 0).then_some(1));
    submit_plain(&cluster, "default/j", 3).await;
    let farm = cluster.start("a");
    within(60 * SECOND, "one was restarted", || async {
        nodes.starts().get("j-w-1") == Some(&2)
            && status(&cluster, "default/j").await.members.running == 3
    })
    .await;
    farm.stop().await;
    let before = pods(&cluster).await;
    let ids: Vec<String> = before.iter().map(|at| at.pod.to_string()).collect();
    let ids: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    assert_eq!(ids, ["j-w-0", "j-w-1", "j-w-2"].into());
    // Its group is deleted: the ids of the pods show the format.
    cluster.delete(key::pod_group(&id("default/j"))).await;
    let farm = cluster.start("b");
    within(20 * SECOND, "the group is there again", || async {
        !keys(&cluster, "rcfarm/pod_groups/").await.is_empty()
    })
    .await;
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(pods(&cluster).await, before);
    let starts: Vec<usize> = nodes.starts().into_values().collect();
    assert_eq!(starts, [1, 2, 1], "none was restarted by the new farm");
    // Another job of the name has new ids.
    cluster.delete(key::job(&id("default/j"))).await;
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    let new: BTreeSet<PodId> = [pod_id("default/j", "w", 0)].into();
    within(60 * SECOND, "the new job runs alone", || async {
        pods(&cluster).await.into_iter().map(|at| at.pod).collect::<BTreeSet<_>>() == new
    })
    .await;
    farm.stop().await;
}

/// Two jobs of a time without hashes: the second waits, and the first keeps what it has.
#[tokio::test(start_paused = true)]
async fn an_id_without_a_hash_belongs_to_the_first_job() {
    let cluster = Cluster::new(1).await;
    let nodes = nodes(&cluster, |_, _| None);
    submit_plain(&cluster, "team-a/j", 1).await;
    let farm = cluster.start("a");
    reaches(&cluster, "team-a/j", JobPhase::Running, 20 * SECOND).await;
    submit_plain(&cluster, "team-b/j", 2).await;
    within(20 * SECOND, "the second waits", || async {
        status(&cluster, "team-b/j").await.state.reason == "PlaceTaken"
    })
    .await;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(status(&cluster, "team-b/j").await.members.running, 0, "no part of a gang");
    assert_eq!(nodes.starts(), [("j-w-0".to_owned(), 1)].into());
    cluster.delete(key::job(&id("team-a/j"))).await;
    reaches(&cluster, "team-b/j", JobPhase::Running, 60 * SECOND).await;
    assert_eq!(nodes.starts(), [("j-w-0".to_owned(), 2), ("j-w-1".to_owned(), 1)].into());
    farm.stop().await;
}
