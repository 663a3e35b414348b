//! `rcfarm priority-class list`, `get`

use serde_json::{Value, json};

use super::StoredClasses;
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::output::{fields, or_dash, table};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::priority_class::{BUILT_IN, PriorityClasses};

/// A class as JSON, for both commands.
fn shown(stored: &StoredClasses, name: &ObjectName, valid: &PriorityClasses) -> Value {
    let built_in = BUILT_IN.iter().find(|(built_in, _)| *built_in == name.as_str());
    match (stored.record(name), built_in) {
        (Some(Ok(record)), _) => {
            let bad: Vec<String> = record.check(name).iter().map(ToString::to_string).collect();
            json!({"name": name, "value": record.value,
                "globalDefault": valid.global_default() == Some(name.as_str()),
                "preemptionPolicy": record.preemption_policy, "description": record.description,
                "builtIn": false, "invalid": bad})
        }
        (Some(Err(bad)), _) => {
            json!({"name": name, "builtIn": false, "invalid": [bad.to_string()]})
        }
        (None, Some((_, value))) => {
            json!({"name": name, "value": value, "globalDefault": false, "builtIn": true, "invalid": []})
        }
        (None, None) => Value::Null,
    }
}

fn text(class: &Value, field: &str) -> String {
    match &class[field] {
        Value::String(text) if text.is_empty() => or_dash(None::<String>),
        Value::String(text) => text.clone(),
        Value::Null => or_dash(None::<String>),
        other => other.to_string(),
    }
}

/// What is said of a class in one column.
fn note(class: &Value) -> String {
    match class["invalid"].as_array().and_then(|bad| bad.first()).and_then(Value::as_str) {
        Some(bad) => bad.to_owned(),
        None if class["builtIn"] == json!(true) => "built in".to_owned(),
        None => text(class, "description"),
    }
}

pub(super) async fn list(context: &CommandContext) -> anyhow::Result<CliExit> {
    let stored = StoredClasses::read(context).await?;
    let valid = PriorityClasses::of(&stored.records());
    let built_in = BUILT_IN.iter().filter_map(|(name, _)| name.parse::<ObjectName>().ok());
    let mut names: Vec<ObjectName> = stored.entries.keys().cloned().chain(built_in).collect();
    names.sort();
    names.dedup();
    let mut all: Vec<Value> = names.iter().map(|name| shown(&stored, name, &valid)).collect();
    all.sort_by_key(|class| std::cmp::Reverse(class["value"].as_i64()));
    context.show(&all, || {
        table(
            &all,
            &[
                ("NAME", &|class| text(class, "name")),
                ("VALUE", &|class| text(class, "value")),
                ("DEFAULT", &|class| text(class, "globalDefault")),
                ("DESCRIPTION", &|class| note(class)),
            ],
        )
    })
}

pub(super) async fn get(context: &CommandContext, name: &ObjectName) -> anyhow::Result<CliExit> {
    let stored = StoredClasses::read(context).await?;
    let class = shown(&stored, name, &PriorityClasses::of(&stored.records()));
    if class.is_null() {
        stored.entry(name)?;
    }
    context.show(&class, || {
        fields([
            ("name", text(&class, "name")),
            ("value", text(&class, "value")),
            ("default", text(&class, "globalDefault")),
            ("preemption", text(&class, "preemptionPolicy")),
            ("description", note(&class)),
        ])
    })
}
