//! Measures node agents on a real Consul.
//!
//! ```text
//! cargo build --release && cargo run --release --example node_bench -- --consul consul
//! ```
//!
//! Agents and farms are processes of the `rcfarm` program that was built beside this one. Only in the row with 200
//! agents the agents run in this process, with a fake driver. Everything is measured through Consul and `/proc`.
//! `docs/operate/benchmarks.md` describes the rows and results.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "it measures time, at random moments")]

mod lab;
mod rows;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use rows::Row;

#[derive(Parser)]
#[command(about = "Measures node agents on a real Consul")]
struct Args {
    /// Consul program to start.
    #[arg(long)]
    consul: PathBuf,
    /// Rows to measure; default all.
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<Row>,
}

/// One measured value.
pub struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    /// Its limit; `None`: shown without one.
    at_most: Option<f64>,
}

impl Figure {
    pub fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Figure {
        Figure { what: what.into(), value, unit, at_most: None }
    }

    pub fn ms(what: impl Into<String>, value: Duration) -> Figure {
        Figure::new(what, value.as_secs_f64() * 1e3, "ms")
    }

    pub fn s(what: impl Into<String>, value: Duration) -> Figure {
        Figure::new(what, value.as_secs_f64(), "s")
    }

    pub fn count(what: impl Into<String>, value: usize) -> Figure {
        Figure::new(what, value as f64, "")
    }

    pub fn at_most(self, bar: f64) -> Figure {
        Figure { at_most: Some(bar), ..self }
    }

    fn line(&self) -> String {
        let Figure { what, value, unit, at_most } = self;
        let (bar, met) = match at_most {
            Some(bar) => (format!("≤ {bar} {unit}"), if value <= bar { "ok" } else { "MISSED" }),
            None => (String::new(), ""),
        };
        let value =
            if *value == value.trunc() { format!("{value}") } else { format!("{value:.2}") };
        format!("| {what} | {bar} | {value} {unit} | {met} |")
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let rows = if args.rows.is_empty() { Row::ALL.to_vec() } else { args.rows };
    println!("| what | bar | seen | |\n|---|---|---|---|");
    for row in rows {
        let busy = lab::busy()?;
        let figures = rows::measure(row, &args.consul).await;
        for figure in figures.with_context(|| format!("row {row:?}"))? {
            println!("{}", figure.line());
        }
        eprintln!("{row:?}: all processes of the machine together used {:.1} cores", busy.cores()?);
    }
    Ok(())
}
