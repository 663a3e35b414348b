//! Jobs that wait for others.

use super::*;
use rcfarm::job::dependencies::ANNOTATION;
use rcfarm_api::Stored as _;
use rcfarm_api::command::{Command, CommandAction, Target};

/// Submits a job of one member that waits as `depends_on` says.
async fn submit_waiting(cluster: &Cluster, name: &str, depends_on: &str) {
    let job = json!({"metadata": {"annotations": {ANNOTATION: depends_on}},
        "spec": {"tasks": [task("t", 1)]}});
    cluster.put(key::job(&id(name)), job.to_string()).await;
}

/// Keys that name a job, but for those of its lock and of its audit records.
async fn keys_of(cluster: &Cluster, name: &str) -> Vec<String> {
    let all = cluster.keys(&rcfarm_store::Prefix::parse("rcfarm/").unwrap()).await;
    all.into_iter().filter(|key| key.ends_with(&format!("/{name}"))).collect()
}

#[tokio::test(start_paused = true)]
async fn job_waits_for_others_with_one_record_and_starts_at_once() {
    let cluster = Cluster::new(2).await;
    let is_bad = Arc::new(AtomicUsize::new(1));
    let code = is_bad.clone();
    let bad = move || i32::try_from(code.load(Ordering::SeqCst)).unwrap();
    let _nodes =
        nodes(&cluster, move |pod, _| Some(if pod.starts_with("bad") { bad() } else { 0 }));
    let farms = [cluster.start("a"), cluster.start("b")];
    for (name, on) in [
        ("good-after", "afterok:good"),
        ("any-after", "afterany:good,bad"),
        ("rescue", "afternotok:bad"),
        ("never", "afterok:bad"),
        ("last", "afterok:good-after,rescue"),
    ] {
        submit_waiting(&cluster, &format!("default/{name}"), on).await;
    }
    tokio::time::sleep(30 * SECOND).await;
    for name in ["good-after", "any-after", "rescue", "never", "last"] {
        assert_eq!(keys_of(&cluster, name).await, [format!("rcfarm/jobs/default/{name}")]);
    }
    // Those that they wait for come later.
    submit(&cluster, "default/good", json!({"tasks": [task("t", 1)]})).await;
    submit(&cluster, "default/bad", json!({"tasks": [task("t", 1)]})).await;
    for name in ["good-after", "any-after", "rescue", "last"] {
        reaches(&cluster, &format!("default/{name}"), JobPhase::Completed, 20 * SECOND).await;
    }
    assert_eq!(status(&cluster, "default/bad").await.state.phase, JobPhase::Failed);
    assert_eq!(keys_of(&cluster, "never").await, ["rcfarm/jobs/default/never"]);
    // What has begun does not wait again, under whatever owner.
    cluster.delete(key::job(&id("default/good"))).await;
    for farm in farms {
        farm.stop().await;
    }
    let _farm = cluster.start("c");
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(status(&cluster, "default/good-after").await.state.phase, JobPhase::Completed);
    // The failed one is made again, and now it completes.
    cluster.delete(key::job(&id("default/bad"))).await;
    within(60 * SECOND, "it is gone", || async { keys_of(&cluster, "bad").await.is_empty() }).await;
    is_bad.store(0, Ordering::SeqCst);
    submit(&cluster, "default/bad", json!({"tasks": [task("t", 1)]})).await;
    reaches(&cluster, "default/never", JobPhase::Completed, 20 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn command_to_a_job_that_waits_is_carried_out() {
    let cluster = Cluster::new(1).await;
    let _nodes = nodes(&cluster, |_, _| Some(0));
    let _farm = cluster.start("a");
    submit_waiting(&cluster, "default/j", "afterok:none").await;
    tokio::time::sleep(5 * SECOND).await;
    let target = Target::Job { job: id("default/j"), uid: None, task: None, index: None };
    let (reason, issued_by) = (String::new(), "test".to_owned());
    let command = Command { action: CommandAction::TerminateJob, target, reason, issued_by };
    let key = key::job_command(&id("default/j").namespace, uuid::Uuid::from_u128(7));
    cluster.put(key, command.encode()).await;
    reaches(&cluster, "default/j", JobPhase::Terminated, 20 * SECOND).await;
}
