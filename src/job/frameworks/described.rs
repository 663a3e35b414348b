//! Kinds that a record describes (decision 42): environment from texts, success by a rule.
//!
//! The variables of a member are made of the same parts as its files of peers, so both have the same values.

use std::sync::Arc;

use super::{
    Cluster, FrameworkOutcome, Operator, TaskCount, TaskCounts, Variable, all_succeeded, decided,
    everywhere, outcome,
};
use crate::job::machine::PhaseDecision;
use rcfarm_api::job::job_type::{EnvTemplate, EnvValue, JobType, SuccessWhen, TemplatePart};
use rcfarm_api::job::peers::{PeerAddress, PeersRecord};
use rcfarm_api::job::spec::{JobSpec, JobTask, Slot};
use rcfarm_api::job::status::JobReason;
use rcfarm_api::manifest::{PeerPart, PeersStanza};

pub(super) struct Described;

impl Operator for Described {
    fn listens(&self, job: &JobSpec, task: &JobTask) -> Option<u16> {
        let spec = &job.job_type.as_ref()?.spec;
        let port = spec.port.as_ref()?;
        Some(task.template.port(&spec.container, &port.name).unwrap_or(port.number))
    }

    /// The members whose ports any variable names.
    fn listeners(&self, job: &JobSpec, task: &JobTask) -> u32 {
        let named = job.tasks.iter().flat_map(|of| {
            let parts = templates(job, &of.name).into_iter().flat_map(|(_, parts)| parts);
            parts.filter(TemplatePart::has_port).map(|part| match part {
                TemplatePart::Own(_) if of.name == task.name => task.replicas,
                TemplatePart::All { replica_type, .. } if replica_type == task.name => {
                    task.replicas
                }
                TemplatePart::One { replica_type, index, .. } if replica_type == task.name => {
                    index + 1
                }
                _ => 0,
            })
        });
        named.max().unwrap_or_default().min(task.replicas)
    }

    fn is_master(&self, job: &JobSpec, slot: &Slot) -> bool {
        let replica_type = job.job_type.as_ref().and_then(|one| one.replica_type(&slot.task));
        replica_type.is_some_and(|one| one.master)
    }

    fn environment(&self, cluster: &Cluster<'_>, slot: &Slot) -> Vec<Variable> {
        let stanza = variables(cluster.job, slot);
        let values = stanza.values(&addresses(cluster, &stanza));
        values.into_iter().map(|(name, value)| everywhere(name, value)).collect()
    }

    fn peers(&self, job: &JobSpec, slot: &Slot) -> PeersStanza {
        if job.replicas() <= 1 {
            return PeersStanza::default();
        }
        let mut stanza = variables(job, slot);
        stanza.variables.retain(|_, parts| parts.iter().any(|part| part.task().is_some()));
        stanza
    }

    /// The members that any variable names by their index.
    fn meets_at(&self, job: &JobSpec) -> Vec<Slot> {
        let parts = job.tasks.iter().flat_map(|task| templates(job, &task.name));
        let named = parts.flat_map(|(_, parts)| parts).filter_map(|part| match part {
            TemplatePart::One { replica_type, index, .. } => Some(Slot::new(&replica_type, index)),
            _ => None,
        });
        let mut slots: Vec<Slot> = named.collect();
        slots.sort();
        slots.dedup();
        slots
    }

    fn outcome(&self, job: &JobSpec, counts: &TaskCounts<'_>) -> FrameworkOutcome {
        let deciding = job.job_type.as_ref().and_then(|of| Some((of, deciding(job, of)?)));
        let Some((job_type, name)) = deciding else {
            let why = "it has no members whose end decides";
            return outcome(PhaseDecision::Short, JobReason::NoMembers, why);
        };
        let may_fail = job_type.spec.replica_types.iter().filter(|one| one.may_fail);
        let tolerated: Vec<&str> = may_fail.map(|one| one.name.as_str()).collect();
        decided(counts, name, |count| succeeded(job_type, name, count), &tolerated)
    }
}

/// The replica type whose members decide.
fn deciding<'j>(job: &JobSpec, job_type: &'j Arc<JobType>) -> Option<&'j str> {
    job_type.deciding().find(|name| job.task(name).is_some_and(|task| task.replicas > 0))
}

