//! The farm's presence at `rcfarm/farms/<farm>`, and when it is written again.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::farm_loop::{Announced, Done, FarmLoop, SessionState};
use super::records::FarmPresence;
use rcfarm_api::ids::{FarmName, SessionId};
use rcfarm_api::{Stored, key};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Op, Store, StoreError, TxnOutcome};

/// Minimum time between two writes of a presence.
const PRESENCE_EVERY: Duration = Duration::from_secs(3);
/// A farm that takes longer than this to stop its tasks says that it leaves.
const LEAVING_AFTER: Duration = Duration::from_millis(100);

impl FarmLoop<'_> {
    /// Writes the farm's presence. Waits while another live farm has the name.
    pub(super) async fn take_name(&mut self, e: &mut SessionState) {
        let mut warned = false;
        loop {
            let presence = self.presence(e);
            let farm = &self.farm.settings.name;
            let store = self.farm.env.store.as_ref();
            match announce(store, farm, e.epoch.session(), &presence).await {
                Ok(true) => {
                    e.announced = Announced { said: Some(presence), at: Some(monotonic()) };
                    return;
                }
                Ok(false) if !warned => {
                    warned = true;
                    warn!(farm = %farm, "another live farm has this name: waiting for it to go; give each farm its own --name");
                }
                Ok(false) => {}
                Err(error) => warn!(%error, "the farm's presence cannot be written"),
            }
            sleep(Duration::from_millis(250)).await;
        }
    }

    fn presence(&self, e: &SessionState) -> FarmPresence {
        let settings = &self.farm.settings;
        let placement = (self.farm.placement)();
        let unusable = self.states.iter().flat_map(|state| {
            state.unusable.iter().take(20).map(|id| format!("{}{id}", state.spec.records))
        });
        FarmPresence {
            session: e.epoch.session().clone(),
            selector: settings.selector.to_string(),
            version: rcfarm_api::VERSION.to_owned(),
            since: e.since,
            claims: self
                .states
                .iter()
                .map(|state| (state.spec.name.to_owned(), state.running.len()))
                .collect(),
            scheduler: placement.scheduler,
            suspicions: self.untrusted_caches(),
            check_problem: e.check_problem.clone(),
            suspect_nodes: placement.suspect_nodes.into_keys().collect(),
            unusable_keys: unusable.collect(),
            leaving: false,
        }
    }

    /// Writes after a while that the farm is shutting down, so that no other hands it records. Most farms have stopped
    /// by then. Never returns.
    pub(super) fn announce_leaving(
        &self,
        e: &SessionState,
    ) -> impl Future<Output = Infallible> + Send + use<> {
        let has_name = e.announced.at.is_some();
        let presence = FarmPresence { leaving: true, ..self.presence(e) };
        let (store, epoch) = (self.farm.env.store.clone(), e.epoch.clone());
        let name = self.farm.settings.name.clone();
        async move {
            sleep(LEAVING_AFTER).await;
            if has_name && epoch.is_live() {
                let said = announce(store.as_ref(), &name, epoch.session(), &presence).await;
                if let Err(error) = said {
                    warn!(%error, "the farm cannot say that it leaves");
                }
            }
            std::future::pending::<Infallible>().await
        }
    }

    /// Caches that are untrusted (mass deletion guard, or entries hidden by ACLs), each with the reason.
    pub(super) fn untrusted_caches(&self) -> Vec<String> {
        self.caches.iter().filter_map(|cache| cache.untrusted()).collect()
    }

    /// Writes the presence again if it has changed or was deleted. Returns when to check again: when the next write is
    /// allowed, or when a node stops being suspect.
    pub(super) fn announce_again(&mut self, e: &mut SessionState) -> Option<Instant> {
        let presence = self.presence(e);
        let at = e.announced.at?;
        let peers = self.peers.snapshot();
        let shown = peers.value.value(&self.farm.settings.name);
        let shown = shown.is_some_and(|peer| peer.session == *e.epoch.session());
        if e.announced.said.as_ref() == Some(&presence) && (shown || !peers.is_read()) {
            return (self.farm.placement)().suspect_nodes.into_values().min();
        }
        let due = at + PRESENCE_EVERY;
        if monotonic() < due {
            return Some(due);
        }
        let (store, session) = (self.farm.env.store.clone(), e.epoch.session().clone());
        let (name, news) = (self.farm.settings.name.clone(), presence.clone());
        e.beside.push(Box::pin(async move {
            match announce(store.as_ref(), &name, &session, &news).await {
                Ok(_) => Done::Announced(Some(news)),
                Err(error) => {
                    warn!(%error, "the farm's presence cannot be renewed yet");
                    Done::Announced(None)
                }
            }
        }));
        e.announced = Announced { said: Some(presence), at: Some(monotonic()) };
        None
    }
}

/// Writes a farm's presence under its session; `false` when another live farm has the name.
///
/// # Errors
/// Any [`StoreError`].
async fn announce(
    store: &dyn Store,
    farm: &FarmName,
    session: &SessionId,
    presence: &FarmPresence,
) -> Result<bool, StoreError> {
    let value = presence.encode();
    let op = Op::Lock { key: key::farm(farm), value, session: session.clone() };
    Ok(matches!(store.txn(&[op]).await?, TxnOutcome::Committed { .. }))
}
