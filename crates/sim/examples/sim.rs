//! Runs simulated worlds, one per seed, and stops at the first in which an invariant is violated.
//!
//!     cargo run -p rcfarm-sim --example sim -- --seeds 0..1000
//!     cargo run -p rcfarm-sim --example sim -- --seed 17 --trace
//!     cargo run -p rcfarm-sim --example sim -- --scenario batch --seeds 0..1000
//!     cargo run -p rcfarm-sim --example sim -- --schedule violation.json --trace
//!     cargo run -p rcfarm-sim --example sim -- --mutations
//!
//! After a violation, writes its schedule to a file, with fewer actions where these still violate the same invariant.
//! Exits with 0 without violations, 1 with one, 2 for wrong arguments.

use std::io::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::Parser;
use rcfarm_sim::mutation::{Case, catch_all};
use rcfarm_sim::page;
use rcfarm_sim::shrink::shrink;
use rcfarm_sim::tally::Tally;
use rcfarm_sim::{Options, Scenario, Schedule, SimReport, run, run_schedule, statement};
use rcfarm_store::time::monotonic;

/// Simulated worlds.
#[derive(Parser)]
struct Args {
    /// What worlds lean to: `services` (replication controllers), `batch` (jobs, queues, commands), `mixed` (both),
    /// `flows` (CronJobs and JobFlows) or `cells` (jobs that ask for cells).
    #[arg(long, value_parser = scenario)]
    scenario: Option<Scenario>,
    /// Which seeds, as `first..end`.
    #[arg(long, default_value = "0..1000", value_parser = range)]
    seeds: Range<u64>,
    /// One seed alone.
    #[arg(long)]
    seed: Option<u64>,
    /// Play this schedule.
    #[arg(long, conflicts_with_all = ["seeds", "seed", "scenario"])]
    schedule: Option<PathBuf>,
    /// Where the schedule of a violation is written.
    #[arg(long, default_value = "violation.json")]
    record: PathBuf,
    /// Runs that may be spent on dropping actions from the schedule of a violation.
    #[arg(long, default_value_t = 60)]
    shrink: usize,
    /// Print every operation; of one seed or schedule.
    #[arg(long)]
    trace: bool,
    /// Go on after a violation, and list the seeds that had one.
    #[arg(long)]
    all: bool,
    /// Switch each safety layer off in turn, and write docs/contribute/failpoints.md, with a scenario its rows alone, and
    /// docs/invariants.md.
    #[arg(long, conflicts_with_all = ["seeds", "seed"])]
    mutations: bool,
    /// With --mutations: only the cases whose name contains this.
    #[arg(long, requires = "mutations")]
    layer: Option<String>,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?} is no range: write it like 0..1000");
    let (first, end) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    Ok(number(first)?..number(end)?)
}

fn scenario(text: &str) -> Result<Scenario, String> {
    match text {
        "services" => Ok(Scenario::Services),
        "batch" => Ok(Scenario::Batch),
        "mixed" => Ok(Scenario::Mixed),
        "flows" => Ok(Scenario::Flows),
        "cells" => Ok(Scenario::Cells),
        other => Err(format!(
            "there is no scenario {other:?}: write services, batch, mixed, flows or cells"
        )),
    }
}

fn show(report: &SimReport) {
    let Some(violation) = &report.violation else { return };
    for line in &report.last {
        println!("{line}");
    }
    let (seed, number, what) = (report.seed, violation.invariant, &violation.what);
    println!("seed {seed}: invariant {number}: {what}");
    println!("invariant {number}: {}", statement(number).unwrap_or("unknown"));
}

/// Writes the schedule of a violation, shrunk.
fn keep(args: &Args, schedule: Schedule, report: &SimReport, options: &Options) {
    let Some(violation) = &report.violation else { return };
    let before = schedule.actions.len();
    let mut shrunk = shrink(schedule, violation.invariant, options, args.shrink);
    shrunk.found = format!("{}: {}", violation.invariant, violation.what);
    let (file, after) = (args.record.display(), shrunk.actions.len());
    match std::fs::write(&args.record, shrunk.to_json()) {
        Ok(()) => println!("{file} has {after} of its {before} actions; play it with --schedule"),
        Err(error) => eprintln!("{file}: {error}"),
    }
}

