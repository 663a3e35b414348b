//! Controller of one claimed scheduler record: reads, plans, commits.

mod asking;
mod queues;
mod set_aside;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tracing::warn;

use self::asking::GangScheduler;
use self::set_aside::GroupsSetAside;
use super::bounds::Bounds;
use super::caches::SchedulerCaches;
use super::failpoints;
use super::placing::PlacementChange;
use super::plan::{BatchObserved, BatchPlan, GroupStatuses, PassMemory, plan};
use super::queues::Queues;
use super::waits::{EndedWait, GroupWaits};
use super::writes::{PlacementBatch, QueueBook, audited, batch, revised};
use crate::cluster::allocations::booked_node;
use crate::cluster::cells::{self, StoredCells};
use crate::cluster::priority_classes::KeptClasses;
use crate::cluster::queues::{GroupIndex, QueueIndex};
use crate::farm::kind::{Action, ClaimedRecord, Controller, ControllerContext, ReconcileError};
use crate::farm::metrics::RecordGauges;
use crate::farm::status_chain::{
    ChainedStatus, Change, Committed, RecordGuard, Revisioned, StatusChain, StatusWrite,
};
use crate::placement::Scheduler;
use crate::placement::capacity::Fleet;
use crate::placement::cells::held;
use rcfarm_api::audit::{Actor, AuditRecord, Details, GroupsOrdered};
use rcfarm_api::ids::{NodeName, ObjectName, QueueName};
use rcfarm_api::key;
use rcfarm_api::labels::Selector;
use rcfarm_api::node::record::DrainJobs;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::{PodGroupReason, PodGroupStatus};
use rcfarm_api::priority_class::PriorityClasses;
use rcfarm_api::queue::status::{Counters, QueueStatus};
use rcfarm_api::scheduler::spec::{SchedulerRecord, SchedulerSpec};
use rcfarm_api::scheduler::status::SchedulerStatus;
use rcfarm_api::{FieldError, Stored, Timestamp};
use rcfarm_store::list_surely;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Index, Op, Query, StoreError, Versioned, offload};

/// Limit of groups placed in one pass.
const PLACED_PER_PASS: usize = 500;
/// Limit of the comparisons of nodes in one pass, about 10 ms.
const STEPS_PER_PASS: usize = 200_000;
/// Minimum interval between transactions that only update the messages of waiting groups.
const MESSAGES_EVERY: Duration = Duration::from_millis(250);
/// Poll interval while a group waits for capacity: capacity freed by other controllers wakes nobody.
const ROOM_EVERY: Duration = Duration::from_secs(1);
/// Interval between searches for orphaned allocations, which only writes by others can cause.
const ORPHAN_SEARCH_EVERY: Duration = Duration::from_secs(60);

/// Controller of one claimed scheduler record.
pub struct SchedulerController {
    ctx: ControllerContext,
    claimed: ClaimedRecord,
    me: ObjectName,
    caches: Arc<SchedulerCaches>,
    gangs: GangScheduler,
    chain: StatusChain<SchedulerStatus>,
    groups: GroupStatuses,
    /// Groups whose status cannot be decoded. They are left unchanged, since their allocations are unknown.
    unreadable: BTreeSet<GroupId>,
    set_aside: GroupsSetAside,
    queues: QueueBook,
    classes: KeptClasses,
    since: Timestamp,
    memory: PassMemory,
    waits: GroupWaits,
    /// When the reconcile under way began.
    begun: Instant,
    /// The last pass, if it found nothing to do.
    idle: Option<IdlePass>,
    /// Whether to recount the queues: the statuses were read again and may have been changed by others.
    to_recount: bool,
    /// Next time for updating messages.
    messages_at: Instant,
    /// Next time for the search for orphaned allocations.
    orphan_search_at: Instant,
    /// What is wrong with the record, as the log was told.
    alerted: Option<String>,
    /// `false` once Consul has forbidden to create the default queue.
    may_make_queues: bool,
}

impl Revisioned for SchedulerStatus {
    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }
}

impl ChainedStatus for SchedulerStatus {
    fn observed_index(&self) -> Index {
        self.observed_index
    }

