//! Replication controllers of `rcfarm apply -f`, `rcfarm plan -f` and `rcfarm dev --apply`.
//!
//! Keys written: those of `rc create` and `rc update`. An entry of a file is about the controller with its `id`, or else
//! about the one whose pod has the id of its manifest.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::{self, same_pod_notes};
use super::find::{FoundRc, all, title};
use super::update::{RcEdit, apply as update};
use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cli::wanted::{
    AppliedObject, ApplyAction, FieldDifference, PlannedObject, WantedObject, differences, wrong,
};
use rcfarm_api::ids::{PodId, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{Labels, Selector, decode_labels};
use rcfarm_api::manifest::Manifest;
use rcfarm_api::rc::spec::{POD_ID, RC_ID, RcRecord, RcSpec, RcStrategy, check_count};
use rcfarm_api::rc::update::UpdateOrder;
use rcfarm_api::{Stored, from_object};
use rcfarm_node::spec::check_new;

/// An entry of `replication_controllers`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RcFields {
    id: Option<RcId>,
    manifest: String,
    node_selector: String,
    replicas: i64,
    pod_labels: Option<BTreeMap<String, String>>,
    /// Its own labels, such as `rcfarm/min_health`. Other labels stay.
    #[serde(default)]
    labels: Labels,
    strategy: Option<String>,
    disabled: Option<bool>,
}

/// A document with controllers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    replication_controllers: Vec<RcFields>,
}

pub(in crate::cli) struct DescribedRc {
    at: String,
    fields: RcFields,
    manifest: Manifest,
    strategy: Option<RcStrategy>,
}

impl DescribedRc {
    /// The controllers of a document.
    pub(in crate::cli) fn list(at: &str, document: Value) -> anyhow::Result<Vec<DescribedRc>> {
        let document: Document =
            from_object(document, "").map_err(|error| wrong(at, error.to_string()))?;
        let all = document.replication_controllers.into_iter().enumerate();
        all.map(|(n, fields)| Self::new(format!("{at}: replication_controllers[{n}]"), fields))
            .collect()
    }

    fn new(at: String, fields: RcFields) -> anyhow::Result<DescribedRc> {
        let manifest =
            Manifest::parse(&fields.manifest).with_context(|| format!("{at}.manifest"))?;
        check_new(&manifest).with_context(|| format!("{at}.manifest"))?;
        fields.node_selector.parse::<Selector>().with_context(|| format!("{at}.node_selector"))?;
        check_count(fields.replicas).with_context(|| format!("{at}.replicas"))?;
        let strategy = match fields.strategy.as_deref() {
            None => None,
            Some("static") => Some(RcStrategy::Static),
            Some("dynamic") => Some(RcStrategy::Dynamic),
            Some(other) => {
                return Err(wrong(
                    &at,
                    format!("strategy: {other:?} is neither static nor dynamic"),
                ));
            }
        };
        for reserved in [POD_ID, RC_ID] {
            let is_of_pods = fields.pod_labels.iter().any(|all| all.contains_key(reserved));
            if is_of_pods || fields.labels.contains_key(reserved) {
                return Err(wrong(
                    &at,
                    format!("label {reserved} is set from the manifest; leave it out"),
                ));
            }
        }
        Ok(DescribedRc { at, fields, manifest, strategy })
    }

    /// Values of the record's fields besides the manifest. Fields that the entry does not name stay as commands have
    /// made them.
    fn record_fields(&self) -> Vec<(&'static str, Value)> {
        let RcFields { node_selector, replicas, pod_labels, disabled, .. } = &self.fields;
        let mut fields =
            vec![("node_selector", json!(node_selector)), ("replicas_desired", json!(replicas))];
        fields.extend(pod_labels.as_ref().map(|labels| ("pod_labels", json!(labels))));
        let strategy = self.strategy.as_ref();
        fields.extend(strategy.map(|one| ("allocation_strategy", json!(one.as_str()))));
        fields.extend(disabled.map(|disabled| ("disabled", json!(disabled))));
        fields
    }

    fn record(&self, id: RcId) -> RcRecord {
        RcRecord {
            id,
            manifest: self.fields.manifest.clone(),
            node_selector: self.fields.node_selector.clone(),
            pod_labels: Some(self.fields.pod_labels.clone().unwrap_or_default()),
            replicas_desired: self.fields.replicas,
            disabled: self.fields.disabled.unwrap_or(false),
            allocation_strategy: self.strategy.unwrap_or(RcStrategy::Static).as_str().to_owned(),
            other: serde_json::Map::new(),
        }
    }
}

/// A controller of a file, and how it differs from the stored one.
pub(in crate::cli) struct WantedRc {
    described: DescribedRc,
    id: RcId,
    fields: Vec<FieldDifference>,
    /// Whether there is a record already.
    exists: bool,
}

impl WantedRc {
    fn title(&self) -> String {
        title(Some(self.described.manifest.id()), self.id)
    }

    fn pod_id(&self) -> &PodId {
        self.described.manifest.id()
    }

