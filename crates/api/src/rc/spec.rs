//! The RC record as square/p2 stores it, and its checked form.
//!
//! [`RcRecord`] is the value of `replication_controllers/<uuid>` field by field (`p2.md` §1.2); unknown fields are
//! kept. [`RcSpec`] is the record after every rule was checked; controllers use only that.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::allocation::AllocationOwner;
use crate::budget::BudgetAmount;
use crate::ids::RcId;
use crate::labels::{Labels, Selector};
use crate::manifest::{Launchable, Manifest, PodManifest, check_ports_and_services_in, check_size};
use crate::rc::update::{UpdateChoice, UpdateOrder};
use crate::scheduler::Packing;
use crate::stored::{self, Stored};
use crate::{FieldError, ResourceList, key};

/// Larger counts are rejected as typing errors. One pod of an RC runs per node, so no fleet needs more.
pub const MOST_REPLICAS: u32 = 100_000;

/// What a farm may do with pods on nodes that are no longer eligible.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[value(rename_all = "snake_case")]
pub enum RcStrategy {
    /// Pods stay where they are until an operator moves them.
    #[serde(rename = "static_strategy")]
    #[value(name = "static", alias = "static_strategy")]
    Static,
    /// Pods are moved off ineligible nodes, one at a time, when that is safe.
    #[serde(rename = "dynamic_strategy")]
    #[value(name = "dynamic", alias = "dynamic_strategy")]
    Dynamic,
}

impl RcStrategy {
    /// Its name in the record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RcStrategy::Static => "static_strategy",
            RcStrategy::Dynamic => "dynamic_strategy",
        }
    }
}

/// The stored record. Field names and order are p2's; unknown fields survive a rewrite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RcRecord {
    /// Equals the key's last segment.
    pub id: RcId,
    /// The pod manifest, byte for byte (YAML, possibly signed).
    pub manifest: String,
    /// A label selector over `labels/node/`.
    pub node_selector: String,
    /// Labels put on every pod. p2 writes `null` for none.
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Desired count. Required, because a missing count must not be read as 0 (`p2.md` §6.1).
    pub replicas_desired: i64,
    /// No scheduling changes while set.
    #[serde(default)]
    pub disabled: bool,
    /// `static_strategy` or `dynamic_strategy`; records from before 2017 may hold `pet_strategy` or
    /// `cattle_strategy`. Everything but `dynamic_strategy` behaves as static, as in p2.
    #[serde(default)]
    pub allocation_strategy: String,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, Value>,
}

impl RcRecord {
    /// The allocation strategy, if nobody knows it. Such a controller behaves as static.
    #[must_use]
    pub fn unknown_strategy(&self) -> Option<&str> {
        let known = ["static_strategy", "dynamic_strategy", "pet_strategy", "cattle_strategy", ""];
        Some(self.allocation_strategy.as_str()).filter(|name| !known.contains(name))
    }
}

impl Stored for RcRecord {
    fn decode(value: &[u8]) -> Result<Self, FieldError> {
        let fix =
            "restore the record from a good copy of it, or create it again with `rcfarm rc create`";
        let value = stored::object(value, fix)?;
        check_types(&value)?;
        let fix = format!("compare with {}", Self::PAGE);
        serde_json::from_value(value)
            .map_err(|error| FieldError::new(FieldError::WHOLE, error.to_string(), fix))
    }
}

/// Names the first field of the wrong type. Serde alone does not tell which of two fields of equal type it was.
fn check_types(value: &Value) -> Result<(), FieldError> {
    let bad = |field: &str, problem: &str, fix: &str| Err(FieldError::new(field, problem, fix));
    for (field, required) in [("id", true), ("manifest", true), ("node_selector", true)] {
        match &value[field] {
            Value::String(_) => {}
            Value::Null if !required => {}
            Value::Null => return bad(field, "it is missing", "write it as a string"),
            _ => return bad(field, "it is not a string", "write it as a string"),
        }
    }
    match &value["replicas_desired"] {
        Value::Null => {
            return bad(
                "replicas_desired",
                "it is missing, and a missing count is never taken for 0",
                "set it with `rcfarm rc scale ID N`",
            );
        }
        n if n.as_i64().is_none() => {
            return bad(
                "replicas_desired",
                "it is not a whole number",
                "set it to a number like 3",
            );
        }
        _ => {}
    }
    match &value["disabled"] {
        Value::Bool(_) | Value::Null => {}
        _ => return bad("disabled", "it is neither true nor false", "set it to true or false"),
    }
    match &value["allocation_strategy"] {
        Value::String(_) | Value::Null => {}
        _ => return bad("allocation_strategy", "it is not a string", "use static_strategy"),
    }
    match &value["pod_labels"] {
        Value::Null => Ok(()),
        Value::Object(map) if map.values().all(Value::is_string) => Ok(()),
        _ => bad("pod_labels", "it is not an object of strings", "write {\"key\": \"value\"}"),
    }
}

