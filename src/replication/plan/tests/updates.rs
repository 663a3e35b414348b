//! Updates of a manifest in order.

use super::*;

/// A fixture whose pods have an earlier manifest.
fn outdated(pods: usize, min_health: Option<u32>) -> Fixture {
    let mut fixture = Fixture::resting(u32::try_from(pods).unwrap(), pods, pods);
    (fixture.spec.min_health, fixture.spec.in_order) = (min_health, true);
    for pod in fixture.pods.values_mut() {
        pod.intent = Intent::Differs(Index(5));
    }
    fixture
}

fn restarted(plan: &ReplicationPlan) -> Vec<&str> {
    plan.steps.iter().map(|step| step.pod_ref().node.as_str()).collect()
}

#[test]
fn manifest_in_order_restarts_one_pod_and_waits_for_its_health() {
    for min_health in [None, Some(2)] {
        let mut fixture = outdated(3, min_health);
        for n in 0..3 {
            let plan = fixture.plan();
            assert_eq!(restarted(&plan), [format!("n{n}")]);
            fixture = fixture.after(&plan);
            // Its last report is about the manifest before.
            let waits = fixture.plan();
            assert_eq!((restarted(&waits).len(), waits.update_later), (0, 2 - n));
            let updated = &waits.conditions[3];
            assert!(!updated.status);
            assert!(updated.message.ends_with(&format!("not yet healthy: n{n}")), "{updated:?}");
            fixture.pods.get_mut(&pod_ref(n, "web")).unwrap().unproved = false;
        }
        let done = fixture.plan();
        assert!(done.is_idle() && done.conditions[3].status, "{done:?}");
    }
}

#[test]
fn bad_manifest_takes_one_pod_down_and_its_correction_goes_there_first() {
    let mut fixture = outdated(3, Some(2));
    fixture = fixture.after(&fixture.plan());
    let bad = fixture.pods.get_mut(&pod_ref(0, "web")).unwrap();
    (bad.unproved, bad.health) = (false, Health::Critical);
    assert_eq!(restarted(&fixture.plan()), Vec::<&str>::new());
    fixture.pods.get_mut(&pod_ref(0, "web")).unwrap().intent = Intent::Differs(Index(9));
    assert_eq!(restarted(&fixture.plan()), ["n0"]);
}

/// Somebody deletes an intent, and the manifest is changed before the node has seen it.
#[test]
fn pod_whose_intent_was_deleted_is_repaired_and_not_counted_until_proved() {
    let mut fixture = outdated(4, Some(2));
    fixture.pods.get_mut(&pod_ref(3, "web")).unwrap().intent = Intent::Missing;
    let plan = fixture.plan();
    assert_eq!(restarted(&plan), ["n3", "n0"], "three are up and two must stay");
    let after = fixture.after(&plan);
    assert!(after.pods[&pod_ref(3, "web")].unproved, "its node may still run what it had");
    assert_eq!(restarted(&after.plan()), Vec::<&str>::new());
}

#[test]
fn minimum_that_spares_no_pod_is_told() {
    let plan = outdated(2, Some(2)).plan();
    assert!(plan.is_idle());
    assert!(plan.conditions[3].message.contains("raise the count"), "{:?}", plan.conditions[3]);
    let mut at_once = outdated(2, Some(2));
    at_once.spec.in_order = false;
    assert_eq!(restarted(&at_once.plan()), ["n0", "n1"]);
}

/// Nothing is repaired on a node that a pod should leave, so it keeps the manifest before.
#[test]
fn pod_with_an_earlier_manifest_where_none_is_repaired_is_told() {
    for in_order in [true, false] {
        let mut fixture = Fixture::resting(3, 3, 3);
        fixture.spec.in_order = in_order;
        fixture.spec.strategy = Allocation::Static;
        fixture.eligible.remove(&node(1));
        assert!(fixture.plan().conditions[3].status, "it has the manifest");
        fixture.pods.get_mut(&pod_ref(1, "web")).unwrap().intent = Intent::Differs(Index(5));
        let plan = fixture.plan();
        assert!(plan.is_idle(), "{plan:?}");
        let updated = &plan.conditions[3];
        assert_eq!((updated.status, updated.reason), (false, RcReason::IneligibleNodes));
        assert!(updated.message.contains("1 of 3 pods have an earlier manifest"), "{updated:?}");
        assert!(updated.message.ends_with("n1"), "{updated:?}");
        fixture.readiness.insert(node(1), NodeReadiness::Down);
        assert_eq!(fixture.plan().conditions[3].reason, RcReason::NodeDown);
    }
}

/// The token has lost the right to read health: every pod seems to fail its check.
#[test]
fn no_pod_is_restarted_while_health_is_untrusted() {
    for (min_health, health) in [(None, Health::Absent), (Some(1), Health::Critical)] {
        let mut fixture = outdated(3, min_health);
        fixture.pods.values_mut().for_each(|pod| pod.health = health);
        fixture.allowed_actions = AllowedActions::NoRemoval;
        let plan = fixture.plan();
        assert_eq!((restarted(&plan), plan.update_later), (Vec::new(), 3));
        let updated = &plan.conditions[3];
        assert!(updated.message.contains("cannot be read in full"), "{updated:?}");
        fixture.allowed_actions = AllowedActions::Full;
        assert_eq!(restarted(&fixture.plan()).len(), 3, "pods that fail cost nothing");
    }
}

#[test]
fn pod_that_is_added_counts_as_not_healthy_yet() {
    let mut fixture = Fixture::resting(2, 1, 3);
    (fixture.spec.min_health, fixture.spec.in_order) = (None, true);
    fixture.pods.get_mut(&pod_ref(0, "web")).unwrap().intent = Intent::Differs(Index(5));
    let plan = fixture.plan();
    assert_eq!((restarted(&plan), plan.update_later), (vec!["n1"], 1));
    let updated = &plan.conditions[3];
    assert!(updated.message.ends_with("being added: 1"), "{updated:?}");
    fixture = fixture.after(&plan);
    assert_eq!(restarted(&fixture.plan()), Vec::<&str>::new());
    fixture.pods.get_mut(&pod_ref(1, "web")).unwrap().health = Health::Passing;
    assert_eq!(restarted(&fixture.plan()), ["n0"]);
}
