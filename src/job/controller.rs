//! Controller of one claimed job: reads, plans, commits one transaction.

mod batched_start;
mod hook;
mod job_type;
mod keys;
mod publish;
mod step;
mod view;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::{info, warn};
use uuid::Uuid;

use super::caches::{JobCaches, KnownPods, Page};
use super::collect_orphans::{self, collect_orphans};
use super::events;
use super::failpoints;
use super::peers;
use super::plan::{GroupStep, JobObserved, JobPlan, plan};
use crate::cluster::job_pods::LabelledMember;
use crate::farm::kind::{
    Action, ClaimedRecord, Controller, ControllerContext, ReconcileError, ReconcileResult,
};
use crate::farm::metrics::RecordGauges;
use crate::farm::status_chain::{
    ChainedStatus, Change, Committed, RecordGuard, Revisioned, StatusChain, StatusWrite,
};
use crate::job::controller::hook::HookCalls;
use crate::job::controller::keys::OwnedKeys;
use crate::job::controller::step::PlannedStep;
use crate::job::controller::view::{DecodedJob, JobView};
use rcfarm_api::audit::{AuditRecord, Details};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::job::status::{JobMembers, JobOwner, JobReason, JobStatus};
use rcfarm_api::key;
use rcfarm_api::manifest::command_line::cut;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_api::{FieldError, Stored, Timestamp};
use rcfarm_store::cache::Overlay;
use rcfarm_store::sealing::KeySealing;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Index, Key, Op, offload};

/// Interval between attempts to collect orphans, while nodes stop the pods.
const COLLECT_EVERY: Duration = Duration::from_secs(1);
/// Concurrent reads of pods that the caches do not show.
const CONCURRENT_READS: usize = 8;
/// Operations in every transaction: fence, record, status, audit.
const BASE_OPS: usize = 4;
/// [`BASE_OPS`], PodGroup and its status, and a command (two). Pods get the rest, less the doorbell of the job's owner if
/// it has one.
const FIXED_OPS: usize = BASE_OPS + 4;
/// Operations that remove a pod ([`writes::remove_ops`]). At least one pod fits, however low the limit.
const POD_OPS: usize = 3;
/// Limit of plans merged into one transaction, if they change no pods.
const MERGED_PLANS: usize = 8;
/// Bytes reserved in each transaction: fixed, and per pod for the audit record, which repeats the pods.
const RESERVED_BYTES: (usize, usize) = (64 * 1024, 200);
/// Longer errors are cut, in bytes.
const LONGEST_ERROR: usize = 4 * 1024;

/// Controller of one claimed job.
pub struct JobController {
    ctx: ControllerContext,
    claimed: ClaimedRecord,
    id: Namespaced,
    caches: Arc<JobCaches>,
    chain: StatusChain<JobStatus>,
    /// PodGroup record as last written or read, with its ModifyIndex. `None` with an index: it cannot be decoded.
    group: (Index, Option<PodGroupRecord>),
    known: KnownPods,
    owner: JobOwner,
    /// Problems of the record that the log has named.
    warned: Option<String>,
    /// Executed commands that the cache may still show. A restored snapshot may bring one back.
    consumed: Overlay<Uuid, ()>,
    /// Decoded record and its ModifyIndex.
    decoded: Option<(Index, Arc<DecodedJob>)>,
    /// TTL of a job whose document names none.
    default_ttl: Option<Duration>,
    /// Whether this owner has read all pods' states at least once since it claimed the job.
    has_read_states: bool,
    /// Whether it waits for other jobs.
    is_waiting: bool,
    /// Its ssh keys.
    keys: OwnedKeys,
    /// Calls of the server that its type names.
    hook: HookCalls,
}

impl Revisioned for JobStatus {
    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }
}

impl ChainedStatus for JobStatus {
    fn observed_index(&self) -> Index {
        self.observed_index
    }

    /// Refuses to start from an empty status: counts would be lost, and a finished job would run again.
    fn unreadable(key: &Key, error: &FieldError) -> Result<Self, ReconcileError> {
        Err(ReconcileError::Record(format!(
            "{key} is not valid ({error}): correct it, or delete it to start the job again"
        )))
    }

    fn gauges(&self) -> Option<RecordGauges> {
        let JobMembers { pending, running, succeeded, failed, .. } = &self.members;
        let pods = [
            ("pending", *pending),
            ("running", *running),
            ("succeeded", *succeeded),
            ("failed", *failed),
        ];
        Some(RecordGauges {
            state: self.state.phase.to_string(),
            is_quarantined: self.quarantined_until.is_some(),
            placement: None,
            pods: pods.map(|(count, number)| (count, u64::from(number))).into(),
        })
    }

