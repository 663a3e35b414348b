//! The audit log gives the state (15): each transition has exactly one entry, in its transaction, with what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::facts::{CheckFacts, Report};
use crate::model::{AppliedWrite, Item, ServiceModel, ServicePod};
use rcfarm_api::Stored;
use rcfarm_api::audit::{Actual, AuditRecord, Details, Logged, Retarget, compare, fold};
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{NodeName, RcId};
use rcfarm_api::key;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_store::Entry;

/// Checks one write.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    if applied_write.process().is_none() {
        return;
    }
    let entries = entries(applied_write, report);
    let Some((rc, before)) = &applied_write.record else {
        // Audit records of other kinds, such as queues, are written with the changes of those kinds.
        let others = applied_write.changes.iter().any(|(item, _)| *item == Item::Other);
        if entries.iter().any(|details| details.controller().is_some() || !others) {
            report(15, "an audit record was written apart from what it is about".to_owned());
        }
        return;
    };
    let Some(after) = model.statuses.get(rc) else {
        collected(*rc, before, model, report);
        return;
    };
    let statuses = (before, after);
    chain(*rc, statuses, report);
    retargets(applied_write, model, facts.by_hand.contains_key(rc), &entries, report);
    transfers(*rc, statuses, &entries, report);
}

fn entries(applied_write: &AppliedWrite<'_>, report: Report<'_>) -> Vec<Details> {
    let mut all = Vec::new();
    for (item, change) in &applied_write.changes {
        let (Item::Audit(id), Some(entry)) = (item, &change.after) else { continue };
        match AuditRecord::decode(&entry.value).and_then(|record| record.details()) {
            Ok(details) => all.push(details),
            Err(error) => report(15, format!("audit record {id}: {error}")),
        }
    }
    all
}

/// Each transaction of an owner replaces the status of the previous one.
fn chain(rc: RcId, (before, after): (&RcStatus, &RcStatus), report: Report<'_>) {
    if after.revision != before.revision + 1 {
        let (was, is) = (before.revision, after.revision);
        report(15, format!("{rc}: revision {is} follows {was}, so a transaction was overtaken"));
    }
}

/// The status of a record is deleted only once the record is gone. A record that has come back since is another one.
fn collected(rc: RcId, before: &RcStatus, model: &ServiceModel, report: Report<'_>) {
    let record = key::rc(rc);
    let is_same = |entry: &Arc<Entry>| entry.create_index <= before.observed_index;
    if model.below(record.as_str()).any(is_same) {
        report(15, format!("{rc}: the status of a record was deleted"));
    }
}

/// A change of pods has one entry, which names the changed nodes and all nodes. The latter are not checked where a user
/// moved pods by hand, against which transactions are not guarded.
fn retargets(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    by_hand: bool,
    entries: &[Details],
    report: Report<'_>,
) {
    let Some(rc) = applied_write.record() else { return };
    let all = entries
        .iter()
        .filter_map(|details| if let Details::Retarget(d) = details { Some(d) } else { None });
    let (retargets, taken): (Vec<_>, Vec<_>) =
        all.partition(|retarget| retarget.replication_controller_id == rc);
    taken_over(applied_write, rc, &taken, report);
    let mut touched: BTreeSet<&NodeName> = BTreeSet::new();
    let after: BTreeSet<NodeName> = model.places(rc).into_iter().map(|p| p.node).collect();
    let mut before: BTreeSet<PodRef> = model.places(rc);
    for (item, change) in &applied_write.changes {
        let (Item::Pod(place) | Item::Intent(place)) = item else { continue };
        touched.insert(&place.node);
        if matches!(item, Item::Pod(_)) {
            let was = change.before.as_deref().map(ServicePod::of).and_then(|pod| pod.rc);
            if was == Some(rc) {
                before.insert(place.clone())
            } else {
                before.remove(place)
            };
        }
    }
    let before: BTreeSet<NodeName> = before.into_iter().map(|place| place.node).collect();
    let (wanted, found) = (usize::from(!touched.is_empty()), retargets.len());
    if wanted != found {
        report(15, format!("{rc}: {found} audit records of a change of pods, expected {wanted}"));
        return;
    }
    let Some(retarget) = retargets.first() else { return };
    let set = |nodes: &[NodeName]| nodes.iter().cloned().collect::<BTreeSet<NodeName>>();
    let (added, removed) = (set(&retarget.nodes_added), set(&retarget.nodes_removed));
    let listed = retarget.nodes.as_ref().map(|nodes| set(nodes));
    let agrees = retarget.replication_controller_id == rc
        && added == &after - &before
        && removed == &before - &after
        && (by_hand || listed.is_none_or(|listed| listed == after))
        && (by_hand || retarget.count == model.places(rc).len());
    if !agrees {
        report(
            15,
            format!("{rc}: the log says {retarget:?}, pods were on {before:?}, are on {after:?}"),
        );
    }
}