fn one(args: &Args, seed: u64, schedule: Schedule) -> ExitCode {
    let scenario = args.scenario.unwrap_or_default();
    let options = Options { scenario, print: args.trace, ..Options::default() };
    let report = SimReport { seed, ..run_schedule(schedule.clone(), &options) };
    show(&report);
    let (applied, lived, hash) = (report.applied, report.lived, report.hash);
    println!("seed {seed}: {applied} writes in {lived:?}, trace {hash:016x}");
    if args.schedule.is_none() {
        keep(args, schedule, &report, &options);
    }
    ExitCode::from(u8::from(report.violation.is_some()))
}

fn read(file: &PathBuf) -> Result<Schedule, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
    text.and_then(|text| Schedule::from_json(&text))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(file) = &args.schedule {
        return match read(file) {
            Ok(schedule) => one(&args, 0, schedule),
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(2)
            }
        };
    }
    if let Some(seed) = args.seed {
        return one(&args, seed, Schedule::draw(seed, args.scenario.unwrap_or_default()));
    }
    if args.mutations {
        return mutations(&args);
    }
    let bad = many(&args);
    ExitCode::from(u8::from(bad))
}

fn mutations(args: &Args) -> ExitCode {
    let old = std::fs::read_to_string("docs/contribute/failpoints.md").unwrap_or_default();
    let of = |case: &Case| {
        args.scenario.is_none_or(|scenario| scenario == case.scenario)
            && args.layer.as_ref().is_none_or(|layer| case.name().contains(layer))
    };
    let (page, missed) = catch_all(of, &old, |case, caught| {
        let how = caught.as_ref().map_or("not caught".to_owned(), |caught| {
            format!("seed {}: invariant {}", caught.seed, caught.violation.invariant)
        });
        println!("{}: {how}", case.name());
    });
    let invariants = page::invariants(&page);
    let pages = [("docs/contribute/failpoints.md", page), ("docs/invariants.md", invariants)];
    for (file, text) in pages {
        if let Err(error) = std::fs::write(file, text) {
            eprintln!("{file}: {error}; run this where docs/ is");
            return ExitCode::from(2);
        }
    }
    ExitCode::from(u8::from(missed > 0))
}

fn many(args: &Args) -> bool {
    let (begun, total) = (monotonic(), args.seeds.end.saturating_sub(args.seeds.start));
    let (next, done) = (AtomicU64::new(args.seeds.start), AtomicU64::new(0));
    let found = AtomicBool::new(false);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                while !found.load(Ordering::SeqCst) || args.all {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= args.seeds.end {
                        return;
                    }
                    let scenario = args.scenario.unwrap_or_default();
                    let options = Options { scenario, ..Options::default() };
                    let report = run(seed, &options);
                    let done = done.fetch_add(1, Ordering::SeqCst) + 1;
                    tally.lock().expect("no thread panics").add(&report);
                    if let Some(violation) = &report.violation {
                        let first = !found.swap(true, Ordering::SeqCst);
                        match args.all {
                            true => {
                                println!("seed {seed}: {} {}", violation.invariant, violation.what)
                            }
                            false if first => {
                                show(&report);
                                let schedule = Schedule::draw(seed, scenario);
                                keep(args, schedule, &report, &options);
                            }
                            false => {}
                        }
                    }
                    eprint!("\r{done} of {total} ");
                    let _ = std::io::stderr().flush();
                }
            });
        }
    });
    let (done, took) = (done.load(Ordering::SeqCst), (monotonic() - begun).as_secs_f64());
    println!("\r{done} seeds in {took:.1} s, {:.1} a second", done as f64 / took);
    println!("occasions at which invariants could have been violated:");
    let tally = tally.into_inner().expect("no thread panics");
    print!("{}", tally.in_words(args.scenario.unwrap_or_default()));
    found.load(Ordering::SeqCst)
}
