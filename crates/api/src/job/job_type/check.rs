//! Which job types are valid: names, counts, variables and the rule of success. Pure.

use std::collections::BTreeSet;

use super::{
    API_VERSION, EnvTemplate, JobTypeHook, JobTypeRecord, JobTypeSpec, KIND, ReplicaType,
    TemplatePart,
};
use crate::FieldError;
use crate::ids::ObjectName;
use crate::pod_group::spec::MOST_MEMBERS;

/// Bytes of a type as JSON, at most: each job of the type has a copy.
pub const MOST_TYPE_BYTES: usize = 32 * 1024;
/// Replica types of one type.
const MOST_REPLICA_TYPES: usize = 16;
/// Variables of one member.
const MOST_VARIABLES: usize = 64;
/// Lists of members in one variable: each may have an address of every member.
const MOST_LISTS: usize = 4;
/// Bytes of the text of a variable, before its values are put in.
const LONGEST_TEMPLATE: usize = 4 * 1024;
/// Limit of a DNS label, which names of containers and ports are.
const LONGEST_LABEL: usize = 63;
/// Letters of a kind: its name is a label's value, with `-controller` behind it.
const LONGEST_KIND: usize = 50;
/// Letters of a replica type: names of pods have it.
const LONGEST_REPLICA_TYPE: usize = 32;

/// Kinds of documents that mean something already.
const TAKEN: [&str; 14] = [
    "Job",
    "TFJob",
    "PyTorchJob",
    "MPIJob",
    "XGBoostJob",
    "Pod",
    "List",
    "Queue",
    "PriorityClass",
    "CronJob",
    "JobFlow",
    "JobTemplate",
    "PodGroup",
    KIND,
];

/// Fields of a job's `spec` that have a meaning in every job.
const FIELDS: [&str; 9] = [
    "runPolicy",
    "jobType",
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
    "suspend",
    "restartDelay",
    "cells",
];

fn is_camel(text: &str, longest: usize, first: fn(&char) -> bool) -> bool {
    text.len() <= longest
        && text.starts_with(|c: char| first(&c))
        && text.chars().all(|c| c.is_ascii_alphanumeric())
}

fn is_label(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends = text.starts_with('-') || text.ends_with('-');
    !text.is_empty() && text.len() <= LONGEST_LABEL && !ends && text.bytes().all(fine)
}

fn is_variable(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 256
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What is wrong with a name of a type, which is the `kind` of its jobs.
///
/// # Errors
/// Problem and fix.
pub fn check_kind(kind: &str) -> Result<(), FieldError> {
    let wrong = |why: String, fix: &str| Err(FieldError::new("metadata.name", why, fix));
    if TAKEN.contains(&kind) {
        return wrong(format!("{kind} is a kind that is built in"), "choose another name");
    }
    if !is_camel(kind, LONGEST_KIND, char::is_ascii_uppercase) {
        let why = format!("{kind:?} is no kind of a document");
        let fix = format!(
            "write a capital letter, then letters and digits, at most {LONGEST_KIND}, as in PaddleJob"
        );
        return wrong(why, &fix);
    }
    Ok(())
}

impl JobTypeRecord {
    /// What is wrong with a record of this name.
    #[must_use]
    pub fn check(&self, name: &ObjectName) -> Vec<FieldError> {
        let mut bad: Vec<FieldError> = check_kind(name.as_str()).err().into_iter().collect();
        for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            if self.other.get(field).is_some_and(|value| value != wanted) {
                let why = format!("it must be {wanted:?}");
                bad.push(FieldError::new(field, why, ""));
            }
        }
        if matches!(self.spec.hook, Some(JobTypeHook::Job(_))) {
            let fix = "write {url: http://host:port/path}";
            bad.push(FieldError::new("spec.hook", "it does not say whom to ask", fix));
        }
        bad.extend(self.spec.check().into_iter().map(|error| error.below("spec")));
        bad
    }

    /// The fields that are not part of a record.
    #[must_use]
    pub fn unknown(&self) -> Vec<&str> {
        let known = ["apiVersion", "kind", "metadata"];
        self.other.keys().map(String::as_str).filter(|name| !known.contains(name)).collect()
    }
}

