//! The transactions of a flow: each writes its status, and what the plan does to its jobs.

use tracing::{info, warn};

use super::{FlowController, ReadJobs};
use crate::farm::kind::{Action, ReconcileResult};
use crate::farm::records::Record;
use crate::farm::status_chain::{Change, Committed, RecordGuard, StatusWrite};
use crate::flow::plan::{FlowAction, FlowDeleteReason, FlowPlan};
use crate::job::owner;
use crate::job::owner_record::LONGEST_MESSAGE;
use rcfarm_api::audit::{AuditRecord, Details, RecordStep};
use rcfarm_api::command::{Command, CommandAction, Target};
use rcfarm_api::flow::{FlowReason, FlowStatus};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::manifest::command_line::cut;
use rcfarm_api::{Stored, Timestamp, key};
use rcfarm_store::{Index, Op};

impl FlowController {
    /// Commits a plan, unless it changes nothing.
    pub(super) async fn commit(
        &mut self,
        record: &Record,
        (plan, read): (FlowPlan, ReadJobs),
    ) -> ReconcileResult {
        let FlowPlan { mut status, actions, wake_after, waits_for, .. } = plan;
        self.caches.set_waiting(&self.record.claimed.id, waits_for);
        status.observed_index = record.index;
        status.message = cut(&status.message, LONGEST_MESSAGE);
        (status.last_error, status.quarantined_until) = (None, None);
        let old = self.record.chain.status();
        let now = self.record.ctx.clock.wall();
        let wake_at = wake_after.and_then(|pause| now.checked_add(pause).ok());
        if actions.is_empty() && status == *old {
            self.record.planned = Some((record.index, wake_at));
            return Ok(self.rest());
        }
        let is_news = (status.reason, &status.message, status.state.phase)
            != (old.reason, &old.message, old.state.phase);
        status.owner = Some(self.record.owner.clone());
        let mut change = Change::of_status(RecordGuard::At(record.index), status.clone());
        let mut step = self.record.step(record.created, &status);
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
        match self.record.chain.commit(change).await? {
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
                self.caches.owner.ring(&self.record.claimed.id);
                Ok(self.record.chain.after_refusal())
            }
        }
    }

    /// Sleeps; a flow that is over keeps no decoded record.
    fn rest(&mut self) -> Action {
        if self.record.chain.status().completion_time.is_some() {
            self.decoded = None;
        }
        self.record.sleep()
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
                let (op, audit) =
                    owner::create(&self.record.job(name), job, &self.record.why("StepReady"), now);
                change.shared.push(op);
                shared.push(Some(name.clone()));
                let key = key::job_template(template);
                change.shared.push(Op::CheckIndex { key, index: *template_index });
                shared.push(None);
                change.audit.push(audit);
                step.jobs_created.push(name.to_string());
            }
            FlowAction::Terminate { name, uid } => {
                let job = self.record.job(name);
                let command = Command {
                    action: CommandAction::TerminateJob,
                    target: Target::Job { job, uid: *uid, task: None, index: None },
                    reason: self.record.why("another step has failed"),
                    issued_by: self.record.ctx.farm.to_string(),
                };
                let key = key::job_command(
                    &self.record.id.namespace,
                    self.record.ctx.ids.ordered_uuid(now),
                );
                change.ops.push(Op::Set { key, value: command.encode(), flags: 0 });
            }
            FlowAction::Delete { name, why } => {
                // One that was not read is gone.
                if let Some(found) = read.get(name) {
                    let why = match why {
                        FlowDeleteReason::NotRetained => "jobRetainPolicy",
                        FlowDeleteReason::OwnerDeleted => "Deleted",
                    };
                    let (op, audit) =
                        owner::delete(&self.record.job(name), found, &self.record.why(why), now);
                    change.shared.push(op);
                    shared.push(None);
                    change.audit.push(audit);
                    step.jobs_deleted.push(name.to_string());
                }
            }
            FlowAction::Finish => {
                change.status = StatusWrite::Delete;
                let (key, index) = (key::job_flow(&self.record.id), record.index);
                change.ops.push(Op::DeleteCas { key, index });
                step.reason = "Deleted".to_owned();
            }
        }
    }

    /// Notes what was committed. After an action it is planned again at once.
    fn applied(&mut self, index: Index, actions: &[FlowAction], wake_at: Option<Timestamp>) {
        self.record.planned = match actions.is_empty() {
            true => Some((index, wake_at)),
            false => Some((index, Some(Timestamp::MIN))),
        };
        for action in actions {
            match action {
                FlowAction::Create { name, .. } => {
                    info!(record = %self.record.id, job = %name, "JobFlow: job made");
                }
                FlowAction::Terminate { name, .. } => {
                    info!(record = %self.record.id, job = %name, "JobFlow: job terminated");
                }
                FlowAction::Delete { name, why } => {
                    info!(record = %self.record.id, job = %name, ?why, "JobFlow: job deleted");
                }
                FlowAction::Finish => {
                    info!(record = %self.record.id, "JobFlow deleted");
                    self.caches.owner.forget(&self.record.id);
                    self.record.planned = None;
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
                warn!(record = %self.record.id, %phase, reason = %status.reason, why = status.message, "JobFlow");
            }
            reason => {
                info!(record = %self.record.id, %phase, %reason, why = status.message, "JobFlow")
            }
        }
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
