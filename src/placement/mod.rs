//! The `Scheduler` trait with p2's three verbs and one for gangs, and its implementations: the built-in one (label selector
//! and capacity) and one over HTTP. The owner of a scheduler record places gangs: where a scheduler over HTTP says, or by
//! room ([`capacity::place()`]).
//!
//! A scheduler chooses nodes and writes nothing. The controller writes under its fence, and allocates what the pods ask for
//! in the same transaction ([`capacity`]), whichever scheduler chose.
//!
//! Keys read: `labels/node/`, `rcfarm/nodes/`, `rcfarm/allocations/`, from the caches of [`crate::cluster`]. Keys written:
//! none. Who writes them: node agents, users and farms. A crash leaves nothing.

pub mod capacity;
pub mod cells;
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

use capacity::{Gang, GangPlacement};
use rcfarm_api::ids::{NodeName, ObjectName, QueueName, RcId};
use rcfarm_api::labels::Selector;
use rcfarm_api::manifest::Manifest;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_api::scheduler::Packing;

/// What a scheduler is asked to place.
#[derive(Debug, Clone, Copy)]
pub struct ScheduleRequest<'a> {
    /// The controller.
    pub rc: RcId,
    /// The manifest to run.
    pub manifest: &'a Manifest,
    /// Selector of nodes.
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

/// Nodes that a scheduler is asked to reserve.
#[derive(Debug, Clone, Copy)]
pub struct WantedNodes<'a> {
    /// What is to run there.
    pub request: ScheduleRequest<'a>,
    /// Nodes that must not be returned.
    pub current: &'a BTreeSet<NodeName>,
    /// Number of nodes to return; they are distinct.
    pub count: usize,
    /// Soft limits such as spread or quotas may be exceeded.
    pub force: bool,
    /// Identifies the attempt.
    pub token: Uuid,
}

/// A gang that a scheduler is asked to place.
#[derive(Debug, Clone, Copy)]
pub struct GangRequest<'a> {
    /// The scheduler record under which it is placed.
    pub scheduler: &'a ObjectName,
    /// Its queue.
    pub queue: &'a QueueName,
    /// Its PodGroup, which has the name of its job.
    pub id: &'a GroupId,
    /// Its pods that need nodes now.
    pub gang: &'a Gang,
}

/// Nodes in name order. Shared, because thousands of controllers often use one selector.
pub type EligibleNodes = Arc<BTreeSet<NodeName>>;

/// Why a scheduler returned no nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Not reachable, or no answer in time; retryable.
    #[error("the scheduler cannot be reached: {0}")]
    Unreachable(String),
    /// The answer is not valid.
    #[error("the scheduler's answer cannot be used: {0}")]
    BadAnswer(String),
    /// Not enough nodes.
    #[error("the scheduler has no more nodes: {0}")]
    Exhausted(String),
}

/// Chooses nodes.
///
/// An implementation may be slow, fail, or return invalid answers: callers limit the time and check the result. `token`
/// identifies one attempt of one caller. A repeated call with the same token returns the same nodes (`allocate_nodes`)
/// or does nothing more (`deallocate_nodes`), so that a call whose answer was lost can be repeated by the controller's
/// next owner.
#[async_trait]
pub trait Scheduler: Send + Sync + 'static {
    /// Nodes that may run a pod of the controller, including those that run one.
    async fn eligible_nodes(
        &self,
        request: ScheduleRequest<'_>,
    ) -> Result<EligibleNodes, ScheduleError>;

    /// Reserves nodes; they are eligible from then on.
    async fn allocate_nodes(&self, wanted: WantedNodes<'_>)
    -> Result<Vec<NodeName>, ScheduleError>;

    /// Releases reserved nodes. By default none was reserved.
    async fn deallocate_nodes(
        &self,
        _request: ScheduleRequest<'_>,
        _nodes: &[NodeName],
        _token: Uuid,
    ) -> Result<(), ScheduleError> {
        Ok(())
    }

    /// Nodes for a gang, for all of its pods; `None`: this scheduler places no gangs, and the caller does by room. It
    /// reserves nothing: the caller checks the nodes, allocates, and may ask again. [`ScheduleError::Exhausted`]: the
    /// gang has no place now.
    async fn place(&self, _gang: GangRequest<'_>) -> Result<Option<GangPlacement>, ScheduleError> {
        Ok(None)
    }

    /// Whether [`Scheduler::place`] is worth a call.
    fn places_gangs(&self) -> bool {
        false
    }

    /// Whether [`Scheduler::allocate_nodes`] returns only nodes of [`Scheduler::eligible_nodes`].
    fn gives_only_eligible(&self) -> bool {
        false
    }

    /// Whether the eligible nodes are those whose labels match the request's selector.
    fn goes_by_labels(&self) -> bool {
        false
    }

    /// Address of a remote scheduler, at which commands ask it themselves.
    fn address(&self) -> Option<String> {
        None
    }
}
