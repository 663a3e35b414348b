//! What a farm must know to claim RCs and run their tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::cluster_view::{ClusterView, Healths, IntentIndex, PodLabels};
use super::controller::{PlacementSources, RcController};
use crate::farm::cache::{FarmEvent, Snapshot, WakeQueue};
use crate::farm::kind::{ClaimedRecord, Controller, ControllerContext, Kind, RecordId};
use crate::ids::{NodeName, RcId};
use crate::schedule::allocation_cache::AllocationIndex;
use crate::store::key::{self, LabelKind};
use crate::store::{Index, Prefix, StoreError};

/// Replication controllers as a kind of record.
pub struct RcKind {
    site: ControllerContext,
    world: Arc<ClusterView>,
    placement: PlacementSources,
}

impl RcKind {
    /// The kind, over a world that it watches.
    #[must_use]
    pub fn new(
        site: ControllerContext,
        world: Arc<ClusterView>,
        placement: PlacementSources,
    ) -> Self {
        RcKind { site, world, placement }
    }
}

fn touched(ids: impl IntoIterator<Item = RcId>) -> FarmEvent {
    FarmEvent::Changed(ids.into_iter().map(|id| RecordId::from(id.to_string().as_str())).collect())
}

/// Whoever waits for a tree to be trusted again need not have a pod in it.
fn trust_changed<T>(inbox: &WakeQueue, old: &Snapshot<T>, new: &Snapshot<T>) {
    if !new.is_trusted_as(old) {
        inbox.post(FarmEvent::All);
    }
}

#[async_trait]
impl Kind for RcKind {
    fn name(&self) -> &'static str {
        "rc"
    }

    fn records(&self) -> Prefix {
        key::rcs()
    }

    fn locks(&self) -> Prefix {
        key::rc_locks()
    }

    fn labels(&self) -> Prefix {
        key::labels(LabelKind::ReplicationController)
    }

    fn trees(&self) -> Vec<Prefix> {
        vec![
            key::labels(LabelKind::Node),
            key::nodes(),
            key::labels(LabelKind::Pod),
            key::intents(),
            key::healths(),
            key::rc_statuses(),
            key::allocations(),
        ]
    }

    fn sentinels(&self) -> Vec<Prefix> {
        vec![key::nodes()]
    }

    fn needs_labels(&self) -> bool {
        true
    }

    fn check_name(&self, tail: &str) -> Result<(), String> {
        match tail.parse::<RcId>() {
            Err(_) => {
                Err("it is no UUID; p2's farms stop at such a key: move it elsewhere or delete it"
                    .to_owned())
            }
            Ok(id) if id.to_string() != tail => Err(format!(
                "it is not how keys spell a UUID: write the record under {}",
                key::rc(id)
            )),
            Ok(_) => Ok(()),
        }
    }

    fn watches(&self, inbox: &Arc<WakeQueue>) -> Vec<BoxFuture<'static, ()>> {
        let ids = || self.site.ids.fork();
        let world = self.world.clone();
        let nodes = {
            let inbox = inbox.clone();
            world.nodes.clone().watch(ids(), move |old, new| {
                if old.value.labels != new.value.labels {
                    inbox.post(FarmEvent::All);
                }
                trust_changed(&inbox, old, new);
            })
        };
        let records = {
            let inbox = inbox.clone();
            world.records.clone().watch(ids(), move |old, new| {
                if old.value != new.value {
                    inbox.post(FarmEvent::All);
                }
            })
        };
        let lost = {
            let (inbox, world) = (inbox.clone(), world.clone());
            async move {
                // A second's delay at most, and no wake-up to miss.
                let mut pending = None;
                loop {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    if pending.is_some_and(|at| at <= Instant::now()) {
                        inbox.post(FarmEvent::All);
                    }
                    pending = world.next_change();
                }
            }
        };
        let pods = {
            let (inbox, world) = (inbox.clone(), world.clone());
            world.pods.clone().watch(ids(), move |old, new| {
                inbox.post(touched(PodLabels::touched(&old.value, &new.value)));
                if old.value.has_pods_of_jobs() != new.value.has_pods_of_jobs() {
                    inbox.post(FarmEvent::Claims);
                }
                if PodLabels::freed(&old.value, &new.value) {
                    inbox.post(touched(world.waiting()));
                }
                trust_changed(&inbox, old, new);
            })
        };
        let intents = {
            let (inbox, world) = (inbox.clone(), world.clone());
            world.intents.clone().watch(ids(), move |old, new| {
                let places = IntentIndex::touched(&old.value, &new.value);
                inbox.post(touched(world.owners(places)));
                if IntentIndex::freed(&old.value, &new.value) {
                    inbox.post(touched(world.waiting()));
                }
                trust_changed(&inbox, old, new);
            })
        };
        let health = {
            let (inbox, world) = (inbox.clone(), world.clone());
            world.health.clone().watch(ids(), move |old, new| {
                world.note_failures(&old.value, &new.value);
                let places = Healths::touched(&old.value, &new.value);
                inbox.post(touched(world.owners(places)));
                trust_changed(&inbox, old, new);
            })
        };
        let promises = {
            let (inbox, world) = (inbox.clone(), world.clone());
            world.ledger.tree.clone().watch(ids(), move |old, new| {
                let mut touched_ids = AllocationIndex::touched(&old.value, &new.value);
                touched_ids.extend(world.waiting());
                inbox.post(touched(touched_ids));
            })
        };
        let statuses = {
            let (inbox, world, ids) = (inbox.clone(), world.clone(), ids());
            async move {
                let tell = move |astray: BTreeSet<RcId>| inbox.post(touched(astray));
                world.statuses.watch(ids, tell).await;
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
            Box::pin(promises),
        ]
    }

    async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        // Unread, these would show no node, no drain and no healthy pod.
        self.world.nodes.first_read().await;
        self.world.records.first_read().await;
        self.world.health.first_read().await;
        self.world.ledger.tree.first_read().await;
        self.world.prepare(oldest).await
    }

    fn confirm(&self) {
        self.world.nodes.confirm();
        self.world.pods.confirm();
        self.world.intents.confirm();
        self.world.health.confirm();
    }

    fn suspicions(&self) -> Vec<String> {
        let (nodes, pods) = (self.world.nodes.seen(), self.world.pods.seen());
        let (intents, health) = (self.world.intents.seen(), self.world.health.seen());
        let seen = [
            (self.world.nodes.prefix(), nodes.suspicion),
            (self.world.pods.prefix(), pods.suspicion),
            (self.world.intents.prefix(), intents.suspicion),
            (self.world.health.prefix(), health.suspicion),
        ];
        let suspicious = seen.into_iter().filter_map(|(prefix, why)| Some((prefix, why?)));
        suspicious.map(|(prefix, why)| format!("{prefix}: {why}")).collect()
    }

    fn suspects(&self) -> BTreeMap<NodeName, Instant> {
        self.world.suspects()
    }

    fn scheduler(&self) -> Option<String> {
        self.placement.scheduler.address()
    }

    fn rung(&self, id: &RecordId) {
        if let Ok(id) = id.as_str().parse() {
            self.world.note_rung(id);
        }
    }

    fn controller(&self, post: ClaimedRecord) -> Box<dyn Controller> {
        let id = post.id.as_str().parse().expect("check_name has passed");
        let (site, world) = (self.site.clone(), self.world.clone());
        Box::new(RcController::new(site, post, id, world, self.placement.clone()))
    }
}
