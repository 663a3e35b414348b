//! Arrays: many tasks, of which a few run at a time.

use super::*;
use rcfarm::job::document::ARRAY_ANNOTATION;
use rcfarm_api::ResourceList;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::resource_list::units;

async fn submit_array(cluster: &Cluster, name: &str, indexes: &str) {
    let job = json!({"metadata": {"annotations": {ARRAY_ANNOTATION: indexes}},
        "spec": {"tasks": [task("t", 1)]}});
    cluster.put(key::job(&id(name)), job.to_string()).await;
}

/// The same tasks as single jobs: what they cost without an array.
async fn bare_transactions(tasks: usize) -> u64 {
    let cluster = Cluster::new(4).await;
    let _nodes = nodes(&cluster, |_, _| Some(0));
    let (_farm, counter) = cluster.start_counted("a");
    for n in 0..tasks {
        submit(&cluster, &format!("default/j{n}"), json!({"tasks": [task("t", 1)]})).await;
    }
    for n in 0..tasks {
        reaches(&cluster, &format!("default/j{n}"), JobPhase::Completed, 300 * SECOND).await;
    }
    counter.transactions()
}

/// Starts of pods in all.
fn starts(nodes: &FakeNodes) -> usize {
    nodes.starts().values().sum()
}

#[tokio::test(start_paused = true)]
async fn array_costs_one_record_and_fewer_transactions_than_single_jobs() {
    const TASKS: usize = 200;
    let cluster = Cluster::new(4).await;
    let nodes = nodes(&cluster, |_, _| Some(0));
    let (_farm, counter) = cluster.start_counted("a");
    submit_array(&cluster, "default/sweep", "0-199%20").await;
    let done = reaches(&cluster, "default/sweep", JobPhase::Completed, 900 * SECOND).await;
    let progress = done.array.unwrap();
    assert_eq!(String::from(progress.completed_indexes), "0-199");
    assert_eq!(starts(&nodes), TASKS, "each task runs once");
    // Each member has its last pod.
    assert_eq!(keys(&cluster, "intent/").await.len(), 20);
    assert_eq!(keys(&cluster, "rcfarm/jobs/").await.len(), 1);
    let made = counter.transactions();
    let bare = bare_transactions(TASKS).await;
    println!("{made} transactions for {TASKS} tasks; as single jobs {bare}");
    assert!(made <= bare / 4, "{made} and {bare}");
}

/// Tasks that end at different times, one by one.
#[tokio::test(start_paused = true)]
async fn task_that_ends_alone_costs_three_transactions_at_most() {
    let cluster = Cluster::new(2).await;
    let nodes = nodes(&cluster, |_, _| Some(0));
    let (_farm, counter) = cluster.start_counted("a");
    submit_array(&cluster, "default/line", "0-49%1").await;
    reaches(&cluster, "default/line", JobPhase::Completed, 900 * SECOND).await;
    assert_eq!(starts(&nodes), 50);
    let made = counter.transactions();
    println!("{made} transactions for 50 tasks, one at a time");
    assert!(made <= 3 * 50 + 20, "{made}");
}

/// The farm dies at each transaction that writes the job's status, before or after it is carried out.
#[tokio::test(start_paused = true)]
async fn killed_farm_runs_each_task_once_at_every_transaction() {
    let mut is_over = [false; 2];
    for nth in 0..60 {
        for (kind, fate) in [FaultOutcome::Lose, FaultOutcome::LoseReply].into_iter().enumerate() {
            if is_over[kind] {
                continue;
            }
            let cluster = Cluster::new(2).await;
            let nodes = nodes(&cluster, |_, _| Some(0));
            let (farm, sent) = cluster.start_dying(&["rcfarm/job_status/"], nth, fate.clone());
            submit_array(&cluster, "default/sweep", "0-9%3").await;
            within(600 * SECOND, "its transaction", || async {
                let is_done = status(&cluster, "default/sweep").await.state.phase.is_final();
                sent.load(Ordering::SeqCst) > nth || is_done
            })
            .await;
            is_over[kind] = sent.load(Ordering::SeqCst) <= nth;
            farm.kill().await;
            let heir = cluster.start("b");
            let done = reaches(&cluster, "default/sweep", JobPhase::Completed, 600 * SECOND).await;
            let completed = String::from(done.array.unwrap().completed_indexes);
            assert_eq!((&*completed, starts(&nodes)), ("0-9", 10), "{fate:?} of the {nth}th");
            heir.stop().await;
        }
    }
    assert_eq!(is_over, [true; 2], "each transaction was reached");
}

