//! What a farm must know to claim schedulers and run their tasks.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::caches::SchedulerCaches;
use super::controller::OrderingController;
use crate::cluster::commands::Commands;
use crate::farm::kind::{ClaimedRecord, Controller, ControllerContext, Kind};
use crate::farm::wake_queue::{FarmEvent, WakeQueue};
use rcfarm_api::Stored;
use rcfarm_api::ids::ObjectName;
use rcfarm_api::ids::RecordId;
use rcfarm_api::key;
use rcfarm_api::queue::spec::DEFAULT_SCHEDULER;
use rcfarm_api::scheduler::spec::SchedulerRecord;
use rcfarm_store::{Index, Key, Prefix, StoreError};

/// Schedulers as a kind of record.
pub struct OrderingKind {
    ctx: ControllerContext,
    caches: Arc<SchedulerCaches>,
}

impl OrderingKind {
    /// The kind, over queues and groups that it watches.
    #[must_use]
    pub fn new(ctx: ControllerContext, caches: Arc<SchedulerCaches>) -> Self {
        OrderingKind { ctx, caches }
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

    fn watches(&self, wake_queue: &Arc<WakeQueue>) -> Vec<BoxFuture<'static, ()>> {
        let wake = || {
            let (wake_queue, caches) = (wake_queue.clone(), self.caches.clone());
            move || {
                let tasks: BTreeSet<RecordId> = caches.tasks();
                if !tasks.is_empty() {
                    wake_queue.push(FarmEvent::Changed(tasks));
                }
            }
        };
        let (queues, groups, commands) = (wake(), wake(), wake());
        let (ids, wake_queue) = (|| self.ctx.ids.fork(), wake_queue.clone());
        vec![
            Box::pin(self.caches.queues.clone().watch(ids(), move |_, _| queues())),
            Box::pin(self.caches.groups.clone().watch(ids(), move |_, _| groups())),
            // For jobs, too.
            Box::pin(self.caches.commands.clone().watch(ids(), move |old, new| {
                if old.value.queues != new.value.queues {
                    commands();
                }
                let jobs = Commands::jobs_touched(&old.value, &new.value);
                let jobs = jobs.iter().map(|job| RecordId::from(job.to_string().as_str()));
                wake_queue.push(FarmEvent::Changed(jobs.collect()));
            })),
        ]
    }

    async fn prepare(&self, _oldest: Index) -> Result<(), StoreError> {
        // Unread, these would show no node and no promise; the controllers read what is theirs.
        self.caches.view.nodes.first_read().await;
        self.caches.view.records.first_read().await;
        Ok(())
    }

    fn confirm(&self) {
        self.caches.queues.confirm();
        self.caches.groups.confirm();
    }

    fn untrusted_caches(&self) -> Vec<String> {
        let (queues, groups) = (self.caches.queues.snapshot(), self.caches.groups.snapshot());
        let seen = [
            (self.caches.queues.prefix(), queues.untrusted),
            (self.caches.groups.prefix(), groups.untrusted),
        ];
        let told = seen.into_iter().filter_map(|(tree, why)| Some(format!("{tree}: {}", why?)));
        told.collect()
    }

    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller> {
        let mut tasks = self.caches.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.insert(claimed.id.clone());
        drop(tasks);
        let name = claimed.id.as_str().parse().expect("the farm claims legal names only");
        let controller =
            OrderingController::new(self.ctx.clone(), claimed, name, self.caches.clone());
        Box::new(controller)
    }
}
