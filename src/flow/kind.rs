//! JobFlows as a kind of record: data and hooks.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::caches::FlowCaches;
use super::controller::FlowController;
use super::{document, template};
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, Kind, KindSpec, RecordCheck,
};
use crate::farm::records::Records;
use crate::farm::subscriptions::Subscriber;
use crate::job::document::labels_in;
use crate::job::owner;
use rcfarm_api::flow::{KIND, TEMPLATE_KIND};
use rcfarm_api::ids::RecordId;
use rcfarm_api::{FieldError, key};
use rcfarm_store::{Index, StoreError};

/// Prefixes, rights and checks of the kind `flow`.
#[must_use]
pub fn spec() -> KindSpec {
    KindSpec {
        own_labels: Some(labels_in),
        check_name: |tail| owner::record_name(KIND, tail).map(drop),
        is_guarded: false,
        batches_commits: true,
        reads: vec![
            key::job_templates(),
            key::job_statuses(),
            key::pod_group_statuses(),
            key::nodes(),
        ],
        writes: vec![key::job_flows(), key::job_flow_statuses(), key::jobs(), key::commands()],
        user_writes: vec![key::job_flows(), key::job_flow_labels(), key::job_templates()],
        sentinels: vec![key::job_flows(), key::job_templates()],
        checks: vec![
            RecordCheck {
                title: "JobFlows",
                prefix: key::job_flows(),
                check: check_flow,
                remedy: "correct them: rcfarm apply -f; or: rcfarm flow delete",
            },
            RecordCheck {
                title: "JobTemplates",
                prefix: key::job_templates(),
                check: check_template,
                remedy: "correct them: rcfarm apply -f; or: rcfarm flow template delete",
            },
        ],
        ..KindSpec::new("flow", key::job_flows(), key::job_flow_locks(), key::job_flow_labels())
    }
}

fn first<T>(checked: Result<T, Vec<FieldError>>) -> Result<(), FieldError> {
    let problems = checked.err().unwrap_or_default();
    problems.into_iter().next().map_or(Ok(()), Err)
}

fn check_flow(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    first(document::decode(&owner::record_name(KIND, tail)?, value))
}

fn check_template(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    first(template::decode(&owner::record_name(TEMPLATE_KIND, tail)?, value))
}

/// Controllers of the kind `flow`.
pub struct FlowKind {
    ctx: ControllerContext,
    caches: Arc<FlowCaches>,
    finds_leftovers: bool,
}

impl FlowKind {
    /// The kind in a farm. `finds_leftovers`: as in `FarmSettings`.
    #[must_use]
    pub fn new(ctx: ControllerContext, finds_leftovers: bool) -> FlowKind {
        let caches = Arc::new(FlowCaches::new(&ctx.reader));
        FlowKind { ctx, caches, finds_leftovers }
    }
}

#[async_trait]
impl Kind for FlowKind {
    fn subscribe(&self, subscriber: &mut Subscriber<'_>) {
        let caches = self.caches.clone();
        subscriber.on_with_records(&self.caches.templates, move |wake, old, new| {
            let flows = caches.waiting_for(&Records::touched_keys(&old.value, &new.value));
            flows.iter().for_each(|flow| caches.owner.ring(flow));
            wake.records(flows);
        });
        if !self.finds_leftovers {
            return;
        }
        let caches = self.caches.clone();
        subscriber.run(|wake, ids| async move { caches.owner.watch_leftovers(&wake, &ids).await });
    }

    fn rung(&self, id: &RecordId) {
        self.caches.owner.ring(id);
    }

    fn has_leftovers(&self) -> bool {
        self.caches.owner.has_something()
    }

    fn left_behind(&self, records: &Records) -> BTreeSet<RecordId> {
        self.caches.owner.left_behind(records)
    }

    async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        self.caches.owner.prepare(oldest).await
    }

    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller> {
        // `check_name` accepted it before the claim.
        let id = claimed.id.as_str().parse().expect("the name of a JobFlow");
        Box::new(FlowController::new(self.ctx.clone(), claimed, id, self.caches.clone()))
    }
}
