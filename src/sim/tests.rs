//! The suite's share of the simulation. `SIM_SEEDS=0..5000` lives through others; the example shows one in detail.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Options, Report, run};

/// Lives through seeds on two threads; gives those in which something was found, in order.
fn found(seeds: std::ops::Range<u64>) -> Vec<Report> {
    let (next, found) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    let report = run(seed, &Options::default());
                    if report.violation.is_some() {
                        found.lock().unwrap().push(report);
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|report| report.seed);
    found
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SIM_SEEDS") else { return 0..80 };
    let (first, end) = text.split_once("..").expect("SIM_SEEDS is like 0..100");
    first.parse().unwrap()..end.parse().unwrap()
}

#[test]
fn a_seed_repeats() {
    for seed in 0..3 {
        let (a, b) = (run(seed, &Options::default()), run(seed, &Options::default()));
        assert_eq!(a, b);
    }
}

#[test]
fn no_seed_finds_a_violation() {
    let found = found(seeds());
    let Some(first) = found.first() else { return };
    let all = found.iter().map(|report| {
        let violation = report.violation.as_ref().unwrap();
        format!("seed {}: invariant {}: {}", report.seed, violation.invariant, violation.what)
    });
    let all: Vec<String> = all.collect();
    panic!("{}\n\nthe first:\n{}", all.join("\n"), first.last.join("\n"));
}
