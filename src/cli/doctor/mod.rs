//! `rcfarm doctor`: checks what commands and farms need, with a remedy for each failure.
//!
//! Keys written: none. Rights to write are tested by transactions that cannot be committed. One session is created and
//! destroyed.

mod records;
mod rights;

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::context::CommandContext;
use super::failure::CliExit;
use super::output::table;
use super::rc::foreign::owned_elsewhere;
use crate::farm::LAYOUT;
use crate::farm::records::FarmPresence;
use rcfarm_api::ids::NodeName;
use rcfarm_api::{Stored, key};
use rcfarm_store::{NewSession, Op, Query, StoreError};

#[derive(clap::Args)]
pub struct DoctorArgs {
    /// Check only what this token is for: a farm, a node's agent, or a user of replication controllers
    #[arg(long = "for", value_name = "WHO")]
    role: Option<Role>,
    /// The node's name, of --for node
    #[arg(long, value_name = "NODE", requires = "role", required_if_eq("role", "node"))]
    node: Option<NodeName>,
    /// Services of the node's pods, of --for node: a name, or a prefix with * at its end; may be repeated
    #[arg(long, value_name = "NAME", requires = "node")]
    service: Vec<String>,
}

/// Whose rights are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    Farm,
    Node,
    User,
}

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
    /// Whether the token may not do something.
    fn lacks_a_right(&self) -> bool {
        self.remedy.as_ref().is_some_and(|remedy| remedy.contains(POLICY))
    }

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

/// What each lacks, one line for each remedy: the names of all checks that need it, then what to do.
fn remedies(checks: &[Check]) -> String {
    let mut lines: Vec<(Vec<&str>, &str)> = Vec::new();
    for (check, remedy) in checks.iter().filter_map(|one| Some((&one.check, one.remedy.as_ref()?)))
    {
        match lines.iter_mut().find(|(_, known)| *known == remedy) {
            Some((names, _)) => names.push(check),
            None => lines.push((vec![check], remedy)),
        }
    }
    lines.iter().map(|(names, remedy)| format!("{}: {remedy}\n", names.join(", "))).collect()
}

/// Few tokens need all rights, and this looks at all.
const ROLES: &str = "This looked at all rights. Whether the token is enough for what it is for: rcfarm doctor --for farm, \
    --for node --node NAME, or --for user\n";

const POLICY: &str = "docs/operate/acl/ has the ACL policies of farms, nodes, users and viewers";

pub(super) async fn run(
    context: &CommandContext,
    args: &DoctorArgs,
    address: &str,
) -> anyhow::Result<CliExit> {
    let mut checks = Vec::new();
    let is_reachable = leader(context, address, &mut checks).await;
    let role = args.role;
    if is_reachable {
        match role {
            None => rights::check(context, &mut checks).await,
            Some(role) => {
                rights::check_role(context, role, args.node.as_ref(), &mut checks).await;
                if role == Role::Node {
                    rights::check_services(context, &args.service, &mut checks).await;
                }
            }
        }
        if role != Some(Role::User) {
            checks.push(session(context).await);
        }
        checks.push(limits(context).await);
        // An agent may read neither, and needs neither.
        if role != Some(Role::Node) {
            checks.push(layout(context).await);
            checks.push(farms(context).await);
        }
        if matches!(role, None | Some(Role::Farm)) {
            records::check(context, &mut checks).await;
        }
    }
    context.show(&checks, || {
        let mut text = table(
            &checks,
            &[
                ("RESULT", &|check| format!("{:?}", check.result).to_lowercase()),
                ("CHECK", &|check| check.check.clone()),
                ("DETAIL", &|check| check.detail.clone()),
            ],
        );
        text.push_str(&remedies(&checks));
        if role.is_none() && checks.iter().any(Check::lacks_a_right) {
            text.push_str(ROLES);
        }
        text
    })?;
    let failed = checks.iter().any(|check| check.result == Verdict::Fail);
    Ok(if failed { CliExit::Error } else { CliExit::Ok })
}

async fn leader(context: &CommandContext, address: &str, checks: &mut Vec<Check>) -> bool {
    // Without a leader an agent answers with an empty string, or with an error after some seconds.
    let asked = match context.store.leader().await {
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
                error
                    .tls_remedy()
                    .unwrap_or("start the agent, or name another: CONSUL_HTTP_ADDR, --http-addr"),
            ));
            false
        }
    }
}

fn failed(check: impl Into<String>, error: &StoreError) -> Check {
    Check::bad(Verdict::Fail, check, error.to_string(), "try again; if it stays, ask Consul's log")
}

async fn session(context: &CommandContext) -> Check {
    let new = NewSession {
        name: "rcfarm doctor".to_owned(),
        ttl: Some(Duration::from_secs(10)),
        ..NewSession::default()
    };
    match context.store.create_session(&new).await {
        Ok(id) => match context.store.destroy_session(&id).await {
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

/// Consul allows 128 operations per transaction since 1.14, 64 before.
async fn limits(context: &CommandContext) -> Check {
    let many = vec![Op::GetTree { prefix: key::bells() }; 128];
    match context.store.txn(&many).await {
        Ok(_) => Check::ok("transactions", "128 operations"),
        Err(StoreError::TooLarge { .. }) => Check::ok("transactions", "64 operations"),
        Err(error) => failed("transactions", &error),
    }
}

async fn layout(context: &CommandContext) -> Check {
    let entry = match context.get(&key::layout()).await {
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

/// Farms of other programs, such as p2's, that own controllers.
async fn other_farms(context: &CommandContext) -> Check {
    match owned_elsewhere(context).await.map(|owned| owned.len()) {
        Ok(0) => Check::bad(
            Verdict::Warn,
            "farms",
            "none is running: nothing is scheduled",
            "start one: rcfarm farm run",
        ),
        Ok(count) => Check::bad(
            Verdict::Warn,
            "farms",
            format!(
                "none of rcfarm is running; farms of another program, such as p2, own {count} controllers"
            ),
            "jobs and queues need one: rcfarm farm run",
        ),
        Err(error) => Check::bad(Verdict::Fail, "farms", format!("{error:#}"), "try again"),
    }
}

async fn farms(context: &CommandContext) -> Check {
    match context.store.list(&key::farms(), Query::PLAIN).await {
        Ok(answer) => {
            let live = answer.value.iter().filter(|entry| entry.session.is_some());
            let presences = live.clone().filter_map(|e| FarmPresence::decode(&e.value).ok());
            let problem = presences.filter_map(|presence| presence.check_problem).next();
            match (live.count(), problem) {
                (0, _) => other_farms(context).await,
                (_, Some(why)) => Check::bad(
                    Verdict::Warn,
                    "farms",
                    format!("a farm's session has no check, so its crash is noticed late: {why}"),
                    format!(
                        "see which: rcfarm farm list; the farm's agent must be in sync; {POLICY}"
                    ),
                ),
                (count, None) => Check::ok("farms", format!("{count} running: rcfarm farm list")),
            }
        }
        Err(error) => failed("farms", &error),
    }
}
