//! Codes, headers and bodies of Consul's HTTP API.

mod blocking;
mod catalog;
mod client;
mod kv;
mod lock;
mod session;
mod txn;

use libtest_mimic::Trial;

use super::servers::{consul, emulator};
use super::{Case, On, trial};
use client::Wire;

const TABLES: &[&[Case<Wire>]] =
    &[kv::CASES, lock::CASES, txn::CASES, session::CASES, blocking::CASES, catalog::CASES];

/// All cases on both backends, except those that the emulator refuses.
pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for case in TABLES.iter().copied().flatten() {
        if case.on != On::Real {
            trials.push(trial("wire", "emulator", case, async |on, id| {
                Wire::new(emulator(on).await, id)
            }));
        }
        trials.push(trial("wire", "consul", case, async |on, id| Wire::new(consul(on).await, id)));
    }
    trials
}
