//! The configuration of cells of `rcfarm cell config apply|plan`, `rcfarm apply -f` and `rcfarm plan -f`.
//!
//! Key written: `rcfarm/cells/config`, by CAS, in one transaction with its audit record.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::scheduler::with_model;
use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cli::files::contents;
use crate::cli::wanted::{
    AppliedObject, ApplyAction, FieldDifference, PlannedObject, WantedObject, differences, wrong,
};
use crate::job::document::all_from_yaml;
use crate::placement::cells;
use rcfarm_api::audit::{CellsChange, Details};
use rcfarm_api::{Index, Stored, key};
use rcfarm_cells::config::VirtualClusterSpec;
use rcfarm_cells::{CellConfig, CellModel};
use rcfarm_store::{Entry, Op};

/// Fields of which at least one makes a document HiveD's configuration.
const FIELDS: [&str; 2] = ["physicalCluster", "virtualClusters"];
/// Fields of HiveD's processes, and of every document.
const WITHOUT_EFFECT: [&str; 8] = [
    "apiVersion",
    "kind",
    "metadata",
    "kubeApiServerAddress",
    "kubeConfigFilePath",
    "webServerAddress",
    "forcePodBindThreshold",
    "waitingPodSchedulingBlockMilliSec",
];
const TITLE: &str = "cells";

/// Whether a document is HiveD's configuration.
pub(in crate::cli) fn is_described(document: &Value) -> bool {
    FIELDS.iter().any(|field| document.get(field).is_some())
}

/// A configuration of a file.
pub(in crate::cli) struct DescribedCells {
    at: String,
    config: CellConfig,
    unknown: Vec<String>,
}

impl DescribedCells {
    /// `at`: file and number of the document, for messages. `text`: the document in YAML, if the file has no other one:
    /// texts that look like numbers stay as they are written.
    pub(in crate::cli) fn new(
        at: &str,
        document: &Value,
        text: Option<&str>,
    ) -> anyhow::Result<DescribedCells> {
        let json = document.to_string();
        let config = CellConfig::parse(text.unwrap_or(&json))
            .map_err(|bad| failure(format!("{at}: {}: {}", bad.path, bad.problem), bad.fix))?;
        let known = |field: &str| FIELDS.contains(&field) || WITHOUT_EFFECT.contains(&field);
        let fields = document.as_object().into_iter().flat_map(|object| object.keys());
        let unknown = fields.filter(|field| !known(field)).cloned().collect();
        Ok(DescribedCells { at: at.to_owned(), config, unknown })
    }
}

/// The configuration in a file.
pub(super) fn described(file: &str) -> anyhow::Result<Vec<DescribedCells>> {
    let mut found = Vec::new();
    for (file, text) in contents(&[file.to_owned()])? {
        let documents = all_from_yaml(&text).map_err(|why| wrong(&file, why))?;
        let alone = (documents.len() == 1).then_some(text.as_str());
        for document in documents {
            if !is_described(&document) {
                let hint = "it has the fields physicalCluster and virtualClusters, as HiveD's";
                return Err(failure(format!("{file} is no configuration of cells"), hint));
            }
            found.push(DescribedCells::new(&file, &document, alone)?);
        }
    }
    if found.is_empty() {
        let hint = "it has the fields physicalCluster and virtualClusters, as HiveD's";
        return Err(failure(format!("{file} has no configuration of cells"), hint));
    }
    Ok(found)
}

/// The configuration of a file, and the stored one.
pub(in crate::cli) struct WantedCells {
    config: CellConfig,
    model: CellModel,
    warnings: Vec<String>,
    /// Groups that run on where they are, and are no longer as they were.
    left: Vec<String>,
    stored: Option<(Entry, Option<(CellConfig, CellModel)>)>,
}

impl WantedCells {
    /// Reads the stored configuration and checks the new one; adds to `problems` what is wrong with it.
    pub(in crate::cli) async fn read(
        context: &CommandContext,
        described: Vec<DescribedCells>,
        problems: &mut Vec<String>,
    ) -> anyhow::Result<Vec<WantedCells>> {
        let mut all = described.into_iter();
        let Some(DescribedCells { config, unknown, .. }) = all.next() else {
            return Ok(Vec::new());
        };
        if let Some(DescribedCells { at, .. }) = all.next() {
            return Err(wrong(&at, "it is the second configuration of cells".to_owned()));
        }
        let warning = |field: &String| format!("{TITLE}: field {field} has no effect");
        let warnings = unknown.iter().map(warning).collect();
        match config.validate() {
            Ok(model) => {
                let stored = context.get(&key::cell_config()).await?.map(|entry| {
                    let decoded = cells::decode(&entry.value).ok();
                    (entry, decoded)
                });
                let left = left_behind(context, &model).await?;
                Ok(vec![WantedCells { config, model, warnings, left, stored }])
            }
            Err(found) => {
                problems.extend(found.iter().map(|issue| format!("{TITLE}: {issue}")));
                Ok(Vec::new())
            }
        }
    }

    /// The cells once these are applied.
    pub(in crate::cli) fn model(&self) -> &CellModel {
        &self.model
    }

