//! Queues: limits, counters, order, and no eviction (17 to 19, and 21 for queues and groups).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::facts::{CheckFacts, Report, VIEW};
use crate::model::{AppliedWrite, JobModel, ModelEvent};
use crate::reached::{Occasion, met_if};
use rcfarm_api::ResourceList;
use rcfarm_api::ids::QueueName;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::{
    PlacementState, PodGroupPhase, PodGroupReason, PodGroupStatus,
};
use rcfarm_api::queue::spec::{Desired, QueueSpec, QueueStrategy};
use rcfarm_api::queue::status::Counters;

/// Checks one write.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    model: &JobModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    let counts =
        |seen: &ModelEvent| matches!(seen, ModelEvent::GroupStatus(..) | ModelEvent::QueueStatus);
    if applied_write.events.iter().any(counts) {
        recount(model, report);
        lower_waits(applied_write, model, facts);
    }
    if applied_write.process().is_none() {
        return;
    }
    for seen in &applied_write.events {
        let ModelEvent::GroupStatus(id, (before, after)) = seen else { continue };
        edge(id, before.as_deref(), after.as_deref(), report);
        if let Some(before) = before {
            put_out(id, before, after.as_deref(), model, report);
        }
        let Some(after) = after else { continue };
        let charged = |s: &Option<Arc<PodGroupStatus>>| {
            let admitted = s.as_ref().filter(|s| s.phase.is_admitted());
            admitted.map(|s| s.charged.clone()).unwrap_or_default()
        };
        let was = before.as_ref().is_some_and(|s| s.phase.is_admitted());
        let more = charged(&Some(after.clone())).beyond(&charged(before));
        if !more.is_empty() {
            limits(id, after, &more, model, report);
        }
        if !was && after.phase.is_admitted() {
            open(id, after, model, report);
            order(applied_write, id, after, model, facts, report);
        }
    }
}

/// Counters and charges of every queue equal a recount of the groups.
fn recount(model: &JobModel, report: Report<'_>) {
    let mut phases: BTreeMap<&QueueName, Vec<PodGroupPhase>> = BTreeMap::new();
    for status in model.group_statuses.values() {
        if let Some(queue) = &status.queue {
            phases.entry(queue).or_default().push(status.phase);
        }
    }
    for (name, status) in &model.queue_statuses {
        let recount = Counters::recount(phases.remove(name).unwrap_or_default());
        if status.groups != recount {
            report(17, format!("{name} counts {:?}, there are {recount:?}", status.groups));
        }
        let used = used(model, |queue| queue == name);
        if status.allocated != used {
            report(17, format!("{name} is charged {}, its groups have {used}", status.allocated));
        }
    }
    if let Some((name, phases)) = phases.first_key_value() {
        report(17, format!("{name} counts nothing, and has {phases:?}"));
    }
}

fn used(model: &JobModel, counts: impl Fn(&QueueName) -> bool) -> ResourceList {
    let admitted = model.group_statuses.values().filter(|s| s.phase.is_admitted());
    let mine = admitted.filter(|s| s.queue.as_ref().is_some_and(&counts));
    ResourceList::sum(mine.map(|status| &status.charged))
}

/// A queue and its parents, the nearest first.
fn chain<'b>(model: &'b JobModel, name: &'b QueueName) -> Vec<(&'b QueueName, &'b QueueSpec)> {
    let (mut chain, mut at) = (Vec::new(), Some(name));
    while let Some(name) = at.filter(|_| chain.len() < 9) {
        let Some((name, Some(spec))) = model.queues.get_key_value(name) else { break };
        chain.push((name, spec));
        at = spec.parent();
    }
    chain
}