    fn has_dependents(&self) -> bool {
        // Records of peers are under way as long as the status has no hash of them.
        self.is_starting() || self.peers.as_ref().is_some_and(|peers| peers.hash.is_empty())
    }
}

impl Drop for JobController {
    fn drop(&mut self) {
        self.caches.note_group(&self.id, true);
        self.stop_waiting();
    }
}

impl JobController {
    /// Starts from the status and group that the caches read before the claim, if any.
    #[must_use]
    pub fn new(
        ctx: ControllerContext,
        claimed: ClaimedRecord,
        id: Namespaced,
        caches: Arc<JobCaches>,
        default_ttl: Option<Duration>,
        sealing: KeySealing,
    ) -> JobController {
        let (status, group) = match caches.take_page(&id) {
            Some(Page { status, group, .. }) => (Some(status), group),
            None => (None, Default::default()),
        };
        let keys = (key::job(&id), key::job_status(&id));
        let chain = StatusChain::new(&ctx, &claimed, keys, status);
        caches.note_job(&id);
        let owner = JobOwner { farm: ctx.farm.clone(), since: ctx.clock.wall() };
        JobController {
            ctx,
            claimed,
            id,
            caches,
            chain,
            group,
            known: KnownPods::default(),
            owner,
            warned: None,
            consumed: Overlay::default(),
            decoded: None,
            default_ttl,
            has_read_states: false,
            is_waiting: false,
            keys: OwnedKeys::new(sealing),
            hook: HookCalls::default(),
        }
    }

    /// Reads status and group, then the pods.
    async fn refresh(&mut self) -> Result<(), ReconcileError> {
        self.chain.refresh().await?;
        self.group = self.caches.read_group(&self.id).await?;
        self.caches.note_group(&self.id, self.group.0 > Index::ZERO);
        self.caches.catch_up().await?;
        self.known = std::mem::take(&mut self.known).caught_up();
        self.chain.caught_up();
        Ok(())
    }

    /// The plan for a job with this status. `room`: limit of pods that one transaction creates and removes.
    fn decide(&self, input: &JobView, status: &JobStatus, room: usize) -> JobPlan {
        let job = failpoints::change_job(&input.record.read.spec);
        let older = input.pods.abandoned(input.uid, false);
        let mut plan = plan(&JobObserved {
            id: &self.id,
            uid: input.uid,
            job: &job,
            immutable_hash: input.record.immutable_hash,
            requestless_hash: input.record.requestless_hash,
            status,
            pods: &input.pods.own,
            leaving: &input.pods.leaving,
            orphans: input.pods.orphans.len() + older.count(),
            unlabelled: input.pods.unlabelled.len()
                - input.pods.abandoned(input.uid, false).count(),
            older: input.pods.older,
            unowned: &input.unowned,
            mismatched: !input.pods.mismatched.is_empty(),
            taken: &input.taken,
            group: &input.group,
            commands: &input.commands,
            may_remove: self.caches.may_remove(),
            room,
            now: failpoints::change_now(status, self.ctx.clock.wall()),
        });
        failpoints::change_plan(status, &mut plan);
        plan
    }

    /// Plans the next transaction with as many pods as fit.
    fn plan_step(&self, input: &JobView) -> Result<PlannedStep, ReconcileError> {
        let fixed = FIXED_OPS + usize::from(input.record.owner.is_some());
        let mut room = (self.ctx.limits.ops.saturating_sub(fixed) / 2).max(1);
        let old = self.chain.status();
        // The status may be that of an older job of this name.
        let before = if old.uid == input.uid { old.state.phase } else { JobPhase::Pending };
        loop {
            let step = self.build_step(input, self.merged_plan(input, room), before, room)?;
            match (self.fits(&step, room), room) {
                (true, _) => return Ok(step),
                (false, 1) => {
                    let why = "it is too large for a Consul transaction: shorten its pod template";
                    return Err(ReconcileError::Record(why.to_owned()));
                }
                (false, _) => room = (room * 2 / 3).max(1),
            }
        }
    }

