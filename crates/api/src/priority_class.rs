//! Priority classes: the value of `rcfarm/priority_classes/<name>`. Field names are those of Kubernetes'
//! `scheduling.k8s.io/v1`, whose document is stored as it is written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::FieldError;
use crate::Stored;
use crate::ids::ObjectName;
use crate::pod_group::spec::PodGroupSpec;

/// Highest value of a class that is not built in.
pub const HIGHEST_VALUE: i64 = 1_000_000_000;
const LOWEST_VALUE: i64 = i32::MIN as i64;

/// Classes that are always there, as in Kubernetes.
pub const BUILT_IN: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
/// Beginning of the names of built-in classes.
const RESERVED: &str = "system-";

/// The stored record. Unknown fields survive a rewrite.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PriorityClassRecord {
    /// Priority of the groups that name the class; higher goes first.
    pub value: i64,
    /// Whether it is that of groups that name none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub global_default: bool,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Whether groups of the class may preempt others. Nothing does yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<PreemptionPolicy>,
    /// Fields that we do not know, and those of a manifest alone, such as `metadata`.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// `preemptionPolicy`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreemptionPolicy {
    /// Kubernetes' default.
    PreemptLowerPriority,
    /// They wait until there is room.
    Never,
}

impl Stored for PriorityClassRecord {
    const PAGE: &'static str = "docs/guide/queues.md";
}

impl PriorityClassRecord {
    /// What is wrong with a class of this name.
    #[must_use]
    pub fn check(&self, name: &ObjectName) -> Vec<FieldError> {
        let mut bad = Vec::new();
        if name.as_str().starts_with(RESERVED) {
            let why = format!("names that begin with {RESERVED} are those of built-in classes");
            bad.push(FieldError::new("metadata.name", why, "choose another"));
        }
        if name.as_str().parse::<i64>().is_ok() {
            let why = "a number as a class is a priority by itself";
            bad.push(FieldError::new("metadata.name", why, "choose a name"));
        }
        if !(LOWEST_VALUE..=HIGHEST_VALUE).contains(&self.value) {
            let why = format!("{} is not between {LOWEST_VALUE} and {HIGHEST_VALUE}", self.value);
            bad.push(FieldError::new("value", why, "choose another"));
        }
        bad
    }

    /// The fields that are not part of a class, of a manifest that was read as one.
    #[must_use]
    pub fn unknown(&self) -> Vec<&str> {
        let known = ["apiVersion", "kind", "metadata"];
        self.other.keys().map(String::as_str).filter(|name| !known.contains(name)).collect()
    }
}

/// A number that stands in place of a class's name.
#[must_use]
pub fn number(class: &str) -> Option<i64> {
    class.parse().ok()
}

/// The valid classes by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriorityClasses {
    values: BTreeMap<String, i64>,
    /// Name and value of the global default.
    default: Option<(String, i64)>,
    /// Whether there may be more.
    is_incomplete: bool,
}