/// A checked record.
#[derive(Debug, Clone, PartialEq)]
pub struct RcSpec {
    /// Its id.
    pub id: RcId,
    /// The manifest.
    pub manifest: Manifest,
    /// Selector of its nodes.
    pub node_selector: Selector,
    /// Labels for every pod.
    pub pod_labels: Labels,
    /// Desired number of pods.
    pub replicas_desired: u32,
    /// No changes while set.
    pub disabled: bool,
    /// What happens to pods on ineligible nodes.
    pub strategy: RcStrategy,
    /// Minimum number of healthy pods while others are removed or moved, from the RC's label [`key::MIN_HEALTH_LABEL`];
    /// a percentage there is one of the desired number.
    /// It is no field of the record, because p2's tools would drop it when they write.
    pub min_health: Option<u32>,
    /// Order in which nodes with room are chosen, from the RC's label [`key::PACKING_LABEL`].
    pub packing: Packing,
    /// Its pods get a changed manifest one after the other, not all at once. So it is with a minimum health, unless the
    /// RC's label [`key::UPDATE_LABEL`] says otherwise for this manifest.
    pub in_order: bool,
}

impl RcSpec {
    /// Checks the record at `id`'s key.
    ///
    /// # Errors
    /// [`FieldError`] naming the first field that breaks a rule.
    pub fn check(id: RcId, record: &RcRecord) -> Result<RcSpec, FieldError> {
        if record.id != id {
            return Err(FieldError::new(
                "id",
                format!("it is {}, but the key says {id}", record.id),
                "write the record under its own id",
            ));
        }
        check_size(record.manifest.len()).map_err(|error| error.below("manifest"))?;
        let manifest = Manifest::parse(&record.manifest).map_err(|e| {
            FieldError::new(
                "manifest",
                e.to_string(),
                "correct the YAML; a manifest needs at least `id:`",
            )
        })?;
        // Agents report a manifest of another shape; it is not the farm's to judge.
        let has_process = manifest.launchables().iter().any(Launchable::is_process);
        if let Some(Ok(fields)) = has_process.then(|| PodManifest::read(&manifest)) {
            fields.check_processes().map_err(|error| error.below("manifest"))?;
        }
        if let (true, Ok(fields)) = (has_process, manifest.fields()) {
            check_ports_and_services_in(&fields).map_err(|error| error.below("manifest"))?;
        }
        let node_selector = record.node_selector.parse::<Selector>();
        let node_selector =
            node_selector.map_err(|error| FieldError::from(error).below("node_selector"))?;
        let strategy = match record.allocation_strategy.as_str() {
            "dynamic_strategy" => RcStrategy::Dynamic,
            _ => RcStrategy::Static,
        };
        Ok(RcSpec {
            id,
            manifest,
            node_selector,
            pod_labels: record.pod_labels.clone().unwrap_or_default(),
            replicas_desired: check_count(record.replicas_desired)?,
            disabled: record.disabled,
            strategy,
            min_health: None,
            packing: Packing::default(),
            in_order: false,
        })
    }

    /// Adds the settings from the RC's own labels; `None`: they cannot be decoded.
    ///
    /// # Errors
    /// [`FieldError`] naming the label.
    pub fn with_labels(self, labels: Option<&Labels>) -> Result<RcSpec, FieldError> {
        let Some(labels) = labels else {
            return Err(FieldError::new(
                "labels",
                "its own labels are not an object of strings".to_owned(),
                "write them like {\"key\": \"value\"}, or delete them",
            ));
        };
        let min_health = match labels.get(key::MIN_HEALTH_LABEL).map(|text| text.parse()) {
            None => None,
            Some(Ok(BudgetAmount::Count(least))) => Some(least),
            Some(Ok(part)) => Some(part.least(self.replicas_desired)),
            Some(Err(why)) => {
                return Err(FieldError::new(
                    key::MIN_HEALTH_LABEL,
                    why,
                    "set that label of the RC with `rcfarm label set rc ID`, or remove it",
                ));
            }
        };
        let packing = match labels.get(key::PACKING_LABEL).map(|text| text.parse()) {
            None => Packing::default(),
            Some(Ok(packing)) => packing,
            Some(Err(why)) => {
                return Err(FieldError::new(
                    key::PACKING_LABEL,
                    why,
                    "set that label of the RC to spread or bin-pack, or remove it",
                ));
            }
        };
        let choice = match labels.get(key::UPDATE_LABEL).map(|text| text.parse::<UpdateChoice>()) {
            None => None,
            Some(Ok(choice)) => choice.of(self.manifest.text()),
            Some(Err(why)) => {
                return Err(FieldError::new(
                    key::UPDATE_LABEL,
                    why,
                    "remove that label of the RC with `rcfarm label remove rc ID`",
                ));
            }
        };
        let in_order = choice.map_or(min_health.is_some(), |order| order == UpdateOrder::InOrder);
        Ok(RcSpec { min_health, packing, in_order, ..self })
    }

