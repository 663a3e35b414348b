//! Before a single instance is started: no other node may still run it.
//!
//! 1. The agent announces the pod: it writes `status/pods/<pod>/<node>` in a transaction that is refused unless the pod
//!    is intended here and the node's session holds. From then on every other agent sees it.
//! 2. It looks at who else has announced the pod. Where it is intended, too, it is another replica. Where it is not,
//!    it is being stopped, and is waited for: an agent takes its status away when nothing of the pod lives any more.
//! 3. A node that is gone stops its own single instances when its lease ends; it is waited for so long.
//!
//! A controller takes the intent from one node and gives it to another in one transaction. If the first node announced
//! before that, the second sees it; if not, the announcement is refused. So there is no moment at which both run it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep};
use tracing::{debug, info};

use super::presence::PresenceState;
use super::run::AgentEvent;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::node::status::PodStatus;
use rcfarm_store::{Commit, Op, Query, Store, StoreError, Txn, TxnLimits, TxnOutcome, Writer};

/// How often the others are looked at while one is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A node that does not say how long its lease is may have it for so long.
const LONGEST_LEASE: Duration = Duration::from_secs(30);

/// Asks for one pod.
pub(super) struct Asking {
    pub(super) store: Arc<dyn Store>,
    pub(super) presence: PresenceState,
    pub(super) node: NodeName,
    pub(super) pod: PodId,
    /// What is announced.
    pub(super) status: PodStatus,
    pub(super) events: UnboundedSender<AgentEvent>,
}

impl Asking {
    /// Asks until nobody else runs the pod, or the session is gone.
    pub(super) async fn run(self) {
        let mut gone_since = BTreeMap::new();
        let mut announced = false;
        while self.presence.claim.is_live() {
            match self.look(&mut announced, &mut gone_since).await {
                // The next read of the intents tells why, unless the intent is back already.
                Ok(None) => announced = false,
                Ok(Some(others)) if others.is_empty() => {
                    let _ = self.events.send(AgentEvent::SingleInstance(self.pod));
                    return;
                }
                Ok(Some(others)) => {
                    let _ = self.events.send(AgentEvent::Others(self.pod.clone(), others));
                }
                Err(error) => debug!(pod = %self.pod, %error, "cannot see who else runs the pod"),
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Nodes that may still run the pod though it is not intended there any more; `None`: it is not intended here.
    async fn look(
        &self,
        announced: &mut bool,
        gone_since: &mut BTreeMap<NodeName, Instant>,
    ) -> Result<Option<Vec<NodeName>>, StoreError> {
        if !*announced && !self.announce().await? {
            return Ok(None);
        }
        *announced = true;
        let Some(unwanted) = self.unwanted().await? else { return Ok(None) };
        let mut others = Vec::new();
        for node in unwanted {
            if self.may_live(&node, gone_since).await? {
                others.push(node);
            }
        }
        Ok(Some(others))
    }

    /// `false`: the pod is not intended here, or the node may not write.
    async fn announce(&self) -> Result<bool, StoreError> {
        let mut txn = Txn::under(&self.presence.claim);
        // Refused unless the key is there.
        txn.push(Op::Get { key: key::intent(&self.node, &self.pod) });
        let key = key::pod_status(&self.pod, &self.node);
        txn.push(Op::Set { key, value: self.status.encode(), flags: 0 });
        let committed = Writer::new(self.store.clone()).commit(txn).await?;
        Ok(matches!(committed, Commit::Applied(_)))
    }

    /// Nodes that have announced the pod, and where it is not intended. Whether it is intended here and there is read
    /// at one index: a controller that moves it there and back must not make both look wanted.
    async fn unwanted(&self) -> Result<Option<Vec<NodeName>>, StoreError> {
        let prefix = key::statuses_of_pod(&self.pod);
        let told = self.store.keys(&prefix, None, Query::CONSISTENT).await?.value;
        let nodes = told.iter().filter_map(|key| prefix.tail(key)?.parse::<NodeName>().ok());
        let others: Vec<NodeName> = nodes.filter(|node| *node != self.node).collect();
        let mut unwanted = Vec::new();
        let chunks = others.chunks(TxnLimits::default().ops - 1);
        for some in chunks.chain(others.is_empty().then_some(&[][..])) {
            let nodes = [std::slice::from_ref(&self.node), some].concat();
            let get = |node| Op::Get { key: key::intent(node, &self.pod) };
            let ops: Vec<Op> = nodes.iter().map(get).collect();
            // An absent key refuses the transaction; all of them are named.
            if let TxnOutcome::Refused(absent) = self.store.txn(&ops).await? {
                if absent.iter().any(|refusal| refusal.op == 0) {
                    return Ok(None);
                }
                unwanted.extend(absent.iter().filter_map(|refusal| nodes.get(refusal.op)).cloned());
            }
        }
        Ok(Some(unwanted))
    }

    /// Whether something of the pod may live on a node that should have stopped it.
    async fn may_live(
        &self,
        node: &NodeName,
        gone_since: &mut BTreeMap<NodeName, Instant>,
    ) -> Result<bool, StoreError> {
        let entry = self.store.get(&key::node(node), Query::CONSISTENT).await?.value;
        if entry.as_ref().is_some_and(|entry| entry.session.is_some()) {
            gone_since.remove(node);
            return Ok(true);
        }
        let record = entry.and_then(|entry| NodeRecord::decode(&entry.value).ok());
        let lease = record.and_then(|record| record.lease_ms);
        let lease = lease.map_or(LONGEST_LEASE, Duration::from_millis);
        let since = *gone_since.entry(node.clone()).or_insert_with(Instant::now);
        let is_alive = since.elapsed() < lease;
        if !is_alive {
            info!(pod = %self.pod, %node, "the node is gone, and with its lease what it ran");
        }
        Ok(is_alive)
    }
}
