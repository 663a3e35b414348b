//! Plays the seeds of the fuzz targets that run a whole farm or agent. `.ci/fuzz` goes on from them.

use std::path::PathBuf;

#[path = "../../fuzz/src/agent.rs"]
mod agent;
#[path = "../../fuzz/src/reconcile.rs"]
mod reconcile;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/fuzz").join(target);
    let entries = std::fs::read_dir(directory).unwrap();
    let seeds: Vec<_> =
        entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(!seeds.is_empty());
    seeds
}

#[tokio::test(start_paused = true)]
async fn fuzzed_records_harm_no_others() {
    for seed in seeds("reconcile") {
        reconcile::run(&seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn fuzzed_manifests_harm_no_other_pod() {
    for seed in seeds("agent") {
        agent::run(&seed).await;
    }
}
