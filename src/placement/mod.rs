//! The `Scheduler` trait with p2's three verbs, and its implementations: the built-in one, by label selector and
//! capacity, and one over HTTP. Gangs are placed by whoever owns their scheduler record ([`capacity::place()`]).
//!
//! A scheduler says *where* pods may run. It does not write: the controller does, under its fence, and promises in the
//! same transaction what the pods ask for ([`capacity`]), whoever chose the nodes.
//! Keys read: `labels/node/`, `rcfarm/nodes/`, `rcfarm/allocations/`. Keys written: none.

pub mod capacity;
mod discovery;
mod remote;
mod selector;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

pub use discovery::{CatalogDiscovery, Discovery, NoDiscovery};
pub use remote::RemoteScheduler;
pub use selector::{NodeLabels, SelectorScheduler};

use rcfarm_api::ids::{NodeName, RcId};
use rcfarm_api::labels::Selector;
use rcfarm_api::manifest::Manifest;
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_api::scheduler::Packing;

/// For whom nodes are asked.
#[derive(Debug, Clone, Copy)]
pub struct ScheduleRequest<'a> {
    /// The controller.
    pub rc: RcId,
    /// What shall run.
    pub manifest: &'a Manifest,
    /// Where it may run.
    pub selector: &'a Selector,
    /// Which of several nodes with room is taken first.
    pub packing: Packing,
}

impl<'a> ScheduleRequest<'a> {
    /// Request of a replication controller.
    #[must_use]
    pub fn of(spec: &'a RcSpec) -> Self {
        ScheduleRequest {
            rc: spec.id,
            manifest: &spec.manifest,
            selector: &spec.node_selector,
            packing: spec.packing,
        }
    }
}

/// Nodes in name order. Shared, because thousands of controllers often use one selector.
pub type Nodes = Arc<BTreeSet<NodeName>>;

/// Why a scheduler gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// It could not be asked, or did not answer; asking again may help.
    #[error("the scheduler cannot be reached: {0}")]
    Unreachable(String),
    /// It answered something that cannot be used.
    #[error("the scheduler's answer cannot be used: {0}")]
    BadAnswer(String),
    /// It has not enough nodes.
    #[error("the scheduler has no more nodes: {0}")]
    Exhausted(String),
}

/// Chooses nodes.
///
/// An implementation may be slow, may fail, and may answer nonsense: callers bound the time, and check what
/// they get. `token` names one attempt of one caller: a repeated call with the same token gives the same nodes
/// (`allocate_nodes`) or does nothing more (`deallocate_nodes`), so that a call whose answer was lost can be
/// repeated by whoever owns the controller then.
#[async_trait]
pub trait Scheduler: Send + Sync + 'static {
    /// Nodes that may run a pod of the controller, those that do already included.
    async fn eligible_nodes(&self, request: ScheduleRequest<'_>) -> Result<Nodes, ScheduleError>;

    /// Reserves `count` more nodes, none of them in `current`, and gives their names; they are then eligible.
    /// With `force`, limits of taste (spread, soft quotas) may be passed over.
    async fn allocate_nodes(
        &self,
        request: ScheduleRequest<'_>,
        current: &BTreeSet<NodeName>,
        count: usize,
        force: bool,
        token: Uuid,
    ) -> Result<Vec<NodeName>, ScheduleError>;

    /// Gives reserved nodes back.
    async fn deallocate_nodes(
        &self,
        request: ScheduleRequest<'_>,
        nodes: &[NodeName],
        token: Uuid,
    ) -> Result<(), ScheduleError>;

    /// Whether [`Scheduler::allocate_nodes`] gives none but nodes that [`Scheduler::eligible_nodes`] names already.
    fn gives_only_eligible(&self) -> bool {
        false
    }

    /// Where it is asked, if that is elsewhere: commands ask it themselves when they explain.
    fn address(&self) -> Option<String> {
        None
    }
}
