//! Priority classes of `rcfarm apply -f` and `rcfarm plan -f`, in Kubernetes' format.
//!
//! Key written: the class's record, by CAS, in one transaction with its audit record.

use serde_json::{Value, json};

use super::change::write;
use super::{StoredClasses, problems};
use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cli::wanted::{
    AppliedObject, ApplyAction, FieldDifference, PlannedObject, WantedObject, differences, wrong,
};
use rcfarm_api::Stored;
use rcfarm_api::ids::ObjectName;
use rcfarm_api::priority_class::{PreemptionPolicy, PriorityClassRecord, PriorityClasses};
use rcfarm_store::Entry;

const GROUP: &str = "scheduling.k8s.io/";

/// A priority class of a file.
pub(in crate::cli) struct DescribedClass {
    at: String,
    name: ObjectName,
    record: PriorityClassRecord,
}

impl DescribedClass {
    /// `at`: file and number of the document, for messages.
    pub(in crate::cli) fn new(at: &str, document: &Value) -> anyhow::Result<DescribedClass> {
        if let Some(version) = document.get("apiVersion").and_then(Value::as_str)
            && !version.starts_with(GROUP)
        {
            return Err(wrong(
                at,
                format!("apiVersion: {version} has no PriorityClass; write {GROUP}v1"),
            ));
        }
        let name = document.pointer("/metadata/name").and_then(Value::as_str);
        let name = name
            .ok_or_else(|| wrong(at, "metadata.name: the priority class has no name".to_owned()))?;
        let name = name.parse().map_err(|why| wrong(at, format!("metadata.name: {why}")))?;
        let record =
            PriorityClassRecord::decode(document.to_string().as_bytes()).map_err(|bad| {
                failure(format!("{at}: field {}: {}", bad.path, bad.problem), bad.fix)
            })?;
        Ok(DescribedClass { at: at.to_owned(), name, record })
    }
}

/// Priority classes of files, checked.
pub(in crate::cli) struct WantedClasses {
    stored: StoredClasses,
    pub(in crate::cli) all: Vec<WantedClass>,
}

/// A class of a file, and the stored one of its name.
pub(in crate::cli) struct WantedClass {
    name: ObjectName,
    record: PriorityClassRecord,
    stored: Option<(Entry, Option<PriorityClassRecord>)>,
}

impl WantedClasses {
    /// Reads and checks classes; adds to `found` what is wrong with them.
    pub(in crate::cli) async fn read(
        context: &CommandContext,
        described: Vec<DescribedClass>,
        found: &mut Vec<String>,
    ) -> anyhow::Result<WantedClasses> {
        let stored = StoredClasses::read(context).await?;
        let mut records = stored.records();
        let mut all: Vec<WantedClass> = Vec::new();
        for DescribedClass { at, name, record } in described {
            if all.iter().any(|other| other.name == name) {
                return Err(wrong(&at, format!("priority class {name} is there twice")));
            }
            let before = stored
                .entries
                .get(&name)
                .map(|entry| (entry.clone(), PriorityClassRecord::decode(&entry.value).ok()));
            records.insert(name.clone(), record.clone());
            all.push(WantedClass { name, record, stored: before });
        }
        for one in &all {
            let before = one.stored.as_ref().and_then(|(_, record)| record.as_ref());
            let bad = problems(&one.name, &one.record, before, &records);
            found.extend(bad.iter().map(|issue| format!("priority class {}: {issue}", one.name)));
        }
        Ok(WantedClasses { stored, all })
    }

    /// The classes once these are applied.
    pub(in crate::cli) fn after(&self) -> PriorityClasses {
        let mut records = self.stored.records();
        records.extend(self.all.iter().map(|one| (one.name.clone(), one.record.clone())));
        PriorityClasses::of(&records)
    }
}

impl WantedClass {
    fn differences(&self) -> Vec<FieldDifference> {
        let Some((entry, _)) = &self.stored else { return Vec::new() };
        let before = serde_json::from_slice(&entry.value).unwrap_or_default();
        differences(&before, &serde_json::to_value(&self.record).unwrap_or_default())
    }
}

impl WantedObject for WantedClass {
    fn action(&self) -> ApplyAction {
        match &self.stored {
            None => ApplyAction::Created,
            Some((_, Some(before))) if *before == self.record => ApplyAction::Unchanged,
            Some(_) => ApplyAction::Changed,
        }
    }

    fn warnings(&self) -> Vec<String> {
        let preempts =
            self.record.preemption_policy == Some(PreemptionPolicy::PreemptLowerPriority);
        let why = "preemptionPolicy: nothing is preempted: its jobs wait until there is room";
        preempts.then(|| format!("priority class {}: {why}", self.name)).into_iter().collect()
    }

    fn bytes(&self) -> usize {
        self.record.encode().len()
    }

    async fn write(&self, context: &CommandContext) -> anyhow::Result<()> {
        let stored = self.stored.as_ref().map(|(entry, _)| entry);
        write(context, &self.name, &self.record, stored).await
    }

    fn applied(&self) -> AppliedObject {
        let action = self.action();
        let shown = json!({"priority_class": self.name, "kind": "PriorityClass", "change": action,
            "warnings": self.warnings()});
        AppliedObject::new(format!("priority class {}", self.name), action, shown)
    }

    fn planned(&self) -> PlannedObject {
        let (action, fields) = (self.action(), self.differences());
        let shown = json!({"priority_class": self.name, "kind": "PriorityClass", "change": action,
            "fields": fields});
        PlannedObject::new(&format!("priority class {}", self.name), action, &fields, shown)
    }
}
