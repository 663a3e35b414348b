//! `rcfarm job type list`, `get`

use serde_json::{Value, json};

use super::StoredTypes;
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::output::{fields, table};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::job::job_type::{JobType, JobTypeRecord, SuccessWhen};

/// A type as JSON, for both commands.
fn shown(stored: &StoredTypes, name: &ObjectName) -> Value {
    match stored.record(name) {
        Some(Ok(record)) => {
            let bad: Vec<String> = record.check(name).iter().map(ToString::to_string).collect();
            json!({"kind": name, "spec": record.spec, "success": success(&record), "invalid": bad})
        }
        Some(Err(bad)) => json!({"kind": name, "invalid": [bad.to_string()]}),
        None => Value::Null,
    }
}

/// The rule of success, for people.
fn success(record: &JobTypeRecord) -> String {
    let job = "default/job".parse().expect("a legal name");
    let job_type = JobType { job, kind: String::new(), spec: record.spec.clone() };
    let types = job_type.deciding().collect::<Vec<_>>().join(", otherwise ");
    let members = match record.spec.success.when {
        SuccessWhen::All => "all members of",
        SuccessWhen::First => "member 0 of",
        SuccessWhen::Any => "any member of",
    };
    format!("{members} {types}")
}

/// Replica types with their default numbers.
fn types(one: &Value) -> String {
    let all = one["spec"]["replicaTypes"].as_array().into_iter().flatten();
    let type_of = |one: &Value| {
        let replicas = one["replicas"].as_u64().unwrap_or(1);
        format!("{} x {}", replicas, one["name"].as_str().unwrap_or_default())
    };
    all.map(type_of).collect::<Vec<_>>().join(", ")
}

fn text(one: &Value, field: &str) -> String {
    one.pointer(field).and_then(Value::as_str).unwrap_or("-").to_owned()
}

/// The rule of success, or what is wrong.
fn note(one: &Value) -> String {
    let bad = one["invalid"].as_array().and_then(|bad| bad.first()).and_then(Value::as_str);
    bad.map_or_else(|| text(one, "/success"), str::to_owned)
}

pub(super) async fn list(context: &CommandContext) -> anyhow::Result<CliExit> {
    let stored = StoredTypes::read(context).await?;
    let all: Vec<Value> = stored.entries.keys().map(|name| shown(&stored, name)).collect();
    context.show(&all, || {
        table(
            &all,
            &[
                ("KIND", &|one| text(one, "/kind")),
                ("REPLICA SPECS", &|one| text(one, "/spec/replicaSpecs")),
                ("TYPES", &|one| types(one)),
                ("SUCCESS", &|one| note(one)),
            ],
        )
    })
}

pub(super) async fn get(context: &CommandContext, name: &ObjectName) -> anyhow::Result<CliExit> {
    let stored = StoredTypes::read(context).await?;
    stored.entry(name)?;
    let one = shown(&stored, name);
    let port = &one["spec"]["port"];
    let port = match port["name"].as_str() {
        Some(name) => format!("{name} {}", port["number"]),
        None => "-".to_owned(),
    };
    let names = |list: &Value| {
        let all = list.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
        all.collect::<Vec<_>>().join(" ")
    };
    context.show(&one, || {
        fields([
            ("kind", text(&one, "/kind")),
            ("replica specs", text(&one, "/spec/replicaSpecs")),
            ("types", types(&one)),
            ("container", text(&one, "/spec/container")),
            ("port", port),
            ("variables", names(&one["spec"]["environment"])),
            ("hook", text(&one, "/spec/hook/url")),
            ("success", note(&one)),
        ])
    })
}
