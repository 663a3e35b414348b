//! Placement: which cells a group gets. Pure functions of the state.
//!
//! 1. [`view`] ranks the nodes of a virtual cluster's chain, or of the machines for an opportunistic group.
//! 2. [`packing`] divides the pods over nodes; [`nested`] does so for nested groups.
//! 3. [`leaves`] picks devices within a node, as close together as possible.
//! 4. [`mapping`] finds physical cells for the virtual ones.
//!
//! Where the reference's choice is random or an accident of history, the first in order of the configuration is taken;
//! chains are tried in descending order of name.

pub(crate) mod leaves;
pub(crate) mod mapping;
pub(crate) mod nested;
pub(crate) mod packing;
pub(crate) mod plan;
#[cfg(test)]
mod tests;
pub(crate) mod view;
