//! States of devices, groups and pods, with every legal change: tables of the reference, `hived.md` §2.2 and §2.3.
//!
//! The state of a device follows from who uses it and who reserves it, that of a group from its devices, that of a pod from
//! its group's record. The tables say which changes may occur: `docs/reference/state-machines/cells.md`.

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
    /// All of them.
    pub const ALL: [CellState; 4] =
        [CellState::Free, CellState::Used, CellState::Reserving, CellState::Reserved];

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

impl CellChange {
    /// All of them.
    pub const ALL: [CellChange; 6] = [
        CellChange::Allocate,
        CellChange::Release,
        CellChange::Reserve,
        CellChange::Cancel,
        CellChange::Occupy,
        CellChange::TakeOver,
    ];
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

impl AffinityGroupChange {
    /// All of them.
    pub const ALL: [AffinityGroupChange; 7] = [
        AffinityGroupChange::Place,
        AffinityGroupChange::Preempt,
        AffinityGroupChange::Occupy,
        AffinityGroupChange::Cancel,
        AffinityGroupChange::Reserved,
        AffinityGroupChange::Unreserved,
        AffinityGroupChange::End,
    ];
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
    /// All of them.
    pub const ALL: [AffinityGroupStage; 4] = [
        AffinityGroupStage::Pending,
        AffinityGroupStage::Preempting,
        AffinityGroupStage::Allocated,
        AffinityGroupStage::BeingPreempted,
    ];

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

/// State of a pod. The place of a bound pod never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CellPodStage {
    /// It does not exist, or has ended.
    Unknown,
    /// It has no place.
    Waiting,
    /// Its group has reserved a place for it.
    Preempting,
    /// Its place is decided, and not allocated on all nodes of its group: the placement is `Reserving`.
    Binding,
    /// Its place is allocated: the placement is `Bound`.
    Bound,
}

/// What happens to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CellPodChange {
    /// It is asked for.
    Ask,
    /// Its group reserves cells.
    Reserve,
    /// Its group's reservation ends; also when another pod of the group has begun to use it.
    Cancel,
    /// Its place is decided.
    Place,
    /// Its place is allocated.
    Confirm,
    /// Its place cannot be allocated.
    Undo,
    /// Its group gives its place up: it is evicted, or placed anew.
    Evict,
    /// It has ended, or is not asked for any more.
    End,
}

impl CellPodChange {
    /// All of them.
    pub const ALL: [CellPodChange; 8] = [
        CellPodChange::Ask,
        CellPodChange::Reserve,
        CellPodChange::Cancel,
        CellPodChange::Place,
        CellPodChange::Confirm,
        CellPodChange::Undo,
        CellPodChange::Evict,
        CellPodChange::End,
    ];
}

impl CellPodStage {
    /// All of them.
    pub const ALL: [CellPodStage; 5] = [
        CellPodStage::Unknown,
        CellPodStage::Waiting,
        CellPodStage::Preempting,
        CellPodStage::Binding,
        CellPodStage::Bound,
    ];

    /// The state after an event; none if it cannot occur.
    pub fn after(self, event: CellPodChange) -> Option<CellPodStage> {
        use CellPodChange::{Ask, Cancel, Confirm, End, Evict, Place, Reserve, Undo};
        use CellPodStage::{Binding, Bound, Preempting, Unknown, Waiting};
        match (self, event) {
            (Unknown, Ask) | (Preempting, Cancel) | (Binding, Undo) | (Bound, Evict) => {
                Some(Waiting)
            }
            (Waiting, Reserve) => Some(Preempting),
            (Waiting | Preempting, Place) => Some(Binding),
            (Binding, Confirm) => Some(Bound),
            (Waiting | Preempting | Binding | Bound, End) => Some(Unknown),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    /// A table of states and events.
    fn table<S: Copy + Debug, E: Copy + Debug>(
        title: &str,
        states: &[S],
        events: &[E],
        after: fn(S, E) -> Option<S>,
    ) -> String {
        let mut text = format!("\n## {title}\n\n| state |");
        events.iter().for_each(|event| text.push_str(&format!(" {event:?} |")));
        text.push_str(&format!("\n|---|{}\n", "---|".repeat(events.len())));
        for &state in states {
            text.push_str(&format!("| {state:?} |"));
            for &event in events {
                let next = after(state, event).map(|next| format!("{next:?} "));
                text.push_str(&format!(" {}|", next.unwrap_or_default()));
            }
            text.push('\n');
        }
        text
    }

    #[test]
    fn tables_of_the_machine_are_those_in_the_docs() {
        let mut text = String::from(
            "# States of devices, groups and pods of cells\n\nEvery state × every event, from `after` in \
             `crates/cells/src/machine.rs`. An empty field: the event cannot\noccur. The random histories of \
             `crates/cells/tests/it/histories.rs` take no other step.\n",
        );
        let leaf = |state: CellState, event| state.after(event);
        text += &table("A device", &CellState::ALL, &CellChange::ALL, leaf);
        let group = |state: AffinityGroupStage, event| state.after(event);
        text +=
            &table("An affinity group", &AffinityGroupStage::ALL, &AffinityGroupChange::ALL, group);
        let pod = |state: CellPodStage, event| state.after(event);
        text += &table("A pod", &CellPodStage::ALL, &CellPodChange::ALL, pod);
        let page = "../../docs/reference/state-machines/cells.md";
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(written, text, "{page}: UPDATE_DOCS=1 cargo test -p rcfarm-cells machine");
    }

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
