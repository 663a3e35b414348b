//! Writes the status of queues, the default queue, and the commands of users on queues.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{info, warn};

use super::{BatchView, SchedulerController};
use crate::batch::bounds::FIXED_BYTES;
use crate::batch::plan::GroupStatuses;
use crate::batch::queue_machine::{self, Wanted};
use crate::batch::queues::Queue;
use crate::cluster::commands::Pending;
use crate::cluster::queues::StoredQueue;
use crate::farm::kind::{Action, ReconcileError};
use crate::farm::status_chain::Committed;
use rcfarm_api::audit::{Actor, Details, QueueChange};
use rcfarm_api::command::CommandAction;
use rcfarm_api::ids::QueueName;
use rcfarm_api::manifest::command_line::cut;
use rcfarm_api::queue::spec::{DEFAULT_QUEUE, Desired, QueueRecord};
use rcfarm_api::queue::status::{Counters, QueueStatus, WAITING_LISTED};
use rcfarm_api::resource_list::PODS;
use rcfarm_api::{FieldError, ResourceList, Stored, Timestamp, key};
use rcfarm_store::{Index, Op, StoreError, TxnLimits};

/// Fields without effect that a queue's status lists.
const IGNORED_LISTED: usize = 20;

/// A queue with its status after a write; `None`: deleted.
type QueueAfter = (QueueName, Option<QueueStatus>);

impl SchedulerController {
    /// Updates the statuses of the queues. `false`: a transaction was refused.
    pub(super) async fn write_queue_statuses(
        &mut self,
        input: &BatchView,
        with_messages: bool,
    ) -> Result<bool, ReconcileError> {
        let (ops, told) = self.queue_changes(input, with_messages);
        let limits = self.ctx.limits;
        let limits = TxnLimits { ops: limits.ops.saturating_sub(4).max(1), ..limits };
        let (mut ops, mut told) = (&ops[..], &told[..]);
        while !ops.is_empty() {
            let count = fitting(ops, limits);
            let (these, names);
            (these, ops) = ops.split_at(count);
            (names, told) = told.split_at(count);
            let committed = self.commit(input.record_index, these.to_vec(), None).await;
            if let (Err(ReconcileError::Store(error @ StoreError::TooLarge { .. })), 1) =
                (&committed, count)
            {
                warn!(alert = true, queue = %names[0].0, %error, "the queue's status cannot be written");
                continue;
            }
            match committed? {
                Committed::Refused(_) => return Ok(false),
                Committed::Applied(index) => {
                    for (name, status) in names {
                        match status {
                            Some(status) => {
                                drop(self.queues.insert(name.clone(), (index, status.clone())))
                            }
                            None => drop(self.queues.remove(name)),
                        }
                    }
                }
            }
        }
        self.to_recount = false;
        Ok(true)
    }

    /// Operations that bring the statuses of this scheduler's queues up to date, and these statuses; `None`: deleted.
    fn queue_changes(&self, input: &BatchView, with_messages: bool) -> (Vec<Op>, Vec<QueueAfter>) {
        let (mut ops, mut told) = (Vec::new(), Vec::new());
        let now = self.ctx.clock.wall();
        let counted = self.to_recount.then(|| recount(&self.groups));
        let count = |name: &QueueName, status: &QueueStatus| match &counted {
            Some(counted) => counted.get(name).cloned().unwrap_or_default(),
            None => (status.groups, status.allocated.clone()),
        };
        for (name, queue) in input.queues.0.iter().filter(|(_, q)| q.spec.scheduler == self.me) {
            let (index, status) = self.queues.get(name).cloned().unwrap_or_default();
            let mut after = status.clone();
            (after.groups, after.allocated) = count(name, &status);
            let is_used = input.plan.usage.total(name).amount(PODS) > 0;
            set_state(&mut after, queue, is_used, now);
            if with_messages {
                let waiting = input.plan.waiting.get(name).into_iter().flatten();
                after.waiting = waiting.take(WAITING_LISTED).cloned().collect();
            }
            if after != status {
                (after.revision, after.observed_index) = (status.revision + 1, queue.index);
                let key = key::queue_status(name);
                ops.push(Op::Cas { key, value: after.encode(), flags: 0, index });
                told.push((name.clone(), Some(after)));
            }
        }
        for (name, (index, status)) in &self.queues {
            let is_counted = count(name, status).0 != Counters::default();
            if !input.queues.0.contains_key(name) && !is_counted && self.is_default() {
                ops.push(Op::DeleteCas { key: key::queue_status(name), index: *index });
                told.push((name.clone(), None));
            }
        }
        (ops, told)
    }

