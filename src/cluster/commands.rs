//! `rcfarm/commands/`, by target.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rcfarm_api::Index;
use rcfarm_api::Stored;
use rcfarm_api::command::{Command, Target};
use rcfarm_api::ids::{Namespaced, QueueName};
use rcfarm_api::key::Prefix;
use rcfarm_store::Entry;
use rcfarm_store::cache::CacheIndex;
use uuid::Uuid;

/// A command that was not executed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Last segment of its key, a UUID of version 7. Commands are executed in this order.
    pub id: Uuid,
    /// ModifyIndex of its key, which guards its deletion.
    pub index: Index,
    /// Its content.
    pub command: Arc<Command>,
}

/// `rcfarm/commands/`. No `VersionedIndex`: a target may have several commands. Commands that cannot be decoded are
/// ignored and not deleted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Commands {
    pub jobs: BTreeMap<Namespaced, Vec<Pending>>,
    pub queues: BTreeMap<QueueName, Vec<Pending>>,
    entries: usize,
}

impl Commands {
    /// Jobs whose commands differ between the two.
    #[must_use]
    pub fn jobs_touched(old: &Self, new: &Self) -> BTreeSet<Namespaced> {
        let jobs = old.jobs.keys().chain(new.jobs.keys());
        jobs.filter(|job| old.jobs.get(job) != new.jobs.get(job)).cloned().collect()
    }
}

impl CacheIndex for Commands {
    fn build(_: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let mut all = Commands { entries: entries.len(), ..Commands::default() };
        for entry in entries {
            let id = prefix.tail(&entry.key).and_then(|id| Uuid::parse_str(id).ok());
            let (Some(id), Ok(command)) = (id, Command::decode(&entry.value)) else { continue };
            let pending =
                Pending { id, index: entry.modify_index, command: Arc::new(command.clone()) };
            match command.target {
                Target::Job { job, .. } => all.jobs.entry(job).or_default().push(pending),
                Target::Queue { queue } => all.queues.entry(queue).or_default().push(pending),
            }
        }
        all
    }

    fn len(&self) -> usize {
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rcfarm_api::command::CommandAction;
    use rcfarm_api::key;

    use super::*;

    #[test]
    fn commands_are_indexed_by_target_in_order() {
        let entry = |key: &str, value: &str| Entry {
            key: format!("rcfarm/commands/{key}"),
            value: Bytes::copy_from_slice(value.as_bytes()),
            flags: 0,
            session: None,
            lock_index: 0,
            create_index: Index(1),
            modify_index: Index(1),
        };
        let abort = r#"{"action":"AbortJob","target":{"kind":"Job","job":"default/a"}}"#;
        let resume = r#"{"action":"ResumeJob","target":{"kind":"Job","job":"default/a"}}"#;
        let entries = vec![
            entry("01890000-0000-7000-8000-000000000001", abort),
            entry("01890000-0000-7000-8000-000000000002", resume),
            entry("01890000-0000-7000-8000-000000000003", "{"),
            entry("x", abort),
        ];
        let all = Commands::build(&Commands::default(), &key::commands(), entries);
        let of_a = &all.jobs[&"default/a".parse().unwrap()];
        let actions: Vec<CommandAction> =
            of_a.iter().map(|pending| pending.command.action).collect();
        assert_eq!(actions, [CommandAction::AbortJob, CommandAction::ResumeJob]);
        assert_eq!(all.len(), 4);
    }
}
