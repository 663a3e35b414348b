//! Asks the server of a job's type before the job begins, and writes its answer into the job's record (decision 43).
//!
//! Key read: `rcfarm/job_types/<kind>`. Key written: the job's record, by CAS, in one transaction with its audit record. A
//! crash before it leaves the job as it was: another owner asks again, and no pod was made by the first answer.
//!
//! The call is a task of its own, which wakes the controller: a server that hangs holds up no reconcile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::info;

use super::JobController;
use super::view::DecodedJob;
use crate::farm::kind::{Action, ReconcileError};
use crate::farm::records::Record;
use crate::job::hook::{HookRequest, call_hook};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::job::job_type::{FIELD, HookAnswer, HookServer, HookState, JobTypeHook};
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::job::status::JobReason;
use rcfarm_api::manifest::command_line::cut;
use rcfarm_api::{backoff, key};
use rcfarm_store::Index;
use rcfarm_store::time::monotonic;

/// Pause after the first failure, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Bytes of a message about a hook.
const LONGEST_WHY: usize = 1024;

type Answer = Result<HookAnswer, String>;

/// A call under way.
struct HookCall {
    /// ModifyIndex of the record that it is about.
    record: Index,
    answer: Arc<Mutex<Option<Answer>>>,
    task: AbortHandle,
}

impl Drop for HookCall {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the controller knows of the hook of its job's type.
#[derive(Default)]
pub(super) struct HookCalls {
    call: Option<HookCall>,
    failures: u32,
    /// When it may be asked again, by the monotonic clock.
    not_before: Option<Instant>,
}

impl JobController {
    /// Makes the hook of a job's type answer before the job begins. `None`: there is none, or it has answered.
    pub(super) async fn await_hook(
        &mut self,
        record: &Record,
        job: &DecodedJob,
    ) -> Result<Option<Action>, ReconcileError> {
        let spec = &job.read.spec;
        let hook = spec.job_type.as_ref().and_then(|job_type| job_type.spec.hook.as_ref());
        if hook != Some(&JobTypeHook::Job(HookState::Pending)) || spec.deleting {
            return Ok(None);
        }
        let kind = spec.kind().to_owned();
        self.hook.call.take_if(|call| call.record != record.index);
        let answer = match &self.hook.call {
            Some(call) => call.answer.lock().unwrap_or_else(PoisonError::into_inner).take(),
            None => {
                if let Some(pause) = self.hook.pause() {
                    return Ok(Some(Action::RequeueAfter(pause)));
                }
                match self.begin_call(record, &kind).await? {
                    Ok(()) => return Ok(Some(Action::AwaitChange)),
                    Err(why) => Some(Err(why)),
                }
            }
        };
        let Some(answer) = answer else { return Ok(Some(Action::AwaitChange)) };
        self.hook.call = None;
        let merged = answer.and_then(|answer| merged(&record.value, job, answer));
        match merged {
            Ok(document) => {
                self.hook = HookCalls::default();
                let why = format!("took the answer of the hook of {kind}");
                self.replace_document(record, &document, why).await.map(Some)
            }
            Err(why) => self.hook_failed(record, &kind, &why).await.map(Some),
        }
    }

    /// Asks the server that the record of the kind names. A job's own copy does not say where it is: who may write jobs
    /// must not choose whom the farm calls.
    async fn begin_call(
        &mut self,
        record: &Record,
        kind: &str,
    ) -> Result<Result<(), String>, ReconcileError> {
        let Ok(name) = kind.parse::<ObjectName>() else { return Ok(Err("no kind".to_owned())) };
        let types = self.stored_type(&name).await?;
        let stored = types.0.get(&name).filter(|stored| stored.check(&name).is_empty());
        let hook = stored.and_then(|stored| stored.spec.hook.clone());
        let Some(JobTypeHook::Server(server)) = hook else {
            return Ok(Err(format!("{} names no hook", key::job_type(&name))));
        };
        let document = serde_json::from_slice(&record.value).unwrap_or_default();
        let request = HookRequest::new(&self.id, JobUid(record.created), document);
        self.hook.call = Some(self.spawn_call(record.index, server, request));
        Ok(Ok(()))
    }

    fn spawn_call(&self, record: Index, server: HookServer, request: HookRequest) -> HookCall {
        let answer: Arc<Mutex<Option<Answer>>> = Arc::default();
        let (place, wake) = (answer.clone(), self.claimed.wake.clone());
        let task = tokio::spawn(async move {
            let answer = call_hook(&server, &request).await;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            wake.notify_one();
        });
        HookCall { record, answer, task: task.abort_handle() }
    }

    async fn hook_failed(
        &mut self,
        record: &Record,
        kind: &str,
        why: &str,
    ) -> Result<Action, ReconcileError> {
        let pause = backoff(PAUSES.0, PAUSES.1, self.hook.failures);
        let pause = self.ctx.ids.jitter(pause, 0.5);
        self.hook.failures = self.hook.failures.saturating_add(1);
        self.hook.not_before = Some(monotonic() + pause);
        let message = format!("the hook of {} failed: {why}", key_of(kind));
        let message = cut(&message, LONGEST_WHY);
        info!(record = %self.id, why = message.as_str(), "the job waits for the hook of its type");
        let uid = JobUid(record.created);
        self.report_unready(record.index, uid, JobReason::HookFailed, message).await?;
        Ok(Action::RequeueAfter(pause))
    }
}

impl HookCalls {
    /// What is left of the pause after a failure.
    fn pause(&self) -> Option<Duration> {
        let left = self.not_before?.saturating_duration_since(monotonic());
        (!left.is_zero()).then_some(left)
    }
}

fn key_of(kind: &str) -> String {
    kind.parse()
        .map_or_else(|_| kind.to_owned(), |name: ObjectName| key::job_type(&name).to_string())
}

/// The job's document with the answer in the copy of its type.
fn merged(value: &[u8], job: &DecodedJob, answer: HookAnswer) -> Result<Value, String> {
    let mut document: Value = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    let job_type = job.read.spec.job_type.as_ref().ok_or("the job has no type")?;
    let spec = job_type.spec.clone().answered(answer).map_err(|bad| {
        let bad: Vec<String> = bad.iter().map(ToString::to_string).collect();
        format!("its answer: {}", bad.join("; "))
    })?;
    document["spec"][FIELD] = json!(spec);
    Ok(document)
}
