//! Operations on keys: one at a time or many in one transaction (`consul-semantics.md` §2).

use std::sync::Arc;

use bytes::Bytes;

use super::kv::{Draft, Kv};
use super::session::Sessions;
use rcfarm_store::{Entry, Index, Op, Refusal, StoreError, TxnOutcome};

/// Consul's verb of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    Set,
    Cas,
    Lock,
    Unlock,
    Get,
    GetTree,
    CheckIndex,
    CheckSession,
    CheckNotExists,
    Delete,
    DeleteTree,
    DeleteCas,
    /// A verb that Consul 1.8 does not have.
    Unknown(String),
    /// An operation on something other than keys. It is refused with this text.
    NotModelled(String),
}

impl Verb {
    /// The verb of Consul's name.
    pub fn parse(word: &str) -> Verb {
        match word {
            "set" => Verb::Set,
            "cas" => Verb::Cas,
            "lock" => Verb::Lock,
            "unlock" => Verb::Unlock,
            "get" => Verb::Get,
            "get-tree" => Verb::GetTree,
            "check-index" => Verb::CheckIndex,
            "check-session" => Verb::CheckSession,
            "check-not-exists" => Verb::CheckNotExists,
            "delete" => Verb::Delete,
            "delete-tree" => Verb::DeleteTree,
            "delete-cas" => Verb::DeleteCas,
            other => Verb::Unknown(other.to_owned()),
        }
    }

    /// Whether it can change the state. A transaction without such a verb is a read and takes no index.
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Verb::Set
                | Verb::Cas
                | Verb::Lock
                | Verb::Unlock
                | Verb::Delete
                | Verb::DeleteTree
                | Verb::DeleteCas
        )
    }
}

/// One operation. Unlike in [`Op`] the key may be any text, as in Consul.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvOp {
    /// Kind of operation.
    pub verb: Verb,
    /// Key or prefix.
    pub key: String,
    /// Value to write.
    pub value: Bytes,
    /// Flags to write.
    pub flags: u64,
    /// ModifyIndex to compare with.
    pub index: Index,
    /// Session that locks, unlocks, or must hold the key.
    pub session: String,
}

impl KvOp {
    /// An operation with a key and no other arguments.
    pub fn new(verb: Verb, key: impl Into<String>) -> Self {
        let (value, session) = (Bytes::new(), String::new());
        KvOp { verb, key: key.into(), value, flags: 0, index: Index::ZERO, session }
    }
}

impl From<&Op> for KvOp {
    fn from(op: &Op) -> Self {
        let bare = |verb| KvOp::new(verb, op.subject());
        match op.clone() {
            Op::Set { value, flags, .. } => KvOp { value, flags, ..bare(Verb::Set) },
            Op::Cas { value, flags, index, .. } => KvOp { value, flags, index, ..bare(Verb::Cas) },
            Op::Lock { value, session, .. } => {
                KvOp { value, session: session.to_string(), ..bare(Verb::Lock) }
            }
            Op::Unlock { value, session, .. } => {
                KvOp { value, session: session.to_string(), ..bare(Verb::Unlock) }
            }
            Op::Get { .. } => bare(Verb::Get),
            Op::GetTree { .. } => bare(Verb::GetTree),
            Op::CheckIndex { index, .. } => KvOp { index, ..bare(Verb::CheckIndex) },
            Op::CheckSession { session, .. } => {
                KvOp { session: session.to_string(), ..bare(Verb::CheckSession) }
            }
            Op::CheckNotExists { .. } => bare(Verb::CheckNotExists),
            Op::Delete { .. } => bare(Verb::Delete),
            Op::DeleteTree { .. } => bare(Verb::DeleteTree),
            Op::DeleteCas { index, .. } => KvOp { index, ..bare(Verb::DeleteCas) },
        }
    }
}

/// Why an operation failed.
pub(super) enum OpFailure {
    /// The state is not as the operation requires. A single-key request answers `false`.
    Unmet(String),
    /// The request is invalid. A single-key request answers with an error.
    Wrong(StoreError),
}

impl OpFailure {
    /// The message in a transaction's refusal.
    fn what(self) -> String {
        match self {
            OpFailure::Unmet(what) => what,
            OpFailure::Wrong(StoreError::SessionGone { session }) => {
                format!("invalid session {:?}", session.as_str())
            }
            OpFailure::Wrong(StoreError::Rejected { body, .. }) => body,
            OpFailure::Wrong(other) => other.to_string(),
        }
    }
}

/// Executes the operations in order on one draft. Keeps all of them or none.
pub(super) fn perform_all(mut draft: Draft<'_>, sessions: &Sessions, ops: &[KvOp]) -> Performed {
    let mut performed = Performed::default();
    for (op, step) in ops.iter().enumerate() {
        match perform(&mut draft, sessions, step) {
            Ok(entries) => performed.took_place(&step.verb, entries),
            Err(no) => performed.refusals.push(Refusal { op, what: no.what() }),
        }
    }
    if performed.refusals.is_empty() {
        performed.changes = draft.commit();
    } else {
        draft.revert();
    }
    performed
}

