//! Records of a hostile tenant: huge, deep, overflowing, self-referring and colliding ones of every kind that a tenant
//! may write.
//!
//! They stay until the world ends. Whatever else must come about must come about beside them (invariant 30).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::documents::{document, pod_id, record};
use super::users::Workload;
use rcfarm_api::Stored;
use rcfarm_api::ids::{Namespaced, QueueName, RcId};
use rcfarm_api::key;
use rcfarm_api::rc::spec::RcSpec;

/// Namespace of the hostile tenant. Nothing of it needs to settle.
pub const NAMESPACE: &str = "rival";
/// Bytes of a huge text: with the rest of its record just below Consul's limit of a value.
pub(super) const HUGE: usize = 400_000;
/// Levels of a deep document.
const DEEP: usize = 20_000;

/// A kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostileKind {
    Rc,
    RcLabels,
    Job,
    PodGroup,
    Queue,
    Command,
    Bell,
    Cron,
    Flow,
    Template,
    PriorityClass,
    /// A group that asks for cells.
    Cells,
    /// A job with annotations that wait for others, make an array, or carry a payload.
    Annotations,
}

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nature {
    /// Nearly as large as a value may be.
    Huge,
    /// Nested more deeply than a parser's stack allows.
    Deep,
    /// Its numbers are the largest of their types.
    Overflowing,
    /// It names itself, or texts that double with each step.
    SelfReferring,
    /// It has a name that another tenant's record has.
    Colliding,
    /// It asks for more members than one value can list.
    Many,
}

/// One record of the hostile tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hostile {
    pub kind: HostileKind,
    pub nature: Nature,
    /// Number of the other tenant's record that it collides with.
    pub of: usize,
}

pub const KINDS: [HostileKind; 7] = [
    HostileKind::Rc,
    HostileKind::RcLabels,
    HostileKind::Job,
    HostileKind::PodGroup,
    HostileKind::Queue,
    HostileKind::Command,
    HostileKind::Bell,
];
/// Kinds of records that make or order others. Worlds draw them apart from the first.
pub const OWNER_KINDS: [HostileKind; 6] = [
    HostileKind::Cron,
    HostileKind::Flow,
    HostileKind::Template,
    HostileKind::PriorityClass,
    HostileKind::Cells,
    HostileKind::Annotations,
];
pub const NATURES: [Nature; 6] = [
    Nature::Huge,
    Nature::Deep,
    Nature::Overflowing,
    Nature::SelfReferring,
    Nature::Colliding,
    Nature::Many,
];

/// Whether a job or a group belongs to the hostile tenant.
#[must_use]
pub fn is_hostile(id: &Namespaced) -> bool {
    id.namespace.as_str() == NAMESPACE
}

fn hostile_rc(nature: Nature) -> RcId {
    RcId(Uuid::from_u128(0xbad0_0000_0000_4000_8000_0000_0000_0000 + nature as u128))
}

pub(super) fn deep() -> String {
    format!("{}1{}", "[".repeat(DEEP), "]".repeat(DEEP))
}

/// Variables of which each is twice the one before.
pub(super) fn doubling(reference: impl Fn(usize) -> String) -> Map<String, Value> {
    let first = ("A00".to_owned(), json!("0123456789abcdef"));
    let then = (1..34).map(|n| (format!("A{n:02}"), json!(reference(n - 1).repeat(2))));
    std::iter::once(first).chain(then).collect()
}

impl Workload {
    /// Writes a hostile record. `jobs` are the other tenant's, each by kind and number.
    pub fn write_hostile(&self, hostile: Hostile, jobs: &[(String, usize)]) {
        let Hostile { kind, nature, of } = hostile;
        match kind {
            HostileKind::Rc => self.hostile_rc(nature, of % 3),
            HostileKind::RcLabels => self.hostile_labels(nature),
            HostileKind::Job => {
                let other = jobs.get(of % jobs.len().max(1));
                self.hostile_job(nature, other.map_or(("gang", 0), |(kind, n)| (kind, *n)));
            }
            HostileKind::PodGroup => self.hostile_group(nature),
            HostileKind::Queue => self.hostile_queue(nature),
            HostileKind::Command => self.hostile_command(nature),
            HostileKind::Bell => {
                let value = if nature == Nature::Huge { "x".repeat(HUGE) } else { deep() };
                self.put(&key::rc_bell(hostile_rc(nature)), value);
            }
            HostileKind::Cron
            | HostileKind::Flow
            | HostileKind::Template
            | HostileKind::PriorityClass
            | HostileKind::Cells
            | HostileKind::Annotations => self.write_hostile_owner(kind, nature, of),
        }
    }

    fn hostile_rc(&self, nature: Nature, of: usize) {
        let mut record = record(of);
        record.id = hostile_rc(nature);
        let id = if nature == Nature::Colliding {
            pod_id(of).to_string()
        } else {
            format!("rival-{}", nature as u8)
        };
        let launchable = match nature {
            Nature::Huge => format!("launchable_type: \"{}\"", "x".repeat(HUGE)),
            Nature::Overflowing => {
                "launchable_type: process, command: [serve], restart: {policy: always, \
                 backoff: 1s, max_backoff: 10000000000000000000s}"
                    .to_owned()
            }
            Nature::SelfReferring => {
                let env = Value::Object(doubling(|n| format!("${{A{n:02}}}")));
                format!("launchable_type: process, command: [serve], env: {env}")
            }
            _ => "launchable_type: process, command: [serve]".to_owned(),
        };
        let more =
            if nature == Nature::Deep { format!("config: {}\n", deep()) } else { String::new() };
        record.manifest = format!("id: {id}\n{more}launchables:\n  app: {{{launchable}}}\n");
        record.replicas_desired = match nature {
            Nature::Overflowing | Nature::Many => i64::MAX,
            _ => 1,
        };
        if RcSpec::decode(record.id, &record.encode()).is_err() {
            // The commands refuse it, so it has no audit record either.
            return self.put(&key::rc(record.id), record.encode());
        }
        let mut created = self.change(of, None, Some(record.replicas_desired));
        created.replication_controller_id = record.id;
        created.pod_id = id.parse().ok();
        self.create(&record, created);
    }

