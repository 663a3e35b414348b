//! Writes the state of the node's pods to Consul, one transaction at a time.
//!
//! A transaction that may have been applied is simply written again: every operation in it is idempotent. What each
//! report names, and what must be unchanged when it is written, says [`super::proof`].

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tracing::{error, warn};

use super::event::{AgentEvent, PresenceState, SentReports};
use super::intended::NodeIntents;
use super::plan::SingleInstance;
use super::pod::PodTask;
use super::proof::{Listed, PodIntent, ReportBasis, basis};
use super::report::{
    PodReport, PodWriteLimiter, WriteDecision, bell, flapping, guard, limited_job_bell, removal,
};
use super::reported::{ChangedReport, Reported};
use super::state::DataDir;
use super::tasks::Tasks;
use super::{AgentSettings, LONGEST_PAUSE};
use rcfarm_api::backoff;
use rcfarm_api::ids::PodId;
use rcfarm_api::node::status::{IntentIndex, PodStatus};
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::time::monotonic;
use rcfarm_store::{
    Answer, Commit, Entry, Env, Index, Op, Refusal, StoreError, TokenBucket, Txn, Writer,
    panic_text,
};

/// Pause before reports that depend on intents are tried again after Consul refused the token.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(5);

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
    /// What each pod's last acknowledged report left in Consul.
    reported: BTreeMap<PodId, Reported>,
    /// Intents as listed that Consul no longer had when a report was written, and when it said so.
    outdated: BTreeMap<PodId, (IntentIndex, Instant)>,
    /// The token may not read the intents: until then, no report is written that depends on one.
    forbidden_until: Option<Instant>,
    /// The first pod that did not fit the last transaction. The next one begins with it.
    first: Option<PodId>,
    /// A transaction is under way.
    is_writing: bool,
    /// Nothing is written before this moment.
    not_before: Option<Instant>,
    /// Failed transactions in a row.
    failures: u32,
}

/// What follows from the result of a transaction.
#[must_use]
pub(super) enum ReportResult {
    Done,
    /// The list of intents is old.
    Outdated,
    /// A report in Consul is not the one that this agent wrote last.
    Changed,
    /// The transaction may be applied later, after newer ones: a deleted report may come back.
    Unknown,
    /// Consul refused the fence.
    SessionLost,
}

