//! The suite's simulation. `SIM_SEEDS=0..5000` runs other seeds; the example `sim` shows one in detail.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mutation::{CASES, Case, catch_all, named};
use crate::tally::Tally;
use crate::{Options, Scenario, Schedule, SimReport, page, run, run_schedule};

/// The suite's fixed seeds of the first two scenarios.
const SEEDS: std::ops::Range<u64> = 0..700;

/// Violations among the fixed seeds whose cause is not mended yet. They are played and printed, and fail no run.
///
/// Services 508 (invariant 6): a snapshot is restored that has a pod which was removed since; its controller is deleted
/// and created again while a deposed leader still answers a farm's watch of labels. The owner of the new record does not
/// know that pod, and has one more than desired until the watch is answered.
///
/// Not among them, and not traced yet: mixed 171442373 (invariant 13), a fresh seed. A transfer off a node that was down
/// for a moment is undone, and begun again 30 s later although the node is fit.
const OPEN: [(Scenario, u64); 1] = [(Scenario::Services, 508)];

/// Those of worlds with CronJobs and JobFlows, which take longer.
const FLOW_SEEDS: std::ops::Range<u64> = 0..40;

/// Those of worlds with cells.
const CELL_SEEDS: std::ops::Range<u64> = 0..60;

const ALL: [Scenario; 5] =
    [Scenario::Services, Scenario::Batch, Scenario::Mixed, Scenario::Flows, Scenario::Cells];

/// Number of fresh seeds of each scenario in each run.
const FRESH: u64 = 60;

/// The first fresh seed in a tree without git.
const WITHOUT_COMMIT: u64 = 999_000;

/// The fresh seeds: those in `SIM_FRESH`, or derived from the commit.
fn fresh_seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("SIM_FRESH").ok().map(|first| first.parse().expect("a number"));
    let commit = || {
        let git = std::process::Command::new("git").args(["rev-parse", "HEAD"]).output().ok()?;
        let commit = String::from_utf8(git.stdout).ok()?;
        Some(1_000_000 + u64::from_str_radix(commit.get(..7)?, 16).ok()?)
    };
    let first = asked.or_else(commit).unwrap_or(WITHOUT_COMMIT);
    first..first + FRESH
}

fn docs(page: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page)
}

/// Runs seeds on two threads. Returns those with violations, in order, and all occasions.
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
                    // A single seed is printed in full, with `--nocapture`.
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

/// The seeds in `SIM_SEEDS`.
fn asked_for() -> Option<std::ops::Range<u64>> {
    let text = std::env::var("SIM_SEEDS").ok()?;
    let (first, end) = text.split_once("..").expect("SIM_SEEDS is like 0..100");
    Some(first.parse().unwrap()..end.parse().unwrap())
}

/// The recorded schedules, by file name.
fn schedules() -> Vec<(String, Schedule)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("schedules");
    let mut all: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            let schedule = Schedule::from_json(&text);
            (name.clone(), schedule.unwrap_or_else(|error| panic!("{name}: {error}")))
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn recorded_schedules_find_nothing() {
    let all = schedules();
    assert!(all.len() >= 30, "recorded schedules are gone: {}", all.len());
    for (name, schedule) in all {
        assert!(!schedule.found.is_empty(), "{name} does not say what it once found");
        let report = run_schedule(schedule, &Options::default());
        let last = report.last.join("\n");
        assert_eq!(report.violation, None, "{name}:\n{last}");
    }
}

#[test]
fn schedules_survive_their_file() {
    for scenario in ALL {
        for seed in 0..20 {
            let schedule = Schedule::draw(seed, scenario);
            assert_eq!(Schedule::from_json(&schedule.to_json()), Ok(schedule));
        }
    }
}

#[test]
fn a_played_schedule_is_its_seed() {
    let options = Options { scenario: Scenario::Mixed, ..Options::default() };
    let text = Schedule::draw(1, Scenario::Mixed).to_json();
    let played = run_schedule(Schedule::from_json(&text).unwrap(), &options);
    assert_eq!(SimReport { seed: 1, ..played }, run(1, &options));
}

#[test]
fn shrinking_keeps_the_violation() {
    let case = CASES.iter().find(|case| case.name() == "NoFence").unwrap();
    let options = Options { without: case.without.to_vec(), ..Options::default() };
    let caught = case.catch().unwrap();
    let schedule = Schedule::draw(caught.seed, Scenario::Services);
    let invariant = caught.violation.invariant;
    let shrunk = crate::shrink::shrink(schedule.clone(), invariant, &options, 12);
    assert!(shrunk.actions.len() < schedule.actions.len());
    let violation = run_schedule(shrunk, &options).violation.unwrap();
    assert_eq!(violation.invariant, invariant);
}

/// `UPDATE_DOCS=1` writes the page.
#[test]
fn the_page_of_invariants_is_current() {
    let failpoints = std::fs::read_to_string(docs("contribute/failpoints.md")).unwrap();
    let page = page::invariants(&failpoints);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(docs("invariants.md"), &page).unwrap();
    }
    let stands = std::fs::read_to_string(docs("invariants.md")).unwrap();
    assert_eq!(stands, page, "UPDATE_DOCS=1 cargo test -p rcfarm-sim the_page_of_invariants");
}

