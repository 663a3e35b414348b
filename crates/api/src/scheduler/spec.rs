//! The record of a scheduler: the value of `rcfarm/schedulers/<name>`. Its owner orders the queues that name it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::labels::Selector;
use crate::scheduler::Packing;
use crate::{FieldError, Stored};

/// Default seconds after which an admitted group that is not placed goes back to its queue.
pub const SCHEDULE_TIMEOUT: u64 = 300;
/// Default seconds before a group that went back is admitted again; doubled each time.
pub const BACKOFF_BASE: u64 = 10;
/// Default of the longest pause, in seconds.
pub const BACKOFF_MAX: u64 = 600;
/// Longest time-out or pause, in seconds: a year.
const LONGEST: u64 = 366 * 24 * 3_600;

/// The stored record. Unknown fields survive a rewrite.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SchedulerRecord {
    #[serde(default)]
    pub spec: SchedulerSpec,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Order of queues and placement of groups. Missing fields have their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerSpec {
    /// Placement algorithm: `capacity`, by capacity and allocations of nodes.
    pub algorithm: String,
    /// Selector of nodes that it may use; empty: all.
    pub node_selector: String,
    /// Order in which nodes with room are chosen.
    pub packing: Packing,
    /// Seconds that an admitted group may stay without a placement. The first of a strict queue blocks the others
    /// without limit.
    pub schedule_timeout_seconds: u64,
    /// Seconds before a group that went back is admitted again, the first time.
    pub backoff_base_seconds: u64,
    /// Longest such pause, in seconds.
    pub backoff_max_seconds: u64,
    /// Fair share between queues; only `none` so far.
    pub fair_share: String,
    /// Borrowing of idle resources; only `none` so far.
    pub borrowing: String,
    /// Preemption; only `none` so far.
    pub preemption: String,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The only placement algorithm so far.
const ALGORITHM: &str = "capacity";
/// The only value so far of settings that are not available.
const NONE: &str = "none";

impl Default for SchedulerSpec {
    fn default() -> Self {
        SchedulerSpec {
            algorithm: ALGORITHM.to_owned(),
            node_selector: String::new(),
            packing: Packing::default(),
            schedule_timeout_seconds: SCHEDULE_TIMEOUT,
            backoff_base_seconds: BACKOFF_BASE,
            backoff_max_seconds: BACKOFF_MAX,
            fair_share: NONE.to_owned(),
            borrowing: NONE.to_owned(),
            preemption: NONE.to_owned(),
            other: Map::new(),
        }
    }
}

impl Stored for SchedulerRecord {
    const PAGE: &'static str = "docs/guide/queues.md";
}

impl SchedulerSpec {
    /// All errors.
    pub fn check(&self) -> Vec<FieldError> {
        let mut bad = Vec::new();
        for (field, value, only) in [
            ("algorithm", &self.algorithm, ALGORITHM),
            ("fairShare", &self.fair_share, NONE),
            ("borrowing", &self.borrowing, NONE),
            ("preemption", &self.preemption, NONE),
        ] {
            if value != only {
                let fix = format!("write {only}, or leave it out");
                let why = format!("{value:?} is unknown");
                bad.push(FieldError::new(format!("spec.{field}"), why, fix));
            }
        }
        if let Err(error) = self.node_selector.parse::<Selector>() {
            bad.push(FieldError::from(error).below("spec.nodeSelector"));
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

    /// Pause after a group went back for the `times`-th time (from 1).
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
        let error = SchedulerRecord::decode(br#"{"spec":{"packing":"tight"}}"#).unwrap_err();
        assert_eq!(error.path, "spec.packing");
        for (text, path) in [
            (r#"{"spec":{"algorithm":"cells"}}"#, "spec.algorithm"),
            (r#"{"spec":{"preemption":"lower-priority"}}"#, "spec.preemption"),
            (r#"{"spec":{"fairShare":"drf"}}"#, "spec.fairShare"),
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