    fn gauges(&self) -> Option<RecordGauges> {
        let state = if self.last_error.is_some() { "Failing" } else { "Active" };
        let is_quarantined = self.quarantined_until.is_some();
        let state = state.to_owned();
        Some(RecordGauges { state, is_quarantined, ..RecordGauges::default() })
    }
}

/// A pass that found nothing to do, and its input. With equal input there is nothing to do until its next time.
struct IdlePass {
    spec: SchedulerSpec,
    queues: Arc<QueueIndex>,
    classes: PriorityClasses,
    groups: Arc<GroupIndex>,
    cells: Option<Arc<StoredCells>>,
    fleet: Fleet,
    down: BTreeSet<NodeName>,
    draining: BTreeMap<NodeName, DrainJobs>,
    may_forget: bool,
    plan: BatchPlan,
}

impl IdlePass {
    fn is_of(
        &self,
        seen: &BatchObserved<'_>,
        queues: &Arc<QueueIndex>,
        groups: &Arc<GroupIndex>,
    ) -> bool {
        Arc::ptr_eq(&self.queues, queues)
            && self.classes == seen.queues.1
            && Arc::ptr_eq(&self.groups, groups)
            && self.spec == *seen.spec
            && match (&self.cells, seen.cells) {
                (Some(known), Some(cells)) => Arc::ptr_eq(known, cells),
                (known, cells) => known.is_none() && cells.is_none(),
            }
            && self.fleet.equals(seen.fleet)
            && self.down == *seen.down
            && self.draining == *seen.draining
            && self.may_forget == seen.may_forget
            && !seen.with_orphaned
            && self.plan.next.is_none_or(|next| seen.now < next)
    }
}

/// Input and plan of one reconcile.
struct BatchView {
    record_index: Index,
    queues: Queues,
    plan: BatchPlan,
}

