//! Transactions of a batched start (see [`crate::job::plan::batched_start`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tracing::info;

use super::{JobController, JobView};
use crate::farm::kind::{Action, ReconcileError};
use crate::farm::status_chain::{Committed, RecordGuard};
use crate::job::events;
use crate::job::frameworks::ClusterPeer;
use crate::job::manifest::Placed;
use crate::job::plan::Create;
use crate::job::writes::{self, Made};
use rcfarm_api::audit::AuditRecord;
use rcfarm_api::job::spec::Slot;
use rcfarm_api::key;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::{Fenced, Op, Txn, TxnLimits};

/// Limit of transactions in flight.
const IN_FLIGHT: usize = 4;
/// Bytes reserved for the audit record: fixed, and per pod.
const AUDIT_BYTES: (usize, usize) = (4 * 1024, 200);

type Answer = Result<Committed, ReconcileError>;

impl JobController {
    /// Creates the pods in `starting`. If a transaction fails, the next reconcile reads which pods exist.
    pub(super) async fn send(
        &mut self,
        input: &JobView,
        rest: Vec<Create>,
    ) -> Result<Action, ReconcileError> {
        self.chain.begin_dependents();
        let answers = self.send_all(input, rest.into()).await;
        self.chain.end_dependents(answers.iter().map(|(_, answer)| answer));
        let (mut count, mut refused, mut failed) = (0, false, None);
        for (made, answer) in answers {
            match answer {
                Ok(Committed::Applied(index)) => {
                    count += made.len();
                    for made in made {
                        self.known.made(made, index, &self.caches, &self.claimed.wake);
                    }
                }
                Ok(Committed::Refused(_)) => refused = true,
                Err(ReconcileError::ClaimLost) => failed = Some(ReconcileError::ClaimLost),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        info!(record = %self.id, made = count, whole = !refused && failed.is_none(), "members started");
        match failed {
            Some(error) => Err(error),
            None if refused => Ok(self.after_refusal()),
            None => Ok(Action::RequeueAfter(Duration::ZERO)),
        }
    }

    /// Sends the transactions and awaits all answers. After a failure no new one is sent.
    async fn send_all(
        &self,
        input: &JobView,
        mut rest: VecDeque<Create>,
    ) -> Vec<(Vec<Made>, Answer)> {
        let bound = self.peer_nodes(input);
        let address = |node: &_| self.caches.address(node);
        let job = &input.record.read.spec;
        let pod_ids = input.group.pod_ids;
        let (id, uid) = (&self.id, input.uid);
        let (places, ports) = (&bound, &self.given_ports(input));
        let tasks = self.chain.status().array.as_ref().map(|array| &array.members);
        let placed = Placed { id, uid, job, places, ports, address: &address, pod_ids, tasks };
        let peers = placed.peers();
        let mut answers: Vec<(Vec<Made>, Answer)> = Vec::new();
        let mut under_way = FuturesUnordered::new();
        loop {
            let goes_on = answers.iter().all(|(_, a)| matches!(a, Ok(Committed::Applied(_))));
            while under_way.len() < IN_FLIGHT && goes_on && !rest.is_empty() {
                let (txn, made, event) = self.next_txn(input, &placed, &peers, &mut rest);
                under_way.push(async move {
                    let answer = self.chain.commit_dependent(txn, Some(&event)).await;
                    (made, answer)
                });
            }
            let Some(answered) = under_way.next().await else { return answers };
            answers.push(answered);
        }
    }

    /// Takes the next transaction's pods from `rest`: as many as fit, at least one.
    fn next_txn(
        &self,
        input: &JobView,
        placed: &Placed<'_>,
        peers: &BTreeMap<Slot, ClusterPeer>,
        rest: &mut VecDeque<Create>,
    ) -> (Txn<Fenced>, Vec<Made>, AuditRecord) {
        let mut txn = self.chain.dependent(RecordGuard::At(input.record_index));
        if !enabled(Failpoint::PlaceUnchecked) {
            let key = key::pod_group_status(&self.id);
            txn.push(Op::CheckIndex { key, index: input.placed_at });
        }
        let (mut created, mut made) = (Vec::new(), Vec::new());
        while let Some(create) = rest.pop_front() {
            let Some(one) = writes::made_one(placed, &create, peers) else { continue };
            let ops = writes::create_ops(placed.job, &one);
            let limits = self.ctx.limits;
            let audit = AUDIT_BYTES.0 + AUDIT_BYTES.1 * (made.len() + 1);
            let bytes = limits.bytes.saturating_sub(audit);
            let room = TxnLimits { ops: limits.ops.saturating_sub(1), bytes };
            if !made.is_empty() && !txn.fits(&ops, room) {
                rest.push_front(create);
                break;
            }
            txn.extend(ops);
            made.push(one);
            created.push(create);
        }
        let event = events::batched_start(&self.ctx, &self.id, self.chain.status(), &created);
        (txn, made, event)
    }
}
