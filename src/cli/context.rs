//! Context of a command: store, output, and commits with an audit record.
//!
//! A change is one transaction with its audit record, so a crash leaves both or neither.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::failure::{CliExit, failure};
use super::output::{Column, Output, table};
use rcfarm_api::audit::{Actor, AuditCause, AuditRecord, Details};
use rcfarm_api::ids::RcId;
use rcfarm_api::key;
use rcfarm_api::{Stored as _, Timestamp, backoff};
use rcfarm_store::time::{Clock, IdSource, SystemClock};
use rcfarm_store::{
    Entry, Index, Key, Op, Prefix, Query, Refusal, Store, StoreError, Txn, TxnLimits, TxnOutcome,
};

/// Attempts of a change whose outcome is unknown, or that Consul refuses for load.
const ATTEMPTS: u32 = 5;
/// Attempts of a read-modify-write whose guard fails because somebody else changes the key.
pub(super) const EDIT_ATTEMPTS: usize = 5;

/// The store and the output of a command.
pub(super) struct CommandContext {
    pub(super) store: Arc<dyn Store>,
    pub(super) out: Output,
    pub(super) ids: IdSource,
    pub(super) limits: TxnLimits,
    user: String,
    /// Prefix of all keys in Consul; the store adds it.
    root: Prefix,
}

/// Result of a change: the index at which it was applied, or the guards that failed because a key has changed meanwhile.
/// Then nothing was applied.
pub(super) type ChangeOutcome = Result<Index, Vec<Refusal>>;

/// The user's number, where no variable names the user.
fn uid() -> String {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self");
    own.map_or_else(|_| "unknown".to_owned(), |own| format!("uid-{}", own.uid()))
}

impl CommandContext {
    pub(super) fn new(store: Arc<dyn Store>, out: Output) -> Self {
        let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
        CommandContext {
            store,
            out,
            ids: IdSource::from_entropy(),
            limits: TxnLimits::default(),
            user: user.filter(|name| !name.is_empty()).unwrap_or_else(uid),
            root: Prefix::parse("").expect("a legal prefix"),
        }
    }

    /// The context whose store has its keys below `root`.
    pub(super) fn below(self, root: Prefix) -> Self {
        CommandContext { root, ..self }
    }

    /// A key as Consul has it, for commands of other programs.
    pub(super) fn stored_key(&self, key: &Key) -> String {
        self.root.join(key).to_string()
    }

    /// Who runs the command, for the audit log.
    pub(super) fn actor(&self) -> Actor {
        Actor::user(&self.user)
    }

    pub(super) fn now(&self) -> Timestamp {
        SystemClock.wall()
    }

    /// Prints the result of a command that has succeeded.
    pub(super) fn show<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<CliExit> {
        self.out.show(value, text)?;
        Ok(CliExit::Ok)
    }

    /// Prints rows: as text a table, or the sentence `none` if there are no rows.
    pub(super) fn show_rows<R: Serialize>(
        &self,
        rows: &[R],
        none: &str,
        columns: &[Column<'_, R>],
    ) -> anyhow::Result<CliExit> {
        self.show(&rows, || if rows.is_empty() { none.to_owned() } else { table(rows, columns) })
    }

    /// Prints a note on stderr.
    pub(super) fn note(&self, text: impl AsRef<str>) {
        self.out.note(text.as_ref());
    }

    /// Prints an error on stderr that is not the command's last.
    pub(super) fn report(&self, error: &anyhow::Error) {
        super::failure::report(error, None, self.out.color);
    }

    /// Lists the entries below a prefix.
    pub(super) async fn list(&self, prefix: &Prefix) -> Result<Vec<Entry>, StoreError> {
        Ok(self.store.list(prefix, Query::PLAIN).await?.value)
    }

    /// Lists the keys below a prefix.
    pub(super) async fn keys(&self, prefix: &Prefix) -> Result<Vec<String>, StoreError> {
        Ok(self.store.keys(prefix, None, Query::PLAIN).await?.value)
    }

    /// Reads one key.
    pub(super) async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        Ok(self.store.get(key, Query::PLAIN).await?.value)
    }

