//! Arrays, jobs that wait for them, and dispatches of templates.

use serde_json::{Value, json};

use super::flows::template_id;
use super::users::Workload;
use crate::reached::{Occasion, met_if};
use rcfarm::flow::parameters::Dispatch;
use rcfarm::job::dependencies;
use rcfarm::job::document::ARRAY_ANNOTATION;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::key;

/// The name of an array.
#[must_use]
pub fn array_id(n: usize) -> Namespaced {
    format!("team/sweep-{n}").parse().expect("an array's name")
}

/// The name of a job that waits for an array.
#[must_use]
pub fn dependent_id(n: usize, anyhow: bool) -> Namespaced {
    let word = if anyhow { "anyhow" } else { "then" };
    format!("team/{word}-{n}").parse().expect("a job's name")
}

fn job(annotation: (&str, &str), retries: u32) -> Value {
    let container =
        json!({"name": "c", "command": ["true"], "resources": {"requests": {"cpu": "300m"}}});
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    let task = json!({"name": "w", "replicas": 1, "template": template});
    json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": {"annotations": {annotation.0: annotation.1}},
        "spec": {"queue": "default", "tasks": [task], "maxRetry": retries,
            "restartDelay": {"first": "1s", "longest": "4s"},
            "policies": [{"event": "PodFailed", "action": "RestartPod"}]}})
}

/// The document of an array of six tasks, of which two run at a time.
#[must_use]
pub fn array_document() -> Value {
    job((ARRAY_ANNOTATION, "0-5%2"), 2)
}

/// The document of a job that waits for an array.
#[must_use]
pub fn dependent_document(n: usize, anyhow: bool) -> Value {
    let word = if anyhow { "afterany" } else { "afterok" };
    job((dependencies::ANNOTATION, &format!("{word}:{}", array_id(n).name)), 8)
}

impl Workload {
    /// Dispatches a template with a token, as `rcfarm job dispatch` does. Nothing happens if the template is not there.
    pub fn dispatch(&self, template: usize, token: usize) {
        let id = template_id(template);
        let Some(entry) = self.get(&key::job_template(&id)) else { return };
        let document: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let given = Dispatch { token: Some(format!("token-{token}")), ..Dispatch::default() };
        // A hostile tenant may have made it invalid.
        let Ok(made) = given.job(&id, &document, self.ids.below(1 << 16)) else { return };
        met_if(self.get(&key::job(&made.id)).is_some(), Occasion::DispatchedAgain);
        self.submit(&made.id, &made.document);
    }
}