impl SchedulerController {
    /// Controller without a status; the first reconcile reads it.
    pub fn new(
        ctx: ControllerContext,
        claimed: ClaimedRecord,
        me: ObjectName,
        caches: Arc<SchedulerCaches>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Self {
        let since = ctx.clock.wall();
        let keys = (key::scheduler(&me), key::scheduler_status(&me));
        let chain = StatusChain::new(&ctx, &claimed, keys, None);
        SchedulerController {
            ctx,
            claimed,
            me,
            caches,
            gangs: GangScheduler::new(scheduler),
            chain,
            groups: GroupStatuses::new(),
            unreadable: BTreeSet::new(),
            set_aside: GroupsSetAside::default(),
            queues: QueueBook::new(),
            classes: KeptClasses::default(),
            since,
            memory: PassMemory::default(),
            waits: GroupWaits::default(),
            begun: monotonic(),
            idle: None,
            to_recount: true,
            messages_at: monotonic(),
            orphan_search_at: monotonic(),
            alerted: None,
            may_make_queues: true,
        }
    }

    /// Reads the statuses before the caches. Allocations older than the statuses could stay allocated forever.
    async fn refresh(&mut self) -> Result<(), ReconcileError> {
        self.chain.refresh().await?;
        self.idle = None;
        let reader = &self.caches.reader;
        let prefix = key::pod_group_statuses();
        let groups = list_surely(reader.as_ref(), &prefix).await?.value;
        self.groups.clear();
        let mut unreadable = BTreeSet::new();
        for entry in groups {
            let Some(id) = key::namespaced(&prefix, &entry.key) else { continue };
            match PodGroupStatus::decode(&entry.value) {
                Ok(status) => {
                    self.groups.insert(id, Versioned::of(&entry, Arc::new(status)));
                }
                Err(error) => {
                    if !self.unreadable.contains(&id) {
                        warn!(alert = true, key = entry.key, %error,
                            "the group's status is not valid: the group is ignored until it is corrected");
                    }
                    unreadable.insert(id);
                }
            }
        }
        self.unreadable = unreadable;
        let (wall, now) = (self.ctx.clock.wall(), monotonic());
        let since = |status: &PodGroupStatus| {
            let ago = status.last_transition_time.map(|at| wall.duration_since(at));
            let ago = ago.and_then(|ago| Duration::try_from(ago).ok()).unwrap_or_default();
            now.checked_sub(ago).unwrap_or(now)
        };
        let statuses = self.groups.iter().map(|(id, known)| (id, &*known.value));
        self.waits.restart(statuses, since);
        let prefix = key::queue_statuses();
        let queues = list_surely(reader.as_ref(), &prefix).await?.value;
        self.queues = queues
            .into_iter()
            .filter_map(|entry| {
                let name = prefix.tail(&entry.key)?.parse().ok()?;
                // Counters are recounted; other fields can be lost.
                let status = QueueStatus::decode(&entry.value).unwrap_or_default();
                Some((name, (entry.modify_index, status)))
            })
            .collect();
        self.show_queues();
        self.caches.catch_up().await?;
        self.chain.caught_up();
        self.to_recount = true;
        Ok(())
    }

    /// Whether others have created or deleted statuses.
    async fn is_tampered_with(&self) -> Result<bool, ReconcileError> {
        let keys = async |prefix| self.caches.reader.keys(&prefix, None, Query::PLAIN).await;
        let groups = keys(key::pod_group_statuses()).await?.value;
        let groups = groups.iter().filter_map(|k| key::namespaced(&key::pod_group_statuses(), k));
        let groups: BTreeSet<GroupId> = groups.collect();
        let queues = keys(key::queue_statuses()).await?.value;
        let queues = queues.iter().filter_map(|k| key::queue_statuses().tail(k)?.parse().ok());
        let queues: BTreeSet<QueueName> = queues.collect();
        Ok(!groups.iter().eq(self.groups.keys()) || !queues.iter().eq(self.queues.keys()))
    }

    /// Decodes and checks the record. `None`: absent, or invalid and reported.
    async fn record(&mut self) -> Result<Option<(Index, SchedulerSpec, Selector)>, ReconcileError> {
        let seen = self.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.claimed.id) else { return Ok(None) };
        let checked = SchedulerRecord::decode(&record.value).map_err(|bad| vec![bad]);
        let checked = checked.and_then(|record| match record.spec.check() {
            bad if bad.is_empty() => Ok(record.spec),
            bad => Err(bad),
        });
        match checked {
            Ok(spec) => {
                let selector =
                    spec.node_selector.parse().unwrap_or_else(|_| Selector::everything());
                Ok(Some((record.index, spec, selector)))
            }
            Err(bad) => {
                let problems = FieldError::list(&bad);
                if self.alerted.as_ref() != Some(&problems) {
                    warn!(alert = true, key = %key::scheduler(&self.me), why = problems,
                        "the scheduler's record is not valid: nothing is admitted");
                    self.alerted = Some(problems.clone());
                }
                let mut status = self.chain.status().clone();
                (status.observed_index, status.last_error) = (record.index, Some(problems));
                self.write_status(record.index, status).await?;
                Ok(None)
            }
        }
    }

