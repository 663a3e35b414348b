//! Presences of farms (27).

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::CheckFacts;
use rcfarm_api::ids::{FarmName, SessionId};

/// A live farm without its presence: an earlier session of the name may exist until its TTL has passed.
#[must_use]
pub fn nameless(
    present: &BTreeMap<FarmName, SessionId>,
    facts: &CheckFacts,
    live: &BTreeSet<u32>,
) -> Option<String> {
    let absent = |process: &&u32| {
        let session = present.get(&facts.processes[process].farm);
        session.is_none() || session != facts.current.get(process)
    };
    let process = live.iter().find(absent)?;
    Some(format!("{} #{process} has not got its name", facts.processes[process].farm))
}