    /// The next plan, and those that follow from it while they change the phase and no pods: phases that nobody acts
    /// upon need no transaction of their own.
    fn merged_plan(&self, input: &JobView, room: usize) -> JobPlan {
        let mut plan = self.decide(input, self.chain.status(), room);
        let mut asked = plan.asked;
        for _ in 0..MERGED_PLANS {
            let changes_pods = !plan.create.is_empty()
                || !plan.remove.is_empty()
                || !plan.adopt.is_empty()
                || plan.release
                || plan.collect_orphans;
            // A plan that changes nothing would be made again.
            let is_settled = plan.status == *self.chain.status();
            if changes_pods || plan.consume.is_some() || plan.finished || is_settled {
                break;
            }
            let next = self.decide(input, &plan.status, room);
            if next.status.state.phase == plan.status.state.phase {
                break;
            }
            asked = asked.or(next.asked);
            plan = next;
        }
        plan.asked = asked;
        plan
    }

    /// Whether a step with at most `room` pods fits into one transaction.
    fn fits(&self, step: &PlannedStep, room: usize) -> bool {
        let limits = self.ctx.limits;
        let ops: usize = step.ops.iter().map(Op::body_bytes).sum();
        let reserved = RESERVED_BYTES.0 + RESERVED_BYTES.1 * room;
        let status = || step.plan.status.encode().len();
        step.ops.len() + BASE_OPS <= limits.ops.max(FIXED_OPS + POD_OPS)
            && step::has_room_for(status, ops + reserved, limits.bytes)
    }

    /// Deletes what is left of a job without a record: pods, group, status and commands.
    async fn delete_leftovers(&mut self) -> ReconcileResult {
        if !self.caches.may_remove() {
            return Ok(Action::RequeueAfter(COLLECT_EVERY));
        }
        self.confirm_removed().await?;
        let status = self.chain.status().clone();
        let pods = self.caches.pods_of(&self.id, status.uid, &self.known, None);
        let commands = self.commands();
        let room = self.ctx.limits.ops.saturating_sub(FIXED_OPS).max(POD_OPS);
        let collection = collect_orphans(&self.id, &self.group, &pods, &commands, room);
        let has_status = self.chain.index() > Index::ZERO;
        let has_keys = collection.is_last && self.has_keys().await?;
        if collection.ops.is_empty() && !(collection.is_last && (has_status || has_keys)) {
            if collection.is_last {
                self.caches.forget_job(&self.id);
            }
            return Ok(Action::RequeueAfter(COLLECT_EVERY));
        }
        let peers = peers::change(&self.id, status.peers.as_ref(), None).ops;
        if collection.is_last
            && let Some(refused) = self.write_peers(RecordGuard::Absent, peers).await?
        {
            return Ok(refused);
        }
        let audit = vec![collect_orphans::audited(&self.ctx, &self.id, &status, &collection)];
        let status = match collection.is_last {
            true => StatusWrite::Delete,
            false => StatusWrite::Leave,
        };
        let (record, mut ops) = (RecordGuard::Absent, collection.ops);
        ops.extend(has_keys.then(|| Op::Delete { key: key::job_keys(&self.id) }));
        match self.chain.commit(Change { record, status, ops, shared: Vec::new(), audit }).await? {
            Committed::Applied(index) => {
                info!(record = %self.id, pods = collection.pods.len(), last = collection.is_last,
                    "record deleted: collected its orphans");
                // Other state is read again.
                for (place, identity) in collection.pods {
                    self.known.remove(place, identity.slot, index, &self.caches);
                }
                self.chain.fall_behind();
                Ok(Action::RequeueAfter(Duration::ZERO))
            }
            Committed::Refused(_) => {
                self.chain.fall_behind();
                Ok(Action::RequeueAfter(COLLECT_EVERY))
            }
        }
    }

    /// Completes the status of a step. Returns whether the step changes anything.
    fn is_change(&self, record_index: Index, step: &mut PlannedStep) -> bool {
        let (old, status) = (self.chain.status(), &mut step.plan.status);
        status.owner = Some(self.owner.clone());
        status.observed_index = record_index;
        (status.revision, status.last_reconcile_time) = (old.revision, old.last_reconcile_time);
        (status.last_error, status.quarantined_until) = (None, None);
        !step.ops.is_empty() || *status != *old || step.plan.finished
    }

