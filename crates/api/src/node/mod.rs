//! Records of nodes, and the health of pods.
//!
//! Keys read and written: none here. Node agents write `rcfarm/nodes/<node>`, `health/` and `status/pods/`; farms and
//! commands read them.

pub mod ports;
pub mod record;
pub mod status;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A pod's health as p2's preparer, or our node agent, last wrote it (`p2.md` §1.10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Its check fails.
    Critical,
    /// Unknown.
    Unknown,
    /// Its check warns.
    Warning,
    /// Its check passes.
    Passing,
    /// No record: there is no check, or its writer is gone.
    #[default]
    Absent,
}

impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Health::Critical => "critical",
            Health::Unknown => "unknown",
            Health::Warning => "warning",
            Health::Passing => "passing",
            Health::Absent => "absent",
        })
    }
}

/// The part of `health/<service>/<node>` that a farm needs.
#[derive(Deserialize)]
struct HealthRecord {
    #[serde(rename = "Status")]
    status: String,
    #[serde(rename = "CannotStart", default)]
    cannot_start: Option<Arc<str>>,
    #[serde(rename = "StartError", default)]
    start_error: bool,
    #[serde(rename = "Unfit", default)]
    unfit: Option<Arc<str>>,
    #[serde(rename = "Restarting", default)]
    restarting: Option<Arc<str>>,
}

/// Health of a pod from `health/<service>/<node>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthReport {
    /// Its health.
    pub health: Health,
    /// Why its node cannot start it; written by rcfarm's agents only.
    pub cannot_start: Option<Arc<str>>,
    /// Whether that is because of its program, such as a missing file, and no sign of a bad node.
    pub is_of_program: bool,
    /// Why no node can run its manifest; written by rcfarm's agents only.
    pub unfit: Option<Arc<str>>,
    /// How a process ends that its node restarts again and again; written by rcfarm's agents only.
    pub restarting: Option<Arc<str>>,
}

impl HealthReport {
    /// Reads a health record; a value that cannot be decoded is [`Health::Unknown`].
    pub fn decode(value: &[u8]) -> HealthReport {
        match serde_json::from_slice::<HealthRecord>(value) {
            Ok(record) => {
                let health = Health::of_word(&record.status);
                let HealthRecord { cannot_start, start_error, unfit, restarting, .. } = record;
                HealthReport { health, cannot_start, is_of_program: start_error, unfit, restarting }
            }
            Err(_) => HealthReport { health: Health::Unknown, ..HealthReport::default() },
        }
    }
}

impl Health {
    /// Reads the health alone of a health record.
    pub fn decode(value: &[u8]) -> Health {
        HealthReport::decode(value).health
    }

    fn of_word(word: &str) -> Health {
        match word {
            "passing" => Health::Passing,
            "warning" => Health::Warning,
            "critical" => Health::Critical,
            _ => Health::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p2s_health_records_are_understood_and_others_are_unknown() {
        let record = r#"{"Id":"web","Node":"n1","Service":"web","Status":"passing","Time":"2026-01-01T00:00:00Z","Expires":"2126-01-01T00:00:00Z"}"#;
        assert_eq!(Health::decode(record.as_bytes()), Health::Passing);
        assert_eq!(Health::decode(br#"{"Status":"critical"}"#), Health::Critical);
        assert_eq!(Health::decode(br#"{"Status":"odd"}"#), Health::Unknown);
        assert_eq!(Health::decode(b"{"), Health::Unknown);
        let told =
            HealthReport::decode(br#"{"Status":"critical","CannotStart":"no such program"}"#);
        assert_eq!(told.cannot_start.as_deref(), Some("no such program"));
        assert!(!told.is_of_program, "an older agent does not say");
    }
}
