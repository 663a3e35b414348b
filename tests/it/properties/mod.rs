//! What holds whatever comes in: names and keys, claims, what others wrote into the store, bodies of requests.
//!
//! Selectors, plans of controllers and the audit log have their properties beside them (`src/labels/tests.rs`,
//! `src/rc/plan_tests.rs`, `src/audit/tests.rs`), the model of Consul in `src/embedded/tests/properties.rs`.
//! `fuzz/` looks for what these generators do not think of.

mod claims;
mod decoding;
mod keys;
mod pauses;