    fn is_default(&self) -> bool {
        self.me.as_str() == rcfarm_api::queue::spec::DEFAULT_SCHEDULER
    }

    /// Creates the queue `default`. `false`: it exists.
    pub(super) async fn make_default_queue(
        &mut self,
        record_index: Index,
    ) -> Result<bool, ReconcileError> {
        let queues = self.caches.queues.snapshot();
        let name: QueueName = DEFAULT_QUEUE.parse().expect("a legal name");
        if !self.may_make_queues
            || !self.is_default()
            || queues.untrusted.is_some()
            || queues.value.0.contains_key(&name)
        {
            return Ok(false);
        }
        let record = QueueRecord::default();
        let details = Details::QueueCreated(QueueChange {
            queue: name.clone(),
            actor: Actor::Farm,
            reason: "DefaultQueueMissing".to_owned(),
            farm: Some(self.ctx.farm.clone()),
            before: None,
            after: serde_json::to_value(&record.spec).ok(),
        });
        let key = key::queue(&name);
        let op = Op::Cas { key, value: record.encode(), flags: 0, index: Index::ZERO };
        match self.commit(record_index, vec![op], Some(details)).await {
            Ok(Committed::Applied(_)) => info!(queue = %name, "default queue created"),
            Ok(Committed::Refused(_)) => {}
            Err(ReconcileError::Store(StoreError::Forbidden { .. })) => {
                warn!(queue = %name, "the token may not create the default queue: create it with another token");
                self.may_make_queues = false;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        self.caches.queues.read_now().await?;
        Ok(true)
    }

    /// Executes the first command for one of its queues: changes the queue's record and deletes the command in one
    /// transaction. `None`: no command.
    pub(super) async fn apply_command(
        &mut self,
        input: &BatchView,
    ) -> Result<Option<Action>, ReconcileError> {
        let (commands, queues) = (self.caches.commands.snapshot(), self.caches.queues.snapshot());
        let may_drop = self.is_default() && queues.untrusted.is_none();
        let mine = commands.value.queues.iter().find_map(|(name, pending)| {
            let pending = pending.first()?;
            match queues.value.0.get(name) {
                None => may_drop.then_some((name, pending, None)),
                Some(stored) => {
                    let is_mine = input.queues.scheduler(name) == self.me;
                    is_mine.then_some((name, pending, Some((stored, stored.value.as_ref().ok()?))))
                }
            }
        });
        let Some((name, pending, there)) = mine else { return Ok(None) };
        let (command, key) = (pending.key.clone(), key::queue(name));
        let consumed = vec![
            Op::CheckIndex { key: command.clone(), index: pending.index },
            Op::Delete { key: command },
        ];
        let Some((stored, record)) = there else {
            warn!(queue = %name, "there is no such queue: the command is dropped");
            let ops = [consumed, vec![Op::CheckNotExists { key }]].concat();
            return self.command_applied(input, ops, None).await.map(Some);
        };
        let wanted = commanded(name, pending, stored, record);
        let (write, details) = match wanted == *record {
            true => (Op::CheckIndex { key, index: stored.index }, None),
            false => {
                let (value, index) = (wanted.encode(), stored.index);
                let details = self.queue_changed(name, pending, record, &wanted);
                (Op::Cas { key, value, flags: 0, index }, Some(details))
            }
        };
        let ops = [consumed, vec![write]].concat();
        self.command_applied(input, ops, details).await.map(Some)
    }

    /// Audit details of a command that changes a queue.
    fn queue_changed(
        &self,
        name: &QueueName,
        pending: &Pending,
        before: &QueueRecord,
        after: &QueueRecord,
    ) -> Details {
        let by = pending.command.issued_by.as_str();
        Details::QueueChanged(QueueChange {
            queue: name.clone(),
            actor: if by.is_empty() { Actor::Farm } else { Actor::user(by) },
            reason: pending.command.action.to_string(),
            farm: Some(self.ctx.farm.clone()),
            before: serde_json::to_value(&before.spec).ok(),
            after: serde_json::to_value(&after.spec).ok(),
        })
    }

    /// Commits the operations of a command, then reads queues and commands again.
    async fn command_applied(
        &mut self,
        input: &BatchView,
        ops: Vec<Op>,
        details: Option<Details>,
    ) -> Result<Action, ReconcileError> {
        let dropped = ops.iter().take(2).cloned().collect();
        // A small one is refused by something between the farm and Consul, and is tried again.
        let bytes: usize = ops.iter().map(Op::body_bytes).sum();
        let is_large = bytes > self.ctx.limits.bytes / 2;
        let written = match self.commit(input.record_index, ops, details).await {
            Err(ReconcileError::Store(error @ StoreError::TooLarge { .. })) if is_large => {
                warn!(alert = true, %error, "the queue's record is too large to change: the command is dropped");
                self.commit(input.record_index, dropped, None).await?
            }
            written => written?,
        };
        let read = (self.caches.queues.read_now(), self.caches.commands.read_now());
        let (queues, commands) = futures_util::future::join(read.0, read.1).await;
        queues?;
        commands?;
        Ok(match written {
            Committed::Applied(_) => Action::RequeueAfter(Duration::ZERO),
            Committed::Refused(_) => self.chain.after_refusal(),
        })
    }
}

/// Number of operations, at least one, that fit into a transaction together.
fn fitting(ops: &[Op], limits: TxnLimits) -> usize {
    let mut bytes = FIXED_BYTES;
    let fits = |op: &&Op| {
        bytes += op.body_bytes();
        bytes <= limits.bytes
    };
    ops.iter().take(limits.ops).take_while(fits).count().max(1)
}

/// Sets state, message and fields without effect, from the queue's record and its counters. `is_used`: whether it or a
/// queue below it is charged.
fn set_state(after: &mut QueueStatus, queue: &Queue, is_used: bool, now: Timestamp) {
    let groups = after.groups;
    let admitted = is_used || groups.inqueue + groups.running + groups.unknown > 0;
    let message = match queue.wanted {
        Wanted::Unreadable => cut(&FieldError::list(&queue.problems), 4096),
        Wanted::ClosedByParent => "a queue above it is closed".to_owned(),
        Wanted::Open | Wanted::Closed => String::new(),
    };
    after.set_state(queue_machine::next(after.state, queue.wanted, admitted), message, now);
    after.ignored = queue.spec.ignored();
    after.ignored.truncate(IGNORED_LISTED);
    after.ignored.iter_mut().for_each(|name| *name = cut(name, 200));
}

/// The queue's record as a command wants it. A command that is older than the queue, or that no queue has, changes
/// nothing.
fn commanded(
    name: &QueueName,
    pending: &Pending,
    stored: &StoredQueue,
    record: &QueueRecord,
) -> QueueRecord {
    let mut wanted = record.clone();
    match pending.command.action {
        _ if pending.index < stored.created => {
            warn!(queue = %name, "the queue was made after the command, which is dropped")
        }
        CommandAction::OpenQueue => wanted.spec.state = Desired::Open,
        CommandAction::CloseQueue => wanted.spec.state = Desired::Closed,
        other => {
            warn!(queue = %name, action = %other, "no queue has this action: the command is dropped")
        }
    }
    wanted
}

/// Counts groups by phase and sums the charges of admitted groups, per queue.
fn recount(groups: &GroupStatuses) -> BTreeMap<QueueName, (Counters, ResourceList)> {
    let mut counted: BTreeMap<QueueName, (Counters, ResourceList)> = BTreeMap::new();
    for status in groups.values().map(|known| &known.value) {
        let Some(queue) = &status.queue else { continue };
        let (counters, charged) = counted.entry(queue.clone()).or_default();
        counters.enter(status.phase);
        if status.phase.is_admitted() {
            charged.add(&status.charged);
        }
    }
    counted
}