    /// Reads many keys in few transactions. Absent keys are left out.
    pub(super) async fn get_many(
        &self,
        keys: impl IntoIterator<Item = Key>,
    ) -> Result<BTreeMap<String, Entry>, StoreError> {
        let ops: Vec<Op> = keys.into_iter().map(|key| Op::Get { key }).collect();
        let mut found = BTreeMap::new();
        for ops in ops.chunks(self.limits.ops) {
            let mut ops = ops.to_vec();
            while !ops.is_empty() {
                match self.store.txn(&ops).await? {
                    TxnOutcome::Committed { entries, .. } => {
                        found.extend(entries.into_iter().map(|entry| (entry.key.clone(), entry)));
                        break;
                    }
                    // An absent key refuses the transaction, and the refusal names every absent key.
                    TxnOutcome::Refused(refusals) => {
                        let absent: BTreeSet<usize> = refusals.iter().map(|r| r.op).collect();
                        if absent.is_empty() {
                            let what = "a refused read that names no operation".to_owned();
                            let detail = "no OpIndex in Errors".to_owned();
                            return Err(StoreError::Decode { what, detail });
                        }
                        let rest = ops.iter().enumerate().filter(|(at, _)| !absent.contains(at));
                        ops = rest.map(|(_, op)| op.clone()).collect();
                    }
                }
            }
        }
        Ok(found)
    }

    /// Pause after a failed read that is repeated, 1 s to 30 s.
    pub(super) async fn pause_after(&self, error: &StoreError, failures: u32) {
        self.note(format!("{error}; trying again"));
        let pause = backoff(Duration::from_secs(1), Duration::from_secs(30), failures);
        tokio::time::sleep(pause).await;
    }

    /// The result of a read, which is repeated while its error may pass, such as during an election of a leader.
    pub(super) async fn persist<T>(
        &self,
        read: impl AsyncFn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut failures = 0;
        loop {
            match read().await {
                Err(error) if error.is_retryable() => self.pause_after(&error, failures).await,
                result => return result,
            }
            failures += 1;
        }
    }

    /// Commits a change with its audit record. The record's id makes retries safe: if an earlier attempt was applied,
    /// Consul refuses the later one, because the record exists.
    ///
    /// The same transaction writes the doorbell of `bell`.
    pub(super) async fn commit(
        &self,
        ops: impl IntoIterator<Item = Op>,
        details: &Details,
        bell: Option<RcId>,
    ) -> anyhow::Result<ChangeOutcome> {
        let id = self.ids.ordered_uuid(self.now());
        let mut txn = Txn::by_user();
        txn.extend(ops);
        if let Some(rc) = bell {
            let value = id.to_string().into(); // always new: an unchanged value wakes no watch
            txn.push(Op::Set { key: key::rc_bell(rc), value, flags: 0 });
        }
        let key = match details {
            Details::JobChanged(change) => key::namespaced_audit_log(&change.job.namespace, id),
            Details::RecordChanged(change) => {
                key::namespaced_audit_log(&change.record.namespace, id)
            }
            _ => key::audit_log(id),
        };
        let record = AuditRecord::new(details, self.now()).caused_by(AuditCause::external(None));
        let value = record.encode();
        txn.push(Op::Cas { key: key.clone(), value, flags: 0, index: Index::ZERO });
        self.send(&key, txn.ops()).await
    }

    /// Repeats a read-modify-write of `what` until no guard fails. `attempt` returns `None` if one failed.
    pub(super) async fn edit<T>(
        &self,
        what: impl Display,
        mut attempt: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        for _ in 0..EDIT_ATTEMPTS {
            if let Some(done) = attempt().await? {
                return Ok(done);
            }
        }
        Err(failure(
            format!("{what} changes all the time: {EDIT_ATTEMPTS} attempts were too late"),
            "see who writes it: rcfarm audit list --since 10m",
        ))
    }

    /// Sends a change with the audit record `audit`.
    async fn send(&self, audit: &Key, ops: &[Op]) -> anyhow::Result<ChangeOutcome> {
        let mut may_be_applied = false;
        for attempt in 0.. {
            match self.store.txn(ops).await {
                Ok(TxnOutcome::Committed { index, .. }) => {
                    return Ok(Ok(index));
                }
                Ok(TxnOutcome::Refused(refusals)) => {
                    let index = if may_be_applied { self.applied_at(audit).await? } else { None };
                    return Ok(index.ok_or(refusals));
                }
                Err(error) => {
                    may_be_applied |= error.outcome_unknown();
                    let is_hopeless =
                        !error.is_retryable() || matches!(error, StoreError::Unreachable { .. });
                    if attempt + 1 == ATTEMPTS || (is_hopeless && !may_be_applied) {
                        return Err(unknown_or(error, audit, may_be_applied));
                    }
                }
            }
            let pause = backoff(Duration::from_millis(100), Duration::from_secs(2), attempt);
            tokio::time::sleep(self.ids.jitter(pause, 0.5)).await;
        }
        unreachable!("the last attempt returns")
    }

    /// The index at which the change with this audit record was applied. `None`: it was not.
    async fn applied_at(&self, audit: &Key) -> Result<Option<Index>, StoreError> {
        let entry = self.store.get(audit, Query::CONSISTENT).await?.value;
        Ok(entry.map(|entry| entry.create_index))
    }
}

