//! PodGroups and schedulers as documents.

use serde_json::Value;

use crate::cli::documents::{Accepted, ChangeRule, Checked, DocumentKind};
use crate::cluster::queues::read_group;
use crate::job::document::{JobClass, JobQueue};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_api::scheduler::spec::SchedulerRecord;
use rcfarm_api::{FieldError, Index, Stored, key};

/// PodGroups as documents. Those of jobs are the jobs' owners'.
pub(in crate::cli) const POD_GROUP: DocumentKind = DocumentKind {
    kind: "PodGroup",
    is_namespaced: true,
    noun: "queue group",
    key: key::pod_group,
    check: check_group,
    references: None,
    changes: Some(ChangeRule { key: key::pod_group, check: check_owner }),
    kept: &["members"],
};

/// Schedulers of queues as documents.
pub(in crate::cli) const SCHEDULER: DocumentKind = DocumentKind {
    kind: "Scheduler",
    is_namespaced: false,
    noun: "queue scheduler",
    key: |id| key::scheduler(&id.name),
    check: check_scheduler,
    references: None,
    changes: None,
    kept: &[],
};

/// Warnings of fields that nothing acts upon.
fn ignored(fields: Vec<String>) -> Vec<FieldError> {
    let warning = |field: String| FieldError::new(field, "nothing acts upon it", "leave it out");
    fields.into_iter().map(warning).collect()
}

/// API group of Volcano's PodGroup.
const GROUP: &str = "scheduling.volcano.sh/";

fn check_group(id: &Namespaced, document: &Value) -> Checked {
    let version = document.get("apiVersion").map(|version| version.as_str().unwrap_or_default());
    if let Some(version) = version.filter(|version| !version.starts_with(GROUP)) {
        let why = format!("{version:?} has no PodGroup");
        let fix = format!("write {GROUP}v1beta1, or leave it out");
        return Err(vec![FieldError::new("apiVersion", why, fix)]);
    }
    let PodGroupRecord { spec, .. } = read_group(id, document.to_string().as_bytes())?;
    let (queue, class) = (spec.queue.to_string(), spec.priority_class_name.clone());
    let is_class = !class.is_empty() && spec.priority == 0;
    Ok(Accepted {
        warnings: ignored(spec.ignored()),
        queues: vec![JobQueue { field: "spec.queue".to_owned(), name: queue }],
        classes: is_class
            .then(|| JobClass { field: "spec.priorityClassName".to_owned(), name: class })
            .into_iter()
            .collect(),
    })
}

/// Refuses to change a group that has an owner: the owner would write it back.
fn check_owner(_: &Namespaced, _: &Value, _: Index, stored: &[u8]) -> Option<FieldError> {
    let owner = PodGroupRecord::decode(stored).ok()?.spec.owner?;
    let why = format!("it belongs to {} {}, whose owner writes it", owner.kind, owner.name);
    Some(FieldError::new("metadata.name", why, "change that, or name the group differently"))
}

fn check_scheduler(_: &Namespaced, document: &Value) -> Checked {
    let record = SchedulerRecord::decode(document.to_string().as_bytes());
    let SchedulerRecord { spec, .. } = record.map_err(|bad| vec![bad])?;
    let bad = spec.check();
    if !bad.is_empty() {
        return Err(bad);
    }
    let unknown = spec.other.keys().map(|field| format!("spec.{field}")).collect();
    Ok(Accepted { warnings: ignored(unknown), queues: Vec::new(), classes: Vec::new() })
}