    /// Reads what changed and plans a pass. `None`: the record is absent or invalid, or a cache is not read yet.
    async fn read_input(&mut self) -> Result<Option<BatchView>, ReconcileError> {
        let is_due = !self.chain.is_behind() && monotonic() >= self.orphan_search_at;
        if is_due && self.is_tampered_with().await? {
            self.chain.fall_behind();
        }
        if self.chain.is_behind() {
            self.refresh().await?;
        }
        let Some((record_index, spec, selector)) = self.record().await? else { return Ok(None) };
        self.take_back();
        if self.gangs.expire() {
            self.idle = None;
        }
        let queues = self.caches.queues.snapshot();
        let groups = self.caches.groups.snapshot();
        let classes = self.caches.classes.snapshot();
        let cells = self.caches.cells.snapshot();
        let is_read = cells.is_read() && classes.is_read();
        if !queues.is_read() || !groups.is_read() || !is_read {
            return Ok(None);
        }
        let classes = self.classes.update(&classes);
        let mut queues_view = Queues::of(&queues.value.0, classes.clone());
        failpoints::check_groups(&groups.value.0).map_err(ReconcileError::Elsewhere)?;
        failpoints::change_queues(&mut queues_view);
        let shown_groups = failpoints::change_groups(&groups.value.0, &self.groups);
        let shown_statuses = failpoints::change_statuses(&self.groups);
        let fleet = self.caches.fleet(&selector);
        let latest = groups.index.max(queues.index).max(self.chain.index());
        let (down, draining) = (self.caches.view.down_nodes(), self.caches.view.draining_nodes());
        let observed = BatchObserved {
            me: &self.me,
            spec: &spec,
            queues: &queues_view,
            groups: &shown_groups,
            statuses: &shown_statuses,
            unreadable: &self.unreadable,
            set_aside: &self.set_aside.groups,
            fleet: &fleet,
            cells: cells::stored(&cells.value),
            answers: self.gangs.answers(),
            down: &down,
            draining: &draining,
            may_forget: groups.untrusted.is_none(),
            with_orphaned: self.to_recount || monotonic() >= self.orphan_search_at,
            now: self.ctx.clock.wall(),
            latest,
            bounds: Bounds::of(PLACED_PER_PASS, STEPS_PER_PASS, self.ctx.limits),
        };
        let same = |idle: &&IdlePass| idle.is_of(&observed, &queues.value, &groups.value);
        let idle = self.idle.as_ref().filter(same);
        let plan = match idle {
            Some(idle) => idle.plan.clone(),
            None => {
                let size = groups.value.0.len() + fleet.labels.nodes.len();
                let memory = &mut self.memory;
                let mut plan = offload(size, || plan(&observed, memory)).await;
                failpoints::change_plan(&mut plan);
                let is_idle =
                    plan.changes.is_empty() && plan.message_changes.is_empty() && !plan.more;
                let may_forget = observed.may_forget;
                self.idle = is_idle.then(|| IdlePass {
                    spec,
                    queues: queues.value.clone(),
                    classes,
                    groups: groups.value.clone(),
                    cells: cells::stored(&cells.value).cloned(),
                    fleet,
                    down,
                    draining,
                    may_forget,
                    plan: plan.clone(),
                });
                plan
            }
        };
        self.gangs.had_their_pass();
        if plan.asks_cells {
            self.caches.cells_asked.cancel();
        }
        Ok(Some(BatchView { record_index, queues: queues_view, plan }))
    }

