//! The node's registration: its session, record, labels and lease.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::event::{AgentEvent, PresenceState};
use super::state::{DataDir, replace};
use super::{AgentSettings, LONGEST_PAUSE, SERVICE};
use crate::procfs::since_boot;
use rcfarm_api::ids::SessionId;
use rcfarm_api::labels::{Labels, decode_labels, encode_labels};
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::{Stored, backoff, key};
use rcfarm_store::session::{FarmMember, Keeper, KeptSession};
use rcfarm_store::time::monotonic;
use rcfarm_store::watch::LONGEST_WAIT;
use rcfarm_store::{
    Behavior, Claim, Entry, Env, Index, NewSession, Op, Query, StoreError, Txn, TxnOutcome,
};

/// Keeps the node registered.
pub(super) struct AgentPresence {
    pub(super) env: Env,
    pub(super) settings: Arc<AgentSettings>,
    pub(super) data: Arc<DataDir>,
    pub(super) events: UnboundedSender<AgentEvent>,
    pub(super) disk: Mutex<DiskProblem>,
}

/// Time for which the data directory must be writable until a problem is over: a pod may fill a disk again and again.
const MENDED_AFTER: Duration = Duration::from_secs(20);

/// What is wrong with the data directory.
#[derive(Debug, Default)]
pub(super) struct DiskProblem {
    why: Option<String>,
    /// When it could last not be written.
    failed_at: Option<Instant>,
}

impl DiskProblem {
    /// Takes in the result of a write. Returns whether a problem has begun or is over. Pure.
    fn has_changed(&mut self, found: Option<String>, now: Instant) -> bool {
        let Some(why) = found else {
            let is_over = self.failed_at.is_some_and(|at| now >= at + MENDED_AFTER);
            return is_over && std::mem::take(self).why.is_some();
        };
        self.failed_at = Some(now);
        self.why.replace(why).is_none()
    }
}

enum Registered {
    Done(PresenceState),
    /// Another agent's session holds the record.
    Taken,
    /// The record or the labels changed meanwhile: try again.
    Conflict,
}

