//! Transitions of conditions as measured (`kubeflow.md` §2.2), without Kubeflow's defects (D9), and stored statuses.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn shown(conditions: &[JobCondition]) -> String {
    let one = |c: &JobCondition| format!("{:?}{}", c.kind, if c.status { "" } else { "=no" });
    conditions.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Conditions after a sequence and one more.
fn after(way: &[JobConditionType], next: JobConditionType) -> String {
    let mut conditions = Vec::new();
    for (n, kind) in way.iter().chain([&next]).enumerate() {
        let n = i64::try_from(n).unwrap();
        set_condition(&mut conditions, *kind, format!("r{n}"), String::new(), at(n));
    }
    shown(&conditions)
}

/// `kubeflow.md` §2.2
#[test]
fn transitions_match_the_measured_matrix() {
    use JobConditionType::{
        Created as C, Failed as F, Restarting as Rs, Running as R, Succeeded as S,
    };
    for (way, next, result) in [
        (&[C][..], C, "Created"),
        (&[C], R, "Created Running"),
        (&[C], Rs, "Created Restarting"),
        (&[C], S, "Created Succeeded"),
        (&[C], F, "Created Failed"),
        (&[C, R], C, "Running Created"),
        (&[C, R], R, "Created Running"),
        (&[C, R], Rs, "Created Restarting"),
        (&[C, R], S, "Created Running=no Succeeded"),
        (&[C, R], F, "Created Running=no Failed"),
        (&[C, Rs], C, "Restarting Created"),
        (&[C, Rs], R, "Created Running"),
        (&[C, Rs], Rs, "Created Restarting"),
        // D9: a restart ends with the job.
        (&[C, Rs], S, "Created Restarting=no Succeeded"),
        (&[C, Rs], F, "Created Restarting=no Failed"),
        // D9: Succeeded stays, as Failed does.
        (&[C, R, S], C, "Created Running=no Succeeded"),
        (&[C, R, S], R, "Created Running=no Succeeded"),
        (&[C, R, S], Rs, "Created Running=no Succeeded"),
        (&[C, R, S], S, "Created Running=no Succeeded"),
        (&[C, R, S], F, "Created Running=no Succeeded"),
        (&[C, R, F], C, "Created Running=no Failed"),
        (&[C, R, F], R, "Created Running=no Failed"),
        (&[C, R, F], Rs, "Created Running=no Failed"),
        (&[C, R, F], S, "Created Running=no Failed"),
        (&[C, R, F], F, "Created Running=no Failed"),
    ] {
        assert_eq!(after(way, next), result, "{way:?} + {next:?}");
    }
}

#[test]
fn the_sequence_of_kubeflows_own_test() {
    use JobConditionType as C;
    let mut all = Vec::new();
    let mut set = |kind, reason: &str, second| {
        set_condition(&mut all, kind, reason.to_owned(), String::new(), at(second));
        shown(&all)
    };
    assert_eq!(set(C::Created, "JobCreated", 0), "Created");
    assert_eq!(set(C::Running, "JobRunning", 1), "Created Running");
    assert_eq!(set(C::Restarting, "JobRestarting", 2), "Created Restarting");
    assert_eq!(set(C::Running, "JobRunning", 3), "Created Running");
    assert_eq!(set(C::Failed, "JobFailed", 4), "Created Running=no Failed");
    assert_eq!(all[1].last_transition_time, at(4), "D9: it ended then");
}

/// `kubeflow.md` §2.1
#[test]
fn times_move_with_the_status_and_a_changed_message_is_kept() {
    let mut all = Vec::new();
    let mut set = |reason: &str, message: &str, second| {
        let (kind, reason) = (JobConditionType::Running, reason.to_owned());
        set_condition(&mut all, kind, reason, message.to_owned(), at(second));
        all[0].clone()
    };
    set("a", "x", 1);
    let other_reason = set("b", "x", 2);
    assert_eq!((other_reason.last_transition_time, other_reason.last_update_time), (at(1), at(2)));
    let other_message = set("b", "y", 3);
    assert_eq!((other_message.message.as_str(), other_message.last_update_time), ("y", at(3)));
    assert_eq!(set("b", "y", 4).last_update_time, at(3), "nothing new");
}

#[test]
fn suspend_and_resume_as_the_training_operator_has_them() {
    let mut status = JobStatus { created: Some(at(0)), ..JobStatus::default() };
    status.enter(JobPhase::Running, "TFJob", JobReason::EnoughRunning, "", at(1));
    status.enter(JobPhase::Aborting, "TFJob", JobReason::Suspended, "", at(2));
    status.enter(JobPhase::Aborted, "TFJob", JobReason::Suspended, "", at(3));
    assert_eq!(shown(&status.conditions), "Running=no Suspended");
    assert_eq!(status.conditions[0].reason, "TFJobSuspended");
    assert_eq!(status.conditions[1].last_transition_time, at(2));
    status.enter(JobPhase::Restarting, "TFJob", JobReason::CommandIssued, "", at(4));
    assert_eq!(status.conditions[1].reason, "TFJobResumed");
    status.enter(JobPhase::Running, "TFJob", JobReason::EnoughRunning, "", at(5));
    assert_eq!(shown(&status.conditions), "Suspended=no Running", "Running is appended last");
}