    /// Commits the changes in order, with as few transactions as possible. `false`: one was refused, or its group was
    /// set aside: plan again.
    async fn commit_changes(
        &mut self,
        input: &BatchView,
        changes: &[PlacementChange],
    ) -> Result<bool, ReconcileError> {
        let (mut rest, mut most) = (changes, usize::MAX);
        while !rest.is_empty() {
            let node_capacities = self.caches.view.node_capacities();
            let next = &rest[..rest.len().min(most)];
            let made = batch(next, &node_capacities, &input.queues, &self.queues, self.ctx.limits);
            let (these, after) = rest.split_at(made.count.max(1));
            if !made.fits {
                let bytes: usize = made.ops.iter().map(Op::body_bytes).sum();
                let most = self.ctx.limits.bytes;
                let why = format!("its change takes {bytes} bytes, and a transaction holds {most}");
                self.set_aside(&these[0], why);
                return Ok(false);
            }
            let details = Details::GroupsOrdered(GroupsOrdered {
                scheduler: self.me.clone(),
                farm: self.ctx.farm.clone(),
                actor: Actor::Farm,
                groups: these.iter().map(audited).collect(),
            });
            match self.commit(input.record_index, made.ops.clone(), Some(details)).await {
                Ok(Committed::Applied(index)) => self.record_changes(these, made, index),
                Ok(Committed::Refused(_)) => return Ok(false),
                // One of them is at fault. Consul's limit may be lower than the one that the farm knows.
                Err(ReconcileError::Store(StoreError::TooLarge { .. })) if these.len() > 1 => {
                    most = these.len() / 2;
                    continue;
                }
                Err(ReconcileError::Store(error @ StoreError::TooLarge { .. })) => {
                    self.set_aside(&these[0], error.to_string());
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
            rest = after;
        }
        Ok(true)
    }

    /// Records the result of a committed transaction before the caches show it.
    fn record_changes(&mut self, changes: &[PlacementChange], batch: PlacementBatch, index: Index) {
        self.idle = None;
        for change in changes {
            self.set_aside.succeeded(&change.id);
            self.measure(change);
            match &change.after {
                Some(_) if change.keeps_status() => {}
                Some(after) => {
                    let created = change.before.as_ref().map_or(index, |before| before.created);
                    let value = Arc::new(revised(change, after));
                    self.groups.insert(change.id.clone(), Versioned { index, created, value });
                }
                None => drop(self.groups.remove(&change.id)),
            }
        }
        for (name, status) in batch.queues {
            self.queues.insert(name, (index, status));
        }
        self.show_queues();
        self.caches.view.ledger.wrote(&batch.bookings, index);
    }

    /// Observes the waits that a change has ended.
    fn measure(&mut self, change: &PlacementChange) {
        let before = change.before.as_ref().map(|before| &*before.value);
        let statuses = (before, change.after.as_ref());
        let ended = self.waits.changed(&change.id, statuses, (self.begun, monotonic()));
        for wait in ended {
            match wait {
                EndedWait::Admitted(queue, wait) => {
                    self.claimed.metrics.admitted(queue.as_str(), wait)
                }
                EndedWait::Placed(wait) => self.claimed.metrics.placed("pod_group", wait),
            }
        }
    }

    fn show_queues(&self) {
        let depth = |(name, (_, status)): (&QueueName, &(Index, QueueStatus))| {
            let Counters { pending, inqueue, running, unknown, completed } = status.groups;
            let depths = vec![
                ("Pending", pending),
                ("Inqueue", inqueue),
                ("Running", running),
                ("Unknown", unknown),
                ("Completed", completed),
            ];
            (name.to_string(), depths)
        };
        let oldest = self.waits.oldest().into_iter().map(|(queue, at)| (queue.to_string(), at));
        let depths = self.queues.iter().map(depth).collect();
        self.claimed.metrics.shows_queues(depths, oldest.collect());
    }

    /// Writes only the scheduler's status.
    async fn write_status(
        &mut self,
        record_index: Index,
        status: SchedulerStatus,
    ) -> Result<(), ReconcileError> {
        if status == *self.chain.status() && status.farm.as_ref() == Some(&self.ctx.farm) {
            return Ok(());
        }
        self.commit_status(record_index, status, Vec::new(), None).await.map(drop)
    }

    /// Commits operations, with an unchanged status.
    async fn commit(
        &mut self,
        record_index: Index,
        ops: Vec<Op>,
        details: Option<Details>,
    ) -> Result<Committed, ReconcileError> {
        let status = self.chain.status().clone();
        self.commit_status(record_index, status, ops, details).await
    }

    /// Commits operations with the scheduler's status. If others have changed allocations, these are read again.
    async fn commit_status(
        &mut self,
        record_index: Index,
        mut status: SchedulerStatus,
        ops: Vec<Op>,
        details: Option<Details>,
    ) -> Result<Committed, ReconcileError> {
        status.observed_index = record_index;
        (status.farm, status.since) = (Some(self.ctx.farm.clone()), Some(self.since));
        let (shared, ops): (Vec<Op>, Vec<Op>) =
            ops.into_iter().partition(|op| booked_node(op).is_some());
        let nodes: Vec<Option<NodeName>> = shared.iter().map(booked_node).collect();
        let now = self.ctx.clock.wall();
        let audit = details.iter().map(|details| AuditRecord::new(details, now)).collect();
        // Not the scheduler's record: changes check the records of the queues that they depend on.
        let (record, status) = (RecordGuard::Any, StatusWrite::Replace(status));
        let committed = self.chain.commit(Change { record, status, ops, shared, audit }).await?;
        if let Committed::Refused(refused) = &committed {
            let overtaken = refused.shared.iter().filter_map(|n| nodes[*n].clone()).collect();
            self.caches.view.ledger.reread(&overtaken).await?;
        }
        Ok(committed)
    }

    /// Time of the next reconcile if nothing changes before.
    fn next_action(&self, plan: &BatchPlan) -> Action {
        let now = self.ctx.clock.wall();
        let due = plan.next.map(|at| {
            let rest = now
                .until(at)
                .map_or(Duration::ZERO, |span| Duration::try_from(span).unwrap_or(Duration::ZERO));
            rest + Duration::from_millis(1)
        });
        let for_room = |reason| {
            use PodGroupReason::{
                BudgetExhausted, InsufficientCapacity, NoEligibleNodes, Preempting,
            };
            matches!(reason, BudgetExhausted | InsufficientCapacity | NoEligibleNodes | Preempting)
        };
        let waits = self.groups.values().any(|known| for_room(known.value.reason));
        let room = waits.then_some(ROOM_EVERY);
        // Groups that hold cells leave a node that is down. That it is tells nobody.
        let has_cells = self.groups.values().any(|known| held(&known.value).is_some());
        let down = has_cells.then(|| self.caches.view.next_down()).flatten();
        let down = down.map(|rest| rest + Duration::from_millis(1));
        match [due, room, down, self.set_aside.next()].into_iter().flatten().min() {
            Some(pause) => Action::RequeueAfter(pause),
            None => Action::AwaitChange,
        }
    }
}

#[async_trait]
impl Controller for SchedulerController {
    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let action = self.pass().await?;
        // Without the lock: other tasks of this farm go on while the scheduler is asked.
        if self.gangs.ask(&self.me).await {
            self.idle = None;
            return Ok(Action::RequeueAfter(Duration::ZERO));
        }
        Ok(action)
    }

    async fn report_quarantine(
        &mut self,
        error: &str,
        pause: Duration,
    ) -> Result<(), ReconcileError> {
        self.refresh().await?;
        let seen = self.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.claimed.id) else { return Ok(()) };
        let mut status = self.chain.status().clone();
        status.last_error = Some(error.to_owned());
        status.quarantined_until = self.ctx.clock.wall().checked_add(pause).ok();
        self.write_status(record.index, status).await
    }
}

