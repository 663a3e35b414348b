//! `rcfarm job logs`: logs of one member of a job, or of all.

use super::attempt::attempt;
use super::find::{FoundJob, find, pods};
use super::follow::follow;
use super::member_log::{JobLogsArgs, is_alone, is_task, member_logs, state, wanted};
use super::print_log::print_log;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use rcfarm_api::job::spec::Slot;
use rcfarm_api::job::status::MemberFailure;

pub(super) async fn logs(context: &CommandContext, args: &JobLogsArgs) -> anyhow::Result<CliExit> {
    let found = find(context, &args.job).await?;
    if wanted(&found, args).is_some_and(|wanted| wanted == 0) {
        let hint = format!("see its pods: rcfarm job tree {}", args.job);
        return Err(failure(format!("{} has no such pod", args.job), hint));
    }
    if let Some(index) = args.array_index.filter(|_| !args.previous) {
        return of_array(context, &found, args, index).await;
    }
    if args.previous {
        return previous(context, &found, args);
    }
    if let Some(number) = args.attempt {
        return attempt(context, &found, args, number).await;
    }
    if args.read.follow {
        let followed = follow(context, args).await?;
        return followed.nothing_read.map_or(Ok(CliExit::Ok), Err);
    }
    let all = member_logs(&found, &pods(context, &args.job).await?, args);
    if all.is_empty() {
        let why = format!("no pod of {} has started: {}", args.job, state(&found));
        return Err(failure(why, "wait for it with --follow"));
    }
    let is_alone = is_alone(&found, all.keys(), args);
    let (mut failures, number) = (Vec::new(), all.len());
    for log in all.keys() {
        if let Err(error) = print_log(context, log, args, is_alone).await? {
            failures.push((log, anyhow::Error::from(error)));
        }
    }
    if failures.len() == number {
        return failures.pop().map_or(Ok(CliExit::Ok), |(_, error)| Err(error));
    }
    for (log, error) in failures {
        context.note(format!("{}: {error}", log.name()));
    }
    Ok(CliExit::Ok)
}

/// Prints the output of the failures that the job's status has.
fn previous(
    context: &CommandContext,
    found: &FoundJob,
    args: &JobLogsArgs,
) -> anyhow::Result<CliExit> {
    let failures = found.status.iter().flat_map(|status| &status.failures);
    let is_wanted = |failure: &&MemberFailure| {
        is_task(args, &failure.slot.task)
            && args.index.is_none_or(|index| failure.slot.index == index)
            && args.array_index.is_none_or(|index| failure.array_index == Some(index))
    };
    let failures: Vec<&MemberFailure> = failures.filter(is_wanted).collect();
    if failures.is_empty() {
        let hint = format!("what is known: rcfarm job explain {}", args.job);
        return Err(failure(format!("{} has no such failure", args.job), hint));
    }
    context.show(&failures, || match &failures[..] {
        [one] if !one.output.is_empty() => one.output.clone(),
        all => all.iter().map(|failure| format!("{failure}\n{}\n", failure.output)).collect(),
    })
}

/// Prints the log of a task of an array. Which member has run it is known while the member has no other task; and of a
/// task that has failed, as long as the job's status has its failure.
async fn of_array(
    context: &CommandContext,
    found: &FoundJob,
    args: &JobLogsArgs,
    index: u32,
) -> anyhow::Result<CliExit> {
    let job = &args.job;
    let array = found.read.as_ref().ok().and_then(|read| read.spec.array.as_ref());
    if array.is_none_or(|array| !array.indexes.contains(index)) {
        let hint = format!("see its indexes: rcfarm job get {job}");
        return Err(failure(format!("{job} has no task of index {index}"), hint));
    }
    let status = found.status.clone().unwrap_or_default();
    let progress = status.array.clone().unwrap_or_default();
    let failed = status.failures.iter().rev().find(|one| one.array_index == Some(index));
    let member = progress.members.iter().find(|(_, has)| **has == index);
    let current = member.and_then(|(member, _)| {
        let slot = Slot::new(&found.read.as_ref().ok()?.spec.tasks.first()?.name, *member);
        Some((status.attempt_of(&slot), slot.index))
    });
    let last = failed.map(|failure| (failure.attempt, failure.slot.index));
    let Some((run, member)) = current.or(last) else {
        let (why, hint) = match progress.has_ended(index) {
            true => ("its member has run another task since", "that of an attempt: --attempt N"),
            false => ("it has not started", "wait for it: rcfarm job tree"),
        };
        return Err(failure(format!("the log of index {index} is not known: {why}"), hint));
    };
    let own = JobLogsArgs { index: Some(member), ..args.clone() };
    // The end of the output of a task that has failed is in the status.
    let of_this_run = |one: &&MemberFailure| (one.attempt, one.slot.index) == (run, member);
    match (attempt(context, found, &own, run + 1).await, failed.filter(of_this_run)) {
        (Err(error), Some(failure)) if !failure.output.is_empty() => {
            context.note(format!("{error}; this is the end of its output"));
            context.show(failure, || failure.output.clone())
        }
        (printed, _) => printed,
    }
}
