//! Reconciles of jobs that have ended.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;
use rcfarm::farm::metrics::FarmMetrics;

/// Reconciles of jobs so far.
fn reconciles(metrics: &FarmMetrics) -> u64 {
    let mut registry = Registry::with_prefix("rcfarm");
    metrics.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let of_jobs = "rcfarm_reconciles_total{kind=\"job\",outcome=\"done\"} ";
    text.lines().find_map(|line| line.strip_prefix(of_jobs)?.parse().ok()).unwrap_or(0)
}

/// A job's last transaction deletes its PodGroup; the scheduler then deletes the group's status. Neither wakes it.
#[tokio::test(start_paused = true)]
async fn ended_job_is_not_reconciled_after_its_last_transaction() {
    let cluster = Arc::new(Cluster::new(2).await);
    let _nodes = nodes(&cluster, |_, _| Some(0));
    let farm = cluster.start("a");
    let is_gone = async || keys(&cluster, "rcfarm/pod_group_status/").await.is_empty();
    let mut counts = Vec::new();
    for n in 0..5 {
        let (name, before) = (format!("default/j{n}"), reconciles(&farm.metrics));
        submit(&cluster, &name, json!({"tasks": [task("w", 1)]})).await;
        reaches(&cluster, &name, JobPhase::Completed, 10 * SECOND).await;
        within(10 * SECOND, "its group is gone", is_gone).await;
        tokio::time::sleep(10 * SECOND).await;
        counts.push(reconciles(&farm.metrics) - before);
    }
    assert!(counts.iter().all(|count| *count <= 8), "{counts:?}");
    farm.stop().await;
}
