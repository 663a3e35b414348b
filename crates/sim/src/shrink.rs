//! Shrinks a schedule: drops actions one by one while the same invariant is still violated.

use crate::report::Options;
use crate::run::run_schedule;
use crate::schedule::Schedule;

/// The schedule with fewer actions, after at most `tries` runs. The same invariant is still violated. First the actions
/// after the violation go, then halves, quarters, and so on down to single ones.
#[must_use]
pub fn shrink(schedule: Schedule, invariant: u32, options: &Options, mut tries: usize) -> Schedule {
    let options = Options { print: false, ..options.clone() };
    let mut best = schedule;
    let mut size = best.actions.len();
    while size > 0 && tries > 0 {
        let mut from = 0;
        while from < best.actions.len() && tries > 0 {
            let mut fewer = best.clone();
            let until = (from + size).min(fewer.actions.len());
            fewer.actions.drain(from..until);
            tries -= 1;
            let violation = run_schedule(fewer.clone(), &options).violation;
            match violation.is_some_and(|violation| violation.invariant == invariant) {
                true => best = fewer,
                false => from += size,
            }
        }
        size /= 2;
    }
    best
}
