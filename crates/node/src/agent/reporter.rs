//! Writes the state of the node's pods to Consul, one transaction at a time.
//!
//! A transaction that may have been applied is simply written again: every operation in it is idempotent.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tracing::{error, warn};

use super::event::{AgentEvent, PresenceState};
use super::pod::PodTask;
use super::report::{
    PodReport, PodWriteLimiter, WriteDecision, bell, flapping, limited_job_bell, removal,
};
use super::state::DataDir;
use super::tasks::Tasks;
use super::{AgentSettings, LONGEST_PAUSE};
use rcfarm_api::backoff;
use rcfarm_api::ids::PodId;
use rcfarm_api::node::status::PodStatus;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Commit, Env, StoreError, TokenBucket, Txn, Writer, panic_text};

/// What Consul has of the pods, and the pacing of writes.
pub(super) struct Reporter {
    env: Env,
    settings: Arc<AgentSettings>,
    data: Arc<DataDir>,
    events: UnboundedSender<AgentEvent>,
    writer: Writer,
    /// Reports in Consul, as far as known. `None`: deleted. A pod that is here but unknown to the agent is to be
    /// deleted from Consul.
    written: BTreeMap<PodId, Option<PodReport>>,
    write_limits: BTreeMap<PodId, PodWriteLimiter>,
    job_bell_limit: TokenBucket,
    /// Pods whose deletion is being written to Consul. If the pod is intended again meanwhile, its new status is
    /// written only after the deletion completes.
    deleting: BTreeSet<PodId>,
    /// The first pod that did not fit the last transaction. The next one begins with it.
    first: Option<PodId>,
    /// A transaction is under way.
    is_writing: bool,
    /// Nothing is written before this moment.
    not_before: Option<Instant>,
    /// Failed transactions in a row.
    failures: u32,
}

/// The operations of one transaction, and what Consul holds once it is applied.
struct Batch {
    txn: Txn<rcfarm_store::Fenced>,
    reports: BTreeMap<PodId, Option<PodReport>>,
    /// When the next report that was held back for its rate may be written.
    again_at: Option<Instant>,
}

impl Reporter {
    pub(super) fn new(
        env: Env,
        settings: Arc<AgentSettings>,
        data: Arc<DataDir>,
        events: UnboundedSender<AgentEvent>,
    ) -> Self {
        Reporter {
            writer: Writer::new(env.store.clone()),
            env,
            settings,
            data,
            events,
            written: BTreeMap::new(),
            write_limits: BTreeMap::new(),
            job_bell_limit: TokenBucket::default(),
            deleting: BTreeSet::new(),
            first: None,
            is_writing: false,
            not_before: None,
            failures: 0,
        }
    }

    /// Makes every pod in `pods` be written again, under a new session. Deletions that are still to be written stay.
    pub(super) fn write_again(&mut self, pods: &BTreeMap<PodId, PodTask>) {
        self.written.retain(|id, _| !pods.contains_key(id));
        self.not_before = None;
    }

    /// Notes pods that Consul has. Those that the agent does not know are deleted.
    pub(super) fn found_in_consul(&mut self, pods: impl IntoIterator<Item = PodId>) {
        for pod in pods {
            let unknown = PodReport { reality: None, status: Default::default() };
            self.written.entry(pod).or_insert(Some(unknown));
        }
    }

    /// Deletes the pod's keys with the next transaction, even if this agent never wrote them: the previous agent may
    /// have.
    pub(super) fn forget(&mut self, id: &PodId) {
        self.write_limits.remove(id);
        self.found_in_consul([id.clone()]);
    }

    pub(super) fn is_deleting(&self, id: &PodId) -> bool {
        self.deleting.contains(id)
    }

    /// Whether nothing is left to delete.
    pub(super) fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// Starts a transaction with what has changed, unless one is under way. Returns when to call again.
    pub(super) fn write(
        &mut self,
        presence: Option<&PresenceState>,
        pods: &BTreeMap<PodId, PodTask>,
        tasks: &mut Tasks,
    ) -> Option<Instant> {
        let presence = presence.filter(|presence| presence.claim.is_live())?;
        let now = monotonic();
        if self.is_writing {
            return None;
        }
        if let Some(at) = self.not_before.filter(|at| *at > now) {
            return Some(at);
        }
        let mut batch =
            Batch { txn: Txn::under(&presence.claim), reports: BTreeMap::new(), again_at: None };
        self.add_deletions(&mut batch, pods);
        self.add_reports(&mut batch, presence, pods, now);
        let Batch { txn, reports, again_at } = batch;
        if reports.is_empty() {
            return again_at;
        }
        self.is_writing = true;
        let deleted = reports.iter().filter(|(_, report)| report.is_none());
        self.deleting = deleted.map(|(id, _)| id.clone()).collect();
        let (writer, events) = (self.writer.clone(), self.events.clone());
        tasks.spawn(async move {
            let outcome = writer.commit(txn).await;
            let _ = events.send(AgentEvent::Reported(outcome, reports));
        });
        None
    }

    fn add_deletions(&self, batch: &mut Batch, pods: &BTreeMap<PodId, PodTask>) {
        for id in self.written.keys().filter(|id| !pods.contains_key(*id)) {
            let ops = removal(&self.settings.name, id);
            if !batch.txn.fits(&ops, self.settings.limits) {
                break;
            }
            batch.txn.extend(ops);
            batch.reports.insert(id.clone(), None);
        }
    }