/// An RC whose pods were taken over has one entry, which names their nodes.
fn taken_over(
    applied_write: &AppliedWrite<'_>,
    rc: RcId,
    entries: &[&Retarget],
    report: Report<'_>,
) {
    let mut taken: BTreeMap<RcId, BTreeSet<&NodeName>> = BTreeMap::new();
    for (item, change) in &applied_write.changes {
        let Item::Pod(place) = item else { continue };
        let was = change.before.as_deref().map(ServicePod::of).and_then(|pod| pod.rc);
        if let Some(old) = was.filter(|was| *was != rc) {
            taken.entry(old).or_default().insert(&place.node);
        }
    }
    let logged: BTreeMap<RcId, BTreeSet<&NodeName>> = entries
        .iter()
        .map(|entry| (entry.replication_controller_id, entry.nodes_removed.iter().collect()))
        .collect();
    if taken != logged || entries.len() != logged.len() {
        report(15, format!("{rc} took over {taken:?}, the log says {logged:?}"));
    }
}

/// Start and end of a transfer have one entry each.
fn transfers(
    rc: RcId,
    (before, after): (&RcStatus, &RcStatus),
    entries: &[Details],
    report: Report<'_>,
) {
    let id = |status: &RcStatus| status.transfer.as_ref().map(|transfer| transfer.id);
    let (before, after) = (id(before), id(after));
    let wanted = match (before, after) {
        (None, Some(id)) => vec![(true, id)],
        (Some(id), None) => vec![(false, id)],
        (Some(old), Some(new)) if old != new => vec![(false, old), (true, new)],
        _ => Vec::new(),
    };
    let found = entries.iter().filter_map(|details| match details {
        Details::NodeTransferStart(d) => Some((true, d.node_transfer_id)),
        Details::NodeTransferCompletion(d) | Details::NodeTransferRollback(d) => {
            Some((false, d.node_transfer_id))
        }
        _ => None,
    });
    let found: Vec<_> = found.collect();
    if wanted != found {
        report(15, format!("{rc}: transfers {before:?} -> {after:?}, the log says {found:?}"));
    }
}

/// Folding the whole log gives the state, except for records whose pods a user changed by hand.
pub fn check_fold(model: &ServiceModel, facts: &CheckFacts, report: Report<'_>) {
    let prefix = key::audit_logs();
    let logged = model.below(prefix.as_str()).filter_map(|entry| {
        let id = prefix.tail(&entry.key)?.parse().ok()?;
        let record = AuditRecord::decode(&entry.value).ok()?;
        Some(Logged { id, index: entry.create_index, record })
    });
    let log: Vec<Logged> = logged.collect();
    let mut actual: BTreeMap<RcId, Actual> = BTreeMap::new();
    for (rc, places) in &model.by_rc {
        let nodes = places.iter().map(|place| place.node.clone()).collect();
        actual.entry(*rc).or_default().nodes = nodes;
    }
    for (rc, spec) in &model.records {
        let desired = spec.as_ref().map(|spec| i64::from(spec.replicas_desired));
        actual.entry(*rc).or_default().desired = desired;
    }
    actual.retain(|_, actual| actual.desired.is_some() || !actual.nodes.is_empty());
    let folded = fold(&log);
    for difference in compare(&folded, &actual) {
        let rc = match &difference {
            rcfarm_api::audit::Difference::NotInLog { controller }
            | rcfarm_api::audit::Difference::Nodes { controller, .. }
            | rcfarm_api::audit::Difference::Record { controller }
            | rcfarm_api::audit::Difference::Desired { controller, .. } => controller,
        };
        if !facts.by_hand.contains_key(rc) {
            report(15, format!("the log is not the state: {difference}"));
        }
    }
}
