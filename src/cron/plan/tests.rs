use proptest::prelude::*;
use serde_json::{Value, json};

use std::time::Duration;

use super::*;
use crate::cron::document::read;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn id() -> Namespaced {
    "default/c".parse().unwrap()
}

fn spec(fields: Value) -> CronSpec {
    let task = json!({"name": "t", "replicas": 1,
        "template": {"spec": {"containers": [{"name": "c", "command": ["true"]}]}}});
    let mut spec = json!({"schedule": "0 * * * *", "jobTemplate": {"spec": {"tasks": [task]}}});
    for (name, value) in fields.as_object().unwrap() {
        spec[name] = value.clone();
    }
    read(&id(), &json!({"kind": "CronJob", "spec": spec})).unwrap()
}

/// A CronJob as its farm goes on with it: each plan is committed.
struct Case {
    spec: CronSpec,
    status: CronStatus,
    named: Option<NamedJob>,
}

impl Case {
    /// Seen first at 00:30.
    fn new(fields: Value) -> Case {
        let mut case = Case { spec: spec(fields), status: CronStatus::default(), named: None };
        assert_eq!(case.at("2026-01-01T00:30:00Z"), ["-"]);
        case
    }

    /// All transactions at a time, in words.
    fn at(&mut self, now: &str) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let runs = self.status.jobs.clone();
            let (id, spec, status) = (&id(), &self.spec, &self.status);
            let seen = CronObserved {
                id,
                uid: Index(1),
                spec,
                status,
                runs,
                named: self.named,
                now: at(now),
            };
            let plan = plan(&seen);
            let is_last = plan.action.is_none();
            let word = match plan.action {
                Some(CronAction::Create { name, at }) => {
                    assert_eq!(name, job_name(&id.name, at));
                    format!("+{}", at.strftime("%H:%M"))
                }
                Some(CronAction::Delete { name, why }) => {
                    format!("-{} {why:?}", self.time_of(&name))
                }
                Some(CronAction::Finish) => return [all, vec!["finish".to_owned()]].concat(),
                None if plan.status.reason == CronReason::Scheduled => "-".to_owned(),
                None => plan.status.reason.to_string(),
            };
            self.status = plan.status;
            if is_last {
                return if all.is_empty() || word != "-" {
                    [all, vec![word]].concat()
                } else {
                    all
                };
            }
            all.push(word);
        }
    }

    fn time_of(&self, name: &ObjectName) -> String {
        let run = self.status.jobs.iter().find(|run| run.name == *name).unwrap();
        run.scheduled.strftime("%H:%M").to_string()
    }

    /// All active jobs end.
    fn end(&mut self, state: RunState, when: &str) {
        for run in self.status.jobs.iter_mut().filter(|run| run.state == RunState::Active) {
            (run.state, run.finished) = (state, Some(at(when)));
        }
    }
}

const ONE: &str = "2026-01-01T01:00:00Z";
const TWO: &str = "2026-01-01T02:00:10Z";

/// Upstream's table of Volcano's and Kubernetes' `syncCronJob`, by policy: first run, previous ended, previous active.
#[test]
fn runs_are_made_when_due_by_policy() {
    for (policy, while_active) in [
        ("Allow", vec!["+02:00"]),
        ("Forbid", vec!["JobAlreadyActive"]),
        ("Replace", vec!["-01:00 Replaced", "+02:00"]),
    ] {
        let mut case = Case::new(json!({"concurrencyPolicy": policy}));
        assert_eq!(case.at("2026-01-01T00:59:59Z"), ["-"], "{policy}: not yet");
        assert_eq!(case.at(ONE), ["+01:00"], "{policy}");
        assert_eq!(case.at("2026-01-01T01:00:30Z"), ["-"], "{policy}: once");
        assert_eq!(case.at(TWO), while_active, "{policy}");

        let mut case = Case::new(json!({"concurrencyPolicy": policy}));
        assert_eq!(case.at(ONE), ["+01:00"]);
        case.end(RunState::Succeeded, "2026-01-01T01:10:00Z");
        assert_eq!(case.at(TWO), ["+02:00"], "{policy}: the previous one has ended");
        assert_eq!(case.status.last_successful_time, Some(at("2026-01-01T01:10:00Z")));
        assert_eq!(case.status.last_schedule_time, Some(at("2026-01-01T02:00:00Z")));
    }
}

