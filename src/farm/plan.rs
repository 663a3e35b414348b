//! Decides which records to claim, hand over and release. A pure function.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::record_labels::SelectedBy;
use super::records::{Locks, Peers, Records};
use rcfarm_api::Fnv1a;
use rcfarm_api::ids::{FarmName, RecordId, SessionId};
use rcfarm_api::labels::Selector;

/// If its preferred farm has not claimed a record for this long, any farm may.
pub const GRACE: Duration = Duration::from_millis(750);

/// The same for what is left of a deleted record. It is longer, because mostly the leftovers are removed already and
/// this farm's caches lag behind.
pub const LEFT_GRACE: Duration = Duration::from_secs(30);

/// A farm is handed its share after it was seen for this long. With less, farms that start one after another would pass
/// records on several times.
pub const SETTLED: Duration = Duration::from_secs(2);

/// A lock that the cache does not show this long after it was taken is gone.
pub const SURELY_SHOWN: Duration = Duration::from_secs(30);

/// Input of [`plan`]. Times are counted from the farm's start.
pub struct ClaimsObserved<'a> {
    pub records: &'a Records,
    /// Names without a record that are claimed because something is left to clean up.
    pub left_behind: &'a BTreeSet<RecordId>,
    pub labels: SelectedBy<'a>,
    pub locks: &'a Locks,
    /// The live farms. This one may be missing shortly after its start.
    pub peers: &'a Peers,
    /// Since when each farm has been seen without interruption.
    pub peers_since: &'a BTreeMap<FarmName, Duration>,
    pub me: &'a FarmName,
    pub session: &'a SessionId,
    /// Which records it claims.
    pub selector: &'a Selector,
    /// Records whose tasks run here.
    pub held: &'a BTreeSet<RecordId>,
    /// Records that it must not claim before this time: the claim was just refused, or the name is not valid.
    pub barred: &'a BTreeMap<RecordId, Duration>,
    /// Since when each record has been seen without an owner, or when this farm claimed it.
    pub unowned_since: &'a BTreeMap<RecordId, Duration>,
    /// The locks are being read again. Until then no lock is adopted.
    pub doubtful: bool,
    /// The records are untrusted (mass deletion guard): nothing is released because its record is missing.
    pub suspicious: bool,
    pub now: Duration,
}

/// Result of [`plan`].
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct ClaimPlan {
    /// Take these locks.
    pub claim: Vec<RecordId>,
    /// This session holds these locks already (handed over by another farm): run their tasks.
    pub adopt: Vec<RecordId>,
    /// Stop these tasks and release their locks.
    pub release: Vec<RecordId>,
    /// Stop these tasks: this session does not hold their locks any more.
    pub drop: Vec<RecordId>,
    /// Stop these tasks and transfer their locks to the farm.
    pub hand_over: Vec<(RecordId, FarmName, SessionId)>,
    /// Other locks (record, name of the lock) that this session holds on records that it does not own: release them.
    pub stray: Vec<(RecordId, String)>,
    /// Plan again at this time at the latest.
    pub again_at: Option<Duration>,
}

impl ClaimPlan {
    fn look_again(&mut self, at: Duration) {
        self.again_at = Some(self.again_at.map_or(at, |then| then.min(at)));
    }
}

/// Decides what to claim, adopt, release, drop and hand over.
pub fn plan(seen: &ClaimsObserved<'_>) -> ClaimPlan {
    let mut plan = ClaimPlan::default();
    for id in seen.records.0.keys().chain(seen.left_behind) {
        let owner = seen.locks.0.get(id).and_then(|locks| locks.owner.as_ref());
        let wanted = seen.labels.matches(id, seen.selector);
        match (seen.held.contains(id), owner) {
            (true, Some(owner)) if owner == seen.session => {
                keep_or_part(seen, id, wanted, &mut plan)
            }
            (true, None) => not_shown(seen, id, &mut plan),
            (true, Some(_)) => plan.drop.push(id.clone()),
            (false, Some(owner)) if owner == seen.session => {
                // Barred: just released or handed over, and the lock cache may lag behind.
                match seen.barred.get(id).filter(|until| **until > seen.now) {
                    Some(until) => plan.look_again(*until),
                    None if seen.doubtful => {}
                    None if wanted => plan.adopt.push(id.clone()),
                    None => plan.release.push(id.clone()),
                }
            }
            (false, Some(_)) => {}
            (false, None) if wanted => claim_or_wait(seen, id, &mut plan),
            (false, None) => {}
        }
    }
    if !seen.suspicious {
        let gone = seen.held.iter().filter(|id| is_gone(seen, id));
        plan.release.extend(gone.cloned());
    }
    left_behind(seen, &mut plan);
    plan
}

