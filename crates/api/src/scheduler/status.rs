//! What the owner farm says of a scheduler: the value of `rcfarm/scheduler_status/<name>`.
//!
//! It is also the chain that keeps an owner's transactions in order: each one replaces it by CAS and raises
//! `revision`, so a transaction whose answer was lost and that is applied late finds its place taken.

use serde::{Deserialize, Serialize};

use crate::Index;
use crate::Stored;
use crate::Timestamp;
use crate::ids::FarmName;

/// The status record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerStatus {
    /// Grows by one with every transaction of an owner.
    pub revision: u64,
    /// ModifyIndex of the record that this is about.
    pub observed_index: Index,
    /// The owner farm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub farm: Option<FarmName>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The last thing that went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The farm leaves the record alone until then, because it kept failing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined_until: Option<Timestamp>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Stored for SchedulerStatus {}
