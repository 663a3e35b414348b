//! `rcfarm job get`, `tree`, `explain`.

use serde_json::{Value, json};

use super::find::{FoundJob, FoundPod, find, pods, stopping};
use super::missing::{MOST_NAMED, MissingMember, missing};
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::output::{age, fields, or_dash};
use crate::job::dependencies;
use crate::job::document::peer_change_in_words;
use crate::job::frameworks::counting_container;
use crate::job::pod_status::stands;
use rcfarm_api::ids::{Namespaced, PodRef};
use rcfarm_api::job::array::ArraySpec;
use rcfarm_api::job::spec::{JobSpec, OnPeerChange};
use rcfarm_api::job::status::{JobCondition, JobStatus, Slots, shown};
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_api::{FieldError, Stored, Timestamp, key};

pub(super) async fn get(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let found = find(context, id).await?;
    let shown = json!({
        "job": found.id,
        "uid": found.uid(),
        "record": found.document,
        "labels": found.labels,
        "status": found.status.as_ref().map(shown_status),
        "problems": found.read.as_ref().err(),
        "warnings": found.read.as_ref().ok().map(|read| &read.warnings),
    });
    context.show(&shown, || {
        let now = context.now();
        let mut rows = vec![("job", found.id.to_string()), ("uid", found.uid().to_string())];
        if let Ok(read) = &found.read {
            rows.extend(spec_rows(&read.spec));
        }
        let labels = found.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let labels = labels.collect::<Vec<_>>().join(",");
        rows.push(("labels", or_dash(Some(labels).filter(|labels| !labels.is_empty()))));
        if let Some(status) = &found.status {
            rows.extend([
                ("phase", status.state.phase.to_string()),
                ("reason", status.state.reason.clone()),
                ("message", status.state.message.clone()),
                ("members", members(status)),
                ("retries", status.retry_count.to_string()),
                ("attempt", status.version.to_string()),
                ("started", or_dash(status.start_time.map(|at| age(at, now) + " ago"))),
                ("ended", or_dash(status.completion_time.map(|at| age(at, now) + " ago"))),
                ("ran for", or_dash(ran_for(status, now))),
                ("owner", or_dash(status.owner.as_ref().map(|owner| owner.farm.to_string()))),
            ]);
            rows.extend(array_rows(status));
        }
        rows.push(("problems", remarks(found.read.as_ref().err().map_or(&[], |p| p.as_slice()))));
        fields(rows)
    })
}

/// A status as programs read it: conditions have Kubeflow's words.
pub(super) fn shown_status(status: &JobStatus) -> Value {
    let mut value = serde_json::to_value(status).expect("statuses encode");
    value["conditions"] = json!(shown(&status.conditions));
    value
}

fn spec_rows(spec: &JobSpec) -> Vec<(&'static str, String)> {
    let tasks = spec.tasks.iter().map(|task| format!("{} x {}", task.replicas, task.name));
    let array = |array: &ArraySpec| {
        let (all, at_once) = (array.len(), array.members());
        ("array", format!("{} ({all} tasks, {at_once} at a time)", array.indexes.ranges()))
    };
    let mut rows = vec![
        ("kind", spec.kind().to_owned()),
        ("tasks", tasks.collect::<Vec<_>>().join(", ")),
        ("needed", format!("{} of {}", spec.min_available, spec.replicas())),
        ("queue", spec.queue.clone()),
        ("priority", or_dash(spec.priority_class.clone())),
    ];
    rows.extend(spec.array.as_ref().map(array));
    rows
}

fn members(status: &JobStatus) -> String {
    let m = status.members;
    let counts = [
        (m.pending, "pending"),
        (m.running, "running"),
        (m.succeeded, "succeeded"),
        (m.failed, "failed"),
        (m.terminating, "terminating"),
        (m.unknown, "unknown"),
    ];
    let said = counts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}"));
    said.collect::<Vec<_>>().join(", ")
}

/// Of an array: what has become of its tasks.
fn array_rows(status: &JobStatus) -> Vec<(&'static str, String)> {
    let Some(array) = &status.array else { return Vec::new() };
    let indexes = |indexes: &Slots| or_dash((!indexes.is_empty()).then(|| indexes.ranges()));
    vec![
        ("completed indexes", indexes(&array.completed_indexes)),
        ("failed indexes", indexes(&array.failed_indexes)),
    ]
}

