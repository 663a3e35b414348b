//! `rcfarm/commands/`, by target.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rcfarm_api::Index;
use rcfarm_api::Stored;
use rcfarm_api::command::{Command, Target};
use rcfarm_api::ids::{Namespaced, QueueName};
use rcfarm_api::key::{self, Key, Prefix};
use rcfarm_store::Entry;
use rcfarm_store::cache::CacheIndex;
use uuid::Uuid;

/// A command that was not executed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Last segment of its key, a UUID of version 7. Commands are executed in this order.
    pub id: Uuid,
    pub key: Key,
    /// ModifyIndex of its key, which guards its deletion.
    pub index: Index,
    /// Its content.
    pub command: Arc<Command>,
}

/// `rcfarm/commands/`. No `VersionedIndex`: a target may have several commands. Commands that cannot be decoded are
/// ignored and not deleted, and so are those of a namespace to targets outside it.
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
    fn build(_: &Self, _: &Prefix, entries: Vec<Entry>) -> Self {
        let mut all = Commands { entries: entries.len(), ..Commands::default() };
        for entry in entries {
            let named = key::namespace_and_command(&entry.key);
            let (Some((namespace, id)), Ok(key), Ok(command)) =
                (named, Key::parse(&entry.key), Command::decode(&entry.value))
            else {
                continue;
            };
            if !command.is_allowed_in(namespace.as_ref()) {
                continue;
            }
            let index = entry.modify_index;
            let pending = Pending { id, key, index, command: Arc::new(command.clone()) };
            match command.target {
                Target::Job { job, .. } => all.jobs.entry(job).or_default().push(pending),
                Target::Queue { queue } => all.queues.entry(queue).or_default().push(pending),
            }
        }
        let lists = all.jobs.values_mut().chain(all.queues.values_mut());
        lists.for_each(|pending| pending.sort_by_key(|one| one.id));
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
        let close = r#"{"action":"CloseQueue","target":{"kind":"Queue","queue":"q"}}"#;
        let entries = vec![
            entry("01890000-0000-7000-8000-000000000001", abort),
            entry("01890000-0000-7000-8000-000000000002", resume),
            entry("01890000-0000-7000-8000-000000000003", "{"),
            entry("x", abort),
            entry("default/01890000-0000-7000-8000-000000000000", resume),
            entry("team-a/01890000-0000-7000-8000-000000000004", abort),
            entry("default/01890000-0000-7000-8000-000000000005", close),
        ];
        let all = Commands::build(&Commands::default(), &key::commands(), entries);
        let of_a = &all.jobs[&"default/a".parse().unwrap()];
        let actions: Vec<CommandAction> =
            of_a.iter().map(|pending| pending.command.action).collect();
        let [abort, resume] = [CommandAction::AbortJob, CommandAction::ResumeJob];
        assert_eq!(actions, [resume, abort, resume], "by time, not by key");
        assert!(all.queues.is_empty(), "queues have no namespace");
        assert_eq!((all.jobs.len(), all.len()), (1, 7));
    }
}
