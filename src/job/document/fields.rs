//! Walks a document with the path of each field at hand, so that nothing in it is passed over in silence.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value};

use rcfarm_api::FieldError;
use rcfarm_api::job::spec::Framework;

/// What was found on the way through a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldIssues {
    /// The record cannot be worked on.
    pub problems: Vec<FieldError>,
    /// It can, but not all of it is honoured.
    pub warnings: Vec<FieldError>,
}

impl FieldIssues {
    /// Notes what is wrong with a field.
    pub fn problem(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.problems.push(FieldError::new(field, why, ""));
    }

    /// Notes what of a field is not honoured.
    pub fn warning(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.warnings.push(FieldError::new(field, why, ""));
    }
}

/// Where a document of this kind names its queue.
#[must_use]
pub fn queue_field(framework: Framework) -> &'static str {
    match framework {
        Framework::Volcano => "spec.queue",
        Framework::Pod => "metadata.annotations.scheduling.volcano.sh/queue-name",
        _ => "spec.runPolicy.schedulingPolicy.queue",
    }
}

/// The fields of one object. Each is asked for once; [`FieldReader::finish`] reports those that nobody asked for.
pub struct FieldReader<'v> {
    path: String,
    map: Option<&'v Map<String, Value>>,
    asked: BTreeSet<&'static str>,
}

impl<'v> FieldReader<'v> {
    /// The fields of `value`, which stands at `path`; those of nothing when it is no object, which is a problem.
    pub fn of(
        path: impl Into<String>,
        value: &'v Value,
        issues: &mut FieldIssues,
    ) -> FieldReader<'v> {
        let path = path.into();
        let map = value.as_object();
        if map.is_none() && !value.is_null() {
            let whole = if path.is_empty() { FieldError::WHOLE } else { path.as_str() };
            issues.problem(whole, "it must be a mapping of fields");
        }
        FieldReader { path, map, asked: BTreeSet::new() }
    }

    /// The path of a field.
    pub fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.map.is_none_or(Map::is_empty)
    }

    /// A field as it is; `None` when it is absent or null.
    pub fn take(&mut self, name: &'static str) -> Option<&'v Value> {
        self.asked.insert(name);
        self.map?.get(name).filter(|value| !value.is_null())
    }

    /// A text.
    pub fn text(&mut self, name: &'static str, issues: &mut FieldIssues) -> Option<&'v str> {
        let value = self.take(name)?;
        let text = value.as_str();
        if text.is_none() {
            issues.problem(self.at(name), "it must be a text; put quotes around it");
        }
        text.filter(|text| !text.is_empty())
    }

    /// One of a few words.
    pub fn word<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
        issues: &mut FieldIssues,
    ) -> Option<T> {
        let text = self.text(name, issues)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let why = format!("{text:?} is not known; write one of {}", known.join(", "));
            issues.problem(self.at(name), why);
        }
        found
    }

    /// `true` or `false`.
    pub fn flag(&mut self, name: &'static str, issues: &mut FieldIssues) -> Option<bool> {
        let value = self.take(name)?;
        if !value.is_boolean() {
            issues.problem(self.at(name), "write true or false");
        }
        value.as_bool()
    }

    /// A whole number from `least` up.
    pub fn number(
        &mut self,
        name: &'static str,
        least: i64,
        issues: &mut FieldIssues,
    ) -> Option<i64> {
        let value = self.take(name)?;
        let number = value.as_i64().filter(|n| *n >= least && *n <= i64::from(i32::MAX));
        if number.is_none() {
            let why = format!("{value} is no whole number from {least} to {}", i32::MAX);
            issues.problem(self.at(name), why);
        }
        number
    }

    /// A count: a whole number from 0 up.
    pub fn count(&mut self, name: &'static str, issues: &mut FieldIssues) -> Option<u32> {
        self.number(name, 0, issues).and_then(|n| u32::try_from(n).ok())
    }

    /// A duration, such as `90s` or `5m`.
    pub fn duration(&mut self, name: &'static str, issues: &mut FieldIssues) -> Option<Duration> {
        let text = self.text(name, issues)?;
        let parsed = humantime::parse_duration(text);
        let wrong = |error| {
            issues.problem(self.at(name), format!("{error}; write it like 90s, 5m or 1h30m"));
        };
        parsed.map_err(wrong).ok()
    }

    /// The fields of an object; those of nothing when it is absent.
    pub fn object(&mut self, name: &'static str, issues: &mut FieldIssues) -> FieldReader<'v> {
        let path = self.at(name);
        match self.take(name) {
            Some(value) => FieldReader::of(path, value, issues),
            None => FieldReader { path, map: None, asked: BTreeSet::new() },
        }
    }

    /// The members of a list with their paths.
    pub fn list(
        &mut self,
        name: &'static str,
        issues: &mut FieldIssues,
    ) -> Vec<(String, &'v Value)> {
        let Some(value) = self.take(name) else { return Vec::new() };
        let Some(members) = value.as_array() else {
            issues.problem(self.at(name), "it must be a list");
            return Vec::new();
        };
        let path = self.at(name);
        members.iter().enumerate().map(|(n, member)| (format!("{path}[{n}]"), member)).collect()
    }

    /// The members of a list of texts.
    pub fn texts(&mut self, name: &'static str, issues: &mut FieldIssues) -> Vec<String> {
        let mut texts = Vec::new();
        for (path, value) in self.list(name, issues) {
            match value.as_str() {
                Some(text) => texts.push(text.to_owned()),
                None => issues.problem(path, "it must be a text; put quotes around it"),
            }
        }
        texts
    }

    /// A mapping whose names the user chooses, in name order.
    pub fn entries(
        &mut self,
        name: &'static str,
        issues: &mut FieldIssues,
    ) -> Vec<(String, &'v str, &'v Value)> {
        let path = self.at(name);
        let inner = self.object(name, issues);
        let map = inner.map.into_iter().flatten();
        map.map(|(name, value)| (format!("{path}.{name}"), name.as_str(), value)).collect()
    }

    /// Fields that are known and not honoured, though the program runs as well without.
    pub fn pass_over(&mut self, names: &[&'static str], why: &str, issues: &mut FieldIssues) {
        for name in names {
            if self.take(name).is_some() {
                issues.warning(self.at(name), why);
            }
        }
    }

    /// Fields that are known and cannot be honoured: without them the program would not run as it is meant to.
    pub fn refuse(&mut self, names: &[&'static str], why: &str, issues: &mut FieldIssues) {
        for name in names {
            if self.take(name).is_some() {
                issues.problem(self.at(name), why);
            }
        }
    }

    /// Reports the fields that nobody asked for.
    pub fn finish(self, issues: &mut FieldIssues) {
        for name in self.map.into_iter().flat_map(Map::keys) {
            if !self.asked.contains(name.as_str()) {
                let known: Vec<&str> = self.asked.iter().copied().collect();
                let why = format!("there is no such field here; there are {}", known.join(", "));
                issues.problem(self.at(name), why);
            }
        }
    }
}
