//! Queues of `rcfarm apply -f` and `rcfarm plan -f`, in Volcano's format.
//!
//! Key written: the queue's record, by CAS, in one transaction with its audit record.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::change::{problems, read_document, write};
use super::snapshot::{QueueSnapshot, snapshot};
use crate::batch::queues::Queues;
use crate::cli::context::CommandContext;
use crate::cli::wanted::{
    AppliedObject, ApplyAction, FieldDifference, PlannedObject, WantedObject, differences, wrong,
};
use crate::cluster::queues::QueueIndex;
use rcfarm_api::ids::QueueName;
use rcfarm_api::priority_class::PriorityClasses;
use rcfarm_api::queue::spec::{QueueRecord, QueueSpec};
use rcfarm_api::{Index, Stored, key};
use rcfarm_store::Entry;
use rcfarm_store::cache::CacheIndex;

pub(in crate::cli) struct DescribedQueue {
    at: String,
    name: QueueName,
    record: QueueRecord,
    names_state: bool,
}

impl DescribedQueue {
    /// `at`: file and number of the document, for messages.
    pub(in crate::cli) fn new(at: &str, mut document: Value) -> anyhow::Result<DescribedQueue> {
        if let Some(fields) = document.as_object_mut() {
            fields.remove("status");
        }
        let (name, record) = read_document(at, &document)?;
        let name =
            name.ok_or_else(|| wrong(at, "metadata.name: the queue has no name".to_owned()))?;
        let names_state = document.pointer("/spec/state").is_some();
        Ok(DescribedQueue { at: at.to_owned(), name, record, names_state })
    }
}

/// Queues of files, checked, parents before the queues below them.
pub(in crate::cli) struct WantedQueues {
    snapshot: QueueSnapshot,
    pub(in crate::cli) all: Vec<WantedQueue>,
}

/// A queue of a file, and the stored one of its name.
pub(in crate::cli) struct WantedQueue {
    name: QueueName,
    record: QueueRecord,
    /// The stored record and its specification.
    stored: Option<(Entry, QueueSpec)>,
}

impl WantedObject for WantedQueue {
    fn action(&self) -> ApplyAction {
        match &self.stored {
            None => ApplyAction::Created,
            Some((_, spec)) if *spec == self.record.spec => ApplyAction::Unchanged,
            Some(_) => ApplyAction::Changed,
        }
    }

    fn bytes(&self) -> usize {
        self.record.encode().len()
    }

    async fn write(&self, context: &CommandContext) -> anyhow::Result<()> {
        let stored = self.stored.as_ref().map(|(entry, spec)| (entry, spec));
        write(context, &self.name, &self.record, stored).await
    }

    fn applied(&self) -> AppliedObject {
        let action = self.action();
        let shown = json!({"queue": self.name, "kind": "Queue", "change": action});
        AppliedObject::new(format!("queue {}", self.name), action, shown)
    }

    fn planned(&self) -> PlannedObject {
        let (action, fields) = (self.action(), self.differences());
        let shown =
            json!({"queue": self.name, "kind": "Queue", "change": action, "fields": fields});
        PlannedObject::new(&format!("queue {}", self.name), action, &fields, shown)
    }
}

impl WantedQueue {
    fn differences(&self) -> Vec<FieldDifference> {
        let Some((_, before)) = &self.stored else { return Vec::new() };
        let spec = |spec: &QueueSpec| json!({"spec": spec});
        differences(&spec(before), &spec(&self.record.spec))
    }
}

impl WantedQueues {
    /// Reads and checks queues; adds to `problems` what is wrong with them.
    pub(in crate::cli) async fn read(
        context: &CommandContext,
        described: Vec<DescribedQueue>,
        found: &mut Vec<String>,
    ) -> anyhow::Result<WantedQueues> {
        let snapshot = snapshot(context).await?;
        let mut specs = snapshot.specs();
        let mut all: Vec<WantedQueue> = Vec::new();
        for DescribedQueue { at, name, mut record, names_state } in described {
            if all.iter().any(|other| other.name == name) {
                return Err(wrong(&at, format!("queue {name} is there twice")));
            }
            let entry = snapshot.entries.get(&name);
            let stored = entry.map(|entry| {
                let before = QueueRecord::decode(&entry.value).unwrap_or_default();
                let mut other = before.other;
                other.extend(std::mem::take(&mut record.other));
                record.other = other;
                // `queue close` is not undone by a file that does not say so.
                if !names_state {
                    record.spec.state = before.spec.state;
                }
                (entry.clone(), before.spec)
            });
            specs.insert(name.clone(), record.spec.clone());
            all.push(WantedQueue { name, record, stored });
        }
        for one in &all {
            let bad = problems(&one.name, &specs, &snapshot);
            found.extend(bad.iter().map(|issue| format!("queue {}: {issue}", one.name)));
        }
        all.sort_by_key(|one| (depth(&one.name, &specs), one.name.clone()));
        Ok(WantedQueues { snapshot, all })
    }

    /// The queues once these are applied, and the priority classes.
    pub(in crate::cli) fn after(&self, classes: PriorityClasses) -> Queues {
        let mut entries: BTreeMap<String, Entry> =
            self.snapshot.entries.values().map(|e| (e.key.clone(), e.clone())).collect();
        for one in &self.all {
            let key = key::queue(&one.name).to_string();
            let made = entries.entry(key.clone()).or_insert_with(|| Entry {
                key,
                value: Default::default(),
                flags: 0,
                session: None,
                lock_index: 0,
                create_index: Index::ZERO,
                modify_index: Index::ZERO,
            });
            made.value = one.record.encode();
        }
        let entries = entries.into_values().collect();
        Queues::of(&QueueIndex::build(&QueueIndex::default(), &key::queues(), entries).0, classes)
    }
}

/// How many queues are above one, as far as they are known. Rings end, too.
fn depth(name: &QueueName, specs: &BTreeMap<QueueName, QueueSpec>) -> usize {
    let above = |name: &QueueName| specs.get(name)?.parent().cloned();
    std::iter::successors(above(name), above).take(specs.len()).count()
}
