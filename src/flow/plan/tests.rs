use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use rcfarm_store::Versioned;
use serde_json::{Value, json};

use super::*;
use crate::flow::document::read;
use rcfarm_api::flow::RunningHistory;

fn id() -> Namespaced {
    "default/f".parse().unwrap()
}

fn name(text: &str) -> ObjectName {
    text.parse().unwrap()
}

fn template() -> Value {
    let task = json!({"name": "t", "replicas": 1,
        "template": {"spec": {"containers": [{"name": "c", "command": ["true"]}]}}});
    json!({"kind": "JobTemplate", "spec": {"tasks": [task]}})
}

fn templates(names: &[&str]) -> Records {
    let one = |text: &&str| {
        let value = Bytes::from(template().to_string());
        let record = Versioned { index: Index(5), created: Index(5), value };
        (RecordId::from(format!("default/{text}").as_str()), Arc::new(record))
    };
    rcfarm_store::VersionedIndex(names.iter().map(one).collect())
}

/// Steps from words such as `b:a,c` (`b` depends on `a` and `c`) with the fields of `more` by step, all of template `t`.
fn steps(words: &str, more: &Value) -> Value {
    let step = |word: &str| {
        let (name, targets) = word.split_once(':').unwrap_or((word, ""));
        let targets: Vec<&str> = targets.split(',').filter(|text| !text.is_empty()).collect();
        let mut step = json!({"name": name, "template": "t"});
        if !targets.is_empty() {
            step["dependsOn"] = json!({"targets": targets});
        }
        for (field, value) in more.get(name).and_then(Value::as_object).into_iter().flatten() {
            match (step.get_mut(field).and_then(Value::as_object_mut), value.as_object()) {
                (Some(known), Some(value)) => known.extend(value.clone()),
                _ => step[field] = value.clone(),
            }
        }
        step
    };
    words.split(' ').map(step).collect()
}

/// A flow as its farm goes on with it: each plan is committed.
#[derive(Clone)]
struct Case {
    spec: Value,
    status: FlowStatus,
    jobs: ObservedJobs,
    templates: Records,
    probes: ProbeAnswers,
    /// How often each job was made.
    made: BTreeMap<ObjectName, usize>,
    second: i64,
}

impl Case {
    fn new(words: &str, more: Value, fields: Value) -> Case {
        let mut spec = json!({"flows": steps(words, &more)});
        for (field, value) in fields.as_object().unwrap() {
            spec[field] = value.clone();
        }
        Case {
            spec,
            status: FlowStatus::default(),
            jobs: ObservedJobs::new(),
            templates: templates(&["t"]),
            probes: ProbeAnswers::new(),
            made: BTreeMap::new(),
            second: 0,
        }
    }

    fn plan(&self) -> FlowPlan {
        let spec = read(&id(), &json!({"kind": "JobFlow", "spec": self.spec})).unwrap();
        plan(&FlowObserved {
            id: &id(),
            uid: Index(1),
            spec: &spec,
            status: &self.status,
            jobs: &self.jobs,
            templates: &self.templates,
            probes: &self.probes,
            room: ActionLimits { bytes: 300_000, actions: MOST_ACTIONS },
            now: Timestamp::from_second(1_767_225_600 + self.second).unwrap(),
        })
    }

    /// Commits plans until one does nothing. Returns what they did, in words.
    fn go(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..10_000 {
            self.second += 1;
            // Those that are gone and were not listed are read as gone.
            for job in next_to_delete(&id().name, &self.status) {
                self.jobs.entry(job).or_insert(ObservedJob::Gone);
            }
            let planned = self.plan();
            let is_last = planned.actions.is_empty() && planned.status == self.status;
            for action in &planned.actions {
                all.push(match action {
                    FlowAction::Create { name, .. } => {
                        *self.made.entry(name.clone()).or_default() += 1;
                        self.jobs.insert(name.clone(), own(JobPhase::Pending));
                        format!("+{}", &name.as_str()[2..])
                    }
                    FlowAction::Terminate { name, .. } => format!("!{}", &name.as_str()[2..]),
                    FlowAction::Delete { name, .. } => {
                        self.jobs.insert(name.clone(), ObservedJob::Gone);
                        format!("-{}", &name.as_str()[2..])
                    }
                    FlowAction::Finish => return [all, vec!["finish".to_owned()]].concat(),
                });
            }
            self.status = planned.status;
            if is_last {
                return all;
            }
        }
        panic!("it never comes to rest");
    }

