//! The phases of a PodGroup (`volcano.md` §2.5), as a total pure function; `docs/reference/state-machines/pod_group.md` shows the whole of it.

use rcfarm_api::pod_group::spec::MemberCounts;
use rcfarm_api::pod_group::status::PodGroupPhase;

/// What the one who orders the queues decided about a group, before its members are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Nothing new.
    Keep,
    /// It may have its place.
    Admit,
    /// It goes back to its queue: no place in time, a hold, a queue that was changed.
    Requeue,
    /// It is placed anew in a new round; what its members were counts no more.
    Again,
}

impl Order {
    /// All of them.
    pub const ALL: [Order; 4] = [Order::Keep, Order::Admit, Order::Requeue, Order::Again];
}

/// What the members' counts amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberState {
    /// Fewer than `minMember` have a node or have ended, and none runs.
    TooFew,
    /// Fewer than `minMember`, but some run.
    TooFewRunning,
    /// Some run, and others find no place.
    PartiallyPlaced,
    /// At least `minMember` have a node or have ended, not all of them ended.
    Enough,
    /// At least `minMember`, and all have ended.
    AllEnded,
}

impl MemberState {
    /// All of them.
    pub const ALL: [MemberState; 5] = [
        MemberState::TooFew,
        MemberState::TooFewRunning,
        MemberState::PartiallyPlaced,
        MemberState::Enough,
        MemberState::AllEnded,
    ];

    /// The counts in a word. `partially_placed`: a member without a node was looked for a place, and there was none.
    #[must_use]
    pub fn of(members: &MemberCounts, min_member: u32, partially_placed: bool) -> MemberState {
        if members.running > 0 && partially_placed {
            return MemberState::PartiallyPlaced;
        }
        let ended = u64::from(members.succeeded) + u64::from(members.failed);
        let placed = [members.bound, members.running, members.releasing];
        let scheduled = ended + placed.iter().map(|n| u64::from(*n)).sum::<u64>();
        match scheduled >= u64::from(min_member) && scheduled > 0 {
            true if scheduled == ended => MemberState::AllEnded,
            true => MemberState::Enough,
            false if members.running > 0 => MemberState::TooFewRunning,
            false => MemberState::TooFew,
        }
    }
}

/// The next phase.
#[must_use]
pub fn next(phase: PodGroupPhase, order: Order, seen: MemberState) -> PodGroupPhase {
    match (order, phase) {
        // What has ended stays so until its owner begins a new round.
        (Order::Keep | Order::Admit | Order::Requeue, PodGroupPhase::Completed) => {
            PodGroupPhase::Completed
        }
        (Order::Again, PodGroupPhase::Pending | PodGroupPhase::Completed) => PodGroupPhase::Pending,
        (
            Order::Again,
            PodGroupPhase::Inqueue | PodGroupPhase::Running | PodGroupPhase::Unknown,
        ) => PodGroupPhase::Inqueue,
        (Order::Requeue, _) => PodGroupPhase::Pending,
        (Order::Admit, PodGroupPhase::Pending) => PodGroupPhase::Inqueue,
        (Order::Keep, PodGroupPhase::Pending) => PodGroupPhase::Pending,
        (Order::Keep | Order::Admit, phase) => by_members(phase, seen),
    }
}

