//! Gives a job that was written to Consul without it a copy of its type (decision 42).
//!
//! Key read: `rcfarm/job_types/<kind>`, only of such a job. Key written: the job's record, by CAS, in one transaction with
//! its audit record. A crash before it leaves the job as it was.

use std::time::Duration;

use serde_json::Value;

use super::JobController;
use crate::farm::kind::{Action, ReconcileError, ReconcileResult};
use crate::farm::records::Record;
use crate::farm::status_chain::{Change, Committed, RecordGuard, StatusWrite};
use crate::job::document::described;
use rcfarm_api::audit::{Actor, AuditRecord, Details, JobChange, record_hash};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::job::job_type::{JobTypeRecord, JobTypes};
use rcfarm_api::{FieldError, Stored as _, key};
use rcfarm_store::{Op, Query};

/// Mean interval between reads of a type that is missing.
const MISSING_EVERY: Duration = Duration::from_secs(20);
/// Space for the audit record and the framing of the transaction.
const RESERVED: usize = 16 * 1024;

/// What came of a job without a copy of its type.
pub(super) enum TypeCopy {
    /// It was written, or the transaction was refused.
    Written(Action),
    /// It cannot be written: why, and when to look again.
    Missing(FieldError, Action),
}

impl JobController {
    /// Gives the record a copy of its type. `None`: it needs none.
    pub(super) async fn copy_type(
        &mut self,
        record: &Record,
    ) -> Result<Option<TypeCopy>, ReconcileError> {
        let document: Option<Value> = serde_json::from_slice(&record.value).ok();
        let Some(mut document) = document else { return Ok(None) };
        let kind = described::kind_without_copy(&document);
        let Some(kind) = kind.and_then(|kind| kind.parse::<ObjectName>().ok()) else {
            return Ok(None);
        };
        let types = self.stored_type(&kind).await?;
        let again = Action::RequeueAfter(self.ctx.ids.jitter(MISSING_EVERY, 0.5));
        if let Err(missing) = described::put_copy(&mut document, &types) {
            return Ok(Some(TypeCopy::Missing(missing, again)));
        }
        let value = document.to_string();
        if value.len() > self.ctx.limits.bytes.saturating_sub(RESERVED) / 4 * 3 {
            let why = format!("with its type it has {} bytes", value.len());
            let fix = "shorten it: it does not fit into a Consul transaction";
            let large = FieldError::new(FieldError::WHOLE, why, fix);
            return Ok(Some(TypeCopy::Missing(large, again)));
        }
        let why = format!("copied the type of {}", key::job_type(&kind));
        let action = self.replace_document(record, &document, why).await?;
        Ok(Some(TypeCopy::Written(action)))
    }

    /// Replaces the job's record by CAS, with an audit record.
    pub(super) async fn replace_document(
        &mut self,
        record: &Record,
        document: &Value,
        reason: String,
    ) -> ReconcileResult {
        let value = bytes::Bytes::from(document.to_string());
        let change = JobChange {
            job: self.id.clone(),
            actor: Actor::Farm,
            action: "Changed".to_owned(),
            reason,
            command: None,
            record: Some(record_hash(&value)),
            step: None,
        };
        let audit = AuditRecord::new(&Details::JobChanged(change), self.ctx.clock.wall());
        let (key, index) = (key::job(&self.id), record.index);
        let change = Change {
            record: RecordGuard::At(index),
            status: StatusWrite::Leave,
            ops: vec![Op::Cas { key, value, flags: 0, index }],
            shared: Vec::new(),
            audit: vec![audit],
        };
        match self.chain.commit(change).await? {
            Committed::Applied(_) => {
                self.claimed.records.refresh_soon();
                Ok(Action::AwaitChange)
            }
            Committed::Refused(_) => Ok(self.after_refusal()),
        }
    }

    /// The record of a kind, if there is a valid one.
    pub(super) async fn stored_type(&self, kind: &ObjectName) -> Result<JobTypes, ReconcileError> {
        let entry = self.ctx.reader.get(&key::job_type(kind), Query::CONSISTENT).await?.value;
        let record = entry.and_then(|entry| JobTypeRecord::decode(&entry.value).ok());
        Ok(JobTypes(record.map(|record| (kind.clone(), record)).into_iter().collect()))
    }
}
