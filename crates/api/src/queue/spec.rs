//! The Queue record: the value of `rcfarm/queues/<name>`. Field names are Volcano's (`volcano.md` §1.3) where it
//! has the field.
//!
//! [`QueueRecord`] is the stored record; unknown fields are kept. [`QueueSpec::check`] and [`check_family`] return all
//! errors; command line and daemon use both.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use crate::ids::DEFAULT_QUEUE;
use crate::ids::{ObjectName, QueueName};
use crate::{FieldError, ResourceList, Stored};

/// The scheduler of queues that name none.
pub const DEFAULT_SCHEDULER: &str = "default";
/// Name of Volcano's root queue. No queue here may have it: leave `parent` out instead.
pub const ROOT: &str = "root";
/// Greatest depth of nested queues (Volcano's `max-queue-depth`).
pub const MAX_DEPTH: usize = 5;
/// How many groups may go before one that waits for capacity, unless the queue says otherwise.
pub const MAX_PASSES: u32 = 100;
pub const MAX_WEIGHT: i64 = 65_535;

/// The stored record. Unknown fields survive a rewrite.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueRecord {
    #[serde(default)]
    pub spec: QueueSpec,
    /// Fields that we do not know, such as a manifest's `apiVersion`.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Desired state of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Desired {
    /// It admits groups.
    #[default]
    Open,
    /// It admits nothing more; admitted groups go on to their end.
    Closed,
}

/// In which order a queue's groups are admitted when the first does not fit.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum QueueStrategy {
    /// Strict: nothing is admitted before it.
    #[serde(alias = "StrictFIFO")]
    Fifo,
    /// Best effort: what fits goes ahead.
    #[default]
    #[serde(alias = "BestEffortFIFO")]
    Traverse,
}

/// A guarantee, in Volcano's shape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarantee {
    /// Kept free for the queue in its parent.
    #[serde(default)]
    pub resource: ResourceList,
}

/// Specification of a queue. Missing fields have their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueSpec {
    /// 1 to 65,535: its share among queues. Without effect while there is no fair share.
    pub weight: i64,
    /// From 0; queues of higher priority are served first.
    pub priority: i64,
    /// Limit of its admitted groups and those of the queues below it together; missing resources: no limit.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub capability: ResourceList,
    /// Amount that its siblings leave free for it in the parent's capability.
    #[serde(skip_serializing_if = "is_default")]
    pub guarantee: Guarantee,
    /// Whether borrowed resources may be reclaimed. Without effect while there is no borrowing.
    pub reclaimable: bool,
    /// Its parent; missing or `root`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<QueueName>,
    /// Desired state.
    pub state: Desired,
    /// `fifo` (strict) or `traverse` (best effort).
    pub dequeue_strategy: QueueStrategy,
    /// In a `traverse` queue: how many groups may go before the first one that waits for capacity. Then its capacity is
    /// kept for it.
    #[serde(skip_serializing_if = "is_max_passes")]
    pub max_passes: u32,
    /// Name of its scheduler, a record under `rcfarm/schedulers/`.
    #[serde(skip_serializing_if = "is_default_scheduler")]
    pub scheduler: ObjectName,
    /// Fields that we do not know; [`QueueSpec::ignored`] names them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_max_passes(passes: &u32) -> bool {
    *passes == MAX_PASSES
}

fn is_default_scheduler(name: &ObjectName) -> bool {
    name.as_str() == DEFAULT_SCHEDULER
}

impl Default for QueueSpec {
    fn default() -> Self {
        QueueSpec {
            weight: 1,
            priority: 0,
            capability: ResourceList::default(),
            guarantee: Guarantee::default(),
            reclaimable: true,
            parent: None,
            state: Desired::Open,
            dequeue_strategy: QueueStrategy::default(),
            max_passes: MAX_PASSES,
            scheduler: DEFAULT_SCHEDULER.parse().expect("a legal name"),
            other: Map::new(),
        }
    }
}

impl Stored for QueueRecord {
    const PAGE: &'static str = "docs/guide/queues.md";
}

impl QueueRecord {
    /// Names of fields that have no effect: of the spec, and what its metadata ask a scheduler for.
    #[must_use]
    pub fn ignored(&self) -> Vec<String> {
        let metadata = |part: &'static str| {
            let all =
                self.other.get("metadata").and_then(|metadata| metadata.get(part)?.as_object());
            let names = all.into_iter().flat_map(Map::keys);
            let volcanos = names.filter(|name| name.contains("volcano.sh/"));
            volcanos.map(move |name| format!("metadata.{part}.{name}"))
        };
        let metadata = metadata("annotations").chain(metadata("labels"));
        self.spec.ignored().into_iter().chain(metadata).collect()
    }
}

impl QueueSpec {
    pub fn parent(&self) -> Option<&QueueName> {
        self.parent.as_ref().filter(|parent| parent.as_str() != ROOT)
    }

