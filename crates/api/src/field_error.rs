//! A text or a field of a record that breaks a rule.

use std::fmt;

use serde::Serialize;

/// A text that is not legal. It becomes a [`FieldError`] where the field is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a legal {what}: {why}")]
pub struct InvalidText {
    /// The text as given.
    pub text: String,
    /// What it should be, such as `label key`.
    pub what: &'static str,
    /// The rule that it breaks.
    pub why: &'static str,
}

/// One field that breaks a rule: which, what is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FieldError {
    /// The field's path in the record, such as `spec.capability.cpu`; [`FieldError::WHOLE`] for the record itself.
    #[serde(rename = "field")]
    pub path: String,
    /// What is wrong with it.
    #[serde(rename = "why")]
    pub problem: String,
    /// What to do; empty where `problem` says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

impl FieldError {
    /// The path of an error that is not about one field.
    pub const WHOLE: &'static str = "(whole value)";
    /// The path of an error in a record's key.
    pub const KEY: &'static str = "(key)";

    /// An error of the field at `path`.
    pub fn new(
        path: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> FieldError {
        FieldError { path: path.into(), problem: problem.into(), fix: fix.into() }
    }

    /// The same error where the field is part of the one at `parent`.
    #[must_use]
    pub fn below(mut self, parent: &str) -> FieldError {
        self.path = match self.path.as_str() {
            FieldError::WHOLE => parent.to_owned(),
            path => format!("{parent}.{path}"),
        };
        self
    }

    /// Problem and fix, for a message that names the field itself.
    pub fn reason(&self) -> String {
        match self.fix.as_str() {
            "" => self.problem.clone(),
            fix => format!("{}; {fix}", self.problem),
        }
    }

    /// All errors in one line.
    pub fn list(all: &[FieldError]) -> String {
        all.iter().map(FieldError::to_string).collect::<Vec<_>>().join(" · ")
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "field {}: {}", self.path, self.reason())
    }
}
impl std::error::Error for FieldError {}

impl From<InvalidText> for FieldError {
    fn from(error: InvalidText) -> FieldError {
        FieldError::new(FieldError::WHOLE, error.to_string(), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_texts_name_their_field() {
        let bad = InvalidText { text: "a b".to_owned(), what: "name", why: "it has a space" };
        let bad = FieldError::from(bad);
        let why = "\"a b\" is not a legal name: it has a space";
        assert_eq!(bad.to_string(), format!("field (whole value): {why}"));
        let bad = bad.below("name").below("tasks[0]");
        assert_eq!(bad.to_string(), format!("field tasks[0].name: {why}"));
    }
}
