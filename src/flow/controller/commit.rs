//! The transactions of a flow: each writes its status, and what the plan does to its jobs.

use tracing::{info, warn};

use super::{FlowController, ReadJobs};
use crate::farm::kind::{Action, ReconcileError, ReconcileResult};
use crate::farm::records::Record;
use crate::farm::status_chain::{Change, Committed, RecordGuard, StatusWrite};
use crate::flow::plan::{FlowAction, FlowDeleteReason, FlowPlan};
use crate::job::owner;
use rcfarm_api::audit::{Actor, AuditRecord, Details, RecordStep};
use rcfarm_api::command::{Command, CommandAction, Target};
use rcfarm_api::flow::{FlowReason, FlowStatus, KIND};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::manifest::command_line::cut;
use rcfarm_api::{Stored, Timestamp, key};
use rcfarm_store::{Index, Op};

/// Longer messages are cut, in bytes.
const LONGEST_MESSAGE: usize = 4 * 1024;

impl FlowController {
    /// Commits a plan, unless it changes nothing.
    pub(super) async fn commit(
        &mut self,
        record: &Record,
        (plan, read): (FlowPlan, ReadJobs),
    ) -> ReconcileResult {
        let FlowPlan { mut status, actions, wake_after, waits_for, .. } = plan;
        self.caches.set_waiting(&self.claimed.id, waits_for);
        status.observed_index = record.index;
        status.message = cut(&status.message, LONGEST_MESSAGE);
        (status.last_error, status.quarantined_until) = (None, None);
        let old = self.chain.status();
        let now = self.ctx.clock.wall();
        let wake_at = wake_after.and_then(|pause| now.checked_add(pause).ok());
        if actions.is_empty() && status == *old {
            self.planned = Some((record.index, wake_at));
            return Ok(self.rest());
        }
        let is_news = (status.reason, &status.message, status.state.phase)
            != (old.reason, &old.message, old.state.phase);
        status.owner = Some(self.owner.clone());
        let mut change = Change::of_status(RecordGuard::At(record.index), status.clone());
        let mut step = self.step(record.created, &status);
        let mut shared = Vec::new();
        for action in &actions {
            self.carry_out(
                action,
                &read,
                now,
                &mut Parts { change: &mut change, step: &mut step, shared: &mut shared, record },
            );
        }
        change.audit.push(AuditRecord::new(&Details::RecordStep(step), now));
        match self.chain.commit(change).await? {
            Committed::Applied(_) => {
                if is_news {
                    self.log(&status);
                }
                self.applied(record.index, &actions, wake_at);
                Ok(self.rest())
            }
            Committed::Refused(refused) => {
                let names = refused.shared.iter().filter_map(|op| shared.get(*op)?.clone());
                self.look_at_refused(record.created, names.collect()).await?;
                // A template may have changed.
                self.caches.owner.ring(&self.claimed.id);
                Ok(self.chain.after_refusal())
            }
        }
    }

    /// Sleeps; a flow that is over keeps no decoded record.
    fn rest(&mut self) -> Action {
        if self.chain.status().completion_time.is_some() {
            self.decoded = None;
        }
        self.sleep()
    }

    /// Adds what an action does to a change.
    fn carry_out(
        &self,
        action: &FlowAction,
        read: &ReadJobs,
        now: Timestamp,
        parts: &mut Parts<'_>,
    ) {
        let Parts { change, step, shared, record } = parts;
        match action {
            FlowAction::Create { name, job, template, template_index } => {
                let (op, audit) = owner::create(&self.job(name), job, &self.why("StepReady"), now);
                change.shared.push(op);
                shared.push(Some(name.clone()));
                let key = key::job_template(template);
                change.shared.push(Op::CheckIndex { key, index: *template_index });
                shared.push(None);
                change.audit.push(audit);
                step.jobs_created.push(name.to_string());
            }
            FlowAction::Terminate { name, uid } => {
                let job = self.job(name);
                let command = Command {
                    action: CommandAction::TerminateJob,
                    target: Target::Job { job, uid: *uid, task: None, index: None },
                    reason: self.why("another step has failed"),
                    issued_by: self.ctx.farm.to_string(),
                };
                let key = key::job_command(&self.id.namespace, self.ctx.ids.ordered_uuid(now));
                change.ops.push(Op::Set { key, value: command.encode(), flags: 0 });
            }
            FlowAction::Delete { name, why } => {
                // One that was not read is gone.
                if let Some(found) = read.get(name) {
                    let why = match why {
                        FlowDeleteReason::NotRetained => "jobRetainPolicy",
                        FlowDeleteReason::OwnerDeleted => "Deleted",
                    };
                    let (op, audit) = owner::delete(&self.job(name), found, &self.why(why), now);
                    change.shared.push(op);
                    shared.push(None);
                    change.audit.push(audit);
                    step.jobs_deleted.push(name.to_string());
                }
            }
            FlowAction::Finish => {
                change.status = StatusWrite::Delete;
                let (key, index) = (key::job_flow(&self.id), record.index);
                change.ops.push(Op::DeleteCas { key, index });
                step.reason = "Deleted".to_owned();
            }
        }
    }

