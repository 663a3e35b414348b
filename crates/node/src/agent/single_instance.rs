//! Check before the start of a single instance: no other node may still run it.
//!
//! 1. The agent announces the pod: it writes `status/pods/<pod>/<node>` in a fenced transaction. Consul refuses it
//!    unless the pod's intent here is unchanged and the node's session holds. From then on every other agent sees it.
//! 2. It lists the other nodes that announced the pod. Where the pod is also intended, it is another replica. Where it
//!    is not, it is being stopped and the agent waits: an agent deletes the status once no process is left.
//! 3. A node without a session stops its single instances before its lease ends. The agent waits that long.
//!
//! A controller moves the intent from one node to another in one transaction. If the first node announced before that
//! transaction, the second sees it. Otherwise the announcement is refused. So both never run the pod at once.
//!
//! Keys read: `status/pods/<pod>/`, `intent/<node>/<pod>` of those nodes, `rcfarm/nodes/<node>`. Key written:
//! `status/pods/<pod>/<node>`. A crash after the announcement leaves the status, which the next agent adopts or
//! deletes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep};
use tracing::{debug, info};

use super::event::{AgentEvent, PresenceState};
use super::proof::ReportBasis;
use super::report::{PodReport, guard};
use rcfarm_api::Stored;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::node::status::IntentIndex;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Commit, Op, Query, Store, StoreError, Txn, TxnLimits, TxnOutcome, Writer};

const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Assumed lease of a node whose record has no `lease_ms`.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

pub(super) struct SingleInstanceCheck {
    pub(super) store: Arc<dyn Store>,
    pub(super) presence: PresenceState,
    pub(super) node: NodeName,
    pub(super) pod: PodId,
    /// The intent that the pod is run for.
    pub(super) intent: IntentIndex,
    /// Names that intent.
    pub(super) report: PodReport,
    pub(super) events: UnboundedSender<AgentEvent>,
}

impl SingleInstanceCheck {
    /// Checks until no other node runs the pod or the session is lost.
    pub(super) async fn run(self) {
        let mut gone_since = BTreeMap::new();
        let mut announced = false;
        while self.presence.claim.is_live() {
            match self.check(&mut announced, &mut gone_since).await {
                // Not intended here, or by another version: the next read of the intents shows it.
                Ok(None) => announced = false,
                Ok(Some(others)) if others.is_empty() => {
                    let _ = self.events.send(AgentEvent::SingleInstance(self.pod));
                    return;
                }
                Ok(Some(others)) => {
                    let _ = self.events.send(AgentEvent::OtherNodes(self.pod.clone(), others));
                }
                Err(error) => {
                    debug!(pod = %self.pod, %error, "cannot read which nodes run the pod")
                }
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Nodes that may still run the pod although it is not intended there. `None`: it is not intended here.
    async fn check(
        &self,
        announced: &mut bool,
        gone_since: &mut BTreeMap<NodeName, Instant>,
    ) -> Result<Option<Vec<NodeName>>, StoreError> {
        if !*announced && !self.announce().await? {
            return Ok(None);
        }
        *announced = true;
        let Some(unintended) = self.unintended().await? else { return Ok(None) };
        let mut others = Vec::new();
        for node in unintended {
            if self.may_live(&node, gone_since).await? {
                others.push(node);
            }
        }
        Ok(Some(others))
    }

    /// Writes the status. `false`: that intent is not there any more, or the claim is lost.
    async fn announce(&self) -> Result<bool, StoreError> {
        let mut txn = Txn::under(&self.presence.claim);
        txn.extend(guard(&self.node, &self.pod, ReportBasis::Intent(self.intent)));
        txn.push(self.report.announcement(&self.node, &self.pod));
        let committed = Writer::new(self.store.clone()).commit(txn).await?;
        Ok(matches!(committed, Commit::Applied(_)))
    }

    /// Other nodes that announced the pod and where it is not intended. The intents are read in one transaction: a
    /// controller that moves the pod there and back must not make it look intended on both nodes.
    async fn unintended(&self) -> Result<Option<Vec<NodeName>>, StoreError> {
        let prefix = key::statuses_of_pod(&self.pod);
        let announced = self.store.keys(&prefix, None, Query::CONSISTENT).await?.value;
        let nodes = announced.iter().filter_map(|key| prefix.tail(key)?.parse::<NodeName>().ok());
        let others: Vec<NodeName> = nodes.filter(|node| *node != self.node).collect();
        let mut unintended = Vec::new();
        let chunks = others.chunks(TxnLimits::default().ops - 1);
        for some in chunks.chain(others.is_empty().then_some(&[][..])) {
            let nodes = [std::slice::from_ref(&self.node), some].concat();
            let get = |node| Op::Get { key: key::intent(node, &self.pod) };
            let ops: Vec<Op> = nodes.iter().map(get).collect();
            // The refusal names every absent key.
            if let TxnOutcome::Refused(absent) = self.store.txn(&ops).await? {
                if absent.iter().any(|refusal| refusal.op == 0) {
                    return Ok(None);
                }
                unintended
                    .extend(absent.iter().filter_map(|refusal| nodes.get(refusal.op)).cloned());
            }
        }
        Ok(Some(unintended))
    }

    /// Whether a node may still run the pod: it has a session, or its lease has not ended since it lost the session.
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
        let lease = lease.map_or(DEFAULT_LEASE, Duration::from_millis);
        let since = *gone_since.entry(node.clone()).or_insert_with(monotonic);
        let is_alive = monotonic() - since < lease;
        if !is_alive {
            info!(pod = %self.pod, %node, "the lease of the other node has ended");
        }
        Ok(is_alive)
    }
}
