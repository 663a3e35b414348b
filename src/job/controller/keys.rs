//! Makes the key pair of a job with the plugin `ssh`, once, before its first plan ([`crate::job::ssh_keys`]).
//!
//! The record of the keys and the status that names the public key are one transaction, and no pod is planned before it
//! was answered. A crash before it leaves no key: the next owner makes a pair, and nobody has seen another. A crash
//! after it, or a lost answer, leaves both: the next owner, or this one after reading the status, reads the record. The
//! record is replaced only at the index that was read.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::view::DecodedJob;
use super::{JobController, JobView};
use crate::farm::kind::{Action, ReconcileError};
use crate::farm::status_chain::{Committed, RecordGuard};
use crate::job::ssh_keys;
use rcfarm_api::Stored;
use rcfarm_api::job::spec::{JobUid, Plugin};
use rcfarm_api::job::ssh_keys::{JobKeysRecord, SshKeyPair};
use rcfarm_api::job::status::{JobReason, JobStatus, WITHOUT_KEYS};
use rcfarm_api::key;
use rcfarm_store::sealing::KeySealing;
use rcfarm_store::{Index, Op, Query, StoreError};

/// What the owner of a job knows of its keys.
#[derive(Debug)]
pub(super) struct OwnedKeys {
    /// How private keys are stored.
    pub(super) sealing: KeySealing,
    /// The pair, once it was read or made.
    pair: Option<(JobUid, SshKeyPair)>,
}

impl OwnedKeys {
    pub(super) fn new(sealing: KeySealing) -> OwnedKeys {
        OwnedKeys { sealing, pair: None }
    }

    /// The pair of a job.
    pub(super) fn of(&self, uid: JobUid) -> Option<&SshKeyPair> {
        self.pair.as_ref().filter(|(of, _)| *of == uid).map(|(_, pair)| pair)
    }
}

impl JobController {
    /// Reads or makes the keys of a job that needs some. Returns what to do if it cannot be planned now.
    pub(super) async fn ensure_keys(
        &mut self,
        input: &mut JobView,
    ) -> Result<Option<Action>, ReconcileError> {
        let (status, uid) = (self.chain.status(), input.uid);
        let is_known = status.uid == uid;
        let said = status.ssh_key.as_ref().filter(|_| is_known);
        let spec = &input.record.read.spec;
        if !spec.plugins.contains_key(&Plugin::Ssh) {
            // Those of an older job of the name go. A job that had the plugin must not lose it, and keeps its own.
            return match status.ssh_key.is_some() && !is_known {
                true => self.drop_keys(input).await,
                false => Ok(None),
            };
        }
        if said.is_some_and(|said| said == WITHOUT_KEYS) {
            input.record = without_keys(&input.record);
            return Ok(None);
        }
        let rests = is_known && !status.state.phase.is_active() && input.commands.is_empty();
        if spec.deleting || rests || said.is_some() && self.keys.of(uid).is_some() {
            return Ok(None);
        }
        if said.is_none() && is_known && has_started(status) {
            // A farm from before has started it: half of its members would have keys.
            return self.write_keys(input, Some(WITHOUT_KEYS.to_owned()), Vec::new()).await;
        }
        let (index, found) = self.read_keys().await?;
        if let Some(pair) = found.filter(|record| record.uid == uid).map(|record| record.ssh) {
            let is_said = said.is_some();
            let fingerprint = ssh_keys::fingerprint(&pair);
            self.keys.pair = Some((uid, pair));
            return match is_said {
                true => Ok(None),
                // The status was deleted by hand.
                false => self.write_keys(input, Some(fingerprint), Vec::new()).await,
            };
        }
        if !self.keys.sealing.is_possible() {
            // A command carries itself out, and pods go; without keys no process starts.
            let is_empty = input.pods.own.is_empty() && input.pods.leaving.is_empty();
            return match input.commands.is_empty() && is_empty {
                true => self.refuse_keys(input).await.map(Some),
                false => Ok(None),
            };
        }
        let pair = ssh_keys::make(&self.id, uid, &self.keys.sealing)
            .map_err(|why| ReconcileError::Elsewhere(format!("no ssh keys can be made: {why}")))?;
        let fingerprint = ssh_keys::fingerprint(&pair);
        let record = JobKeysRecord { uid, ssh: pair, other: serde_json::Map::new() };
        let value = record.encode();
        let op = Op::Cas { key: key::job_keys(&self.id), value, flags: 0, index };
        let written = self.write_keys(input, Some(fingerprint.clone()), vec![op]).await?;
        if self.chain.status().ssh_key.as_ref() == Some(&fingerprint) {
            info!(record = %self.id, key = fingerprint, "ssh keys made");
            self.keys.pair = Some((uid, record.ssh));
        }
        Ok(written)
    }