    /// Reads and checks controllers.
    pub(in crate::cli) async fn read_all(
        context: &CommandContext,
        described: Vec<DescribedRc>,
    ) -> anyhow::Result<Vec<WantedRc>> {
        if described.is_empty() {
            return Ok(Vec::new());
        }
        let (stored, _) = all(context).await?;
        let prefix = key::labels(LabelKind::ReplicationController);
        let labels = context.list(&prefix).await?;
        let labels_of = |id: RcId| {
            let key = key::rc_labels(id).to_string();
            let entry = labels.iter().find(|entry| entry.key == key);
            entry.and_then(|entry| decode_labels(&entry.value).ok()).unwrap_or_default()
        };
        let mut wanted: Vec<WantedRc> = Vec::new();
        for described in described {
            let found = named(&stored, &described)?;
            let id = found.map(|found| found.id).or(described.fields.id);
            let id = id.unwrap_or_else(|| RcId(context.ids.uuid()));
            let record = described.record(id);
            RcSpec::check(id, &record)
                .and_then(|spec| spec.with_labels(Some(&described.fields.labels)))
                .with_context(|| described.at.clone())?;
            // An entry without an id is about the only controller with its pod.
            let is_by_pod = |other: &WantedRc| {
                described.fields.id.is_none() || other.described.fields.id.is_none()
            };
            let has_twin = |other: &WantedRc| {
                let is_of_pod = other.pod_id() == described.manifest.id();
                other.id == id || is_of_pod && is_by_pod(other)
            };
            if wanted.iter().any(has_twin) {
                let pod = described.manifest.id();
                return Err(wrong(&described.at, format!("{pod} is there twice; give each an id")));
            }
            if found.is_none() {
                let selector = described.fields.node_selector.parse()?;
                let manifest = &described.manifest;
                for note in same_pod_notes(context, &stored, id, manifest, &selector).await? {
                    context.note(note);
                }
            }
            let fields = found.map_or_else(Vec::new, |f| changes(f, &described, &labels_of(f.id)));
            wanted.push(WantedRc { id, fields, exists: found.is_some(), described });
        }
        Ok(wanted)
    }
}

impl WantedObject for WantedRc {
    fn action(&self) -> ApplyAction {
        match (self.exists, self.fields.is_empty()) {
            (false, _) => ApplyAction::Created,
            (true, true) => ApplyAction::Unchanged,
            (true, false) => ApplyAction::Changed,
        }
    }

    fn bytes(&self) -> usize {
        self.described.record(self.id).encode().len()
    }

    /// Pods get a changed manifest in order.
    async fn write(&self, context: &CommandContext) -> anyhow::Result<()> {
        let described = &self.described;
        if !self.exists {
            let mut labels = described.fields.labels.clone();
            labels.insert(POD_ID.to_owned(), self.pod_id().to_string());
            let record = described.record(self.id);
            create::write(context, &record, &labels, &described.manifest).await?;
            return Ok(());
        }
        let differs = self.fields.iter().any(|difference| difference.field == "manifest");
        let manifest = differs.then(|| described.manifest.clone());
        let edit = RcEdit {
            manifest: manifest.map(|manifest| (manifest, UpdateOrder::InOrder)),
            fields: described.record_fields(),
            labels: described.fields.labels.clone(),
        };
        update(context, &self.id.to_string(), &edit).await.map(drop)
    }

    fn applied(&self) -> AppliedObject {
        let action = self.action();
        let shown = json!({"rc": self.id, "pod_id": self.pod_id(),
            "kind": "ReplicationController", "change": action});
        AppliedObject::new(format!("rc {}", self.title()), action, shown)
    }

    fn planned(&self) -> PlannedObject {
        // The id of a controller that does not exist is drawn again by `apply`.
        let (id, title) = match self.exists {
            true => (json!(self.id), format!("rc {}", self.title())),
            false => (Value::Null, format!("rc {}", self.pod_id())),
        };
        let action = self.action();
        let shown = json!({"rc": id, "pod_id": self.pod_id(), "kind": "ReplicationController",
            "change": action, "fields": self.fields});
        PlannedObject::new(&title, action, &self.fields, shown)
    }
}

/// The stored controller that an entry is about.
fn named<'a>(
    stored: &'a [FoundRc],
    described: &DescribedRc,
) -> anyhow::Result<Option<&'a FoundRc>> {
    if let Some(id) = described.fields.id {
        return Ok(stored.iter().find(|found| found.id == id));
    }
    let pod = described.manifest.id();
    let mut of_pod = stored.iter().filter(|found| found.pod_id().as_ref() == Some(pod));
    match (of_pod.next(), of_pod.next()) {
        (found, None) => Ok(found),
        (_, Some(_)) => Err(failure(
            format!("{}: several controllers have the pod {pod}", described.at),
            "say which one: put its id: into the entry (rcfarm rc list)",
        )),
    }
}

/// Fields that `apply` changes.
fn changes(found: &FoundRc, described: &DescribedRc, labels: &Labels) -> Vec<FieldDifference> {
    let stored: Value = serde_json::from_slice(&found.entry.value).unwrap_or_default();
    let mut wanted = described.record_fields();
    wanted.push(("manifest", json!(described.fields.manifest)));
    let mut changed = Vec::new();
    for (field, after) in wanted {
        let before = match stored.get(field) {
            None | Some(Value::Null) if field == "pod_labels" => json!({}),
            None if field == "disabled" => json!(false),
            other => other.cloned().unwrap_or_default(),
        };
        changed.extend((before != after).then(|| FieldDifference {
            field: field.to_owned(),
            before,
            after,
        }));
    }
    let mut after = labels.clone();
    after.extend(described.fields.labels.clone());
    changed.extend(differences(&json!({"labels": labels}), &json!({"labels": after})));
    changed
}
