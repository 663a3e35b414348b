//! Jobs as a kind of record: data, subscriptions and hooks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tracing::debug;

use super::caches::{JobCaches, PodStates, Realities, record_id};
use super::controller::JobController;
use super::document;
use super::labelled::JobPods;
use crate::cluster::queues::GroupStatusIndex;
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, Kind, KindSpec, RecordCheck,
};
use crate::farm::records::Records;
use crate::farm::wake_queue::{FarmEvent, WakeQueue};
use rcfarm_api::ids::{BadName, Namespaced, PodRef, RecordId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Index, StoreError};

/// What is left of jobs whose records are gone is looked for this often, besides what the watched trees show of it.
const LEFTOVERS_EVERY: Duration = Duration::from_secs(300);
/// The same when something may be left, at most.
const LEFTOVERS_PAUSE: Duration = Duration::from_secs(10);

/// Jobs as a kind of record.
#[must_use]
pub fn spec() -> KindSpec {
    KindSpec {
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
        ],
        writes: vec![
            key::jobs(),
            key::job_statuses(),
            key::pod_groups(),
            key::commands(),
            key::labels(LabelKind::Pod),
            key::intents(),
        ],
        user_writes: vec![key::jobs(), key::job_labels(), key::commands()],
        sentinels: vec![key::jobs()],
        checks: vec![RecordCheck {
            title: "jobs",
            prefix: key::jobs(),
            check: check_record,
            remedy: "mend them: rcfarm apply -f; or: rcfarm job delete",
        }],
        ..KindSpec::new("job", key::jobs(), key::job_locks(), key::job_labels())
    }
}

fn check_name(tail: &str) -> Result<(), String> {
    if tail.split('/').count() != 2 {
        return Err("a job stands under <namespace>/<name>: move it there".to_owned());
    }
    tail.parse::<Namespaced>().map(drop).map_err(|error| error.to_string())
}

fn check_record(tail: &str, value: &[u8]) -> Result<(), String> {
    check_name(tail)?;
    let id = tail.parse().map_err(|error: BadName| error.to_string())?;
    let problems = document::decode(&id, value).err().unwrap_or_default();
    problems.first().map_or(Ok(()), |problem| Err(problem.to_string()))
}

/// Controllers of jobs.
pub struct JobKind {
    ctx: ControllerContext,
    caches: Arc<JobCaches>,
}

impl JobKind {
    /// The kind, over a world that it watches.
    #[must_use]
    pub fn new(ctx: ControllerContext, caches: Arc<JobCaches>) -> Self {
        JobKind { ctx, caches }
    }
}

fn touched(ids: BTreeSet<Namespaced>) -> FarmEvent {
    FarmEvent::Changed(ids.iter().map(record_id).collect())
}

#[async_trait]
impl Kind for JobKind {
    fn watches(&self, wake_queue: &Arc<WakeQueue>) -> Vec<BoxFuture<'static, ()>> {
        // Commands are watched for schedulers, too, and there.
        let (caches, ids) = (self.caches.clone(), self.ctx.ids.fork());
        let leftovers = {
            let wake_queue = wake_queue.clone();
            async move {
                loop {
                    match caches.look_for_leftovers().await {
                        Ok(()) => wake_queue.push(FarmEvent::Claims),
                        Err(error) => debug!(%error, "orphans of deleted jobs cannot be listed"),
                    }
                    tokio::time::sleep(ids.jitter(LEFTOVERS_PAUSE, 0.5)).await;
                    let enough = tokio::time::sleep(ids.jitter(LEFTOVERS_EVERY, 0.5));
                    tokio::select! {
                        biased;
                        () = caches.doubted() => {}
                        () = enough => {}
                    }
                }
            }
        };
        vec![Box::pin(leftovers)]
    }

    fn has_leftovers(&self) -> bool {
        self.caches.has_something()
    }

    fn watches_of_records(&self, wake_queue: &Arc<WakeQueue>) -> Vec<BoxFuture<'static, ()>> {
        let ids = || self.ctx.ids.fork();
        let caches = self.caches.clone();
        let pods = {
            let (wake_queue, caches) = (wake_queue.clone(), caches.clone());
            caches.pods.clone().watch(ids(), move |old, new| {
                let jobs = JobPods::touched(&old.value, &new.value);
                jobs.iter().filter(|job| new.value.has(job)).for_each(|job| caches.note_job(job));
                wake_queue.push(touched(jobs));
                // There may be pods of jobs that are gone.
                wake_queue.push(FarmEvent::Claims);
            })
        };
        let realities = {
            let wake_queue = wake_queue.clone();
            let world_ = caches.clone();
            caches.realities.clone().watch(ids(), move |old, new| {
                let places: Vec<&PodRef> = Realities::touched(&old.value, &new.value).collect();
                let mut jobs = world_.owners(&old.value, places.iter().copied());
                jobs.extend(world_.owners(&new.value, places.into_iter()));
                wake_queue.push(touched(jobs));
            })
        };
        let pod_states = {
            let (wake_queue, caches) = (wake_queue.clone(), caches.clone());
            caches.pod_states.clone().watch(ids(), move |old, new| {
                let places = PodStates::touched(&old.value, &new.value);
                wake_queue.push(touched(caches.owners(&caches.realities.snapshot().value, places)));
            })
        };
        let groups = {
            let wake_queue = wake_queue.clone();
            caches.groups.clone().watch(ids(), move |old, new| {
                wake_queue.push(touched(GroupStatusIndex::touched_keys(&old.value, &new.value)));
            })
        };
        {
            // Intents are watched for replication controllers, too, and there.
            let wake_queue = wake_queue.clone();
            let world_ = caches.clone();
            caches.nodes.intents.listen(move |old, new| {
                let jobs = world_.bereft(&old.value, &new.value);
                if !jobs.is_empty() {
                    wake_queue.push(touched(jobs));
                }
            });
        }
        vec![Box::pin(pods), Box::pin(realities), Box::pin(pod_states), Box::pin(groups)]
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

    fn confirm(&self) {
        self.caches.pods.confirm();
    }

    fn untrusted_caches(&self) -> Vec<String> {
        self.caches.blind().into_iter().collect()
    }

    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller> {
        // Checked by `check_name` when it was claimed.
        let id = claimed.id.as_str().parse().expect("a job's name");
        Box::new(JobController::new(self.ctx.clone(), claimed, id, self.caches.clone()))
    }
}