fn is_gone(seen: &ClaimsObserved<'_>, id: &RecordId) -> bool {
    !seen.records.0.contains_key(id) && !seen.left_behind.contains(id)
}

/// Finds locks of this session without a running task: a task was stopped halfway, or a release failed. Whoever owns
/// the record now waits for them.
fn left_behind(seen: &ClaimsObserved<'_>, plan: &mut ClaimPlan) {
    for (id, locks) in seen.locks.0.iter().filter(|(id, _)| !seen.held.contains(id)) {
        let owned = locks.owner.as_ref() == Some(seen.session);
        let gone = !seen.suspicious && is_gone(seen, id);
        let others = locks.others.iter().filter(|(_, session)| *session == seen.session);
        let others: Vec<&String> = others.map(|(name, _)| name).collect();
        if (others.is_empty() || owned) && !(owned && gone) {
            continue;
        }
        match seen.barred.get(id).filter(|until| **until > seen.now) {
            Some(until) => plan.look_again(*until),
            None if owned => plan.release.push(id.clone()),
            None => plan.stray.extend(others.into_iter().map(|name| (id.clone(), name.clone()))),
        }
    }
}

/// The task runs, but the cache shows no owner: it lags behind the claim, or a restored snapshot has removed the lock.
fn not_shown(seen: &ClaimsObserved<'_>, id: &RecordId, plan: &mut ClaimPlan) {
    let Some(since) = seen.unowned_since.get(id) else { return };
    match seen.now >= *since + SURELY_SHOWN {
        true => plan.drop.push(id.clone()),
        false => plan.look_again(*since + SURELY_SHOWN),
    }
}

fn keep_or_part(seen: &ClaimsObserved<'_>, id: &RecordId, wanted: bool, plan: &mut ClaimPlan) {
    if !wanted {
        plan.release.push(id.clone());
        return;
    }
    let Some((farm, session)) = preferred(seen, id) else { return };
    if farm == *seen.me {
        return;
    }
    let Some(since) = seen.peers_since.get(&farm) else { return };
    let settled = *since + SETTLED;
    if seen.now >= settled {
        plan.hand_over.push((id.clone(), farm, session));
    } else {
        plan.look_again(settled);
    }
}

fn claim_or_wait(seen: &ClaimsObserved<'_>, id: &RecordId, plan: &mut ClaimPlan) {
    if let Some(until) = seen.barred.get(id).filter(|until| **until > seen.now) {
        plan.look_again(*until);
        return;
    }
    let mine = preferred(seen, id).is_none_or(|(farm, _)| farm == *seen.me);
    let since = seen.unowned_since.get(id).copied().unwrap_or(seen.now);
    let grace = if seen.records.0.contains_key(id) { GRACE } else { LEFT_GRACE };
    if mine || seen.now >= since + grace {
        plan.claim.push(id.clone());
    } else {
        plan.look_again(since + grace);
    }
}

/// The farm with the highest score among those whose selector matches (rendezvous hashing): a farm that joins or leaves
/// moves only its own share. `None` if no live farm matches.
fn preferred(seen: &ClaimsObserved<'_>, id: &RecordId) -> Option<(FarmName, SessionId)> {
    let candidates = seen.peers.0.iter().filter(|(_, peer)| !peer.value.leaving);
    candidates
        .filter(|(_, peer)| seen.labels.matches(id, &peer.value.selector))
        .max_by_key(|(farm, _)| (score(farm, id), *farm))
        .map(|(farm, peer)| (farm.clone(), peer.value.session.clone()))
}

/// Hash of both names, mixed so that all bits count. It must be the same on every farm and in every version.
fn score(farm: &FarmName, id: &RecordId) -> u64 {
    let mut names = Fnv1a::default();
    names.update(farm.as_str().as_bytes());
    names.update(&[0]);
    names.update(id.as_str().as_bytes());
    let mut hash = names.finish();
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash
}

#[cfg(test)]
mod tests;