fn unknown_or(error: StoreError, audit: &Key, may_be_applied: bool) -> anyhow::Error {
    if !may_be_applied {
        return error.into();
    }
    let hint = format!(
        "if `consul kv get {audit}` finds something, the change was made; else run the command again"
    );
    failure(format!("it is not known whether the change was made: {error}"), hint)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::cli::output::Format;
    use crate::cli::terminal::ColorWhen;
    use rcfarm_api::audit::LabelsChange;
    use rcfarm_api::labels::Labels;
    use rcfarm_emulator::{Emulator, Fate, FaultOutcome, Request};
    use rcfarm_store::Reader;

    /// A context whose first write transactions have these outcomes.
    pub(in crate::cli) fn context(consul: &Emulator, fates: Vec<FaultOutcome>) -> CommandContext {
        let next = AtomicUsize::new(0);
        let faults = move |request: &Request<'_>| match request {
            Request::Txn(_) if request.writes() => {
                let fate = fates.get(next.fetch_add(1, Ordering::SeqCst)).cloned();
                Fate::of(fate.unwrap_or(FaultOutcome::Deliver))
            }
            _ => Fate::DELIVER,
        };
        let store = Arc::new(consul.with_faults(Arc::new(faults)));
        CommandContext::new(store, Output { format: Format::Json, color: ColorWhen::Never })
    }

    async fn commit(context: &CommandContext) -> anyhow::Result<ChangeOutcome> {
        let details = Details::LabelsChanged(LabelsChange {
            kind: "node".to_owned(),
            id: "n1".to_owned(),
            actor: context.actor(),
            reason: "Requested".to_owned(),
            set: Labels::new(),
            removed: Labels::new(),
        });
        let key = Key::parse("labels/node/n1").unwrap();
        let op = Op::Cas { key, value: "{}".into(), flags: 0, index: Index::ZERO };
        context.commit([op], &details, None).await
    }

    async fn log_length(consul: &Emulator) -> usize {
        consul.keys(&key::audit_logs(), None, Query::PLAIN).await.unwrap().value.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_whose_answer_was_lost_is_made_once_and_known_to_be() {
        for lost in [FaultOutcome::Lose, FaultOutcome::LoseReply] {
            let consul = Emulator::default();
            let context = context(&consul, vec![lost.clone(), FaultOutcome::LoseReply]);
            let index = commit(&context).await.unwrap().expect("not refused");
            let entry = context.get(&Key::parse("labels/node/n1").unwrap()).await.unwrap().unwrap();
            assert_eq!(entry.modify_index, index, "{lost:?}");
            assert_eq!(log_length(&consul).await, 1, "{lost:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_may_have_been_made_says_so_and_how_to_find_out() {
        let consul = Emulator::default();
        let context = context(&consul, vec![FaultOutcome::Lose; 5]);
        let error = commit(&context).await.unwrap_err();
        assert!(error.to_string().contains("not known whether the change was made"), "{error}");
        assert_eq!(log_length(&consul).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_was_not_made_is_tried_again_when_that_may_help() {
        let consul = Emulator::default();
        let no_leader = FaultOutcome::Fail(StoreError::NoLeader);
        let patient = context(&consul, vec![no_leader.clone(), no_leader.clone()]);
        assert!(commit(&patient).await.unwrap().is_ok());

        let consul = Emulator::default();
        let hopeless = context(&consul, vec![no_leader; 5]);
        let error = commit(&hopeless).await.unwrap_err();
        assert_eq!(error.to_string(), StoreError::NoLeader.to_string());

        let forbidden = FaultOutcome::Fail(StoreError::Forbidden { what: "x".to_owned() });
        let refused = context(&consul, vec![forbidden]);
        assert!(commit(&refused).await.is_err(), "asking again does not help");
        assert_eq!(log_length(&consul).await, 0);
    }

    #[tokio::test]
    async fn many_keys_are_read_in_few_requests_and_absent_ones_left_out() {
        let consul = Emulator::default();
        let key = |n: usize| Key::parse(&format!("k/{n:03}")).unwrap();
        for n in (0..200).filter(|n| n % 3 != 0) {
            let mode = rcfarm_store::PutMode::Set;
            assert!(consul.put(&key(n), n.to_string().into(), 0, mode).await.unwrap());
        }
        let context = context(&consul, Vec::new());
        let found = context.get_many((0..200).map(key)).await.unwrap();
        assert_eq!(found.len(), (0..200).filter(|n| n % 3 != 0).count());
        assert_eq!(found["k/199"].value, "199");
    }
}