/// Additional charges stay within the limits of the queue and its parents, and leave the siblings' guarantees free.
fn limits(
    id: &GroupId,
    after: &PodGroupStatus,
    more: &ResourceList,
    model: &JobModel,
    report: Report<'_>,
) {
    let Some(queue) = &after.queue else {
        report(17, format!("{id} was admitted without a queue"));
        return;
    };
    if let Some(place) = after.placement.as_ref().filter(|p| p.charge() != after.charged) {
        report(17, format!("{id} is charged {}, it has {}", after.charged, place.charge()));
    }
    let below =
        |name: &QueueName, top: &QueueName| chain(model, name).iter().any(|(link, _)| *link == top);
    let mut from = queue;
    for (link, spec) in chain(model, queue) {
        let mut all = used(model, |name| below(name, link));
        for (sibling, other) in &model.queues {
            let Some(other) = other.as_ref().filter(|_| sibling != from) else { continue };
            if other.parent() == Some(link) {
                let theirs = used(model, |name| below(name, sibling));
                all.add(&other.guarantee.resource.beyond(&theirs));
            }
        }
        for (what, _) in more.iter() {
            let (sum, limit) = (all.amount(what), spec.capability.get(what));
            met_if(limit == Some(sum), Occasion::AtTheLimit);
            if let Some(limit) = limit.filter(|limit| sum > *limit) {
                let (sum, limit) =
                    (ResourceList::spell(what, sum), ResourceList::spell(what, limit));
                report(17, format!("{id} got {more}: {link} has {limit} {what} and uses {sum}"));
            }
        }
        from = link;
    }
}

/// A closed queue admits nothing.
fn open(id: &GroupId, after: &PodGroupStatus, model: &JobModel, report: Report<'_>) {
    let Some(queue) = &after.queue else { return };
    let chain = chain(model, queue);
    if chain.is_empty() {
        report(17, format!("{id} was admitted to {queue}, which cannot be read or is not there"));
    }
    if let Some((link, _)) = chain.iter().find(|(_, spec)| spec.state == Desired::Closed) {
        report(17, format!("{id} was admitted to {queue}, and {link} is closed"));
    }
}

/// 18: in a strict queue no group precedes a higher one that waits and may be admitted.
fn order(
    applied_write: &AppliedWrite<'_>,
    id: &GroupId,
    after: &PodGroupStatus,
    model: &JobModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    let Some(queue) = &after.queue else { return };
    let strict = |spec: &QueueSpec| spec.dequeue_strategy == QueueStrategy::Fifo;
    if !model.queues.get(queue).and_then(Option::as_ref).is_some_and(strict) {
        return;
    }
    let priority = |id: &GroupId| {
        let group = model.groups.get(id)?;
        Some(group.record.as_ref()?.spec.priority)
    };
    let Some(mine) = priority(id) else { return };
    for (other, priority, status) in waiting(applied_write, model, facts, queue) {
        let higher =
            (priority, std::cmp::Reverse(status.since)) > (mine, std::cmp::Reverse(after.since));
        if higher && !exceeds(model, id, other, queue) {
            report(
                18,
                format!("{id} went before {other}, which waits in {queue}: {}", status.reason),
            );
        }
    }
}

/// Whether a group exceeds the limits of its queue or its parents, if `admitted` had not been admitted: then it blocks
/// no other group.
fn exceeds(model: &JobModel, admitted: &GroupId, id: &GroupId, queue: &QueueName) -> bool {
    let group = model.groups.get(id).and_then(|group| group.record.as_ref());
    let Some(least) = group.map(|record| record.spec.charge(&record.spec.least())) else {
        return false;
    };
    let just = model.group_statuses.get(admitted).map(|status| &status.charged);
    chain(model, queue).iter().any(|(link, spec)| {
        let below = |name: &QueueName| chain(model, name).iter().any(|(above, _)| above == link);
        let mut all = used(model, below);
        all.add(&least);
        just.into_iter().for_each(|just| all.sub(just));
        spec.capability.exceeded_by(&all).is_some()
    })
}

/// Groups that may be admitted and have waited in a queue for longer than views are old, with their priorities.
fn waiting<'b>(
    applied_write: &'b AppliedWrite<'_>,
    model: &'b JobModel,
    facts: &CheckFacts,
    queue: &'b QueueName,
) -> impl Iterator<Item = (&'b GroupId, i64, &'b PodGroupStatus)> {
    let (now, since) =
        (super::view::clock_before(applied_write, facts), applied_write.at.saturating_sub(VIEW));
    model.group_statuses.iter().filter_map(move |(other, status)| {
        let group = model.groups.get(other)?;
        let record = group.record.as_ref()?;
        let waits = status.phase == PodGroupPhase::Pending
            && status.queue.as_ref() == Some(queue)
            && record.spec.queue == *queue
            && status.of == group.created
            && record.spec.round == status.round
            && group.since < since
            && model.history.waiting.get(other).is_some_and(|from| *from < since)
            && model.restored_at.is_none();
        let barred = record.spec.hold.is_some()
            || status.not_before.is_some_and(|at| now.is_none_or(|now| at > now))
            || matches!(
                status.reason,
                PodGroupReason::ExceedsCapability | PodGroupReason::InvalidRecord
            );
        (waits && !barred).then_some((other, record.spec.priority, &**status))
    })
}

