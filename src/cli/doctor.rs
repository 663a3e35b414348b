//! `rcfarm doctor`: looks at everything that commands and farms need, and says what to do about what is missing.
//!
//! It writes nothing: rights to write are tried with transactions that cannot be committed. (One session is made
//! and ended.)

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::console::Console;
use super::failure::Exit;
use super::output::table;
use super::rc::{find, promises};
use crate::farm::LAYOUT;
use crate::store::key::{self, LabelKind};
use crate::store::{Index, NewSession, Op, Prefix, Query, StoreError, TxnOutcome};

/// One line of the answer.
#[derive(Serialize)]
struct Check {
    check: String,
    result: Verdict,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

impl Check {
    fn ok(check: impl Into<String>, detail: impl Into<String>) -> Check {
        Check { check: check.into(), result: Verdict::Ok, detail: detail.into(), remedy: None }
    }

    fn bad(
        result: Verdict,
        check: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        let remedy = Some(remedy.into());
        Check { check: check.into(), result, detail: detail.into(), remedy }
    }
}

/// A name that no key has.
const PROBE: &str = "rcfarm-probe";
const POLICY: &str = "docs/operating.md has the ACL policies for farms, users and viewers";

pub(super) async fn run(console: &Console, address: &str) -> anyhow::Result<Exit> {
    let mut checks = Vec::new();
    let is_reachable = leader(console, address, &mut checks).await;
    if is_reachable {
        rights(console, &mut checks).await;
        checks.push(session(console).await);
        checks.push(limits(console).await);
        checks.push(layout(console).await);
        checks.push(farms(console).await);
        checks.push(records(console).await);
        checks.push(promises(console).await);
    }
    console.out.show(&checks, || {
        let rows = checks.iter().map(|check| {
            let result = format!("{:?}", check.result).to_lowercase();
            vec![result, check.check.clone(), check.detail.clone()]
        });
        let mut text = table(&["RESULT", "CHECK", "DETAIL"], rows);
        for check in &checks {
            if let Some(remedy) = &check.remedy {
                text.push_str(&format!("{}: {remedy}\n", check.check));
            }
        }
        text
    })?;
    let failed = checks.iter().any(|check| check.result == Verdict::Fail);
    Ok(if failed { Exit::Error } else { Exit::Ok })
}

async fn leader(console: &Console, address: &str, checks: &mut Vec<Check>) -> bool {
    // An agent without a leader answers so, or with an error after some seconds.
    let asked = match console.store.leader().await {
        Err(StoreError::NoLeader) => Ok(String::new()),
        asked => asked,
    };
    match asked {
        Ok(leader) if leader.is_empty() => {
            checks.push(Check::ok("agent", format!("{address} answers")));
            checks.push(Check::bad(
                Verdict::Fail,
                "leader",
                "the cluster has none",
                "most servers must be up: consul operator raft list-peers, consul members",
            ));
            false
        }
        Ok(leader) => {
            checks.push(Check::ok("agent", format!("{address} answers")));
            checks.push(Check::ok("leader", leader));
            true
        }
        Err(error) => {
            checks.push(Check::bad(
                Verdict::Fail,
                "agent",
                format!("{address}: {error}"),
                "start the agent, or name another: CONSUL_HTTP_ADDR, --http-addr",
            ));
            false
        }
    }
}

/// Every tree of the layout, and whether a user of the command line writes it.
fn trees() -> Vec<(Prefix, bool)> {
    vec![
        (key::rcs(), true),
        (key::labels(LabelKind::ReplicationController), true),
        (key::labels(LabelKind::Node), true),
        (key::labels(LabelKind::Pod), false),
        (key::intents(), false),
        (key::healths(), false),
        (key::rc_statuses(), false),
        (key::rc_locks(), false),
        (key::audit_logs(), true),
        (key::bells(), true),
        (key::farms(), false),
        (key::allocations(), false),
    ]
}

async fn rights(console: &Console, checks: &mut Vec<Check>) {
    for (tree, is_users) in trees() {
        let name = tree.to_string();
        let may_read = match may_read(console, &tree).await {
            Ok(may) => may,
            Err(error) => {
                checks.push(failed(name, &error));
                continue;
            }
        };
        checks.push(match may_write(console, &tree).await {
            Err(error) => failed(name, &error),
            Ok(true) if may_read => Check::ok(name, "read and write"),
            Ok(false) if may_read && is_users => Check::bad(
                Verdict::Warn,
                name,
                "read only: enough to look, not to change anything",
                format!("to change something, the token needs key_prefix write here; {POLICY}"),
            ),
            Ok(false) if may_read => Check::ok(name, "read only: enough for users, not for a farm"),
            Ok(_) => Check::bad(
                Verdict::Fail,
                name,
                "may not be read, so it seems empty",
                format!("the token needs key_prefix read here; {POLICY}"),
            ),
        });
    }
}

fn failed(check: impl Into<String>, error: &StoreError) -> Check {
    Check::bad(Verdict::Fail, check, error.to_string(), "try again; if it stays, ask Consul's log")
}

/// A list of what may not be seen is empty; reading a single key is refused.
async fn may_read(console: &Console, tree: &Prefix) -> Result<bool, StoreError> {
    let Some(probe) = tree.key_of(PROBE) else { return Ok(true) };
    match console.store.get(&probe, Query::PLAIN).await {
        Ok(_) => Ok(true),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Tries a transaction that writes, and that can never be committed: it begins with a check of a key that is not
/// there. What else is refused is refused for want of rights.
async fn may_write(console: &Console, tree: &Prefix) -> Result<bool, StoreError> {
    let Some(probe) = tree.key_of(PROBE) else { return Ok(true) };
    let impossible = Op::CheckIndex { key: key::layout(), index: Index(u64::MAX >> 1) };
    let write = Op::Set { key: probe, value: PROBE.into(), flags: 0 };
    match console.store.txn(&[impossible, write]).await {
        Ok(TxnOutcome::Committed { .. }) => Ok(true),
        Ok(TxnOutcome::Refused(refusals)) => Ok(refusals.iter().all(|refusal| refusal.op != 1)),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn session(console: &Console) -> Check {
    let new = NewSession {
        name: "rcfarm doctor".to_owned(),
        ttl: Some(Duration::from_secs(10)),
        ..NewSession::default()
    };
    match console.store.create_session(&new).await {
        Ok(id) => match console.store.destroy_session(&id).await {
            Ok(()) => Check::ok("sessions", "can be made and ended"),
            Err(error) => failed("sessions", &error),
        },
        Err(StoreError::Forbidden { .. }) => Check::bad(
            Verdict::Warn,
            "sessions",
            "may not be made: enough for users, not for a farm",
            format!("a farm's token needs session_prefix write; {POLICY}"),
        ),
        Err(error) => failed("sessions", &error),
    }
}

/// Newer versions take 128 operations per transaction.
async fn limits(console: &Console) -> Check {
    let many = vec![Op::GetTree { prefix: key::bells() }; 128];
    match console.store.txn(&many).await {
        Ok(_) => Check::ok("transactions", "128 operations"),
        Err(StoreError::TooLarge { .. }) => Check::ok("transactions", "64 operations"),
        Err(error) => failed("transactions", &error),
    }
}

async fn layout(console: &Console) -> Check {
    let entry = match console.get(&key::layout()).await {
        Ok(Some(entry)) => entry,
        Ok(None) => return Check::ok("layout", "no farm has run here yet"),
        Err(error) => return failed("layout", &error),
    };
    let value: Option<Value> = serde_json::from_slice(&entry.value).ok();
    match value.and_then(|value| value["version"].as_u64()) {
        Some(version) if version <= u64::from(LAYOUT) => {
            Check::ok("layout", format!("version {version}"))
        }
        Some(version) => Check::bad(
            Verdict::Fail,
            "layout",
            format!("version {version}; this program knows {LAYOUT}"),
            "use a newer rcfarm here",
        ),
        None => Check::bad(
            Verdict::Fail,
            "layout",
            format!("{} cannot be read", key::layout()),
            format!(
                "restore it, or delete it while no farm is running: consul kv delete {}",
                entry.key
            ),
        ),
    }
}

async fn farms(console: &Console) -> Check {
    match console.store.list(&key::farms(), Query::PLAIN).await {
        Ok(answer) => match answer.value.iter().filter(|entry| entry.session.is_some()).count() {
            0 => Check::bad(
                Verdict::Warn,
                "farms",
                "none is running: nothing is scheduled",
                "start one: rcfarm farm run",
            ),
            count => Check::ok("farms", format!("{count} running: rcfarm farm list")),
        },
        Err(error) => failed("farms", &error),
    }
}

async fn records(console: &Console) -> Check {
    let (records, strange) = match find::all(console).await {
        Ok(all) => all,
        Err(error) => {
            let remedy = "try again; if it stays, ask Consul's log";
            return Check::bad(Verdict::Fail, "records", error.to_string(), remedy);
        }
    };
    let bad: Vec<String> = records
        .iter()
        .filter_map(|found| found.spec().err().map(|bad| format!("{}: {bad}", found.id)))
        .collect();
    if bad.is_empty() && strange.is_empty() {
        return Check::ok(
            "records",
            format!("replication controllers: {}, all readable", records.len()),
        );
    }
    let first = bad.iter().chain(&strange).next().cloned().unwrap_or_default();
    Check::bad(
        Verdict::Warn,
        "records",
        format!("{} cannot be worked on, such as {first}", bad.len() + strange.len()),
        "mend or delete them; a p2 farm on the same tree stops at them altogether",
    )
}

/// What nodes have promised: each to a pod that is there, and no more than they have.
async fn promises(console: &Console) -> Check {
    let promises = match promises::promises(console).await {
        Ok(promises) => promises,
        Err(error) => return failed("promises", &error),
    };
    let (pods, nodes) = promises.count();
    if let Some(fault) = promises.faults().first() {
        return Check::bad(
            Verdict::Warn,
            "promises",
            fault,
            "a capacity was lowered, or a record edited by hand: move pods away (rcfarm node drain), or mend it",
        );
    }
    match promises.leaks.first() {
        None => Check::ok("promises", format!("resources for {pods} pods on {nodes} nodes")),
        Some(leak) => Check::bad(
            Verdict::Warn,
            "promises",
            format!("{}, such as: {}", leaks_words(promises.leaks.len()), promises::words(leak)),
            "free them: rcfarm rc orphans --remove (a farm does so when it needs the room)",
        ),
    }
}

fn leaks_words(count: usize) -> String {
    if count == 1 { "1 has no pod".to_owned() } else { format!("{count} have no pods") }
}
