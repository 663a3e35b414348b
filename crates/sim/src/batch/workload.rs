//! People: they submit jobs, ask things of them, open and close queues, and write what cannot be read.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use crate::checker::{Checker, SimActor};
use crate::process::WallClock;
use rcfarm_api::Stored;
use rcfarm_api::command::{Command, CommandAction, Target};
use rcfarm_api::ids::{Namespaced, QueueName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::key;
use rcfarm_emulator::Embedded;
use rcfarm_store::time::{Clock, IdSource};
use rcfarm_store::{DeleteMode, Entry, Key, PutMode, Query, Reader, Store};

/// What jobs are like. The name of a job begins with its kind's.
pub const KINDS: [&str; 13] = [
    "one", "gang", "steps", "pods", "tf", "torch", "mpi", "doomed", "elastic", "plain", "evicted",
    "endless", "wide",
];
/// The queues: `strict` and `loose` below `top`, and `default`.
pub const QUEUES: [&str; 4] = ["top", "strict", "loose", "default"];

/// See the module.
pub struct Workload {
    consul: Embedded,
    checker: Arc<Checker>,
    clock: Arc<WallClock>,
    ids: IdSource,
    /// Commands that were given.
    given: Mutex<usize>,
}

/// The name of a job.
#[must_use]
pub fn job_id(kind: usize, n: usize) -> Namespaced {
    format!("team/{}-{n}", KINDS[kind % KINDS.len()]).parse().expect("a job's name")
}

fn task(name: &str, replicas: u32, container: &str) -> Value {
    json!({"name": name, "replicas": replicas, "template": template(container)})
}

fn template(container: &str) -> Value {
    json!({"spec": {"restartPolicy": "Never", "containers": [
        {"name": container, "command": ["true"], "resources": {"requests": {"cpu": 1}}},
    ]}})
}

fn member(replicas: u32, restart: &str, container: &str) -> Value {
    json!({"replicas": replicas, "restartPolicy": restart, "template": template(container)})
}

/// The document of a job.
#[must_use]
pub fn document(kind: usize, n: usize) -> Value {
    let kind = KINDS[kind % KINDS.len()];
    let queue = ["strict", "loose", "default"][n % 3];
    let delay = json!({"first": "1s", "longest": "4s"});
    let on = |event: &str, action: &str| json!([{"event": event, "action": action}]);
    let policy = |more: Value| {
        let mut policy = json!({"schedulingPolicy": {"queue": queue}});
        policy.as_object_mut().zip(more.as_object()).into_iter().for_each(|(policy, more)| {
            policy.extend(more.clone());
        });
        policy
    };
    let mut spec = match kind {
        "gang" => json!({
            "tasks": [task("w", 4, "c")], "minAvailable": 4, "maxRetry": 4,
            "policies": on("PodFailed", "RestartJob"), "priorityClassName": (n / 3 % 3).to_string(),
        }),
        "steps" => {
            let mut first = task("first", 1, "c");
            first["minAvailable"] = json!(1);
            let mut then = task("then", 2, "c");
            then["dependsOn"] = json!({"name": ["first"]});
            json!({"tasks": [first, then], "maxRetry": 3, "policies": on("PodFailed", "RestartTask")})
        }
        "pods" => json!({
            "tasks": [task("w", 3, "c")], "maxRetry": 8, "ttlSecondsAfterFinished": 5,
            "policies": on("PodFailed", "RestartPod"),
        }),
        "tf" => json!({
            "tfReplicaSpecs": {
                "PS": member(1, "ExitCode", "tensorflow"),
                "Worker": member(2, "ExitCode", "tensorflow"),
            },
            "runPolicy": policy(json!({"backoffLimit": 3, "cleanPodPolicy": "Running"})),
        }),
        "torch" => json!({
            "pytorchReplicaSpecs": {
                "Master": member(1, "OnFailure", "pytorch"),
                "Worker": member(2, "OnFailure", "pytorch"),
            },
            "runPolicy": policy(json!({"backoffLimit": 5, "cleanPodPolicy": "All"})),
        }),
        "mpi" => json!({
            "mpiReplicaSpecs": {
                "Launcher": member(1, "OnFailure", "mpi"),
                "Worker": member(2, "Never", "mpi"),
            },
            "runPolicy": policy(json!({"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 8})),
        }),
        "doomed" => json!({
            "tasks": [task("w", 2, "c")], "maxRetry": 2, "policies": on("PodFailed", "RestartJob"),
        }),
        "elastic" => json!({
            "tasks": [task("w", 4, "c")], "minAvailable": 2, "maxRetry": 5,
            "policies": on("PodFailed", "RestartPod"),
        }),
        "evicted" => json!({
            "tasks": [task("w", 2, "c")], "maxRetry": 3,
            "policies": [{"event": "PodEvicted", "action": "RestartJob"},
                {"event": "PodFailed", "action": "AbortJob", "timeout": "2s"}],
        }),
        // With little room in a transaction it starts in a batched start of several.
        "wide" => {
            let mut many = task("w", 9, "c");
            many["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
                json!("300m");
            json!({"tasks": [many], "minAvailable": 9, "maxRetry": 4,
                "policies": on("PodFailed", "RestartJob")})
        }
        "endless" => json!({"tasks": [task("w", 1, "c")], "activeDeadlineSeconds": 9}),
        "plain" => json!({"tasks": [task("a", 2, "c"), task("b", 1, "c")], "minAvailable": 1}),
        _ => json!({"tasks": [task("w", 1, "c")], "maxRetry": 3,
            "policies": on("PodFailed", "RestartJob")}),
    };
    let (api, word) = match kind {
        "tf" => ("kubeflow.org/v1", "TFJob"),
        "torch" => ("kubeflow.org/v1", "PyTorchJob"),
        "mpi" => ("kubeflow.org/v1", "MPIJob"),
        _ => ("batch.volcano.sh/v1alpha1", "Job"),
    };
    if word == "Job" {
        spec["queue"] = json!(queue);
        spec["restartDelay"] = delay;
    } else {
        spec["runPolicy"]["restartDelay"] = delay;
    }
    json!({"apiVersion": api, "kind": word, "spec": spec})
}

/// What a queue is like when it is first written.
#[must_use]
pub fn queue(name: &str) -> Value {
    let spec = match name {
        "top" => json!({"capability": {"cpu": 8}}),
        "strict" => json!({"parent": "top", "dequeueStrategy": "fifo", "priority": 1,
            "guarantee": {"resource": {"cpu": 2}}}),
        "loose" => json!({"parent": "top", "capability": {"cpu": 5}}),
        _ => json!({}),
    };
    json!({"spec": spec})
}

fn queue_key(name: &str) -> Key {
    key::queue(&name.parse::<QueueName>().expect("a queue's name"))
}

impl Workload {
    /// People with a clock of their own.
    #[must_use]
    pub fn new(
        consul: Embedded,
        checker: Arc<Checker>,
        clock: Arc<WallClock>,
        ids: IdSource,
    ) -> Workload {
        Workload { consul, checker, clock, ids, given: Mutex::default() }
    }

    fn get(&self, key: &Key) -> Option<Entry> {
        let got = self.checker.now(SimActor::User, self.consul.get(key, Query::PLAIN));
        got.ok().and_then(|answer| answer.value)
    }

    /// Writes a value.
    pub fn put(&self, key: &Key, value: impl Into<bytes::Bytes>) {
        let put = self.consul.put(key, value.into(), 0, PutMode::Set);
        let _ = self.checker.now(SimActor::User, put);
    }

    fn delete(&self, key: &Key) {
        let delete = self.consul.delete(key, DeleteMode::Always);
        let _ = self.checker.now(SimActor::User, delete);
    }

    /// Writes the scheduler and the queues.
    pub fn set_up(&self) {
        let name = "default".parse().expect("a scheduler's name");
        let spec = json!({"spec": {"scheduleTimeoutSeconds": 20, "backoffBaseSeconds": 2,
            "backoffMaxSeconds": 8}});
        self.put(&key::scheduler(&name), spec.to_string());
        QUEUES.iter().for_each(|name| self.put(&queue_key(name), queue(name).to_string()));
    }

    /// Submits a job, unless one of its name is there.
    pub fn submit(&self, id: &Namespaced, document: &Value) {
        if self.get(&key::job(id)).is_none() {
            self.put(&key::job(id), document.to_string());
        }
    }

    fn document(&self, id: &Namespaced) -> Option<Value> {
        serde_json::from_slice(&self.get(&key::job(id))?.value).ok()
    }

    /// Changes a job's document, if it can be read.
    fn edit(&self, id: &Namespaced, how: impl FnOnce(&mut Value)) {
        let Some(mut document) = self.document(id) else { return };
        how(&mut document);
        self.put(&key::job(id), document.to_string());
    }

    /// Suspends a job in its record, or ends that.
    pub fn suspend(&self, id: &Namespaced, suspend: bool) {
        self.edit(id, |document| match document["kind"] == "Job" {
            true => document["spec"]["suspend"] = json!(suspend),
            false => document["spec"]["runPolicy"]["suspend"] = json!(suspend),
        });
    }

    /// Wants so many members of the first task.
    pub fn scale(&self, id: &Namespaced, count: usize) {
        self.edit(id, |document| {
            if let Some(task) = document.pointer_mut("/spec/tasks/0") {
                task["replicas"] = json!(count.max(1));
            }
        });
    }

    /// Deletes a job as `rcfarm job delete` does.
    pub fn delete_job(&self, id: &Namespaced) {
        self.edit(id, |document| {
            document["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
    }

    /// Deletes a job's record by hand.
    pub fn drop_job(&self, id: &Namespaced) {
        self.delete(&key::job(id));
    }

    /// Spoils a job's record.
    pub fn malform(&self, id: &Namespaced, how: usize) {
        match how {
            0 if self.get(&key::job(id)).is_some() => self.put(&key::job(id), "{"),
            1 => self.edit(id, |document| document["spec"]["teh"] = json!(1)),
            // A circle.
            _ => self.edit(id, |document| {
                if let Some(task) = document.pointer_mut("/spec/tasks/0") {
                    task["dependsOn"] = json!({"name": [task["name"].clone()]});
                }
            }),
        }
    }

    /// Puts a record right that was changed, unless it is being deleted.
    pub fn mend(&self, id: &Namespaced, document: &Value) {
        let Some(entry) = self.get(&key::job(id)) else { return };
        let stands: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        if stands.get("metadata").is_none() && stands != *document {
            self.put(&key::job(id), document.to_string());
        }
    }

    /// Asks something of a job; by name and index of a member where `of` says so.
    pub fn command(&self, id: &Namespaced, action: CommandAction, of: Option<(&str, Option<u32>)>) {
        let uid = self.get(&key::job(id)).map(|entry| entry.create_index);
        // Some name the very job, some do not.
        let uid = uid.filter(|_| self.ids.below(2) == 0);
        let (task, index) = of.map_or((None, None), |(task, n)| (Some(task.to_owned()), n));
        self.give(action, Target::Job { job: id.clone(), uid, task, index });
    }

    /// Opens or closes a queue by a command.
    pub fn command_queue(&self, name: &str, open: bool) {
        let action = if open { CommandAction::OpenQueue } else { CommandAction::CloseQueue };
        self.give(action, Target::Queue { queue: name.parse().expect("a queue's name") });
    }

    fn give(&self, action: CommandAction, target: Target) {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let (reason, issued_by) = (String::new(), "sim".to_owned());
        let command = Command { action, target, reason, issued_by };
        let id = self.ids.ordered_uuid(self.clock.wall());
        self.put(&key::command(id), command.encode());
    }

    /// Changes a queue's record.
    pub fn edit_queue(&self, name: &str, how: impl FnOnce(&mut Value)) {
        let Some(entry) = self.get(&queue_key(name)) else { return };
        let mut record: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        if !record.is_object() {
            record = queue(name);
        }
        how(&mut record["spec"]);
        self.put(&queue_key(name), record.to_string());
    }

    /// Spoils a queue's record.
    pub fn malform_queue(&self, name: &str) {
        self.put(&queue_key(name), r#"{"spec":{"weight":0}}"#);
    }

    /// Writes a queue as it was at first, and open.
    pub fn mend_queue(&self, name: &str) {
        self.put(&queue_key(name), queue(name).to_string());
    }

    /// Takes the intent of a job's pod away, as if evicted by hand.
    pub fn drop_intent(&self, id: &Namespaced) {
        let place = self.checker.model(|model, _| {
            model
                .intents
                .iter()
                .find(|(_, (identity, _))| identity.job == *id)
                .map(|(at, _)| at.clone())
        });
        if let Some(place) = place {
            self.delete(&key::intent(&place.node, &place.pod));
        }
    }

    /// Leaves keys where they do not belong.
    pub fn litter(&self) {
        for prefix in [key::jobs(), key::commands(), key::pod_groups(), key::queues()] {
            if let Some(key) = prefix.key_of("litter") {
                self.put(&key, "?");
            }
        }
    }

    /// Has jobs go on that somebody stopped: nothing shall be waited for any more.
    pub fn resume_all(&self) {
        let stopped: Vec<Namespaced> = self.checker.model(|model, _| {
            let stopped = model.statuses.iter().filter(|(id, status)| {
                let of_this = model.jobs.get(*id).is_some_and(|job| job.uid == status.uid);
                // Those that their record suspended go on by themselves.
                status.state.phase == JobPhase::Aborted && of_this && !status.suspended
            });
            let asked = |id: &Namespaced| {
                model
                    .commands
                    .values()
                    .any(|command| matches!(&command.target, Target::Job { job, .. } if job == id))
            };
            stopped.map(|(id, _)| id.clone()).filter(|id| !asked(id)).collect()
        });
        for id in stopped {
            self.command(&id, CommandAction::ResumeJob, None);
        }
    }
}
