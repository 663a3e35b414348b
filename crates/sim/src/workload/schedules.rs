//! The documents of CronJobs, and when they are due: reckoned minute by minute and independently of the program, for
//! schedules of minutes and hours, in UTC and in Berlin in 2026.

use serde_json::{Value, json};

use rcfarm_api::Timestamp;
use rcfarm_api::ids::Namespaced;

/// Kinds of CronJobs. A job's fate depends on how its name begins.
pub const CRONS: [&str; 8] = [
    "every",
    "endless",
    "endless-forbid",
    "endless-replace",
    "second",
    "third",
    "late",
    "kept-none",
];
/// Worlds begin 80 s before summer time begins or ends in Berlin, or on a day without either.
pub const BEGINNINGS: [i64; 3] = [87 * DAY + 3_520, 297 * DAY + 3_520, 3_520];
const DAY: i64 = 86_400;
/// In Berlin, clocks are set forward then, and back: 2026-03-29 and 2026-10-25, 01:00 UTC.
const SUMMER: std::ops::Range<i64> = 1_774_746_000..1_792_890_000;
/// After so many minutes without a due time, a CronJob is at rest: its next time comes after the world's end.
const AT_REST: i64 = 25;

/// The name of a CronJob.
#[must_use]
pub fn cron_id(kind: &str, n: usize) -> Namespaced {
    format!("team/{kind}-{n}").parse().expect("a CronJob's name")
}

/// The document of a CronJob. The times of most are a few minutes around the change of the clocks.
#[must_use]
pub fn cron_document(kind: &str) -> Value {
    let window = "58,59,0-4 * * * *";
    let berlin = json!("Europe/Berlin");
    let mut spec = match kind {
        "endless-forbid" => json!({"schedule": window, "concurrencyPolicy": "Forbid"}),
        "endless-replace" => {
            json!({"schedule": window, "concurrencyPolicy": "Replace", "timeZone": berlin})
        }
        "second" => json!({"schedule": "0-4 2 * * *", "timeZone": berlin}),
        "third" => json!({"schedule": "0-4 3 * * *", "timeZone": berlin}),
        "late" => json!({"schedule": window, "startingDeadlineSeconds": 5}),
        "kept-none" => json!({"schedule": window, "successfulJobsHistoryLimit": 0,
            "failedJobsHistoryLimit": 0}),
        _ => json!({"schedule": window, "timeZone": berlin}),
    };
    let mut job = json!({"queue": "default", "tasks": [{"name": "w", "replicas": 1,
        "template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "command": ["true"], "resources": {"requests": {"cpu": "300m"}}}]}}}]});
    if kind.starts_with("endless") {
        // It is active when the next run is due.
        job["activeDeadlineSeconds"] = json!(70);
    }
    spec["jobTemplate"] = json!({"spec": job});
    json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "CronJob", "spec": spec})
}

/// The first two fields of a schedule, and whether it is one of Berlin.
struct Times {
    minutes: Vec<i64>,
    hours: Vec<i64>,
    in_berlin: bool,
}

impl Times {
    fn of(document: &Value) -> Option<Times> {
        let spec = document.get("spec")?;
        let mut fields = spec.get("schedule")?.as_str()?.split(' ');
        let minutes = numbers(fields.next()?, 60)?;
        let hours = numbers(fields.next()?, 24)?;
        Some(Times { minutes, hours, in_berlin: spec.get("timeZone").is_some() })
    }

    fn is_due(&self, minute: i64) -> bool {
        let at = minute * 60;
        let ahead = match self.in_berlin {
            true if SUMMER.contains(&at) => 7_200,
            true => 3_600,
            false => 0,
        };
        let shown = (at + ahead).rem_euclid(DAY) / 60;
        self.minutes.contains(&(shown % 60)) && self.hours.contains(&(shown / 60))
    }
}

fn numbers(field: &str, count: i64) -> Option<Vec<i64>> {
    if field == "*" {
        return Some((0..count).collect());
    }
    let mut all = Vec::new();
    for part in field.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<i64>().ok()?..=last.parse::<i64>().ok()?);
    }
    Some(all)
}

fn minute_of(at: Timestamp) -> i64 {
    at.as_second().div_euclid(60)
}

/// Whether a CronJob is due at this minute since 1970.
#[must_use]
pub fn is_due(document: &Value, minute: i64) -> bool {
    Times::of(document).is_some_and(|times| times.is_due(minute))
}

/// Minutes since 1970, after `from` and up to `until`, at which a CronJob is due.
#[must_use]
pub fn due_between(document: &Value, from: Timestamp, until: Timestamp) -> Vec<i64> {
    let Some(times) = Times::of(document) else { return Vec::new() };
    let range = minute_of(from) + 1..=minute_of(until);
    range.filter(|minute| times.is_due(*minute)).collect()
}

/// Whether it is the first minute after clocks in Berlin were changed.
#[must_use]
pub fn is_first_after_change(minute: i64) -> bool {
    [SUMMER.start, SUMMER.end].contains(&(minute * 60))
}

/// Whether it is the first minute after clocks in Berlin were set back.
#[must_use]
pub fn is_end_of_summer(minute: i64) -> bool {
    SUMMER.end == minute * 60
}

/// Whether a CronJob is due again before the world ends.
#[must_use]
pub fn is_due_soon(document: &Value, now: Timestamp) -> bool {
    let Some(times) = Times::of(document) else { return false };
    let now = minute_of(now);
    (now + 1..=now + AT_REST).any(|minute| times.is_due(minute))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(kind: &str, day: &str) -> Vec<i64> {
        let at = |time: &str| format!("{day}T{time}Z").parse::<Timestamp>().unwrap();
        let due = due_between(&cron_document(kind), at("00:58:40"), at("01:10:00"));
        due.into_iter().map(|minute| minute - minute_of(at("01:00:00"))).collect()
    }

    #[test]
    fn times_around_changes_of_summer_time() {
        assert_eq!(minutes("every", "2026-03-29"), [-1, 0, 1, 2, 3, 4]);
        assert_eq!(minutes("second", "2026-03-29"), [0; 0], "clocks go from 2:00 to 3:00");
        assert_eq!(minutes("third", "2026-03-29"), [0, 1, 2, 3, 4]);
        assert_eq!(minutes("second", "2026-10-25"), [0, 1, 2, 3, 4], "2:00 comes again");
        assert_eq!(minutes("third", "2026-10-25"), [0; 0]);
        assert_eq!(minutes("second", "2026-01-01"), [0, 1, 2, 3, 4]);
        for (begins, day) in BEGINNINGS.into_iter().zip(["2026-03-29", "2026-10-25", "2026-01-01"])
        {
            let start = "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap().as_second() + begins;
            assert_eq!(
                Timestamp::from_second(start).unwrap().to_string(),
                format!("{day}T00:58:40Z")
            );
        }
    }
}
