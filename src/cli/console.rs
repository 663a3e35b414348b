//! What every command works with: the store, the output, and the way to change something.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::failure::failure;
use super::output::Output;
use crate::audit::{self, Actor, AuditRecord, Details};
use crate::ids::RcId;
use crate::store::{
    Entry, Index, Key, Limits, Op, Query, Refusal, Store, StoreError, Txn, TxnOutcome, key,
};
use crate::time::{Clock, IdSource, SystemClock, Timestamp, backoff};

/// How often a change is sent while its outcome is unknown, or Consul asks for patience.
const ATTEMPTS: u32 = 5;

/// The store and the output of a command.
pub(super) struct Console {
    pub(super) store: Arc<dyn Store>,
    pub(super) out: Output,
    pub(super) ids: IdSource,
    pub(super) limits: Limits,
    user: String,
}

/// What became of a change.
#[derive(Debug)]
pub(super) enum Committed {
    /// It was applied at this index.
    Applied(Index),
    /// Something that it relied on has changed meanwhile; nothing was applied.
    Refused(Vec<Refusal>),
}

impl Console {
    pub(super) fn new(store: Arc<dyn Store>, out: Output) -> Self {
        let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
        Console {
            store,
            out,
            ids: IdSource::from_entropy(),
            limits: Limits::default(),
            user: user.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned()),
        }
    }

    /// Who runs the command, for the audit log.
    pub(super) fn actor(&self) -> Actor {
        Actor::User { name: self.user.clone() }
    }

    pub(super) fn now(&self) -> Timestamp {
        SystemClock.wall()
    }

    /// Reads one key.
    pub(super) async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        Ok(self.store.get(key, Query::PLAIN).await?.value)
    }

    /// Reads many single keys in few requests; absent ones are left out.
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
                    // An absent key fails the transaction; all of them are named.
                    TxnOutcome::Refused(refusals) => {
                        let absent: BTreeSet<usize> = refusals.iter().map(|r| r.op).collect();
                        let rest = ops.iter().enumerate().filter(|(at, _)| !absent.contains(at));
                        ops = rest.map(|(_, op)| op.clone()).collect();
                    }
                }
            }
        }
        Ok(found)
    }

    /// Commits a change with its audit record, whose id makes the change one that can be sent again: if an
    /// earlier sending was applied after all, the later one is refused for the record's sake.
    ///
    /// `bell` is rung in the same transaction.
    pub(super) async fn commit(
        &self,
        ops: impl IntoIterator<Item = Op>,
        details: &Details,
        bell: Option<RcId>,
    ) -> anyhow::Result<Committed> {
        let id = self.ids.ordered_uuid(self.now());
        let mut txn = Txn::by_user();
        txn.extend(ops);
        if let Some(rc) = bell {
            let value = id.to_string().into(); // new each time: an equal value wakes nobody
            txn.push(Op::Set { key: key::rc_bell(rc), value, flags: 0 });
        }
        txn.push(audit::op(id, &AuditRecord::new(details, self.now())));
        self.send(id, txn.ops()).await
    }

    async fn send(&self, id: Uuid, ops: &[Op]) -> anyhow::Result<Committed> {
        let mut may_be_applied = false;
        for attempt in 0.. {
            match self.store.txn(ops).await {
                Ok(TxnOutcome::Committed { index, .. }) => return Ok(Committed::Applied(index)),
                Ok(TxnOutcome::Refused(refusals)) => {
                    return Ok(match may_be_applied.then(|| self.applied_at(id)) {
                        Some(look) => match look.await? {
                            Some(index) => Committed::Applied(index),
                            None => Committed::Refused(refusals),
                        },
                        None => Committed::Refused(refusals),
                    });
                }
                Err(error) => {
                    may_be_applied |= error.outcome_unknown();
                    let is_hopeless =
                        !error.is_retryable() || matches!(error, StoreError::Unreachable { .. });
                    if attempt + 1 == ATTEMPTS || (is_hopeless && !may_be_applied) {
                        return Err(unknown_or(error, id, may_be_applied));
                    }
                }
            }
            let pause = backoff(Duration::from_millis(100), Duration::from_secs(2), attempt);
            tokio::time::sleep(self.ids.jitter(pause, 0.5)).await;
        }
        unreachable!("the last attempt returns")
    }

    /// Where the change with this audit record was applied, if it was.
    async fn applied_at(&self, id: Uuid) -> Result<Option<Index>, StoreError> {
        let entry = self.store.get(&key::audit_log(id), Query::CONSISTENT).await?.value;
        Ok(entry.map(|entry| entry.create_index))
    }
}

fn unknown_or(error: StoreError, id: Uuid, may_be_applied: bool) -> anyhow::Error {
    if !may_be_applied {
        return error.into();
    }
    let hint = format!(
        "if `consul kv get {}` finds something, the change was made; else run the command again",
        key::audit_log(id)
    );
    failure(format!("it is not known whether the change was made: {error}"), hint)
}