/// The operations of one transaction, and what Consul holds once it is applied.
struct Batch {
    txn: Txn<rcfarm_store::Fenced>,
    sent: SentReports,
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
            reported: BTreeMap::new(),
            outdated: BTreeMap::new(),
            forbidden_until: None,
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
        self.accepted(id);
        self.found_in_consul([id.clone()]);
    }

    /// Discards what an earlier pod of this id reported.
    pub(super) fn accepted(&mut self, id: &PodId) {
        self.reported.remove(id);
        self.outdated.remove(id);
    }

    /// Notes a list of intents that was asked for at this moment. It shows what is there after the refusals before it.
    pub(super) fn intents_read(&mut self, asked: Instant) {
        self.outdated.retain(|_, (_, refused_at)| *refused_at > asked);
    }

    /// The intent that a pod's last acknowledged report names, and the ModifyIndex of that report.
    pub(super) fn reported(&self, id: &PodId) -> Option<(IntentIndex, Index)> {
        self.reported.get(id).map(|reported| (reported.intent, reported.status))
    }

    /// What each report left in Consul.
    pub(super) fn all_reported(&self) -> BTreeMap<PodId, Reported> {
        self.reported.clone()
    }

    /// Whether a report of this agent has a reality.
    pub(super) fn has_reality(&self) -> bool {
        self.reported.values().any(|reported| reported.reality.is_some())
    }

    /// Whether a list of the realities lacks one that was written before it.
    pub(super) fn lacks_reality(&self, listed: &Answer<BTreeSet<PodId>>) -> bool {
        self.reported.iter().any(|(id, reported)| {
            reported.reality.is_some_and(|index| index <= listed.index)
                && !listed.value.contains(id)
        })
    }

    /// Makes reports be written again of which Consul lacks a key, or has another. A report that was written meanwhile is
    /// not concerned.
    pub(super) fn write_unless_newer(&mut self, changed: &BTreeMap<PodId, ChangedReport>) {
        for (id, ChangedReport { written, status }) in changed {
            if self.reported.get(id) == Some(written) {
                if *status {
                    self.reported.remove(id);
                }
                self.written.remove(id);
            }
        }
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
        intents: Option<&NodeIntents>,
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
        let txn = Txn::under(&presence.claim);
        let mut batch = Batch { txn, sent: SentReports::default(), again_at: None };
        self.add_deletions(&mut batch, pods);
        self.add_reports(&mut batch, presence, pods, intents, now);
        let Batch { txn, sent, again_at } = batch;
        if sent.reports.is_empty() {
            return again_at;
        }
        self.is_writing = true;
        let deleted = sent.reports.iter().filter(|(_, report)| report.is_none());
        self.deleting = deleted.map(|(id, _)| id.clone()).collect();
        let (writer, events) = (self.writer.clone(), self.events.clone());
        tasks.spawn(async move {
            let outcome = writer.commit_alone(&txn).await;
            let _ = events.send(AgentEvent::Reported(outcome, sent));
        });
        None
    }

    /// What the next report of a pod is based on.
    fn basis_of(&self, pod: &PodTask, intents: Option<&NodeIntents>) -> ReportBasis {
        let listed = match intents.and_then(|intents| intents.pods.get(&pod.id)) {
            None => Listed::Missing,
            Some(listed) if listed.hash == pod.intended.hash => {
                listed.index.map_or(Listed::Missing, Listed::Same)
            }
            Some(_) => Listed::Replaced,
        };
        basis(PodIntent {
            intent: pod.intended.index,
            listed,
            proof: pod.proof,
            reported: self.reported(&pod.id),
            outdated: self.outdated.get(&pod.id).map(|(intent, _)| *intent),
        })
    }

    fn add_deletions(&self, batch: &mut Batch, pods: &BTreeMap<PodId, PodTask>) {
        for id in self.written.keys().filter(|id| !pods.contains_key(*id)) {
            let ops = removal(&self.settings.name, id);
            if !batch.txn.fits(&ops, self.settings.limits) {
                break;
            }
            batch.txn.extend(ops);
            batch.sent.reports.insert(id.clone(), None);
        }
    }

    fn add_reports(
        &mut self,
        batch: &mut Batch,
        presence: &PresenceState,
        pods: &BTreeMap<PodId, PodTask>,
        intents: Option<&NodeIntents>,
        now: Instant,
    ) {
        let wall = self.env.clock.wall();
        let bell_value = self.env.ids.ordered_uuid(wall).to_string();
        let alone = Txn::under(&presence.claim);
        let (after, before): (Vec<_>, Vec<_>) = pods
            .iter()
            .filter(|(_, pod)| !pod.is_first_start() || self.must_announce(pod))
            .partition(|(id, _)| Some(*id) >= self.first.as_ref());
        self.first = None;
        for (id, pod) in after.into_iter().chain(before) {
            let basis = self.basis_of(pod, intents);
            let named = match basis {
                ReportBasis::Hold => continue,
                ReportBasis::Intent(_) if self.forbidden_until.is_some_and(|until| until > now) => {
                    batch.wake_at(self.forbidden_until);
                    continue;
                }
                ReportBasis::Intent(intent)
                | ReportBasis::Report(intent, _)
                | ReportBasis::Known(intent) => intent,
            };
            let (mut report, panic) = report_of(pod);
            report.status.intent_index = Some(named);
            let written = self.written.get(id);
            let has_processes = |report: &PodReport| !report.status.processes.is_empty();
            let is_kept = enabled(Failpoint::ReportedOnce)
                && written.and_then(Option::as_ref).is_some_and(has_processes);
            if is_kept || written.is_some_and(|written| written.as_ref() == Some(&report)) {
                continue;
            }
            let guard = guard(&self.settings.name, id, basis);
            if pod.is_first_start() {
                let op = report.announcement(&self.settings.name, id);
                let ops: Vec<Op> = guard.into_iter().chain([op]).collect();
                if batch.txn.fits(&ops, self.settings.limits) {
                    batch.add(id, ops, report, basis);
                } else {
                    self.first.get_or_insert_with(|| id.clone());
                }
                continue;
            }
            let mut job_bell_limit = self.job_bell_limit;
            let mut bells =
                Vec::from_iter(pod.intended.owner.map(|owner| bell(owner, &bell_value)));
            bells.extend(limited_job_bell(&mut job_bell_limit, &report, &bell_value, now));
            let ops_of = |report: &PodReport| {
                let ops = report.ops(&self.settings.name, id, &presence.health, wall);
                let guard: Vec<Op> = guard.iter().cloned().collect();
                [guard, ops, bells.clone()].concat()
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
                    batch.wake_at(Some(at));
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
            batch.add(id, ops, written, basis);
        }
    }

    /// Whether a pod waits for its first start until a report names its intent.
    fn must_announce(&self, pod: &PodTask) -> bool {
        let names = self.reported(&pod.id).map(|(intent, _)| intent);
        !pod.was_started
            && pod.single_instance == SingleInstance::NotNeeded
            && (names.is_none() || names != pod.intended.index)
    }

    /// Handles the result of a transaction.
    pub(super) fn finished(
        &mut self,
        outcome: Result<(Commit, Vec<Entry>), StoreError>,
        sent: SentReports,
        pods: &BTreeMap<PodId, PodTask>,
    ) -> ReportResult {
        self.is_writing = false;
        self.deleting.clear();
        let SentReports { reports, guards } = sent;
        match outcome {
            Ok((Commit::Applied(_), entries)) => self.applied(reports, &entries, pods),
            Ok((Commit::ClaimLost, _)) => return ReportResult::SessionLost,
            Ok((Commit::Refused(refusals), _)) => return self.refused(&refusals, guards),
            // It may have been applied: it is written again.
            Err(error) => {
                let mut bases = guards.values().map(|(_, basis)| basis);
                if matches!(error, StoreError::Forbidden { .. })
                    && bases.any(|basis| matches!(basis, ReportBasis::Intent(_)))
                {
                    self.forbidden_until = Some(monotonic() + FORBIDDEN_PAUSE);
                }
                self.failed(&error.to_string());
                if error.outcome_unknown() {
                    return ReportResult::Unknown;
                }
            }
        }
        ReportResult::Done
    }

    /// Something that a report depends on has changed. The others are written again without it.
    fn refused(
        &mut self,
        refusals: &[Refusal],
        mut guards: BTreeMap<usize, (PodId, ReportBasis)>,
    ) -> ReportResult {
        let mut result = ReportResult::Done;
        let mut others = Vec::new();
        for refusal in refusals {
            match guards.remove(&refusal.op) {
                Some((id, ReportBasis::Intent(intent))) => {
                    self.outdated.insert(id, (intent, monotonic()));
                    result = match result {
                        ReportResult::Changed => ReportResult::Changed,
                        _ => ReportResult::Outdated,
                    };
                }
                Some((id, _)) => {
                    self.reported.remove(&id);
                    self.written.remove(&id);
                    result = ReportResult::Changed;
                }
                None => others.push(refusal.what.clone()),
            }
        }
        if !others.is_empty() {
            self.failed(&others.join("; "));
        }
        result
    }

    fn applied(
        &mut self,
        reports: BTreeMap<PodId, Option<PodReport>>,
        entries: &[Entry],
        pods: &BTreeMap<PodId, PodTask>,
    ) {
        self.failures = 0;
        for (id, report) in reports {
            if let Some(written) = &report {
                let named = written.status.intent_index.filter(|_| pods.contains_key(&id));
                let left = |named| Reported::of(&self.settings.name, &id, named, entries);
                if let Some(reported) = named.and_then(left) {
                    self.reported.insert(id.clone(), reported);
                }
                self.written.insert(id, report);
                continue;
            }
            self.written.remove(&id);
            if !pods.contains_key(&id)
                && let Err(error) = self.data.forget(&id)
            {
                warn!(pod = %id, %error, "the pod's files cannot be removed before the next start of the agent");
            }
            self.data.empty_trash();
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

impl Batch {
    fn wake_at(&mut self, at: Option<Instant>) {
        self.again_at = [self.again_at, at].into_iter().flatten().min();
    }

    /// Adds a report. Its guard, if it has one, is the first of its operations.
    fn add(&mut self, id: &PodId, ops: Vec<Op>, report: PodReport, basis: ReportBasis) {
        if matches!(basis, ReportBasis::Intent(_) | ReportBasis::Report(..)) {
            self.sent.guards.insert(self.txn.ops().len(), (id.clone(), basis));
        }
        self.txn.extend(ops);
        self.sent.reports.insert(id.clone(), Some(report));
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
