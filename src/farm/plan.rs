//! Which records to claim, to hand over, to release: a pure function.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::records::{Locks, Peers, RecordLabels, Records};
use rcfarm_api::Fnv1a;
use rcfarm_api::ids::RecordId;
use rcfarm_api::ids::{FarmName, SessionId};
use rcfarm_api::labels::Selector;

/// A record that its preferred farm has not claimed for this long is anybody's.
pub const GRACE: Duration = Duration::from_millis(750);

/// What is left of a record that is gone is anybody's after this long: most often the farm that tidied it up has just not
/// been seen to, and the next look for leftovers says so.
pub const LEFT_GRACE: Duration = Duration::from_secs(30);

/// A farm that has been there for this long is handed its share. Shorter, and farms that start one after the
/// other would pass records round.
pub const SETTLED: Duration = Duration::from_secs(2);

/// A lock that was taken this long ago is shown by its tree, whatever that costs to read: if not, it is gone.
pub const SURELY_SHOWN: Duration = Duration::from_secs(30);

/// Everything that claims depend on.
pub struct ClaimsObserved<'a> {
    /// All records.
    pub records: &'a Records,
    /// Names without a record that are claimed all the same: something is left of them.
    pub left_behind: &'a BTreeSet<RecordId>,
    /// Their labels.
    pub labels: &'a RecordLabels,
    /// Their locks.
    pub locks: &'a Locks,
    /// The live farms; may lack this one, shortly after its start.
    pub peers: &'a Peers,
    /// Since when each farm has been seen without a break.
    pub peers_since: &'a BTreeMap<FarmName, Instant>,
    /// This farm.
    pub me: &'a FarmName,
    /// Its session.
    pub session: &'a SessionId,
    /// Which records it claims.
    pub selector: &'a Selector,
    /// Records whose tasks run here.
    pub held: &'a BTreeSet<RecordId>,
    /// Records that it may not claim yet: not a record's name, or just refused.
    pub barred: &'a BTreeMap<RecordId, Instant>,
    /// Since when each record has been seen without an owner, or since it was claimed.
    pub unowned_since: &'a BTreeMap<RecordId, Instant>,
    /// The locks are being read anew: none is taken for ours because they say so.
    pub doubtful: bool,
    /// A record tree that cannot be believed: nothing is released because it is not in it.
    pub suspicious: bool,
    /// Now.
    pub now: Instant,
}

/// What to do about claims.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct ClaimPlan {
    /// Take these locks.
    pub claim: Vec<RecordId>,
    /// These locks are ours already (handed over to us): run their tasks.
    pub adopt: Vec<RecordId>,
    /// Stop these tasks and give their locks up.
    pub release: Vec<RecordId>,
    /// Stop these tasks: their locks are not ours any more.
    pub drop: Vec<RecordId>,
    /// Stop these tasks and give their locks to the farm, in one transaction.
    pub hand_over: Vec<(RecordId, FarmName, SessionId)>,
    /// Other locks of ours (a record's name, the lock's) on records that are not ours any more: give them up.
    pub stray: Vec<(RecordId, String)>,
    /// Plan again then at the latest.
    pub again_at: Option<Instant>,
}

impl ClaimPlan {
    fn look_again(&mut self, at: Instant) {
        self.again_at = Some(self.again_at.map_or(at, |then| then.min(at)));
    }
}

/// Decides about claims.
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
                // Barred: just given away, and the lock tree is a moment behind.
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

/// Locks that our session still holds although no task of ours works on their record: a task was stopped in the
/// middle of something, or giving up failed. Whoever owns the record now waits for them.
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

/// The lock tree may be a moment behind our own claim. Later, a restored snapshot has taken the lock away.
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

/// The farm that a record belongs to: the one with the highest score among those whose selector matches it, so
/// that a farm that comes or goes moves only its own share. `None` while no matching farm is known.
fn preferred(seen: &ClaimsObserved<'_>, id: &RecordId) -> Option<(FarmName, SessionId)> {
    let candidates = seen.peers.0.iter().filter(|(_, peer)| !peer.leaving);
    candidates
        .filter(|(_, peer)| seen.labels.matches(id, &peer.selector))
        .max_by_key(|(farm, _)| (score(farm, id), *farm))
        .map(|(farm, peer)| (farm.clone(), peer.session.clone()))
}

/// A hash of both names, mixed so that all bits count: the same on every farm and in every version.
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
