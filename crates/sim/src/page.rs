//! Writes `docs/invariants.md` from the table of invariants, the table of checks, the occasions and the failpoints.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::checks::CHECKS;
use crate::checks::invariants::{GROUPS, Invariant};
use crate::reached::TABLE;

/// The page. The failpoints of each invariant are read from `failpoints`, the page that names them.
#[must_use]
pub fn invariants(failpoints: &str) -> String {
    let mut page = String::from(HEAD);
    for group in GROUPS {
        let _ = write!(page, "\n## {}\n\n{TITLES}", group.title);
        group.invariants.iter().for_each(|invariant| page.push_str(&row(invariant, failpoints)));
    }
    page.push_str(TAIL);
    page
}

fn row(invariant: &Invariant, failpoints: &str) -> String {
    let number = invariant.number;
    let checks = CHECKS.iter().filter(|check| check.invariants.contains(&number));
    let files = checks.map(|check| check.file).chain(invariant.watched_in.iter().copied());
    let mut cells: Vec<String> = files.map(|file| format!("`{file}`")).collect();
    cells.extend((!invariant.note.is_empty()).then(|| invariant.note.to_owned()));
    let checked = cells.join(", ");
    let occasions: BTreeSet<_> =
        TABLE.iter().filter(|row| row.invariant == number).map(|row| row.occasion).collect();
    let caught = failpoints.lines().filter_map(|line| {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let (layers, _, by) = (cells.next()?, cells.next()?, cells.next()?);
        (by.parse() == Ok(number)).then_some(layers)
    });
    let caught: Vec<&str> = caught.collect();
    let caught = if caught.is_empty() { "none".to_owned() } else { caught.join(", ") };
    let (statement, also, occasions) = (invariant.statement, invariant.also, occasions.len());
    format!("| {number} | {statement} | {checked} | {occasions} | {caught} | {also} |\n")
}

const TITLES: &str = "\
| # | statement | checked in | occasions | failpoint | also |
|---|---|---|---|---|---|
";

const HEAD: &str = "\
# Invariants

What must never happen, and what must always happen. A violation is a bug, whoever caused it. Numbers do not change;
tests and messages of the simulator carry them. This page is generated from the tables of the simulator by
`UPDATE_DOCS=1 cargo test -p rcfarm-sim the_page_of_invariants`.

- *Checked in*: files below `crates/sim/src`. Those in `checks/` look at every applied write, those in `liveness/` and
  `world.rs` at what must have come about once the faults have ended, within a stated bound.
- *Occasions*: in how many ways `reached.rs` counts that the invariant was put to the test.
- *Failpoint*: the safety layer whose absence the check notices. [Failpoints](contribute/failpoints.md) names the
  seed for each; more than one in a cell are separate rows there, and `A + B` are switched off together.
- *Also*: tests outside the simulator.
- *not yet*: nothing in the simulator checks it.
";

const TAIL: &str = "
## Adding one

A new invariant needs its row in `checks/invariants.rs`, a check after every applied write, and a failpoint that the
check notices. It also needs an occasion in `reached.rs` that shows it was put to the test.
[Simulation](contribute/simulation.md) says how.
";