    /// Request of each of its pods.
    pub fn resources(&self) -> &ResourceList {
        self.manifest.resources()
    }

    /// Owner of its pods' allocations.
    pub fn owner(&self) -> AllocationOwner {
        AllocationOwner::Rc(self.id)
    }

    /// Decodes and checks a record.
    ///
    /// # Errors
    /// [`FieldError`].
    pub fn decode(id: RcId, value: &[u8]) -> Result<RcSpec, FieldError> {
        RcSpec::check(id, &RcRecord::decode(value)?)
    }

    /// Labels of this RC's pods: the record's own, and the two that identify the RC and the manifest (`p2.md` §1.3).
    pub fn labels_of_pod(&self) -> Labels {
        let mut labels = self.pod_labels.clone();
        labels.insert(POD_ID.to_owned(), self.manifest.id().to_string());
        labels.insert(RC_ID.to_owned(), self.id.to_string());
        labels
    }

    /// The availability zone in the pod labels, for p2's audit records.
    pub fn availability_zone(&self) -> &str {
        self.pod_labels.get("availability_zone").map_or("", String::as_str)
    }

    /// The cluster's name in the pod labels, for p2's audit records.
    pub fn cluster_name(&self) -> &str {
        self.pod_labels.get("cluster_name").map_or("", String::as_str)
    }
}

/// The pod label that names the RC; the only sign of ownership.
pub const RC_ID: &str = "replication_controller_id";
/// The pod label that names the manifest.
pub const POD_ID: &str = "pod_id";

