//! What has happened in a batch world and no key tells any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uuid::Uuid;

use super::checks::maybe_down;
use super::model::{AppliedBatchWrite, BatchModel, ModelEvent};
use crate::ids::{Namespaced, NodeName};
use crate::job::manifest::PodIdentity;
use crate::job::spec::{JobSpec, JobUid, Slot};
use crate::job::status::PodPhase;
use crate::pod_group::spec::GroupId;
use crate::pod_group::status::PodGroupPhase;
use crate::sim::reached::{Occasion, met};

/// One try at one member of one job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Try {
    /// The job.
    pub job: Namespaced,
    /// Which of its name.
    pub uid: JobUid,
    /// Which member.
    pub slot: Slot,
    /// The attempt of the whole job.
    pub version: u64,
    /// Which try.
    pub attempt: u32,
}

impl From<&PodIdentity> for Try {
    fn from(mark: &PodIdentity) -> Try {
        let PodIdentity { job, uid, slot, version, attempt } = mark.clone();
        Try { job, uid, slot, version, attempt }
    }
}

/// See the module.
#[derive(Default)]
pub struct History {
    /// Tries that were ever made.
    pub made: BTreeSet<Try>,
    /// Tries that ended on their nodes, and how.
    pub ended: BTreeMap<Try, Option<i32>>,
    /// Tries that were lost: taken away by somebody, or with their node.
    pub lost: BTreeSet<Try>,
    /// Commands that were carried out.
    pub consumed: BTreeSet<Uuid>,
    /// Tasks whose members are as their dependents want them.
    pub ready_now: BTreeSet<(Namespaced, JobUid, String)>,
    /// Until when they were so.
    pub ready: BTreeMap<(Namespaced, JobUid, String), Duration>,
    /// When nodes were out of hearing, and until when.
    pub absences: BTreeMap<NodeName, Vec<(Duration, Duration)>>,
    /// Since when groups have waited in their queues.
    pub waiting: BTreeMap<GroupId, Duration>,
    /// Jobs that were told to end otherwise, by command or by a deadline.
    pub commanded: BTreeSet<(Namespaced, JobUid)>,
}

impl History {
    /// Notes which pods a write shows to be lost; before it is looked at.
    pub fn losses(board: &mut BatchModel, deed: &AppliedBatchWrite) {
        for seen in &deed.changes {
            let ModelEvent::Intent(place, (Some(mark), None)) = seen else { continue };
            if deed.process().is_none() || maybe_down(board, place, deed) {
                met(Occasion::MemberLost);
                board.history.lost.insert(Try::from(&**mark));
            }
        }
    }

    /// Notes what a write did; after it was looked at.
    pub fn note(board: &mut BatchModel, deed: &AppliedBatchWrite) {
        let mut touched: BTreeSet<Namespaced> = BTreeSet::new();
        for seen in &deed.changes {
            match seen {
                ModelEvent::Intent(_, (_, Some(mark))) => {
                    board.history.made.insert(Try::from(&**mark));
                }
                ModelEvent::GroupStatus(id, (_, after)) => {
                    let waiting = &mut board.history.waiting;
                    match after.as_ref().is_some_and(|after| after.phase == PodGroupPhase::Pending)
                    {
                        true => drop(waiting.entry(id.clone()).or_insert(deed.write.at)),
                        false => drop(waiting.remove(id)),
                    }
                }
                // What its tasks need may be another number now.
                ModelEvent::Job(id, _) => drop(touched.insert(id.clone())),
                ModelEvent::PodStatus(place, Some(standing)) => {
                    let Some(mark) = board.realities.get(place) else { continue };
                    touched.insert(mark.job.clone());
                    if standing.phase.has_ended() {
                        board.history.ended.insert(Try::from(&**mark), standing.exit_code(None));
                    }
                }
                ModelEvent::Command(id, (Some(command), None)) if deed.process().is_some() => {
                    board.history.consumed.insert(*id);
                    if let crate::command::Target::Job { job, .. } = &command.target
                        && let Some(seen) = board.jobs.get(job)
                    {
                        board.history.commanded.insert((job.clone(), seen.uid));
                    }
                }
                ModelEvent::Reality(_, (before, after)) => {
                    touched.extend(before.iter().chain(after).map(|mark| mark.job.clone()));
                }
                _ => {}
            }
        }
        for id in touched {
            let ready: Vec<_> = match board.spec(&id) {
                Some((uid, spec)) => {
                    ready_tasks(board, &id, uid, spec).map(|task| (id.clone(), uid, task)).collect()
                }
                None => Vec::new(),
            };
            let history = &mut board.history;
            let were: Vec<_> = history.ready_now.iter().filter(|(job, ..)| *job == id).collect();
            let were: Vec<_> = were.into_iter().cloned().collect();
            for key in were {
                history.ready_now.remove(&key);
                history.ready.insert(key, deed.write.at);
            }
            history.ready_now.extend(ready);
        }
    }
}

/// Tasks of which as many members as their `minAvailable` run or have succeeded, as nodes say.
pub fn ready_tasks<'a>(
    board: &'a BatchModel,
    id: &'a Namespaced,
    uid: JobUid,
    spec: &'a JobSpec,
) -> impl Iterator<Item = String> + 'a {
    let there = move |task: &str| {
        let own = board.real_of(id).filter(|(place, mark)| {
            let standing = board.standings.get(*place);
            mark.uid == uid
                && mark.slot.task == task
                && standing.is_some_and(|s| {
                    s.phase == PodPhase::Succeeded || s.phase == PodPhase::Running && s.ready
                })
        });
        own.count()
    };
    spec.tasks.iter().filter_map(move |task| {
        let wanted = task.min_available.unwrap_or(0) as usize;
        (there(&task.name) >= wanted).then(|| task.name.clone())
    })
}
