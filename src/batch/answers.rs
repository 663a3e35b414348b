//! What a scheduler over HTTP has said about gangs, until it is asked again. Pure.
//!
//! An answer is about one gang as it was asked for: a changed group is asked about anew. Nodes count for one pass, since
//! they may be in use by the next one. A refusal holds for 2 s: it also bounds how often a server is asked
//! about a group that waits.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::placement::ScheduleError;
use crate::placement::capacity::{Gang, GangPlacement};
use rcfarm_api::ids::QueueName;
use rcfarm_api::pod_group::spec::GroupId;

/// Time for which a gang waits that the scheduler has refused.
const REFUSED_FOR: Duration = Duration::from_secs(2);
/// Time for which a gang waits after the scheduler could not be asked, or gave an answer that cannot be used.
const FAILED_FOR: Duration = Duration::from_secs(5);
/// Time for which a scheduler that places no gangs is not asked again.
const BY_ROOM_FOR: Duration = Duration::from_secs(60);
/// Most gangs that are asked about at one time.
pub const ASKED_AT_ONCE: usize = 32;

/// A gang for which the scheduler is to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangAsk {
    pub id: GroupId,
    pub queue: QueueName,
    pub gang: Gang,
}

/// What the scheduler said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GangAnswer {
    Nodes(GangPlacement),
    /// It does not place gangs: they are placed by room.
    LeftToFarm,
    /// No place now, or no answer; the text is for people.
    Refused(String),
}

#[derive(Debug)]
struct Answered {
    gang: Gang,
    answer: GangAnswer,
    /// When it no longer counts; `None`: after the next pass.
    until: Option<Instant>,
}

/// Answers by group: about all of its members, and about the fewest.
#[derive(Debug, Default)]
pub struct GangAnswers {
    by_group: BTreeMap<GroupId, Vec<Answered>>,
    /// Until when the scheduler is known to place no gangs.
    by_room: Option<Instant>,
}

impl GangAnswers {
    /// The answer about a gang.
    #[must_use]
    pub fn about(&self, id: &GroupId, gang: &Gang) -> Option<&GangAnswer> {
        if self.by_room.is_some() {
            return Some(&GangAnswer::LeftToFarm);
        }
        let known = self.by_group.get(id)?.iter().find(|known| known.gang == *gang);
        known.map(|known| &known.answer)
    }

    /// Keeps an answer for as long as it counts.
    pub fn note(
        &mut self,
        ask: GangAsk,
        answer: Result<Option<GangPlacement>, ScheduleError>,
        now: Instant,
    ) {
        let (answer, until) = match answer {
            Ok(Some(nodes)) => (GangAnswer::Nodes(nodes), None),
            Ok(None) => {
                self.by_room = Some(now + BY_ROOM_FOR);
                return;
            }
            Err(error) => {
                let pause = match error {
                    ScheduleError::Exhausted(_) => REFUSED_FOR,
                    ScheduleError::Unreachable(_) | ScheduleError::BadAnswer(_) => FAILED_FOR,
                };
                (GangAnswer::Refused(error.to_string()), Some(now + pause))
            }
        };
        let of_group = self.by_group.entry(ask.id).or_default();
        of_group.retain(|known| known.gang != ask.gang);
        of_group.push(Answered { gang: ask.gang, answer, until });
    }

    /// Forgets what no longer counts before a pass. Returns whether that was anything.
    pub fn expire(&mut self, now: Instant) -> bool {
        self.keep(|answered| answered.until.is_none_or(|until| now < until))
            | self.by_room.take_if(|until| *until <= now).is_some()
    }

    /// Forgets nodes after a pass that had them.
    pub fn had_their_pass(&mut self) {
        self.keep(|answered| answered.until.is_some());
    }

    fn keep(&mut self, is_kept: impl Fn(&Answered) -> bool) -> bool {
        let count = |all: &BTreeMap<_, Vec<Answered>>| all.values().map(Vec::len).sum::<usize>();
        let before = count(&self.by_group);
        self.by_group.values_mut().for_each(|answers| answers.retain(&is_kept));
        self.by_group.retain(|_, answers| !answers.is_empty());
        count(&self.by_group) != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(name: &str) -> GangAsk {
        let gang = Gang { name: name.to_owned(), ..Gang::default() };
        GangAsk { id: "ns/g".parse().unwrap(), queue: "q".parse().unwrap(), gang }
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_expire_and_nodes_count_for_one_pass() {
        let (mut answers, now) = (GangAnswers::default(), rcfarm_store::time::monotonic());
        let (all, fewest) = (ask("all"), ask("fewest"));
        let about =
            |answers: &GangAnswers, ask: &GangAsk| answers.about(&ask.id, &ask.gang).cloned();
        answers.note(all.clone(), Err(ScheduleError::Exhausted("full".to_owned())), now);
        answers.note(fewest.clone(), Ok(Some(GangPlacement::default())), now);
        assert!(matches!(about(&answers, &all), Some(GangAnswer::Refused(_))));
        assert!(matches!(about(&answers, &fewest), Some(GangAnswer::Nodes(_))));
        assert!(!answers.expire(now), "both are new");
        answers.had_their_pass();
        assert_eq!(about(&answers, &fewest), None);
        assert!(answers.expire(now + REFUSED_FOR));
        assert_eq!(about(&answers, &all), None);
        answers.note(all.clone(), Err(ScheduleError::Unreachable("down".to_owned())), now);
        assert!(!answers.expire(now + REFUSED_FOR) && answers.expire(now + FAILED_FOR));
        answers.note(all.clone(), Ok(None), now);
        assert_eq!(about(&answers, &fewest), Some(GangAnswer::LeftToFarm), "of all groups");
        assert!(answers.expire(now + BY_ROOM_FOR));
        assert_eq!(about(&answers, &fewest), None);
    }
}
