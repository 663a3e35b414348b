//! Controllers that a farm of another program owns, such as p2's. Such farms write no status, so pods are counted.
//!
//! Keys read: ownership locks, presences of farms, labels of pods, health of their pods.

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::context::CommandContext;
use crate::cli::farm;
use crate::cluster::pods::PodLabels;
use rcfarm_api::ids::{PodRef, RcId, SessionId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::node::Health;
use rcfarm_store::StoreError;
use rcfarm_store::cache::read_once;

/// Owner of a controller whose lock is held by no farm of ours.
pub(in crate::cli) const OTHER_FARM: &str = "(p2?)";

/// Controllers whose ownership lock is held by another session than those of our live farms.
pub(in crate::cli) async fn owned_elsewhere(
    context: &CommandContext,
) -> Result<BTreeSet<RcId>, StoreError> {
    let ours: BTreeSet<SessionId> =
        farm::live(context).await?.into_iter().map(|farm| farm.presence.session).collect();
    let locks = context.list(&key::rc_locks()).await?;
    let held =
        locks.iter().filter(|entry| entry.session.as_ref().is_some_and(|s| !ours.contains(s)));
    Ok(held.filter_map(|entry| key::rc_locks().tail(&entry.key)?.parse().ok()).collect())
}

/// Numbers of pods of a controller whose owner writes no status.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cli) struct CountedPods {
    /// Pods with the controller's label.
    pub(in crate::cli) current: u32,
    /// Those that pass their check.
    pub(in crate::cli) healthy: u32,
}

/// Counts the pods of these controllers.
pub(in crate::cli) async fn count_pods(
    context: &CommandContext,
    ids: &BTreeSet<RcId>,
) -> Result<BTreeMap<RcId, CountedPods>, StoreError> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let pods: PodLabels = read_once(context.store.as_ref(), &key::labels(LabelKind::Pod)).await?;
    let own = |id: &RcId| pods.of_rc(*id).map(|(place, _)| place.clone()).collect::<Vec<PodRef>>();
    let places: BTreeMap<RcId, Vec<PodRef>> = ids.iter().map(|id| (*id, own(id))).collect();
    let all = places.values().flatten();
    let healths = context.get_many(all.map(|place| key::health(&place.pod, &place.node))).await?;
    let is_healthy = |place: &&PodRef| {
        let health = healths.get(key::health(&place.pod, &place.node).as_str());
        health.is_some_and(|entry| Health::decode(&entry.value) == Health::Passing)
    };
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let counted = |(id, places): (RcId, Vec<PodRef>)| {
        let healthy = count(places.iter().filter(is_healthy).count());
        (id, CountedPods { current: count(places.len()), healthy })
    };
    Ok(places.into_iter().map(counted).collect())
}
