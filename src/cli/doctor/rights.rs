//! Checks which keys this token may read and write: of the whole layout, as declared by the kinds, or those that one
//! role needs.

use std::collections::BTreeSet;

use super::{Check, POLICY, Role, Verdict, failed};
use crate::cli::context::CommandContext;
use crate::daemon::kind_specs;
use crate::farm::rights::{WrittenBy, readable_by_farms, written_by};
use rcfarm_api::ids::{FarmName, NodeName, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_node::agent::SERVICE;
use rcfarm_store::{Index, Key, Op, Prefix, Query, StoreError, TxnOutcome};

/// Name of a key that does not exist.
const PROBE: &str = "rcfarm-probe";

pub(super) async fn check(context: &CommandContext, checks: &mut Vec<Check>) {
    for (prefix, writer) in written_by(&kind_specs()) {
        let name = prefix.to_string();
        let Some(probe) = prefix.key_of(PROBE) else { continue };
        let (may_read, may_write) =
            match (may_read(context, &probe).await, may_write(context, &probe).await) {
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
            (false, false, WrittenBy::Farm) if holds_keys(&prefix) => {
                Check::ok(name, "may not be read: it may hold private keys, enough for users")
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

/// Whether private keys of jobs may stand there, which no user needs.
fn holds_keys(prefix: &Prefix) -> bool {
    [key::job_keys_records(), key::peers_records()].contains(prefix)
}

/// A right that a role needs.
struct Right {
    /// The key or prefix, as `docs/operate/acl/` names it.
    name: String,
    /// A key that the right covers.
    probe: Key,
    writes: bool,
}

impl Right {
    fn key(probe: Key, writes: bool) -> Right {
        Right { name: probe.to_string(), probe, writes }
    }
}

fn below<'p>(
    prefixes: impl IntoIterator<Item = &'p Prefix>,
    writes: bool,
) -> impl Iterator<Item = Right> {
    prefixes.into_iter().filter_map(move |prefix| {
        Some(Right { name: prefix.to_string(), probe: prefix.key_of(PROBE)?, writes })
    })
}

/// What `farm.hcl` grants.
fn of_farm() -> Vec<Right> {
    let specs = kind_specs();
    let of_kinds = specs.iter().flat_map(|spec| spec.writable()).cloned();
    let own = [key::farms(), key::bells(), key::audit_logs()];
    let writes: BTreeSet<Prefix> = of_kinds.chain(own).collect();
    // The right to write includes the one to read.
    let reads = &readable_by_farms(&specs) - &writes;
    below(&reads, false)
        .chain(below(&writes, true))
        .chain([Right::key(key::layout(), true)])
        .collect()
}

/// What `node.hcl` grants to the agent of this node.
fn of_node(node: &NodeName) -> Vec<Right> {
    let writes = [key::node_realities(node), key::pod_statuses(), key::healths(), key::bells()];
    let reads = [key::intents(), key::node_pod_labels(node), key::nodes(), key::node_peers(node)];
    let own = [key::node(node), key::node_labels(node)].map(|key| Right::key(key, true));
    below(&writes, true)
        .chain(below(&reads, false))
        .chain(own)
        .chain([Right::key(key::allocation(node), false)])
        .collect()
}

/// What `user.hcl` grants.
fn of_user() -> Vec<Right> {
    let labels = [LabelKind::ReplicationController, LabelKind::Node].map(key::labels);
    let writes = [key::rcs(), key::audit_logs(), key::rc_statuses()];
    let reads = [
        key::labels(LabelKind::Pod),
        key::healths(),
        key::pod_statuses(),
        key::rc_locks(),
        key::farms(),
        key::nodes(),
        key::allocations(),
    ];
    let no_rc = RcId(uuid::Uuid::nil());
    let no_farm: Option<FarmName> = PROBE.parse().ok();
    let bells = [Some(key::rc_bell(no_rc)), no_farm.map(|farm| key::confirm_bell(&farm))];
    below(writes.iter().chain(&labels), true)
        .chain(below(&reads, false))
        .chain(bells.into_iter().flatten().map(|bell| Right::key(bell, true)))
        .chain([Right::key(key::layout(), false)])
        .collect()
}

/// Checks the rights that a role needs, and no others.
pub(super) async fn check_role(
    context: &CommandContext,
    role: Role,
    node: Option<&NodeName>,
    checks: &mut Vec<Check>,
) {
    let rights = match role {
        Role::Farm => of_farm(),
        // The command line requires its name.
        Role::Node => node.map(of_node).unwrap_or_default(),
        Role::User => of_user(),
    };
    for Right { name, probe, writes } in rights {
        let has = match writes {
            true => may_write(context, &probe).await,
            false => may_read(context, &probe).await,
        };
        let word = if writes { "write" } else { "read" };
        checks.push(match has {
            Ok(true) => Check::ok(name, word),
            Ok(false) => Check::bad(
                Verdict::Fail,
                name,
                format!("no right to {word}"),
                format!("the token needs {word} here; {POLICY}"),
            ),
            Err(error) => failed(name, &error),
        });
    }
}

/// Checks the right to register services: the agent's own, and those of pods.
pub(super) async fn check_services(
    context: &CommandContext,
    of_pods: &[String],
    checks: &mut Vec<Check>,
) {
    let of_pods = of_pods.iter().map(|name| (name.clone(), "no service of pods is registered"));
    let own = (SERVICE.to_owned(), "its crash is noticed late, and no service is registered");
    for (name, then) in [own].into_iter().chain(of_pods) {
        // Any name that begins so: the policy has a rule for the prefix.
        let (rule, probe) = match name.strip_suffix('*') {
            Some(prefix) => (format!("service_prefix {prefix:?}"), format!("{prefix}{PROBE}")),
            None => (format!("service {name:?}"), name),
        };
        checks.push(match context.store.may_register(&probe).await {
            Ok(true) => Check::ok(rule, "write"),
            Ok(false) => Check::bad(
                Verdict::Fail,
                rule.clone(),
                format!("no right to write: {then}"),
                format!("the token needs {rule} write; {POLICY}"),
            ),
            Err(error) => failed(rule, &error),
        });
    }
}

/// Reads a single key, which Consul refuses without rights; a list would be empty instead.
async fn may_read(context: &CommandContext, probe: &Key) -> Result<bool, StoreError> {
    match context.store.get(probe, Query::PLAIN).await {
        Ok(_) => Ok(true),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sends a transaction that writes but cannot be committed: its first operation checks an impossible index. If Consul
/// also refuses the second operation, the right to write is missing. Both are on one key, so that no other right
/// matters.
async fn may_write(context: &CommandContext, probe: &Key) -> Result<bool, StoreError> {
    let impossible = Op::CheckIndex { key: probe.clone(), index: Index(u64::MAX >> 1) };
    let write = Op::Set { key: probe.clone(), value: PROBE.into(), flags: 0 };
    match context.store.txn(&[impossible, write]).await {
        Ok(TxnOutcome::Committed { .. }) => Ok(true),
        Ok(TxnOutcome::Refused(refusals)) => Ok(refusals.iter().all(|refusal| refusal.op != 1)),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
