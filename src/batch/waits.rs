//! How long groups wait for their queue, and for a whole placement. For metrics alone: nothing is decided by it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use rcfarm_api::ids::QueueName;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::{PlacementState, PodGroupPhase, PodGroupStatus};

/// A wait that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndedWait {
    /// The queue admitted a group.
    Admitted(QueueName, Duration),
    /// Every member that is to start has its node, since the group was wanted or went back to its queue.
    Placed(Duration),
}

/// Where a group stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum GroupStage {
    Queued(QueueName),
    /// Admitted, and not placed as a whole.
    Admitted,
    Placed,
    /// It waits for nothing: no status, no queue, or all its members have ended.
    Over,
}

impl GroupStage {
    fn of(status: Option<&PodGroupStatus>) -> GroupStage {
        let Some(status) = status else { return GroupStage::Over };
        let is_bound = status.placement.as_ref().is_some_and(|p| p.state == PlacementState::Bound);
        match (status.phase, &status.queue) {
            (PodGroupPhase::Completed, _) | (PodGroupPhase::Pending, None) => GroupStage::Over,
            (PodGroupPhase::Pending, Some(queue)) => GroupStage::Queued(queue.clone()),
            _ if is_bound => GroupStage::Placed,
            _ => GroupStage::Admitted,
        }
    }
}

/// A group that waits. `queue`: until it is admitted.
#[derive(Debug)]
struct WaitingGroup {
    queue: Option<QueueName>,
    since: Instant,
}

/// Groups that wait, and since when by this farm's clock.
#[derive(Debug, Default)]
pub struct GroupWaits {
    groups: BTreeMap<GroupId, WaitingGroup>,
    queued: BTreeMap<QueueName, BTreeSet<(Instant, GroupId)>>,
}

