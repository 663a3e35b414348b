//! The transaction of `rcfarm audit acknowledge`: a record of what is accepted, unless it has changed since it was read.

use rcfarm_api::audit::Details;
use rcfarm_store::{Entry, Key, Op};

use crate::cli::context::CommandContext;
use crate::cli::failure::failure;

/// Writes a record of what was accepted, unless it has changed since it was read.
pub(super) async fn accept(
    context: &CommandContext,
    what: String,
    guards: impl IntoIterator<Item = Op>,
    details: &Details,
) -> anyhow::Result<()> {
    let changed = |_| failure(format!("{what} changed meanwhile"), "run the command again");
    context.commit(guards, details, None).await?.map_err(changed)?;
    Ok(())
}

/// The operation that fails if a key has changed since these entries were read.
pub(super) fn unchanged(key: Key, entries: &[Entry]) -> Op {
    match entries.iter().find(|entry| entry.key == key.as_str()) {
        Some(entry) => Op::CheckIndex { key, index: entry.modify_index },
        None => Op::CheckNotExists { key },
    }
}