    /// Sets phases of jobs from words such as `a=Completed`, and goes on.
    fn then(&mut self, words: &str) -> Vec<String> {
        for word in words.split(' ') {
            let (step, phase) = word.split_once('=').unwrap();
            let phase: JobPhase = serde_json::from_value(json!(phase)).unwrap();
            self.jobs.insert(name(&format!("f-{step}")), own(phase));
        }
        self.go()
    }

    fn phase(&self) -> FlowPhase {
        self.status.state.phase
    }

    fn reason(&self) -> FlowReason {
        self.status.reason
    }
}

fn own(phase: JobPhase) -> ObservedJob {
    ObservedJob::Own(Box::new(OwnJob {
        uid: Index(9),
        phase,
        bytes: Some(500),
        ..OwnJob::default()
    }))
}

fn simple(words: &str) -> Case {
    Case::new(words, json!({}), json!({}))
}

/// The facts of Volcano's tests (`volcano.md` §5.4).
#[test]
fn f_f1_f_f2_f_f3_f_f4_f_f5_phases_follow_the_jobs() {
    let mut case = simple("a b c:a,b");
    assert_eq!(case.go(), ["+a", "+b"]);
    assert_eq!(case.phase(), FlowPhase::Pending);
    assert_eq!(case.then("a=Running"), [""; 0]);
    assert_eq!(case.phase(), FlowPhase::Running);
    // F-F5, F-F4: a completed, b runs.
    assert_eq!(case.then("a=Completed b=Running"), [""; 0]);
    assert_eq!(case.phase(), FlowPhase::Running);
    assert_eq!((case.status.completed_jobs.len(), case.status.running_jobs.len()), (1, 1));
    let before = case.clone();
    // F-F1
    assert_eq!(case.then("b=Completed"), ["+c"]);
    case.then("c=Completed");
    assert_eq!((case.phase(), case.reason()), (FlowPhase::Succeed, FlowReason::AllStepsEnded));
    assert_eq!(case.status.completed_jobs.len(), 3);
    // F-F2, F-F3
    for phase in ["Failed", "Terminated"] {
        let mut case = before.clone();
        assert_eq!(case.then(&format!("b={phase}")), [""; 0]);
        assert_eq!((case.phase(), case.reason()), (FlowPhase::Failed, FlowReason::StepFailed));
        assert_eq!(case.status.skipped_steps, [name("c")]);
    }
    let mut case = simple("a");
    case.go();
    case.then("a=Restarting");
    assert_eq!(case.status.unknown_jobs, [name("f-a")]);
}

#[test]
fn f_f6_changed_state_closes_the_last_entry_of_the_history() {
    let mut case = simple("a");
    case.go();
    case.then("a=Running");
    case.then("a=Running");
    case.then("a=Completed");
    let job = &case.status.job_status_list[0];
    let states: Vec<JobPhase> = job.running_histories.iter().map(|one| one.state).collect();
    assert_eq!(states, [JobPhase::Pending, JobPhase::Running, JobPhase::Completed]);
    let [pending, running, completed] = &job.running_histories[..] else { panic!() };
    let RunningHistory { start_timestamp, end_timestamp, .. } = running;
    assert_eq!(
        (pending.end_timestamp, *end_timestamp),
        (Some(*start_timestamp), Some(completed.start_timestamp))
    );
    assert_eq!(completed.end_timestamp, None);
    assert_eq!(job.end_timestamp, Some(completed.start_timestamp));
}