#[derive(Default)]
pub(super) struct Performed {
    entries: Vec<Entry>,
    refusals: Vec<Refusal>,
    /// The greatest ModifyIndex of the keys that it wrote.
    written: Index,
    /// Changed keys, in order.
    pub(super) changes: Vec<super::kv::KvChange>,
}

impl Performed {
    fn took_place(&mut self, verb: &Verb, entries: Vec<Entry>) {
        if matches!(verb, Verb::Set | Verb::Cas | Verb::Lock | Verb::Unlock) {
            let newest = entries.iter().map(|e| e.modify_index).max();
            self.written = self.written.max(newest.unwrap_or_default());
        }
        self.entries.extend(entries);
    }

    /// The result as the port returns it.
    pub(super) fn outcome(self) -> TxnOutcome {
        if !self.refusals.is_empty() {
            return TxnOutcome::Refused(self.refusals);
        }
        TxnOutcome::Committed { index: self.written, entries: self.entries }
    }
}

/// Executes one operation. Returns its entries in the transaction's answer.
pub(super) fn perform(
    draft: &mut Draft<'_>,
    sessions: &Sessions,
    op: &KvOp,
) -> Result<Vec<Entry>, OpFailure> {
    let key = op.key.as_str();
    let value = op.value.clone();
    let unmet = |why: &str| OpFailure::Unmet(format!("failed to {why}"));
    match &op.verb {
        Verb::Set => Ok(bare(&draft.set(key, value, op.flags))),
        Verb::Cas => match draft.cas(key, value, op.flags, op.index) {
            Some(entry) => Ok(bare(&entry)),
            None => Err(unmet(&format!("set key {key:?}, index is stale"))),
        },
        Verb::Lock => {
            let session = sessions.for_lock(&op.session).map_err(OpFailure::Wrong)?;
            match draft.lock(key, value, op.flags, &session) {
                Some(entry) => Ok(bare(&entry)),
                None => Err(unmet(&format!("lock key {key:?}, lock is already held"))),
            }
        }
        Verb::Unlock if op.session.is_empty() => {
            Err(OpFailure::Wrong(super::session::refused("missing session")))
        }
        Verb::Unlock => match draft.unlock(key, value, op.flags, &op.session) {
            Some(entry) => Ok(bare(&entry)),
            None => Err(unmet(&format!(
                "unlock key {key:?}, lock isn't held, or is held by another session"
            ))),
        },
        Verb::Delete => {
            draft.delete(key);
            Ok(Vec::new())
        }
        Verb::DeleteTree => {
            draft.delete_tree(key);
            Ok(Vec::new())
        }
        Verb::DeleteCas if draft.delete_cas(key, op.index) => Ok(Vec::new()),
        Verb::DeleteCas => Err(unmet(&format!("delete key {key:?}, index is stale"))),
        _ => read(draft.kv(), op),
    }
}

/// Executes an operation that changes nothing.
fn read(kv: &Kv, op: &KvOp) -> Result<Vec<Entry>, OpFailure> {
    let key = op.key.as_str();
    let entry = kv.get(key);
    let unmet = |what: String| Err(OpFailure::Unmet(what));
    match (&op.verb, entry) {
        (Verb::Get, Some(entry)) => Ok(vec![Entry::clone(entry)]),
        (Verb::Get, None) => unmet(format!("key {key:?} doesn't exist")),
        (Verb::GetTree, _) => Ok(kv.list(key).map(|e| Entry::clone(e)).collect()),
        (Verb::CheckNotExists, None) => Ok(Vec::new()),
        (Verb::CheckNotExists, Some(_)) => unmet(format!("key {key:?} exists")),
        (Verb::CheckIndex, Some(entry)) if entry.modify_index == op.index => Ok(bare(entry)),
        (Verb::CheckIndex, Some(entry)) => unmet(format!(
            "failed index check for key {key:?}, current modify index {} != {}",
            entry.modify_index, op.index
        )),
        (Verb::CheckIndex, None) => {
            unmet(format!("failed to check index, key {key:?} doesn't exist"))
        }
        (Verb::CheckSession, Some(entry)) => {
            let holder = entry.session.as_ref().map_or("", |s| s.as_str());
            if holder == op.session {
                return Ok(bare(entry));
            }
            unmet(format!(
                "failed session check for key {key:?}, current session {holder:?} != {:?}",
                op.session
            ))
        }
        (Verb::CheckSession, None) => {
            unmet(format!("failed to check session, key {key:?} doesn't exist"))
        }
        (Verb::Unknown(word), _) => unmet(format!("unknown KV verb {word:?}")),
        (Verb::NotModelled(why), _) => unmet(why.clone()),
        (_, _) => unmet(format!("{:?} is not a read", op.verb)),
    }
}

/// The entry of a write or check in a transaction's answer: without the value.
fn bare(entry: &Arc<Entry>) -> Vec<Entry> {
    vec![Entry {
        key: entry.key.clone(),
        value: Bytes::new(),
        flags: entry.flags,
        session: entry.session.clone(),
        lock_index: entry.lock_index,
        create_index: entry.create_index,
        modify_index: entry.modify_index,
    }]
}
