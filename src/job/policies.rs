//! What is done when something happens: Volcano's lifecycle policies (`volcano.md` §2.2). Pure.

use std::time::Duration;

use super::spec::{Event, JobSpec, Policy};
use crate::command::Action;

/// Something that happened to a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Happening {
    /// What; `None`: nothing that policies name, such as a change of the record.
    pub event: Option<Event>,
    /// The exit code of a member that failed.
    pub exit_code: Option<i32>,
    /// The task that it happened to; `None`: to the job as a whole.
    pub task: Option<String>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing but looking how the job stands.
    Sync,
    /// This, now.
    Now(Action),
    /// This, so much later, unless things have mended by then.
    Later(Action, Duration),
}

/// Decides; the first rule that fits counts.
#[must_use]
pub fn answer(job: &JobSpec, what: &Happening) -> Answer {
    let Some(event) = what.event else { return Answer::Sync };
    let of_task = what.task.as_deref().and_then(|task| job.task(task));
    let of_task = of_task.map(|task| task.policies.as_slice()).unwrap_or_default();
    [of_task, &job.policies]
        .into_iter()
        .find_map(|policies| policies.iter().find(|policy| fits(policy, event, what.exit_code)))
        .map_or(Answer::Sync, |policy| match policy.timeout {
            None => Answer::Now(policy.action),
            Some(pause) => Answer::Later(policy.action, pause),
        })
}

fn fits(policy: &Policy, event: Event, exit_code: Option<i32>) -> bool {
    if event == Event::PodPending && policy.timeout.is_none() {
        return false;
    }
    let named = policy.events.contains(&event) || policy.events.contains(&Event::Any);
    // No exit code is no exit code: a member that was lost did not end with any.
    named || (exit_code.is_some() && policy.exit_code == exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Namespaced;
    use serde_json::{Value, json};

    fn job(of_job: Value, of_task: Value) -> JobSpec {
        let id: Namespaced = "default/j".parse().unwrap();
        let template = json!({"spec": {"containers": [{"name": "c", "command": ["true"]}]}});
        let document = json!({"spec": {"policies": of_job, "tasks": [
            {"name": "t", "replicas": 1, "policies": of_task, "template": template},
        ]}});
        crate::job::form::read(&id, &document).unwrap().spec
    }

    fn decide(job: &JobSpec, what: &Happening) -> Answer {
        answer(job, what)
    }

    fn happens(event: Event) -> Happening {
        let task = Some("t".to_owned());
        Happening { event: Some(event), task, exit_code: None }
    }

    #[test]
    fn f_a2_what_policies_do_not_name_is_a_sync() {
        let job = job(json!([{"event": "*", "action": "TerminateJob"}]), json!([]));
        assert_eq!(decide(&job, &Happening::default()), Answer::Sync);
    }

    #[test]
    fn f_a5_pending_members_are_acted_on_only_after_a_timeout() {
        let with = json!([{"event": "PodPending", "action": "RestartPod", "timeout": "5m"}]);
        let later = Answer::Later(Action::RestartPod, Duration::from_secs(300));
        assert_eq!(decide(&job(with, json!([])), &happens(Event::PodPending)), later);
        let without = json!([{"event": "PodPending", "action": "RestartPod"}]);
        assert_eq!(decide(&job(without, json!([])), &happens(Event::PodPending)), Answer::Sync);
    }

    #[test]
    fn f_a6_a_tasks_policy_goes_before_the_jobs() {
        let of_job = json!([{"event": "PodFailed", "action": "AbortJob"}]);
        let of_task = json!([{"event": "PodFailed", "action": "RestartJob"}]);
        let answer = decide(&job(of_job, of_task), &happens(Event::PodFailed));
        assert_eq!(answer, Answer::Now(Action::RestartJob));
    }

    #[test]
    fn f_a7_where_no_policy_of_the_task_fits_the_jobs_counts() {
        let of_job = json!([{"event": "PodFailed", "action": "AbortJob"}]);
        let of_task = json!([{"event": "PodEvicted", "action": "RestartJob"}]);
        let answer = decide(&job(of_job, of_task), &happens(Event::PodFailed));
        assert_eq!(answer, Answer::Now(Action::AbortJob));
    }

    #[test]
    fn f_a8_an_exit_code_is_matched_exactly() {
        let job = job(json!([{"exitCode": 3, "action": "RestartJob"}]), json!([]));
        let ended = |exit_code| Happening { exit_code, ..happens(Event::PodFailed) };
        assert_eq!(decide(&job, &ended(Some(3))), Answer::Now(Action::RestartJob));
        assert_eq!(decide(&job, &ended(Some(4))), Answer::Sync);
        assert_eq!(decide(&job, &ended(None)), Answer::Sync);
    }

    #[test]
    fn f_a9_any_is_any() {
        let job = job(json!([{"event": "*", "action": "AbortJob"}]), json!([]));
        for event in [
            Event::PodFailed,
            Event::PodEvicted,
            Event::Unknown,
            Event::TaskCompleted,
            Event::TaskFailed,
        ] {
            assert_eq!(decide(&job, &happens(event)), Answer::Now(Action::AbortJob), "{event}");
        }
    }
}
