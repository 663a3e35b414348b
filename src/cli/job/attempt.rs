//! `rcfarm job logs --attempt`: the output of an earlier attempt, which the node's agent keeps once the pod is gone.

use super::find::{FoundJob, pods};
use super::logs::{JobLogsArgs, MemberLog, is_task, member_logs, print_log};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::pod::LogError;
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::job::spec::{JobTask, Slot};
use rcfarm_api::key;
use rcfarm_api::pod_group::pod_ids::PodIdFormat;

/// Prints the logs of the selected members' attempt. `number`: from 1, as `job tree` counts them.
pub(super) async fn attempt(
    context: &CommandContext,
    found: &FoundJob,
    args: &JobLogsArgs,
    number: u32,
) -> anyhow::Result<CliExit> {
    let present = member_logs(found, &pods(context, &args.job).await?, args);
    let nodes = nodes(context).await?;
    let attempt = number - 1;
    let slots = slots(found, args);
    let is_alone = slots.len() == 1 && slots[0].1.len() == 1;
    let (mut has_printed, mut last_error) = (false, None);
    for (slot, containers) in &slots {
        for container in containers {
            let is_it = |log: &&MemberLog| {
                log.slot == *slot && log.attempt == attempt && log.container == *container
            };
            if let Some(log) = present.keys().find(is_it) {
                has_printed |= print_log(context, log, args, is_alone, None).await?.is_ok();
                continue;
            }
            let ended = Some((found.uid().0, attempt));
            for place in places(found, slot, &nodes) {
                let (slot, container) = (slot.clone(), container.clone());
                let log = MemberLog { slot, container, place, version: 0, attempt };
                match print_log(context, &log, args, is_alone, ended).await? {
                    Ok(()) => {
                        has_printed = true;
                        break;
                    }
                    Err(LogError::Absent(_)) => {}
                    Err(error) => last_error = Some(anyhow::Error::from(error)),
                }
            }
        }
    }
    match (has_printed, last_error) {
        (true, _) => Ok(CliExit::Ok),
        (false, Some(error)) => Err(error.context(format!("attempt {number} was not found"))),
        (false, None) => Err(failure(
            format!(
                "no node has the logs of attempt {number}: there was none, or they were deleted"
            ),
            "the end of the last failures' output: rcfarm job logs --previous",
        )),
    }
}

async fn nodes(context: &CommandContext) -> anyhow::Result<Vec<NodeName>> {
    let prefix = key::nodes();
    let entries = context.list(&prefix).await?;
    Ok(entries.iter().filter_map(|entry| prefix.tail(&entry.key)?.parse().ok()).collect())
}

/// The selected members, and the containers of each. `None`: its only one.
fn slots(found: &FoundJob, args: &JobLogsArgs) -> Vec<(Slot, Vec<Option<String>>)> {
    let Ok(read) = &found.read else { return Vec::new() };
    let containers = |task: &JobTask| match (&args.container, &task.template.containers[..]) {
        (Some(name), _) => vec![Some(name.clone())],
        (None, [] | [_]) => vec![None],
        (None, several) => several.iter().map(|one| Some(one.name.clone())).collect(),
    };
    let tasks = read.spec.tasks.iter().filter(|task| is_task(args, &task.name));
    let all = tasks.flat_map(|task| {
        let indexes = (0..task.replicas).filter(|n| args.index.is_none_or(|index| index == *n));
        indexes.map(|index| (Slot::new(&task.name, index), containers(task)))
    });
    all.collect()
}

/// Where a member's pod may have been.
fn places(found: &FoundJob, slot: &Slot, nodes: &[NodeName]) -> Vec<PodRef> {
    let ids =
        PodIdFormat::ALL.iter().rev().filter_map(|format| slot.pod_id(&found.id, *format).ok());
    let of =
        |pod| nodes.iter().map(move |node| PodRef { node: node.clone(), pod: Clone::clone(&pod) });
    ids.flat_map(of).collect()
}
