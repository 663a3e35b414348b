//! Caches of a farm that lag behind what nodes report.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::harness::RunningFarm;

/// Starts a farm that gets no answer to reads of the tree `prefix` while `is_deaf` is set.
fn start_deaf(
    cluster: &Arc<Cluster>,
    name: &str,
    prefix: &'static str,
    is_deaf: &Arc<AtomicBool>,
) -> RunningFarm {
    let deaf = is_deaf.clone();
    cluster.start_faulty(name, move |request| match request {
        Request::List(read) | Request::Keys(read)
            if *read == prefix && deaf.load(Ordering::SeqCst) =>
        {
            Fate::of(FaultOutcome::Lose)
        }
        _ => Fate::DELIVER,
    })
}

/// The caches of jobs are read once there is one.
async fn submit_first(cluster: &Cluster) {
    submit(cluster, "default/first", json!({"tasks": [task("w", 1)]})).await;
    within(10 * SECOND, "it is intended", || async { keys(cluster, "intent/").await.len() == 1 })
        .await;
}

/// The pending blocking queries are answered once more; later ones are not.
async fn deafen(cluster: &Cluster, is_deaf: &AtomicBool) {
    is_deaf.store(true, Ordering::SeqCst);
    let (node, pod) = ("n0000".parse().unwrap(), "other".parse().unwrap());
    say(cluster, &node, &pod, &Bytes::from_static(b"x"), None).await;
    tokio::time::sleep(SECOND).await;
}

/// The doorbell shows the end of a pod that started and ended between two reads of `reality/`. Its status is shown by
/// the cache before its reality is.
#[tokio::test(start_paused = true)]
async fn pod_that_ended_stays_although_its_reality_is_not_shown_yet() {
    let cluster = Arc::new(Cluster::new(1).await);
    let is_deaf = Arc::new(AtomicBool::new(false));
    let farm = start_deaf(&cluster, "a", "reality/", &is_deaf);
    submit_first(&cluster).await;
    deafen(&cluster, &is_deaf).await;
    let (node, pod): (NodeName, _) = ("n0000".parse().unwrap(), pod_id("default/j", "w", 0));
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    let intent = key::intent(&node, &pod);
    let read = async || cluster.entry(&intent).await;
    within(10 * SECOND, "it is intended", || async { read().await.is_some() }).await;
    let manifest = read().await.unwrap().value;
    say(&cluster, &node, &pod, &manifest, Some(0)).await;
    cluster.put(key::job_bell(&id("default/j")), "1").await;
    reaches(&cluster, "default/j", JobPhase::Completed, 10 * SECOND).await;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(status(&cluster, "default/j").await.members.succeeded, 1);
    assert!(read().await.is_some(), "what has ended stays with its log");
    is_deaf.store(false, Ordering::SeqCst);
    tokio::time::sleep(30 * SECOND).await;
    assert!(read().await.is_some(), "what has ended stays with its log");
    farm.stop().await;
}

/// A pod that its node starts, reports and, after its removal, ends between two reads of `reality/`: the reads before and
/// after are equal, and the job has to go on nevertheless.
#[tokio::test(start_paused = true)]
async fn job_goes_on_after_a_removed_pod_whose_reality_was_never_shown() {
    let cluster = Arc::new(Cluster::new(1).await);
    let is_deaf = Arc::new(AtomicBool::new(false));
    let farm = start_deaf(&cluster, "a", "reality/", &is_deaf);
    submit_first(&cluster).await;
    deafen(&cluster, &is_deaf).await;
    let (node, pod): (NodeName, _) = ("n0000".parse().unwrap(), pod_id("default/j", "w", 0));
    let policies = json!([{"event": "PodFailed", "action": "RestartJob"}]);
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)], "policies": policies})).await;
    let intent = key::intent(&node, &pod);
    let read = async || cluster.entry(&intent).await;
    within(10 * SECOND, "it is intended", || async { read().await.is_some() }).await;
    let manifest = read().await.unwrap().value;
    say(&cluster, &node, &pod, &manifest, Some(1)).await;
    cluster.put(key::job_bell(&id("default/j")), "1").await;
    within(10 * SECOND, "it is removed", || async { read().await.is_none() }).await;
    cluster.delete(key::pod_status(&pod, &node)).await;
    cluster.delete(key::reality(&node, &pod)).await;
    tokio::time::sleep(30 * SECOND).await;
    assert!(read().await.is_none(), "the farm does not know yet that it is gone");
    is_deaf.store(false, Ordering::SeqCst);
    within(30 * SECOND, "it is started again", || async { read().await.is_some() }).await;
    farm.stop().await;
}

/// A farm whose caches lag takes over a job that is over. It reads the members that it would stop: one individually,
/// nine with the trees.
#[tokio::test(start_paused = true)]
async fn new_owner_with_late_caches_keeps_ended_pods() {
    for members in [1, 9] {
        new_owner_keeps_ended_pods(members).await;
    }
}

async fn new_owner_keeps_ended_pods(members: u32) {
    let cluster = Arc::new(Cluster::new(1).await);
    let first = cluster.start("a");
    submit_first(&cluster).await;
    let is_deaf = Arc::new(AtomicBool::new(false));
    // It reads `reality/` when it claims a job, and does nothing before.
    let second = start_deaf(&cluster, "b", "status/pods/", &is_deaf);
    tokio::time::sleep(10 * SECOND).await;
    deafen(&cluster, &is_deaf).await;
    let node: NodeName = "n0000".parse().unwrap();
    let job = job_of_farm_a(&cluster, members).await;
    let intents = async || {
        let of_job = (0..members).map(|n| key::intent(&node, &pod_id(&job, "w", n)));
        let mut all = Vec::new();
        for key in of_job {
            all.extend(cluster.entry(key).await);
        }
        all
    };
    within(10 * SECOND, "all are intended", || async { intents().await.len() == members as usize })
        .await;
    for (n, intent) in intents().await.into_iter().enumerate() {
        let pod = pod_id(&job, "w", u32::try_from(n).unwrap());
        say(&cluster, &node, &pod, &intent.value, Some(0)).await;
    }
    cluster.put(key::job_bell(&id(&job)), "1").await;
    reaches(&cluster, &job, JobPhase::Completed, 30 * SECOND).await;
    first.stop().await;
    tokio::time::sleep(30 * SECOND).await;
    let kept = "what has ended stays with its log";
    assert_eq!(intents().await.len(), members as usize, "{members}: {kept}");
    is_deaf.store(false, Ordering::SeqCst);
    within(700 * SECOND, "the other farm owns it", || async {
        let owner = status(&cluster, &job).await.owner;
        owner.is_some_and(|owner| owner.farm.as_str() == "b")
    })
    .await;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(intents().await.len(), members as usize, "{members}: {kept}");
    assert_eq!(status(&cluster, &job).await.members.succeeded, members);
    second.stop().await;
}

/// A new job that farm `a` owns. A name decides which of two farms claims a job.
async fn job_of_farm_a(cluster: &Cluster, members: u32) -> String {
    for n in 0..20 {
        let job = format!("default/j{n}");
        submit(cluster, &job, json!({"tasks": [task("w", members)]})).await;
        let owner = async || status(cluster, &job).await.owner.map(|owner| owner.farm);
        within(10 * SECOND, "it has an owner", || async { owner().await.is_some() }).await;
        if owner().await.is_some_and(|farm| farm.as_str() == "a") {
            return job;
        }
    }
    panic!("farm a owns none of 20 jobs");
}
