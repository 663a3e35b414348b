//! States of devices and of groups, with every legal change: tables of the reference, `hived.md` §2.2 and §2.3.
//!
//! The state of a device follows from who uses it and who reserves it, that of a group from its devices. The tables say
//! which changes may occur.

use serde::{Deserialize, Serialize};

/// State of a physical device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CellState {
    /// Nobody has it.
    Free,
    /// A group uses it.
    Used,
    /// A group uses it, and another reserves it.
    Reserving,
    /// A group reserves it, and nobody uses it.
    Reserved,
}

impl CellState {
    /// The state of a device that is used, that is reserved.
    pub fn of(used: bool, reserved: bool) -> CellState {
        match (used, reserved) {
            (false, false) => CellState::Free,
            (true, false) => CellState::Used,
            (true, true) => CellState::Reserving,
            (false, true) => CellState::Reserved,
        }
    }

    /// The name as in the reference's JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            CellState::Free => "Free",
            CellState::Used => "Used",
            CellState::Reserving => "Reserving",
            CellState::Reserved => "Reserved",
        }
    }

    /// The state after an event; none if it cannot occur.
    pub fn after(self, event: CellChange) -> Option<CellState> {
        use CellChange::{Allocate, Cancel, Occupy, Release, Reserve, TakeOver};
        use CellState::{Free, Reserved, Reserving, Used};
        match (self, event) {
            (Free, Allocate) | (Reserved, Occupy | TakeOver) => Some(Used),
            (Used, Release) | (Reserved, Cancel) => Some(Free),
            (Used | Reserving, Reserve) => Some(Reserving),
            (Free | Reserved, Reserve) | (Reserving, Release) => Some(Reserved),
            (Reserving, Cancel) => Some(Used),
            _ => None,
        }
    }
}

/// What happens to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CellChange {
    /// A group is placed on it.
    Allocate,
    /// The group that uses it has ended.
    Release,
    /// A group reserves it; an earlier reservation ends.
    Reserve,
    /// The reservation ends without use.
    Cancel,
    /// The group that reserves it begins to use it.
    Occupy,
    /// A group of higher priority is placed on it; the reservation ends.
    TakeOver,
}

/// What happens to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AffinityGroupChange {
    /// It is placed, and nobody has to go.
    Place,
    /// It is placed, and others have to go first.
    Preempt,
    /// Its victims have gone.
    Occupy,
    /// Its reservation ends: a group of higher priority overlaps, its nodes cannot be used, or its pods are gone.
    Cancel,
    /// Another group reserves one of its devices.
    Reserved,
    /// The reservation of its devices has ended.
    Unreserved,
    /// Its last pod has ended.
    End,
}

/// State of a group; pending and deleted groups are not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AffinityGroupStage {
    /// It waits, or does not exist.
    Pending,
    /// It waits for its victims.
    Preempting,
    /// It uses its cells.
    Allocated,
    /// It uses its cells, and another group reserves at least one of them.
    BeingPreempted,
}

impl AffinityGroupStage {
    /// The state after an event; none if it cannot occur.
    pub fn after(self, event: AffinityGroupChange) -> Option<AffinityGroupStage> {
        use AffinityGroupChange::{Cancel, End, Occupy, Place, Preempt, Reserved, Unreserved};
        use AffinityGroupStage::{Allocated, BeingPreempted, Pending, Preempting};
        match (self, event) {
            (Pending, Place) | (Preempting, Occupy) | (BeingPreempted, Unreserved) => {
                Some(Allocated)
            }
            (Pending, Preempt) => Some(Preempting),
            (Preempting, Cancel) | (Allocated | BeingPreempted, End) => Some(Pending),
            (Allocated | BeingPreempted, Reserved) => Some(BeingPreempted),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_table_of_cells() {
        use CellChange::{Allocate, Cancel, Occupy, Release, Reserve, TakeOver};
        use CellState::{Free, Reserved, Reserving, Used};
        let mut table = String::new();
        for state in [Free, Used, Reserving, Reserved] {
            for event in [Allocate, Release, Reserve, Cancel, Occupy, TakeOver] {
                if let Some(next) = state.after(event) {
                    table += &format!("{state:?} {event:?} -> {next:?}\n");
                }
            }
        }
        let golden = "\
Free Allocate -> Used
Free Reserve -> Reserved
Used Release -> Free
Used Reserve -> Reserving
Reserving Release -> Reserved
Reserving Reserve -> Reserving
Reserving Cancel -> Used
Reserved Reserve -> Reserved
Reserved Cancel -> Free
Reserved Occupy -> Used
Reserved TakeOver -> Used
";
        assert_eq!(table, golden);
    }

    #[test]
    fn golden_table_of_groups() {
        use AffinityGroupChange::{Cancel, End, Occupy, Place, Preempt, Reserved, Unreserved};
        use AffinityGroupStage::{Allocated, BeingPreempted, Pending, Preempting};
        let mut table = String::new();
        for state in [Pending, Preempting, Allocated, BeingPreempted] {
            for event in [Place, Preempt, Occupy, Cancel, Reserved, Unreserved, End] {
                if let Some(next) = state.after(event) {
                    table += &format!("{state:?} {event:?} -> {next:?}\n");
                }
            }
        }
        let golden = "\
Pending Place -> Allocated
Pending Preempt -> Preempting
Preempting Occupy -> Allocated
Preempting Cancel -> Pending
Allocated Reserved -> BeingPreempted
Allocated End -> Pending
BeingPreempted Reserved -> BeingPreempted
BeingPreempted Unreserved -> Allocated
BeingPreempted End -> Pending
";
        assert_eq!(table, golden);
    }
}
