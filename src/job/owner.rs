//! Jobs that another record makes and owns, such as a CronJob. Pure, but for [`read_job`] and [`read_job_status`].
//!
//! The owner stands in the job's `metadata.ownerReferences`, as in Kubernetes. The job's farm rings the owner's doorbell
//! in the transaction that changes the job's phase or deletes its record. The owner reads the job then; it watches no
//! statuses of jobs.

use serde_json::{Map, Value, json};

use rcfarm_api::audit::{Actor, AuditRecord, Details, JobChange, record_hash};
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobUid, VOLCANO_JOB};
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::{FieldError, InvalidText, Stored, Timestamp, key};
use rcfarm_store::{Entry, Index, Key, Op, Query, Reader, StoreError};

/// The record that made a job, in the job's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerRef {
    /// `kind` of its document.
    pub kind: String,
    pub name: ObjectName,
    /// CreateIndex of its record, which distinguishes records of one name.
    pub uid: Index,
}

impl ControllerRef {
    /// The owner that a job's document names; `None`: no record here.
    #[must_use]
    pub fn in_document(document: &Value) -> Option<ControllerRef> {
        let listed = document.pointer("/metadata/ownerReferences")?.as_array()?;
        listed.iter().find_map(|one| {
            let of = |field: &str| one.get(field).and_then(Value::as_str);
            let kind = of("kind").filter(|kind| bell_of(kind).is_some())?.to_owned();
            let uid = Index(of("uid")?.parse().ok()?);
            Some(ControllerRef { kind, name: of("name")?.parse().ok()?, uid })
        })
    }

    /// The doorbell of the owner of a job in `id`'s namespace.
    #[must_use]
    pub fn bell(&self, id: &Namespaced) -> Option<Key> {
        let owner = Namespaced { namespace: id.namespace.clone(), name: self.name.clone() };
        Some(bell_of(&self.kind)?(&owner))
    }

    /// The document of a job of this owner. `template` has its `metadata` and `spec`, and `apiVersion` and `kind` if it
    /// is none of Volcano's.
    #[must_use]
    pub fn job<'a>(
        &self,
        id: &Namespaced,
        api_version: &str,
        template: &Map<String, Value>,
        annotations: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Value {
        let of = |field: &str| template.get(field).cloned();
        let mut metadata = of("metadata").filter(Value::is_object).unwrap_or_else(|| json!({}));
        metadata["name"] = json!(id.name);
        metadata["namespace"] = json!(id.namespace);
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        for (name, value) in annotations {
            metadata["annotations"][name] = json!(value);
        }
        metadata["ownerReferences"] = json!([{
            "apiVersion": api_version, "kind": self.kind, "name": self.name,
            "uid": self.uid.to_string(), "controller": true,
        }]);
        let mut job = json!({"metadata": metadata, "spec": of("spec").unwrap_or(Value::Null)});
        job["apiVersion"] = of("apiVersion").unwrap_or_else(|| json!(VOLCANO_JOB.0));
        job["kind"] = of("kind").unwrap_or_else(|| json!(VOLCANO_JOB.1));
        job
    }
}

/// The doorbells of records that own jobs, by kind.
fn bell_of(kind: &str) -> Option<fn(&Namespaced) -> Key> {
    match kind {
        rcfarm_api::cron::KIND => Some(key::cron_job_bell),
        rcfarm_api::flow::KIND => Some(key::job_flow_bell),
        _ => None,
    }
}

/// What the owner of a job reads of it.
#[derive(Debug, Clone)]
pub struct OwnedJob {
    pub entry: Entry,
    pub document: Value,
    /// `None`: no farm has looked at it yet.
    pub status: Option<JobStatus>,
}

impl OwnedJob {
    /// Its phase, and since when. `None`: no farm has looked at it yet.
    #[must_use]
    pub fn phase(&self) -> Option<(JobPhase, Timestamp)> {
        let state = &self.status.as_ref()?.state;
        Some((state.phase, state.last_transition_time))
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.document.pointer("/metadata/deletionTimestamp").is_some()
    }
}

/// Reads a job. `None`: there is none.
///
/// # Errors
/// Any [`StoreError`].
pub async fn read_job(
    reader: &dyn Reader,
    id: &Namespaced,
) -> Result<Option<OwnedJob>, StoreError> {
    let Some(entry) = reader.get(&key::job(id), Query::CONSISTENT).await?.value else {
        return Ok(None);
    };
    let status = read_job_status(reader, id, entry.create_index).await?;
    let document = serde_json::from_slice(&entry.value).unwrap_or_default();
    Ok(Some(OwnedJob { entry, document, status }))
}

/// Reads the status of a job whose record has this CreateIndex. `None`: it has none, or is gone.
///
/// # Errors
/// Any [`StoreError`].
pub async fn read_job_status(
    reader: &dyn Reader,
    id: &Namespaced,
    uid: Index,
) -> Result<Option<JobStatus>, StoreError> {
    let status = reader.get(&key::job_status(id), Query::CONSISTENT).await?.value;
    let status = status.and_then(|entry| JobStatus::decode(&entry.value).ok());
    Ok(status.filter(|status| status.uid == JobUid(uid)))
}

/// Whether a stored record, valid or not, is being deleted.
#[must_use]
pub fn is_deleting(value: &[u8]) -> bool {
    let document: Value = serde_json::from_slice(value).unwrap_or_default();
    document.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string)
}

/// The name of a record of a kind that makes jobs, from its key below the prefix.
///
/// # Errors
/// The key names no record of a namespace.
pub fn record_name(kind: &str, tail: &str) -> Result<Namespaced, FieldError> {
    if tail.split('/').count() != 2 {
        let problem = format!("a {kind} stands under <namespace>/<name>");
        return Err(FieldError::new(FieldError::KEY, problem, "move it there"));
    }
    tail.parse().map_err(|error: InvalidText| FieldError::from(error).below(FieldError::KEY))
}

/// Creates a job, with its audit record. Refused if there is a job of that name.
#[must_use]
pub fn create(id: &Namespaced, document: &Value, why: &str, now: Timestamp) -> (Op, AuditRecord) {
    change(id, document, Index::ZERO, 0, ("Created", why), now)
}

/// Marks a job as being deleted, with its audit record. Its owner farm then removes its pods and its record.
#[must_use]
pub fn delete(id: &Namespaced, job: &OwnedJob, why: &str, now: Timestamp) -> (Op, AuditRecord) {
    let mut document = job.document.clone();
    document["metadata"]["deletionTimestamp"] = json!(now);
    let entry = &job.entry;
    change(id, &document, entry.modify_index, entry.flags, ("Deleted", why), now)
}

fn change(
    id: &Namespaced,
    document: &Value,
    index: Index,
    flags: u64,
    (action, why): (&str, &str),
    now: Timestamp,
) -> (Op, AuditRecord) {
    let value: bytes::Bytes = document.to_string().into();
    let details = JobChange {
        job: id.clone(),
        actor: Actor::Farm,
        action: action.to_owned(),
        reason: why.to_owned(),
        command: None,
        record: Some(record_hash(&value)),
        step: None,
    };
    let op = Op::Cas { key: key::job(id), value, flags, index };
    (op, AuditRecord::new(&Details::JobChanged(details), now))
}
