//! Replication controllers as a kind of record: data, subscriptions and hooks.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::caches::RcCaches;
use super::controller::{PlacementSources, RcController};
use crate::cluster::allocations::AllocationIndex;
use crate::cluster::health::Healths;
use crate::cluster::intents::IntentVersions;
use crate::cluster::pods::PodLabels;
use crate::cluster::wake::on_node_changes;
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, Kind, KindSpec, RecordCheck,
};
use crate::farm::records::Records;
use crate::farm::subscriptions::Subscriber;
use rcfarm_api::ids::{RcId, RecordId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::rc::spec::{RcRecord, RcSpec};
use rcfarm_api::{FieldError, Stored};
use rcfarm_store::{Index, StoreError};

/// Replication controllers as a kind of record.
pub fn spec() -> KindSpec {
    KindSpec {
        check_name,
        needs_labels: true,
        reads: vec![key::labels(LabelKind::Node), key::nodes(), key::healths(), key::realities()],
        writes: vec![
            key::labels(LabelKind::Pod),
            key::intents(),
            key::rc_statuses(),
            key::allocations(),
        ],
        user_writes: vec![
            key::rcs(),
            key::labels(LabelKind::ReplicationController),
            key::labels(LabelKind::Node),
        ],
        sentinels: vec![key::nodes()],
        checks: vec![RecordCheck {
            title: "controllers",
            prefix: key::rcs(),
            check: check_record,
            remedy: "correct or delete them; a p2 farm on the same tree stops at them",
        }],
        ..KindSpec::new(
            "rc",
            key::rcs(),
            key::rc_locks(),
            key::labels(LabelKind::ReplicationController),
        )
    }
}

fn check_name(tail: &str) -> Result<(), FieldError> {
    id(tail).map(drop)
}

fn id(tail: &str) -> Result<RcId, FieldError> {
    let bad = |problem, fix| Err(FieldError::new(FieldError::KEY, problem, fix));
    match tail.parse::<RcId>() {
        Err(_) => bad(
            "it is no UUID; p2's farms stop at such a key",
            "move it elsewhere or delete it".to_owned(),
        ),
        Ok(id) if id.to_string() != tail => bad(
            "keys have UUIDs in lower case with hyphens",
            format!("write the record under {}", key::rc(id)),
        ),
        Ok(id) => Ok(id),
    }
}

fn check_record(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    RcSpec::check(id(tail)?, &RcRecord::decode(value)?).map(drop)
}

/// Controllers of replication controllers.
pub struct RcKind {
    ctx: ControllerContext,
    caches: Arc<RcCaches>,
    placement: PlacementSources,
}

impl RcKind {
    /// The kind on the caches of its farm.
    pub fn new(ctx: ControllerContext, caches: Arc<RcCaches>, placement: PlacementSources) -> Self {
        RcKind { ctx, caches, placement }
    }
}

fn record_ids(ids: impl IntoIterator<Item = RcId>) -> impl Iterator<Item = RecordId> {
    ids.into_iter().map(|id| RecordId::from(id.to_string().as_str()))
}

#[async_trait]
impl Kind for RcKind {
    fn subscribe(&self, subscriber: &mut Subscriber<'_>) {
        let view = &self.caches.cluster;
        let (caches, scheduler) = (self.caches.clone(), self.placement.scheduler.clone());
        on_node_changes(subscriber, view, move |wake, changes| {
            match scheduler.goes_by_labels() {
                true => wake.records(record_ids(caches.concerned(changes))),
                // Nobody knows what else it goes by.
                false => wake.all(),
            }
        });
        let caches = self.caches.clone();
        subscriber.on(&view.pods, move |wake, old, new| {
            wake.records(record_ids(PodLabels::touched(&old.value, &new.value)));
            if PodLabels::has_lost_pods(&old.value, &new.value) {
                wake.records(record_ids(caches.waiting()));
            }
        });
        let caches = self.caches.clone();
        subscriber.on(&view.intents, move |wake, old, new| {
            let places = IntentVersions::touched(&old.value, &new.value);
            wake.records(record_ids(caches.cluster.owners(places)));
            if IntentVersions::has_lost_keys(&old.value, &new.value) {
                wake.records(record_ids(caches.waiting()));
            }
        });
        let caches = self.caches.clone();
        subscriber.on(&view.health, move |wake, old, new| {
            caches.cluster.note_failures(&old.value, &new.value);
            let places = Healths::changed(&old.value, &new.value);
            wake.records(record_ids(caches.cluster.owners(places)));
        });
        let caches = self.caches.clone();
        subscriber.on(&view.ledger.tree, move |wake, old, new| {
            wake.records(record_ids(AllocationIndex::touched(&old.value, &new.value)));
            wake.records(record_ids(caches.waiting()));
        });
        let caches = self.caches.clone();
        subscriber.run(|_, ids| async move { caches.statuses.leftovers.watch(ids).await });
        let caches = self.caches.clone();
        subscriber.run(|wake, _| async move {
            loop {
                caches.statuses.leftovers.changed().await;
                wake.plan_claims();
            }
        });
    }

    fn has_leftovers(&self) -> bool {
        self.caches.statuses.leftovers.has_any()
    }

    fn left_behind(&self, records: &Records) -> BTreeSet<RecordId> {
        self.caches.statuses.leftovers.left_behind(records)
    }

    async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        // A cache that was not read yet shows no node, no drain and no healthy pod.
        self.caches.cluster.nodes.first_read().await;
        self.caches.cluster.records.first_read().await;
        self.caches.cluster.health.first_read().await;
        self.caches.cluster.ledger.tree.first_read().await;
        self.caches.prepare(oldest).await
    }

    fn rung(&self, id: &RecordId) {
        if let Ok(id) = id.as_str().parse() {
            self.caches.note_rung(id);
        }
    }

    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller> {
        let id = claimed.id.as_str().parse().expect("check_name has passed");
        let (ctx, caches) = (self.ctx.clone(), self.caches.clone());
        Box::new(RcController::new(ctx, claimed, id, caches, self.placement.clone()))
    }
}
