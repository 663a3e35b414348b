//! Volcano's lifecycle policies (`volcano.md` §2.2): maps an event of a job to an action. Pure.

use std::time::Duration;

use rcfarm_api::command::CommandAction;
use rcfarm_api::job::spec::{JobSpec, LifecyclePolicy, PolicyEvent};

/// An event of a job or of one of its tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobEvent {
    /// `None`: an event that no policy can name, such as a change of the record.
    pub event: Option<PolicyEvent>,
    /// Exit code of a failed member; `None` if it was lost.
    pub exit_code: Option<i32>,
    /// Task of the event; `None`: the whole job.
    pub task: Option<String>,
}

/// Action that the policies of a job ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyDecision {
    /// No action: recompute the phase from the counts.
    Sync,
    /// Act now.
    Now(CommandAction),
    /// Act after the timeout, unless the cause has disappeared by then.
    Later(CommandAction, Duration),
}

/// Searches the task's policies, then the job's; the first match wins.
#[must_use]
pub fn answer(job: &JobSpec, what: &JobEvent) -> PolicyDecision {
    let Some(event) = what.event else { return PolicyDecision::Sync };
    let of_task = what.task.as_deref().and_then(|task| job.task(task));
    let of_task = of_task.map(|task| task.policies.as_slice()).unwrap_or_default();
    [of_task, &job.policies]
        .into_iter()
        .find_map(|policies| policies.iter().find(|policy| fits(policy, event, what.exit_code)))
        .map_or(PolicyDecision::Sync, |policy| match policy.timeout {
            None => PolicyDecision::Now(policy.action),
            Some(pause) => PolicyDecision::Later(policy.action, pause),
        })
}

fn fits(policy: &LifecyclePolicy, event: PolicyEvent, exit_code: Option<i32>) -> bool {
    if event == PolicyEvent::PodPending && policy.timeout.is_none() {
        return false;
    }
    let named = policy.events.contains(&event) || policy.events.contains(&PolicyEvent::Any);
    // A member without an exit code matches no `exitCode` policy.
    named || (exit_code.is_some() && policy.exit_code == exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_api::ids::Namespaced;
    use serde_json::{Value, json};

    fn job(of_job: Value, of_task: Value) -> JobSpec {
        let id: Namespaced = "default/j".parse().unwrap();
        let template = json!({"spec": {"containers": [{"name": "c", "command": ["true"]}]}});
        let document = json!({"spec": {"policies": of_job, "tasks": [
            {"name": "t", "replicas": 1, "policies": of_task, "template": template},
        ]}});
        crate::job::document::read(&id, &document).unwrap().spec
    }

    fn decide(job: &JobSpec, what: &JobEvent) -> PolicyDecision {
        answer(job, what)
    }

    fn happens(event: PolicyEvent) -> JobEvent {
        let task = Some("t".to_owned());
        JobEvent { event: Some(event), task, exit_code: None }
    }

    #[test]
    fn f_a2_what_policies_do_not_name_is_a_sync() {
        let job = job(json!([{"event": "*", "action": "TerminateJob"}]), json!([]));
        assert_eq!(decide(&job, &JobEvent::default()), PolicyDecision::Sync);
    }

    #[test]
    fn f_a5_pending_members_are_acted_on_only_after_a_timeout() {
        let with = json!([{"event": "PodPending", "action": "RestartPod", "timeout": "5m"}]);
        let later = PolicyDecision::Later(CommandAction::RestartPod, Duration::from_secs(300));
        assert_eq!(decide(&job(with, json!([])), &happens(PolicyEvent::PodPending)), later);
        let without = json!([{"event": "PodPending", "action": "RestartPod"}]);
        assert_eq!(
            decide(&job(without, json!([])), &happens(PolicyEvent::PodPending)),
            PolicyDecision::Sync
        );
    }

    #[test]
    fn f_a6_a_tasks_policy_goes_before_the_jobs() {
        let of_job = json!([{"event": "PodFailed", "action": "AbortJob"}]);
        let of_task = json!([{"event": "PodFailed", "action": "RestartJob"}]);
        let answer = decide(&job(of_job, of_task), &happens(PolicyEvent::PodFailed));
        assert_eq!(answer, PolicyDecision::Now(CommandAction::RestartJob));
    }

    #[test]
    fn f_a7_where_no_policy_of_the_task_fits_the_jobs_counts() {
        let of_job = json!([{"event": "PodFailed", "action": "AbortJob"}]);
        let of_task = json!([{"event": "PodEvicted", "action": "RestartJob"}]);
        let answer = decide(&job(of_job, of_task), &happens(PolicyEvent::PodFailed));
        assert_eq!(answer, PolicyDecision::Now(CommandAction::AbortJob));
    }

    #[test]
    fn f_a8_an_exit_code_is_matched_exactly() {
        let job = job(json!([{"exitCode": 3, "action": "RestartJob"}]), json!([]));
        let ended = |exit_code| JobEvent { exit_code, ..happens(PolicyEvent::PodFailed) };
        assert_eq!(decide(&job, &ended(Some(3))), PolicyDecision::Now(CommandAction::RestartJob));
        assert_eq!(decide(&job, &ended(Some(4))), PolicyDecision::Sync);
        assert_eq!(decide(&job, &ended(None)), PolicyDecision::Sync);
    }

    #[test]
    fn f_a9_any_is_any() {
        let job = job(json!([{"event": "*", "action": "AbortJob"}]), json!([]));
        for event in [
            PolicyEvent::PodFailed,
            PolicyEvent::PodEvicted,
            PolicyEvent::Unknown,
            PolicyEvent::TaskCompleted,
            PolicyEvent::TaskFailed,
        ] {
            assert_eq!(
                decide(&job, &happens(event)),
                PolicyDecision::Now(CommandAction::AbortJob),
                "{event}"
            );
        }
    }
}
