//! Jobs whose record is deleted, spoilt or hidden.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_deleted_job_leaves_nothing_and_its_name_is_another_jobs() {
    let cluster = Arc::new(Cluster::new(4).await);
    let nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    submit(&cluster, "default/j", json!({"tasks": [task("w", 2)]})).await;
    let first = reaches(&cluster, "default/j", JobPhase::Running, 10 * SECOND).await;
    // Deleted directly, and created again at once.
    cluster.delete("rcfarm/jobs/default/j").await;
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    within(20 * SECOND, "the new one runs alone", || async {
        let status = status(&cluster, "default/j").await;
        status.uid != first.uid
            && status.state.phase == JobPhase::Running
            && keys(&cluster, "intent/").await.len() == 1
    })
    .await;
    assert_eq!(nodes.starts()["j-w-0"], 2);
    let document = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"tasks": [task("w", 1)]}});
    cluster.put("rcfarm/jobs/default/j", document.to_string()).await;
    nothing_is_left(&cluster).await;
    farm.stop().await;
}

/// Below 11 operations no pod fits beside a group and a command; still one is removed.
#[tokio::test(start_paused = true)]
async fn orphans_are_removed_under_a_low_limit_of_operations() {
    let mut cluster = Cluster::new(4).await;
    cluster.limits.ops = 9;
    let _nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    submit(&cluster, "default/j", json!({"tasks": [task("w", 3)]})).await;
    let first = reaches(&cluster, "default/j", JobPhase::Running, 20 * SECOND).await;
    cluster.delete("rcfarm/jobs/default/j").await;
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    within(20 * SECOND, "the new job runs alone", || async {
        let status = status(&cluster, "default/j").await;
        status.uid != first.uid
            && status.state.phase == JobPhase::Running
            && keys(&cluster, "intent/").await.len() == 1
    })
    .await;
    cluster.delete("rcfarm/jobs/default/j").await;
    nothing_is_left(&cluster).await;
    farm.stop().await;
}

