//! Ownership of writes (1 to 4).

use std::collections::BTreeSet;

use crate::facts::{CheckFacts, Report, SimActor};
use crate::model::{AppliedWrite, Item, ServiceModel};
use crate::reached::{Occasion, met_if};
use rcfarm_api::ids::RcId;
use rcfarm_api::labels::{Labels, Selector};

/// Checks one write.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    nothing_left(applied_write, report);
    relabelled(applied_write, model, facts);
    new_owners(applied_write, model, facts, report);
    let Some(process) = applied_write.process() else { return };
    let Some(farm) = facts.processes.get(&process) else { return };
    for rc in written(applied_write) {
        match model.owners.get(&rc) {
            Some(session) if facts.sessions.get(session) == Some(&process) => {}
            holder => {
                let whose = holder.and_then(|s| facts.sessions.get(s)).map(|n| format!("#{n}"));
                let whose = whose.unwrap_or_else(|| "nobody".to_owned());
                let me = &farm.farm;
                report(1, format!("{me} #{process} changed {rc}, whose lock {whose} holds"));
            }
        }
        if !may_match(model, rc, &farm.selector, applied_write) {
            let (me, selector) = (&farm.farm, &farm.selector);
            report(3, format!("{me} changed {rc}, which its selector {selector:?} does not match"));
        }
    }
}

/// RCs that a transaction acts for: the one whose status it replaces, or else those whose pods it changes. Check 9
/// finds changes of another RC's pods.
fn written(applied_write: &AppliedWrite<'_>) -> BTreeSet<RcId> {
    if let Some(record) = applied_write.record() {
        return BTreeSet::from([record]);
    }
    applied_write.owners_of_pods()
}

fn may_match(
    model: &ServiceModel,
    rc: RcId,
    selector: &Selector,
    applied_write: &AppliedWrite<'_>,
) -> bool {
    if selector.is_everything() {
        return true;
    }
    let matches =
        |labels: &Option<Labels>| labels.as_ref().is_some_and(|labels| selector.matches(labels));
    let bare = selector.matches(&Labels::new());
    model
        .rc_labels
        .get(&rc)
        .map_or(bare, |t| t.ever(model.oldest_view(applied_write.at), bare, matches))
}

/// A lock key is deleted with the session that holds it.
fn nothing_left(applied_write: &AppliedWrite<'_>, report: Report<'_>) {
    for (item, change) in &applied_write.changes {
        let (Item::Owner(rc) | Item::OtherLock(rc)) = item else { continue };
        let ends = applied_write.actor == SimActor::Consul && matches!(item, Item::Owner(_));
        met_if(ends && change.after.is_none(), Occasion::LockEnded);
        if change.after.as_ref().is_some_and(|entry| entry.session.is_none()) {
            report(4, format!("{} of {rc} stays without a holder", change.key));
        }
    }
}

/// Whether an owner must release a record.
fn relabelled(applied_write: &AppliedWrite<'_>, model: &ServiceModel, facts: &CheckFacts) {
    for (item, _) in &applied_write.changes {
        let Item::RcLabels(rc) = item else { continue };
        let owner = model.owners.get(rc).and_then(|session| facts.sessions.get(session));
        let Some(owner) = owner.and_then(|process| facts.processes.get(process)) else { continue };
        let labels = model.rc_labels.get(rc).and_then(|t| t.now()?.clone());
        let kept = labels.is_some_and(|labels| owner.selector.matches(&labels));
        met_if(!kept, Occasion::RelabelledAway);
    }
}

/// Checks that a new lock holder may have the record.
fn new_owners(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    for (item, change) in &applied_write.changes {
        let Item::Owner(rc) = item else { continue };
        let Some(session) = change.after.as_ref().and_then(|entry| entry.session.as_ref()) else {
            continue;
        };
        let owner = facts.sessions.get(session).and_then(|process| facts.processes.get(process));
        let Some(owner) = owner else { continue };
        if !may_match(model, *rc, &owner.selector, applied_write) {
            let (farm, selector) = (&owner.farm, &owner.selector);
            report(3, format!("{farm} got {rc}, which its selector {selector:?} does not match"));
        }
    }
}