async fn submit_asking(cluster: &Cluster, indexes: &str) {
    let mut task = task("t", 1);
    task["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": 1}});
    let job = json!({"metadata": {"annotations": {ARRAY_ANNOTATION: indexes}}, "spec": {"tasks": [task]}});
    cluster.put(key::job(&id("default/sweep")), job.to_string()).await;
}

/// A cluster of nodes with one CPU each.
async fn small_nodes(count: usize) -> Cluster {
    let cluster = Cluster::new(count).await;
    let capacity: ResourceList = "cpu=1,memory=1Gi".parse().unwrap();
    for n in 0..count {
        let record = json!({"capacity": units::json(&capacity)});
        cluster.put(key::node(&crate::harness::node(n)), record.to_string()).await;
    }
    cluster
}

async fn is_free(cluster: &Cluster, nodes: usize) -> bool {
    let mut free = true;
    for n in 0..nodes {
        let key = key::allocation(&crate::harness::node(n));
        let all: Option<Allocations> = cluster.read(key).await;
        free &= all.is_none_or(|all| all.pods.is_empty());
    }
    free
}

/// Three of its five members never find a node: the others run all tasks.
#[tokio::test(start_paused = true)]
async fn array_finishes_with_room_for_two_of_five_members() {
    let cluster = small_nodes(2).await;
    let nodes = nodes(&cluster, |_, _| Some(0));
    let farm = cluster.start("a");
    submit_asking(&cluster, "0-11%5").await;
    let job = "default/sweep";
    within(300 * SECOND, "it begins", || async { !keys(&cluster, "intent/").await.is_empty() })
        .await;
    let most = async {
        let mut most = 0;
        while !status(&cluster, job).await.state.phase.is_final() {
            most = most.max(keys(&cluster, "intent/").await.len());
            tokio::time::sleep(SECOND / 4).await;
        }
        most
    };
    let most = tokio::time::timeout(900 * SECOND, most).await.expect("it ends");
    let done = reaches(&cluster, job, JobPhase::Completed, SECOND).await;
    assert_eq!(String::from(done.array.unwrap().completed_indexes), "0-11");
    assert_eq!((starts(&nodes), most), (12, 2), "each task runs once, two at a time");
    within(60 * SECOND, "its nodes are free", || is_free(&cluster, 2)).await;
    farm.stop().await;
}

/// All tasks that are left run on members that are too many from then on. Those that stay have given their nodes back.
#[tokio::test(start_paused = true)]
async fn limit_lowered_while_only_running_tasks_are_left() {
    let cluster = small_nodes(4).await;
    let is_open = Arc::new(AtomicUsize::new(0));
    let gate = is_open.clone();
    let nodes = nodes(&cluster, move |name, _| {
        let ends = ["sweep-t-0", "sweep-t-1"].contains(&name) || gate.load(Ordering::SeqCst) > 0;
        ends.then_some(0)
    });
    let farm = cluster.start("a");
    submit_asking(&cluster, "0-3%4").await;
    let job = "default/sweep";
    within(300 * SECOND, "two have ended", || async {
        let progress = status(&cluster, job).await.array.unwrap_or_default();
        progress.completed_indexes.len() == 2 && starts(&nodes) == 4
    })
    .await;
    submit_asking(&cluster, "0-3%1").await;
    within(300 * SECOND, "one of the others is stopped at least", || async {
        let progress = status(&cluster, job).await.array.unwrap_or_default();
        progress.members.keys().all(|member| *member == 0)
    })
    .await;
    is_open.store(1, Ordering::SeqCst);
    let done = reaches(&cluster, job, JobPhase::Completed, 900 * SECOND).await;
    assert_eq!(String::from(done.array.unwrap().completed_indexes), "0-3");
    assert_eq!(starts(&nodes), 6, "the two that were stopped run again");
    within(60 * SECOND, "its nodes are free", || is_free(&cluster, 4)).await;
    farm.stop().await;
}
