//! States of a queue (`volcano.md` §2.3): a total pure function. Table: `docs/reference/state-machines/queue.md`.
//!
//! In Volcano, commands change a queue's state. Here `spec.state` is the desired state, and the state follows from it
//! and from the admitted groups.

use rcfarm_api::queue::spec::Desired;
use rcfarm_api::queue::status::QueueState;

/// Desired state of a queue, ancestors included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    /// Its record and those above it say `Open`, so it accepts groups.
    Open,
    /// Closed by its own record.
    Closed,
    /// Closed by an ancestor.
    ClosedByParent,
    /// Unknown: its record cannot be decoded or is invalid.
    Unreadable,
}

impl Wanted {
    pub const ALL: [Wanted; 4] =
        [Wanted::Open, Wanted::Closed, Wanted::ClosedByParent, Wanted::Unreadable];

    /// Desired state from the record and its ancestors.
    #[must_use]
    pub fn of(own: Desired, closed_above: bool) -> Wanted {
        match (own, closed_above) {
            (Desired::Closed, _) => Wanted::Closed,
            (Desired::Open, true) => Wanted::ClosedByParent,
            (Desired::Open, false) => Wanted::Open,
        }
    }
}

/// State of a queue: a closed one is `Closing` while groups that it admitted have not ended (`admitted`).
///
/// `_before` changes nothing. It is an argument so that the generated table has a row per state, as Volcano's has.
#[must_use]
pub fn next(_before: Option<QueueState>, wanted: Wanted, admitted: bool) -> QueueState {
    match (wanted, admitted) {
        (Wanted::Unreadable, _) => QueueState::Unknown,
        (Wanted::Open, _) => QueueState::Open,
        (Wanted::Closed | Wanted::ClosedByParent, true) => QueueState::Closing,
        (Wanted::Closed | Wanted::ClosedByParent, false) => QueueState::Closed,
    }
}

/// Compares a rendered page with the file; `UPDATE_DOCS=1` overwrites the file.
#[cfg(test)]
pub(crate) fn golden(page: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, text, "{page}: UPDATE_DOCS=1 cargo test --lib machine");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::queue_machine::golden;

    /// Volcano's state (`volcano.md` §2.3): commands open and close a queue, and any group keeps it closing.
    fn volcano(before: Option<QueueState>, wanted: Wanted, groups: bool) -> QueueState {
        let close = if groups { QueueState::Closing } else { QueueState::Closed };
        match (before, wanted) {
            (_, Wanted::Open) => QueueState::Open,
            (Some(QueueState::Closed), Wanted::Closed | Wanted::ClosedByParent) => {
                QueueState::Closed
            }
            (_, Wanted::Closed | Wanted::ClosedByParent) => close,
            (_, Wanted::Unreadable) => QueueState::Unknown,
        }
    }

    #[test]
    fn the_whole_matrix_is_the_one_in_the_docs() {
        let mut text = String::from(
            "# The states of a queue\n\nEvery state × what is wanted × what is left, from `batch::queue_machine::next`. \
             `Wanted` is the record's `spec.state`, or a closed queue above it; *admitted*: groups that were admitted \
             and have not ended. The last column is Volcano 1.16's, where it differs: there a command, not the record, \
             says what is wanted.\n\n| state | wanted | admitted groups | next | Volcano |\n|---|---|---|---|---|\n",
        );
        let befores = [None].into_iter().chain(QueueState::ALL.map(Some));
        for before in befores {
            for wanted in Wanted::ALL {
                for admitted in [false, true] {
                    let (now, theirs) =
                        (next(before, wanted, admitted), volcano(before, wanted, admitted));
                    let before = before.map_or("(none)".to_owned(), |state| state.to_string());
                    let admitted = if admitted { "some" } else { "none" };
                    let theirs = if theirs == now { String::new() } else { theirs.to_string() };
                    text.push_str(&format!(
                        "| {before} | {wanted:?} | {admitted} | {now} | {theirs} |\n"
                    ));
                }
            }
        }
        golden("docs/reference/state-machines/queue.md", &text);
    }

    /// `volcano.md` §2.3 and Volcano's tests of four states × {open, close, sync}.
    #[test]
    fn queue_states_open_close_and_sync_as_in_the_reference() {
        for before in QueueState::ALL.map(Some) {
            assert_eq!(
                next(before, Wanted::Open, true),
                QueueState::Open,
                "{before:?} + OpenQueue"
            );
            assert_eq!(
                next(before, Wanted::Closed, false),
                QueueState::Closed,
                "{before:?} + CloseQueue, empty"
            );
            if before != Some(QueueState::Closed) {
                let busy = next(before, Wanted::Closed, true);
                assert_eq!(busy, QueueState::Closing, "{before:?} + CloseQueue");
            }
        }
    }

    /// e2e queue (2): closing a parent closes its children; opening it opens them.
    #[test]
    fn parent_queue_close_and_open_applies_to_children() {
        assert_eq!(Wanted::of(Desired::Open, true), Wanted::ClosedByParent);
        assert_eq!(next(Some(QueueState::Open), Wanted::ClosedByParent, true), QueueState::Closing);
        assert_eq!(Wanted::of(Desired::Open, false), Wanted::Open);
        assert_eq!(Wanted::of(Desired::Closed, false), Wanted::Closed, "its own wish stays");
    }
}
