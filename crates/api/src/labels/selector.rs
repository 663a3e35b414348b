//! Label selectors: matching, and the canonical form.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Labels;
use crate::text::converts_as_text;

/// A conjunction of requirements on labels.
///
/// Requirements are kept sorted and without repetition, so that equal selectors compare equal whatever the
/// order they were written in. [`Display`](fmt::Display) is the canonical spelling; parsing it gives an equal
/// selector. In JSON and YAML a selector is its string.
///
/// ```
/// use rcfarm_api::labels::{Labels, Selector};
/// let selector: Selector = "tier notin (test, dev), role == web".parse().unwrap();
/// assert_eq!(selector.to_string(), "role=web,tier notin (dev,test)");
/// assert!(selector.matches(&Labels::from([("role".into(), "web".into())])));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// One comma-separated part of a selector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// Condition on it.
    pub condition: LabelCondition,
}

/// Condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LabelCondition {
    /// `key=value` or `key==value`: present with this value.
    Equals(String),
    /// `key in (a,b)`: present with one of these values.
    In(BTreeSet<String>),
    /// `key!=value`: absent, or present with another value.
    NotEquals(String),
    /// `key notin (a,b)`: absent, or present with none of these values.
    NotIn(BTreeSet<String>),
    /// `key`: present.
    Exists,
    /// `!key`: absent.
    Absent,
}

impl Selector {
    /// Matches every set of labels, the empty one included; its spelling is the empty string.
    pub fn everything() -> Self {
        Selector { requirements: Vec::new() }
    }

    pub(super) fn of(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort();
        requirements.dedup();
        Selector { requirements }
    }

    /// Whether nothing at all is required.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements, in canonical order.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether every requirement holds.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.holds(labels))
    }

    /// The first requirement that does not hold, in words; `None` when the selector matches.
    pub fn explain(&self, labels: &Labels) -> Option<String> {
        let failed = self.requirements.iter().find(|requirement| !requirement.holds(labels))?;
        Some(match labels.get(&failed.key) {
            None => format!("there is no label {}, but {failed} is required", failed.key),
            Some(value) => format!("label {} is {value:?}, but {failed} is required", failed.key),
        })
    }
}

impl Requirement {
    /// Whether the labels satisfy this requirement.
    pub fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.condition {
            LabelCondition::Equals(wanted) => value == Some(wanted),
            LabelCondition::In(wanted) => value.is_some_and(|value| wanted.contains(value)),
            LabelCondition::NotEquals(unwanted) => value != Some(unwanted),
            LabelCondition::NotIn(unwanted) => value.is_none_or(|value| !unwanted.contains(value)),
            LabelCondition::Exists => value.is_some(),
            LabelCondition::Absent => value.is_none(),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.condition {
            LabelCondition::Equals(value) => write!(f, "{key}={value}"),
            LabelCondition::NotEquals(value) => write!(f, "{key}!={value}"),
            LabelCondition::In(values) => write!(f, "{key} in ({})", join(values)),
            LabelCondition::NotIn(values) => write!(f, "{key} notin ({})", join(values)),
            LabelCondition::Exists => f.write_str(key),
            LabelCondition::Absent => write!(f, "!{key}"),
        }
    }
}

fn join(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, requirement) in self.requirements.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}
converts_as_text!(Selector);
