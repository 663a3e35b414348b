//! The scheduler's record: the value of `rcfarm/schedulers/<name>`. Whoever owns it orders the queues that name it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::labels::Selector;
use crate::scheduler::Packing;
use crate::{FieldError, Stored};

/// An admitted group without a place goes back after this long, unless somebody says otherwise.
pub const SCHEDULE_TIMEOUT: u64 = 300;
/// The first pause of a group that went back; it doubles each time.
pub const BACKOFF_BASE: u64 = 10;
/// The longest.
pub const BACKOFF_MAX: u64 = 600;
/// A time-out or a pause is at most a year.
const LONGEST: u64 = 366 * 24 * 3_600;

/// The stored record. Unknown fields survive a rewrite.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SchedulerRecord {
    /// What is wanted.
    #[serde(default)]
    pub spec: SchedulerSpec,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// How queues are ordered and groups placed. Absent fields have their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerSpec {
    /// How places are found: `capacity`, over what nodes have and have allocated.
    pub algorithm: String,
    /// Which nodes it may use at all; empty: all.
    pub node_selector: String,
    /// Which of several nodes with room is taken first.
    pub packing: Packing,
    /// How long an admitted group may be without a place, and the first of a strict queue may hold the others up.
    pub schedule_timeout_seconds: u64,
    /// How long a group that went back is left alone, the first time.
    pub backoff_base_seconds: u64,
    /// And at most.
    pub backoff_max_seconds: u64,
    /// How what is free is shared between queues: `none` is the only way yet.
    pub fair_share: Later,
    /// What a queue may use of what others leave idle: `none` yet.
    pub borrowing: Later,
    /// Whose place may be taken: `none` yet.
    pub preemption: Later,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A part of the configuration that has a place and no choice yet: anything but `none` is refused, not ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Later {
    /// It is not done.
    #[default]
    None,
}

impl Default for SchedulerSpec {
    fn default() -> Self {
        SchedulerSpec {
            algorithm: "capacity".to_owned(),
            node_selector: String::new(),
            packing: Packing::default(),
            schedule_timeout_seconds: SCHEDULE_TIMEOUT,
            backoff_base_seconds: BACKOFF_BASE,
            backoff_max_seconds: BACKOFF_MAX,
            fair_share: Later::None,
            borrowing: Later::None,
            preemption: Later::None,
            other: Map::new(),
        }
    }
}

impl Stored for SchedulerRecord {
    const PAGE: &'static str = "docs/guide/queues.md";
}

impl SchedulerSpec {
    /// Everything that is wrong with it.
    #[must_use]
    pub fn check(&self) -> Vec<FieldError> {
        let mut bad = Vec::new();
        if self.algorithm != "capacity" {
            let why = format!("{:?} is unknown", self.algorithm);
            bad.push(FieldError::new("spec.algorithm", why, "write capacity, or leave it out"));
        }
        if let Err(error) = self.node_selector.parse::<Selector>() {
            let fix = "write it like pool=batch,zone in (a,b)";
            bad.push(FieldError::new("spec.nodeSelector", error.to_string(), fix));
        }
        for (field, seconds) in [
            ("scheduleTimeoutSeconds", self.schedule_timeout_seconds),
            ("backoffBaseSeconds", self.backoff_base_seconds),
            ("backoffMaxSeconds", self.backoff_max_seconds),
        ] {
            if !(1..=LONGEST).contains(&seconds) {
                let why = format!("{seconds} seconds make no sense");
                bad.push(FieldError::new(format!("spec.{field}"), why, "write 1 to 31622400"));
            }
        }
        bad
    }

    /// How long a group is left alone that went back for the `times`-th time (from 1).
    #[must_use]
    pub fn pause(&self, times: u32) -> Duration {
        let doubled = 2u64.saturating_pow(times.saturating_sub(1).min(40));
        let seconds = self.backoff_base_seconds.saturating_mul(doubled);
        Duration::from_secs(seconds.min(self.backoff_max_seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let spec = SchedulerSpec::default();
        let pauses: Vec<u64> = [1, 2, 3, 7, 8, 99].map(|n| spec.pause(n).as_secs()).into();
        assert_eq!(pauses, [10, 20, 40, 600, 600, 600]);
    }

    #[test]
    fn what_is_not_done_yet_is_refused_and_has_its_place() {
        for (text, path) in [
            (r#"{"spec":{"preemption":"lower-priority"}}"#, "spec.preemption"),
            (r#"{"spec":{"fairShare":"drf"}}"#, "spec.fairShare"),
            (r#"{"spec":{"packing":"tight"}}"#, "spec.packing"),
        ] {
            assert_eq!(SchedulerRecord::decode(text.as_bytes()).unwrap_err().path, path);
        }
        for (text, path) in [
            (r#"{"spec":{"algorithm":"cells"}}"#, "spec.algorithm"),
            (r#"{"spec":{"nodeSelector":"a b"}}"#, "spec.nodeSelector"),
            (r#"{"spec":{"scheduleTimeoutSeconds":0}}"#, "spec.scheduleTimeoutSeconds"),
        ] {
            let bad = SchedulerRecord::decode(text.as_bytes()).unwrap().spec.check();
            assert_eq!(bad.iter().map(|b| b.path.as_str()).collect::<Vec<_>>(), [path]);
        }
        let record = SchedulerRecord::decode(b"{}").unwrap();
        assert!(record.spec.check().is_empty());
        let written: Value = serde_json::from_slice(&record.encode()).unwrap();
        assert_eq!(written["spec"]["borrowing"], "none");
    }
}
