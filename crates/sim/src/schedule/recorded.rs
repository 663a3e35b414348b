//! A schedule as it is kept in a file, with every parameter of its actions resolved.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::action::SimAction;
use crate::facts::CHECK_TTL;
use crate::faults::{NetworkFaults, millis};
use crate::mix::Mix;

/// Everything that one world needs to be run again.
///
/// A change of the program's or the simulator's draws does not change what users and faults do. It may change what the
/// network does to a single request, and when an answer comes: these are drawn from `chance` as they happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// What it once found, for people: the invariant and the bug.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub found: String,
    /// Seeds what happens to single requests and processes, and ids.
    pub chance: u64,
    /// Which kinds of work there are.
    pub mix: Mix,
    /// What the world is like at first.
    pub setup: Setup,
    /// What happens, in order of time.
    pub actions: Vec<Timed>,
}

/// What a world is like at first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// A handful of entries makes a tree that is read in parts; of more entries than this it is not asked which have
    /// changed. `None`: trees are read whole.
    pub read_in_parts: Option<usize>,
    /// The farms.
    pub farms: Vec<FarmDesign>,
    /// What the network is like before a fault is injected.
    pub network: NetworkFaults,
    /// How many nodes there are.
    pub nodes: usize,
    /// Nodes that are run by the real agent over a fake driver.
    #[serde(default)]
    pub agents: Vec<usize>,
    /// There is a record whose scheduler always panics.
    #[serde(default)]
    pub poisoned: bool,
    /// A node that never comes back after the faults.
    #[serde(default)]
    pub lost: Option<usize>,
    /// The jobs, each by its kind and its number.
    #[serde(default)]
    pub jobs: Vec<(String, usize)>,
    /// When the last fault has ended.
    #[serde(with = "millis")]
    pub healed_at: Duration,
}

/// How a farm is set up, whenever it is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarmDesign {
    /// Its name.
    pub name: String,
    /// Which records it may claim.
    pub selector: String,
    /// TTL of its check. `None`: its sessions have no check.
    pub check_ttl_ms: Option<u64>,
    /// TTL of its sessions.
    #[serde(with = "millis")]
    pub session_ttl: Duration,
    /// Operations that it puts into one transaction. `None`: as many as Consul takes.
    #[serde(default)]
    pub ops: Option<usize>,
    /// It is of a newer version than the others.
    #[serde(default)]
    pub is_newer: bool,
}

impl FarmDesign {
    /// A farm with a check.
    #[must_use]
    pub fn new(name: &str, selector: &str) -> FarmDesign {
        FarmDesign {
            name: name.to_owned(),
            selector: selector.to_owned(),
            check_ttl_ms: u64::try_from(CHECK_TTL.as_millis()).ok(),
            session_ttl: Duration::from_secs(30),
            ops: None,
            is_newer: false,
        }
    }
}

/// An action and when it happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Since the start of the world.
    #[serde(with = "millis")]
    pub at: Duration,
    /// What happens.
    pub act: SimAction,
}

impl Schedule {
    /// From the text of a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_json(text: &str) -> Result<Schedule, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The text of a file: one line for the set-up, one for each action.
    ///
    /// # Panics
    /// Never: every part of it can be written.
    #[must_use]
    pub fn to_json(&self) -> String {
        let json = |value: serde_json::Result<String>| value.expect("schedules can be written");
        let (found, mix) = (json(serde_json::to_string(&self.found)), &self.mix);
        let mix = json(serde_json::to_string(mix));
        let setup = json(serde_json::to_string(&self.setup));
        let actions: Vec<String> =
            self.actions.iter().map(|action| json(serde_json::to_string(action))).collect();
        let chance = self.chance;
        format!(
            "{{\"found\":{found},\n\"chance\":{chance},\n\"mix\":{mix},\n\"setup\":{setup},\n\"actions\":[\n{}\n]}}\n",
            actions.join(",\n")
        )
    }
}
