//! Replication controllers as a kind of record: data, subscriptions and hooks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::caches::RcCaches;
use super::controller::{PlacementSources, RcController};
use crate::cluster::allocations::AllocationIndex;
use crate::cluster::health::Healths;
use crate::cluster::intents::IntentIndex;
use crate::cluster::pods::PodLabels;
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, Kind, KindSpec, RecordCheck,
};
use crate::farm::wake_queue::{FarmEvent, WakeQueue};
use rcfarm_api::Stored;
use rcfarm_api::ids::RcId;
use rcfarm_api::ids::RecordId;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::rc::spec::{RcRecord, RcSpec};
use rcfarm_store::cache::Snapshot;
use rcfarm_store::{Index, StoreError};

/// Replication controllers as a kind of record.
#[must_use]
pub fn spec() -> KindSpec {
    KindSpec {
        check_name,
        needs_labels: true,
        reads: vec![key::labels(LabelKind::Node), key::nodes(), key::healths()],
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
            remedy: "mend or delete them; a p2 farm on the same tree stops at them altogether",
        }],
        ..KindSpec::new(
            "rc",
            key::rcs(),
            key::rc_locks(),
            key::labels(LabelKind::ReplicationController),
        )
    }
}

fn check_name(tail: &str) -> Result<(), String> {
    match tail.parse::<RcId>() {
        Err(_) => {
            Err("it is no UUID; p2's farms stop at such a key: move it elsewhere or delete it"
                .to_owned())
        }
        Ok(id) if id.to_string() != tail => {
            Err(format!("it is not how keys spell a UUID: write the record under {}", key::rc(id)))
        }
        Ok(_) => Ok(()),
    }
}

fn check_record(tail: &str, value: &[u8]) -> Result<(), String> {
    check_name(tail)?;
    let id = tail.parse().map_err(|error: uuid::Error| error.to_string())?;
    let record = RcRecord::decode(value).map_err(|bad| bad.to_string())?;
    RcSpec::check(id, &record).map(drop).map_err(|bad| bad.to_string())
}

/// Controllers of replication controllers.
pub struct RcKind {
    ctx: ControllerContext,
    caches: Arc<RcCaches>,
    placement: PlacementSources,
}

impl RcKind {
    /// The kind, over a world that it watches.
    #[must_use]
    pub fn new(ctx: ControllerContext, caches: Arc<RcCaches>, placement: PlacementSources) -> Self {
        RcKind { ctx, caches, placement }
    }
}

fn touched(ids: impl IntoIterator<Item = RcId>) -> FarmEvent {
    FarmEvent::Changed(ids.into_iter().map(|id| RecordId::from(id.to_string().as_str())).collect())
}

/// Whoever waits for a tree to be trusted again need not have a pod in it.
fn trust_changed<T>(wake_queue: &WakeQueue, old: &Snapshot<T>, new: &Snapshot<T>) {
    if !new.is_trusted_as(old) {
        wake_queue.push(FarmEvent::All);
    }
}