/// `UPDATE_DOCS=1` writes the page.
#[test]
fn without_a_safety_layer_an_invariant_is_violated() {
    let path = docs("contribute/failpoints.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let told = |case: &Case, caught: &_| println!("{}: {caught:?}", case.name());
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let (page, missed) = catch_all(|_| true, &old, told);
        std::fs::write(path, page).unwrap();
        assert_eq!(missed, 0, "see docs/contribute/failpoints.md");
        return;
    }
    let page = std::fs::read_to_string(path).unwrap();
    let caught = |case: &&Case| {
        let seed = named(&page, case);
        let seed =
            seed.unwrap_or_else(|| panic!("docs/contribute/failpoints.md lacks {}", case.name()));
        // A change of the program changes what the seed does, and another seed may notice.
        case.try_seed(seed).or_else(|| case.catch()).is_some()
    };
    let missed: Vec<String> = CASES.iter().filter(|case| !caught(case)).map(Case::name).collect();
    assert_eq!(
        missed, [""; 0],
        "no seed of the first thousand notices when these are switched off; docs/contribute/failpoints.md is written anew \
         by UPDATE_DOCS=1 cargo test -p rcfarm-sim without_a_safety_layer"
    );
}

#[test]
fn a_seed_repeats() {
    for scenario in ALL {
        let options = Options { scenario, ..Options::default() };
        for seed in 0..3 {
            assert_eq!(run(seed, &options), run(seed, &options));
        }
    }
}

#[test]
fn no_seed_finds_a_violation() {
    run_all(Scenario::Services, SEEDS);
}

#[test]
fn no_seed_of_jobs_finds_a_violation() {
    run_all(Scenario::Batch, SEEDS);
}

#[test]
fn no_seed_of_flows_finds_a_violation() {
    run_all(Scenario::Flows, FLOW_SEEDS);
}

#[test]
fn no_seed_of_cells_finds_a_violation() {
    run_all(Scenario::Cells, CELL_SEEDS);
}

/// Consul comes back empty under agents: no pod is stopped, whatever is lost and late of single requests. `A1_TRIALS`: how
/// often each schedule is played, with other chances each time; 10 unless set.
#[test]
fn emptied_consul_stops_no_pod_by_any_chance() {
    let given = std::env::var("A1_TRIALS").ok();
    let trials: u64 = given.map_or(10, |text| text.parse().expect("A1_TRIALS is a number"));
    let mut of_loss = schedules();
    of_loss.retain(|(name, _)| name.starts_with("32-agent-lost-"));
    assert_eq!(of_loss.len(), 4);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    let Some((name, schedule)) = of_loss.get((n / trials) as usize) else { return };
                    let chance = (n % trials + 1) * 7919;
                    let schedule = Schedule { chance, ..schedule.clone() };
                    let report = run_schedule(schedule, &Options::default());
                    assert_eq!(report.violation, None, "{name} with the chance {chance}");
                }
            });
        }
    });
}

/// Seeds that no run has tried before, so that the program cannot be fitted to the fixed ones.
#[test]
fn no_fresh_seed_finds_a_violation() {
    let seeds = fresh_seeds();
    println!("fresh seeds of each world: {seeds:?}");
    for scenario in ALL {
        let seeds = match scenario {
            Scenario::Flows | Scenario::Cells => seeds.start..seeds.start + FRESH / 4,
            _ => seeds.clone(),
        };
        nothing_in(found(scenario, seeds).0, scenario);
    }
}

/// No seed finds a violation, and all occasions occur often enough.
fn run_all(scenario: Scenario, suite: std::ops::Range<u64>) {
    let (found, tally) = found(scenario, asked_for().unwrap_or(suite));
    let is_open =
        |report: &SimReport| asked_for().is_none() && OPEN.contains(&(scenario, report.seed));
    let (open, found): (Vec<_>, Vec<_>) = found.into_iter().partition(is_open);
    for report in open {
        println!("OPEN: seed {} of {scenario:?}: {:?}", report.seed, report.violation);
    }
    nothing_in(found, scenario);
    let words = tally.in_words(scenario);
    println!("{words}");
    let lacking: Vec<&str> = tally.lacking(scenario).iter().map(|row| row.what).collect();
    let lacking = if asked_for().is_some() { Vec::new() } else { lacking };
    assert_eq!(
        lacking, [""; 0],
        "these came about too seldom (crates/sim/src/reached.rs):\n{words}"
    );
}

fn nothing_in(found: Vec<SimReport>, scenario: Scenario) {
    let Some(first) = found.first() else { return };
    let all = found.iter().map(|report| {
        let violation = report.violation.as_ref().unwrap();
        format!("seed {}: invariant {}: {}", report.seed, violation.invariant, violation.what)
    });
    let all: Vec<String> = all.collect();
    let file = std::env::temp_dir().join(format!("violation-{}.json", first.seed));
    let schedule = Schedule::draw(first.seed, scenario);
    let kept = match std::fs::write(&file, schedule.to_json()) {
        Ok(()) => format!("its schedule is in {}", file.display()),
        Err(error) => format!("its schedule cannot be kept: {error}"),
    };
    let word = format!("{scenario:?}").to_lowercase();
    let invariant = first.violation.as_ref().map_or(0, |violation| violation.invariant);
    let keep = format!("crates/sim/schedules/{invariant:02}-{word}-{}.json", first.seed);
    panic!(
        "{}\n\nthe first ({kept}; mend the cause, say in its `found` what it was, and keep it as {keep}; \
         `--example sim -- --scenario {word} --seed {} --trace` shows all of it):\n{}",
        all.join("\n"),
        first.seed,
        first.last.join("\n")
    );
}
