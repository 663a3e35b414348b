//! Stored statuses of RCs: read in bulk when records are claimed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::leftovers::{RcLeftovers, rc_of};
use crate::farm::claim_read::ClaimRead;
use crate::farm::metrics::RecordGauges;
use crate::farm::status_chain::{ChainedStatus, Revisioned};
use rcfarm_api::ids::RcId;
use rcfarm_api::rc::status::{RcReason, RcStatus, Replicas};
use rcfarm_api::{Stored, key};
use rcfarm_store::{Entry, Index, Query, Reader, StoreError};

impl Revisioned for RcStatus {
    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }
}

impl ChainedStatus for RcStatus {
    fn observed_index(&self) -> Index {
        self.observed_index
    }

    fn gauges(&self) -> Option<RecordGauges> {
        let Replicas { desired, current, healthy, .. } = self.replicas;
        let mut failed = self.conditions.iter().filter(|condition| !condition.status);
        let is_disabled = failed.any(|condition| condition.reason == RcReason::Disabled);
        // Per record: the surplus of one RC does not make up for what another lacks.
        let missing = if is_disabled { 0 } else { desired.saturating_sub(healthy) };
        let pods = [
            ("desired", desired),
            ("current", current),
            ("healthy", healthy),
            ("missing", missing),
        ];
        Some(RecordGauges {
            state: self.state(),
            is_quarantined: self.quarantined_until.is_some(),
            placement: (!is_disabled).then_some((u64::from(desired), u64::from(current))),
            pods: pods.map(|(count, number)| (count, u64::from(number))).into(),
        })
    }
}

/// Statuses of replication controllers, read in bulk when records are claimed.
pub struct RcStatuses {
    reader: Arc<dyn Reader>,
    /// All statuses, with their ModifyIndexes.
    pub(super) at_claim: ClaimRead<BTreeMap<RcId, (Index, RcStatus)>>,
    pub(super) leftovers: RcLeftovers,
}

impl RcStatuses {
    pub(super) fn new(reader: Arc<dyn Reader>) -> RcStatuses {
        let leftovers = RcLeftovers::new(reader.clone());
        RcStatuses { reader, at_claim: ClaimRead::default(), leftovers }
    }

    pub(super) async fn list(
        &self,
    ) -> Result<(Index, BTreeMap<RcId, (Index, RcStatus)>), StoreError> {
        let answer = self.reader.list(&key::rc_statuses(), Query::CONSISTENT).await?;
        let status = |entry: &Entry| {
            let status = RcStatus::decode(&entry.value).unwrap_or_default();
            Some((rc_of(&entry.key)?, (entry.modify_index, status)))
        };
        let statuses: BTreeMap<_, _> = answer.value.iter().filter_map(status).collect();
        self.leftovers.listed(statuses.keys().copied());
        Ok((answer.index, statuses))
    }
}

#[cfg(test)]
mod tests {
    use rcfarm_api::Timestamp;
    use rcfarm_api::rc::status::RcConditionType;

    use super::*;

    #[test]
    fn gauges_count_missing_pods_of_each_enabled_record() {
        let missing = |status: &RcStatus| {
            let gauges = status.gauges().unwrap();
            gauges.pods.into_iter().find(|(count, _)| *count == "missing").unwrap().1
        };
        let mut status = RcStatus::default();
        for (desired, healthy, expected) in [(3, 1, 2), (1, 3, 0), (2, 2, 0)] {
            status.replicas = Replicas { desired, current: 3, healthy, ..Replicas::default() };
            assert_eq!(missing(&status), expected, "{desired} {healthy}");
        }
        status.replicas.desired = 9;
        let (kind, since) = (RcConditionType::Scheduled, Timestamp::UNIX_EPOCH);
        status.set_condition(kind, false, RcReason::Disabled, String::new(), since);
        assert_eq!(missing(&status), 0, "nobody adds pods to a disabled record");
    }
}
