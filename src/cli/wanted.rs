//! Objects of files beside what is stored: what `rcfarm apply` and `rcfarm plan` need of each kind, and what they show.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

use super::context::CommandContext;
use super::failure::failure;

/// What `apply` does with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum ApplyAction {
    Created,
    Changed,
    Unchanged,
}

impl ApplyAction {
    fn word(self) -> &'static str {
        match self {
            ApplyAction::Created => "created",
            ApplyAction::Changed => "changed",
            ApplyAction::Unchanged => "unchanged",
        }
    }
}

/// What `apply` shows of an object.
pub(super) struct AppliedObject {
    pub(super) name: String,
    action: ApplyAction,
    pub(super) shown: Value,
}

impl AppliedObject {
    pub(super) fn new(
        name: impl std::fmt::Display,
        action: ApplyAction,
        shown: Value,
    ) -> AppliedObject {
        AppliedObject { name: name.to_string(), action, shown }
    }

    /// The line of it in the output of `apply`.
    pub(super) fn line(&self) -> String {
        format!("{}: {}\n", self.name, self.action.word())
    }
}

/// An object of a file, beside what is stored under its name.
pub(super) trait WantedObject {
    fn action(&self) -> ApplyAction;

    /// What the user is told of the object's fields.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Size of its record.
    fn bytes(&self) -> usize;

    /// Creates or changes the stored object, in a transaction of its own.
    async fn write(&self, context: &CommandContext) -> anyhow::Result<()>;

    fn applied(&self) -> AppliedObject;

    fn planned(&self) -> PlannedObject;
}

/// What `apply` would do with an object.
pub(super) struct PlannedObject {
    pub(super) action: ApplyAction,
    pub(super) text: String,
    pub(super) shown: Value,
}

impl PlannedObject {
    /// A row of a priority class, a queue or a controller.
    pub(super) fn new(
        title: &str,
        action: ApplyAction,
        fields: &[FieldDifference],
        shown: Value,
    ) -> PlannedObject {
        let mut text = format!("{title}: {}\n", would(action));
        for FieldDifference { field, before, after } in fields {
            match (before.as_str(), after.as_str()) {
                (Some(before), Some(after)) if before.contains('\n') || after.contains('\n') => {
                    text.push_str(&format!("  ~ {field}:\n{}", line_diff(before, after)));
                }
                _ => text.push_str(&format!("  ~ {field}: {before} -> {after}\n")),
            }
        }
        PlannedObject { action, text, shown }
    }
}

/// Pairs of lines of two texts that are compared at most.
const MOST_COMPARED: usize = 4_000_000;

/// The lines of a text that change, with three unchanged ones around them.
fn line_diff(before: &str, after: &str) -> String {
    const AROUND: usize = 3;
    let (before, after): (Vec<&str>, Vec<&str>) =
        (before.lines().collect(), after.lines().collect());
    if before.len().saturating_mul(after.len()) > MOST_COMPARED {
        let (before, after) = (before.len(), after.len());
        return format!("        {before} lines before, {after} after: -o json has both\n");
    }
    let mut shown: Vec<(char, &str)> = Vec::new();
    // Lengths of the longest common subsequences of what follows, by line of both.
    let mut common = vec![vec![0_usize; after.len() + 1]; before.len() + 1];
    for n in (0..before.len()).rev() {
        for m in (0..after.len()).rev() {
            common[n][m] = match before[n] == after[m] {
                true => common[n + 1][m + 1] + 1,
                false => common[n + 1][m].max(common[n][m + 1]),
            };
        }
    }
    let (mut n, mut m) = (0, 0);
    while n < before.len() || m < after.len() {
        if n < before.len() && m < after.len() && before[n] == after[m] {
            shown.push((' ', before[n]));
            (n, m) = (n + 1, m + 1);
        } else if n < before.len() && (m == after.len() || common[n + 1][m] >= common[n][m + 1]) {
            shown.push(('-', before[n]));
            n += 1;
        } else {
            shown.push(('+', after[m]));
            m += 1;
        }
    }
    let is_near = |at: usize| {
        let range = at.saturating_sub(AROUND)..shown.len().min(at + AROUND + 1);
        shown[range].iter().any(|(sign, _)| *sign != ' ')
    };
    let mut text = String::new();
    for (at, (sign, line)) in shown.iter().enumerate() {
        if is_near(at) {
            text.push_str(format!("      {sign} {line}").trim_end());
            text.push('\n');
        } else if at > 0 && is_near(at - 1) {
            text.push_str("        …\n");
        }
    }
    text
}

/// What `plan` says of an action.
pub(super) fn would(action: ApplyAction) -> &'static str {
    match action {
        ApplyAction::Created => "would be created",
        ApplyAction::Changed => "would be changed",
        ApplyAction::Unchanged => "nothing to do",
    }
}

/// A field with its stored and its described value.
#[derive(Serialize)]
pub(super) struct FieldDifference {
    pub(super) field: String,
    pub(super) before: Value,
    pub(super) after: Value,
}

/// Fields that differ, by path.
pub(super) fn differences(before: &Value, after: &Value) -> Vec<FieldDifference> {
    let mut found = Vec::new();
    compare("", before, after, &mut found);
    found
}

fn compare(path: &str, before: &Value, after: &Value, found: &mut Vec<FieldDifference>) {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let of = |map: &Map<String, Value>| map.get(name).cloned().unwrap_or(Value::Null);
                compare(&path, &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (n, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{n}]"), a, b, found);
            }
        }
        _ if before == after => {}
        _ => found.push(FieldDifference {
            field: path.to_owned(),
            before: before.clone(),
            after: after.clone(),
        }),
    }
}

/// A document at `at` that is refused.
pub(super) fn wrong(at: &str, why: String) -> anyhow::Error {
    failure(format!("{at}: {why}"), "correct it; nothing was changed")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_named_by_path() {
        let (a, b) = (json!({"a": [{"b": 1}], "c": 1}), json!({"a": [{"b": 2}], "d": 1}));
        let found: Vec<String> = differences(&a, &b).into_iter().map(|d| d.field).collect();
        assert_eq!(found, ["a[0].b", "c", "d"]);
    }

    #[test]
    fn texts_of_several_lines_are_shown_as_lines_that_change() {
        let before = "id: web\na: 1\nb: 1\nc: 1\nd: 1\ncommand: old\nlast: 1\n";
        let after = before.replace("command: old", "command: new\ngrace: 1s");
        let lines = line_diff(before, &after);
        assert_eq!(
            lines,
            "        b: 1\n        c: 1\n        d: 1\n      - command: old\n      + command: new\n      \
             + grace: 1s\n        last: 1\n"
        );
    }
}