impl PriorityClasses {
    /// The built-in classes and `records`. Invalid records are left out. Of several global defaults the one with the
    /// lowest value counts, as in Kubernetes.
    pub fn of<'a>(
        records: impl IntoIterator<Item = (&'a ObjectName, &'a PriorityClassRecord)>,
    ) -> PriorityClasses {
        let mut all = PriorityClasses::default();
        for (name, record) in records.into_iter().filter(|(name, r)| r.check(name).is_empty()) {
            all.values.insert(name.to_string(), record.value);
            let is_lowest = all.default.as_ref().is_none_or(|(_, value)| record.value < *value);
            if record.global_default && is_lowest {
                all.default = Some((name.to_string(), record.value));
            }
        }
        all
    }

    /// The same classes, where there may be others that could not be read.
    #[must_use]
    pub fn incomplete(self) -> PriorityClasses {
        PriorityClasses { is_incomplete: true, ..self }
    }

    /// Priority of a class: that of its record, of the built-in one, or the number itself. `None`: there is none.
    #[must_use]
    pub fn value(&self, class: &str) -> Option<i64> {
        let built_in = || BUILT_IN.iter().find(|(name, _)| *name == class).map(|(_, value)| *value);
        let known = self.values.get(class).copied();
        known.or_else(built_in).or_else(|| number(class))
    }

    /// Name of the global default.
    #[must_use]
    pub fn global_default(&self) -> Option<&str> {
        self.default.as_ref().map(|(name, _)| name.as_str())
    }

    /// Priority of a group. `priority` of its record counts if it is not 0, then the class that it names, then the
    /// global default.
    #[must_use]
    pub fn priority(&self, spec: &PodGroupSpec) -> i64 {
        match &*spec.priority_class_name {
            _ if spec.priority != 0 => spec.priority,
            "" => self.default.as_ref().map_or(0, |(_, value)| *value),
            class => self.value(class).unwrap_or(0),
        }
    }

    /// Why a class cannot be named, and what to do about it; `None`: there is one.
    #[must_use]
    pub fn missing(&self, class: &str) -> Option<String> {
        let is_missing = !class.is_empty() && self.value(class).is_none();
        is_missing.then(|| {
            if self.is_incomplete {
                return format!(
                    "it is not known whether there is a priority class {class}: the farm may not read all of \
                     rcfarm/priority_classes/, or its keys are gone (rcfarm farm list)"
                );
            }
            format!(
                "there is no priority class {class}: rcfarm priority-class create {class} --value N, or name another \
                 (rcfarm priority-class list) or a number"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> PriorityClassRecord {
        PriorityClassRecord::decode(text.as_bytes()).unwrap()
    }

    fn name(text: &str) -> ObjectName {
        text.parse().unwrap()
    }

    #[test]
    fn a_document_of_kubernetes_is_kept_as_it_is_written() {
        let text = r#"{"value":1000,"globalDefault":true,"description":"x","preemptionPolicy":"Never","apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","later":1,"metadata":{"name":"high"}}"#;
        let read = record(text);
        assert_eq!(read.encode(), text.as_bytes());
        assert_eq!(read.unknown(), ["later"]);
        assert!(read.check(&name("high")).is_empty());
        assert!(PriorityClassRecord::decode(b"{}").is_err(), "value is required");
        assert!(PriorityClassRecord::decode(br#"{"value":1,"preemptionPolicy":"Often"}"#).is_err());
    }

    #[test]
    fn values_and_names_are_limited_as_in_kubernetes() {
        let paths = |text: &str, name: &str| -> Vec<String> {
            let found = record(text).check(&name.parse().unwrap());
            found.into_iter().map(|error| error.path).collect()
        };
        assert_eq!(paths(r#"{"value":1000000000}"#, "a"), [""; 0]);
        assert_eq!(paths(r#"{"value":1000000001}"#, "a"), ["value"]);
        assert_eq!(paths(r#"{"value":-2147483649}"#, "a"), ["value"]);
        assert_eq!(paths(r#"{"value":1}"#, "system-mine"), ["metadata.name"]);
        assert_eq!(paths(r#"{"value":1}"#, "1000"), ["metadata.name"]);
    }

    #[test]
    fn classes_give_priorities_to_groups() {
        let (high, low) =
            (record(r#"{"value":7}"#), record(r#"{"value":-3,"globalDefault":true}"#));
        let (other, bad) =
            (record(r#"{"value":5,"globalDefault":true}"#), record(r#"{"value":9999999999}"#));
        let names = ["high", "low", "other", "bad"].map(name);
        let classes = PriorityClasses::of(names.iter().zip([&high, &low, &other, &bad]));
        assert_eq!(classes.global_default(), Some("low"), "the lowest of two");
        let priority = |class: &str, priority: i64| {
            let priority_class_name = class.to_owned();
            classes.priority(&PodGroupSpec {
                priority_class_name,
                priority,
                ..PodGroupSpec::default()
            })
        };
        for (class, expected) in [
            ("high", 7),
            ("", -3),
            ("1000", 1000),
            ("-5", -5),
            ("none", 0),
            ("bad", 0),
            ("system-node-critical", 2_000_001_000),
            ("system-cluster-critical", 2_000_000_000),
        ] {
            assert_eq!(priority(class, 0), expected, "{class}");
        }
        assert_eq!(priority("high", 12), 12, "the record's own number counts");
        assert!(classes.missing("high").is_none() && classes.missing("").is_none());
        let why = classes.missing("bad").unwrap();
        assert!(why.contains("rcfarm priority-class create bad --value N"), "{why}");
        assert_eq!(PriorityClasses::default().value("high"), None);
    }
}
