//! The status that the owner farm writes: the value of `rcfarm/scheduler_status/<name>`.
//!
//! Each transaction of the owner replaces the status by CAS and increments `revision`. A transaction whose answer was
//! lost is therefore refused if it arrives after a later one.

use serde::{Deserialize, Serialize};

use crate::ids::FarmName;
use crate::{Index, Stored, Timestamp};

/// The status record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerStatus {
    /// Incremented by every transaction of an owner.
    pub revision: u64,
    /// ModifyIndex of the record that this status is about.
    pub observed_index: Index,
    /// The owner farm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub farm: Option<FarmName>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The record is not reconciled until then, because it kept failing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined_until: Option<Timestamp>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Stored for SchedulerStatus {}