impl AgentPresence {
    /// Registers the node and registers it again after each lost session, until `shutdown`.
    pub(super) async fn run(self, shutdown: CancellationToken) {
        let member = FarmMember {
            service: SERVICE,
            service_id: format!("{SERVICE}-{}", self.settings.name),
            meta: ("node", self.settings.name.to_string()),
            behavior: Behavior::Release,
        };
        let keeper = Keeper::new(&self.env, member, self.settings.session.clone());
        self.end_old_sessions().await;
        let (mut failures, mut is_refused) = (0, false);
        while !shutdown.is_cancelled() {
            let ended = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                ended = self.session(&keeper) => ended,
            };
            match ended {
                Ok(()) => (failures, is_refused) = (0, false),
                Err(error) => {
                    failures += 1;
                    if matches!(error, StoreError::Forbidden { .. }) && !is_refused {
                        is_refused = true;
                        error!(alert = true, node = %self.settings.name, %error,
                            "Consul refuses the agent's token: its pods keep running, and nothing is started or stopped");
                    }
                    if failures == 1 || failures % 10 == 0 {
                        let fix = error.tls_remedy();
                        warn!(%error, failures, fix, "the node cannot be registered; its pods keep running");
                    }
                }
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = sleep(self.env.ids.jitter(pause(failures), 0.5)) => {}
            }
        }
    }

    /// Ends the sessions of the previous agent, to save the wait until they expire. The data directory's lock makes
    /// sure that the previous agent has ended.
    async fn end_old_sessions(&self) {
        for session in self.data.memory().sessions {
            if let Err(error) = self.env.store.destroy_session(&session).await {
                warn!(%session, %error, "the previous agent's session cannot be ended; it will expire");
            }
        }
    }

    /// Runs one session from its creation to its end.
    async fn session(&self, keeper: &Arc<Keeper>) -> Result<(), StoreError> {
        let kept = keeper.open().await?;
        let served = self.serve(keeper, &kept).await;
        let _ = self.events.send(AgentEvent::SessionLost);
        keeper.close(kept, false).await;
        served
    }

    async fn serve(&self, keeper: &Arc<Keeper>, kept: &KeptSession) -> Result<(), StoreError> {
        let ttl = self.settings.session.session_ttl;
        let health = NewSession {
            name: format!("{SERVICE} {} health", self.settings.name),
            ttl: Some(ttl),
            lock_delay: Duration::ZERO,
            behavior: Behavior::Delete,
            checks: kept.check().into_iter().collect(),
        };
        let health = self.env.store.create_session(&health).await?;
        let sessions = vec![kept.epoch().session().clone(), health.clone()];
        if let Err(error) = self.data.remember(|memory| memory.sessions = sessions) {
            warn!(%error, "the session cannot be stored; the next agent waits until it expires");
        }
        let work = async {
            self.register(kept, &health).await?;
            self.keep_registered(keeper, kept, &health).await;
            Ok(())
        };
        let served = tokio::select! {
            biased;
            () = kept.epoch().ended() => Ok(()),
            served = work => served,
        };
        let _ = self.env.store.destroy_session(&health).await;
        served
    }

    async fn register(&self, kept: &KeptSession, health: &SessionId) -> Result<(), StoreError> {
        let mut is_logged = false;
        loop {
            match self.try_register(kept, health).await? {
                Registered::Done(presence_state) => {
                    info!(node = %self.settings.name, session = %kept.epoch().session(), "node registered");
                    let _ = self.write_lease(kept);
                    let _ = self.events.send(AgentEvent::Presence(presence_state));
                    return Ok(());
                }
                Registered::Conflict => {}
                Registered::Taken => {
                    if !is_logged {
                        warn!(alert = true, node = %self.settings.name,
                            "another agent has this node's name; this one starts nothing until it is gone");
                        is_logged = true;
                    }
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    async fn try_register(
        &self,
        kept: &KeptSession,
        health: &SessionId,
    ) -> Result<Registered, StoreError> {
        let (store, name) = (&self.env.store, &self.settings.name);
        let at = key::node(name);
        let entry = store.get(&at, Query::CONSISTENT).await?.value;
        let session = kept.epoch().session();
        if entry.as_ref().and_then(|entry| entry.session.as_ref()).is_some_and(|s| s != session) {
            return Ok(Registered::Taken);
        }
        let old = entry.as_ref().and_then(|entry| NodeRecord::decode(&entry.value).ok());
        let labels_at = key::node_labels(name);
        let labelled = store.get(&labels_at, Query::CONSISTENT).await?.value;
        let mut txn = Txn::by_user();
        txn.push(guard(&at, entry.as_ref()));
        let value = self.record(old.as_ref(), kept).encode();
        txn.push(Op::Lock { key: at.clone(), value, session: session.clone() });
        let stored = labelled.as_ref().map(|entry| decode_labels(&entry.value));
        match stored.transpose() {
            Ok(stored) => {
                let stored = stored.unwrap_or_default();
                let labels = self.labels(old.as_ref(), &stored);
                // An empty set is written too: farms find nodes by the keys under `labels/node/`.
                if labels != stored || labelled.is_none() {
                    let index = labelled.map_or(Index::ZERO, |entry| entry.modify_index);
                    let value = encode_labels(&labels);
                    txn.push(Op::Cas { key: labels_at, value, flags: 0, index });
                }
            }
            Err(error) => warn!(alert = true, key = %labels_at, %error,
                "the node's labels cannot be read and are left as they are"),
        }
        match store.txn(txn.ops()).await? {
            TxnOutcome::Refused(_) => Ok(Registered::Conflict),
            TxnOutcome::Committed { .. } => Ok(Registered::Done(PresenceState {
                claim: Claim::new(at, kept.epoch().clone()),
                health: health.clone(),
                has_check: kept.check().is_some(),
            })),
        }
    }

    /// The record after registration. The agent's own fields are replaced; all others stay, such as `drain`.
    fn record(&self, old: Option<&NodeRecord>, kept: &KeptSession) -> NodeRecord {
        let settings = &self.settings;
        let lease = settings.session.check_ttl.unwrap_or(settings.session.session_ttl);
        NodeRecord {
            address: settings.address.clone(),
            http: settings.http.clone(),
            log_socket: settings.serves_logs.then(|| self.data.log_socket().display().to_string()),
            labels: settings.labels.clone(),
            capacity: settings.capacity.clone(),
            ports: settings.ports,
            agent_version: Some(rcfarm_api::VERSION.to_owned()),
            session: Some(kept.epoch().session().clone()),
            problem: self.problem(kept),
            lease_ms: u64::try_from(lease.as_millis()).ok(),
            ..old.cloned().unwrap_or_default()
        }
    }

    /// What an operator must see to: a data directory that cannot be written, or else a check that cannot be used.
    fn problem(&self, kept: &KeptSession) -> Option<String> {
        let of_disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner).why.clone();
        of_disk.or_else(|| {
            let (why, fix) = kept.check_problem().zip(kept.check_fix())?;
            Some(format!("the Consul agent refuses the node agent's check: {why}; {fix}"))
        })
    }

    /// The labels after registration: the agent's settings, and those that others set. A label that an earlier agent
    /// set, and that has not changed since, is removed if the settings no longer have it.
    fn labels(&self, old: Option<&NodeRecord>, stored: &Labels) -> Labels {
        let mut labels = stored.clone();
        for (name, value) in old.iter().flat_map(|old| &old.labels) {
            if labels.get(name) == Some(value) {
                labels.remove(name);
            }
        }
        labels.extend(self.settings.labels.clone());
        labels
    }

    /// Renews lease and health session. Resolves when the session or the node's record is lost.
    async fn keep_registered(&self, keeper: &Arc<Keeper>, kept: &KeptSession, health: &SessionId) {
        tokio::select! {
            biased;
            () = self.keep_lease(kept, health) => {}
            () = keeper.renew_until_gone(health) => {}
            () = self.watch_record(kept) => {
                warn!(node = %self.settings.name, "the lock on the node's record was lost; registering again");
            }
        }
    }

    /// Rewrites the lease file, which the shims read, at most 500 ms after the session was renewed.
    async fn keep_lease(&self, kept: &KeptSession, health: &SessionId) {
        let mut written = kept.epoch().good_until();
        while kept.epoch().is_live() {
            sleep(Duration::from_millis(500)).await;
            if kept.epoch().good_until() != written {
                written = kept.epoch().good_until();
                let has_changed = self.write_lease(kept);
                if has_changed && let Err(error) = self.try_register(kept, health).await {
                    warn!(%error, "the node's record cannot be written");
                }
            }
        }
    }

    /// Resolves when another session holds the node's record, or none. An operator may have ended the session or
    /// deleted the record. Other agents start single instances one lease later, so the pods here must stop by then.
    async fn watch_record(&self, kept: &KeptSession) {
        let at = key::node(&self.settings.name);
        let (mut query, mut failures) = (Query::CONSISTENT, 0);
        loop {
            match self.env.store.get(&at, query).await {
                Ok(answer) => {
                    let holder = answer.value.and_then(|entry| entry.session);
                    if holder.as_ref() != Some(kept.epoch().session()) {
                        return;
                    }
                    failures = 0;
                    query = Query::after(answer.index, LONGEST_WAIT);
                }
                Err(error) => {
                    debug!(%error, "the node's record cannot be read");
                    query = Query::CONSISTENT;
                    failures += 1;
                    sleep(self.env.ids.jitter(pause(failures), 0.5)).await;
                }
            }
        }
    }

    /// Returns whether the node's record has to say something else now.
    fn write_lease(&self, kept: &KeptSession) -> bool {
        let rest = kept.epoch().good_until().saturating_duration_since(monotonic());
        let until = since_boot() + u64::try_from(rest.as_millis()).unwrap_or(0);
        let written = replace(&self.data.lease(), until.to_string().as_bytes());
        let found =
            written.err().map(|error| format!("the data directory cannot be written: {error}"));
        let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = disk.has_changed(found, monotonic());
        match &disk.why {
            Some(why) if has_changed => error!(alert = true, node = %self.settings.name, why,
                "the lease cannot be written: single instances will be stopped"),
            None if has_changed => {
                info!(node = %self.settings.name, "the lease can be written again");
            }
            _ => {}
        }
        has_changed
    }
}

/// Pause after `failures` in a row.
fn pause(failures: u32) -> Duration {
    backoff(Duration::from_millis(200), LONGEST_PAUSE, failures)
}

fn guard(key: &rcfarm_store::Key, entry: Option<&Entry>) -> Op {
    match entry {
        Some(entry) => Op::CheckIndex { key: key.clone(), index: entry.modify_index },
        None => Op::CheckNotExists { key: key.clone() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_that_fills_again_and_again_is_one_problem() {
        let mut disk = DiskProblem::default();
        let begin = monotonic();
        let mut at = |second: u64, fails: bool| {
            let found = fails.then(|| "full".to_owned());
            (disk.has_changed(found, begin + Duration::from_secs(second)), disk.why.is_some())
        };
        assert_eq!(at(0, false), (false, false));
        assert_eq!(at(1, true), (true, true));
        for second in (2..60).step_by(2) {
            assert_eq!(at(second, false), (false, true));
            assert_eq!(at(second + 1, true), (false, true));
        }
        assert_eq!(at(79, false), (true, false), "20 s after the last failure");
        assert_eq!(at(80, false), (false, false));
        assert_eq!(at(81, true), (true, true));
    }
}
