//! Injects faults into a real cluster of three Consul servers, for any length of time.
//!
//! ```text
//! .ci/get-consul && cargo build && cargo run --example soak -- --minutes 10
//! ```
//!
//! `tests/it/faults/mod.rs` describes the faults and checks; the test suite makes a short run.
//! `docs/contribute/testing.md` has results. Exits with 1 if a check failed, and then keeps the logs.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "it measures how long calls take")]

#[path = "../tests/it/faults/mod.rs"]
mod faults;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Faults on a real cluster of three Consul servers")]
struct Args {
    /// How long faults are injected.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Decides which faults come in which order; default: one of its own, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// The program [default: rcfarm beside this example's directory]
    #[arg(long)]
    rcfarm: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let beside = || {
        let this = std::env::current_exe().expect("this program's path");
        this.ancestors().nth(2).expect("target/<profile>").join("rcfarm")
    };
    let rcfarm = args.rcfarm.unwrap_or_else(beside);
    if !rcfarm.is_file() {
        eprintln!("there is no {}: cargo build, or --rcfarm PATH", rcfarm.display());
        return ExitCode::from(2);
    }
    let mut scratch = tempfile::TempDir::with_prefix("rcfarm-soak-").expect("a directory for logs");
    println!("seed {seed}, {} min, logs in {}", args.minutes, scratch.path().display());
    let length = Duration::from_secs(60 * args.minutes);
    let run = faults::Run {
        seed,
        length,
        floors: faults::Floors::default(),
        at_most: length,
        rcfarm,
        scratch: scratch.path().into(),
    };
    let report = run.make().await;
    println!("{report}");
    if report.verdict.violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    scratch.disable_cleanup(true);
    for violation in &report.verdict.violations {
        println!("  {violation}");
    }
    ExitCode::FAILURE
}
