//! Job types: the value of `rcfarm/job_types/<kind>`, and the field `spec.jobType` of the jobs of that kind.
//!
//! A type says what an operator of Kubeflow has in code: its replica types, its container and port, the environment of
//! its members and when its jobs have succeeded. A job has a copy of its type ([`JobType`]), so that it stays as it is
//! when the record changes (decision 42).

mod check;
mod hook;
mod template;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::check::{MOST_TYPE_BYTES, check_kind};
pub use self::hook::{HookAnswer, HookServer, HookState, JobTypeHook};
pub use self::template::{EnvValue, TemplatePart};

use super::spec::Restart;
use crate::ids::{Namespaced, ObjectName};
use crate::{FieldError, Stored};

/// `apiVersion` of the record.
pub const API_VERSION: &str = "rcfarm/v1";
/// `kind` of the record.
pub const KIND: &str = "JobType";
/// Field of a job's `spec` with the copy of its type.
pub const FIELD: &str = "jobType";

/// The stored record. Its name is the `kind` of its jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobTypeRecord {
    /// What jobs of the type have in common.
    pub spec: JobTypeSpec,
    /// `apiVersion`, `kind`, `metadata`, and fields that we do not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Stored for JobTypeRecord {
    const PAGE: &'static str = "docs/guide/jobs.md";
}

/// What jobs of a type have in common. Fields that we do not know are refused, as those of a job are: an older farm would
/// run the job differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobTypeSpec {
    /// `apiVersion` of its jobs; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Field of a job's `spec` with its replica types, such as `paddleReplicaSpecs`.
    pub replica_specs: String,
    /// Container that every member needs and whose exit code decides.
    pub container: String,
    /// Port at which members listen; `None`: they get none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<JobTypePort>,
    /// What happens to a member that ends, where its job does not say.
    #[serde(default = "never", skip_serializing_if = "is_never")]
    pub restart_policy: Restart,
    /// Its replica types, in the order of ranks.
    pub replica_types: Vec<ReplicaType>,
    /// Variables of all members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvTemplate>,
    /// When a job has succeeded.
    #[serde(default, skip_serializing_if = "SuccessRule::is_default")]
    pub success: SuccessRule,
    /// Server that adds to the environment of each job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<JobTypeHook>,
}

fn never() -> Restart {
    Restart::Never
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_never(restart: &Restart) -> bool {
    *restart == Restart::Never
}

/// The port of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTypePort {
    /// Its name in a pod template, where a job may give it another number.
    pub name: String,
    /// Its number, where the template gives none.
    pub number: u16,
}

/// A kind of members of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplicaType {
    /// Its name, such as `Worker`. Jobs may write it in lower or upper case.
    pub name: String,
    /// Members, where a job does not say.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub replicas: u32,
    /// Fewest members of a job that has the type.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min: u32,
    /// Most members that a job may have of the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Whether every job has the type.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// Whether its members have the label `job-role: master`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub master: bool,
    /// Whether a job goes on when a member of the type has failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_fail: bool,
    /// Variables of its members. They replace those of all members that have the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvTemplate>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A variable whose text has the values of a member. A variable that names a replica type is left out of jobs without it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvTemplate {
    /// Name of the variable.
    pub name: String,
    /// Its text, with values such as `${rank}` ([`TemplatePart`]).
    pub value: String,
    /// Only jobs with this replica type have the variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_with: Option<String>,
}

/// When a job has succeeded: the first of `types` that it has decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuccessRule {
    /// Replica types; none: masters first, then the others in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// How many of its members must succeed.
    #[serde(default, skip_serializing_if = "SuccessWhen::is_all")]
    pub when: SuccessWhen,
}

impl SuccessRule {
    fn is_default(&self) -> bool {
        *self == SuccessRule::default()
    }
}

/// How many members must succeed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SuccessWhen {
    /// All members of the type.
    #[default]
    All,
    /// The member with index 0.
    First,
    /// At least one member of the type.
    Any,
}

impl SuccessWhen {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_all(&self) -> bool {
        *self == SuccessWhen::All
    }
}

/// The type of a job: a copy of a record's `spec`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobType {
    /// The job.
    pub job: Namespaced,
    /// `kind` of the job.
    pub kind: String,
    pub spec: JobTypeSpec,
}

impl JobType {
    /// The type that a job's document has at `spec.jobType`.
    ///
    /// # Errors
    /// What is wrong with it; paths begin with `spec.jobType`.
    pub fn of_job(job: &Namespaced, kind: &str, copy: &Value) -> Result<JobType, Vec<FieldError>> {
        let path = format!("spec.{FIELD}");
        let fix = "compare with docs/guide/jobs.md";
        let spec: JobTypeSpec = crate::stored::from_object(copy.clone(), fix)
            .map_err(|error| vec![error.below(&path)])?;
        let mut found = spec.check();
        if matches!(spec.hook, Some(JobTypeHook::Server(_))) {
            let fix = "write Pending: the record has it";
            found.push(FieldError::new("hook", "a job does not say whom to ask", fix));
        }
        let found: Vec<FieldError> = found.into_iter().map(|error| error.below(&path)).collect();
        match found.is_empty() {
            true => Ok(JobType { job: job.clone(), kind: kind.to_owned(), spec }),
            false => Err(found),
        }
    }

    /// A replica type by name, ignoring case.
    #[must_use]
    pub fn replica_type(&self, name: &str) -> Option<&ReplicaType> {
        self.spec.replica_types.iter().find(|one| one.name.eq_ignore_ascii_case(name))
    }

    /// The types of which the first that a job has decides its success.
    pub fn deciding(&self) -> impl Iterator<Item = &str> {
        let types = &self.spec.replica_types;
        let (masters, others): (Vec<&ReplicaType>, Vec<&ReplicaType>) =
            types.iter().partition(|one| one.master);
        let default = masters.into_iter().chain(others).map(|one| one.name.as_str());
        let named = &self.spec.success.types;
        let default = default.filter(|_| named.is_empty());
        named.iter().map(String::as_str).chain(default)
    }

    /// The variables of a replica type, in order.
    #[must_use]
    pub fn environment(&self, replica_type: &str) -> Vec<&EnvTemplate> {
        let own = self.replica_type(replica_type).map(|one| one.environment.as_slice());
        let own = own.unwrap_or_default();
        let is_replaced = |one: &&EnvTemplate| own.iter().any(|other| other.name == one.name);
        let common = self.spec.environment.iter().filter(|one| !is_replaced(one));
        common.chain(own).collect()
    }
}

/// The records that can be read, by kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobTypes(pub BTreeMap<ObjectName, JobTypeRecord>);

impl JobTypes {
    /// What a job of this kind gets at `spec.jobType`; `None`: there is no valid record.
    #[must_use]
    pub fn copy(&self, kind: &str) -> Option<Value> {
        let (name, record) = self.0.iter().find(|(name, _)| name.as_str() == kind)?;
        let is_valid = record.check(name).is_empty();
        serde_json::to_value(record.spec.of_new_job()).ok().filter(|_| is_valid)
    }

    /// The kinds, divided by commas.
    #[must_use]
    pub fn kinds(&self) -> String {
        self.0.keys().map(ObjectName::as_str).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests;
