//! `rcfarm/pod_group_status/` as one watched tree: what the owners of groups wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rcfarm_api::Stored;
use rcfarm_api::key;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_store::cache::CacheIndex;
use rcfarm_store::{Entry, Index, Prefix};

/// A status with its place in the store.
#[derive(Debug, PartialEq)]
pub struct StoredStatus {
    /// ModifyIndex.
    pub index: Index,
    /// `None`: the value is no status.
    pub status: Option<PodGroupStatus>,
}

/// All statuses; a malformed one harms no other.
#[derive(Debug, Default)]
pub struct PodGroupStatuses(pub BTreeMap<GroupId, Arc<StoredStatus>>);

impl PodGroupStatuses {
    /// The status of a group, if it can be read.
    #[must_use]
    pub fn of(&self, id: &GroupId) -> Option<&PodGroupStatus> {
        self.0.get(id)?.status.as_ref()
    }

    /// Groups whose status differs between the two.
    #[must_use]
    pub fn touched(old: &Self, new: &Self) -> BTreeSet<GroupId> {
        let index = |all: &Self, id| all.0.get(id).map(|stored| stored.index);
        let ids = old.0.keys().chain(new.0.keys());
        ids.filter(|id| index(old, id) != index(new, id)).cloned().collect()
    }
}

impl CacheIndex for PodGroupStatuses {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let stored = |entry: Entry| {
            let id = key::namespaced(prefix, &entry.key)?;
            match old.0.get(&id) {
                Some(same) if same.index == entry.modify_index => Some((id, same.clone())),
                _ => {
                    let status = PodGroupStatus::decode(&entry.value).ok();
                    Some((id, Arc::new(StoredStatus { index: entry.modify_index, status })))
                }
            }
        };
        PodGroupStatuses(entries.into_iter().filter_map(stored).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