#[test]
fn forbidden_run_is_made_when_the_active_job_ends() {
    let mut case = Case::new(json!({"concurrencyPolicy": "Forbid"}));
    case.at(ONE);
    assert_eq!(case.at(TWO), ["JobAlreadyActive"]);
    case.end(RunState::Failed, "2026-01-01T02:20:00Z");
    assert_eq!(case.at("2026-01-01T02:20:01Z"), ["+02:00"]);
}

#[test]
fn suspended_runs_are_missed_and_the_latest_is_made_on_resume() {
    let mut case = Case::new(json!({}));
    case.spec = spec(json!({"suspend": true}));
    assert_eq!(case.at("2026-01-01T05:00:00Z"), ["Suspended"]);
    case.spec = spec(json!({}));
    assert_eq!(case.at("2026-01-01T05:30:00Z"), ["+05:00"]);
}

#[test]
fn late_runs_are_passed_over_after_the_starting_deadline() {
    let mut case = Case::new(json!({"startingDeadlineSeconds": 60}));
    assert_eq!(case.at("2026-01-01T01:01:00Z"), ["+01:00"], "just in time");
    assert_eq!(case.at("2026-01-01T02:01:01Z"), ["MissedDeadline"]);
    assert!(case.status.message.contains("2026-01-01T02:00:00Z"), "{}", case.status.message);
    assert_eq!(case.at("2026-01-01T02:30:00Z"), ["MissedDeadline"], "it stands until the next run");
    assert_eq!(case.at("2026-01-01T03:00:00Z"), ["+03:00"]);
}

#[test]
fn more_than_100_missed_runs_warn_and_the_latest_is_made() {
    let mut case = Case::new(json!({"schedule": "* * * * *"}));
    assert_eq!(case.at("2026-01-01T02:10:00Z"), ["+02:10"], "100 of them");
    let mut case = Case::new(json!({"schedule": "* * * * *"}));
    assert_eq!(case.at("2026-01-01T02:11:30Z"), ["+02:11", "TooManyMissedTimes"]);
    assert_eq!(case.at("2026-01-01T02:12:00Z"), ["+02:12"]);
    assert_eq!(case.status.reason, CronReason::Scheduled);
    let mut case = Case::new(json!({"schedule": "* * * * *"}));
    assert_eq!(case.at("2036-01-01T00:00:00Z"), ["+00:00", "TooManyMissedTimes"], "ten years");
    let mut case = Case::new(json!({"schedule": "* * * * *", "startingDeadlineSeconds": 200}));
    assert_eq!(case.at("2036-01-01T00:00:00Z"), ["+00:00"], "the others' deadline has passed");
}

#[test]
fn histories_keep_the_newest_of_each_kind() {
    let limits = json!({"successfulJobsHistoryLimit": 2, "failedJobsHistoryLimit": 0});
    let mut case = Case::new(limits);
    for (hour, ends) in
        [RunState::Succeeded, RunState::Failed, RunState::Succeeded, RunState::Succeeded]
            .into_iter()
            .enumerate()
    {
        let hour = hour + 1;
        case.at(&format!("2026-01-01T{hour:02}:00:00Z"));
        case.end(ends, &format!("2026-01-01T{hour:02}:30:00Z"));
    }
    let gone = case.at("2026-01-01T04:40:00Z");
    assert_eq!(gone, ["-01:00 HistoryLimit"]);
    let left: Vec<String> = case.status.jobs.iter().map(|run| run.scheduled.to_string()).collect();
    assert_eq!(left, ["2026-01-01T03:00:00Z", "2026-01-01T04:00:00Z"]);
}

#[test]
fn another_jobs_name_passes_a_run_over_and_an_own_job_is_taken_on() {
    let mut case = Case::new(json!({}));
    case.named = Some(NamedJob { at: at(ONE), is_own: false });
    assert_eq!(case.at(ONE), ["JobNameTaken"]);
    case.named = Some(NamedJob { at: at("2026-01-01T02:00:00Z"), is_own: true });
    assert_eq!(case.at(TWO), ["-"], "it exists: nothing is created");
    assert_eq!(case.status.jobs.len(), 1);
}

