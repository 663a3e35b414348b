//! Schedulers as a kind of record: data, subscriptions and hooks.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::caches::SchedulerCaches;
use super::controller::OrderingController;
use crate::cluster::commands::Commands;
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, Kind, KindSpec, RecordCheck,
};
use crate::farm::wake_queue::{FarmEvent, WakeQueue};
use rcfarm_api::Stored;
use rcfarm_api::ids::{Namespaced, ObjectName, QueueName, RecordId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_api::queue::spec::{DEFAULT_SCHEDULER, QueueRecord};
use rcfarm_api::scheduler::spec::SchedulerRecord;
use rcfarm_store::{Index, StoreError};

/// Schedulers as a kind of record.
#[must_use]
pub fn spec() -> KindSpec {
    let default: ObjectName = DEFAULT_SCHEDULER.parse().expect("a legal name");
    KindSpec {
        check_name: |tail| tail.parse::<ObjectName>().map(drop).map_err(|bad| bad.to_string()),
        reads: vec![key::labels(LabelKind::Node), key::nodes()],
        writes: vec![
            key::schedulers(),
            key::scheduler_statuses(),
            key::queues(),
            key::queue_statuses(),
            key::commands(),
            key::pod_groups(),
            key::pod_group_statuses(),
            key::allocations(),
        ],
        user_writes: vec![key::commands()],
        sentinels: vec![key::pod_groups(), key::pod_group_statuses(), key::commands()],
        seeds: vec![(key::scheduler(&default), SchedulerRecord::default().encode())],
        checks: vec![
            RecordCheck {
                title: "schedulers",
                prefix: key::schedulers(),
                check: check_scheduler,
                remedy: "mend or delete them: consul kv",
            },
            RecordCheck {
                title: "pod groups",
                prefix: key::pod_groups(),
                check: check_group,
                remedy: "mend or delete them: consul kv",
            },
            RecordCheck {
                title: "queues",
                prefix: key::queues(),
                check: check_queue,
                remedy: "mend them: rcfarm queue --help",
            },
        ],
        ..KindSpec::new(
            "scheduler",
            key::schedulers(),
            key::scheduler_locks(),
            key::scheduler_labels(),
        )
    }
}

fn check_scheduler(tail: &str, value: &[u8]) -> Result<(), String> {
    tail.parse::<ObjectName>().map_err(|bad| bad.to_string())?;
    SchedulerRecord::decode(value).map(drop).map_err(|bad| bad.to_string())
}

fn check_group(tail: &str, value: &[u8]) -> Result<(), String> {
    tail.parse::<Namespaced>().map_err(|_| "its name is not NAMESPACE/NAME in lower case")?;
    PodGroupRecord::decode(value).map(drop).map_err(|bad| bad.to_string())
}

fn check_queue(tail: &str, value: &[u8]) -> Result<(), String> {
    tail.parse::<QueueName>().map_err(|bad| bad.to_string())?;
    QueueRecord::decode(value).map(drop).map_err(|bad| bad.to_string())
}

/// Controllers of schedulers.
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