    /// Commits a step, unless it changes nothing.
    async fn commit_step(&mut self, input: JobView, mut step: PlannedStep) -> ReconcileResult {
        let now = self.ctx.clock.wall();
        if !self.is_change(input.record_index, &mut step) {
            return Ok(self.next_action(&step.plan, now));
        }
        step.plan.status.last_reconcile_time = Some(now);
        if step.group.is_some() {
            self.caches.note_group(&self.id, true);
        }
        let mut ops = std::mem::take(&mut step.ops);
        let status = if step.plan.finished {
            ops.push(Op::DeleteCas { key: key::job(&self.id), index: input.record_index });
            let has_keys = self.chain.status().ssh_key.is_some();
            ops.extend(has_keys.then(|| Op::Delete { key: key::job_keys(&self.id) }));
            StatusWrite::Delete
        } else {
            StatusWrite::Replace(step.plan.status.clone())
        };
        let PlannedStep { plan, before, removed, released, .. } = &step;
        let before = (*before, self.chain.status().uid != input.uid);
        let event = events::step(&self.ctx, &self.id, input.uid, before, plan, removed, released);
        let (record, audit) = (RecordGuard::At(input.record_index), event.into_iter().collect());
        match self.chain.commit(Change { record, status, ops, shared: Vec::new(), audit }).await? {
            Committed::Applied(index) => {
                let rest = std::mem::take(&mut step.rest);
                let may_rest = step.plan.status.state.phase.is_final() && !step.changes_pods();
                self.committed(step, index);
                match rest.is_empty() {
                    true if may_rest => self.follow_up(input, now),
                    true => Ok(Action::RequeueAfter(Duration::ZERO)),
                    false => self.send(&input, rest).await,
                }
            }
            Committed::Refused(_) => Ok(self.after_refusal()),
        }
    }

    /// What follows the transaction that ended a job: mostly nothing, so that it need not be read again. What has changed
    /// since its input was read wakes the controller.
    fn follow_up(&mut self, mut input: JobView, now: Timestamp) -> ReconcileResult {
        input.group = self.observed_group(&input.record.read, input.uid)?;
        input.commands = self.commands();
        let mut next = self.plan_step(&input)?;
        match self.is_change(input.record_index, &mut next) {
            true => Ok(Action::RequeueAfter(Duration::ZERO)),
            false => Ok(self.next_action(&next.plan, now)),
        }
    }

    /// Requeues after a refused transaction; refreshes the caches that the plan depends on.
    fn after_refusal(&mut self) -> Action {
        self.caches.commands.refresh_soon();
        self.caches.groups.refresh_soon();
        self.chain.after_refusal()
    }

    /// Records group, commands and pods after a step that was committed at `index`, before the caches show them.
    fn committed(&mut self, mut step: PlannedStep, index: Index) {
        let group = step.group.take();
        let PlannedStep { plan, made, removed, before, .. } = &step;
        self.consumed.forget_shown(&self.caches.commands.snapshot());
        if let Some(command) = &plan.consume {
            self.consumed.wrote(command.id, None, index);
        }
        if plan.status.state.phase != *before || !made.is_empty() || !removed.is_empty() {
            info!(record = %self.id, phase = %plan.status.state.phase, reason = plan.status.state.reason,
                made = made.len(), removed = removed.len(), "job changed");
        }
        if plan.group == GroupStep::Delete {
            self.group = (Index::ZERO, None);
        } else if let Some(group) = group {
            self.group = (index, Some(group));
        }
        self.caches.note_group(&self.id, self.group.0 > Index::ZERO);
        if plan.finished {
            self.caches.forget_job(&self.id);
        }
        self.record_pods(step, index);
    }

    /// Records the pods after a step that was committed at `index`.
    fn record_pods(&mut self, step: PlannedStep, index: Index) {
        let known = &mut self.known;
        for (place, slot) in step.removed {
            known.remove(place, slot, index, &self.caches);
        }
        step.released.into_iter().for_each(|place| known.labels.wrote(place, None, index));
        for made in step.made {
            known.made(made, index, &self.caches, &self.claimed.wake);
        }
        for (place, identity) in step.adopted {
            info!(record = %self.id, pod = %place.pod, node = %place.node, "adopted");
            known.labels.wrote(place, Some(Arc::new(LabelledMember { index, identity })), index);
        }
    }