    fn hostile_labels(&self, nature: Nature) {
        let value = match nature {
            Nature::Huge => json!({"tier": "x".repeat(HUGE)}).to_string(),
            Nature::Deep => deep(),
            Nature::Overflowing => json!({key::MIN_HEALTH_LABEL: u64::MAX.to_string()}).to_string(),
            _ => json!((0..5000).map(|n| (format!("l{n}"), json!("x"))).collect::<Map<_, _>>())
                .to_string(),
        };
        self.put(&key::rc_labels(hostile_rc(nature)), value);
    }

    fn hostile_job(&self, nature: Nature, of: (&str, usize)) {
        let name = match nature {
            Nature::Colliding => format!("{NAMESPACE}/{}-{}", of.0, of.1),
            _ => format!("{NAMESPACE}/hostile-{}", nature as u8),
        };
        let id: Namespaced = name.parse().expect("a job's name");
        let mut job = document("one", 2);
        let spec = &mut job["spec"];
        let container = "/tasks/0/template/spec/containers/0";
        match nature {
            Nature::Huge => {
                spec["tasks"][0]["template"]["metadata"] =
                    json!({"annotations": {"huge": "x".repeat(HUGE)}})
            }
            Nature::Deep => {
                let text =
                    job.to_string().replace("\"maxRetry\":3", &format!("\"maxRetry\":{}", deep()));
                return self.put(&key::job(&id), text);
            }
            Nature::Overflowing => {
                spec["tasks"][0]["replicas"] = json!(u32::MAX);
                spec["activeDeadlineSeconds"] = json!(i64::MAX);
                spec["ttlSecondsAfterFinished"] = json!(i32::MAX);
                spec.pointer_mut(container).expect("there")["resources"] =
                    json!({"requests": {"cpu": "9999999999999999999E"}});
            }
            Nature::SelfReferring => {
                let env = doubling(|n| format!("$(A{n:02})"));
                let env: Vec<Value> = env
                    .into_iter()
                    .map(|(name, value)| json!({"name": name, "value": value}))
                    .collect();
                spec.pointer_mut(container).expect("there")["env"] = json!(env);
            }
            Nature::Many => {
                // So many members that their placement would be larger than a value.
                spec["tasks"][0]["replicas"] = json!(100_000);
                spec["tasks"][0]["minAvailable"] = json!(1);
                let container = spec.pointer_mut(container).expect("there");
                container.as_object_mut().expect("an object").remove("resources");
            }
            Nature::Colliding => job = document(of.0, of.1),
        }
        self.put(&key::job(&id), job.to_string());
    }

    fn hostile_group(&self, nature: Nature) {
        let id: Namespaced =
            format!("{NAMESPACE}/group-{}", nature as u8).parse().expect("a group's name");
        let value = match nature {
            Nature::Huge => {
                json!({"spec": {"queue": "default", "priorityClassName": "x".repeat(HUGE)}})
            }
            Nature::Deep => return self.put(&key::pod_group(&id), deep()),
            Nature::Overflowing => json!({"spec": {"queue": "strict", "minMember": u32::MAX,
                "priority": i32::MAX, "tasks": [{"name": "w", "replicas": u32::MAX}]}}),
            _ => json!({"spec": {"queue": "rival-3", "minMember": 100_000,
                "minTaskMember": {"none": 7}, "tasks": [{"name": "w", "replicas": 100_000}]}}),
        };
        self.put(&key::pod_group(&id), value.to_string());
    }

    fn hostile_queue(&self, nature: Nature) {
        let name = format!("rival-{}", nature as u8);
        let value = match nature {
            Nature::Huge => json!({"spec": {"huge": "x".repeat(HUGE)}}).to_string(),
            Nature::Deep => deep(),
            Nature::Overflowing => json!({"spec": {"weight": u32::MAX, "priority": i32::MAX,
                "capability": {"cpu": "9999999999999999999E"}}})
            .to_string(),
            Nature::SelfReferring => json!({"spec": {"parent": name}}).to_string(),
            _ => json!({"spec": {"parent": "rival-3"}}).to_string(),
        };
        let name: QueueName = name.parse().expect("a queue's name");
        self.put(&key::queue(&name), value);
    }

    fn hostile_command(&self, nature: Nature) {
        let target =
            json!({"kind": "Job", "job": format!("{NAMESPACE}/hostile-1"), "index": u32::MAX});
        let value = match nature {
            Nature::Huge => {
                json!({"action": "AbortJob", "target": target, "reason": "x".repeat(HUGE)})
                    .to_string()
            }
            Nature::Deep => deep(),
            _ => json!({"action": "Nonsense", "target": target}).to_string(),
        };
        self.put(&key::command(self.ids.uuid()), value);
    }
}
