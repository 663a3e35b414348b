//! Properties for any input: names and keys, claims, stored values, request bodies.
//!
//! Other properties are beside the code: labels and audit log (`crates/api`), plans (`src/replication`, `src/batch`,
//! `src/job`), capacities (`src/placement`), the emulator. `fuzz/` extends these generators.

mod claims;
mod decoding;
mod keys;
mod pauses;