    fn why(&self, why: &str) -> String {
        format!("{KIND} {}: {why}", self.id)
    }

    /// Notes what was committed. After an action it is planned again at once.
    fn applied(&mut self, index: Index, actions: &[FlowAction], wake_at: Option<Timestamp>) {
        self.planned = match actions.is_empty() {
            true => Some((index, wake_at)),
            false => Some((index, Some(Timestamp::MIN))),
        };
        for action in actions {
            match action {
                FlowAction::Create { name, .. } => {
                    info!(record = %self.id, job = %name, "JobFlow: job made");
                }
                FlowAction::Terminate { name, .. } => {
                    info!(record = %self.id, job = %name, "JobFlow: job terminated");
                }
                FlowAction::Delete { name, why } => {
                    info!(record = %self.id, job = %name, ?why, "JobFlow: job deleted");
                }
                FlowAction::Finish => {
                    info!(record = %self.id, "JobFlow deleted");
                    self.caches.owner.forget(&self.id);
                    self.planned = None;
                }
            }
        }
    }

    fn log(&self, status: &FlowStatus) {
        let phase = status.state.phase;
        match status.reason {
            FlowReason::TemplateMissing
            | FlowReason::TemplateInvalid
            | FlowReason::JobNameTaken
            | FlowReason::ChangeRefused
            | FlowReason::StepFailed => {
                warn!(record = %self.id, %phase, reason = %status.reason, why = status.message, "JobFlow");
            }
            reason => info!(record = %self.id, %phase, %reason, why = status.message, "JobFlow"),
        }
    }

    fn step(&self, uid: Index, status: &FlowStatus) -> RecordStep {
        RecordStep {
            kind: KIND.to_owned(),
            record: self.id.clone(),
            uid,
            actor: Actor::Farm,
            farm: Some(self.ctx.farm.clone()),
            phase: Some(status.state.phase.to_string()),
            reason: status.reason.to_string(),
            message: status.message.clone(),
            jobs_created: Vec::new(),
            jobs_deleted: Vec::new(),
        }
    }

    /// Deletes the status of a record that was deleted by hand. The jobs stay.
    pub(super) async fn delete_leftovers(&mut self) -> ReconcileResult {
        self.caches.set_waiting(&self.claimed.id, Default::default());
        if self.chain.index() == Index::ZERO {
            self.caches.owner.forget(&self.id);
            return Ok(Action::AwaitChange);
        }
        let mut step = self.step(self.chain.status().uid, self.chain.status());
        (step.reason, step.message) = ("Deleted".to_owned(), String::new());
        let change = Change {
            status: StatusWrite::Delete,
            audit: vec![AuditRecord::new(&Details::RecordStep(step), self.ctx.clock.wall())],
            ..Change::of_status(RecordGuard::Absent, FlowStatus::default())
        };
        match self.chain.commit(change).await? {
            Committed::Applied(_) => {
                self.caches.owner.forget(&self.id);
                Ok(Action::AwaitChange)
            }
            Committed::Refused(_) => Ok(self.chain.after_refusal()),
        }
    }

    /// Writes into the status why nothing is done, if it does not say so yet.
    pub(super) async fn report(
        &mut self,
        record: &Record,
        reason: FlowReason,
        why: &str,
        until: Option<Timestamp>,
    ) -> Result<(), ReconcileError> {
        let why = cut(why, LONGEST_MESSAGE);
        let mut status = self.chain.status().clone();
        if status.uid != record.created {
            let revision = status.revision;
            status = FlowStatus { uid: record.created, revision, ..FlowStatus::default() };
        }
        status.observed_index = record.index;
        (status.reason, status.message) = (reason, why.clone());
        (status.last_error, status.quarantined_until) = (Some(why), until);
        if status == *self.chain.status() {
            return Ok(());
        }
        status.owner = Some(self.owner.clone());
        let step = self.step(record.created, &status);
        let mut change = Change::of_status(RecordGuard::At(record.index), status);
        change.audit.push(AuditRecord::new(&Details::RecordStep(step), self.ctx.clock.wall()));
        self.chain.commit(change).await.map(drop)
    }
}

/// A change in the making.
struct Parts<'a> {
    change: &'a mut Change<FlowStatus>,
    step: &'a mut RecordStep,
    /// The names of the jobs that the shared operations create.
    shared: &'a mut Vec<Option<ObjectName>>,
    record: &'a Record,
}
