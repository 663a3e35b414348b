//! Figures, their limits, and the table.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Limit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    AtMost(f64),
    AtLeast(f64),
    /// Shown without a limit.
    None,
}

/// One measured value.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub what: String,
    pub unit: &'static str,
    pub value: f64,
    pub bar: Bar,
    /// square/p2's figure, from the reference measurement on another day.
    pub p2: &'static str,
}

impl Figure {
    pub fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Figure {
        Figure { what: what.into(), unit, value, bar: Bar::None, p2: "" }
    }

    pub fn at_most(self, bar: f64) -> Figure {
        Figure { bar: Bar::AtMost(bar), ..self }
    }

    pub fn at_least(self, bar: f64) -> Figure {
        Figure { bar: Bar::AtLeast(bar), ..self }
    }

    pub fn p2(self, p2: &'static str) -> Figure {
        Figure { p2, ..self }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.what, digits(self.value), self.unit)
    }
}

/// A figure over all repetitions.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    figure: Figure,
    values: Vec<f64>,
    best: f64,
    median: f64,
    /// Whether the median keeps the limit.
    met: Option<bool>,
}

#[derive(Default)]
pub struct Report {
    figures: Vec<(Figure, Vec<f64>)>,
}

impl Report {
    pub fn add(&mut self, figures: Vec<Figure>) {
        for figure in figures {
            let value = figure.value;
            match self.figures.iter_mut().find(|(known, _)| known.what == figure.what) {
                Some((_, values)) => values.push(value),
                None => self.figures.push((figure, vec![value])),
            }
        }
    }

    fn summaries(&self) -> Vec<Summary> {
        let summary = |(figure, values): &(Figure, Vec<f64>)| {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let larger_is_better =
                matches!(figure.bar, Bar::AtLeast(_)) || figure.unit.contains("/s");
            let best = match larger_is_better && !matches!(figure.bar, Bar::AtMost(_)) {
                true => sorted[sorted.len() - 1],
                false => sorted[0],
            };
            let median = sorted[sorted.len() / 2];
            let met = match figure.bar {
                Bar::AtMost(bar) => Some(median <= bar),
                Bar::AtLeast(bar) => Some(median >= bar),
                Bar::None => None,
            };
            Summary { figure: figure.clone(), values: values.clone(), best, median, met }
        };
        self.figures.iter().map(summary).collect()
    }

    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&self.summaries())
    }

    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["what", "bar", "best", "median", "", "p2"]);
        for Summary { figure, best, median, met, .. } in self.summaries() {
            let unit = figure.unit;
            let bar = match figure.bar {
                Bar::AtMost(bar) => format!("≤ {} {unit}", digits(bar)),
                Bar::AtLeast(bar) => format!("≥ {} {unit}", digits(bar)),
                Bar::None => String::new(),
            };
            let met = match met {
                Some(true) => "ok",
                Some(false) => "MISSED",
                None => "",
            };
            let of = |value| format!("{} {unit}", digits(value));
            table.add_row([&figure.what, &bar, &of(best), &of(median), met, figure.p2]);
        }
        for column in 1..=3 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }
}

/// Three significant digits.
fn digits(value: f64) -> String {
    let decimals = if value >= 100.0 || value == value.trunc() {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}")
}