#[test]
fn a_new_schedule_or_record_counts_from_then_on() {
    let mut case = Case::new(json!({}));
    case.spec = spec(json!({"schedule": "45 * * * *"}));
    assert_eq!(
        case.at("2026-01-01T01:50:00Z"),
        ["-"],
        "00:45 and 01:45 were due before the change"
    );
    assert_eq!(case.at("2026-01-01T02:45:00Z"), ["+02:45"]);
    case.status.uid = Index(99);
    assert_eq!(case.at("2026-01-01T03:50:00Z"), ["-"], "a record of that name was there before");
    assert!(case.status.jobs.is_empty() && case.status.last_schedule_time.is_none());
}

#[test]
fn deletion_deletes_the_jobs_first() {
    let mut case = Case::new(json!({}));
    case.at(ONE);
    case.at(TWO);
    case.spec.deleting = true;
    let gone = case.at("2026-01-01T05:00:00Z");
    assert_eq!(gone, ["-01:00 OwnerDeleted", "-02:00 OwnerDeleted", "finish"]);
}

#[test]
fn jobs_that_never_end_are_limited() {
    let mut case = Case::new(json!({"schedule": "* * * * *"}));
    for n in 0..MOST_ACTIVE {
        let now =
            at("2026-01-01T00:31:00Z").checked_add(Duration::from_secs(60 * n as u64)).unwrap();
        assert_eq!(case.at(&now.to_string()).len(), 1);
    }
    assert_eq!(case.at("2026-01-01T05:00:00Z"), ["TooManyActive"]);
}

proptest! {
    /// Whatever the farm sees and however late: no run is made twice, none out of order, none that is not due, and the
    /// farm is asleep until a run is due.
    #[test]
    fn runs_are_made_once_in_order_and_only_when_due(
        steps in proptest::collection::vec((1..9000_i64, 0..4_u8), 1..60),
        policy in proptest::sample::select(vec!["Allow", "Forbid", "Replace"]),
        schedule in proptest::sample::select(vec!["*/7 * * * *", "0 */2 * * *", "30 1 * * *", "15,45 3-9 * * *"]),
        deadline in proptest::option::of(0..5000_u32),
    ) {
        let mut fields = json!({"schedule": schedule, "concurrencyPolicy": policy, "timeZone": "Europe/Berlin"});
        if let Some(deadline) = deadline {
            fields["startingDeadlineSeconds"] = json!(deadline);
        }
        let spec = spec(fields);
        let (mut status, mut made) = (CronStatus::default(), Vec::new());
        // The night to summer time.
        let mut now = at("2026-03-28T22:00:00Z");
        for (pause, ends) in steps {
            now = now.checked_add(Duration::from_secs(pause as u64)).unwrap();
            for run in status.jobs.iter_mut().filter(|_| ends == 0) {
                run.state = RunState::Succeeded;
            }
            for turn in 0.. {
                prop_assert!(turn < 50, "it does not come to rest");
                let runs = status.jobs.clone();
                let id = &id();
                let seen = CronObserved { id, uid: Index(1), spec: &spec, status: &status, runs, named: None, now };
                let plan = plan(&seen);
                if let Some(CronAction::Create { at, .. }) = &plan.action {
                    prop_assert!(*at <= now && made.last().is_none_or(|last| last < at));
                    prop_assert_eq!(spec.schedule.latest(*at, now), None, "a later one is due");
                    if policy != "Allow" {
                        prop_assert_eq!(plan.status.active().count(), 1);
                    }
                    made.push(*at);
                }
                let is_last = plan.action.is_none();
                if is_last {
                    prop_assert!(plan.wake_at.is_some_and(|at| at > now));
                    prop_assert_eq!(&plan.status, &self::plan(&CronObserved { status: &plan.status, ..seen }).status);
                }
                status = plan.status;
                if is_last { break; }
            }
        }
    }
}
