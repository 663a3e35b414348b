//! `rcfarm farm list` and `confirm`.
//!
//! Keys read: the presence of farms. Key written: the doorbell that confirms a mass deletion, which the farm deletes.

use serde::Serialize;

use super::context::CommandContext;
use super::failure::{CliExit, failure};
use super::output::{age, table};
use crate::farm::records::FarmPresence;
use rcfarm_api::Stored;
use rcfarm_api::ids::FarmName;
use rcfarm_api::key;
use rcfarm_store::{PutMode, Query};

/// Commands about running farms
#[derive(clap::Subcommand)]
pub enum FarmCommand {
    /// List the farms that are running
    #[command(visible_alias = "ls")]
    List,
    /// Confirm a mass deletion that a farm's guard holds back
    Confirm(ConfirmArgs),
}

/// Arguments of `farm confirm`.
#[derive(clap::Args)]
pub struct ConfirmArgs {
    /// The farm
    name: FarmName,
}

/// A row of `farm list`.
#[derive(Serialize)]
struct Row {
    name: FarmName,
    #[serde(flatten)]
    presence: FarmPresence,
}

pub(super) async fn run(context: &CommandContext, command: FarmCommand) -> anyhow::Result<CliExit> {
    match command {
        FarmCommand::List => list(context).await,
        FarmCommand::Confirm(args) => confirm(context, &args.name).await,
    }
}

async fn live(context: &CommandContext) -> anyhow::Result<Vec<Row>> {
    let entries = context.store.list(&key::farms(), Query::PLAIN).await?.value;
    let row = |entry: &rcfarm_store::Entry| {
        entry.session.as_ref()?;
        let name = key::farms().tail(&entry.key)?.parse().ok()?;
        Some(Row { name, presence: FarmPresence::decode(&entry.value).ok()? })
    };
    Ok(entries.iter().filter_map(row).collect())
}

async fn list(context: &CommandContext) -> anyhow::Result<CliExit> {
    let farms = live(context).await?;
    context.out.show(&farms, || {
        if farms.is_empty() {
            return "no farm is running".to_owned();
        }
        let now = context.now();
        let rows = farms.iter().map(|Row { name, presence }| {
            let claims: Vec<String> =
                presence.claims.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            let selector = match presence.selector.as_str() {
                "" => "(all)",
                selector => selector,
            };
            let state = match (presence.leaving, presence.suspicions.is_empty()) {
                (true, _) => "leaving",
                (false, true) => "ok",
                (false, false) => "paused",
            };
            vec![
                name.to_string(),
                state.to_owned(),
                claims.join(", "),
                selector.to_owned(),
                age(presence.since, now),
                presence.version.clone(),
            ]
        });
        let mut text = table(&["FARM", "STATE", "CLAIMS", "SELECTOR", "UP", "VERSION"], rows);
        for Row { name, presence } in &farms {
            for why in &presence.suspicions {
                text.push_str(&format!("{name} is paused: {why}\n"));
            }
            for node in &presence.suspect_nodes {
                text.push_str(&format!("{name} passes over {node}, which could not start pods\n"));
            }
            for key in &presence.unusable_keys {
                text.push_str(&format!("{name} cannot use key {key}\n"));
            }
        }
        text
    })?;
    if farms.iter().any(|farm| !farm.presence.suspicions.is_empty()) {
        context
            .out
            .note("if the trees are meant to be as small as they are: rcfarm farm confirm FARM");
    }
    Ok(CliExit::Ok)
}

async fn confirm(context: &CommandContext, name: &FarmName) -> anyhow::Result<CliExit> {
    let farms = live(context).await?;
    if !farms.iter().any(|farm| farm.name == *name) {
        return Err(failure(
            format!("no farm {name} is running"),
            "see which are: rcfarm farm list",
        ));
    }
    // Always new: an unchanged value wakes no watch.
    let value = context.ids.ordered_uuid(context.now()).to_string().into();
    context.store.put(&key::confirm_bell(name), value, 0, PutMode::Set).await?;
    let shown = serde_json::json!({"name": name, "confirmed": true});
    context.out.show(&shown, || format!("{name}: confirmed"))?;
    Ok(CliExit::Ok)
}
