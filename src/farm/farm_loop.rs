//! State of the farm loop. [`super::session_loop`], [`super::ownership`] and [`super::presence`] act on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::claims::{Claims, ReleaseOutcome, Round};
use super::context::FarmContext;
use super::doorbells::{Answering, Rung};
use super::kind_state::{KindState, LockRelease};
use super::record_task::TaskExit;
use super::records::{Doorbells, FarmPresence, Peers};
use super::subscriptions::WatchedCache;
use super::wake_queue::WakeQueue;
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{FarmName, RecordId};
use rcfarm_store::cache::Cache;
use rcfarm_store::{Epoch, Index};

/// Result of a request that ran beside the loop. Numbers are positions in [`FarmLoop::states`].
pub(super) enum Done {
    Claimed(usize, Round),
    /// Locks were released or handed over.
    Parted(usize, ReleaseOutcome),
    /// The locks and labels of a kind were read again.
    Read(usize),
    /// Missing seed records were created, as far as possible.
    Seeded,
    /// The presence as written; `None`: the write failed.
    Announced(Option<FarmPresence>),
    /// Doorbells were deleted, except these.
    Quiet(Vec<Rung>),
    /// Whether the record of a doorbell exists; `None`: it cannot be read.
    Asked(Rung, Option<bool>),
}

/// State that survives a lost Consul session.
pub(super) struct FarmLoop<'f> {
    pub(super) farm: &'f FarmContext,
    pub(super) wake_queue: Arc<WakeQueue>,
    pub(super) peers: Arc<Cache<Peers>>,
    pub(super) doorbells: Arc<Cache<Doorbells>>,
    pub(super) states: Vec<KindState>,
    /// All caches that are watched, for the mass deletion guard.
    pub(super) caches: Vec<Arc<dyn WatchedCache>>,
    /// When the farm started. Claim plans count time from it.
    pub(super) started_at: Instant,
    /// Since when each farm has been seen (time since `started_at`), and the CreateIndex of its presence. A new CreateIndex is a new session.
    pub(super) peers_since: BTreeMap<FarmName, (Duration, Index)>,
}

/// State of one Consul session.
pub(super) struct SessionState {
    pub(super) epoch: Epoch,
    pub(super) claims: Claims,
    pub(super) tasks: JoinSet<(usize, RecordId, TaskExit)>,
    pub(super) beside: FuturesUnordered<BoxFuture<'static, Done>>,
    pub(super) parted: Vec<(usize, RecordId, LockRelease)>,
    pub(super) since: Timestamp,
    /// Why the session has no check although the settings want one.
    pub(super) check_problem: Option<String>,
    pub(super) announced: Announced,
    pub(super) answering: Answering,
    /// When missing seed records may be created again.
    pub(super) seeds_again_at: Option<Instant>,
}

/// The farm's presence as last written.
#[derive(Default)]
pub(super) struct Announced {
    /// The presence, set already while it is being written; `None`: unknown.
    pub(super) said: Option<FarmPresence>,
    /// When it was last written or tried; `None`: the farm has no name yet.
    pub(super) at: Option<Instant>,
}
