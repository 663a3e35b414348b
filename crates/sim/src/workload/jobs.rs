//! Writes of users to jobs, commands and queues.

use serde_json::{Value, json};

use super::documents::{QUEUES, queue};
use super::users::Workload;
use rcfarm_api::Stored;
use rcfarm_api::command::{Command, CommandAction, Target};
use rcfarm_api::ids::{Namespaced, QueueName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::key;
use rcfarm_store::Key;
use rcfarm_store::time::Clock;

fn queue_key(name: &str) -> Key {
    key::queue(&name.parse::<QueueName>().expect("a queue's name"))
}

impl Workload {
    /// Writes the scheduler and the queues.
    pub fn set_up_queues(&self) {
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

    /// Changes a job's document if it is valid.
    fn edit_job(&self, id: &Namespaced, how: impl FnOnce(&mut Value)) {
        let Some(mut document) = self.document(id) else { return };
        how(&mut document);
        self.put(&key::job(id), document.to_string());
    }

    /// Suspends a job in its record, or resumes it.
    pub fn suspend_job(&self, id: &Namespaced, suspend: bool) {
        self.edit_job(id, |document| match document["kind"] == "Job" {
            true => document["spec"]["suspend"] = json!(suspend),
            false => document["spec"]["runPolicy"]["suspend"] = json!(suspend),
        });
    }

    /// Sets the number of members of the first task.
    pub fn scale_job(&self, id: &Namespaced, count: usize) {
        self.edit_job(id, |document| {
            if let Some(task) = document.pointer_mut("/spec/tasks/0") {
                task["replicas"] = json!(count.max(1));
            }
        });
    }

    /// Deletes a job as `rcfarm job delete` does.
    pub fn delete_job(&self, id: &Namespaced) {
        self.edit_job(id, |document| {
            document["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
    }

    /// Deletes a job's record by hand.
    pub fn drop_job(&self, id: &Namespaced) {
        self.delete(&key::job(id));
    }

    /// Writes a malformed job.
    pub fn malform_job(&self, id: &Namespaced, how: usize) {
        match how {
            0 if self.get(&key::job(id)).is_some() => self.put(&key::job(id), "{"),
            1 => self.edit_job(id, |document| document["spec"]["teh"] = json!(1)),
            // A cycle.
            _ => self.edit_job(id, |document| {
                if let Some(task) = document.pointer_mut("/spec/tasks/0") {
                    task["dependsOn"] = json!({"name": [task["name"].clone()]});
                }
            }),
        }
    }

    /// Repairs a changed record, unless it is being deleted.
    pub fn mend_job(&self, id: &Namespaced, document: &Value) {
        let Some(entry) = self.get(&key::job(id)) else { return };
        let stands: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let is_deleted = stands.pointer("/metadata/deletionTimestamp").is_some();
        if !is_deleted && stands != *document {
            self.put(&key::job(id), document.to_string());
        }
    }

    /// Sends a command to a job, or to a task or member as `of` says.
    pub fn command(&self, id: &Namespaced, action: CommandAction, of: Option<(&str, Option<u32>)>) {
        let uid = self.get(&key::job(id)).map(|entry| entry.create_index);
        // Some commands name the uid, some do not.
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
        let (reason, issued_by) = (String::new(), "sim".to_owned());
        let command = Command { action, target, reason, issued_by };
        let id = self.ids.ordered_uuid(self.clock.wall());
        let key = match &command.target {
            // As older command lines write it.
            Target::Job { .. } if id.as_u128().is_multiple_of(2) => key::command(id),
            Target::Job { job, .. } => key::job_command(&job.namespace, id),
            Target::Queue { .. } => key::command(id),
        };
        self.put(&key, command.encode());
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

    /// Writes a malformed queue.
    pub fn malform_queue(&self, name: &str) {
        self.put(&queue_key(name), r#"{"spec":{"weight":0}}"#);
    }

    /// Writes the original record of a queue, open.
    pub fn mend_queue(&self, name: &str) {
        self.put(&queue_key(name), queue(name).to_string());
    }

    /// Deletes the intent of a job's pod, as an eviction by hand.
    pub fn drop_job_intent(&self, id: &Namespaced) {
        let place = self.checker.look(|model, _| {
            let model = &model.jobs;
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

    /// Writes keys that do not belong there.
    pub fn litter_jobs(&self) {
        for prefix in [key::jobs(), key::commands(), key::pod_groups(), key::queues()] {
            if let Some(key) = prefix.key_of("litter") {
                self.put(&key, "?");
            }
        }
    }

    /// Resumes all stopped jobs.
    pub fn resume_all(&self) {
        let stopped: Vec<Namespaced> = self.checker.look(|model, _| {
            let model = &model.jobs;
            let stopped = model.statuses.iter().filter(|(id, status)| {
                let of_this = model.jobs.get(*id).is_some_and(|job| job.uid == status.uid);
                // Jobs that their record suspended resume by themselves.
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
