//! The phases of a PodGroup (`volcano.md` §2.5), as a total pure function; `docs/reference/state-machines/pod_group.md` shows the whole of it.

use super::spec::Members;
use super::status::Phase;

/// What the one who orders the queues decided about a group, before its members are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Nothing new.
    Keep,
    /// It may have its place.
    Admit,
    /// It goes back to its queue: no place in time, a hold, a queue that was changed.
    SendBack,
    /// It is placed anew in a new round; what its members were counts no more.
    Again,
}

impl Order {
    /// All of them.
    pub const ALL: [Order; 4] = [Order::Keep, Order::Admit, Order::SendBack, Order::Again];
}

/// What the members' counts amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// Fewer than `minMember` have a node or have ended, and none runs.
    TooFew,
    /// Fewer than `minMember`, but some run.
    TooFewRunning,
    /// Some run, and others find no place.
    Stranded,
    /// At least `minMember` have a node or have ended, not all of them ended.
    Enough,
    /// At least `minMember`, and all have ended.
    AllEnded,
}

impl Seen {
    /// All of them.
    pub const ALL: [Seen; 5] =
        [Seen::TooFew, Seen::TooFewRunning, Seen::Stranded, Seen::Enough, Seen::AllEnded];

    /// The counts in a word. `stranded`: a member without a node was looked for a place, and there was none.
    #[must_use]
    pub fn of(members: &Members, min_member: u32, stranded: bool) -> Seen {
        if members.running > 0 && stranded {
            return Seen::Stranded;
        }
        let ended = u64::from(members.succeeded) + u64::from(members.failed);
        let placed = [members.bound, members.running, members.releasing];
        let scheduled = ended + placed.iter().map(|n| u64::from(*n)).sum::<u64>();
        match scheduled >= u64::from(min_member) && scheduled > 0 {
            true if scheduled == ended => Seen::AllEnded,
            true => Seen::Enough,
            false if members.running > 0 => Seen::TooFewRunning,
            false => Seen::TooFew,
        }
    }
}

/// The next phase.
#[must_use]
pub fn next(phase: Phase, order: Order, seen: Seen) -> Phase {
    match (order, phase) {
        // What has ended stays so until its owner begins a new round.
        (Order::Keep | Order::Admit | Order::SendBack, Phase::Completed) => Phase::Completed,
        (Order::Again, Phase::Pending | Phase::Completed) => Phase::Pending,
        (Order::Again, Phase::Inqueue | Phase::Running | Phase::Unknown) => Phase::Inqueue,
        (Order::SendBack, _) => Phase::Pending,
        (Order::Admit, Phase::Pending) => Phase::Inqueue,
        (Order::Keep, Phase::Pending) => Phase::Pending,
        (Order::Keep | Order::Admit, phase) => by_members(phase, seen),
    }
}

/// What the members make of an admitted group.
fn by_members(phase: Phase, seen: Seen) -> Phase {
    match (seen, phase) {
        (Seen::Stranded, _) => Phase::Unknown,
        (Seen::AllEnded, _) => Phase::Completed,
        (Seen::Enough, _) => Phase::Running,
        // Its pods are being made.
        (Seen::TooFew | Seen::TooFewRunning, Phase::Inqueue) => Phase::Inqueue,
        (Seen::TooFewRunning, _) => Phase::Running,
        (Seen::TooFew, _) => Phase::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::machine::golden;

    #[test]
    fn the_whole_matrix_is_the_one_in_the_docs() {
        let mut text = String::from(
            "# The phases of a PodGroup\n\nEvery phase × what the scheduler decided × what the members' counts amount \
             to, from `pod_group::machine::next`.\n\n| phase | order |",
        );
        Seen::ALL.iter().for_each(|seen| text.push_str(&format!(" {seen:?} |")));
        text.push_str(&format!("\n|---|---|{}\n", "---|".repeat(Seen::ALL.len())));
        for phase in Phase::ALL {
            for order in Order::ALL {
                text.push_str(&format!("| {phase} | {order:?} |"));
                for seen in Seen::ALL {
                    text.push_str(&format!(" {} |", next(phase, order, seen)));
                }
                text.push('\n');
            }
        }
        golden("docs/reference/state-machines/pod_group.md", &text);
    }

    fn fact(min: u32, phase: Phase, members: Members, stranded: bool) -> Phase {
        next(phase, Order::Keep, Seen::of(&members, min, stranded))
    }

    /// `volcano.md` §5.4: minMember; phase; tasks @ node.
    #[test]
    fn f_p1_a_member_being_removed_still_counts() {
        let members = Members { releasing: 1, ..Members::default() };
        assert_eq!(fact(1, Phase::Running, members, false), Phase::Running);
    }

    #[test]
    fn f_p2_one_running_one_being_removed() {
        let members = Members { running: 1, releasing: 1, ..Members::default() };
        assert_eq!(fact(2, Phase::Running, members, false), Phase::Running);
    }

    #[test]
    fn f_p3_all_being_removed() {
        let members = Members { releasing: 2, ..Members::default() };
        assert_eq!(fact(2, Phase::Running, members, false), Phase::Running);
    }

    #[test]
    fn f_p4_without_nodes_it_waits() {
        // A member that is being removed and had no node is counted as pending.
        let members = Members { pending: 2, ..Members::default() };
        assert_eq!(fact(2, Phase::Pending, members, false), Phase::Pending);
    }

    #[test]
    fn f_p5_all_succeeded() {
        let members = Members { succeeded: 2, ..Members::default() };
        assert_eq!(fact(2, Phase::Running, members, false), Phase::Completed);
    }

    #[test]
    fn f_p6_too_few_and_none_runs() {
        let members = Members { releasing: 1, ..Members::default() };
        assert_eq!(fact(2, Phase::Running, members, false), Phase::Pending);
    }

    #[test]
    fn f_p7_some_run_and_others_find_no_place() {
        let members = Members { running: 1, pending: 1, ..Members::default() };
        assert_eq!(fact(2, Phase::Running, members, true), Phase::Unknown);
    }

    /// e2e queue_job_status: Inqueue→Running, Running→Pending after the pods are gone, Running→Unknown.
    #[test]
    fn a_gang_starts_when_enough_have_started_and_waits_again_when_all_are_gone() {
        let running = Members { running: 3, ..Members::default() };
        assert_eq!(fact(3, Phase::Inqueue, Members::default(), false), Phase::Inqueue);
        assert_eq!(fact(3, Phase::Inqueue, running, false), Phase::Running);
        assert_eq!(fact(3, Phase::Running, Members::default(), false), Phase::Pending);
    }

    #[test]
    fn what_runs_keeps_its_place_and_what_has_ended_stays_so() {
        let few = Members { running: 1, ..Members::default() };
        assert_eq!(fact(3, Phase::Running, few, false), Phase::Running);
        for order in [Order::Keep, Order::Admit, Order::SendBack] {
            for seen in Seen::ALL {
                assert_eq!(next(Phase::Completed, order, seen), Phase::Completed);
            }
        }
        assert_eq!(next(Phase::Completed, Order::Again, Seen::TooFew), Phase::Pending);
        assert_eq!(
            next(Phase::Running, Order::Again, Seen::Enough),
            Phase::Inqueue,
            "still admitted"
        );
    }
}
