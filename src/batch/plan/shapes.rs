//! Shapes of waiting groups. Those of one queue that ask for the same have one shape: whether it surely does not fit is
//! found once in a pass, and again after each change that the pass makes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Asked;
use crate::placement::capacity::IndexVersion;
use rcfarm_api::Index;
use rcfarm_api::ids::QueueName;
use rcfarm_api::pod_group::spec::{GroupId, TaskSpec};
use rcfarm_api::pod_group::status::PodGroupReason;

/// Order of admission: priority of the queue, admitted groups first, priority of the group, waiting time, name.
pub(super) type Rank = (Reverse<i64>, Reverse<bool>, Reverse<i64>, Index, GroupId);

/// A group that waits for a placement, by its rank.
#[derive(Debug)]
pub(super) struct WaitingGroup {
    /// `None`: it is examined in each pass.
    pub(super) shape: Option<usize>,
    /// Reason in its status, if that names its queue.
    pub(super) said: Option<PodGroupReason>,
}

/// What the groups of a shape ask for.
#[derive(Debug)]
pub(super) struct ShapeRequest {
    pub(super) queue: QueueName,
    pub(super) asked: Asked,
}

#[derive(Debug)]
pub(super) struct Shape {
    pub(super) request: Arc<ShapeRequest>,
    /// Number of the state of a pass that `answer` is of.
    pub(super) state: u64,
    pub(super) answer: ShapeAnswer,
    /// Version of the nodes and pass in which it was found to have no room, and why.
    pub(super) no_room: Option<(IndexVersion, u64, PodGroupReason)>,
    /// Version of the emptied nodes, and whether it fits on them.
    pub(super) fits_empty: Option<(IndexVersion, bool)>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ShapeAnswer {
    /// Why groups of the shape wait; `None`: they are examined one by one.
    pub(super) reason: Option<PodGroupReason>,
    /// Whether the queue's list of waiting groups is complete.
    pub(super) is_listed: bool,
}

/// Shapes of waiting groups.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    pub(super) all: Vec<Shape>,
    /// By queue, tasks and, if there are several tasks, the group: its name decides among equal nodes.
    pub(super) places: BTreeMap<(QueueName, Vec<TaskSpec>, Option<GroupId>), usize>,
    /// Changes with each pass and with each change in a pass that may change an answer.
    pub(super) state: u64,
}

impl Shapes {
    pub(super) fn begin(&mut self) {
        self.state += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Number of the shape of a group that asks a queue for this.
    pub(super) fn place(&mut self, id: &GroupId, queue: &QueueName, asked: Asked) -> usize {
        let name = (asked.gang.tasks.len() > 1).then(|| id.clone());
        let key = (queue.clone(), asked.gang.tasks.clone(), name);
        *self.places.entry(key).or_insert_with(|| {
            let request = Arc::new(ShapeRequest { queue: queue.clone(), asked });
            let (answer, no_room, fits_empty) = (ShapeAnswer::default(), None, None);
            self.all.push(Shape { request, state: 0, answer, no_room, fits_empty });
            self.all.len() - 1
        })
    }
}