/// Checks a count of replicas.
///
/// # Errors
/// [`FieldError`] for a negative count, and for more than [`MOST_REPLICAS`].
pub fn check_count(count: i64) -> Result<u32, FieldError> {
    let bad = |why| FieldError::new("replicas_desired", why, "set it with `rcfarm rc scale ID N`");
    let n = u32::try_from(count).map_err(|_| {
        bad(if count < 0 { format!("{count} is negative") } else { format!("{count} is absurd") })
    })?;
    if n > MOST_REPLICAS {
        return Err(bad(format!("{n} is absurd: at most {MOST_REPLICAS}")));
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::LARGEST_MANIFEST;

    const ID: &str = "f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0";

    /// As p2-rctl wrote it (`p2.md` §1.2).
    fn p2_record() -> String {
        format!(
            r#"{{"id":"{ID}","manifest":"id: hello\nlaunchables: {{}}\n","node_selector":"role=web","pod_labels":{{"availability_zone":"az1","cluster_name":"prod","extra":"yes"}},"replicas_desired":3,"disabled":false,"allocation_strategy":"static_strategy"}}"#
        )
    }

    #[test]
    fn a_record_of_p2_is_rewritten_byte_for_byte() {
        // Written by p2-rctl, HEAD 8223eb18, on Consul 1.8.7.
        let text = include_str!("../../testdata/p2/replication_controller.json");
        let record = RcRecord::decode(text.as_bytes()).unwrap();
        assert_eq!(record.encode(), text.as_bytes());
    }

    #[test]
    fn unknown_fields_survive_a_rewrite() {
        let text = p2_record().replace("\"disabled\"", "\"team\":{\"a\":[1]},\"disabled\"");
        let record = RcRecord::decode(text.as_bytes()).unwrap();
        let again: Value = serde_json::from_slice(&record.encode()).unwrap();
        assert_eq!(again["team"]["a"][0], 1);
    }

    #[test]
    fn null_pod_labels_are_none_and_stay_null() {
        let text = p2_record()
            .replace(r#"{"availability_zone":"az1","cluster_name":"prod","extra":"yes"}"#, "null");
        let record = RcRecord::decode(text.as_bytes()).unwrap();
        assert_eq!(record.encode(), text.as_bytes());
        assert!(RcSpec::check(ID.parse().unwrap(), &record).unwrap().pod_labels.is_empty());
    }

    #[test]
    fn manifest_durations_and_environment_have_limits() {
        let id: RcId = ID.parse().unwrap();
        let launchable = "{launchable_type: process, command: x, ";
        let bomb: Vec<String> =
            (1..34).map(|n| format!("A{n:02}: '${{A{0:02}}}${{A{0:02}}}'", n - 1)).collect();
        for (fields, path) in [
            ("restart: {max_backoff: 10000000000000000000s}}".to_owned(), "restart.max_backoff"),
            (format!("env: {{A00: '0123456789abcdef', {}}}}}", bomb.join(", ")), "env.A13"),
        ] {
            let mut record = RcRecord::decode(p2_record().as_bytes()).unwrap();
            record.manifest = format!("id: a\nlaunchables:\n  l: {launchable}{fields}\n");
            let error = RcSpec::check(id, &record).unwrap_err();
            assert_eq!(error.path, format!("manifest.launchables.l.{path}"));
        }
    }

    #[test]
    fn manifest_size_is_limited() {
        let mut record = RcRecord::decode(p2_record().as_bytes()).unwrap();
        let manifest = |more: usize| format!("id: a\n# {}\n", "x".repeat(more));
        record.manifest = manifest(LARGEST_MANIFEST - 9);
        RcSpec::check(ID.parse().unwrap(), &record).unwrap();
        record.manifest = manifest(LARGEST_MANIFEST);
        let error = RcSpec::check(ID.parse().unwrap(), &record).unwrap_err();
        assert_eq!(error.path, "manifest");
        assert!(error.to_string().contains("at most 131072"), "{error}");
    }

    #[test]
    fn every_bad_field_is_named() {
        let id: RcId = ID.parse().unwrap();
        let cases = [
            ("\"replicas_desired\":3", "\"replicas_desired\":-1", "replicas_desired"),
            ("\"replicas_desired\":3", "\"replicas_desired\":1e12", "replicas_desired"),
            ("\"replicas_desired\":3", "\"replicas_desired\":100001", "replicas_desired"),
            ("\"replicas_desired\":3", "\"replicas_desired\":2.5", "replicas_desired"),
            ("\"replicas_desired\":3", "\"replicas_desired\":\"3\"", "replicas_desired"),
            ("\"replicas_desired\":3,", "", "replicas_desired"),
            ("\"disabled\":false", "\"disabled\":\"no\"", "disabled"),
            ("role=web", "role=", "ok"),
            ("role=web", "role=a b", "node_selector"),
            ("id: hello", "name: hello", "manifest"),
            ("static_strategy", "sometimes", "ok"),
            ("static_strategy", "pet_strategy", "ok"),
            ("\"extra\":\"yes\"", "\"extra\":1", "pod_labels"),
            (ID, "f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a1", "id"),
        ];
        for (from, to, want) in cases {
            let text = p2_record().replace(from, to);
            let got = match RcSpec::decode(id, text.as_bytes()) {
                Ok(_) => "ok".to_owned(),
                Err(bad) => bad.path,
            };
            assert_eq!(got, want, "{from} -> {to}");
        }
        for text in ["", "[]", "null", "\"x\"", "{"] {
            assert_eq!(RcSpec::decode(id, text.as_bytes()).unwrap_err().path, FieldError::WHOLE);
        }
    }

    #[test]
    fn unknown_strategy_is_static_as_in_p2() {
        let text = p2_record().replace("static_strategy", "some_strategy");
        let record = RcRecord::decode(text.as_bytes()).unwrap();
        assert_eq!(record.unknown_strategy(), Some("some_strategy"));
        let spec = RcSpec::check(ID.parse().unwrap(), &record).unwrap();
        assert_eq!(spec.strategy, RcStrategy::Static);
        let record = RcRecord::decode(p2_record().as_bytes()).unwrap();
        assert_eq!(record.unknown_strategy(), None);
    }

    #[test]
    fn a_pod_carries_the_two_labels_of_its_owner() {
        let spec = RcSpec::decode(ID.parse().unwrap(), p2_record().as_bytes()).unwrap();
        let labels = spec.labels_of_pod();
        assert_eq!(labels[RC_ID], ID);
        assert_eq!(labels[POD_ID], "hello");
        assert_eq!(labels["extra"], "yes");
        assert_eq!((spec.availability_zone(), spec.cluster_name()), ("az1", "prod"));
    }
}
