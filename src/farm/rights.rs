//! Which prefixes farms read, and who writes each, derived from the kinds' [`KindSpec`]s. The policies in
//! `docs/operate/acl/` grant the same.

use std::collections::{BTreeMap, BTreeSet};

use super::kind::KindSpec;
use rcfarm_api::key;
use rcfarm_store::Prefix;

/// Who writes a prefix. If several do, the one with the fewest rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenBy {
    /// Users of the command line.
    User,
    Farm,
    /// Node agents.
    Agent,
    /// Neither users nor farms nor node agents, but operators.
    Operator,
}

/// Prefixes that every farm must be able to read.
pub fn readable_by_farms<'s>(specs: impl IntoIterator<Item = &'s KindSpec>) -> BTreeSet<Prefix> {
    let of_kinds = specs.into_iter().flat_map(KindSpec::readable).cloned();
    of_kinds.chain([key::bells(), key::farms()]).collect()
}

/// All prefixes of the key layout, and who writes each.
pub fn written_by(specs: &[KindSpec]) -> BTreeMap<Prefix, WrittenBy> {
    let mut prefixes = BTreeMap::new();
    for spec in specs {
        prefixes.insert(spec.labels.clone(), WrittenBy::Operator);
        prefixes.insert(spec.records.clone(), WrittenBy::Operator);
    }
    let mut all_of = |get: fn(&KindSpec) -> Vec<Prefix>, by: WrittenBy| {
        prefixes.extend(specs.iter().flat_map(get).map(|prefix| (prefix, by)));
    };
    // A later entry replaces an earlier one, so writers with fewer rights come later.
    all_of(|spec| spec.reads.clone(), WrittenBy::Agent);
    all_of(|spec| spec.writable().cloned().collect(), WrittenBy::Farm);
    all_of(|spec| spec.user_writes.clone(), WrittenBy::User);
    prefixes.insert(key::farms(), WrittenBy::Farm);
    prefixes.extend(
        [key::bells(), key::audit_logs(), key::namespaced_audit_logs()]
            .map(|prefix| (prefix, WrittenBy::User)),
    );
    prefixes
}
