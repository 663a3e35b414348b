//! Reads a document field by field. Fields that no reader asked for are reported.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value};

use rcfarm_api::FieldError;
use rcfarm_api::job::spec::Framework;
use rcfarm_api::manifest::LONGEST_DURATION;

/// Issues found in a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldIssues {
    /// Errors: the record is refused.
    pub problems: Vec<FieldError>,
    /// Fields that have no effect here.
    pub warnings: Vec<FieldError>,
}

impl FieldIssues {
    /// Adds an error.
    pub fn problem(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.problems.push(FieldError::new(field, why, ""));
    }

    /// Adds a warning.
    pub fn warning(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.warnings.push(FieldError::new(field, why, ""));
    }
}

/// The queue of the jobs that a document describes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobQueue {
    /// Path of the field that names it, in the document.
    pub field: String,
    pub name: String,
}

/// The priority class of the jobs that a document describes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobClass {
    /// Path of the field that names it, in the document.
    pub field: String,
    /// Its name, or a number.
    pub name: String,
}

/// Path of the field that names the queue.
#[must_use]
pub fn queue_field(framework: Framework) -> &'static str {
    match framework {
        Framework::Volcano => "spec.queue",
        Framework::Pod => "metadata.annotations.scheduling.volcano.sh/queue-name",
        _ => "spec.runPolicy.schedulingPolicy.queue",
    }
}

/// Path of the field that names the priority class.
#[must_use]
pub fn class_field(framework: Framework) -> &'static str {
    match framework {
        Framework::Volcano | Framework::Pod => "spec.priorityClassName",
        _ => "spec.runPolicy.schedulingPolicy.priorityClass",
    }
}

/// Fields of one object. [`FieldReader::finish`] reports those that were not read.
pub struct FieldReader<'v> {
    path: String,
    map: Option<&'v Map<String, Value>>,
    asked: BTreeSet<&'v str>,
}

impl<'v> FieldReader<'v> {
    /// Reader of `value` at `path`. Anything but an object or null is an error and has no fields.
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