impl GroupWaits {
    /// Starts from stored statuses, as after a take-over. Of a group that is not known yet, `since` says since when its
    /// status has been as it is: what it waited before that is not counted.
    pub fn restart<'s>(
        &mut self,
        statuses: impl Iterator<Item = (&'s GroupId, &'s PodGroupStatus)>,
        since: impl Fn(&PodGroupStatus) -> Instant,
    ) {
        let mut known = std::mem::take(self).groups;
        for (id, status) in statuses {
            let since = known.remove(id).map_or_else(|| since(status), |group| group.since);
            match GroupStage::of(Some(status)) {
                GroupStage::Queued(queue) => self.add(id, Some(queue), since),
                GroupStage::Admitted => self.add(id, None, since),
                GroupStage::Placed | GroupStage::Over => {}
            }
        }
    }

    /// Takes in a committed change of a group, and returns the waits that it ended. `begun`: when the pass began that
    /// made it; a group without a status has waited since then.
    pub fn changed(
        &mut self,
        id: &GroupId,
        (before, after): (Option<&PodGroupStatus>, Option<&PodGroupStatus>),
        (begun, now): (Instant, Instant),
    ) -> Vec<EndedWait> {
        let known = self.remove(id);
        let is_new = before.is_none();
        let (was_queued, since) = match &known {
            Some(group) => (group.queue.is_some(), group.since),
            None => (is_new, if is_new { begun } else { now }),
        };
        let queue = after.and_then(|after| after.queue.clone());
        let admitted =
            || queue.clone().filter(|_| was_queued).map(|q| EndedWait::Admitted(q, now - since));
        match GroupStage::of(after) {
            GroupStage::Over => Vec::new(),
            GroupStage::Queued(queue) => {
                // One that was admitted before goes back to its queue: it waits anew.
                self.add(id, Some(queue), if was_queued { since } else { now });
                Vec::new()
            }
            GroupStage::Admitted => {
                self.add(id, None, since);
                admitted().into_iter().collect()
            }
            GroupStage::Placed if known.is_none() && !is_new => Vec::new(),
            GroupStage::Placed => {
                admitted().into_iter().chain([EndedWait::Placed(now - since)]).collect()
            }
        }
    }

    /// Since when the group waits that has waited longest in each queue.
    #[must_use]
    pub fn oldest(&self) -> BTreeMap<QueueName, Instant> {
        let first = |(queue, groups): (&QueueName, &BTreeSet<(Instant, GroupId)>)| {
            groups.first().map(|(since, _)| (queue.clone(), *since))
        };
        self.queued.iter().filter_map(first).collect()
    }

    fn add(&mut self, id: &GroupId, queue: Option<QueueName>, since: Instant) {
        if let Some(queue) = &queue {
            self.queued.entry(queue.clone()).or_default().insert((since, id.clone()));
        }
        self.groups.insert(id.clone(), WaitingGroup { queue, since });
    }

    fn remove(&mut self, id: &GroupId) -> Option<WaitingGroup> {
        let group = self.groups.remove(id)?;
        if let Some(queue) = &group.queue
            && let Some(groups) = self.queued.get_mut(queue)
        {
            groups.remove(&(group.since, id.clone()));
            if groups.is_empty() {
                self.queued.remove(queue);
            }
        }
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use rcfarm_api::Stored;
    use rcfarm_store::time::monotonic;
    use serde_json::json;

    use super::*;

    fn id(name: &str) -> GroupId {
        format!("team-a/{name}").parse().unwrap()
    }

    fn status(phase: &str, placement: Option<&str>) -> PodGroupStatus {
        let mut text = json!({"phase": phase, "queue": "q", "of": 7, "since": 7});
        if let Some(state) = placement {
            text["placement"] = json!({"state": state, "members": {"w": ["n1"]}});
        }
        PodGroupStatus::decode(text.to_string().as_bytes()).unwrap()
    }

    /// Plays changes of one group, a second apart, and returns the waits that each ended, in seconds.
    fn play(waits: &mut GroupWaits, start: Instant, steps: &[PodGroupStatus]) -> Vec<String> {
        let mut before = None;
        let mut told = Vec::new();
        for (n, after) in (1..).zip(steps) {
            let now = start + Duration::from_secs(n);
            let ended = waits.changed(&id("a"), (before, Some(after)), (start, now));
            told.extend(ended.into_iter().map(|ended| match ended {
                EndedWait::Admitted(queue, wait) => format!("{queue} {}", wait.as_secs()),
                EndedWait::Placed(wait) => format!("placed {}", wait.as_secs()),
            }));
            before = Some(after);
        }
        told
    }

    #[tokio::test(start_paused = true)]
    async fn waits_end_with_admission_and_with_the_whole_placement() {
        let start = monotonic();
        let mut waits = GroupWaits::default();
        let steps = [
            status("Pending", None),
            status("Inqueue", Some("Reserving")),
            status("Inqueue", Some("Bound")),
            // More members are placed.
            status("Running", Some("Bound")),
            status("Completed", Some("Releasing")),
        ];
        assert_eq!(play(&mut waits, start, &steps[..1]), [""; 0]);
        assert_eq!(waits.oldest(), [("q".parse().unwrap(), start)].into());
        let mut waits = GroupWaits::default();
        assert_eq!(play(&mut waits, start, &steps), ["q 2", "placed 3"]);
        assert!(waits.oldest().is_empty() && waits.groups.is_empty());
        // In one transaction.
        let at_once = [status("Inqueue", Some("Bound"))];
        assert_eq!(play(&mut GroupWaits::default(), start, &at_once), ["q 1", "placed 1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn group_that_goes_back_to_its_queue_waits_anew() {
        let start = monotonic();
        let mut waits = GroupWaits::default();
        let steps = [
            status("Pending", None),
            status("Inqueue", None),
            status("Pending", None),
            status("Inqueue", Some("Bound")),
            status("Inqueue", Some("Releasing")),
            status("Pending", None),
            status("Running", Some("Bound")),
        ];
        let told = play(&mut waits, start, &steps);
        assert_eq!(told, ["q 2", "q 1", "placed 1", "q 1", "placed 1"]);
        // One that is deleted while it waits is forgotten.
        waits.changed(&id("b"), (None, Some(&steps[0])), (start, start));
        waits.changed(&id("b"), (Some(&steps[0]), None), (start, start));
        assert!(waits.oldest().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_take_over_waits_count_from_the_stored_status() {
        let now = monotonic();
        let since = now - Duration::from_secs(60);
        let stored = [("a", status("Pending", None)), ("b", status("Running", Some("Bound")))];
        let ids: Vec<GroupId> = stored.iter().map(|(name, _)| id(name)).collect();
        let statuses = || ids.iter().zip(stored.iter().map(|(_, status)| status));
        let mut waits = GroupWaits::default();
        waits.restart(statuses(), |_| since);
        // A group that is known keeps its time when the statuses are read again.
        waits.restart(statuses(), |_| now);
        assert_eq!(waits.oldest(), [("q".parse().unwrap(), since)].into());
        let bound = status("Inqueue", Some("Bound"));
        let ended = waits.changed(&id("a"), (Some(&stored[0].1), Some(&bound)), (now, now));
        assert_eq!(ended.len(), 2);
        assert!(ended.contains(&EndedWait::Placed(Duration::from_secs(60))), "{ended:?}");
        let again = (Some(&stored[1].1), Some(&stored[1].1));
        assert_eq!(waits.changed(&id("b"), again, (now, now)), [], "it was placed before");
        waits.restart(std::iter::empty(), |_| now);
        assert!(waits.oldest().is_empty());
    }
}