    /// Names of fields that have no effect, so that users are told. `weight` and `reclaimable` are among them unless
    /// they say what is so anyway.
    pub fn ignored(&self) -> Vec<String> {
        let differs = [("reclaimable", !self.reclaimable), ("weight", self.weight != 1)];
        let known = differs.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field);
        let unknown = self.other.keys().map(String::as_str);
        unknown.chain(known).map(|field| format!("spec.{field}")).collect()
    }

    /// All errors of the queue by itself (`volcano.md` §6).
    pub fn check(&self, name: &QueueName) -> Vec<FieldError> {
        let mut bad = Vec::new();
        let mut find =
            |path: &str, why: String, fix: &str| bad.push(FieldError::new(path, why, fix));
        if name.as_str() == ROOT {
            find("(name)", format!("{ROOT} is the name of all queues together"), "choose another");
        }
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            let why = format!("{} is no weight", self.weight);
            find("spec.weight", why, "write a number from 1 to 65535");
        }
        if self.priority < 0 {
            let why = format!("{} is negative", self.priority);
            find("spec.priority", why, "write a number from 0 up");
        }
        if self.parent() == Some(name) {
            find(
                "spec.parent",
                "it is the queue itself".to_owned(),
                "name another, or leave it out",
            );
        }
        for (what, kept) in self.guarantee.resource.iter() {
            if let Some(limit) = self.capability.get(what).filter(|limit| kept > *limit) {
                let why = format!(
                    "{} is more than the capability, {}",
                    ResourceList::spell(what, kept),
                    ResourceList::spell(what, limit)
                );
                find(
                    &format!("spec.guarantee.resource.{what}"),
                    why,
                    "lower it, or raise the other",
                );
            }
        }
        bad
    }
}

/// All errors of a queue's place in the tree (`volcano.md` §6): a missing parent, a cycle, too great a depth, amounts
/// that exceed those of its parents. `queues` holds all valid queues, itself included.
pub fn check_family(name: &QueueName, queues: &BTreeMap<QueueName, QueueSpec>) -> Vec<FieldError> {
    let Some(spec) = queues.get(name) else { return Vec::new() };
    let Some(parent) = spec.parent() else { return Vec::new() };
    let mut bad = Vec::new();
    let above = match ancestors(name, queues) {
        Ok(above) => above,
        Err(why) => {
            return vec![FieldError::new(
                "spec.parent",
                why,
                "name a queue that exists, or leave it out",
            )];
        }
    };
    if above.len() >= MAX_DEPTH {
        let why = format!(
            "{} queues stand above it, and queues nest at most {MAX_DEPTH} deep",
            above.len()
        );
        bad.push(FieldError::new("spec.parent", why, "name one that is higher up"));
    }
    if queues[parent].scheduler != spec.scheduler {
        let why = format!("{}, but {parent} has {}", spec.scheduler, queues[parent].scheduler);
        bad.push(FieldError::new(
            "spec.scheduler",
            why,
            "one scheduler orders a whole family: use its",
        ));
    }
    for (what, amount) in spec.capability.iter() {
        let limit = above.iter().find_map(|q| Some((q, queues[*q].capability.get(what)?)));
        if let Some((which, limit)) = limit.filter(|(_, limit)| amount > *limit) {
            let (amount, limit) =
                (ResourceList::spell(what, amount), ResourceList::spell(what, limit));
            let why = format!("{amount} is more than {which} has, {limit}");
            bad.push(FieldError::new(
                format!("spec.capability.{what}"),
                why,
                "lower it, or raise the other",
            ));
        }
    }
    let siblings = queues.values().filter(|q| q.parent() == Some(parent));
    let kept = ResourceList::sum(siblings.map(|q| &q.guarantee.resource));
    for (what, _) in spec.guarantee.resource.iter() {
        let (all, limit) = (kept.amount(what), queues[parent].capability.get(what));
        if let Some(limit) = limit.filter(|limit| all > *limit) {
            let (all, limit) = (ResourceList::spell(what, all), ResourceList::spell(what, limit));
            let why = format!(
                "the queues below {parent} are guaranteed {all} together, and it has {limit}"
            );
            bad.push(FieldError::new(format!("spec.guarantee.resource.{what}"), why, "lower it"));
        }
    }
    bad
}

/// Parents of a queue, the nearest first.
///
/// # Errors
/// Text about a missing parent or a cycle.
pub fn ancestors<'q>(
    name: &'q QueueName,
    queues: &'q BTreeMap<QueueName, QueueSpec>,
) -> Result<Vec<&'q QueueName>, String> {
    let (mut above, mut seen) = (Vec::new(), BTreeSet::from([name]));
    let mut at = name;
    while let Some(parent) = queues.get(at).and_then(QueueSpec::parent) {
        if !queues.contains_key(parent) {
            return Err(format!("there is no queue {parent}, which {at} names"));
        }
        if !seen.insert(parent) {
            return Err(format!("the queues above {name} run in a circle, at {parent}"));
        }
        above.push(parent);
        at = parent;
    }
    Ok(above)
}

