//! The transactions that make the pods of a batched start (see [`crate::job::batched_start`]).

use std::collections::VecDeque;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;
use tracing::{debug, info};

use super::{JobController, JobView};
use crate::farm::kind::{Action, ReconcileError};
use crate::job::caches::JobPendingWrites;
use crate::job::events;
use crate::job::labelled::LabelledMember;
use crate::job::manifest::Placed;
use crate::job::plan::Create;
use crate::job::writes::{self, Made};
use rcfarm_api::Stored;
use rcfarm_api::key;
use rcfarm_api::manifest::content_hash;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::{Commit, Fenced, Index, Op, Txn, TxnLimits};

/// So many of its transactions are under way at once.
const AT_ONCE: usize = 4;
/// Left for the audit record, which lists the pods once more: at least, and for each pod.
const AUDIT_BYTES: (usize, usize) = (4 * 1024, 200);

/// What became of a batched start.
#[derive(Default)]
struct BatchProgress {
    made: Vec<(Index, Vec<Made>)>,
    refused: bool,
    /// The last thing that went wrong.
    failed: Option<ReconcileError>,
    /// Whether one may yet be applied.
    unknown: bool,
}

impl BatchProgress {
    fn goes_on(&self) -> bool {
        !self.refused && self.failed.is_none()
    }

    fn take(&mut self, made: Vec<Made>, answer: Result<Commit, rcfarm_store::StoreError>) {
        match answer {
            Ok(Commit::Applied(index)) => self.made.push((index, made)),
            Ok(Commit::Refused(refusals)) => {
                debug!(?refusals, "refused: the batched start ends");
                self.refused = true;
            }
            Ok(Commit::ClaimLost) => self.failed = Some(ReconcileError::ClaimLost),
            Err(error) => {
                self.unknown |= error.outcome_unknown();
                if !matches!(self.failed, Some(ReconcileError::ClaimLost)) {
                    self.failed = Some(error.into());
                }
            }
        }
    }
}

impl JobController {
    /// Makes the pods that the status says are being started. When not all of them come through, it is looked at anew
    /// which have.
    pub(super) async fn send(
        &mut self,
        look: &JobView,
        rest: Vec<Create>,
    ) -> Result<Action, ReconcileError> {
        self.loose = true;
        let course = self.send_all(look, rest.into()).await;
        let BatchProgress { made, refused, failed, unknown } = course;
        self.loose = unknown;
        let count: usize = made.iter().map(|(_, made)| made.len()).sum();
        info!(record = %self.id, made = count, whole = !refused && failed.is_none(), "members started");
        for (index, made) in made {
            self.committed(index, made);
        }
        if let Some(error) = failed {
            self.behind = true;
            return Err(error);
        }
        if !refused {
            return Ok(Action::RequeueAfter(std::time::Duration::ZERO));
        }
        self.behind = true;
        self.claimed.records.refresh_soon();
        Ok(self.after_refusal())
    }

    /// Sends them, a few at once, until all are answered; after one that fails no other is begun.
    async fn send_all(&self, look: &JobView, mut rest: VecDeque<Create>) -> BatchProgress {
        let homes = self.homes(look);
        let address = |node: &_| self.caches.address(node);
        let job = &look.record.read.spec;
        let placed = Placed { id: &self.id, uid: look.uid, job, places: &homes, address: &address };
        let peers = placed.peers();
        let mut course = BatchProgress::default();
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < AT_ONCE && course.goes_on() && !rest.is_empty() {
                let (txn, made) = self.next_of(look, &placed, &peers, &mut rest);
                under_way.push(async move { (made, self.ctx.writer.commit(txn).await) });
            }
            let Some((made, answer)) = under_way.next().await else { return course };
            course.take(made, answer);
        }
    }

    /// As many pods as fit into one transaction, at least one.
    fn next_of(
        &self,
        look: &JobView,
        placed: &Placed<'_>,
        peers: &std::collections::BTreeMap<
            rcfarm_api::job::spec::Slot,
            crate::job::operator::ClusterPeer,
        >,
        rest: &mut VecDeque<Create>,
    ) -> (Txn<Fenced>, Vec<Made>) {
        let mut txn = Txn::under(&self.claimed.claim);
        let check = |key, index| Op::CheckIndex { key, index };
        txn.push(check(key::job(&self.id), look.record_index));
        // It replaces the chain: once the status is written again, nothing of this comes through.
        txn.push(check(key::job_status(&self.id), self.page.status.0));
        if !enabled(Failpoint::PlaceUnchecked) {
            txn.push(check(key::pod_group_status(&self.id), look.placed_at));
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
        let event = events::batched_start(&self.ctx, &self.id, &self.page.status.1, &created);
        txn.push(rcfarm_store::audit_op(self.ctx.ids.ordered_uuid(event.timestamp), &event));
        (txn, made)
    }

    fn committed(&mut self, index: Index, made: Vec<Made>) {
        let JobPendingWrites { pods, removed, .. } = &mut self.known;
        for Made { place, identity, manifest } in made {
            removed.remove(&place);
            let intent = (index, content_hash(manifest.as_bytes()));
            pods.insert(place, (LabelledMember { index, identity }, Some(intent)));
        }
        self.known.labels = self.known.labels.max(index);
        self.known.intents = self.known.intents.max(index);
        self.known.at = Some(Instant::now());
    }

    /// Whether something of a batched start may be under way that is not awaited here: of whoever planned before, or one whose
    /// answer was lost.
    pub(super) fn has_loose_ends(&self) -> bool {
        self.loose && self.page.status.1.is_starting()
    }

    /// Writes the status once more as it is: nothing that stands on the one before comes through after that.
    pub(super) async fn seal(&mut self) -> Result<(), ReconcileError> {
        let (index, status) = &self.page.status;
        let mut status = status.clone();
        status.revision += 1;
        let mut txn = Txn::under(&self.claimed.claim);
        let (key, value) = (key::job_status(&self.id), status.encode());
        txn.push(Op::Cas { key, value, flags: 0, index: *index });
        match self.ctx.writer.commit(txn).await? {
            Commit::Applied(index) => {
                self.page.status = (index, status);
                self.loose = false;
                Ok(())
            }
            Commit::ClaimLost => Err(ReconcileError::ClaimLost),
            Commit::Refused(_) => {
                let why = format!("{} was changed just now", key::job_status(&self.id));
                Err(ReconcileError::Elsewhere(why))
            }
        }
    }
}