#[test]
fn job_that_its_ttl_removed_is_not_made_again() {
    let mut case = simple("a b:a");
    case.go();
    case.then("a=Completed");
    case.jobs.insert(name("f-a"), ObservedJob::Gone);
    assert_eq!(case.go(), [""; 0]);
    case.then("b=Completed");
    case.jobs.insert(name("f-b"), ObservedJob::Gone);
    assert_eq!((case.go(), case.phase()), (vec![], FlowPhase::Succeed));
    assert!(case.made.values().all(|times| *times == 1), "{:?}", case.made);
}

#[test]
fn job_that_is_deleted_before_its_end_fails_its_step() {
    let mut case = Case::new("a b:a", json!({"a": {"retry": 3}}), json!({}));
    case.go();
    case.then("a=Running");
    case.jobs.insert(name("f-a"), ObservedJob::Gone);
    assert_eq!((case.go(), case.phase()), (vec![], FlowPhase::Failed));
    assert!(
        case.status.message.contains("f-a of step a was terminated or deleted"),
        "{}",
        case.status.message
    );
}

#[test]
fn step_is_retried_under_other_names() {
    let mut case = Case::new("a b:a", json!({"a": {"retry": 2}}), json!({}));
    assert_eq!(case.go(), ["+a"]);
    assert_eq!(case.then("a=Failed"), ["+a-retry1"]);
    assert_eq!((case.phase(), case.status.job_status_list.len()), (FlowPhase::Pending, 1));
    assert_eq!(case.then("a-retry1=Failed"), ["+a-retry2"]);
    assert_eq!(case.then("a-retry2=Completed"), ["+b"]);
    assert_eq!(case.status.job_status_list[0].retries, 2);
    case.then("b=Completed");
    assert_eq!(case.phase(), FlowPhase::Succeed);
    case.jobs.insert(name("f-a-retry1"), own(JobPhase::Failed));
    case.spec["jobRetainPolicy"] = json!("delete");
    assert_eq!(case.go(), ["-a", "-a-retry1", "-a-retry2", "-b"]);
    assert_eq!(case.go(), [""; 0]);
    assert_eq!((case.phase(), case.status.completed_jobs.len()), (FlowPhase::Succeed, 2));
}

#[test]
fn dependency_types_decide_after_failures() {
    let types = json!({"any": {"dependsOn": {"type": "afterany"}}, "not": {"dependsOn": {"type": "afternotok"}},
        "late": {"dependsOn": {"type": "afterany"}}});
    let all = Case::new("a ok:a any:a not:a late:ok", types, json!({}));
    let mut case = all.clone();
    case.go();
    assert_eq!(case.then("a=Completed"), ["+ok", "+any"]);
    assert_eq!(case.status.skipped_steps, [name("not")]);
    assert_eq!(case.then("ok=Completed any=Completed"), ["+late"]);
    case.then("late=Completed");
    assert_eq!(case.phase(), FlowPhase::Succeed);
    let mut case = all;
    case.go();
    // Steps that wait for a failure run although the flow has failed, and so does one after a skipped one.
    assert_eq!(case.then("a=Failed"), ["+any", "+not", "+late"]);
    assert_eq!((case.phase(), case.status.completion_time), (FlowPhase::Failed, None));
    case.then("any=Completed not=Completed late=Completed");
    assert_eq!(case.phase(), FlowPhase::Failed);
    assert!(case.status.completion_time.is_some());
}

#[test]
fn policy_decides_what_a_failure_means_for_siblings() {
    let words = "a b c:b cleanup:b";
    let cleanup = json!({"cleanup": {"dependsOn": {"type": "afterany"}}});
    for (policy, after_failure, after_b, phase) in [
        ("keep", vec![], vec!["+cleanup"], FlowPhase::Failed),
        ("stop", vec!["!b"], vec!["+cleanup"], FlowPhase::Failed),
        ("continue", vec![], vec!["+c", "+cleanup"], FlowPhase::Running),
    ] {
        let mut case = Case::new(words, cleanup.clone(), json!({"failurePolicy": policy}));
        case.go();
        assert_eq!(case.then("a=Failed b=Running"), after_failure, "{policy}");
        assert_eq!(case.phase(), phase, "{policy}");
        assert_eq!(case.then("b=Completed"), after_b, "{policy}");
        assert_eq!(case.then("cleanup=Running"), [""; 0], "it is not stopped: {policy}");
        case.then("cleanup=Completed");
        if policy == "continue" {
            case.then("c=Completed");
        }
        assert_eq!(case.phase(), FlowPhase::Failed, "{policy}");
        assert!(case.status.completion_time.is_some(), "{policy}");
    }
}