/// The queues that name this one as their parent.
pub fn children<'q>(
    name: &'q QueueName,
    queues: &'q BTreeMap<QueueName, QueueSpec>,
) -> impl Iterator<Item = &'q QueueName> {
    queues.iter().filter(move |(_, q)| q.parent() == Some(name)).map(|(child, _)| child)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn name(text: &str) -> QueueName {
        text.parse().unwrap()
    }

    fn spec(value: Value) -> QueueSpec {
        QueueRecord::decode(json!({"spec": value}).to_string().as_bytes()).unwrap().spec
    }

    fn family(all: &[(&str, Value)]) -> BTreeMap<QueueName, QueueSpec> {
        all.iter().map(|(queue, value)| (name(queue), spec(value.clone()))).collect()
    }

    fn paths(bad: &[FieldError]) -> Vec<&str> {
        bad.iter().map(|bad| bad.path.as_str()).collect()
    }

    #[test]
    fn a_record_by_hand_needs_little_and_keeps_what_we_do_not_know() {
        let text = br#"{"apiVersion":"scheduling.volcano.sh/v1beta1","spec":{"weight":2,"state":"Closed","affinity":{}}}"#;
        let record = QueueRecord::decode(text).unwrap();
        assert_eq!((record.spec.weight, record.spec.state), (2, Desired::Closed));
        assert!(record.spec.reclaimable && record.spec.parent().is_none());
        assert_eq!(record.spec.ignored(), ["spec.affinity", "spec.weight"]);
        let again: Value = serde_json::from_slice(&record.encode()).unwrap();
        assert_eq!(again["apiVersion"], "scheduling.volcano.sh/v1beta1");
        assert!(again["spec"]["affinity"].is_object());
        assert_eq!(QueueRecord::decode(b"{}").unwrap().spec, QueueSpec::default());
    }

    #[test]
    fn a_field_of_the_wrong_shape_is_named_by_its_path() {
        for (text, path) in [
            (r#"{"spec":{"weight":"two"}}"#, "spec.weight"),
            (r#"{"spec":{"state":"Closing"}}"#, "spec.state"),
            (r#"{"spec":{"capability":{"cpu":"four"}}}"#, "spec.capability"),
            (r#"{"spec":{"parent":"a/b"}}"#, "spec.parent"),
            (r#"{"spec":{"dequeueStrategy":"lifo"}}"#, "spec.dequeueStrategy"),
            (r#"{"spec":7}"#, "spec"),
            ("[]", "(whole value)"),
            ("{", "(whole value)"),
        ] {
            let bad = QueueRecord::decode(text.as_bytes()).unwrap_err();
            assert!(bad.path.starts_with(path), "{text}: {bad}");
        }
    }

    #[test]
    fn each_rule_of_a_queue_by_itself_is_told() {
        for (queue, value, path) in [
            ("q", json!({"weight": 0}), "spec.weight"),
            ("q", json!({"weight": 65_536}), "spec.weight"),
            ("q", json!({"priority": -1}), "spec.priority"),
            ("q", json!({"parent": "q"}), "spec.parent"),
            ("root", json!({}), "(name)"),
            (
                "q",
                json!({"capability": {"cpu": 1}, "guarantee": {"resource": {"cpu": 2}}}),
                "spec.guarantee.resource.cpu",
            ),
        ] {
            assert_eq!(paths(&spec(value.clone()).check(&name(queue))), [path], "{value}");
        }
        let fine =
            json!({"weight": 65_535, "parent": "root", "guarantee": {"resource": {"cpu": 2}}});
        assert!(spec(fine).check(&name("q")).is_empty());
    }

    #[test]
    fn each_rule_of_a_family_is_told() {
        let queues = family(&[
            ("a", json!({"capability": {"cpu": 4}})),
            ("b", json!({"parent": "a"})),
            ("c", json!({"parent": "b", "capability": {"cpu": 5}})),
            ("d", json!({"parent": "nowhere"})),
            ("e", json!({"parent": "a", "guarantee": {"resource": {"cpu": 3}}})),
            ("f", json!({"parent": "a", "guarantee": {"resource": {"cpu": 2}}})),
            ("g", json!({"parent": "a", "scheduler": "other"})),
            ("x", json!({"parent": "y"})),
            ("y", json!({"parent": "x"})),
        ]);
        for (queue, want) in [
            ("a", &[][..]),
            ("b", &[]),
            ("c", &["spec.capability.cpu"]),
            ("d", &["spec.parent"]),
            ("e", &["spec.guarantee.resource.cpu"]),
            ("g", &["spec.scheduler"]),
            ("x", &["spec.parent"]),
        ] {
            assert_eq!(paths(&check_family(&name(queue), &queues)), want, "{queue}");
        }
        let deep: Vec<(String, Value)> = (0..=MAX_DEPTH)
            .map(|n| {
                (
                    format!("q{n}"),
                    if n == 0 { json!({}) } else { json!({"parent": format!("q{}", n - 1)}) },
                )
            })
            .collect();
        let deep: Vec<(&str, Value)> = deep.iter().map(|(q, v)| (q.as_str(), v.clone())).collect();
        let queues = family(&deep);
        assert!(check_family(&name("q4"), &queues).is_empty());
        assert_eq!(paths(&check_family(&name("q5"), &queues)), ["spec.parent"]);
    }
}