fn remarks(remarks: &[FieldError]) -> String {
    remarks.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[derive(serde::Serialize)]
struct Leaf {
    pod: String,
    node: String,
    version: u64,
    attempt: u32,
    /// Of an array: the index of its task, as far as it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    array_index: Option<u32>,
    phase: String,
    exit_code: Option<i32>,
    restarts: u32,
    message: String,
}

fn leaf(found: &FoundJob, pod: &FoundPod) -> Leaf {
    let spec = found.read.as_ref().ok().map(|read| &read.spec);
    let task = spec.and_then(|spec| Some((spec, spec.task(&pod.identity.slot.task)?)));
    let container = task.and_then(|(spec, task)| counting_container(spec, task));
    let pod_state = pod.status.as_ref().map(stands);
    let status = found.status.as_ref().filter(|_| pod.identity.uid.0 == found.uid());
    let identity = &pod.identity;
    let array_index =
        status.and_then(|status| status.array_index_of(&identity.slot, identity.attempt));
    Leaf {
        pod: pod.place.pod.to_string(),
        node: pod.place.node.to_string(),
        version: pod.identity.version,
        attempt: pod.identity.attempt,
        array_index,
        phase: pod_state.as_ref().map_or("Pending".to_owned(), |s| format!("{:?}", s.phase)),
        exit_code: pod_state.as_ref().and_then(|pod_state| pod_state.exit_code(container)),
        restarts: pod_state.as_ref().map_or(0, |pod_state| pod_state.restarts),
        message: pod_state.map(|pod_state| pod_state.message).unwrap_or_default(),
    }
}

pub(super) async fn tree(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let found = find(context, id).await?;
    let pods = pods(context, id).await?;
    let tasks: Vec<(String, u32)> = match &found.read {
        Ok(read) => read.spec.tasks.iter().map(|t| (t.name.clone(), t.replicas)).collect(),
        Err(_) => Vec::new(),
    };
    let of = |task: &str| -> Vec<Leaf> {
        pods.iter()
            .filter(|pod| pod.identity.slot.task == task)
            .map(|pod| leaf(&found, pod))
            .collect()
    };
    let mismatched: Vec<Leaf> = pods
        .iter()
        .filter(|pod| !tasks.iter().any(|(task, _)| *task == pod.identity.slot.task))
        .map(|pod| leaf(&found, pod))
        .collect();
    let is_stopping = found.status.as_ref().is_some_and(|status| status.members.terminating > 0);
    let stopping = match is_stopping {
        true => stopping(context, &found, &pods).await?,
        false => Vec::new(),
    };
    let all: Vec<_> = tasks.iter().map(|(task, n)| (task, n, of(task))).collect();
    let shown = json!({
        "job": found.id,
        "phase": found.status.as_ref().map(|status| status.state.phase),
        "tasks": all.iter().map(|(task, n, pods)| json!({"task": task, "replicas": n, "pods": pods}))
            .collect::<Vec<_>>(),
        "other_pods": mismatched,
        "stopping": stopping.iter().map(|(place, identity)| json!({"pod": place.pod, "node": place.node,
            "member": identity.slot})).collect::<Vec<_>>(),
    });
    context.show(&shown, || {
        let phase = found.status.as_ref().map(|status| status.state.phase);
        let mut text = format!("{}  {}\n", found.id, or_dash(phase));
        for (n, (task, replicas, pods)) in all.iter().enumerate() {
            let (stem, bar) = if n + 1 == all.len() { ("`-", "  ") } else { ("|-", "| ") };
            text.push_str(&format!("{stem} {task}  {} of {replicas} pods\n", pods.len()));
            for (m, pod) in pods.iter().enumerate() {
                let twig = if m + 1 == pods.len() { "`-" } else { "|-" };
                let Leaf { pod: name, node, phase, attempt, message, .. } = pod;
                let tries =
                    if *attempt > 0 { format!(", try {}", attempt + 1) } else { String::new() };
                let index =
                    pod.array_index.map(|index| format!(", index {index}")).unwrap_or_default();
                let code =
                    pod.exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
                let why = if message.is_empty() { String::new() } else { format!(": {message}") };
                text.push_str(&format!(
                    "{bar} {twig} {name}  {phase} on {node}{tries}{index}{code}{why}\n"
                ));
            }
        }
        for (place, identity) in &stopping {
            let (PodRef { node, pod }, slot) = (place, &identity.slot);
            text.push_str(&format!("x  {pod}  {slot} is being stopped on {node}\n"));
        }
        for pod in &mismatched {
            text.push_str(&format!("?  {} on {}: of no task of the job\n", pod.pod, pod.node));
        }
        text
    })
}

pub(super) async fn explain(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let found = find(context, id).await?;
    let group = context.get(&key::pod_group_status(id)).await?;
    let group = group.and_then(|entry| PodGroupStatus::decode(&entry.value).ok());
    let group = group.filter(|group| group.owner_uid == Some(found.uid().to_string()));
    let lock = context.get(&key::job_lock(id)).await?;
    let is_owned = lock.is_some_and(|entry| entry.session.is_some());
    let mut verdict = verdict(&found, is_owned);
    let unmet = match &found.status {
        None => {
            let all = dependencies::in_document(id, &found.document).unwrap_or_default();
            dependencies::read_unmet(context.store.as_ref(), id, &all).await?
        }
        Some(_) => Vec::new(),
    };
    if is_owned && !unmet.is_empty() {
        let why: Vec<&str> = unmet.iter().map(|one| one.why.as_str()).collect();
        verdict = format!("it waits for other jobs: {}", why.join("; "));
    }
    let missing = missing(context, &found, &pods(context, id).await?, group.as_ref()).await?;
    let on_move = found.read.as_ref().ok().and_then(|read| peer_change_in_words(&read.spec));
    let shown = json!({
        "job": found.id,
        "verdict": verdict,
        "owned": is_owned,
        "state": found.status.as_ref().map(|status| &status.state),
        "conditions": found.status.as_ref().map(|status| shown(&status.conditions)),
        "group": group.as_ref().map(|group| json!({
            "phase": group.phase, "reason": group.reason, "message": group.message,
            "passed": group.passed, "chains": group.chain_reasons,
        })),
        "missing": missing,
        "array": found.status.as_ref().and_then(|status| status.array.as_ref()),
        "on_peer_change": on_move,
        "failures": found.status.as_ref().map(|status| &status.failures),
        "delayed": found.status.as_ref().map(|status| &status.delayed),
        "not_before": found.status.as_ref().and_then(|status| status.not_before),
        "last_error": found.status.as_ref().and_then(|status| status.last_error.clone()),
        "problems": found.read.as_ref().err(),
        "warnings": found.read.as_ref().ok().map(|read| &read.warnings),
    });
    context.show(&shown, || {
        let mut rows = vec![("job", found.id.to_string()), ("verdict", verdict.clone())];
        if let Some(group) = &group {
            // The verdict of a waiting job is its group's reason.
            let message = Some(&*group.message).filter(|message| !verdict.contains(message));
            let message = message.unwrap_or_default();
            let text = format!("{} ({}) {message}", group.phase, group.reason);
            rows.push(("group", text.trim_end().to_owned()));
            if group.chain_reasons.len() > 1 {
                let chains = group.chain_reasons.iter().map(ToString::to_string);
                rows.push(("chains", chains.collect::<Vec<_>>().join("\n")));
            }
            let passed = group.passed;
            if passed > 0 {
                rows.push((
                    "passed",
                    format!("by {passed} groups of its queue, which fitted when it did not"),
                ));
            }
        }
        if let Some(status) = &found.status {
            rows.push(("members", members(status)));
            rows.extend(array_rows(status));
            rows.push(("missing", missing_lines(&missing)));
            let delayed = status.delayed.iter().map(|delayed| {
                let of =
                    delayed.slot.as_ref().map(|slot| format!(" of {slot}")).unwrap_or_default();
                format!("{} at {}, for {}{of}", delayed.action, delayed.due, delayed.event)
            });
            let failures = status.failures.iter().rev().map(ToString::to_string);
            rows.push(("failed", failures.collect::<Vec<_>>().join("\n")));
            rows.push(("put off", delayed.collect::<Vec<_>>().join("\n")));
            let conditions = status.conditions.iter().map(condition_line);
            rows.push(("ran for", ran_for(status, context.now()).unwrap_or_default()));
            rows.push(("history", conditions.collect::<Vec<_>>().join("\n")));
        }
        if let Ok(read) = &found.read {
            if read.spec.on_peer_change != OnPeerChange::Files {
                rows.push(("peers move", on_move.clone().unwrap_or_default()));
            }
            rows.push(("not honoured", remarks(&read.warnings)));
        }
        rows.retain(|(_, value)| !value.is_empty());
        fields(rows)
    })
}

fn missing_lines(missing: &[MissingMember]) -> String {
    let mut lines: Vec<String> = missing.iter().take(MOST_NAMED).map(MissingMember::line).collect();
    if missing.len() > MOST_NAMED {
        lines.push(format!("and {} more", missing.len() - MOST_NAMED));
    }
    lines.join("\n")
}

/// A condition that holds, or until when it held.
fn condition_line(condition: &JobCondition) -> String {
    let (kind, at) = (condition.kind, condition.last_transition_time);
    let why = if condition.message.is_empty() { "" } else { ": " };
    match condition.status {
        true => format!("{kind:?} since {at:.0} ({}){why}{}", condition.reason, condition.message),
        false => format!("{kind:?} until {at:.0}"),
    }
}

/// For how long it has run, or ran until its end.
fn ran_for(status: &JobStatus, now: Timestamp) -> Option<String> {
    let started = status.start_time?;
    Some(age(started, status.completion_time.unwrap_or(now)))
}

fn verdict(found: &FoundJob, is_owned: bool) -> String {
    if let Err(problems) = &found.read {
        return format!("no farm can work on the record: {}", remarks(problems));
    }
    let Some(status) = &found.status else {
        return match is_owned {
            true => "its owner farm has not looked at it yet".to_owned(),
            false => "no farm owns it; see which there are: rcfarm farm list".to_owned(),
        };
    };
    let state = &status.state;
    let mut text = format!("{} ({})", state.phase, state.reason);
    if !state.message.is_empty() {
        text.push_str(&format!(": {}", state.message));
    }
    if !is_owned && !state.phase.is_final() {
        text.push_str("; no farm owns it now, so nothing happens: rcfarm farm list");
    }
    text
}
