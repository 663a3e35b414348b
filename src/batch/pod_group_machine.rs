//! Phases of a PodGroup (`volcano.md` §2.5): a total pure function. Table:
//! `docs/reference/state-machines/pod_group.md`.

use rcfarm_api::pod_group::spec::MemberCounts;
use rcfarm_api::pod_group::status::PodGroupPhase;

/// Decision about a group before its members are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// No change: the phase follows from the members alone.
    Keep,
    /// It has a placement: its queue is charged, and its members may start once all are bound.
    Admit,
    /// Back to its queue: placement timed out, or the group is on hold.
    Requeue,
    /// Start a new round: place it again and ignore earlier members.
    Again,
}

impl Order {
    pub const ALL: [Order; 4] = [Order::Keep, Order::Admit, Order::Requeue, Order::Again];
}

/// Result of counting members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberState {
    /// Fewer than `minMember` have a node or have ended; none runs.
    TooFew,
    /// Fewer than `minMember` have a node or have ended; some run.
    TooFewRunning,
    /// Some run, others cannot be placed.
    PartiallyPlaced,
    /// At least `minMember` have a node or have ended; not all of these have ended.
    Enough,
    /// At least `minMember`, and all have ended.
    AllEnded,
}

impl MemberState {
    pub const ALL: [MemberState; 5] = [
        MemberState::TooFew,
        MemberState::TooFewRunning,
        MemberState::PartiallyPlaced,
        MemberState::Enough,
        MemberState::AllEnded,
    ];

    /// Classifies the counts. `partially_placed`: the last attempt to place the remaining members failed.
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

/// Next phase of a group, from the scheduler's decision and the count of its members.
///
/// `Completed` is left by [`Order::Again`] alone, `Pending` by [`Order::Admit`] alone. The phases of an admitted group
/// (`Inqueue`, `Running`, `Unknown`) follow from its members. [`Order::Requeue`] leads to `Pending`; so does, once it
/// has run, the loss of so many members that too few are left and none runs.
#[must_use]
pub fn next(phase: PodGroupPhase, order: Order, seen: MemberState) -> PodGroupPhase {
    match (order, phase) {
        // Final until its owner begins a new round.
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

/// Next phase of an admitted group. It becomes `Pending` when too few members are left and none runs.
fn by_members(phase: PodGroupPhase, seen: MemberState) -> PodGroupPhase {
    match (seen, phase) {
        (MemberState::PartiallyPlaced, _) => PodGroupPhase::Unknown,
        (MemberState::AllEnded, _) => PodGroupPhase::Completed,
        (MemberState::Enough, _) => PodGroupPhase::Running,
        // Its pods are being created.
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
             to, from `batch::pod_group_machine::next`.\n\n| phase | order |",
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
        // A leaving member without a node counts as pending.
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