impl SchedulerController {
    /// Plans a pass and commits it.
    async fn pass(&mut self) -> Result<Action, ReconcileError> {
        self.begun = monotonic();
        // Held from plan to commit: other tasks of this farm would allocate the same capacity.
        let caches = self.caches.clone();
        let _guard = caches.view.ledger.lock_plans().await;
        let Some(input) = self.read_input().await? else { return Ok(Action::AwaitChange) };
        self.gangs.wants(&input.plan.asks);
        if self.make_default_queue(input.record_index).await? {
            return Ok(Action::RequeueAfter(Duration::ZERO));
        }
        if let Some(next) = self.apply_command(&input).await? {
            return Ok(next);
        }
        if !self.commit_changes(&input, &input.plan.changes).await? {
            return Ok(self.chain.after_refusal());
        }
        if monotonic() >= self.orphan_search_at {
            self.orphan_search_at = monotonic() + ORPHAN_SEARCH_EVERY;
        }
        let messages_due = monotonic() >= self.messages_at;
        if !self.write_queue_statuses(&input, messages_due && !input.plan.more).await? {
            return Ok(self.chain.after_refusal());
        }
        if input.plan.more || !input.plan.changes.is_empty() {
            return Ok(Action::RequeueAfter(Duration::ZERO));
        }
        if !messages_due {
            return Ok(Action::RequeueAfter(self.messages_at - monotonic()));
        }
        self.messages_at = monotonic() + MESSAGES_EVERY;
        if !input.plan.message_changes.is_empty() {
            let node_capacities = self.caches.view.node_capacities();
            let one = batch(
                &input.plan.message_changes,
                &node_capacities,
                &input.queues,
                &self.queues,
                self.ctx.limits,
            );
            if !self.commit_changes(&input, &input.plan.message_changes[..one.count]).await? {
                return Ok(self.chain.after_refusal());
            }
            return Ok(Action::RequeueAfter(MESSAGES_EVERY));
        }
        if self.chain.status().last_error.is_some()
            || self.chain.status().quarantined_until.is_some()
        {
            let mut status = self.chain.status().clone();
            (status.last_error, status.quarantined_until) = (None, None);
            self.alerted = None;
            self.write_status(input.record_index, status).await?;
        }
        Ok(self.next_action(&input.plan))
    }
}