impl JobTypeSpec {
    /// What is wrong with it; paths are those below `spec`.
    #[must_use]
    pub fn check(&self) -> Vec<FieldError> {
        let mut bad = Vec::new();
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |text| text.len());
        if bytes > MOST_TYPE_BYTES {
            let why = format!("it has {bytes} bytes, at most {MOST_TYPE_BYTES}");
            bad.push(FieldError::new(FieldError::WHOLE, why, "shorten its variables"));
            return bad;
        }
        self.check_names(&mut bad);
        if let Some(JobTypeHook::Server(server)) = &self.hook {
            bad.extend(server.check());
        }
        self.check_types(&mut bad);
        self.check_variables("environment", &self.environment, &mut bad);
        for (n, one) in self.replica_types.iter().enumerate() {
            let path = format!("replicaTypes[{n}].environment");
            self.check_variables(&path, &one.environment, &mut bad);
            let all = self.environment.len() + one.environment.len();
            if all > MOST_VARIABLES {
                let why = format!("a member has {all} variables, at most {MOST_VARIABLES}");
                bad.push(FieldError::new(path, why, "write fewer"));
            }
        }
        for (n, name) in self.success.types.iter().enumerate() {
            let path = format!("success.types[{n}]");
            bad.extend(self.missing(name).map(|(why, fix)| FieldError::new(path, why, fix)));
        }
        bad
    }

    fn check_names(&self, bad: &mut Vec<FieldError>) {
        let mut wrong = |field: &str, why: String, fix: &str| {
            bad.push(FieldError::new(field, why, fix));
        };
        let field = self.replica_specs.as_str();
        if !is_camel(field, LONGEST_LABEL, char::is_ascii_lowercase) || FIELDS.contains(&field) {
            let why = format!("{field:?} is no field for replica types");
            wrong("replicaSpecs", why, "write a name as in paddleReplicaSpecs");
        }
        if !is_label(&self.container) {
            let why = format!("{:?} is no name of a container", self.container);
            wrong("container", why, "write a-z, 0-9 and '-', at most 63");
        }
        if let Some(port) = &self.port {
            if !is_label(&port.name) {
                let why = format!("{:?} is no name of a port", port.name);
                wrong("port.name", why, "write a-z, 0-9 and '-', at most 63");
            }
            if port.number == 0 {
                wrong("port.number", "0 is no port".to_owned(), "write 1 to 65535");
            }
        }
        if self.api_version.as_ref().is_some_and(|version| version.len() > 200) {
            wrong("apiVersion", "it is longer than 200 bytes".to_owned(), "shorten it");
        }
    }

    fn check_types(&self, bad: &mut Vec<FieldError>) {
        let types = &self.replica_types;
        if types.is_empty() || types.len() > MOST_REPLICA_TYPES {
            let why = format!("there are {} of them", types.len());
            let fix = format!("write 1 to {MOST_REPLICA_TYPES}");
            bad.push(FieldError::new("replicaTypes", why, fix));
        }
        let mut names = BTreeSet::new();
        for (n, one) in types.iter().enumerate() {
            let path = |field: &str| format!("replicaTypes[{n}].{field}");
            let ReplicaType { name, replicas, min, max, .. } = one;
            if !is_camel(name, LONGEST_REPLICA_TYPE, char::is_ascii_alphabetic) {
                let why = format!("{name:?} is no replica type");
                let fix = format!(
                    "write a letter, then letters and digits, at most {LONGEST_REPLICA_TYPE}"
                );
                bad.push(FieldError::new(path("name"), why, fix));
            }
            if !names.insert(name.to_ascii_lowercase()) {
                let why = format!("{name} is there twice; case does not count");
                bad.push(FieldError::new(path("name"), why, "leave one out"));
            }
            let most = max.map_or(MOST_MEMBERS, u64::from);
            if u64::from(*min) > most || most > MOST_MEMBERS {
                let why = format!("min {min} and max {most} leave no number up to {MOST_MEMBERS}");
                bad.push(FieldError::new(path("max"), why, "correct them"));
            } else if !(u64::from(*min)..=most).contains(&u64::from(*replicas)) {
                let why = format!("{replicas} is not between min {min} and max {most}");
                bad.push(FieldError::new(path("replicas"), why, "correct it"));
            }
        }
    }

    fn check_variables(&self, path: &str, all: &[EnvTemplate], bad: &mut Vec<FieldError>) {
        let mut names = BTreeSet::new();
        for (n, one) in all.iter().enumerate() {
            let mut wrong = |field: &str, why: String, fix: &str| {
                bad.push(FieldError::new(format!("{path}[{n}].{field}"), why, fix));
            };
            if !is_variable(&one.name) {
                let why = format!("{:?} is no name of a variable", one.name);
                wrong("name", why, "write letters, digits and _, not a digit first");
            }
            if !names.insert(&one.name) {
                wrong("name", format!("{} is there twice", one.name), "leave one out");
            }
            if let Some((why, fix)) = one.only_with.as_ref().and_then(|name| self.missing(name)) {
                wrong("onlyWith", why, &fix);
            }
            if one.value.len() > LONGEST_TEMPLATE || one.value.contains('\0') {
                let why = format!("it has a NUL, or more than {LONGEST_TEMPLATE} bytes");
                wrong("value", why, "shorten it");
                continue;
            }
            match TemplatePart::parse(&one.value) {
                Err(why) => wrong("value", why, ""),
                Ok(parts) => {
                    let named = parts.iter().filter_map(TemplatePart::names);
                    for (why, fix) in named.filter_map(|name| self.missing(name)) {
                        wrong("value", why, &fix);
                    }
                    let is_list = |part: &&TemplatePart| matches!(part, TemplatePart::All { .. });
                    if parts.iter().filter(is_list).count() > MOST_LISTS {
                        let why = format!("it has more than {MOST_LISTS} lists of members");
                        wrong("value", why, "divide it into several variables");
                    }
                    if self.port.is_none() && parts.iter().any(TemplatePart::has_port) {
                        let why = "it names a port, and members of the type have none".to_owned();
                        wrong("value", why, "write spec.port, or use a host");
                    }
                }
            }
        }
    }

    /// Why a replica type cannot be named, and what to do about it.
    fn missing(&self, name: &str) -> Option<(String, String)> {
        if self.replica_types.iter().any(|one| one.name == name) {
            return None;
        }
        let known: Vec<&str> = self.replica_types.iter().map(|one| one.name.as_str()).collect();
        let why = format!("there is no replica type {name:?}");
        Some((why, format!("write one of {}", known.join(", "))))
    }
}