/// Counts the occasion of a lower, smaller group that waits behind a higher one in a strict queue.
fn lower_waits(applied_write: &AppliedWrite<'_>, model: &JobModel, facts: &CheckFacts) {
    let strict = |spec: &Option<QueueSpec>| {
        spec.as_ref().is_some_and(|spec| spec.dequeue_strategy == QueueStrategy::Fifo)
    };
    for queue in model.queues.iter().filter(|(_, spec)| strict(spec)).map(|(queue, _)| queue) {
        for (_, priority, first) in waiting(applied_write, model, facts, queue) {
            let behind = model.groups.iter().any(|(id, group)| {
                let record = group.record.as_ref().filter(|record| record.spec.queue == *queue);
                let status = model.group_statuses.get(id);
                let pending = status.is_none_or(|status| status.phase == PodGroupPhase::Pending);
                let since = status.map_or(group.created, |status| status.since);
                record.is_some_and(|record| {
                    let rank = (record.spec.priority, std::cmp::Reverse(since));
                    let single =
                        record.spec.tasks.iter().map(|task| task.replicas).sum::<u32>() == 1;
                    pending && single && rank < (priority, std::cmp::Reverse(first.since))
                })
            });
            met_if(behind, Occasion::LowerWaited);
        }
    }
}

/// Whether a group's queue and its parents are open and within their limits.
fn would_admit(model: &JobModel, status: &PodGroupStatus) -> bool {
    let Some(queue) = &status.queue else { return false };
    let chain = chain(model, queue);
    let links = chain.iter();
    let mut links =
        links.map(|(link, spec)| spec.state == Desired::Open && within(model, link, spec));
    !chain.is_empty() && links.all(|fits| fits)
}

fn within(model: &JobModel, link: &QueueName, spec: &QueueSpec) -> bool {
    let below = |name: &QueueName| chain(model, name).iter().any(|(above, _)| *above == link);
    spec.capability.exceeded_by(&used(model, below)).is_none()
}

/// 19: a placement is not removed while its owner wants it and has pods there.
fn put_out(
    id: &GroupId,
    before: &PodGroupStatus,
    after: Option<&PodGroupStatus>,
    model: &JobModel,
    report: Report<'_>,
) {
    let bound = |status: &PodGroupStatus| {
        status.placement.as_ref().is_some_and(|place| place.state == PlacementState::Bound)
    };
    if !bound(before) || after.is_some_and(bound) {
        met_if(bound(before) && !would_admit(model, before), Occasion::KeptAnyway);
        return;
    }
    let Some(group) = model.groups.get(id).filter(|group| group.created == before.of) else {
        return;
    };
    let Some(record) = &group.record else {
        report(19, format!("{id} lost its place, because its record cannot be read"));
        return;
    };
    let members = &record.members;
    let alive = members.bound + members.running + members.releasing;
    let wanted = record.spec.round == before.round && record.spec.hold.is_none();
    if wanted && alive > 0 {
        report(19, format!("{id} lost its place, and has {members:?}"));
    }
}

/// 21: edges of a group's state machine.
fn edge(
    id: &GroupId,
    before: Option<&PodGroupStatus>,
    after: Option<&PodGroupStatus>,
    report: Report<'_>,
) {
    use PodGroupPhase as P;
    let Some(after) = after else { return };
    let before = before.filter(|before| before.of == after.of);
    let from = before.map_or(P::Pending, |before| before.phase);
    // A release may take several transactions: the round grows in the first, the phase changes in the last.
    let is_release = |before: &PodGroupStatus| {
        before.placement.as_ref().is_some_and(|place| place.then == Some(after.phase))
    };
    let new_round = before.is_some_and(|before| before.round < after.round || is_release(before));
    let listed = match (from, after.phase) {
        (from, to) if from == to => true,
        (P::Pending, P::Inqueue) => true,
        (P::Inqueue | P::Running | P::Unknown, P::Pending) => true,
        (P::Inqueue | P::Running | P::Unknown, P::Running | P::Unknown | P::Completed) => true,
        (P::Running | P::Unknown, P::Inqueue) | (P::Completed, P::Pending) => new_round,
        _ => false,
    };
    if !listed {
        report(21, format!("{id} went from {from} to {}", after.phase));
    }
}