    fn before(&self) -> Option<&(CellConfig, CellModel)> {
        self.stored.as_ref()?.1.as_ref()
    }

    fn fields(&self) -> Vec<FieldDifference> {
        let Some((entry, _)) = &self.stored else { return Vec::new() };
        let before = serde_json::from_slice(&entry.value).unwrap_or_default();
        differences(&before, &serde_json::to_value(&self.config).unwrap_or_default())
    }

    /// What changes, in words: nodes and virtual clusters.
    fn lines(&self) -> Vec<String> {
        let (before, after) = (self.before(), &self.model);
        let none = CellConfig::default();
        let (old, old_nodes) = match before {
            Some((config, model)) => (config, devices(model)),
            None => (&none, BTreeMap::new()),
        };
        let mut lines = Vec::new();
        let new_nodes = devices(after);
        for (node, numbers) in &new_nodes {
            match old_nodes.get(node) {
                None => lines.push(format!("+ node {node}: {} devices", numbers.len())),
                Some(old) if old != numbers => {
                    lines.push(format!(
                        "~ node {node}: {} -> {} devices",
                        old.len(),
                        numbers.len()
                    ));
                }
                Some(_) => {}
            }
        }
        let gone = old_nodes.keys().filter(|node| !new_nodes.contains_key(*node));
        lines.extend(gone.map(|node| format!("- node {node}")));
        let (old, new) = (&old.virtual_clusters, &self.config.virtual_clusters);
        for (name, vc) in new {
            match old.get(name) {
                None => lines.push(format!("+ virtual cluster {name}: {}", promised(vc))),
                Some(was) if was != vc => lines.push(format!(
                    "~ virtual cluster {name}: {} -> {}",
                    promised(was),
                    promised(vc)
                )),
                Some(_) => {}
            }
        }
        let gone = old.keys().filter(|name| !new.contains_key(*name));
        lines.extend(gone.map(|name| format!("- virtual cluster {name}")));
        if lines.is_empty() && self.action() == ApplyAction::Changed {
            lines.push("~ cells above the nodes, or names of types".to_owned());
        }
        lines
    }

    fn shown(&self) -> Value {
        json!({"kind": "Cells", "change": self.action()})
    }
}

/// Running groups for which the cells will not be as they were.
async fn left_behind(context: &CommandContext, model: &CellModel) -> anyhow::Result<Vec<String>> {
    let now = with_model(context, model.clone()).await?;
    Ok(now.notes.into_iter().map(|note| format!("group {}: {}", note.group, note.note)).collect())
}

/// Device numbers of each node.
fn devices(model: &CellModel) -> BTreeMap<String, Vec<i32>> {
    model.nodes().map(|node| (node.to_owned(), model.devices(node))).collect()
}

/// What a virtual cluster has been promised, in words.
fn promised(vc: &VirtualClusterSpec) -> String {
    let cells = vc.virtual_cells.iter().map(|of| format!("{} {}", of.cell_number, of.cell_type));
    let pinned = vc.pinned_cells.iter().map(|of| format!("pinned {}", of.pinned_cell_id));
    let all: Vec<String> = cells.chain(pinned).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

impl WantedObject for WantedCells {
    fn action(&self) -> ApplyAction {
        match &self.stored {
            None => ApplyAction::Created,
            Some((_, Some((before, _)))) if *before == self.config => ApplyAction::Unchanged,
            Some(_) => ApplyAction::Changed,
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.iter().chain(&self.left).cloned().collect()
    }

    fn bytes(&self) -> usize {
        self.config.encode().len()
    }

    async fn write(&self, context: &CommandContext) -> anyhow::Result<()> {
        let entry = self.stored.as_ref().map(|(entry, _)| entry);
        let (index, flags) =
            entry.map_or((Index::ZERO, 0), |entry| (entry.modify_index, entry.flags));
        let op = Op::Cas { key: key::cell_config(), value: self.config.encode(), flags, index };
        let details = Details::CellsChanged(CellsChange {
            actor: context.actor(),
            reason: "Requested".to_owned(),
            before: entry.and_then(|entry| serde_json::from_slice(&entry.value).ok()),
            after: serde_json::to_value(&self.config).ok(),
        });
        context.commit([op], &details, None).await?.map_err(|_| {
            let why = "cells: somebody changed them meanwhile; they were left as they are";
            failure(why, "look at them: rcfarm cell config get; then try again")
        })?;
        Ok(())
    }

    fn applied(&self) -> AppliedObject {
        let mut shown = self.shown();
        shown["warnings"] = json!(self.warnings);
        AppliedObject::new(TITLE, self.action(), shown)
    }

    fn planned(&self) -> PlannedObject {
        let mut shown = self.shown();
        shown["fields"] = json!(self.fields());
        shown["groups"] = json!(self.left);
        let mut planned = PlannedObject::new(TITLE, self.action(), &[], shown);
        let left = self.left.iter().map(|group| format!("! {group}"));
        for line in self.lines().into_iter().chain(left) {
            planned.text.push_str(&format!("  {line}\n"));
        }
        planned
    }
}