#[test]
fn missing_and_invalid_templates_hold_up_their_steps_alone() {
    let mut case = Case::new("a b", json!({"b": {"template": "other"}}), json!({}));
    assert_eq!((case.go(), case.reason()), (vec!["+a".to_owned()], FlowReason::TemplateMissing));
    assert!(
        case.status.message.contains("b waits: there is no template other"),
        "{}",
        case.status.message
    );
    assert!(case.plan().waits_for.contains(&RecordId::from("default/other")));
    case.then("a=Completed");
    assert_eq!(case.phase(), FlowPhase::Running);
    case.templates = templates(&["t", "other"]);
    let b = &mut case.spec["flows"][1];
    b["patch"] = json!({"jobSpec": {"tasks": [{"name": "t", "replicas": "x"}]}});
    assert_eq!((case.go(), case.reason()), (vec![], FlowReason::TemplateInvalid));
    assert!(case.status.message.contains("spec.tasks[0].replicas"), "{}", case.status.message);
    case.spec["flows"][1]["patch"] = json!({"jobSpec": {"tasks": [{"name": "t", "replicas": 2}]}});
    assert_eq!(case.go(), ["+b"]);
}

#[test]
fn changes_are_followed_or_refused_by_field() {
    let mut case = simple("a b:a");
    case.go();
    // Steps that have no job yet may change, come and go.
    case.spec["flows"] = steps("a c:a", &json!({"a": {"retry": 1}}));
    assert_eq!((case.go(), case.reason()), (vec![], FlowReason::JobsActive));
    for (changed, why) in [
        (steps("b c", &json!({})), "spec.flows: step a was removed after its job f-a was made"),
        (steps("c a:c", &json!({})), "spec.flows[1]: template, dependsOn or patch of step a"),
    ] {
        let mut case = case.clone();
        let good = std::mem::replace(&mut case.spec["flows"], changed);
        assert_eq!(case.then("a=Completed"), [""; 0]);
        assert_eq!(case.reason(), FlowReason::ChangeRefused);
        assert!(case.status.message.starts_with(why), "{}", case.status.message);
        assert_eq!(case.status.completed_jobs.len(), 1, "what the job does is still seen");
        case.spec["flows"] = good;
        assert_eq!((case.go(), case.reason()), (vec!["+c".to_owned()], FlowReason::JobsActive));
    }
    case.then("a=Completed");
    case.then("c=Completed");
    case.spec["flows"] = steps("a c:a d", &json!({"a": {"retry": 1}}));
    assert_eq!((case.go(), case.phase()), (vec![], FlowPhase::Succeed));
    assert!(
        case.status.message.contains("spec.flows[2]: step d was added after"),
        "{}",
        case.status.message
    );
}

#[test]
fn another_jobs_name_holds_up_a_step_and_an_own_job_is_taken_over() {
    let mut case = simple("a b");
    case.jobs.insert(name("f-a"), ObservedJob::Foreign);
    case.jobs.insert(name("f-b"), own(JobPhase::Running));
    assert_eq!((case.go(), case.reason()), (vec![], FlowReason::JobNameTaken));
    assert_eq!(case.status.running_jobs, [name("f-b")]);
    assert_eq!(case.plan().wake_after, Some(LOOK_AGAIN));
    case.jobs.remove(&name("f-a"));
    assert_eq!(case.go(), ["+a"]);
}

