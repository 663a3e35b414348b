//! Jobs as a kind of record: data, subscriptions and hooks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::debug;

use super::caches::{JobCaches, PodStates, Realities, record_id};
use super::controller::JobController;
use super::document;
use crate::cluster::commands::Commands;
use crate::cluster::job_pods::JobPods;
use crate::cluster::queues::GroupStatusIndex;
use crate::cluster::wake::on_node_changes;
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, Kind, KindSpec, RecordCheck,
};
use crate::farm::records::Records;
use crate::farm::subscriptions::{Subscriber, Waker};
use rcfarm_api::ids::{Namespaced, ObjectName, PodRef, RecordId};
use rcfarm_api::job::job_type::JobTypeRecord;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::{FieldError, InvalidText, Stored as _};
use rcfarm_store::sealing::KeySealing;
use rcfarm_store::time::IdSource;
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Index, StoreError};

/// Mean interval between lists of the keys of deleted jobs. Watched pods of such jobs are seen at once.
const LEFTOVERS_EVERY: Duration = Duration::from_secs(300);
/// Minimum mean interval between these lists while orphans are known.
const LEFTOVERS_PAUSE: Duration = Duration::from_secs(10);

/// Prefixes, rights and checks of the kind `job`.
#[must_use]
pub fn spec() -> KindSpec {
    KindSpec {
        own_labels: Some(document::labels_in),
        check_name,
        is_guarded: false,
        poll_policy: PollPolicy::BULK,
        batches_commits: true,
        reads: vec![
            key::labels(LabelKind::Node),
            key::nodes(),
            key::pod_group_statuses(),
            key::realities(),
            key::pod_statuses(),
            key::job_types(),
        ],
        writes: vec![
            key::jobs(),
            key::job_statuses(),
            key::pod_groups(),
            key::commands(),
            key::labels(LabelKind::Pod),
            key::intents(),
            key::peers_records(),
        ],
        // Of jobs with the plugin `ssh`.
        optional_writes: vec![key::job_keys_records()],
        user_writes: vec![key::jobs(), key::job_labels(), key::commands()],
        sentinels: vec![key::jobs()],
        checks: vec![
            RecordCheck {
                title: "jobs",
                prefix: key::jobs(),
                check: check_record,
                remedy: "correct them: rcfarm apply -f; or: rcfarm job delete",
            },
            RecordCheck {
                title: "job types",
                prefix: key::job_types(),
                check: check_type,
                remedy: "correct them: rcfarm apply -f; or: rcfarm job type delete",
            },
        ],
        ..KindSpec::new("job", key::jobs(), key::job_locks(), key::job_labels())
    }
}

fn check_name(tail: &str) -> Result<(), FieldError> {
    name(tail).map(drop)
}

fn name(tail: &str) -> Result<Namespaced, FieldError> {
    if tail.split('/').count() != 2 {
        let problem = "a job stands under <namespace>/<name>";
        return Err(FieldError::new(FieldError::KEY, problem, "move it there"));
    }
    tail.parse().map_err(|error: InvalidText| FieldError::from(error).below(FieldError::KEY))
}

fn check_record(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    let problems = document::decode(&name(tail)?, value).err().unwrap_or_default();
    problems.into_iter().next().map_or(Ok(()), Err)
}

fn check_type(tail: &str, value: &[u8]) -> Result<(), FieldError> {
    let name: ObjectName =
        tail.parse().map_err(|error| FieldError::from(error).below(FieldError::KEY))?;
    JobTypeRecord::decode(value)?.check(&name).into_iter().next().map_or(Ok(()), Err)
}

/// Subscriptions and controllers of the kind `job`.
pub struct JobKind {
    ctx: ControllerContext,
    caches: Arc<JobCaches>,
    default_ttl: Option<Duration>,
    sealing: KeySealing,
}

impl JobKind {
    /// Uses the caches that all jobs of the farm share. `default_ttl`: as `FarmSettings::job_ttl`. `sealing`: how
    /// private keys of jobs are stored.
    #[must_use]
    pub fn new(
        ctx: ControllerContext,
        caches: Arc<JobCaches>,
        default_ttl: Option<Duration>,
        sealing: KeySealing,
    ) -> Self {
        JobKind { ctx, caches, default_ttl, sealing }
    }
}