#[async_trait]
impl Kind for RcKind {
    fn watches(&self, wake_queue: &Arc<WakeQueue>) -> Vec<BoxFuture<'static, ()>> {
        let ids = || self.ctx.ids.fork();
        let (view, caches) = (self.caches.cluster.clone(), self.caches.clone());
        let nodes = {
            let wake_queue = wake_queue.clone();
            view.nodes.clone().watch(ids(), move |old, new| {
                if old.value.labels != new.value.labels {
                    wake_queue.push(FarmEvent::All);
                }
                trust_changed(&wake_queue, old, new);
            })
        };
        let records = {
            let wake_queue = wake_queue.clone();
            view.records.clone().watch(ids(), move |old, new| {
                if old.value != new.value {
                    wake_queue.push(FarmEvent::All);
                }
            })
        };
        let lost = {
            let (wake_queue, view) = (wake_queue.clone(), view.clone());
            async move {
                // A second's delay at most, and no wake-up to miss.
                let mut pending = None;
                loop {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    if pending.is_some_and(|at| at <= Instant::now()) {
                        wake_queue.push(FarmEvent::All);
                    }
                    pending = view.next_change();
                }
            }
        };
        let pods = {
            let (wake_queue, view, caches) = (wake_queue.clone(), view.clone(), caches.clone());
            view.pods.clone().watch(ids(), move |old, new| {
                wake_queue.push(touched(PodLabels::touched(&old.value, &new.value)));
                if old.value.has_pods_of_jobs() != new.value.has_pods_of_jobs() {
                    wake_queue.push(FarmEvent::Claims);
                }
                if PodLabels::has_lost_pods(&old.value, &new.value) {
                    wake_queue.push(touched(caches.waiting()));
                }
                trust_changed(&wake_queue, old, new);
            })
        };
        let intents = {
            let (wake_queue, view, caches) = (wake_queue.clone(), view.clone(), caches.clone());
            view.intents.clone().watch(ids(), move |old, new| {
                let places = IntentIndex::touched(&old.value, &new.value);
                wake_queue.push(touched(view.owners(places)));
                if IntentIndex::has_lost_keys(&old.value, &new.value) {
                    wake_queue.push(touched(caches.waiting()));
                }
                trust_changed(&wake_queue, old, new);
            })
        };
        let health = {
            let (wake_queue, view) = (wake_queue.clone(), view.clone());
            view.health.clone().watch(ids(), move |old, new| {
                view.note_failures(&old.value, &new.value);
                let places = Healths::touched(&old.value, &new.value);
                wake_queue.push(touched(view.owners(places)));
                trust_changed(&wake_queue, old, new);
            })
        };
        let allocations = {
            let (wake_queue, view, caches) = (wake_queue.clone(), view.clone(), caches.clone());
            view.ledger.tree.clone().watch(ids(), move |old, new| {
                let mut touched_ids = AllocationIndex::touched(&old.value, &new.value);
                touched_ids.extend(caches.waiting());
                wake_queue.push(touched(touched_ids));
            })
        };
        let statuses = {
            let (wake_queue, caches, ids) = (wake_queue.clone(), caches.clone(), ids());
            async move {
                let tell = move |misplaced: BTreeSet<RcId>| wake_queue.push(touched(misplaced));
                caches.statuses.watch(ids, tell).await;
            }
        };
        vec![
            Box::pin(statuses),
            Box::pin(nodes),
            Box::pin(records),
            Box::pin(lost),
            Box::pin(pods),
            Box::pin(intents),
            Box::pin(health),
            Box::pin(allocations),
        ]
    }

    async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        // Unread, these would show no node, no drain and no healthy pod.
        self.caches.cluster.nodes.first_read().await;
        self.caches.cluster.records.first_read().await;
        self.caches.cluster.health.first_read().await;
        self.caches.cluster.ledger.tree.first_read().await;
        self.caches.prepare(oldest).await
    }

    fn confirm(&self) {
        self.caches.cluster.nodes.confirm();
        self.caches.cluster.pods.confirm();
        self.caches.cluster.intents.confirm();
        self.caches.cluster.health.confirm();
    }

    fn untrusted_caches(&self) -> Vec<String> {
        let (nodes, pods) =
            (self.caches.cluster.nodes.snapshot(), self.caches.cluster.pods.snapshot());
        let (intents, health) =
            (self.caches.cluster.intents.snapshot(), self.caches.cluster.health.snapshot());
        let seen = [
            (self.caches.cluster.nodes.prefix(), nodes.untrusted),
            (self.caches.cluster.pods.prefix(), pods.untrusted),
            (self.caches.cluster.intents.prefix(), intents.untrusted),
            (self.caches.cluster.health.prefix(), health.untrusted),
        ];
        let suspicious = seen.into_iter().filter_map(|(prefix, why)| Some((prefix, why?)));
        suspicious.map(|(prefix, why)| format!("{prefix}: {why}")).collect()
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