    /// The record of the keys with its ModifyIndex; 0 if there is none. The error names no part of the record.
    async fn read_keys(&self) -> Result<(Index, Option<JobKeysRecord>), ReconcileError> {
        let key = key::job_keys(&self.id);
        let Some(entry) = self.ctx.reader.get(&key, Query::CONSISTENT).await?.value else {
            return Ok((Index::ZERO, None));
        };
        let record = JobKeysRecord::decode(&entry.value).map_err(|_| {
            let why = format!("{key} is not valid: delete it, and the job gets new keys");
            ReconcileError::Record(why)
        })?;
        Ok((entry.modify_index, Some(record)))
    }

    /// Whether there is a record of keys, for the collection of orphans.
    pub(super) async fn has_keys(&self) -> Result<bool, StoreError> {
        if self.chain.status().ssh_key.is_none() && !self.keys.sealing.is_possible() {
            return Ok(false);
        }
        let read = self.ctx.reader.get(&key::job_keys(&self.id), Query::CONSISTENT).await?;
        Ok(read.value.is_some())
    }

    async fn drop_keys(&mut self, input: &JobView) -> Result<Option<Action>, ReconcileError> {
        let op = Op::Delete { key: key::job_keys(&self.id) };
        self.write_keys(input, None, vec![op]).await
    }

    /// Commits operations on the record of the keys, with a status that names the public one. Then the job is planned.
    async fn write_keys(
        &mut self,
        input: &JobView,
        ssh_key: Option<String>,
        ops: Vec<Op>,
    ) -> Result<Option<Action>, ReconcileError> {
        let mut status = JobStatus { ssh_key, ..self.status_of(input.uid) };
        self.note_first_phase(&mut status);
        let guard = RecordGuard::At(input.record_index);
        match self.commit_status(guard, status, ops).await? {
            Committed::Applied(_) => Ok(Some(Action::RequeueAfter(Duration::ZERO))),
            Committed::Refused(_) => Ok(Some(self.after_refusal())),
        }
    }

    /// Says why the job waits, and how to go on.
    async fn refuse_keys(&mut self, input: &JobView) -> Result<Action, ReconcileError> {
        let mut status = self.status_of(input.uid);
        self.note_first_phase(&mut status);
        status.say_meanwhile(JobReason::SshKeysRefused, ssh_keys::REFUSED);
        if self.chain.status().state.reason != status.state.reason {
            warn!(record = %self.id, "the job waits: {}", ssh_keys::REFUSED);
        }
        self.write_status(input.record_index, status).await?;
        Ok(Action::AwaitChange)
    }
}

/// Whether members have been started, or have run.
fn has_started(status: &JobStatus) -> bool {
    let mut tasks = status.tasks.values();
    status.start_time.is_some() || tasks.any(|memory| !memory.started.is_empty())
}

/// The job without the plugin.
fn without_keys(record: &DecodedJob) -> Arc<DecodedJob> {
    let mut record = record.clone();
    record.read.spec.plugins.remove(&Plugin::Ssh);
    Arc::new(record)
}
