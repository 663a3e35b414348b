//! Writes where the members of a job are, for their nodes' agents ([`crate::job::peers`]).
//!
//! The records are written in the transaction of the plan if they fit into it, otherwise before it, in transactions of
//! their own. The status names all nodes that may have one before the first of these, and the addresses after the last:
//! an owner that takes over in between writes or deletes each of them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::step::PlannedStep;
use super::{BASE_OPS, JobController, JobView, RESERVED_BYTES};
use crate::farm::kind::{Action, ReconcileError};
use crate::farm::status_chain::{Change, Committed, RecordGuard};
use crate::job::manifest::Placed;
use crate::job::peers::{self, PeersChange};
use rcfarm_api::Stored;
use rcfarm_api::ids::NodeName;
use rcfarm_api::job::status::{JobStatus, PublishedPeers};
use rcfarm_store::{Index, Op, TxnLimits};

impl JobController {
    /// Adds the job's records to a step that was planned, or writes them before it. Returns what to do if they were
    /// refused: the step is then planned again.
    pub(super) async fn publish_peers(
        &mut self,
        input: &JobView,
        step: &mut PlannedStep,
    ) -> Result<Option<Action>, ReconcileError> {
        let Some(PeersChange { ops, published }) = self.peers_change(input, step)? else {
            return Ok(None);
        };
        if !ops.is_empty() && !self.fits_beside(step, &ops) {
            // Nothing can be sent under a status that is not there: the next step writes it.
            if self.chain.index() == Index::ZERO {
                return Ok(None);
            }
            let before = self.chain.status().peers.as_ref();
            if let Some(peers) = peers::announced(before, published.as_ref()) {
                return self.announce_peers(input.record_index, peers).await.map(Some);
            }
            if let Some(refused) =
                self.write_peers(RecordGuard::At(input.record_index), ops).await?
            {
                return Ok(Some(refused));
            }
        } else {
            step.ops.extend(ops);
        }
        step.plan.status.peers = published;
        Ok(None)
    }

    /// Writes which nodes may have a record from now on, and nothing else. The step is planned again.
    async fn announce_peers(
        &mut self,
        record: Index,
        peers: PublishedPeers,
    ) -> Result<Action, ReconcileError> {
        let status = JobStatus { peers: Some(peers), ..self.chain.status().clone() };
        let change = Change::of_status(RecordGuard::At(record), status);
        match self.chain.commit(change).await? {
            Committed::Applied(_) => Ok(Action::RequeueAfter(Duration::ZERO)),
            Committed::Refused(_) => Ok(self.after_refusal()),
        }
    }

    /// The change of the records that a step brings. `None`: they stay as they are.
    ///
    /// # Errors
    /// [`ReconcileError::Record`]: the members are on too many nodes to be sent the keys that they wait for.
    fn peers_change(
        &self,
        input: &JobView,
        step: &PlannedStep,
    ) -> Result<Option<PeersChange>, ReconcileError> {
        let before = step.plan.status.peers.as_ref();
        let phase = step.plan.status.state.phase;
        let is_over = step.plan.finished || input.record.read.spec.deleting || !phase.is_active();
        let job = &input.record.read.spec;
        let told = if is_over { BTreeSet::new() } else { peers::told_tasks(job) };
        if told.is_empty() {
            return Ok(before.map(|before| peers::change(&self.id, Some(before), None)));
        }
        // Without a placement nobody starts; those that run keep what they know.
        if input.group.places.is_none() {
            return Ok(None);
        }
        let (bound, ports) = (self.peer_nodes(input), self.given_ports(input));
        let address = |node: &NodeName| self.caches.address(node);
        let (id, uid, pod_ids) = (&self.id, input.uid, input.group.pod_ids);
        let (places, ports) = (&bound, &ports);
        let placed =
            Placed { id, uid, job, places, ports, address: &address, pod_ids, tasks: None };
        let revision = self.chain.status().revision;
        let mut record = peers::record(job, uid, revision, &placed.peers(), &told);
        record.ssh = self.keys.of(uid).cloned();
        let nodes: BTreeSet<NodeName> = bound.values().cloned().collect();
        if record.ssh.is_some() && !peers::fits(job, &record, &nodes) {
            // Members wait for their keys, and find each other by other means.
            record.tasks.clear();
        }
        let fits = peers::fits(job, &record, &nodes);
        if record.ssh.is_some() && !fits {
            let why = "its members are on too many nodes to be sent ssh keys: use fewer nodes";
            return Err(ReconcileError::Record(why.to_owned()));
        }
        let wanted = fits.then_some((&record, nodes));
        let change = peers::change(&self.id, before, wanted);
        let is_change = !change.ops.is_empty() || change.published.as_ref() != before;
        Ok(is_change.then_some(change))
    }

    /// Whether these operations fit into the transaction of a step.
    fn fits_beside(&self, step: &PlannedStep, ops: &[Op]) -> bool {
        let limits = self.ctx.limits;
        let all = || step.ops.iter().chain(ops);
        let bytes: usize = all().map(Op::body_bytes).sum();
        let reserved = RESERVED_BYTES.0 + RESERVED_BYTES.1 * step.ops.len();
        all().count() + BASE_OPS <= limits.ops
            && super::step::has_room_for(
                || step.plan.status.encode().len(),
                bytes + reserved,
                limits.bytes,
            )
    }

    /// Writes records in transactions that check the status, one after the other. Returns what to do if one was refused.
    pub(super) async fn write_peers(
        &mut self,
        record: RecordGuard,
        mut ops: Vec<Op>,
    ) -> Result<Option<Action>, ReconcileError> {
        if ops.is_empty() {
            return Ok(None);
        }
        self.chain.begin_dependents();
        let mut answers = Vec::new();
        while !ops.is_empty() && answers.iter().all(|one| matches!(one, Ok(Committed::Applied(_))))
        {
            let mut txn = self.chain.dependent(record);
            let limits = self.ctx.limits;
            let room =
                TxnLimits { ops: limits.ops, bytes: limits.bytes.saturating_sub(RESERVED_BYTES.0) };
            let mut fitting = 1;
            while fitting < ops.len() && txn.fits(&ops[..=fitting], room) {
                fitting += 1;
            }
            txn.extend(ops.drain(..fitting));
            answers.push(self.chain.commit_dependent(txn, None).await);
        }
        self.chain.end_dependents(&answers);
        match answers.pop() {
            Some(Ok(Committed::Refused(_))) => Ok(Some(self.after_refusal())),
            Some(Err(error)) => Err(error),
            Some(Ok(Committed::Applied(_))) | None => Ok(None),
        }
    }
}