#[test]
fn f_j25_a_phase_is_listed_once_and_the_newest_is_last() {
    let record = |phases: &[JobPhase]| {
        let mut all = Vec::new();
        phases.iter().for_each(|phase| note_phase(&mut all, *phase, at(1)));
        all.iter().map(|record| record.status).collect::<Vec<_>>()
    };
    use JobPhase::{Completed, Pending, Running};
    assert_eq!(record(&[Pending, Running, Pending]), [Running, Pending]);
    assert_eq!(record(&[Pending, Running, Completed]), [Pending, Running, Completed]);
}

#[test]
fn an_end_is_dated_once() {
    let mut status = JobStatus { created: Some(at(10)), ..JobStatus::default() };
    status.enter(JobPhase::Failed, "Job", JobReason::MemberFailed, "exit 1", at(70));
    status.enter(JobPhase::Failed, "Job", JobReason::MemberFailed, "exit 1", at(90));
    assert_eq!(status.completion_time, Some(at(70)));
    assert_eq!(status.running_duration_seconds, Some(60), "it does not go on growing");
    assert_eq!(status.state.last_transition_time, at(70), "only a change of phase moves it");
}

#[test]
fn a_status_survives_the_store() {
    let mut status = JobStatus { revision: 3, observed_index: Index(9), ..JobStatus::default() };
    status.enter(JobPhase::Running, "Job", JobReason::EnoughRunning, "", at(1));
    let memory = status.memory("worker");
    (0..100).chain([104]).for_each(|n| assert!(memory.started.insert(n)));
    memory.attempts.insert(3, 2);
    memory.not_before.insert(3, at(9));
    let text = String::from_utf8(status.encode().to_vec()).unwrap();
    assert!(text.contains("\"started\":\"0-99,104\"") && text.contains("\"running\":0"), "{text}");
    assert_eq!(JobStatus::decode(text.as_bytes()).unwrap(), status);
    assert_eq!(JobStatus::decode(b"{}").unwrap(), JobStatus::default());
    assert!(JobStatus::decode(br#"{"tasks":{"w":{"started":"0-4000000000"}}}"#).is_err());
}

#[test]
fn what_a_newer_version_says_is_kept() {
    let newer = br#"{"state": {"phase": "Running"}, "tomorrow": {"a": [1]}}"#;
    let mut status = JobStatus::decode(newer).unwrap();
    status.revision += 1;
    let kept: serde_json::Value = serde_json::from_slice(&status.encode()).unwrap();
    assert_eq!(kept["tomorrow"], serde_json::json!({"a": [1]}));
    assert_eq!(kept["state"]["phase"], "Running");
}

fn numbers(count: u32) -> impl Iterator<Item = u32> {
    // Neither sorted nor in runs.
    (0..count).map(|n| n.wrapping_mul(2_654_435_761) >> 16)
}

/// A status that holds as much as possible of each member.
fn crowded(tasks: u32, members: u32) -> JobStatus {
    let mut status = JobStatus::default();
    for task in 0..tasks {
        let memory = status.memory(&format!("task-{task}"));
        for (index, n) in (0..).zip(numbers(members)) {
            memory.attempts.insert(index, 99_000 + n % 50);
            memory.failed.insert(index, n % 99);
            let sets = [&mut memory.started, &mut memory.starting, &mut memory.handled];
            sets.into_iter().filter(|_| n % 2 == 0).for_each(|set| {
                set.insert(index);
            });
            if n % 2 == 1 {
                memory.not_before.insert(index, at(1_000_000 + i64::from(n)));
            }
        }
    }
    status
}

#[test]
fn members_failing_together_keep_the_status_bounded() {
    for (tasks, members) in [(1, 9_000), (1, 26_000), (20, 1_000), (100, 60), (150, 70)] {
        let mut status = crowded(tasks, members);
        let bound = largest_status((0..tasks).map(|_| (8, members)), None);
        status.keep_small();
        let bytes = status.encode().len();
        assert!(bytes <= bound.max(LARGEST_STATUS), "{tasks} of {members}: {bytes}, not {bound}");
        assert_eq!(JobStatus::decode(&status.encode()).unwrap(), status);
        if bytes > LARGEST_STATUS {
            assert!(bound > LARGEST_STATUS, "the job is refused");
        }
    }
    assert!(largest_status([(8, 26_000)].into_iter(), None) <= LARGEST_STATUS);
    assert!(largest_status([(8, 100_000)].into_iter(), None) > LARGEST_STATUS);
}

#[test]
fn status_of_the_largest_array_stays_below_its_bound() {
    let array: ArraySpec = "0-99999%1000".parse().unwrap();
    let mut status = crowded(1, 1_000);
    let own = status.encode().len();
    let progress = status.array.insert(ArrayProgress::default());
    for index in 0..100_000 {
        let sets = [&mut progress.completed_indexes, &mut progress.failed_indexes];
        let [completed, failed] = sets;
        match index % 4 {
            0 => completed.insert(index),
            2 => failed.insert(index),
            _ => continue,
        };
    }
    for member in 0..1_000 {
        progress.members.insert(member, 97_999 + 2 * member);
        progress.retries.insert(97_999 + 2 * member, u32::MAX - member);
    }
    let bytes = status.encode().len() - own;
    assert!(bytes > 80_000, "{bytes}: it is the worst case");
    assert!(bytes <= ArrayProgress::largest(&array), "{bytes}");
    let bound = largest_status([(6, 1_000)].into_iter(), Some(&array));
    assert!(bound > largest_status([(6, 1_000)].into_iter(), None) + bytes);
    assert!(bound <= LARGEST_STATUS, "such an array is accepted: {bound}");
    assert_eq!(JobStatus::decode(&status.encode()).unwrap(), status);
}

#[test]
fn pauses_are_merged_only_when_the_status_is_too_large() {
    let mut small = crowded(1, 900);
    let before = small.clone();
    small.keep_small();
    assert_eq!(small, before);
    let mut large = crowded(1, 24_000);
    let latest = large.tasks["task-0"].not_before.values().max().copied();
    large.keep_small();
    assert_eq!((large.not_before, large.tasks["task-0"].not_before.len()), (latest, 0));
    assert_eq!(large.tasks["task-0"].attempts, crowded(1, 24_000).tasks["task-0"].attempts);
}

#[test]
fn values_of_few_members_are_stored_by_index() {
    let text = |members| {
        let attempts = (0..members).map(|index| (index, 1 + index % 2)).collect();
        let memory = TaskMemory { attempts, ..TaskMemory::default() };
        serde_json::to_value(&memory).unwrap()
    };
    assert_eq!(text(3), serde_json::json!({"attempts": {"0": 1, "1": 2, "2": 1}}));
    assert!(text(65)["attempts"][1][1].as_str().unwrap().starts_with("1,3,5,"));
}

#[test]
fn many_ranges_become_a_bitmap() {
    let slots = |numbers: &mut dyn Iterator<Item = u32>| {
        let mut slots = Slots::default();
        numbers.for_each(|n| {
            slots.insert(n);
        });
        slots
    };
    for (set, text) in
        [(slots(&mut [0, 1, 2, 9].into_iter()), "0-2,9"), (slots(&mut (0..20_000)), "0-19999")]
    {
        assert_eq!(String::from(set.clone()), text);
    }
    let odd = slots(&mut (0..20_000).filter(|n| n % 2 == 1));
    let text = String::from(odd.clone());
    assert_eq!((&text[..4], text.len()), ("#aaa", 5_001));
    assert_eq!(Slots::try_from(text).unwrap(), odd);
    assert!(Slots::try_from("#0g".to_owned()).is_err());
}

/// People write them, too: a short text must not become a large set, nor take long to read.
#[test]
fn slots_are_bounded_as_a_whole() {
    let many: Vec<String> =
        (0..500).map(|n| format!("{}-{}", n * 1_000, n * 1_000 + 999)).collect();
    let overlapping = vec!["0-99999"; 1_000].join(",");
    let digits = format!("#{}", "f".repeat(25_001));
    for text in
        [many.join(","), overlapping, digits, "100000".to_owned(), "0-4294967295".to_owned()]
    {
        let why = Slots::try_from(text.clone()).unwrap_err();
        assert!(why.contains("members") || why.contains("digits"), "{why}");
    }
    assert_eq!(Slots::try_from("0-99999".to_owned()).unwrap().len(), 100_000);
    let all: Slots = (0..100_000).filter(|n| n % 2 == 1).collect();
    assert_eq!(Slots::try_from(String::from(all.clone())).unwrap(), all);
}

/// Conditions are stored as booleans, which older farms read, and shown in Kubeflow's words. Both are read.
#[test]
fn status_of_a_condition_is_read_as_boolean_and_as_text() {
    let stored = |status: &str| {
        let text = format!(
            r#"{{"type":"Running","status":{status},"reason":"r","message":"","lastUpdateTime":"2026-01-01T00:00:00Z",
            "lastTransitionTime":"2026-01-01T00:00:00Z"}}"#
        );
        serde_json::from_str::<JobCondition>(&text).map(|condition| condition.status)
    };
    for (text, holds) in [
        ("true", Some(true)),
        ("false", Some(false)),
        (r#""True""#, Some(true)),
        (r#""False""#, Some(false)),
        (r#""Unknown""#, Some(false)),
        (r#""yes""#, None),
        ("1", None),
    ] {
        assert_eq!(stored(text).ok(), holds, "{text}");
    }
    let mut conditions = Vec::new();
    set_condition(&mut conditions, JobConditionType::Running, "r".into(), String::new(), at(1));
    set_condition(&mut conditions, JobConditionType::Failed, "f".into(), String::new(), at(2));
    let texts = |all: Vec<serde_json::Value>| {
        all.iter().map(|one| one["status"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts(super::shown(&conditions)), ["False", "True"]);
    let stored = serde_json::to_value(&conditions).unwrap();
    assert_eq!((&stored[0]["status"], &stored[1]["status"]), (&false.into(), &true.into()));
}
