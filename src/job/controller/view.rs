//! Reads the input of a reconcile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};

use super::job_type::TypeCopy;
use super::{CONCURRENT_READS, JobController, PlannedStep};
use crate::cluster::commands::Pending;
use crate::cluster::nodes::NodeReadiness;
use crate::farm::kind::{Action, ReconcileError};
use crate::farm::records::Record;
use crate::job::caches::{Pods, StoppedPods};
use crate::job::dependencies::{self, JobDependency};
use crate::job::document::Read;
use crate::job::doorbells::MOST_READ;
use crate::job::members::{FreePod, MemberPod, MemberRemoveReason};
use crate::job::owner::ControllerRef;
use crate::job::plan::ObservedGroup;
use crate::job::plan::waiting::why_waits;
use crate::job::{document, failpoints, writes};
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::job::spec::{JobSpec, JobUid, Slot};
use rcfarm_api::job::status::PodPhase;
use rcfarm_api::manifest::content_hash;
use rcfarm_api::pod_group::status::{GroupPlacement, PodGroupPhase};
use rcfarm_api::{FieldError, key};
use rcfarm_store::{Index, Key, Query, StoreError, offload};

/// A decoded record.
#[derive(Clone)]
pub(super) struct DecodedJob {
    pub(super) read: Read,
    /// Hash of the fields that may not change: [`document::immutable_hash`].
    pub(super) immutable_hash: u64,
    /// [`document::requestless_hash`].
    pub(super) requestless_hash: u64,
    /// The record that made the job.
    pub(super) owner: Option<ControllerRef>,
    /// The jobs that it waits for.
    pub(super) dependencies: Vec<JobDependency>,
}

impl DecodedJob {
    /// Size of a plan: members of all tasks, and tasks of the array.
    pub(super) fn size(&self) -> usize {
        let JobSpec { tasks, array, .. } = &self.read.spec;
        let members: usize = tasks.iter().map(|task| task.replicas as usize).sum();
        members + array.as_ref().map_or(0, |array| array.len() as usize)
    }
}

/// Input of one reconcile.
pub(super) struct JobView {
    pub(super) record: Arc<DecodedJob>,
    pub(super) record_index: Index,
    pub(super) uid: JobUid,
    pub(super) pods: Pods,
    pub(super) unowned: Vec<FreePod>,
    pub(super) taken: BTreeSet<Slot>,
    pub(super) group: ObservedGroup,
    pub(super) commands: Vec<Pending>,
    /// ModifyIndex of the PodGroup's status.
    pub(super) placed_at: Index,
}

impl JobController {
    /// Whether the job waits for others. It writes nothing until then; a command starts it, and carries itself out.
    pub(super) async fn waits_for_others(&mut self, input: &JobView) -> Result<bool, StoreError> {
        let dependencies = failpoints::change_dependencies(&input.record.dependencies);
        let status = self.chain.status();
        let has_begun = status.uid == input.uid && !status.phases.is_empty();
        let may_wait = !dependencies.is_empty() && !has_begun && self.group.0 == Index::ZERO;
        if !may_wait || input.record.read.spec.deleting || !input.commands.is_empty() {
            self.stop_waiting();
            return Ok(false);
        }
        self.caches.note_waiting(&self.id, dependencies);
        self.is_waiting = true;
        let unmet =
            dependencies::read_unmet(self.ctx.reader.as_ref(), &self.id, dependencies).await?;
        if unmet.is_empty() {
            self.stop_waiting();
        }
        Ok(!unmet.is_empty())
    }

