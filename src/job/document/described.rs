//! Jobs of kinds that records describe: `rcfarm/job_types/<kind>` (decision 42).
//!
//! A job has a copy of its type at `spec.jobType`. `apply` puts it there; into a record that was written to Consul without
//! it, the farm does. So a job stays as it is when its type changes, and reading a job needs the job's record alone.

use std::sync::Arc;

use serde_json::Value;

use super::fields::{FieldIssues, FieldReader};
use super::kubeflow::{Rules, field_of, members};
use super::{Defaults, base, run_policy};
use rcfarm_api::FieldError;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::job_type::{FIELD, JobType, JobTypes, check_kind};
use rcfarm_api::job::spec::{Framework, JobSpec};

/// The copy of its type in a job's document.
#[must_use]
pub fn copy(document: &Value) -> Option<&Value> {
    document.get("spec")?.get(FIELD)
}

/// The kind of a document that needs a copy of its type: no kind that is built in, and without one. `None`: it needs
/// none.
#[must_use]
pub fn kind_without_copy(document: &Value) -> Option<&str> {
    let kind = document.get("kind")?.as_str()?;
    let is_described = check_kind(kind).is_ok() && copy(document).is_none();
    (is_described && document.get("spec").is_some_and(Value::is_object)).then_some(kind)
}

/// Puts the type of its kind into a document that needs it. Other documents stay as they are.
///
/// # Errors
/// There is no such type.
pub fn put_copy(document: &mut Value, types: &JobTypes) -> Result<(), FieldError> {
    let Some(kind) = kind_without_copy(document) else { return Ok(()) };
    let copy = types.copy(kind).ok_or_else(|| unknown(kind, &types.kinds()))?;
    document["spec"][FIELD] = copy;
    Ok(())
}

/// Why a kind means nothing. `described`: the kinds that records describe; empty: not known here, or none.
pub(super) fn unknown(kind: &str, described: &str) -> FieldError {
    let built_in = "Job, TFJob, PyTorchJob, MPIJob, XGBoostJob, Pod";
    let and = if described.is_empty() { "" } else { ", " };
    let why = format!("{kind:?} is no kind of job; there are {built_in}{and}{described}");
    let fix = match check_kind(kind) {
        Ok(()) => {
            format!("apply a JobType {kind}, which becomes rcfarm/job_types/{kind}, or correct it")
        }
        Err(_) => "correct it".to_owned(),
    };
    FieldError::new("kind", why, fix)
}

/// The framework of a job of a kind that is not built in.
///
/// # Errors It has no copy of its type, or an issue of `kind` or `apiVersion`.
pub(super) fn framework(kind: &str, document: &Value) -> Result<Framework, FieldError> {
    let Some(copy) = copy(document) else { return Err(unknown(kind, "")) };
    check_kind(kind).map_err(|error| FieldError { path: "kind".to_owned(), ..error })?;
    let wanted = copy.get("apiVersion").and_then(Value::as_str);
    let version = document.get("apiVersion").and_then(Value::as_str);
    match (version, wanted) {
        (Some(version), Some(wanted)) if version != wanted => {
            let why = format!("a {kind} is of {wanted}, not of {version:?}");
            Err(FieldError::new("apiVersion", why, ""))
        }
        _ => Ok(Framework::Described),
    }
}

pub(super) fn job<'v>(
    id: &Namespaced,
    document: &'v Value,
    spec: &mut FieldReader<'v>,
    issues: &mut FieldIssues,
) -> JobSpec {
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    let null = Value::Null;
    let job_type = match JobType::of_job(id, kind, spec.take(FIELD).unwrap_or(&null)) {
        Ok(job_type) => job_type,
        Err(found) => {
            // What the other fields mean is not known.
            spec.take_all();
            issues.problems.extend(found);
            return base(Framework::Described, Vec::new(), Defaults::Kubeflow);
        }
    };
    let field = copy(document).and_then(|copy| copy.get("replicaSpecs")).and_then(Value::as_str);
    let types = &job_type.spec.replica_types;
    let names: Vec<&str> = types.iter().map(|one| one.name.as_str()).collect();
    let replicas: Vec<u32> = types.iter().map(|one| one.replicas).collect();
    let rules = Rules {
        container: Some(&job_type.spec.container),
        types: &names,
        replicas: &replicas,
        restart: job_type.spec.restart_policy,
    };
    let tasks = members(&rules, field.unwrap_or_default(), spec, issues);
    let mut job = base(Framework::Described, tasks, Defaults::Kubeflow);
    job.job_type = Some(Arc::new(job_type));
    job.min_available = job.replicas();
    run_policy(&mut job, spec, issues);
    job
}

/// Checks the numbers of members.
pub(super) fn validate(job: &JobSpec, issues: &mut FieldIssues) {
    let Some(job_type) = &job.job_type else { return };
    let path = format!("spec.{}", field_of(job));
    for one in &job_type.spec.replica_types {
        let path = format!("{path}.{}", one.name);
        match job.task(&one.name) {
            None if one.required => {
                issues.problem(path, format!("every {} has one", job_type.kind));
            }
            None => {}
            Some(task) => {
                let most = one.max.unwrap_or(u32::MAX);
                if !(one.min..=most).contains(&task.replicas) {
                    let most = one.max.map_or(String::new(), |most| format!(" and at most {most}"));
                    let why = format!("it must be at least {}{most}", one.min);
                    issues.problem(format!("{path}.replicas"), why);
                }
            }
        }
    }
    if !job_type.deciding().any(|name| job.task(name).is_some()) {
        let named = job_type.deciding().collect::<Vec<_>>().join(", ");
        issues.problem(path, format!("the end of one of {named} decides, and there is none"));
    }
}