#[test]
fn probes_let_a_step_run_beside_its_target() {
    let probe = json!({"b": {"dependsOn": {"probe": {
        "taskStatusList": [{"taskName": "t", "phase": "Running"}],
        "httpGetList": [{"taskName": "t", "path": "/healthy", "port": 8080}],
    }}}});
    let mut case = Case::new("a b:a", probe, json!({}));
    case.go();
    assert!(case.plan().probes.is_empty() && case.reason() == FlowReason::ProbeWaiting);
    let running = |counts: &[(PodPhase, u32)]| {
        let tasks = BTreeMap::from([("t".to_owned(), counts.iter().copied().collect())]);
        let phase = JobPhase::Running;
        ObservedJob::Own(Box::new(OwnJob { uid: Index(9), phase, tasks, ..OwnJob::default() }))
    };
    case.jobs.insert(name("f-a"), running(&[(PodPhase::Running, 1), (PodPhase::Pending, 1)]));
    assert_eq!(case.go(), [""; 0]);
    assert!(
        case.status.message.contains("task t of job f-a is not Running"),
        "{}",
        case.status.message
    );
    case.jobs.insert(name("f-a"), running(&[(PodPhase::Running, 2)]));
    case.go();
    let planned = case.plan();
    assert_eq!((planned.probes.len(), planned.wake_after), (1, None));
    let requests = planned.probes;
    let answer = |requests: &[ProbeRequest], result| {
        (name("b"), ProbeAnswer { requests: requests.to_vec(), result })
    };
    case.probes.extend([answer(&requests, Err("n1:8080: refused".to_owned()))]);
    case.go();
    assert!(case.status.message.contains("b waits: n1:8080: refused"), "{}", case.status.message);
    assert_eq!(case.plan().probes, requests, "it is asked again");
    // An earlier job of the name passed.
    let earlier = [ProbeRequest { uid: Index(8), ..requests[0].clone() }];
    case.probes.extend([answer(&earlier, Ok(()))]);
    assert_eq!(case.go(), [""; 0]);
    case.probes.extend([answer(&requests, Ok(()))]);
    assert_eq!(case.go(), ["+b"]);
    // A target that completed needs no probe.
    let mut case = Case::new(
        "a b:a",
        json!({"b": {"dependsOn": {"probe": {"tcpSocketList": [
        {"taskName": "t", "port": 1}]}}}}),
        json!({}),
    );
    case.go();
    assert_eq!(case.then("a=Completed"), ["+b"]);
}

#[test]
fn deletion_takes_all_jobs_then_the_record() {
    let words: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let mut case = simple(&words.join(" "));
    assert_eq!(case.go().len(), 40);
    case.jobs.insert(name("f-s3"), ObservedJob::Gone);
    let spec =
        read(&id(), &json!({"metadata": {"deletionTimestamp": "x"}, "spec": case.spec})).unwrap();
    let (mut deleted, mut plans) = (0, 0);
    loop {
        let names = next_to_delete(&id().name, &case.status);
        let jobs: ObservedJobs =
            names.iter().map(|name| (name.clone(), case.jobs[name].clone())).collect();
        let planned = plan(&FlowObserved {
            id: &id(),
            uid: Index(1),
            spec: &spec,
            status: &case.status,
            jobs: &jobs,
            templates: &case.templates,
            probes: &case.probes,
            room: ActionLimits { bytes: 300_000, actions: MOST_ACTIONS },
            now: Timestamp::default(),
        });
        assert_eq!(planned.status.state.phase, FlowPhase::Terminating);
        plans += 1;
        case.status = planned.status;
        if planned.actions == [FlowAction::Finish] {
            break;
        }
        deleted += planned.actions.len();
        assert!(plans < 10);
    }
    assert_eq!((deleted, plans), (39, 4));
    // An invalid record is deleted, too.
    let planned = deletion(
        &id(),
        Index(2),
        &case.status,
        (&ObservedJobs::new(), ActionLimits { bytes: 1000, actions: MOST_ACTIONS }),
    );
    assert_eq!(planned.actions, [FlowAction::Finish], "the status of an earlier flow says nothing");
}

