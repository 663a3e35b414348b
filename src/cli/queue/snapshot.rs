//! One-shot read of queues, groups and their statuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::batch::placing::VersionedStatus;
use crate::batch::plan::{GroupStatuses, positions};
use crate::batch::queues::{Queue, Queues, Usage};
use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cli::priority_class;
use crate::cluster::queues::{GroupIndex, GroupStatusIndex, QueueIndex, StoredGroups};
use rcfarm_api::ids::QueueName;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::{PodGroupPhase, PodGroupReason, PodGroupStatus};
use rcfarm_api::queue::spec::QueueSpec;
use rcfarm_api::queue::status::QueueStatus;
use rcfarm_api::{Stored, key};
use rcfarm_store::cache::{CacheIndex, read_once};
use rcfarm_store::{Entry, Query, Versioned};

/// Queues, groups and their statuses.
pub(in crate::cli) struct QueueSnapshot {
    pub(super) entries: BTreeMap<QueueName, Entry>,
    pub(in crate::cli) queues: Queues,
    pub(super) statuses: BTreeMap<QueueName, QueueStatus>,
    pub(in crate::cli) groups: StoredGroups,
    pub(in crate::cli) group_statuses: GroupStatuses,
    pub(in crate::cli) usage: Usage,
    pub(super) positions: BTreeMap<QueueName, Vec<GroupId>>,
}

/// Reads the snapshot.
pub(in crate::cli) async fn snapshot(context: &CommandContext) -> anyhow::Result<QueueSnapshot> {
    let list = async |prefix| context.store.list(&prefix, Query::PLAIN).await;
    let mut entries = BTreeMap::new();
    for entry in list(key::queues()).await?.value {
        match key::queues().tail(&entry.key).map(str::parse::<QueueName>) {
            Some(Ok(name)) => drop(entries.insert(name, entry)),
            _ => context.note(format!("{} stands among the queues and names none", entry.key)),
        }
    }
    let stored = entries.values().cloned().collect();
    let stored = QueueIndex::build(&QueueIndex::default(), &key::queues(), stored);
    let classes = priority_class::classes(context).await?;
    let queues = Queues::of(&stored.0, classes);
    let status = |entry: Entry| {
        let name = key::queue_statuses().tail(&entry.key)?.parse().ok()?;
        Some((name, QueueStatus::decode(&entry.value).ok()?))
    };
    let statuses =
        list(key::queue_statuses()).await?.value.into_iter().filter_map(status).collect();
    let store = context.store.as_ref();
    let groups = read_once::<GroupIndex>(store, &key::pod_groups()).await?.0;
    let read: GroupStatusIndex = read_once(store, &key::pod_group_statuses()).await?;
    let known = |(id, stored): (&GroupId, &Arc<Versioned<Option<PodGroupStatus>>>)| {
        let Versioned { index, created, value } = &**stored;
        let value = Arc::new(value.clone()?);
        Some((id.clone(), Versioned { index: *index, created: *created, value }))
    };
    let group_statuses: GroupStatuses = read.0.iter().filter_map(known).collect();
    let mut usage = Usage::default();
    for known in group_statuses.values().filter(|known| known.value.phase.is_admitted()) {
        if let Some(queue) = &known.value.queue {
            usage.charge(&queues, queue, &known.value.charged);
        }
    }
    let positions = positions(&queues, &groups, &group_statuses);
    Ok(QueueSnapshot { entries, queues, statuses, groups, group_statuses, usage, positions })
}

impl QueueSnapshot {
    /// A queue that must exist.
    pub(super) fn queue(&self, name: &QueueName) -> anyhow::Result<&Queue> {
        self.queues.0.get(name).ok_or_else(|| {
            failure(format!("there is no queue {name}"), "see which there are: rcfarm queue list")
        })
    }

    /// The specs of all valid queues.
    pub(super) fn specs(&self) -> BTreeMap<QueueName, QueueSpec> {
        let specs = self.queues.0.iter();
        specs.map(|(name, queue)| (name.clone(), queue.spec.clone())).collect()
    }

    /// Groups that were admitted and have not ended.
    pub(super) fn admitted(&self, name: &QueueName) -> Vec<(&GroupId, &PodGroupStatus)> {
        let counted = |known: &VersionedStatus| {
            known.value.phase.is_admitted() && known.value.queue.as_ref() == Some(name)
        };
        let all = self.group_statuses.iter().filter(|(_, known)| counted(known));
        all.map(|(id, known)| (id, &*known.value)).collect()
    }

    /// How many groups of its queue went before a group while it waited for capacity.
    pub(super) fn passed(&self, id: &GroupId) -> u32 {
        self.group_statuses.get(id).map_or(0, |known| known.value.passed)
    }

    /// Why a group waits: the reason in its queue's status, or else in its own. `None`: no scheduler has handled it yet.
    pub(super) fn why(&self, name: &QueueName, id: &GroupId) -> (Option<PodGroupReason>, String) {
        let hold = self.groups.get(id).and_then(|group| {
            let hold = group.value.as_ref().ok()?.spec.hold.as_ref()?;
            Some((hold.reason, hold.message.clone()))
        });
        let status = self.group_statuses.get(id).map(|known| &known.value);
        let said = status
            .filter(|s| s.phase == PodGroupPhase::Pending && s.reason != PodGroupReason::AsDesired);
        match hold.or_else(|| self.queues.refusal(name)) {
            Some((reason, message)) => (Some(reason), message),
            None => match said {
                Some(status) => (Some(status.reason), status.message.clone()),
                None => (None, "the scheduler has yet to say why".to_owned()),
            },
        }
    }
}
