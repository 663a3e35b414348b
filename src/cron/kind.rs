//! CronJobs as a kind of record: data and hooks.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::controller::CronController;
use super::document;
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, Kind, KindSpec, RecordCheck,
};
use crate::farm::records::Records;
use crate::farm::subscriptions::Subscriber;
use crate::job::document::labels_in;
use crate::job::owner;
use crate::job::owner_caches::OwnerCaches;
use rcfarm_api::cron::CronStatus;
use rcfarm_api::ids::{Namespaced, RecordId};
use rcfarm_api::{FieldError, key};
use rcfarm_store::{Index, StoreError};

/// Prefixes, rights and checks of the kind `cron`.
#[must_use]
pub fn spec() -> KindSpec {
    KindSpec {
        own_labels: Some(labels_in),
        check_name,
        is_guarded: false,
        batches_commits: true,
        reads: vec![key::job_statuses()],
        writes: vec![key::cron_jobs(), key::cron_job_statuses(), key::jobs()],
        user_writes: vec![key::cron_jobs(), key::cron_job_labels()],
        sentinels: vec![key::cron_jobs()],
        checks: vec![RecordCheck {
            title: "CronJobs",
            prefix: key::cron_jobs(),
            check: check_record,
            remedy: "correct them: rcfarm apply -f; or: rcfarm cron delete",
        }],
        ..KindSpec::new("cron", key::cron_jobs(), key::cron_job_locks(), key::cron_job_labels())
    }
}

fn check_name(tail: &str) -> Result<(), FieldError> {
    name(tail).map(drop)
}

fn name(tail: &str) -> Result<Namespaced, FieldError> {
    owner::record_name("CronJob", tail)
}

fn check_record(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    let problems = document::decode(&name(tail)?, value).err().unwrap_or_default();
    problems.into_iter().next().map_or(Ok(()), Err)
}

/// Controllers of the kind `cron`.
pub struct CronKind {
    ctx: ControllerContext,
    caches: Arc<OwnerCaches<CronStatus>>,
    finds_leftovers: bool,
}

impl CronKind {
    /// Creates the kind with its caches; nothing is read. `finds_leftovers`: as in `FarmSettings`.
    #[must_use]
    pub fn new(ctx: ControllerContext, finds_leftovers: bool) -> CronKind {
        let caches = Arc::new(OwnerCaches::new(
            ctx.reader.clone(),
            key::cron_jobs(),
            key::cron_job_statuses(),
        ));
        CronKind { ctx, caches, finds_leftovers }
    }
}

#[async_trait]
impl Kind for CronKind {
    fn subscribe(&self, subscriber: &mut Subscriber<'_>) {
        if !self.finds_leftovers {
            return;
        }
        let caches = self.caches.clone();
        subscriber.run(|wake, ids| async move { caches.watch_leftovers(&wake, &ids).await });
    }

    fn rung(&self, id: &RecordId) {
        self.caches.ring(id);
    }

    fn has_leftovers(&self) -> bool {
        self.caches.has_something()
    }

    fn left_behind(&self, records: &Records) -> BTreeSet<RecordId> {
        self.caches.left_behind(records)
    }

    async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        self.caches.prepare(oldest).await
    }

    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller> {
        // `check_name` accepted it before the claim.
        let id = claimed.id.as_str().parse().expect("the name of a CronJob");
        Box::new(CronController::new(self.ctx.clone(), claimed, id, self.caches.clone()))
    }
}
