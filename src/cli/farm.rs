//! `rcfarm farm list` and `confirm`.
//!
//! Keys read: the presence of farms. Key written, with an audit record: the doorbell that confirms a mass
//! deletion, which the farm deletes.

use serde::Serialize;

use super::context::CommandContext;
use super::failure::{CliExit, failure};
use super::output::{age, table};
use crate::farm::records::FarmPresence;
use rcfarm_api::audit::{DeletionConfirmed, Details};
use rcfarm_api::ids::FarmName;
use rcfarm_api::{Stored, key};
use rcfarm_store::{Op, StoreError};

/// Commands about running farms
#[derive(clap::Subcommand)]
pub enum FarmCommand {
    /// List the farms that are running
    #[command(visible_alias = "ls")]
    List,
    /// Confirm a mass deletion that a farm's guard holds back
    Confirm(ConfirmArgs),
}

#[derive(clap::Args)]
pub struct ConfirmArgs {
    /// The farm
    name: FarmName,
}

#[derive(Serialize)]
pub(super) struct LiveFarm {
    pub(super) name: FarmName,
    #[serde(flatten)]
    pub(super) presence: FarmPresence,
}

impl LiveFarm {
    fn state(&self) -> &'static str {
        match (self.presence.leaving, self.presence.suspicions.is_empty()) {
            (true, _) => "leaving",
            (false, true) => "ok",
            (false, false) => "paused",
        }
    }

    fn claims(&self) -> String {
        let claims = self.presence.claims.iter().map(|(kind, count)| format!("{count} {kind}"));
        claims.collect::<Vec<_>>().join(", ")
    }

    fn selector(&self) -> &str {
        if self.presence.selector.is_empty() { "(all)" } else { &self.presence.selector }
    }
}

pub(super) async fn run(context: &CommandContext, command: FarmCommand) -> anyhow::Result<CliExit> {
    match command {
        FarmCommand::List => list(context).await,
        FarmCommand::Confirm(args) => confirm(context, &args.name).await,
    }
}

/// The farms whose session holds their presence.
pub(super) async fn live(context: &CommandContext) -> Result<Vec<LiveFarm>, StoreError> {
    let entries = context.list(&key::farms()).await?;
    let row = |entry: &rcfarm_store::Entry| {
        entry.session.as_ref()?;
        let name = key::farms().tail(&entry.key)?.parse().ok()?;
        Some(LiveFarm { name, presence: FarmPresence::decode(&entry.value).ok()? })
    };
    Ok(entries.iter().filter_map(row).collect())
}

async fn list(context: &CommandContext) -> anyhow::Result<CliExit> {
    let farms = live(context).await?;
    context.show(&farms, || {
        if farms.is_empty() {
            return "no farm is running".to_owned();
        }
        let now = context.now();
        let mut text = table(
            &farms,
            &[
                ("FARM", &|farm| farm.name.to_string()),
                ("STATE", &|farm| farm.state().to_owned()),
                ("CLAIMS", &LiveFarm::claims),
                ("SELECTOR", &|farm| farm.selector().to_owned()),
                ("UP", &|farm| age(farm.presence.since, now)),
                ("VERSION", &|farm| farm.presence.version.clone()),
            ],
        );
        for LiveFarm { name, presence } in &farms {
            for why in &presence.suspicions {
                text.push_str(&format!("{name} is paused: {why}\n"));
            }
            if let Some(why) = &presence.check_problem {
                text.push_str(&format!("{name} has a session without a check: {why}\n"));
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
        context.note("if the trees are meant to be as small as they are: rcfarm farm confirm FARM");
    }
    Ok(CliExit::Ok)
}

async fn confirm(context: &CommandContext, name: &FarmName) -> anyhow::Result<CliExit> {
    let farms = live(context).await?;
    let Some(farm) = farms.into_iter().find(|farm| farm.name == *name) else {
        return Err(failure(
            format!("no farm {name} is running"),
            "see which are: rcfarm farm list",
        ));
    };
    // Always new: an unchanged value wakes no watch.
    let value = context.ids.ordered_uuid(context.now()).to_string().into();
    let bell = Op::Set { key: key::confirm_bell(name), value, flags: 0 };
    let details = Details::DeletionConfirmed(DeletionConfirmed {
        farm: name.clone(),
        actor: context.actor(),
        reason: "Requested".to_owned(),
        suspicions: farm.presence.suspicions,
    });
    context.commit([bell], &details, None).await?.map_err(|refusals| {
        failure(format!("the confirmation was refused: {refusals:?}"), "try again")
    })?;
    let shown = serde_json::json!({"name": name, "confirmed": true});
    context.show(&shown, || format!("{name}: confirmed"))
}
