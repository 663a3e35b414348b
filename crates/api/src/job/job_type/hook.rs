//! The server that adds to the environment of a job (decision 43). Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{EnvTemplate, JobTypeSpec};
use crate::FieldError;

/// Longest time limit of an answer, in seconds.
const LONGEST_TIMEOUT: u32 = 30;
/// Longest address of a server, in bytes.
const LONGEST_URL: usize = 2048;

/// The field `hook` of a type's record, and of a job's copy of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum JobTypeHook {
    /// In the type's record: the server to ask.
    Server(HookServer),
    /// In a job's copy: whether it has answered. Its copy of the type does not say whom: who may write jobs must not choose whom the
    /// farm calls.
    Job(HookState),
}

/// A server that farms ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookServer {
    /// `http://` or `https://`, without a password: who applies jobs can read it.
    pub url: String,
    /// Time limit of an answer, in seconds.
    #[serde(default = "five")]
    pub timeout_seconds: u32,
}

fn five() -> u32 {
    5
}

/// Whether the server has answered for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookState {
    /// It has not answered yet; no pod of the job is made before.
    Pending,
    /// It has answered; the job's copy of the type has the answer in it.
    Answered,
}

/// The answer: variables, which replace those of the type that have the same name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HookAnswer {
    /// Variables of all members.
    pub environment: Vec<EnvTemplate>,
    /// Variables of the members of each replica type.
    pub replica_types: BTreeMap<String, Vec<EnvTemplate>>,
}

impl HookServer {
    pub(super) fn check(&self) -> Vec<FieldError> {
        let mut bad = Vec::new();
        let host = ["http://", "https://"].iter().find_map(|scheme| self.url.strip_prefix(scheme));
        let host = host.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
        let is_plain = self.url.bytes().all(|b| b.is_ascii_graphic());
        if host.is_none_or(str::is_empty) || self.url.len() > LONGEST_URL || !is_plain {
            let why = "it is no address of a server";
            bad.push(FieldError::new("hook.url", why, "write it as in http://host:port/path"));
        }
        if host.is_some_and(|host| host.contains('@')) {
            let why = "it has a user or a password, and who applies jobs can read it";
            bad.push(FieldError::new("hook.url", why, "leave them out"));
        }
        if !(1..=LONGEST_TIMEOUT).contains(&self.timeout_seconds) {
            let why = format!("{} is no time limit", self.timeout_seconds);
            let fix = format!("write 1 to {LONGEST_TIMEOUT} seconds");
            bad.push(FieldError::new("hook.timeoutSeconds", why, fix));
        }
        bad
    }
}

/// Puts variables among others, in place of those with the same name.
fn put(all: &mut Vec<EnvTemplate>, more: Vec<EnvTemplate>) {
    all.retain(|one| !more.iter().any(|other| other.name == one.name));
    all.extend(more);
}

impl JobTypeSpec {
    /// The copy that a new job gets.
    pub(super) fn of_new_job(&self) -> JobTypeSpec {
        let hook = self.hook.as_ref().map(|_| JobTypeHook::Job(HookState::Pending));
        JobTypeSpec { hook, ..self.clone() }
    }

    /// The type of a job with the answer of its hook.
    ///
    /// # Errors
    /// What is wrong with the answer, or with the type that it makes.
    pub fn answered(mut self, answer: HookAnswer) -> Result<JobTypeSpec, Vec<FieldError>> {
        let mut bad = Vec::new();
        put(&mut self.environment, answer.environment);
        for (name, more) in answer.replica_types {
            match self.replica_types.iter_mut().find(|one| one.name == name) {
                Some(one) => put(&mut one.environment, more),
                None => {
                    let why = "there is no such replica type";
                    bad.push(FieldError::new(format!("replicaTypes.{name}"), why, ""));
                }
            }
        }
        self.hook = Some(JobTypeHook::Job(HookState::Answered));
        bad.extend(self.check());
        if bad.is_empty() { Ok(self) } else { Err(bad) }
    }
}
