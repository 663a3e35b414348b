//! The suite's share of the simulation. `SIM_SEEDS=0..5000` lives through others; the example shows one in detail.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mutation::{CASES, Case, catch_all, named};
use super::tally::Tally;
use super::{Options, Scenario, SimReport, run};

/// The suite's seeds.
const SEEDS: std::ops::Range<u64> = 0..1_000;
/// Those of the world of jobs.
const BATCH_SEEDS: std::ops::Range<u64> = 0..1_000;

/// Lives through seeds on two threads; gives those in which something was found, in order, and what all have met.
fn found(scenario: Scenario, seeds: std::ops::Range<u64>) -> (Vec<SimReport>, Tally) {
    let (next, found) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    // One alone is shown in full, with `--nocapture`.
                    let print = seeds.end - seeds.start == 1;
                    let report = run(seed, &Options { scenario, print, ..Options::default() });
                    tally.lock().unwrap().add(&report);
                    if report.violation.is_some() {
                        found.lock().unwrap().push(report);
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|report| report.seed);
    (found, tally.into_inner().unwrap())
}

/// What `SIM_SEEDS` asks for.
fn asked_for() -> Option<std::ops::Range<u64>> {
    let text = std::env::var("SIM_SEEDS").ok()?;
    let (first, end) = text.split_once("..").expect("SIM_SEEDS is like 0..100");
    Some(first.parse().unwrap()..end.parse().unwrap())
}

/// The seeds in which something was found once, of each world.
const KEPT: [(Scenario, &str); 2] = [
    (Scenario::Services, include_str!("../seeds/found.txt")),
    (Scenario::Batch, include_str!("../seeds/batch.txt")),
];

#[test]
fn seeds_that_once_found_something_find_nothing() {
    for (scenario, lines) in KEPT {
        for line in lines.lines() {
            let seed = line.split(' ').next().unwrap().parse().unwrap();
            let report = run(seed, &Options { scenario, ..Options::default() });
            let last = report.last.join("\n");
            assert_eq!(report.violation, None, "seed {seed} of {scenario:?}:\n{last}");
        }
    }
}

/// `UPDATE_DOCS=1` writes the page anew.
#[test]
fn without_a_safety_layer_an_invariant_is_violated() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/contribute/failpoints.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let all = [Scenario::Services, Scenario::Batch];
        let told = |case: &Case, caught: &_| println!("{}: {caught:?}", case.name());
        let (page, missed) = catch_all(&all, "", told);
        std::fs::write(path, page).unwrap();
        assert_eq!(missed, 0, "see docs/contribute/failpoints.md");
        return;
    }
    let page = std::fs::read_to_string(path).unwrap();
    let caught = |case: &&Case| {
        let seed = named(&page, case);
        let seed =
            seed.unwrap_or_else(|| panic!("docs/contribute/failpoints.md lacks {}", case.name()));
        // After a change of the program that seed tells another story, and another may be the one that notices.
        case.try_seed(seed).or_else(|| case.catch()).is_some()
    };
    let missed: Vec<String> = CASES.iter().filter(|case| !caught(case)).map(Case::name).collect();
    assert_eq!(
        missed, [""; 0],
        "no seed of the first 200 notices when these are switched off; docs/contribute/failpoints.md is written anew by \
         UPDATE_DOCS=1 cargo test --lib sim::tests::without"
    );
}

#[test]
fn a_seed_repeats() {
    for scenario in [Scenario::Services, Scenario::Batch] {
        let options = Options { scenario, ..Options::default() };
        for seed in 0..3 {
            assert_eq!(run(seed, &options), run(seed, &options));
        }
    }
}

#[test]
fn no_seed_finds_a_violation() {
    live_through(Scenario::Services, SEEDS);
}

#[test]
fn no_seed_of_jobs_finds_a_violation() {
    live_through(Scenario::Batch, BATCH_SEEDS);
}

/// No seed finds anything; and that is not for want of occasions.
fn live_through(scenario: Scenario, suite: std::ops::Range<u64>) {
    let (found, tally) = found(scenario, asked_for().unwrap_or(suite));
    nothing_in(found);
    let words = tally.in_words(scenario);
    println!("{words}");
    let lacking: Vec<&str> = tally.lacking(scenario).iter().map(|row| row.what).collect();
    let lacking = if asked_for().is_some() { Vec::new() } else { lacking };
    assert_eq!(lacking, [""; 0], "these came about too seldom (src/sim/reached.rs):\n{words}");
}

fn nothing_in(found: Vec<SimReport>) {
    let Some(first) = found.first() else { return };
    let all = found.iter().map(|report| {
        let violation = report.violation.as_ref().unwrap();
        format!("seed {}: invariant {}: {}", report.seed, violation.invariant, violation.what)
    });
    let all: Vec<String> = all.collect();
    panic!("{}\n\nthe first:\n{}", all.join("\n"), first.last.join("\n"));
}
