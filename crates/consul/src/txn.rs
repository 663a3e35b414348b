//! Bodies of transactions, and what their answers mean.

use std::collections::BTreeSet;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, RequestBuilder, Url};

use super::client::{Consul, Reply};
use super::error::{DENIED, RequestContext, forbidden, undecodable};
use super::wire::{TxnAnswer, txn_body, verb};
use rcfarm_store::{Entry, Index, Op, Refusal, StoreError, TxnOutcome};

impl Consul {
    pub(super) fn txn_request(
        &self,
        url: Url,
        ops: &[Op],
        asked: &RequestContext<'_>,
    ) -> Result<RequestBuilder, StoreError> {
        let body = txn_body(ops, &self.scope).map_err(|error| undecodable(asked, &error))?;
        let json = HeaderValue::from_static("application/json");
        Ok(self.request(Method::PUT, url).header(CONTENT_TYPE, json).body(body))
    }
}

/// What a transaction is about, for messages.
pub(super) fn subject(ops: &[Op]) -> &str {
    ops.first().map_or("nothing", Op::subject)
}

/// The outcome of the transaction of `ops` from Consul's answer.
pub(super) fn outcome(
    reply: &Reply,
    ops: &[Op],
    asked: &RequestContext<'_>,
) -> Result<TxnOutcome, StoreError> {
    match reply.status {
        200 => {
            let entries = reply.json::<TxnAnswer>(asked)?.entries();
            Ok(TxnOutcome::Committed { index: changed_at(ops, &entries), entries })
        }
        409 => {
            let refusals = reply.json::<TxnAnswer>(asked)?.refusals();
            match denied(ops, &refusals) {
                Some(error) => Err(error),
                None => Ok(TxnOutcome::Refused(refusals)),
            }
        }
        _ => Err(reply.error(asked)),
    }
}

/// The index of the changes: the greatest ModifyIndex of the written keys. A key that already had its value keeps an
/// older index. Entries that were only checked, such as a lock, may be newer and do not count.
fn changed_at(ops: &[Op], entries: &[Entry]) -> Index {
    let written: BTreeSet<&str> = ops
        .iter()
        .filter(|op| {
            matches!(op, Op::Set { .. } | Op::Cas { .. } | Op::Lock { .. } | Op::Unlock { .. })
        })
        .map(Op::subject)
        .collect();
    let indexes = entries.iter().filter(|e| written.contains(&*e.key)).map(|e| e.modify_index);
    indexes.max().unwrap_or(Index::ZERO)
}

/// The error of a transaction that was refused for missing rights. It is no [`TxnOutcome::Refused`]: reading again and
/// retrying would not help.
fn denied(ops: &[Op], refusals: &[Refusal]) -> Option<StoreError> {
    let refusal = refusals.iter().find(|r| DENIED.iter().any(|text| r.what.contains(text)))?;
    let op = ops.get(refusal.op)?;
    Some(forbidden(&RequestContext::new(verb(op), op.subject()), &refusal.what))
}
