//! JobTemplates and JobFlows as documents.

use serde_json::Value;

use crate::cli::documents::{Accepted, ChangeRule, DocumentKind, ReferencedDocuments, References};
use crate::flow::document::{self, FlowSpec, FlowStep, job_name};
use crate::flow::plan::refused_change;
use crate::flow::template::{self, MakingFlow, TemplateSpec};
use crate::job::document::FieldIssues;
use rcfarm_api::flow::{FlowStatus, KIND, TEMPLATE_KIND};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::{FieldError, Index, Stored as _, key};
use rcfarm_store::Key;

/// JobTemplates as documents.
pub(in crate::cli) const JOB_TEMPLATE: DocumentKind = DocumentKind {
    kind: TEMPLATE_KIND,
    is_namespaced: true,
    noun: "flow template",
    key: key::job_template,
    check: |id, document| {
        let TemplateSpec { warnings, queue, class, .. } = template::check(id, document)?;
        Ok(Accepted { warnings, queues: vec![queue], classes: class.into_iter().collect() })
    },
    references: None,
    changes: None,
    kept: &[],
};

/// JobFlows as documents.
pub(in crate::cli) const JOB_FLOW: DocumentKind = DocumentKind {
    kind: KIND,
    is_namespaced: true,
    noun: "flow",
    key: key::job_flow,
    check: |id, document| {
        let FlowSpec { warnings, steps, .. } = document::read(id, document)?;
        let queues = steps.iter().enumerate().filter_map(|(n, step)| step.patched_queue(n));
        let classes = steps.iter().enumerate().filter_map(|(n, step)| step.patched_class(n));
        Ok(Accepted { queues: queues.collect(), classes: classes.collect(), warnings })
    },
    references: Some(References { keys: templates_of, check: check_steps }),
    changes: Some(ChangeRule { key: key::job_flow_status, check: check_change }),
    kept: &[],
};

/// A flow that has begun follows some changes only.
fn check_change(
    id: &Namespaced,
    document: &Value,
    created: Index,
    status: &[u8],
) -> Option<FieldError> {
    let status = FlowStatus::decode(status).ok().filter(|status| status.uid == created)?;
    let spec = document::read(id, document).ok()?;
    let fix = "undo it, or make a flow of another name";
    refused_change(&spec, &status).map(|refused| FieldError { fix: fix.to_owned(), ..refused })
}

fn template_of(id: &Namespaced, step: &FlowStep) -> Key {
    key::job_template(&Namespaced { namespace: id.namespace.clone(), name: step.template.clone() })
}

fn templates_of(id: &Namespaced, document: &Value) -> Vec<Key> {
    let steps = document::read(id, document).map(|spec| spec.steps).unwrap_or_default();
    steps.iter().map(|step| template_of(id, step)).collect()
}

/// A template may be missing: the step waits for it. One that is there must make a valid job.
fn check_steps(id: &Namespaced, document: &Value, templates: &ReferencedDocuments) -> FieldIssues {
    let mut issues = FieldIssues::default();
    let steps = document::read(id, document).map(|spec| spec.steps).unwrap_or_default();
    for (n, step) in steps.iter().enumerate() {
        let path = format!("spec.flows[{n}]");
        let Some(stored) = templates.get(&template_of(id, step)) else {
            let why = format!("there is no JobTemplate {}; the step waits for it", step.template);
            issues.warning(path, why);
            continue;
        };
        let Ok(name) = job_name(&id.name, &step.name, step.retry) else { continue };
        let job = Namespaced { namespace: id.namespace.clone(), name };
        let flow = MakingFlow { id, uid: Index::ZERO };
        if let Err(error) = template::job(flow, step, &job, stored) {
            issues.problem(
                path,
                format!("JobTemplate {} makes no valid job: {error}", step.template),
            );
        }
    }
    issues
}