#[test]
fn flow_of_1000_steps_ten_wide_fits_into_a_status_and_ends() {
    let step = |n: usize| match n.checked_sub(10) {
        None => format!("step-{n:04}"),
        Some(before) => format!("step-{n:04}:step-{before:04}"),
    };
    let words: Vec<String> = (0..1000).map(step).collect();
    let mut case = simple(&words.join(" "));
    let spec = read(&id(), &json!({"kind": "JobFlow", "spec": case.spec})).unwrap();
    let mut largest = 0;
    while case.status.completion_time.is_none() {
        case.second += 1;
        let now = Timestamp::from_second(1_767_225_600 + case.second).unwrap();
        let planned = plan(&FlowObserved {
            id: &id(),
            uid: Index(1),
            spec: &spec,
            status: &case.status,
            jobs: &case.jobs,
            templates: &case.templates,
            probes: &case.probes,
            room: ActionLimits { bytes: 300_000, actions: MOST_ACTIONS },
            now,
        });
        assert!(planned.actions.len() <= MOST_ACTIONS);
        case.status = planned.status;
        let active: Vec<ObjectName> = case.status.active().map(|job| job.name.clone()).collect();
        assert!(active.len() <= 10);
        case.jobs = active.into_iter().map(|name| (name, own(JobPhase::Completed))).collect();
        largest = largest.max(observe::bytes(&case.status));
        assert!(case.second < 1000);
    }
    assert_eq!((case.phase(), case.status.completed_jobs.len()), (FlowPhase::Succeed, 1000));
    assert!(largest < 260 * 1024, "{largest} bytes");
    // Wide: no more than a number of jobs at a time.
    let words: Vec<String> = (0..300).map(|n| format!("s{n}")).collect();
    let mut case = simple(&words.join(" "));
    assert_eq!(case.go().len(), MOST_ACTIVE);
}

proptest! {
    /// Whatever becomes of jobs and in whichever order: each is made once, after those that its step depends on, and the
    /// flow ends. A plan that is thrown away changes nothing.
    #[test]
    fn random_graphs_end_and_make_each_job_once(
        edges in prop::collection::vec((0..12usize, 0..12usize), 0..30),
        kinds in prop::collection::vec(0..3usize, 12),
        ends in prop::collection::vec((any::<prop::sample::Index>(), 0..4usize), 80),
        policy in prop::sample::select(vec!["keep", "stop", "continue"]),
    ) {
        let mut targets = vec![Vec::new(); 12];
        for (one, other) in edges {
            if one != other {
                targets[one.max(other)].push(format!("s{}", one.min(other)));
            }
        }
        let types = ["afterok", "afterany", "afternotok"];
        let flows: Vec<Value> = (0..12).map(|n| {
            let mut step = json!({"name": format!("s{n}"), "template": "t", "retry": n % 2});
            if !targets[n].is_empty() {
                step["dependsOn"] = json!({"targets": targets[n], "type": types[kinds[n]]});
            }
            step
        }).collect();
        let mut case = simple("a");
        case.spec = json!({"flows": flows, "failurePolicy": policy});
        for (which, how) in ends {
            case.go();
            let active: Vec<ObjectName> = case.status.active().map(|job| job.name.clone()).collect();
            if active.is_empty() {
                break;
            }
            let phase = [JobPhase::Completed, JobPhase::Failed, JobPhase::Terminated, JobPhase::Completed][how];
            case.jobs.insert(active[which.index(active.len())].clone(), own(phase));
        }
        case.go();
        prop_assert!(case.made.values().all(|times| *times == 1), "{:?}", case.made);
        prop_assert!(case.status.completion_time.is_some(), "{:?}", case.status);
        let failed = !case.status.failed_jobs.is_empty() || !case.status.terminated_jobs.is_empty();
        prop_assert_eq!(case.phase(), if failed { FlowPhase::Failed } else { FlowPhase::Succeed });
        let known = case.status.job_status_list.len() + case.status.skipped_steps.len();
        prop_assert_eq!(known, 12);
    }
}
