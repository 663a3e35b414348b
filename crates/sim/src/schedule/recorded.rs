//! A schedule as stored in a file, with all parameters of its actions.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::action::SimAction;
use crate::facts::CHECK_TTL;
use crate::faults::{NetworkFaults, millis};
use crate::mix::Mix;

/// Everything that is needed to run one world again.
///
/// Changed draws in program or simulator do not change the actions. They may change faults and delays of single
/// requests, which are drawn from `chance` when they happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The invariant and the bug that it found, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub found: String,
    /// Seed of faults of single requests and processes, and of ids.
    pub chance: u64,
    /// Its kinds of work.
    pub mix: Mix,
    /// State of the world at the start.
    pub setup: Setup,
    /// Actions, in order of time.
    pub actions: Vec<Timed>,
}

/// State of a world at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Trees with few entries are read in parts; up to this many entries of a part are compared. `None`: trees are read
    /// whole.
    pub read_in_parts: Option<usize>,
    pub farms: Vec<FarmDesign>,
    /// Network faults at the start.
    pub network: NetworkFaults,
    pub nodes: usize,
    /// Nodes that are run by the real agent over a fake driver.
    #[serde(default)]
    pub agents: Vec<usize>,
    /// Whether there is a record whose scheduler always panics.
    #[serde(default)]
    pub poisoned: bool,
    /// A node that never comes back after the faults.
    #[serde(default)]
    pub lost: Option<usize>,
    /// The jobs, each by its kind and its number.
    #[serde(default)]
    pub jobs: Vec<(String, usize)>,
    /// The CronJobs and the JobFlows, each by its kind and its number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crons: Vec<(String, usize)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<(String, usize)>,
    /// How many arrays there are.
    #[serde(default, skip_serializing_if = "is_none")]
    pub sweeps: usize,
    /// What clocks show at the start, in seconds after the beginning of 2026.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub begins: i64,
    /// What all clocks are set to once everything has settled, in the same seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goes_on_at: Option<i64>,
    /// When the last fault has ended.
    #[serde(with = "millis")]
    pub healed_at: Duration,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

fn is_zero(seconds: &i64) -> bool {
    *seconds == 0
}

/// Configuration of a farm, for every start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarmDesign {
    pub name: String,
    /// Which records it may claim.
    pub selector: String,
    /// TTL of its check. `None`: its sessions have no check.
    pub check_ttl_ms: Option<u64>,
    #[serde(with = "millis")]
    pub session_ttl: Duration,
    /// Most operations of its transactions. `None`: Consul's limit.
    #[serde(default)]
    pub ops: Option<usize>,
    /// It runs a newer version than the others.
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
    /// Parses a schedule file.
    ///
    /// # Errors
    /// Text about what is wrong.
    pub fn from_json(text: &str) -> Result<Schedule, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Encodes a schedule file: one line for the setup, and one for each action.
    ///
    /// # Panics
    /// Never.
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
