//! Transactions: all operations or none.

use std::marker::PhantomData;

use bytes::Bytes;

use super::{Claim, Entry, Index, Key, Prefix};
use rcfarm_api::Stored;
use rcfarm_api::audit::AuditRecord;
use rcfarm_api::ids::SessionId;
use rcfarm_api::key;
use uuid::Uuid;

/// One operation of a transaction, named as Consul's verbs are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Set { key: Key, value: Bytes, flags: u64 },
    Cas { key: Key, value: Bytes, flags: u64, index: Index },
    Lock { key: Key, value: Bytes, session: SessionId },
    Unlock { key: Key, value: Bytes, session: SessionId },
    Get { key: Key },
    GetTree { prefix: Prefix },
    CheckIndex { key: Key, index: Index },
    CheckSession { key: Key, session: SessionId },
    CheckNotExists { key: Key },
    Delete { key: Key },
    DeleteTree { prefix: Prefix },
    DeleteCas { key: Key, index: Index },
}

impl Op {
    /// The key or prefix that the operation is about.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Op::GetTree { prefix } | Op::DeleteTree { prefix } => prefix.as_str(),
            Op::Set { key, .. }
            | Op::Cas { key, .. }
            | Op::Lock { key, .. }
            | Op::Unlock { key, .. }
            | Op::Get { key }
            | Op::CheckIndex { key, .. }
            | Op::CheckSession { key, .. }
            | Op::CheckNotExists { key }
            | Op::Delete { key }
            | Op::DeleteCas { key, .. } => key.as_str(),
        }
    }

    /// Bytes that the operation takes in the request body, rounded up.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        const FRAME: usize = 120; // braces, field names, an index or a session
        let value = match self {
            Op::Set { value, .. }
            | Op::Cas { value, .. }
            | Op::Lock { value, .. }
            | Op::Unlock { value, .. } => value.len().div_ceil(3) * 4,
            _ => 0,
        };
        FRAME + self.subject().len() + value
    }
}

/// One question of a transaction that only reads ([`super::Reader::ask`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// What the key holds. Refused when it does not exist; without rights the answer lacks it.
    Get {
        /// The key.
        key: Key,
    },
    /// Whether this is the key's ModifyIndex. Refused when it is not.
    IsAt {
        /// The key.
        key: Key,
        /// What it is compared with.
        index: Index,
    },
}

impl From<&Question> for Op {
    fn from(question: &Question) -> Op {
        match question.clone() {
            Question::Get { key } => Op::Get { key },
            Question::IsAt { key, index } => Op::CheckIndex { key, index },
        }
    }
}

/// How much fits into one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxnLimits {
    /// Operations: 64 before Consul 1.14, 128 after.
    pub ops: usize,
    /// Bytes of the request body, base64 included.
    pub bytes: usize,
}

impl Default for TxnLimits {
    /// What every version takes: 64 operations, 512 KiB (less a margin for the framing).
    fn default() -> Self {
        TxnLimits { ops: 64, bytes: 512 * 1024 - 1024 }
    }
}

/// Why an operation made Consul refuse the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Position in the transaction. Classify by the operation there, never by the text.
    pub op: usize,
    /// Consul's words, for people.
    pub what: String,
}

/// Consul's answer to a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum TxnOutcome {
    /// Applied. `entries` are what the operations returned, in order; deletes return nothing and trees return
    /// many, so look entries up by key.
    Committed {
        /// The greatest index of the keys that it wrote: what all changes share, or an older one if every key had
        /// its value already. 0 when no operation that writes returns an entry.
        index: Index,
        /// Returned entries; only `get` and `get-tree` carry values.
        entries: Vec<Entry>,
    },
    /// Nothing was applied; every operation that failed is listed.
    Refused(Vec<Refusal>),
}

/// Marks a transaction that begins with a claim's fence.
#[derive(Debug, Clone)]
pub struct Fenced {
    pub(super) claim: Claim,
}

/// Marks a transaction of a person or a command, guarded by its own checks alone.
#[derive(Debug, Clone, Default)]
pub struct ByUser(PhantomData<()>);

/// A transaction being built.
///
/// `Txn<Fenced>` comes only from [`Txn::under`] and is the only one that a [`super::Writer`] takes, so a
/// controller cannot write without its fence.
#[derive(Debug, Clone)]
#[must_use]
pub struct Txn<G> {
    pub(super) guard: G,
    pub(super) ops: Vec<Op>,
}

impl Txn<Fenced> {
    /// Starts with the fence: refused by Consul unless the claim's session holds the claim's lock at that moment.
    pub fn under(claim: &Claim) -> Self {
        Txn { ops: vec![claim.fence()], guard: Fenced { claim: claim.clone() } }
    }
}

impl Txn<ByUser> {
    /// A transaction of a person or a command.
    pub fn by_user() -> Self {
        Txn { ops: Vec::new(), guard: ByUser::default() }
    }
}

impl<G> Txn<G> {
    /// Adds an operation.
    pub fn push(&mut self, op: Op) -> &mut Self {
        self.ops.push(op);
        self
    }

    /// Adds operations.
    pub fn extend(&mut self, ops: impl IntoIterator<Item = Op>) -> &mut Self {
        self.ops.extend(ops);
        self
    }

    /// The operations so far, the fence included.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Bytes of the request body, rounded up.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.ops.iter().map(Op::body_bytes).sum()
    }

    /// Whether the operations may still be added.
    #[must_use]
    pub fn fits(&self, more: &[Op], limits: TxnLimits) -> bool {
        self.ops.len() + more.len() <= limits.ops
            && self.body_bytes() + more.iter().map(Op::body_bytes).sum::<usize>() <= limits.bytes
    }
}

/// The operation that writes a record. It is refused when the id was written before, so an event is recorded
/// once however often its transaction is sent.
#[must_use]
pub fn audit_op(id: Uuid, record: &AuditRecord) -> Op {
    Op::Cas { key: key::audit_log(id), value: record.encode(), flags: 0, index: Index::ZERO }
}

#[cfg(test)]
mod tests {
    use rcfarm_api::audit::EventType;

    use super::*;

    #[test]
    fn an_audit_record_is_written_once() {
        let id = Uuid::from_u128(5);
        let record = AuditRecord {
            event_type: EventType::Other("X".to_owned()),
            event_details: serde_json::json!({"a": 1}),
            timestamp: "2026-01-01T00:00:00Z".parse().unwrap(),
            schema_version: 1,
        };
        let Op::Cas { key, index, value, .. } = audit_op(id, &record) else { panic!("not a CAS") };
        assert_eq!((key, index), (key::audit_log(id), Index::ZERO));
        assert_eq!(AuditRecord::decode(&value).unwrap(), record);
    }
}