fn record_ids(ids: BTreeSet<Namespaced>) -> impl Iterator<Item = RecordId> {
    ids.into_iter().map(|id| record_id(&id))
}

/// Lists keys of jobs without records, periodically and when a known job has lost its record.
async fn look_for_leftovers(caches: Arc<JobCaches>, has_keys: bool, wake: Waker, ids: IdSource) {
    loop {
        match caches.look_for_leftovers(has_keys).await {
            Ok(()) => wake.plan_claims(),
            Err(error) => debug!(%error, "orphans of deleted jobs cannot be listed"),
        }
        tokio::time::sleep(ids.jitter(LEFTOVERS_PAUSE, 0.5)).await;
        let enough = tokio::time::sleep(ids.jitter(LEFTOVERS_EVERY, 0.5));
        tokio::select! {
            biased;
            () = caches.record_missing() => {}
            () = enough => {}
        }
    }
}

#[async_trait]
impl Kind for JobKind {
    fn subscribe(&self, subscriber: &mut Subscriber<'_>) {
        let view = &self.caches.nodes;
        let caches = self.caches.clone();
        on_node_changes(subscriber, view, move |wake, changes| {
            wake.records(record_ids(caches.on_nodes(&changes.nodes)));
        });
        subscriber.on(&view.pods, |wake, old, new| {
            if old.value.has_pods_of_jobs() != new.value.has_pods_of_jobs() {
                wake.plan_claims();
            }
        });
        let (caches, has_keys) = (self.caches.clone(), self.sealing.is_possible());
        subscriber.run(move |wake, ids| look_for_leftovers(caches, has_keys, wake, ids));
        subscriber.on_with_records(&self.caches.commands, |wake, old, new| {
            wake.records(record_ids(Commands::jobs_touched(&old.value, &new.value)));
        });
        let caches = self.caches.clone();
        subscriber.on_with_records(&view.pods, move |wake, old, new| {
            let (old, new) = (old.value.jobs(), new.value.jobs());
            let mut jobs = JobPods::touched(old, new);
            let mismatched = JobPods::newly_mismatched(old, new);
            let realities = caches.realities.snapshot();
            jobs.extend(caches.owners(&realities.value, mismatched.into_iter()));
            if jobs.is_empty() {
                return;
            }
            jobs.iter().filter(|job| new.has(job)).for_each(|job| caches.note_job(job));
            wake.records(record_ids(jobs));
            // A change may reveal pods of a job without a record.
            wake.plan_claims();
        });
        let caches = self.caches.clone();
        subscriber.on_with_records(&self.caches.realities, move |wake, old, new| {
            let places: Vec<&PodRef> = Realities::touched(&old.value, &new.value).collect();
            let mut jobs = caches.owners(&old.value, places.iter().copied());
            jobs.extend(caches.owners(&new.value, places.into_iter()));
            wake.records(record_ids(jobs));
        });
        let caches = self.caches.clone();
        subscriber.on_with_records(&self.caches.pod_states, move |wake, old, new| {
            let places = PodStates::touched(&old.value, &new.value);
            wake.records(record_ids(caches.owners(&caches.realities.snapshot().value, places)));
        });
        let caches = self.caches.clone();
        subscriber.on_with_records(&self.caches.groups, move |wake, old, new| {
            let touched = GroupStatusIndex::touched_keys(&old.value, &new.value);
            wake.records(caches.with_group(&touched));
            wake.records(caches.waiting_for(&touched));
        });
        let caches = self.caches.clone();
        subscriber.on_with_records(&view.intents, move |wake, old, new| {
            wake.records(record_ids(caches.with_lost_intents(&old.value, &new.value)));
        });
    }

    fn has_leftovers(&self) -> bool {
        self.caches.has_something()
    }

    fn rung(&self, id: &RecordId) {
        self.caches.note_rung(id);
    }

    fn left_behind(&self, records: &Records) -> BTreeSet<RecordId> {
        self.caches.left_behind(records)
    }

    async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        self.caches.first_read().await;
        self.caches.prepare(oldest).await
    }

    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller> {
        // `check_name` accepted it before the claim.
        let id = claimed.id.as_str().parse().expect("a job's name");
        let (ctx, caches) = (self.ctx.clone(), self.caches.clone());
        let (ttl, sealing) = (self.default_ttl, self.sealing.clone());
        Box::new(JobController::new(ctx, claimed, id, caches, ttl, sealing))
    }
}
