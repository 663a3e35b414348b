//! Disruption budgets: how many members of a job, or pods of a controller, may be stopped on purpose at once. Pure.
//!
//! A budget is a number or a percentage of all members; percentages round up, as in Kubernetes. It is asked before each
//! voluntary disruption: a drain, a transfer, the eviction of a group for another one of its virtual cluster. Nodes that
//! go down ask nobody, and their members are counted as lost. Cells that are lent go back whatever the budget of those
//! who have them says: the virtual cluster that they are lent from was promised them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::FieldError;

/// A number of members, or a percentage of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "BudgetText", try_from = "BudgetText")]
pub enum BudgetAmount {
    /// So many.
    Count(u32),
    /// So many of a hundred, 0 to 100.
    Percent(u32),
}

/// An amount as it is stored: a number, or a text such as `50%`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum BudgetText {
    Number(u32),
    Text(String),
}

impl From<BudgetAmount> for BudgetText {
    fn from(amount: BudgetAmount) -> BudgetText {
        match amount {
            BudgetAmount::Count(count) => BudgetText::Number(count),
            BudgetAmount::Percent(_) => BudgetText::Text(amount.to_string()),
        }
    }
}

impl TryFrom<BudgetText> for BudgetAmount {
    type Error = String;

    fn try_from(text: BudgetText) -> Result<BudgetAmount, String> {
        match text {
            BudgetText::Number(count) => Ok(BudgetAmount::Count(count)),
            BudgetText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for BudgetAmount {
    type Err = String;

    fn from_str(text: &str) -> Result<BudgetAmount, String> {
        let wrong = || format!("{text:?} is neither a number nor a percentage from 0% to 100%");
        match text.strip_suffix('%') {
            None => text.parse().map(BudgetAmount::Count).map_err(|_| wrong()),
            Some(percent) => {
                let percent = percent.parse().ok().filter(|percent| *percent <= 100);
                percent.map(BudgetAmount::Percent).ok_or_else(wrong)
            }
        }
    }
}

impl fmt::Display for BudgetAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BudgetAmount::Count(count) => write!(f, "{count}"),
            BudgetAmount::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl BudgetAmount {
    /// The number that it is of `total`, rounded up; it may be more than `total`.
    #[must_use]
    pub fn least(self, total: u32) -> u32 {
        match self {
            BudgetAmount::Count(count) => count,
            BudgetAmount::Percent(percent) => {
                let part = (u64::from(total) * u64::from(percent)).div_ceil(100);
                u32::try_from(part).unwrap_or(u32::MAX)
            }
        }
    }
}

/// How many members have to stay available. With both limits the first counts, as in Volcano.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionBudget {
    /// Fewest members that are available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<BudgetAmount>,
    /// Most members that are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<BudgetAmount>,
}

impl DisruptionBudget {
    /// Fewest of `total` members that have to be available.
    #[must_use]
    pub fn least(&self, total: u32) -> u32 {
        match (self.min_available, self.max_unavailable) {
            (Some(least), _) => least.least(total).min(total),
            (None, Some(most)) => total.saturating_sub(most.least(total)),
            (None, None) => 0,
        }
    }

    /// Both limits as they are written, for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        match (self.min_available, self.max_unavailable) {
            (Some(least), _) => format!("minAvailable {least}"),
            (None, Some(most)) => format!("maxUnavailable {most}"),
            (None, None) => "none".to_owned(),
        }
    }

    /// Checks the limits of the field `path`.
    pub fn check(&self, path: &str) -> Vec<FieldError> {
        let is_set = self.min_available.is_some() || self.max_unavailable.is_some();
        let why = "it has neither minAvailable nor maxUnavailable";
        let bad =
            (!is_set).then(|| FieldError::new(path, why, "write one of them, or leave it out"));
        bad.into_iter().collect()
    }
}

/// Members of a job, or pods of a controller, as a budget counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetMembers {
    /// All that there shall be.
    pub total: u32,
    /// Those that run, and that nobody stops.
    pub available: u32,
}

/// How many available members may be stopped on purpose now.
#[must_use]
pub fn allowed(budget: Option<&DisruptionBudget>, members: BudgetMembers) -> u32 {
    match budget {
        None => u32::MAX,
        Some(budget) => members.available.saturating_sub(budget.least(members.total)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn budget(value: serde_json::Value) -> DisruptionBudget {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn percentages_round_up() {
        for (text, total, least) in [
            ("3", 10, 3),
            ("50%", 7, 4),
            ("1%", 1000, 10),
            ("1%", 1, 1),
            ("0%", 9, 0),
            ("100%", 3, 3),
        ] {
            assert_eq!(
                text.parse::<BudgetAmount>().unwrap().least(total),
                least,
                "{text} of {total}"
            );
        }
        for text in ["", "-1", "101%", "%", "1.5", "50 %", "4294967296"] {
            assert!(text.parse::<BudgetAmount>().is_err(), "{text}");
        }
        let most = BudgetAmount::Percent(100).least(u32::MAX);
        assert_eq!(most, u32::MAX, "no overflow");
    }

    #[test]
    fn allowed_leaves_the_least_number_available() {
        let of = |value, total, available| {
            allowed(Some(&budget(value)), BudgetMembers { total, available })
        };
        assert_eq!(of(json!({"minAvailable": 3}), 4, 4), 1);
        assert_eq!(of(json!({"minAvailable": 3}), 4, 2), 0, "already fewer");
        assert_eq!(of(json!({"minAvailable": "50%"}), 5, 5), 2);
        assert_eq!(of(json!({"maxUnavailable": "30%"}), 7, 7), 3);
        assert_eq!(of(json!({"maxUnavailable": 1}), 7, 6), 0, "one is not available already");
        assert_eq!(of(json!({"minAvailable": 9}), 4, 4), 0);
        assert_eq!(
            of(json!({"minAvailable": 1, "maxUnavailable": 0}), 4, 4),
            3,
            "the first counts"
        );
        assert_eq!(allowed(None, BudgetMembers::default()), u32::MAX);
    }

    #[test]
    fn budgets_are_stored_as_they_are_written() {
        for value in [json!({"minAvailable": 3}), json!({"maxUnavailable": "30%"})] {
            assert_eq!(serde_json::to_value(budget(value.clone())).unwrap(), value);
        }
        assert!(serde_json::from_value::<DisruptionBudget>(json!({"minAvailable": "x"})).is_err());
        assert_eq!(DisruptionBudget::default().check("spec.budget")[0].path, "spec.budget");
        assert!(budget(json!({"minAvailable": 0})).check("spec.budget").is_empty());
    }
}