    pub(super) fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.caches.forget_waiting(&self.id);
        }
    }

    /// Decodes the record if its ModifyIndex has changed.
    fn decoded(&mut self, index: Index, value: &[u8]) -> Result<Arc<DecodedJob>, Vec<FieldError>> {
        if let Some((_, same)) = self.decoded.as_ref().filter(|(then, _)| *then == index) {
            return Ok(same.clone());
        }
        let (document, mut read) = match document::decode(&self.id, value) {
            // A job that is being deleted needs no valid spec: its pods and group are found by name.
            Err(problems) => document::finalize(value).ok_or(problems)?,
            Ok(read) => read,
        };
        read.spec.ttl = read.spec.ttl.or(self.default_ttl);
        let immutable_hash = document::immutable_hash(&document);
        let requestless_hash = document::requestless_hash(&document);
        let owner = ControllerRef::in_document(&document);
        // A record whose annotation is not valid is refused above, but for one that is being deleted.
        let dependencies = dependencies::in_document(&self.id, &document).unwrap_or_default();
        let decoded =
            Arc::new(DecodedJob { read, immutable_hash, requestless_hash, owner, dependencies });
        self.decoded = Some((index, decoded.clone()));
        Ok(decoded)
    }

    /// Reads what the plan depends on. `Err` within: what to do instead, as the record is not valid, which the status says,
    /// or was given its type.
    pub(super) async fn read_input(
        &mut self,
        record: &Record,
    ) -> Result<Result<JobView, Action>, ReconcileError> {
        if let Some(why) = self.caches.blind() {
            return Err(ReconcileError::Elsewhere(why));
        }
        let decoded = match self.decoded(record.index, &record.value) {
            Ok(decoded) => decoded,
            Err(problems) => {
                let (problems, action) = match self.copy_type(record).await? {
                    Some(TypeCopy::Written(action)) => return Ok(Err(action)),
                    Some(TypeCopy::Missing(why, action)) => (vec![why], action),
                    None => (problems, Action::AwaitChange),
                };
                self.report_invalid(record.index, JobUid(record.created), &problems).await?;
                return Ok(Err(action));
            }
        };
        if let Some(action) = self.await_hook(record, &decoded).await? {
            return Ok(Err(action));
        }
        self.confirm_removed().await?;
        let uid = JobUid(record.created);
        let group = self.observed_group(&decoded.read, uid)?;
        let spec = &decoded.read.spec;
        let read = || self.caches.pods_of(&self.id, uid, &self.known, Some(spec));
        let mut pods = offload(decoded.size(), read).await;
        pods.mismatched.retain(|place, _| writes::is_member(spec, &self.id, &place.pod));
        let unowned = pods.unowned.iter().map(|(place, (unowned, intent))| FreePod {
            slot: unowned.slot.clone(),
            node: place.node.clone(),
            is_intended: intent.is_some(),
        });
        let unowned = unowned.collect();
        self.check_missing_pods(uid, &pods, &group).await?;
        let taken = self.caches.taken(&self.id, &group, &pods, &self.known);
        let record_index = record.index;
        let placed_at = self.caches.groups.snapshot().value.0.get(&self.id).map(|s| s.index);
        let placed_at = placed_at.unwrap_or_default();
        let record = decoded;
        let commands = self.commands();
        Ok(Ok(JobView {
            record,
            record_index,
            uid,
            pods,
            unowned,
            taken,
            group,
            commands,
            placed_at,
        }))
    }

    /// Forgets own writes that the caches show. Reads whether nodes have pods that were removed before they were
    /// reported: the cache of `reality/` may lag.
    pub(super) async fn confirm_removed(&mut self) -> Result<(), StoreError> {
        self.known.forget_shown(&self.caches);
        let reader = &self.ctx.reader;
        let asked = self.known.unconfirmed().into_iter().map(|place| async move {
            let keys =
                [key::pod_status(&place.pod, &place.node), key::reality(&place.node, &place.pod)];
            let status = reader.get(&keys[0], Query::CONSISTENT).await?.value;
            let real = reader.get(&keys[1], Query::CONSISTENT).await?.value;
            Ok::<_, StoreError>((place, status, real))
        });
        let mut asked = stream::iter(asked).buffered(CONCURRENT_READS);
        while let Some(answer) = asked.next().await {
            let (place, status, real) = answer?;
            let real = real.map(|entry| (content_hash(&entry.value), entry.modify_index));
            let wake = &self.claimed.wake;
            self.known.read_removed(place, status.as_ref(), real, &self.caches, wake);
        }
        Ok(())
    }

    /// Reads each pod that the caches lack although this controller did not remove it, and fails if it is there. ACLs
    /// may hide keys from a list, or the cache is old. A read of a single key is refused where a list omits the key.
    /// Pods that the caches show under labels of others are not missing: the claim table decides about them.
    async fn check_missing_pods(
        &self,
        uid: JobUid,
        pods: &Pods,
        group: &ObservedGroup,
    ) -> Result<(), ReconcileError> {
        let bare = pods.own.iter().filter(|pod| pod.intent.is_none());
        let mut keys: Vec<Key> =
            bare.map(|pod| key::intent(&pod.place.node, &pod.place.pod)).collect();
        let status = self.chain.status();
        let labels = self.caches.nodes.pods.snapshot();
        let is_shown = |place: &PodRef| {
            labels.value.get(place).is_some() || self.known.labels.pending(&labels, place).is_some()
        };
        if status.uid == uid {
            let there: BTreeSet<&Slot> = pods.own.iter().map(|pod| &pod.slot).collect();
            for (slot, node) in group.places.iter().flatten().chain(&group.ended) {
                if status.has_started(slot)
                    && !there.contains(slot)
                    && let Ok(pod) = slot.pod_id(&self.id, group.pod_ids)
                {
                    let place = PodRef { node: node.clone(), pod };
                    if !is_shown(&place) {
                        keys.push(key::pod_labels(&place.node, &place.pod));
                    }
                }
            }
        }
        let reader = &self.ctx.reader;
        let asked = keys.into_iter().map(|key| async move {
            let answer = reader.get(&key, Query::CONSISTENT).await;
            (key, answer)
        });
        let mut asked = stream::iter(asked).buffered(CONCURRENT_READS);
        while let Some((key, answer)) = asked.next().await {
            match answer {
                Ok(answer) if answer.value.is_none() => {}
                Ok(_) | Err(StoreError::Forbidden { .. }) => {
                    self.caches.nodes.pods.refresh_soon();
                    self.caches.nodes.intents.refresh_soon();
                    let why = format!("{key} is there, and what was read does not show it");
                    return Err(ReconcileError::Elsewhere(why));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads the pods that a step stops and that have not ended in the caches. These may lag, and what has ended keeps
    /// its pod with the log. Where it stops many, only an owner that has just claimed the job reads: the caches then
    /// are as new as its claim. Before members leave drained nodes as far as a disruption budget permits, reads those that
    /// it counts. Returns whether anything was read; the step is then planned again.
    pub(super) async fn read_stopped(
        &mut self,
        input: &JobView,
        step: &PlannedStep,
    ) -> Result<bool, StoreError> {
        let counted = counted_by_budget(input, step);
        if !counted.is_empty() {
            let read = self.caches.read_stopped(counted).await?;
            if let StoppedPods::Each(read) = read {
                self.known.read(read, &self.caches, &self.claimed.wake);
            }
            return Ok(true);
        }
        let stopped = step.plan.remove.iter().filter(|(pod, why)| {
            *why == MemberRemoveReason::Stop && !pod.phase.has_ended() && !pod.lost
        });
        let stopped: Vec<PodRef> = stopped.map(|(pod, _)| pod.place.clone()).collect();
        if stopped.is_empty() || stopped.len() > MOST_READ && self.has_read_states {
            return Ok(false);
        }
        match self.caches.read_stopped(stopped).await? {
            StoppedPods::Each(read) => self.known.read(read, &self.caches, &self.claimed.wake),
            StoppedPods::Caches => self.has_read_states = true,
        }
        Ok(true)
    }

    /// State of the PodGroup, from its record and the status that the batch controller wrote.
    pub(super) fn observed_group(
        &self,
        read: &Read,
        uid: JobUid,
    ) -> Result<ObservedGroup, ReconcileError> {
        let (index, record) = &self.group;
        if *index == Index::ZERO {
            return Ok(ObservedGroup::default());
        }
        let owner = record.as_ref().and_then(|record| record.spec.owner.as_ref());
        let of_name = owner.is_some_and(|o| o.kind == "Job" && o.name == self.id.name.as_str());
        if !of_name {
            let key = key::pod_group(&self.id);
            let why = format!("{key} is not this job's; delete it, or name the job otherwise");
            return Err(ReconcileError::Record(why));
        }
        let Some(record) =
            record.as_ref().filter(|_| owner.is_some_and(|o| o.uid == uid.to_string()))
        else {
            return Ok(ObservedGroup { is_foreign: true, ..ObservedGroup::default() });
        };
        let statuses = self.caches.groups.snapshot();
        let status = statuses.value.value(&self.id).and_then(Option::as_ref);
        let status = status.filter(|status| {
            status.owner_uid == Some(uid.to_string()) && status.round == record.spec.round
        });
        let Some(status) = status else {
            let round = record.spec.round;
            return Ok(ObservedGroup { exists: true, round, ..ObservedGroup::default() });
        };
        let down = |node: &NodeName| self.caches.nodes.readiness(node) == NodeReadiness::Down;
        let is_drained = |slot: &Slot, node: &NodeName| {
            !self.has_started(uid, slot)
                && self.caches.nodes.readiness(node) == NodeReadiness::Draining
        };
        let bound = match status.may_start(&record.spec) {
            true => writes::places(&read.spec, |task, n| status.node_of(task, n).cloned()),
            false => BTreeMap::new(),
        };
        let places = status.may_start(&record.spec).then(|| {
            let mut places = bound.clone();
            // No member starts on a draining node.
            places.retain(|slot, node| !down(node) && !is_drained(slot, node));
            places
        });
        let ended = status.placement.iter().flat_map(GroupPlacement::ended);
        let ended = ended.filter_map(|(task, index, node)| {
            let task = read.spec.tasks.iter().find(|one| one.lower_name() == task)?;
            Some((Slot::new(&task.name, index), node.clone()))
        });
        let drains =
            |node: &&NodeName| self.caches.nodes.readiness(node) == NodeReadiness::Draining;
        let draining = bound.values().filter(drains).cloned().collect();
        Ok(ObservedGroup {
            exists: true,
            is_foreign: false,
            // What it asks for may change while it only reserves.
            is_admitted: status.phase.is_admitted() && status.reservation.is_none(),
            round: record.spec.round,
            places,
            ended: ended.collect(),
            bound,
            draining,
            pod_ids: status.placement.as_ref().map(|p| p.pod_ids).unwrap_or_default(),
            unknown: status.phase == PodGroupPhase::Unknown,
            evicted: crate::job::failpoints::change_eviction(status.evicted())
                .map(ToString::to_string),
            is_over: status.phase == PodGroupPhase::Completed,
            waits: why_waits(status, read.spec.framework),
        })
    }

    /// Whether a member's pod exists or is being created, according to the status.
    pub(super) fn has_started(&self, uid: JobUid, slot: &Slot) -> bool {
        let status = self.chain.status();
        status.uid == uid && status.has_started(slot)
    }

    /// Commands not yet executed, oldest first.
    pub(super) fn commands(&self) -> Vec<Pending> {
        let seen = self.caches.commands.snapshot();
        let of_job = seen.value.jobs.get(&self.id).into_iter().flatten();
        of_job
            .filter(|command| self.consumed.pending(&seen, &command.id).is_none())
            .cloned()
            .collect()
    }
}

/// The members that a disruption budget counts as available, if the step takes some of them from drained nodes.
fn counted_by_budget(input: &JobView, step: &PlannedStep) -> Vec<PodRef> {
    let is_ready = |pod: &MemberPod| pod.phase == PodPhase::Running && pod.ready;
    let leaves = |(pod, why): &(MemberPod, MemberRemoveReason)| {
        *why == MemberRemoveReason::Lost && is_ready(pod) && !pod.on_down_node
    };
    if input.record.read.spec.budget.is_none() || !step.plan.remove.iter().any(leaves) {
        return Vec::new();
    }
    input.pods.own.iter().filter(|pod| is_ready(pod)).map(|pod| pod.place.clone()).collect()
}