    fn add_reports(
        &mut self,
        batch: &mut Batch,
        presence: &PresenceState,
        pods: &BTreeMap<PodId, PodTask>,
        now: Instant,
    ) {
        let wall = self.env.clock.wall();
        let bell_value = self.env.ids.ordered_uuid(wall).to_string();
        let alone = Txn::under(&presence.claim);
        let (after, before): (Vec<_>, Vec<_>) = pods
            .iter()
            .filter(|(_, pod)| !pod.is_first_start())
            .partition(|(id, _)| Some(*id) >= self.first.as_ref());
        self.first = None;
        for (id, pod) in after.into_iter().chain(before) {
            let (report, panic) = report_of(pod);
            let written = self.written.get(id);
            if written.is_some_and(|written| written.as_ref() == Some(&report)) {
                continue;
            }
            let mut job_bell_limit = self.job_bell_limit;
            let mut bells =
                Vec::from_iter(pod.intended.owner.map(|owner| bell(owner, &bell_value)));
            bells.extend(limited_job_bell(&mut job_bell_limit, &report, &bell_value, now));
            let ops_of = |report: &PodReport| {
                let ops = report.ops(&self.settings.name, id, &presence.health, wall);
                [ops, bells.clone()].concat()
            };
            let limits = self.settings.limits;
            let (mut shown, mut ops) = (None, ops_of(&report));
            if !alone.fits(&ops, limits) {
                shown = report.reduced().into_iter().find(|less| alone.fits(&ops_of(less), limits));
                ops = shown.as_ref().map_or(ops, ops_of);
            }
            if !batch.txn.fits(&ops, limits) {
                self.first.get_or_insert_with(|| id.clone());
                continue;
            }
            let mut written = report;
            match self.write_limits.entry(id.clone()).or_default().take(now) {
                WriteDecision::Write => {}
                WriteDecision::WriteFlapping => {
                    // `written` then differs from the pod's own report, which follows as soon as the limit permits.
                    written = flapping(shown.as_ref().unwrap_or(&written));
                    ops = ops_of(&written);
                }
                WriteDecision::Wait(at) => {
                    batch.again_at = Some(batch.again_at.map_or(at, |other| other.min(at)));
                    continue;
                }
            }
            if shown.is_some() {
                let manifest_bytes = pod.intended.manifest.len();
                warn!(alert = true, pod = %id, manifest_bytes,
                    "the pod's report is too large for a transaction and was cut");
            }
            if let Some(panic) = panic {
                error!(alert = true, pod = %id, panic, "a panic while a pod was described");
            }
            self.job_bell_limit = job_bell_limit;
            batch.txn.extend(ops);
            batch.reports.insert(id.clone(), Some(written));
        }
    }

    /// Handles the result of a transaction. Returns `false` if Consul refused the fence: the session is lost.
    #[must_use]
    pub(super) fn finished(
        &mut self,
        outcome: Result<Commit, StoreError>,
        reports: BTreeMap<PodId, Option<PodReport>>,
        pods: &BTreeMap<PodId, PodTask>,
    ) -> bool {
        self.is_writing = false;
        self.deleting.clear();
        match outcome {
            Ok(Commit::Applied(_)) => self.applied(reports, pods),
            Ok(Commit::ClaimLost) => return false,
            Ok(Commit::Refused(refusals)) => {
                let refusals: Vec<String> = refusals.iter().map(|r| format!("{r:?}")).collect();
                self.failed(&refusals.join("; "));
            }
            Err(_) if enabled(Failpoint::ReportAssumed) => self.applied(reports, pods),
            // It may have been applied: it is written again.
            Err(error) => self.failed(&error.to_string()),
        }
        true
    }

    fn applied(
        &mut self,
        reports: BTreeMap<PodId, Option<PodReport>>,
        pods: &BTreeMap<PodId, PodTask>,
    ) {
        self.failures = 0;
        for (id, report) in reports {
            if report.is_some() {
                self.written.insert(id, report);
                continue;
            }
            self.written.remove(&id);
            if !pods.contains_key(&id)
                && let Err(error) = self.data.forget(&id)
            {
                warn!(pod = %id, %error, "the pod's directory cannot be removed");
            }
        }
    }

    fn failed(&mut self, why: &str) {
        self.failures += 1;
        if self.failures == 1 || self.failures.is_multiple_of(20) {
            warn!(why, failures = self.failures, "pod states cannot be written");
        }
        let pause = backoff(Duration::from_millis(200), LONGEST_PAUSE, self.failures);
        self.not_before = Some(monotonic() + self.env.ids.jitter(pause, 0.5));
    }
}

/// The report of a pod. If that panics, the report says so, and the panic's text is returned with it.
fn report_of(pod: &PodTask) -> (PodReport, Option<String>) {
    match catch_unwind(AssertUnwindSafe(|| pod.report())) {
        Ok(report) => (report, None),
        Err(panic) => {
            let panic = panic_text(panic.as_ref());
            let message = format!("the agent panicked while it described the pod: {panic}");
            let status = PodStatus { status: "failed".to_owned(), message, ..PodStatus::default() };
            (PodReport { reality: None, status }, Some(panic))
        }
    }
}
