//! Which logs of a job are wanted.

use std::collections::BTreeMap;

use super::find::{FoundJob, FoundPod};
use crate::cli::pod::{LogQuery, LogReadArgs, LogStart};
use rcfarm_api::ids::{Namespaced, PodRef};
use rcfarm_api::job::spec::{JobTask, Slot};
use rcfarm_api::node::status::NodePodPhase;

#[derive(Clone, clap::Args)]
pub struct JobLogsArgs {
    /// The job: its name, or <namespace>/<name>
    #[arg(value_name = "JOB")]
    pub(super) job: Namespaced,
    /// Only pods of this task
    #[arg(long)]
    pub(super) task: Option<String>,
    /// Only pods with this index in their task
    #[arg(long)]
    pub(super) index: Option<u32>,
    /// Only this container
    #[arg(long)]
    pub(super) container: Option<String>,
    /// Print the end of the output of the last failed runs, from the job's status; their pods may be gone
    #[arg(short, long, conflicts_with = "follow")]
    pub(super) previous: bool,
    /// Print the logs of this attempt of the members, from 1 as in job tree; nodes keep them for a while
    #[arg(long, value_name = "N", conflicts_with_all = ["follow", "previous"], value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) attempt: Option<u32>,
    /// Print the log of the task of this index of an array: as long as its member has no other one, or after a failure
    #[arg(long, value_name = "N", conflicts_with_all = ["follow", "index", "attempt"])]
    pub(super) array_index: Option<u32>,
    #[command(flatten)]
    pub(super) read: LogReadArgs,
}

/// The log of a container of a member.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberLog {
    pub(super) slot: Slot,
    /// `None`: its only one.
    pub(super) container: Option<String>,
    pub(super) place: PodRef,
    /// The job's uid.
    pub(super) uid: u64,
    pub(super) attempt: u32,
}

impl MemberLog {
    pub(super) fn name(&self) -> String {
        match &self.container {
            Some(container) => format!("{}/{container}", self.slot),
            None => self.slot.to_string(),
        }
    }

    pub(super) fn query<'q>(&'q self, args: &'q JobLogsArgs, start: LogStart) -> LogQuery<'q> {
        LogQuery {
            previous: false,
            launchable: self.container.as_deref(),
            follow: false,
            start,
            is_split: false,
            attempt: Some((self.uid, self.attempt)),
            token_file: args.read.log_token_file.as_deref(),
        }
    }
}

/// Number of members that the arguments select; `None`: the record is not valid.
pub(super) fn wanted(found: &FoundJob, args: &JobLogsArgs) -> Option<usize> {
    let spec = &found.read.as_ref().ok()?.spec;
    let tasks = spec.tasks.iter().filter(|task| is_task(args, &task.name));
    let count = |replicas: u32| match args.index {
        Some(index) => usize::from(index < replicas),
        None => replicas as usize,
    };
    Some(tasks.map(|task| count(task.replicas)).sum())
}

pub(super) fn is_task(args: &JobLogsArgs, name: &str) -> bool {
    args.task.as_ref().is_none_or(|task| name.eq_ignore_ascii_case(task))
}

/// Whether lines need no prefix: one log is all that the arguments select.
pub(super) fn is_alone<'l>(
    found: &FoundJob,
    all: impl Iterator<Item = &'l MemberLog>,
    args: &JobLogsArgs,
) -> bool {
    let all: Vec<_> = all.collect();
    wanted(found, args).unwrap_or(all.len()) == 1 && all.iter().all(|log| log.container.is_none())
}

/// Logs of the selected members that a node has reported, with the phases of their pods.
pub(super) fn member_logs(
    found: &FoundJob,
    pods: &[FoundPod],
    args: &JobLogsArgs,
) -> BTreeMap<MemberLog, NodePodPhase> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let slot = &pod.identity.slot;
        let Some(status) = &pod.status else { continue };
        if pod.identity.uid.0 != found.uid()
            || !is_task(args, &slot.task)
            || args.index.is_some_and(|index| index != slot.index)
        {
            continue;
        }
        let task = found.read.as_ref().ok().and_then(|read| read.spec.task(&slot.task));
        all.extend(containers(task, args).into_iter().map(|container| {
            let log = MemberLog {
                slot: slot.clone(),
                container,
                place: pod.place.clone(),
                uid: found.uid().0,
                attempt: pod.identity.attempt,
            };
            (log, status.phase)
        }));
    }
    all
}

/// The containers of a task's pods whose logs are wanted. `None`: the only one.
pub(super) fn containers(task: Option<&JobTask>, args: &JobLogsArgs) -> Vec<Option<String>> {
    let all = task.map(|task| task.template.containers.as_slice()).unwrap_or_default();
    match (&args.container, all) {
        (Some(name), _) => vec![Some(name.clone())],
        (None, [] | [_]) => vec![None],
        (None, several) => several.iter().map(|one| Some(one.name.clone())).collect(),
    }
}

pub(super) fn state(found: &FoundJob) -> String {
    let Some(status) = &found.status else { return "no farm has looked at it yet".to_owned() };
    let state = &status.state;
    let message = if state.message.is_empty() { "" } else { ": " };
    format!("{} ({}){message}{}", state.phase, state.reason, state.message)
}