pub(super) async fn nothing_is_left(cluster: &Cluster) {
    within(40 * SECOND, "nothing is left", || async {
        let mut left = Vec::new();
        for tree in ["rcfarm/jobs/", "rcfarm/job_status/", "rcfarm/pod_groups/", "labels/pod/"] {
            left.extend(keys(cluster, tree).await);
        }
        for tree in ["intent/", "rcfarm/pod_group_status/", "lock/rcfarm/jobs/"] {
            left.extend(keys(cluster, tree).await);
        }
        left.is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_record_is_deleted_by_hand_leaves_nothing() {
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = nodes(&cluster, |pod, _| (pod == "ends-w-0").then_some(0));
    let farm = cluster.start("a");
    for job in ["default/runs", "default/ends"] {
        submit(&cluster, job, json!({"tasks": [task("w", 1)]})).await;
    }
    reaches(&cluster, "default/runs", JobPhase::Running, 10 * SECOND).await;
    reaches(&cluster, "default/ends", JobPhase::Completed, 10 * SECOND).await;
    cluster.delete("rcfarm/jobs/default/runs").await;
    cluster.delete("rcfarm/jobs/default/ends").await;
    nothing_is_left(&cluster).await;

    // While no farm runs.
    submit(&cluster, "default/runs", json!({"tasks": [task("w", 30)]})).await;
    reaches(&cluster, "default/runs", JobPhase::Running, 20 * SECOND).await;
    farm.stop().await;
    cluster.delete("rcfarm/jobs/default/runs").await;
    let farm = cluster.start("b");
    nothing_is_left(&cluster).await;
    let gone = cluster.audit().await.into_iter().filter(|record| match record.details().unwrap() {
        Details::JobStep(step) => step.reason == "RecordGone" && step.phase == "Deleted",
        _ => false,
    });
    assert_eq!(gone.count(), 3);
    farm.stop().await;
}

/// Otherwise they would stay in every claim plan, and be claimed when the other farm dies.
#[tokio::test(start_paused = true)]
async fn a_farm_forgets_the_jobs_that_another_has_tidied_up() {
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let claims = Arc::new(AtomicUsize::new(0));
    let counted = claims.clone();
    let a = cluster.start("a");
    let b = cluster.start_faulty("b", move |request| {
        if let Request::Txn(ops) = request {
            let is_lock = |op: &&KvOp| op.key.starts_with("lock/rcfarm/jobs/");
            counted.fetch_add(ops.iter().filter(is_lock).count(), Ordering::SeqCst);
        }
        Fate::DELIVER
    });
    let jobs: Vec<String> = (0..12).map(|n| format!("default/j{n}")).collect();
    for job in &jobs {
        submit(&cluster, job, json!({"tasks": [task("w", 1)]})).await;
    }
    for job in &jobs {
        reaches(&cluster, job, JobPhase::Running, 20 * SECOND).await;
        cluster.delete(key::job(&id(job))).await;
    }
    nothing_is_left(&cluster).await;
    tokio::time::sleep(60 * SECOND).await;
    let before = claims.load(Ordering::SeqCst);
    assert!(before > 0, "b had its share");
    a.kill().await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(claims.load(Ordering::SeqCst), before, "of a's jobs it knows nothing any more");
    b.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_record_only_seems_to_be_gone_keeps_everything() {
    let cluster = Arc::new(Cluster::new(4).await);
    let nodes = nodes(&cluster, |_, _| None);
    let is_blind = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let blind = is_blind.clone();
    let farm = cluster.start_faulty("a", move |request| match request {
        Request::List("rcfarm/jobs/") | Request::Keys("rcfarm/jobs/")
            if blind.load(std::sync::atomic::Ordering::SeqCst) =>
        {
            Fate::of(FaultOutcome::Short(0))
        }
        _ => Fate::DELIVER,
    });
    submit(&cluster, "default/j", json!({"tasks": [task("w", 2)]})).await;
    reaches(&cluster, "default/j", JobPhase::Running, 10 * SECOND).await;
    is_blind.store(true, std::sync::atomic::Ordering::SeqCst);
    // A change, so that the cache is read.
    submit(&cluster, "default/other", json!({"tasks": [task("w", 1)]})).await;
    tokio::time::sleep(700 * SECOND).await;
    for tree in ["intent/", "labels/pod/"] {
        let of_j = keys(&cluster, tree).await.into_iter().filter(|key| key.contains("/j-w-"));
        assert_eq!(of_j.count(), 2, "{tree}");
    }
    is_blind.store(false, std::sync::atomic::Ordering::SeqCst);
    reaches(&cluster, "default/other", JobPhase::Running, 700 * SECOND).await;
    assert_eq!(status(&cluster, "default/j").await.state.phase, JobPhase::Running);
    assert!(nodes.starts().values().all(|starts| *starts == 1), "{:?}", nodes.starts());
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_record_is_spoilt_can_be_deleted() {
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    submit(&cluster, "default/j", json!({"tasks": [task("w", 2)]})).await;
    reaches(&cluster, "default/j", JobPhase::Running, 10 * SECOND).await;
    let spoilt = json!({"tasks": [task("w", 1), task("w", 1)]});
    submit(&cluster, "default/j", spoilt.clone()).await;
    within(20 * SECOND, "it is told so", || async {
        status(&cluster, "default/j").await.state.reason == "InvalidRecord"
    })
    .await;
    assert_eq!(keys(&cluster, "intent/").await.len(), 2, "and its pods stay");
    let document =
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": spoilt});
    cluster.put("rcfarm/jobs/default/j", document.to_string()).await;
    nothing_is_left(&cluster).await;
    farm.stop().await;
}

/// Their nodes had them and have ended them, so nothing is waited for: the time of all is below that of one wait for a
/// pod that no node has shown.
#[tokio::test(start_paused = true)]
async fn finished_jobs_are_deleted_without_waiting() {
    const JOBS: u32 = 75;
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = nodes(&cluster, |_, _| Some(0));
    let farm = cluster.start("a");
    let names: Vec<String> = (0..JOBS).map(|n| format!("default/j{n}")).collect();
    let spec = json!({"tasks": [task("w", 1)]});
    for name in &names {
        submit(&cluster, name, spec.clone()).await;
    }
    for name in &names {
        reaches(&cluster, name, JobPhase::Completed, 60 * SECOND).await;
    }
    tokio::time::sleep(5 * SECOND).await;
    let start = tokio::time::Instant::now();
    for name in &names {
        let deleted =
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec});
        cluster.put(key::job(&id(name)), deleted.to_string()).await;
    }
    within(60 * SECOND, "all are gone", || async {
        keys(&cluster, "rcfarm/jobs/").await.is_empty()
    })
    .await;
    let took = start.elapsed();
    assert!(took < 2 * SECOND, "{took:?}");
    nothing_is_left(&cluster).await;
    farm.stop().await;
}

/// `consul kv delete` and `put` while the status of the earlier job is there.
#[tokio::test(start_paused = true)]
async fn first_status_of_a_replaced_record_is_in_the_log() {
    for spec in [json!({"tasks": [task("t", 1)]}), json!({"tasks": 1})] {
        let cluster = Cluster::new(0).await;
        let farm = cluster.start("a");
        submit(&cluster, "default/j", json!({"tasks": [task("t", 1)]})).await;
        within(10 * SECOND, "it waits", async || status(&cluster, "default/j").await.uid.0.0 > 0)
            .await;
        tokio::time::sleep(10 * SECOND).await;
        let job = key::job(&id("default/j"));
        cluster.delete(&job).await;
        submit(&cluster, "default/j", spec).await;
        let uid = cluster.entry(&job).await.unwrap().create_index;
        within(20 * SECOND, "its status is new", async || {
            status(&cluster, "default/j").await.uid.0 == uid
        })
        .await;
        let is_of_it = |details: &Details| matches!(details, Details::JobStep(s) if s.uid == uid);
        let audit = cluster.audit().await;
        let steps = audit.iter().filter(|record| record.details().is_ok_and(|d| is_of_it(&d)));
        assert_eq!(steps.count(), 1);
        farm.stop().await;
    }
}
