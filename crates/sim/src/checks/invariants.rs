//! The table of invariants.