    /// Path of a field.
    pub fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.map.is_none_or(Map::is_empty)
    }

    /// A field of any type; `None` if absent or null.
    pub fn take(&mut self, name: &'v str) -> Option<&'v Value> {
        self.asked.insert(name);
        #[cfg(test)]
        asked::note(&self.at(name), asked::Handled::Honoured, "");
        self.map?.get(name).filter(|value| !value.is_null())
    }

    /// A non-empty string.
    pub fn text(&mut self, name: &'static str, issues: &mut FieldIssues) -> Option<&'v str> {
        let value = self.take(name)?;
        let text = value.as_str();
        if text.is_none() {
            issues.problem(self.at(name), "it must be a text; put quotes around it");
        }
        text.filter(|text| !text.is_empty())
    }

    /// One of the words in `words`.
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

    /// A boolean.
    pub fn flag(&mut self, name: &'static str, issues: &mut FieldIssues) -> Option<bool> {
        let value = self.take(name)?;
        if !value.is_boolean() {
            issues.problem(self.at(name), "write true or false");
        }
        value.as_bool()
    }

    /// An integer from `least` to `i32::MAX`.
    pub fn number(
        &mut self,
        name: &'static str,
        least: i64,
        issues: &mut FieldIssues,
    ) -> Option<i64> {
        self.number_up_to(name, least, i64::from(i32::MAX), issues)
    }

    /// `activeDeadlineSeconds`: from 1 to `i64::MAX`, as in Kubernetes.
    pub fn deadline(&mut self, issues: &mut FieldIssues) -> Option<Duration> {
        let seconds = self.number_up_to("activeDeadlineSeconds", 1, i64::MAX, issues)?;
        Some(Duration::from_secs(seconds.unsigned_abs()))
    }

    fn number_up_to(
        &mut self,
        name: &'static str,
        least: i64,
        most: i64,
        issues: &mut FieldIssues,
    ) -> Option<i64> {
        let value = self.take(name)?;
        let number = value.as_i64().filter(|n| (least..=most).contains(n));
        if number.is_none() {
            let why = format!("{value} is no whole number from {least} to {most}");
            issues.problem(self.at(name), why);
        }
        number
    }

    /// A non-negative integer.
    pub fn count(&mut self, name: &'static str, issues: &mut FieldIssues) -> Option<u32> {
        self.number(name, 0, issues).and_then(|n| u32::try_from(n).ok())
    }

    /// Whole seconds, at most [`LONGEST_DURATION`].
    pub fn seconds(
        &mut self,
        name: &'static str,
        least: i64,
        issues: &mut FieldIssues,
    ) -> Option<Duration> {
        let seconds = self.number(name, least, issues)?;
        let duration = Duration::from_secs(seconds.unsigned_abs());
        if duration > LONGEST_DURATION {
            let most = LONGEST_DURATION.as_secs();
            issues.problem(self.at(name), format!("{seconds} s are too long: at most {most}"));
            return None;
        }
        Some(duration)
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

    /// Reader of an object; without fields if absent.
    pub fn object(&mut self, name: &'v str, issues: &mut FieldIssues) -> FieldReader<'v> {
        let path = self.at(name);
        match self.take(name) {
            Some(value) => FieldReader::of(path, value, issues),
            None => FieldReader { path, map: None, asked: BTreeSet::new() },
        }
    }

    /// Elements of a list with their paths.
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

    /// Elements of a list of strings.
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

    /// Entries of a map with user-defined names, in name order: path, name, value.
    pub fn entries(
        &mut self,
        name: &'v str,
        issues: &mut FieldIssues,
    ) -> Vec<(String, &'v str, &'v Value)> {
        let path = self.at(name);
        let inner = self.object(name, issues);
        let map = inner.map.into_iter().flatten();
        map.map(|(name, value)| (format!("{path}.{name}"), name.as_str(), value)).collect()
    }

    /// Accepts fields that have no effect, with a warning.
    pub fn pass_over(&mut self, names: &[&'static str], why: &str, issues: &mut FieldIssues) {
        for name in names {
            if self.take(name).is_some() {
                issues.warning(self.at(name), why);
            }
            #[cfg(test)]
            asked::note(&self.at(name), asked::Handled::Warned, why);
        }
    }

    /// Refuses known fields without which the program would not run as intended.
    pub fn refuse(&mut self, names: &[&'static str], why: &str, issues: &mut FieldIssues) {
        for name in names {
            if self.take(name).is_some() {
                issues.problem(self.at(name), why);
            }
            #[cfg(test)]
            asked::note(&self.at(name), asked::Handled::Refused, why);
        }
    }

    /// Takes all fields, so that none is reported.
    pub fn take_all(&mut self) {
        self.asked.extend(self.map.into_iter().flat_map(Map::keys).map(String::as_str));
    }

    /// Reports fields that were not read.
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

/// What readers asked for in this thread, for the page that lists all fields.
#[cfg(test)]
pub(super) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// What becomes of a field.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Handled {
        Honoured,
        Warned,
        Refused,
    }

    /// By path without the indexes of lists, and why it is not honoured.
    pub type Asked = BTreeMap<String, (Handled, String)>;

    thread_local! {
        static ASKED: RefCell<Asked> = const { RefCell::new(BTreeMap::new()) };
    }

    /// The path without indexes: `spec.tasks[].name`.
    pub fn without_indexes(path: &str) -> String {
        let mut parts = path.split('[');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |path, part| {
            path + "[]" + part.split_once(']').map_or("", |(_, rest)| rest)
        })
    }

    pub(super) fn note(path: &str, handled: Handled, why: &str) {
        ASKED.with_borrow_mut(|asked| {
            let known = asked.entry(without_indexes(path)).or_insert((handled, why.to_owned()));
            if handled > known.0 {
                *known = (handled, why.to_owned());
            }
        });
    }

    /// All of them, and forgets them.
    pub fn take() -> Asked {
        ASKED.take()
    }
}