/// What the members make of an admitted group.
fn by_members(phase: PodGroupPhase, seen: MemberState) -> PodGroupPhase {
    match (seen, phase) {
        (MemberState::PartiallyPlaced, _) => PodGroupPhase::Unknown,
        (MemberState::AllEnded, _) => PodGroupPhase::Completed,
        (MemberState::Enough, _) => PodGroupPhase::Running,
        // Its pods are being made.
        (MemberState::TooFew | MemberState::TooFewRunning, PodGroupPhase::Inqueue) => {
            PodGroupPhase::Inqueue
        }
        (MemberState::TooFewRunning, _) => PodGroupPhase::Running,
        (MemberState::TooFew, _) => PodGroupPhase::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::queue_machine::golden;

    #[test]
    fn the_whole_matrix_is_the_one_in_the_docs() {
        let mut text = String::from(
            "# The phases of a PodGroup\n\nEvery phase × what the scheduler decided × what the members' counts amount \
             to, from `pod_group::machine::next`.\n\n| phase | order |",
        );
        MemberState::ALL.iter().for_each(|seen| text.push_str(&format!(" {seen:?} |")));
        text.push_str(&format!("\n|---|---|{}\n", "---|".repeat(MemberState::ALL.len())));
        for phase in PodGroupPhase::ALL {
            for order in Order::ALL {
                text.push_str(&format!("| {phase} | {order:?} |"));
                for seen in MemberState::ALL {
                    text.push_str(&format!(" {} |", next(phase, order, seen)));
                }
                text.push('\n');
            }
        }
        golden("docs/reference/state-machines/pod_group.md", &text);
    }

    fn fact(
        min: u32,
        phase: PodGroupPhase,
        members: MemberCounts,
        partially_placed: bool,
    ) -> PodGroupPhase {
        next(phase, Order::Keep, MemberState::of(&members, min, partially_placed))
    }

    /// `volcano.md` §5.4: minMember; phase; tasks @ node.
    #[test]
    fn f_p1_a_member_being_removed_still_counts() {
        let members = MemberCounts { releasing: 1, ..MemberCounts::default() };
        assert_eq!(fact(1, PodGroupPhase::Running, members, false), PodGroupPhase::Running);
    }

    #[test]
    fn f_p2_one_running_one_being_removed() {
        let members = MemberCounts { running: 1, releasing: 1, ..MemberCounts::default() };
        assert_eq!(fact(2, PodGroupPhase::Running, members, false), PodGroupPhase::Running);
    }

    #[test]
    fn f_p3_all_being_removed() {
        let members = MemberCounts { releasing: 2, ..MemberCounts::default() };
        assert_eq!(fact(2, PodGroupPhase::Running, members, false), PodGroupPhase::Running);
    }

    #[test]
    fn f_p4_without_nodes_it_waits() {
        // A member that is being removed and had no node is counted as pending.
        let members = MemberCounts { pending: 2, ..MemberCounts::default() };
        assert_eq!(fact(2, PodGroupPhase::Pending, members, false), PodGroupPhase::Pending);
    }

    #[test]
    fn f_p5_all_succeeded() {
        let members = MemberCounts { succeeded: 2, ..MemberCounts::default() };
        assert_eq!(fact(2, PodGroupPhase::Running, members, false), PodGroupPhase::Completed);
    }

    #[test]
    fn f_p6_too_few_and_none_runs() {
        let members = MemberCounts { releasing: 1, ..MemberCounts::default() };
        assert_eq!(fact(2, PodGroupPhase::Running, members, false), PodGroupPhase::Pending);
    }

    #[test]
    fn f_p7_some_run_and_others_find_no_place() {
        let members = MemberCounts { running: 1, pending: 1, ..MemberCounts::default() };
        assert_eq!(fact(2, PodGroupPhase::Running, members, true), PodGroupPhase::Unknown);
    }

    /// e2e queue_job_status: Inqueue→Running, Running→Pending after the pods are gone, Running→Unknown.
    #[test]
    fn gang_starts_at_min_available_and_waits_when_all_end() {
        let running = MemberCounts { running: 3, ..MemberCounts::default() };
        assert_eq!(
            fact(3, PodGroupPhase::Inqueue, MemberCounts::default(), false),
            PodGroupPhase::Inqueue
        );
        assert_eq!(fact(3, PodGroupPhase::Inqueue, running, false), PodGroupPhase::Running);
        assert_eq!(
            fact(3, PodGroupPhase::Running, MemberCounts::default(), false),
            PodGroupPhase::Pending
        );
    }

    #[test]
    fn what_runs_keeps_its_place_and_what_has_ended_stays_so() {
        let few = MemberCounts { running: 1, ..MemberCounts::default() };
        assert_eq!(fact(3, PodGroupPhase::Running, few, false), PodGroupPhase::Running);
        for order in [Order::Keep, Order::Admit, Order::Requeue] {
            for seen in MemberState::ALL {
                assert_eq!(next(PodGroupPhase::Completed, order, seen), PodGroupPhase::Completed);
            }
        }
        assert_eq!(
            next(PodGroupPhase::Completed, Order::Again, MemberState::TooFew),
            PodGroupPhase::Pending
        );
        assert_eq!(
            next(PodGroupPhase::Running, Order::Again, MemberState::Enough),
            PodGroupPhase::Inqueue,
            "still admitted"
        );
    }
}
