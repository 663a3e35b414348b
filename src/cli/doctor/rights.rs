//! Which trees this token may read and write.

use super::{Check, POLICY, Verdict, failed};
use crate::cli::context::CommandContext;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::{Index, Op, Prefix, Query, StoreError, TxnOutcome};

/// A name that no key has.
const PROBE: &str = "rcfarm-probe";

/// Who needs the right to write a tree, of those with the fewest rights: users, then farms, then nodes' agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    User,
    Farm,
    Agent,
}

/// Every tree of the layout.
fn trees() -> [(Prefix, Writer); 28] {
    use Writer::{Agent, Farm, User};
    [
        (key::rcs(), User),
        (key::labels(LabelKind::ReplicationController), User),
        (key::labels(LabelKind::Node), User),
        (key::labels(LabelKind::Pod), Farm),
        (key::intents(), Farm),
        (key::realities(), Agent),
        (key::healths(), Agent),
        (key::pod_statuses(), Agent),
        (key::rc_statuses(), Farm),
        (key::rc_locks(), Farm),
        (key::audit_logs(), User),
        (key::bells(), User),
        (key::farms(), Farm),
        (key::nodes(), Agent),
        (key::allocations(), Farm),
        (key::jobs(), User),
        (key::job_labels(), User),
        (key::job_statuses(), Farm),
        (key::job_locks(), Farm),
        (key::commands(), User),
        (key::pod_groups(), Farm),
        (key::pod_group_statuses(), Farm),
        (key::queues(), Farm),
        (key::queue_statuses(), Farm),
        (key::schedulers(), Farm),
        (key::scheduler_labels(), Farm),
        (key::scheduler_statuses(), Farm),
        (key::scheduler_locks(), Farm),
    ]
}

pub(super) async fn check(context: &CommandContext, checks: &mut Vec<Check>) {
    for (tree, writer) in trees() {
        let name = tree.to_string();
        let (may_read, may_write) =
            match (may_read(context, &tree).await, may_write(context, &tree).await) {
                (Ok(may_read), Ok(may_write)) => (may_read, may_write),
                (Err(error), _) | (_, Err(error)) => {
                    checks.push(failed(name, &error));
                    continue;
                }
            };
        checks.push(match (may_read, may_write, writer) {
            (true, true, _) => Check::ok(name, "read and write"),
            (true, false, Writer::User) => Check::bad(
                Verdict::Warn,
                name,
                "read only: enough to look, not to change anything",
                format!("to change something, the token needs key_prefix write here; {POLICY}"),
            ),
            (true, false, Writer::Farm) => {
                Check::ok(name, "read only: enough for users, not for a farm")
            }
            (true, false, Writer::Agent) => {
                Check::ok(name, "read only: enough for users and farms, not for a node's agent")
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

/// A list of what may not be seen is empty; reading a single key is refused.
async fn may_read(context: &CommandContext, tree: &Prefix) -> Result<bool, StoreError> {
    let Some(probe) = tree.key_of(PROBE) else { return Ok(true) };
    match context.store.get(&probe, Query::PLAIN).await {
        Ok(_) => Ok(true),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Tries a transaction that writes, and that can never be committed: it begins with a check of a key that is not
/// there. What else is refused is refused for want of rights.
async fn may_write(context: &CommandContext, tree: &Prefix) -> Result<bool, StoreError> {
    let Some(probe) = tree.key_of(PROBE) else { return Ok(true) };
    let impossible = Op::CheckIndex { key: key::layout(), index: Index(u64::MAX >> 1) };
    let write = Op::Set { key: probe, value: PROBE.into(), flags: 0 };
    match context.store.txn(&[impossible, write]).await {
        Ok(TxnOutcome::Committed { .. }) => Ok(true),
        Ok(TxnOutcome::Refused(refusals)) => Ok(refusals.iter().all(|refusal| refusal.op != 1)),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
