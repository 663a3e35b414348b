//! Writes of users to CronJobs, JobFlows and templates, and their documents.

use serde_json::{Value, json};

use super::users::Workload;
use rcfarm_api::command::CommandAction;
use rcfarm_api::ids::Namespaced;
use rcfarm_store::Key;

/// Kinds of JobFlows.
pub const FLOWS: [&str; 6] = ["line", "diamond", "rescue", "probed", "brief", "halted"];
pub const TEMPLATES: [&str; 2] = ["work", "short"];

/// The name of a JobFlow.
#[must_use]
pub fn flow_id(kind: &str, n: usize) -> Namespaced {
    format!("team/{kind}-{n}").parse().expect("a JobFlow's name")
}

/// The name of a template.
#[must_use]
pub fn template_id(n: usize) -> Namespaced {
    format!("team/{}", TEMPLATES[n]).parse().expect("a template's name")
}

/// The document of a template. Jobs of the second one are gone a minute after their end.
#[must_use]
pub fn template_document(n: usize) -> Value {
    let mut spec = json!({"queue": "default", "tasks": [{"name": "w", "replicas": 2,
        "template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "command": ["true"], "resources": {"requests": {"cpu": "300m"}}}]}}}]});
    if n == 1 {
        spec["ttlSecondsAfterFinished"] = json!(1);
    }
    json!({"apiVersion": "flow.volcano.sh/v1alpha1", "kind": "JobTemplate", "spec": spec})
}

/// The document of a JobFlow.
#[must_use]
pub fn flow_document(kind: &str) -> Value {
    let after = |targets: &[&str], how: &str| json!({"targets": targets, "type": how});
    let step = |name: &str, on: Value| {
        let mut step = json!({"name": name, "template": "work"});
        if !on.is_null() {
            step["dependsOn"] = on;
        }
        step
    };
    let none = Value::Null;
    let (mut steps, policies) = match kind {
        "diamond" => (
            vec![
                step("d", after(&["b", "c"], "afterany")),
                step("a", none),
                step("b", after(&["a"], "afterok")),
                step("c", after(&["a"], "afterok")),
            ],
            json!({"failurePolicy": "continue"}),
        ),
        "rescue" => (
            vec![
                step("a", none),
                step("b", after(&["a"], "afterok")),
                step("c", after(&["a"], "afternotok")),
                step("d", after(&["b", "c"], "afterany")),
            ],
            json!({}),
        ),
        "probed" => (
            vec![
                step("a", none),
                step(
                    "b",
                    json!({"targets": ["a"], "probe": {"taskStatusList": [
                    {"taskName": "w", "phase": "Running"}]}}),
                ),
                step("c", after(&["b"], "afterok")),
            ],
            json!({}),
        ),
        "brief" => (
            vec![step("a", none), step("b", after(&["a"], "afterok"))],
            json!({"jobRetainPolicy": "delete", "failurePolicy": "continue"}),
        ),
        "halted" => (
            vec![
                step("a", none.clone()),
                step("b", none),
                step("c", after(&["a"], "afterok")),
                step("d", after(&["a", "b"], "afterany")),
            ],
            json!({"failurePolicy": "stop"}),
        ),
        _ => (
            vec![
                step("a", none),
                step("b", after(&["a"], "afterok")),
                step("c", after(&["b"], "afterok")),
            ],
            json!({}),
        ),
    };
    for (n, step) in steps.iter_mut().enumerate() {
        if matches!(kind, "line" | "diamond") {
            step["retry"] = json!(2);
        }
        if matches!(kind, "line" | "brief") || n == 1 {
            step["template"] = json!("short");
        }
    }
    let mut spec = policies;
    spec["flows"] = json!(steps);
    json!({"apiVersion": "flow.volcano.sh/v1alpha1", "kind": "JobFlow", "spec": spec})
}

impl Workload {
    /// Writes a record, unless one of its name is there.
    pub fn create_record(&self, key: &Key, document: &Value) {
        if self.get(key).is_none() {
            self.put(key, document.to_string());
        }
    }

    fn edit(&self, key: &Key, how: impl FnOnce(&mut Value)) {
        let Some(entry) = self.get(key) else { return };
        let mut document: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        how(&mut document);
        self.put(key, document.to_string());
    }

    /// Suspends a CronJob, or resumes it.
    pub fn suspend_cron(&self, key: &Key, suspend: bool) {
        self.edit(key, |document| document["spec"]["suspend"] = json!(suspend));
    }

    /// Adds a field that no record has, or takes it away.
    pub fn malform(&self, key: &Key, is_bad: bool) {
        self.edit(key, |document| {
            let Some(spec) = document["spec"].as_object_mut() else { return };
            match is_bad {
                true => drop(spec.insert("teh".to_owned(), json!(1))),
                false => drop(spec.remove("teh")),
            }
        });
    }

    /// Marks a record as the commands do that delete it.
    pub fn mark_deleted(&self, key: &Key) {
        self.edit(key, |document| {
            document["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
    }

    /// Deletes a record by hand.
    pub fn drop_record(&self, key: &Key) {
        self.delete(key);
    }

    /// The `n`th of the jobs that records made and that are there.
    fn made_job(&self, n: usize) -> Option<Namespaced> {
        self.checker.look(|model, _| {
            let made = model.flows.made.iter();
            let there = made.filter(|(_, jobs)| jobs.last().is_some_and(|job| !job.gone));
            let there: Vec<&Namespaced> = there.map(|(id, _)| id).collect();
            (!there.is_empty()).then(|| there[n % there.len()].clone())
        })
    }

    /// Sends a command to a job that a record made.
    pub fn command_made_job(&self, n: usize, action: CommandAction) {
        if let Some(id) = self.made_job(n) {
            self.command(&id, action, Some(("w", Some(0))));
        }
    }

    /// Deletes a job that a record made, by a mark or by hand.
    pub fn remove_made_job(&self, n: usize, by_hand: bool) {
        match self.made_job(n) {
            Some(id) if by_hand => self.drop_job(&id),
            Some(id) => self.delete_job(&id),
            None => {}
        }
    }

    /// Deletes jobs of records that are gone: a record of the same name waits for their names.
    pub fn free_names(&self) {
        let orphans: Vec<Namespaced> = self.checker.look(|model, _| {
            let made = model.flows.made.iter();
            let orphans = made.filter(|(id, jobs)| {
                let there = jobs.last().filter(|job| !job.gone);
                let is_orphan =
                    there.is_some_and(|job| model.flows.record(id, &job.owner).is_none());
                is_orphan && model.jobs.jobs.get(*id).is_some_and(|job| !job.deleting)
            });
            orphans.map(|(id, _)| id.clone()).collect()
        });
        orphans.iter().for_each(|id| self.delete_job(id));
    }
}
