//! The kind `scheduler`: prefixes, subscriptions and controllers.

use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;

use super::caches::SchedulerCaches;
use super::controller::SchedulerController;
use crate::cluster::wake::on_node_changes;
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, Kind, KindSpec, RecordCheck,
};
use crate::farm::subscriptions::Subscriber;
use crate::placement::{Scheduler, cells};
use rcfarm_api::ids::{Namespaced, ObjectName, QueueName};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_api::priority_class::PriorityClassRecord;
use rcfarm_api::queue::spec::{DEFAULT_SCHEDULER, QueueRecord};
use rcfarm_api::scheduler::spec::SchedulerRecord;
use rcfarm_api::{FieldError, InvalidText, Stored};
use rcfarm_store::{Index, StoreError};

/// Prefixes, rights and checks of the kind `scheduler`.
#[must_use]
pub fn spec() -> KindSpec {
    let default: ObjectName = DEFAULT_SCHEDULER.parse().expect("a legal name");
    KindSpec {
        check_name: check_name::<ObjectName>,
        reads: vec![
            key::labels(LabelKind::Node),
            key::nodes(),
            key::priority_classes(),
            key::cells(),
        ],
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
        sentinels: vec![
            key::pod_groups(),
            key::pod_group_statuses(),
            key::commands(),
            key::priority_classes(),
            key::cells(),
        ],
        seeds: vec![(key::scheduler(&default), SchedulerRecord::default().encode())],
        checks: vec![
            RecordCheck {
                title: "schedulers",
                prefix: key::schedulers(),
                check: check_scheduler,
                remedy: "correct or delete them: rcfarm queue scheduler list",
            },
            RecordCheck {
                title: "pod groups",
                prefix: key::pod_groups(),
                check: check_group,
                remedy: "correct or delete them: rcfarm queue group list",
            },
            RecordCheck {
                title: "queues",
                prefix: key::queues(),
                check: check_queue,
                remedy: "correct them: rcfarm queue --help",
            },
            RecordCheck {
                title: "priority classes",
                prefix: key::priority_classes(),
                check: check_class,
                remedy: "correct them: rcfarm apply -f; or: rcfarm priority-class delete",
            },
            RecordCheck {
                title: "cells",
                prefix: key::cells(),
                check: check_cells,
                remedy: "correct them: rcfarm cell config apply FILE",
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

fn check_name<N: FromStr<Err = InvalidText>>(tail: &str) -> Result<(), FieldError> {
    tail.parse::<N>().map(drop).map_err(|error| FieldError::from(error).below(FieldError::KEY))
}

fn check_scheduler(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    check_name::<ObjectName>(tail)?;
    let bad = SchedulerRecord::decode(value)?.spec.check();
    bad.into_iter().next().map_or(Ok(()), Err)
}

fn check_group(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    check_name::<Namespaced>(tail)?;
    PodGroupRecord::decode(value).map(drop)
}

fn check_queue(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    check_name::<QueueName>(tail)?;
    QueueRecord::decode(value).map(drop)
}

fn check_class(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    check_name::<ObjectName>(tail)?;
    let name = tail.parse().map_err(FieldError::from)?;
    let bad = PriorityClassRecord::decode(value)?.check(&name);
    bad.into_iter().next().map_or(Ok(()), Err)
}

fn check_cells(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    if Some(tail) != key::cells().tail(key::cell_config().as_str()) {
        let fix = "delete it: consul kv delete";
        return Err(FieldError::new(FieldError::KEY, "there is only rcfarm/cells/config", fix));
    }
    let bad = cells::decode(value).err().unwrap_or_default();
    bad.into_iter().next().map_or(Ok(()), Err)
}

/// Subscriptions and controllers of the kind `scheduler`.
pub struct SchedulerKind {
    ctx: ControllerContext,
    caches: Arc<SchedulerCaches>,
    scheduler: Arc<dyn Scheduler>,
}

impl SchedulerKind {
    /// Uses the caches that all schedulers of the farm share. `scheduler` is asked about gangs if it places them.
    #[must_use]
    pub fn new(
        ctx: ControllerContext,
        caches: Arc<SchedulerCaches>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Self {
        SchedulerKind { ctx, caches, scheduler }
    }
}

#[async_trait]
impl Kind for SchedulerKind {
    fn subscribe(&self, subscriber: &mut Subscriber<'_>) {
        on_node_changes(subscriber, &self.caches.view, |wake, _| wake.all());
        subscriber.on(&self.caches.queues, |wake, _, _| wake.all());
        subscriber.on(&self.caches.classes, |wake, _, _| wake.all());
        let asked = self.caches.cells_asked.clone();
        subscriber.on_from(&self.caches.cells, asked, |wake, _, _| wake.all());
        subscriber.on(&self.caches.groups, |wake, _, _| wake.all());
        subscriber.on(&self.caches.commands, |wake, old, new| {
            if old.value.queues != new.value.queues {
                wake.all();
            }
        });
    }

    async fn prepare(&self, _oldest: Index) -> Result<(), StoreError> {
        // Before its first read a cache shows no node. Controllers read queues, groups and allocations themselves.
        self.caches.view.nodes.first_read().await;
        self.caches.view.records.first_read().await;
        Ok(())
    }

    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller> {
        let name = claimed.id.as_str().parse().expect("the farm claims legal names only");
        let (caches, scheduler) = (self.caches.clone(), self.scheduler.clone());
        Box::new(SchedulerController::new(self.ctx.clone(), claimed, name, caches, scheduler))
    }
}