    /// Time of the next reconcile if nothing changes before.
    fn next_action(&mut self, plan: &JobPlan, now: Timestamp) -> Action {
        if plan.status.state.phase.is_final() {
            // Saves memory: there may be 10,000 finished jobs.
            self.decoded = None;
        }
        let due = plan
            .wake_at
            .map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO));
        let unseen = self.known.removed.values().filter_map(|pod| pod.unseen(monotonic())).max();
        match [due, unseen].into_iter().flatten().min() {
            Some(pause) => Action::RequeueAfter(pause.max(Duration::from_millis(10))),
            None => Action::AwaitChange,
        }
    }

    /// Writes the problems of the record into the status, and logs them once.
    async fn report_invalid(
        &mut self,
        record_index: Index,
        uid: JobUid,
        problems: &[FieldError],
    ) -> Result<(), ReconcileError> {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let problems = cut(&problems.join("; "), LONGEST_ERROR);
        if self.warned.as_ref() != Some(&problems) {
            warn!(alert = true, key = %key::job(&self.id), why = problems,
                "the job is not valid; its pods are left as they are");
            self.warned = Some(problems.clone());
        }
        self.report_unready(record_index, uid, JobReason::InvalidRecord, problems).await
    }

    /// Says in the status why nothing is done for the record.
    async fn report_unready(
        &mut self,
        record_index: Index,
        uid: JobUid,
        reason: JobReason,
        why: String,
    ) -> Result<(), ReconcileError> {
        let mut status = self.status_of(uid);
        self.note_first_phase(&mut status);
        status.say_meanwhile(reason, &why);
        status.last_error = Some(why);
        self.write_status(record_index, status).await
    }

    /// The status to continue from; of an older job of the name it keeps what is to be replaced or deleted.
    fn status_of(&self, uid: JobUid) -> JobStatus {
        let status = self.chain.status().clone();
        if status.uid == uid {
            return status;
        }
        let JobStatus { revision, peers, ssh_key, .. } = status;
        JobStatus { uid, revision, peers, ssh_key, ..JobStatus::default() }
    }

    /// Dates the phase of a status that no plan has written yet.
    fn note_first_phase(&self, status: &mut JobStatus) {
        if status.state.last_transition_time == Timestamp::default() {
            status.state.last_transition_time = self.ctx.clock.wall();
        }
    }

    /// Writes only the status, if it changes.
    async fn write_status(
        &mut self,
        record_index: Index,
        mut status: JobStatus,
    ) -> Result<(), ReconcileError> {
        status.owner = Some(self.owner.clone());
        status.observed_index = record_index;
        if status == *self.chain.status() {
            return Ok(());
        }
        self.commit_status(RecordGuard::At(record_index), status, Vec::new()).await.map(drop)
    }

    /// Commits a status with these operations.
    async fn commit_status(
        &mut self,
        record: RecordGuard,
        mut status: JobStatus,
        ops: Vec<Op>,
    ) -> Result<Committed, ReconcileError> {
        status.owner = Some(self.owner.clone());
        if let RecordGuard::At(index) = record {
            status.observed_index = index;
        }
        let mut change = Change { ops, ..Change::of_status(record, status) };
        let known = self.chain.status().uid;
        if let StatusWrite::Replace(status) = &change.status
            && known != JobUid::default()
            && known != status.uid
        {
            // Otherwise the log would name the earlier job of the name.
            let details = Details::JobStep(events::unasked(&self.ctx, &self.id, status));
            change.audit.push(AuditRecord::new(&details, self.ctx.clock.wall()));
        }
        self.chain.commit(change).await
    }
}

#[async_trait]
impl Controller for JobController {
    async fn reconcile(&mut self) -> ReconcileResult {
        if self.chain.is_behind() {
            self.refresh().await?;
        }
        let seen = self.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.claimed.id) else {
            return self.delete_leftovers().await;
        };
        let rung = self.caches.answer_bell(&self.id).await?;
        self.known.read(rung, &self.caches, &self.claimed.wake);
        let mut input = match self.read_input(record).await? {
            Ok(input) => input,
            Err(action) => return Ok(action),
        };
        if self.waits_for_others(&input).await? {
            return Ok(Action::AwaitChange);
        }
        if let Some(action) = self.ensure_keys(&mut input).await? {
            return Ok(action);
        }
        let mut step = offload(input.record.size(), || self.plan_step(&input)).await?;
        if self.read_stopped(&input, &step).await? {
            input = match self.read_input(record).await? {
                Ok(again) => again,
                Err(action) => return Ok(action),
            };
            if let Some(action) = self.ensure_keys(&mut input).await? {
                return Ok(action);
            }
            step = offload(input.record.size(), || self.plan_step(&input)).await?;
        }
        if let Some(refused) = self.publish_peers(&input, &mut step).await? {
            return Ok(refused);
        }
        self.commit_step(input, step).await
    }

    async fn report_quarantine(
        &mut self,
        error: &str,
        pause: Duration,
    ) -> Result<(), ReconcileError> {
        let seen = self.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.claimed.id) else { return Ok(()) };
        if self.chain.is_behind() {
            self.refresh().await?;
        }
        let mut status = self.chain.status().clone();
        self.note_first_phase(&mut status);
        status.say_meanwhile(JobReason::Quarantined, error);
        status.last_error = Some(cut(error, LONGEST_ERROR));
        status.quarantined_until = self.ctx.clock.wall().checked_add(pause).ok();
        self.write_status(record.index, status).await
    }
}
