//! Checks which prefixes this token may read and write, as declared by the kinds.

use super::{Check, POLICY, Verdict, failed};
use crate::cli::context::CommandContext;
use crate::daemon::kind_specs;
use crate::farm::rights::{WrittenBy, written_by};
use rcfarm_api::key;
use rcfarm_store::{Index, Op, Prefix, Query, StoreError, TxnOutcome};

/// Name of a key that does not exist.
const PROBE: &str = "rcfarm-probe";

pub(super) async fn check(context: &CommandContext, checks: &mut Vec<Check>) {
    for (prefix, writer) in written_by(&kind_specs()) {
        let name = prefix.to_string();
        let (may_read, may_write) =
            match (may_read(context, &prefix).await, may_write(context, &prefix).await) {
                (Ok(may_read), Ok(may_write)) => (may_read, may_write),
                (Err(error), _) | (_, Err(error)) => {
                    checks.push(failed(name, &error));
                    continue;
                }
            };
        checks.push(match (may_read, may_write, writer) {
            (true, true, _) => Check::ok(name, "read and write"),
            (true, false, WrittenBy::User) => Check::bad(
                Verdict::Warn,
                name,
                "read only: enough to look, not to change anything",
                format!("to change something, the token needs key_prefix write here; {POLICY}"),
            ),
            (true, false, WrittenBy::Farm) => {
                Check::ok(name, "read only: enough for users, not for a farm")
            }
            (true, false, WrittenBy::Agent) => {
                Check::ok(name, "read only: enough for users and farms, not for a node's agent")
            }
            (true, false, WrittenBy::Operator) => {
                Check::ok(name, "read only: enough for users and farms")
            }
            (false, ..) => Check::bad(
                Verdict::Fail,
                name,
                "may not be read, so it seems empty",
                format!("the token needs key_prefix read here; {POLICY}"),
            ),
        });
    }
}

/// Reads a single key, which Consul refuses without rights; a list would be empty instead.
async fn may_read(context: &CommandContext, prefix: &Prefix) -> Result<bool, StoreError> {
    let Some(probe) = prefix.key_of(PROBE) else { return Ok(true) };
    match context.store.get(&probe, Query::PLAIN).await {
        Ok(_) => Ok(true),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sends a transaction that writes but cannot be committed: its first operation checks an impossible index. If Consul
/// also refuses the second operation, the right to write is missing.
async fn may_write(context: &CommandContext, prefix: &Prefix) -> Result<bool, StoreError> {
    let Some(probe) = prefix.key_of(PROBE) else { return Ok(true) };
    let impossible = Op::CheckIndex { key: key::layout(), index: Index(u64::MAX >> 1) };
    let write = Op::Set { key: probe, value: PROBE.into(), flags: 0 };
    match context.store.txn(&[impossible, write]).await {
        Ok(TxnOutcome::Committed { .. }) => Ok(true),
        Ok(TxnOutcome::Refused(refusals)) => Ok(refusals.iter().all(|refusal| refusal.op != 1)),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
