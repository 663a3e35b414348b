//! Transactions: operations that Consul applies all or not at all.

use std::marker::PhantomData;

use bytes::Bytes;

use super::{Claim, Entry, Index, Key, Prefix};
use rcfarm_api::audit::AuditRecord;
use rcfarm_api::ids::SessionId;
use rcfarm_api::{Stored, key};
use uuid::Uuid;

/// One operation of a transaction, named after Consul's verb.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Deletes a key only if it is as it was read. Deleting an absent key by `delete-cas` succeeds in Consul: an owner
    /// whose view is old would write a second audit record of what is gone.
    #[must_use]
    pub fn delete_if_there(key: Key, index: Index) -> [Op; 2] {
        [Op::CheckIndex { key: key.clone(), index }, Op::Delete { key }]
    }

    /// The key or prefix of the operation.
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

    /// Upper bound of the operation's size in the request body, in bytes.
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

/// One operation of a transaction that only reads ([`super::Reader::ask`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Reads the key. Refused if it does not exist. Without rights the answer lacks the entry.
    Get { key: Key },
    /// Refused unless the key has this ModifyIndex.
    IsAt {
        key: Key,
        /// The expected ModifyIndex.
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

/// Size limits of one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxnLimits {
    /// Number of operations: 64 before Consul 1.14, 128 since.
    pub ops: usize,
    /// Size of the request body in bytes, with values in base64.
    pub bytes: usize,
}

impl Default for TxnLimits {
    /// The limits of every version: 64 operations, 512 KiB less 1 KiB for the framing.
    fn default() -> Self {
        TxnLimits { ops: 64, bytes: 512 * 1024 - 1024 }
    }
}

/// Why an operation made Consul refuse the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Position in the transaction. Classify a refusal by the operation there, never by its text.
    pub op: usize,
    /// Message of Consul.
    pub what: String,
}

/// Consul's answer to a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum TxnOutcome {
    /// Applied.
    Committed {
        /// The greatest ModifyIndex of the keys that it wrote. It is older than the transaction if every key already had
        /// its value, and 0 if no writing operation returns an entry.
        index: Index,
        /// Returned entries in the order of the operations. Deletes return none and trees several, so look them up by
        /// key. Only those of `get` and `get-tree` have values.
        entries: Vec<Entry>,
    },
    /// Nothing was applied. Every failed operation is listed.
    Refused(Vec<Refusal>),
}

/// Marks a transaction that begins with a claim's fence.
#[derive(Debug, Clone)]
pub struct Fenced {
    pub(super) claim: Claim,
}

/// Marks a transaction of a command, which has no claim: only its own checks guard it.
#[derive(Debug, Clone, Default)]
pub struct ByUser(PhantomData<()>);

/// Builder of a transaction.
///
/// A [`super::Writer`] takes only a `Txn<Fenced>`, which only [`Txn::under`] creates. So a controller cannot write
/// without its fence.
#[derive(Debug, Clone)]
#[must_use]
pub struct Txn<G> {
    pub(super) guard: G,
    pub(super) ops: Vec<Op>,
}

impl Txn<Fenced> {
    /// A transaction that begins with the claim's fence.
    pub fn under(claim: &Claim) -> Self {
        Txn { ops: vec![claim.fence()], guard: Fenced { claim: claim.clone() } }
    }
}

impl Txn<ByUser> {
    /// A transaction without a fence, for commands.
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
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Upper bound of the request body's size in bytes.
    pub fn body_bytes(&self) -> usize {
        self.ops.iter().map(Op::body_bytes).sum()
    }

    /// Whether the transaction with `more` operations stays within `limits`.
    pub fn fits(&self, more: &[Op], limits: TxnLimits) -> bool {
        self.ops.len() + more.len() <= limits.ops
            && self.body_bytes() + more.iter().map(Op::body_bytes).sum::<usize>() <= limits.bytes
    }
}

/// The operation that writes an audit record. Consul refuses it if `id` exists, so a transaction that is sent twice
/// records its event once.
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
            cause: None,
        };
        let Op::Cas { key, index, value, .. } = audit_op(id, &record) else { panic!("not a CAS") };
        assert_eq!((key, index), (key::audit_log(id), Index::ZERO));
        assert_eq!(AuditRecord::decode(&value).unwrap(), record);
    }
}
