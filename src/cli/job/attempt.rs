//! `rcfarm job logs --attempt`: the output of an earlier attempt, which the node's agent keeps once the pod is gone.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, stream};

use super::find::{FoundJob, FoundPod, pods};
use super::member_log::{JobLogsArgs, MemberLog, containers, is_task};
use super::print_log::print_log;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::pod::{LogError, LogStart, open_log_at};
use rcfarm_api::Stored;
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::job::spec::Slot;
use rcfarm_api::key;
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::pod_group::pod_ids::PodIdFormat;

/// Requests for one log at once.
const ASKED_AT_ONCE: usize = 16;

/// Prints the logs of the selected members' attempt. `number`: from 1, as `job tree` counts them.
pub(super) async fn attempt(
    context: &CommandContext,
    found: &FoundJob,
    args: &JobLogsArgs,
    number: u32,
) -> anyhow::Result<CliExit> {
    let present = pods(context, &args.job).await?;
    let mut nodes = Nodes::read(context).await?;
    let wanted = wanted(found, args);
    let is_alone = wanted.len() == 1 && wanted[0].1.is_none();
    let (mut has_printed, mut unread, mut error) = (false, Vec::new(), None);
    for (slot, container) in wanted {
        let attempt = number - 1;
        let (places, is_present) = nodes.places(found, &present, &slot, attempt);
        let log = |place| {
            let (slot, container) = (slot.clone(), container.clone());
            MemberLog { slot, container, place, uid: found.uid().0, attempt }
        };
        let logs: Vec<MemberLog> = places.into_iter().map(log).collect();
        let Some(log) = nodes.find(args, &logs, is_present).await else {
            let name = container.map_or(slot.to_string(), |name| format!("{slot}/{name}"));
            unread.push(format!("{name}: no node that answers has its log of attempt {number}"));
            continue;
        };
        match print_log(context, log, args, is_alone).await? {
            Ok(()) => has_printed = true,
            Err(failed) => {
                let failed = anyhow::Error::from(failed);
                unread.push(format!("{}: {failed}", log.name()));
                error = Some(failed);
            }
        }
    }
    if has_printed {
        unread.iter().for_each(|note| context.note(note));
        nodes.problems.iter().for_each(|(node, error)| context.note(format!("{node}: {error}")));
        return Ok(CliExit::Ok);
    }
    match error.or_else(|| nodes.problems.into_values().next()) {
        Some(error) => Err(error.context(format!("attempt {number} was not found"))),
        None => Err(failure(
            format!(
                "no node has the logs of attempt {number}: there was none, or they were deleted"
            ),
            "the end of the last failures' output: rcfarm job logs --previous",
        )),
    }
}

/// The selected members, with each of their containers.
fn wanted(found: &FoundJob, args: &JobLogsArgs) -> Vec<(Slot, Option<String>)> {
    let Ok(read) = &found.read else { return Vec::new() };
    let tasks = read.spec.tasks.iter().filter(|task| is_task(args, &task.name));
    let all = tasks.flat_map(|task| {
        let indexes = (0..task.replicas).filter(|n| args.index.is_none_or(|index| index == *n));
        let slots = indexes.map(|index| Slot::new(&task.name, index));
        slots.flat_map(|slot| {
            let all = containers(Some(task), args).into_iter();
            all.map(move |container| (slot.clone(), container))
        })
    });
    all.collect()
}

/// The nodes whose agents may have logs.
#[derive(Default)]
struct Nodes {
    /// Those that are asked.
    records: BTreeMap<NodeName, NodeRecord>,
    /// Why nodes did not answer.
    problems: BTreeMap<NodeName, anyhow::Error>,
}

impl Nodes {
    async fn read(context: &CommandContext) -> anyhow::Result<Nodes> {
        let prefix = key::nodes();
        let entries = context.list(&prefix).await?;
        let record = |entry: &rcfarm_store::Entry| {
            let node = prefix.tail(&entry.key)?.parse().ok()?;
            Some((node, NodeRecord::decode(&entry.value).unwrap_or_default()))
        };
        let records = entries.iter().filter_map(record).collect();
        Ok(Nodes { records, problems: BTreeMap::new() })
    }

    /// Where a member's pod of an attempt is, or may have been; and whether it is there now.
    fn places(
        &self,
        found: &FoundJob,
        present: &[FoundPod],
        slot: &Slot,
        attempt: u32,
    ) -> (Vec<PodRef>, bool) {
        let is_it = |pod: &&FoundPod| {
            let identity = &pod.identity;
            (identity.uid.0, &identity.slot, identity.attempt) == (found.uid(), slot, attempt)
        };
        if let Some(pod) = present.iter().find(is_it) {
            return (vec![pod.place.clone()], true);
        }
        let mut failures = found.status.iter().flat_map(|status| &status.failures);
        let failed = failures.find(|failure| (&failure.slot, failure.attempt) == (slot, attempt));
        let nodes = match failed {
            Some(failure) => vec![&failure.node],
            None => self.records.keys().collect(),
        };
        let formats = PodIdFormat::ALL.iter().rev();
        let ids = formats.filter_map(|format| slot.pod_id(&found.id, *format).ok());
        let places = ids.flat_map(|pod| {
            nodes.iter().map(move |node| PodRef { node: (*node).clone(), pod: pod.clone() })
        });
        (places.collect(), false)
    }

    /// Asks for all of these logs, and returns one that is there. A node that does not answer is asked once. An agent that
    /// names no position knows no attempts, and sends the pod's present log: it is believed only if that is the attempt.
    async fn find<'l>(
        &mut self,
        args: &JobLogsArgs,
        logs: &'l [MemberLog],
        is_present: bool,
    ) -> Option<&'l MemberLog> {
        let records = &self.records;
        let asked = logs.iter().filter_map(|log| Some((log, records.get(&log.place.node)?)));
        let mut answers = stream::iter(asked.map(|(log, record)| async move {
            let query = log.query(args, LogStart::Lines(1));
            let opened = open_log_at(record, &log.place, &query).await;
            (log, opened.map(|opened| is_present || opened.position.is_some()))
        }))
        .buffer_unordered(ASKED_AT_ONCE);
        let mut silent = Vec::new();
        let mut is_there = None;
        while let Some((log, answer)) = answers.next().await {
            match answer {
                Ok(true) => {
                    is_there = Some(log);
                    break;
                }
                Ok(false) => {
                    let hint = "upgrade it, or read the pod's present log: rcfarm pod logs";
                    let why = "its agent is of an older version, which knows no attempts";
                    self.problems.insert(log.place.node.clone(), failure(why, hint));
                }
                Err(LogError::Absent(_)) => {}
                Err(LogError::Busy(error)) => {
                    self.problems.insert(log.place.node.clone(), error);
                }
                Err(LogError::Failed(error)) => {
                    silent.push(log.place.node.clone());
                    self.problems.insert(log.place.node.clone(), error);
                }
            }
        }
        drop(answers);
        silent.iter().for_each(|node| drop(self.records.remove(node)));
        is_there
    }
}
