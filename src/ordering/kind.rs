//! What a farm must know to claim schedulers and run their tasks.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::caches::SchedulerCaches;
use super::controller::OrderingController;
use super::spec::SchedulerRecord;
use crate::command::Commands;
use crate::farm::cache::{FarmEvent, WakeQueue};
use crate::farm::kind::{ClaimedRecord, Controller, ControllerContext, Kind, RecordId};
use crate::ids::ObjectName;
use crate::queue::spec::DEFAULT_SCHEDULER;
use crate::store::{Index, Key, Prefix, StoreError, key};

/// Schedulers as a kind of record.
pub struct OrderingKind {
    site: ControllerContext,
    floor: Arc<SchedulerCaches>,
}

impl OrderingKind {
    /// The kind, over queues and groups that it watches.
    #[must_use]
    pub fn new(site: ControllerContext, floor: Arc<SchedulerCaches>) -> Self {
        OrderingKind { site, floor }
    }
}

#[async_trait]
impl Kind for OrderingKind {
    fn name(&self) -> &'static str {
        "scheduler"
    }

    fn records(&self) -> Prefix {
        key::schedulers()
    }

    fn locks(&self) -> Prefix {
        key::scheduler_locks()
    }

    fn labels(&self) -> Prefix {
        key::scheduler_labels()
    }

    fn trees(&self) -> Vec<Prefix> {
        vec![
            key::scheduler_statuses(),
            key::queues(),
            key::queue_statuses(),
            key::commands(),
            key::pod_groups(),
            key::pod_group_statuses(),
            key::allocations(),
        ]
    }

    fn sentinels(&self) -> Vec<Prefix> {
        vec![key::pod_groups(), key::pod_group_statuses(), key::commands()]
    }

    fn check_name(&self, tail: &str) -> Result<(), String> {
        tail.parse::<ObjectName>().map(drop).map_err(|error| error.to_string())
    }

    fn seeds(&self) -> Vec<(Key, Bytes)> {
        let name: ObjectName = DEFAULT_SCHEDULER.parse().expect("a legal name");
        vec![(key::scheduler(&name), SchedulerRecord::default().encode())]
    }

    fn watches(&self, inbox: &Arc<WakeQueue>) -> Vec<BoxFuture<'static, ()>> {
        let wake = || {
            let (inbox, floor) = (inbox.clone(), self.floor.clone());
            move || {
                let tasks: BTreeSet<RecordId> = floor.tasks();
                if !tasks.is_empty() {
                    inbox.post(FarmEvent::Changed(tasks));
                }
            }
        };
        let (queues, groups, commands) = (wake(), wake(), wake());
        let (ids, inbox) = (|| self.site.ids.fork(), inbox.clone());
        vec![
            Box::pin(self.floor.queues.clone().watch(ids(), move |_, _| queues())),
            Box::pin(self.floor.groups.clone().watch(ids(), move |_, _| groups())),
            // For jobs, too.
            Box::pin(self.floor.commands.clone().watch(ids(), move |old, new| {
                if old.value.queues != new.value.queues {
                    commands();
                }
                let jobs = Commands::jobs_touched(&old.value, &new.value);
                let jobs = jobs.iter().map(|job| RecordId::from(job.to_string().as_str()));
                inbox.post(FarmEvent::Changed(jobs.collect()));
            })),
        ]
    }

    async fn prepare(&self, _oldest: Index) -> Result<(), StoreError> {
        // Unread, these would show no node and no promise; the controllers read what is theirs.
        self.floor.world.nodes.first_read().await;
        self.floor.world.records.first_read().await;
        Ok(())
    }

    fn confirm(&self) {
        self.floor.queues.confirm();
        self.floor.groups.confirm();
    }

    fn suspicions(&self) -> Vec<String> {
        let (queues, groups) = (self.floor.queues.seen(), self.floor.groups.seen());
        let seen = [
            (self.floor.queues.prefix(), queues.suspicion),
            (self.floor.groups.prefix(), groups.suspicion),
        ];
        let told = seen.into_iter().filter_map(|(tree, why)| Some(format!("{tree}: {}", why?)));
        told.collect()
    }

    fn controller(&self, post: ClaimedRecord) -> Box<dyn Controller> {
        let mut tasks = self.floor.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.insert(post.id.clone());
        drop(tasks);
        let name = post.id.as_str().parse().expect("the farm claims legal names only");
        let controller = OrderingController::new(self.site.clone(), post, name, self.floor.clone());
        Box::new(controller)
    }
}