fn succeeded(job_type: &JobType, name: &str, count: &TaskCount) -> Option<(JobReason, String)> {
    let is_master = job_type.replica_type(name).is_some_and(|one| one.master);
    let reason = if is_master { JobReason::LeaderSucceeded } else { JobReason::EnoughSucceeded };
    let (is_done, who) = match job_type.spec.success.when {
        SuccessWhen::All if is_master => (all_succeeded(count), name.to_owned()),
        SuccessWhen::All => (all_succeeded(count), format!("each {name}")),
        SuccessWhen::First => (count.first_succeeded, format!("{name} 0")),
        SuccessWhen::Any => (count.members.succeeded > 0, format!("one {name}")),
    };
    is_done.then(|| (reason, format!("{who} has succeeded")))
}

/// The variables of a replica type that a job has, as written, with their parts. Those that name a type or a member that
/// the job lacks are left out.
fn templates<'j>(job: &'j JobSpec, task: &str) -> Vec<(&'j EnvTemplate, Vec<TemplatePart>)> {
    let Some(job_type) = &job.job_type else { return Vec::new() };
    let has = |part: &TemplatePart| {
        let Some(replica_type) = part.names() else { return true };
        let index = match part {
            TemplatePart::One { index, .. } => *index,
            _ => 0,
        };
        job.task(replica_type).is_some_and(|task| index < task.replicas)
    };
    let is_wanted = |one: &&EnvTemplate| {
        one.only_with.as_ref().is_none_or(|replica_type| job.task(replica_type).is_some())
    };
    let all = job_type.environment(task).into_iter().filter(is_wanted);
    let parsed = all.filter_map(|one| Some((one, TemplatePart::parse(&one.value).ok()?)));
    parsed.filter(|(_, parts)| parts.iter().all(has)).collect()
}

/// All variables of a member.
fn variables(job: &JobSpec, slot: &Slot) -> PeersStanza {
    let part = |part| match part {
        TemplatePart::Text(text) => PeerPart::Text(text),
        TemplatePart::Value(value) => PeerPart::Text(value_of(job, slot, &value)),
        TemplatePart::Own(form) => PeerPart::one(&slot.task, slot.index, form),
        TemplatePart::One { replica_type, index, form } => {
            PeerPart::one(&replica_type, index, form)
        }
        TemplatePart::All { replica_type, form } => PeerPart::all(&replica_type, form),
    };
    let all = templates(job, &slot.task).into_iter();
    let variables =
        all.map(|(one, parts)| (one.name.clone(), parts.into_iter().map(part).collect()));
    PeersStanza { variables: variables.collect(), ..PeersStanza::default() }
}

fn value_of(job: &JobSpec, slot: &Slot, value: &EnvValue) -> String {
    let replicas = |name: &str| job.task(name).map_or(0, |task| task.replicas);
    let id = job.job_type.as_ref().map(|job_type| &job_type.job);
    match value {
        EnvValue::Job => id.map(|id| id.name.to_string()).unwrap_or_default(),
        EnvValue::Namespace => id.map(|id| id.namespace.to_string()).unwrap_or_default(),
        EnvValue::Type => slot.task.to_ascii_lowercase(),
        EnvValue::Index => slot.index.to_string(),
        EnvValue::Rank => {
            let before = job.tasks.iter().take_while(|task| task.name != slot.task);
            let before: u32 = before.map(|task| task.replicas).sum();
            (before + slot.index).to_string()
        }
        EnvValue::WorldSize => job.replicas().to_string(),
        EnvValue::Replicas(of) => replicas(of.as_ref().unwrap_or(&slot.task)).to_string(),
    }
}

/// Where the members are that these variables name.
fn addresses(cluster: &Cluster<'_>, stanza: &PeersStanza) -> PeersRecord {
    let mut record = PeersRecord::default();
    for part in stanza.variables.values().flatten() {
        let Some(task) = part.task().and_then(|name| cluster.job.task(name)) else { continue };
        let named = match part {
            PeerPart::One { index, .. } => *index..index + 1,
            _ => 0..task.replicas,
        };
        let port = Described.listens(cluster.job, task);
        let members = record.tasks.entry(task.name.clone()).or_default();
        members.resize(members.len().max(named.end as usize), None);
        for index in named {
            let peer = cluster.peer(&task.name, index);
            let port = port.map(|port| peer.port(port));
            members[index as usize] =
                (!peer.host.is_empty()).then(|| PeerAddress { host: peer.host.clone(), port });
        }
    }
    record
}
