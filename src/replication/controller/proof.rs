//! Whether nodes run the manifests that are intended for them, for RCs whose pods get a manifest in order.
//!
//! Key read: `reality/<node>/<pod>`. After a pod's intent was changed, its health is about the old manifest until the node
//! has restarted it. rcfarm's agents write reality and health in one transaction. p2's preparers write reality after they
//! have launched the manifest, in a form of their own (`p2.md` §2.5).
//!
//! A place is read until its intent runs, and not again until the intent changes. It is proved when it has then passed its
//! check for [`MIN_HEALTHY_TIME`] without a break: a program that ends soon after it was started passes for a moment, as
//! each time that it is started again. An intent that was never rewritten needs no proof: there was no other manifest
//! that its pod's health could be about. One that was deleted and made anew is rewritten: its node may have seen neither.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;

use super::{RcController, RcView};
use crate::cluster::intents::Intent;
use crate::cluster::nodes::NodeReadiness;
use crate::farm::kind::ReconcileError;
use crate::replication::RcPods;
use crate::replication::plan::RcPod;
use rcfarm_api::ids::PodRef;
use rcfarm_api::key;
use rcfarm_api::manifest::{Manifest, content_hash};
use rcfarm_api::node::Health;
use rcfarm_api::rc::status::RcConditionType;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Entry, Index, Query, Versioned};

/// How many reports are read from Consul at the same time.
const READS: usize = 8;

/// A pod counts as healthy with a changed manifest when it has passed its check for so long (Nomad's `min_healthy_time`).
const MIN_HEALTHY_TIME: Duration = Duration::from_secs(10);

/// Passing pods whose nodes run their intents.
#[derive(Debug, Default)]
pub(super) struct ProvedIntents(BTreeMap<PodRef, RunningIntent>);

/// An intent that a node runs.
#[derive(Debug, Clone, Copy)]
struct RunningIntent {
    /// ModifyIndex of the intent.
    index: Index,
    /// Since when the pod has been known to run it and to pass its check.
    since: Instant,
}

impl RcController {
    /// Marks passing pods whose nodes are not known to run their intents, or not for long. Does nothing unless it matters:
    /// while a pod waits for the record's manifest, too many pods exist, or one is about to leave its node.
    pub(super) async fn prove_pods(&mut self, input: &mut RcView) -> Result<(), ReconcileError> {
        if !input.spec.in_order || !self.health_matters(input) {
            return Ok(());
        }
        let now = monotonic();
        let mut pods = RcPods::clone(&input.pods);
        let rewritten = |(place, pod): (&PodRef, &RcPod)| {
            let intent = self.caches.intent_at(&self.own, place)?;
            let matters = pod.health == Health::Passing && is_rewritten(intent, pod.created);
            matters.then(|| (place.clone(), intent))
        };
        let rewritten: BTreeMap<PodRef, Versioned<u64>> =
            pods.iter().filter_map(rewritten).collect();
        self.proved.0.retain(|place, running| {
            rewritten.get(place).is_some_and(|intent| intent.index == running.index)
        });
        let is_young = |running: &RunningIntent| now < running.since + MIN_HEALTHY_TIME;
        for place in rewritten.keys() {
            if let Some(pod) = pods.get_mut(place) {
                pod.unproved = self.proved.0.get(place).is_none_or(is_young);
            }
        }
        let to_read: Vec<(PodRef, Versioned<u64>)> =
            rewritten.into_iter().filter(|(place, _)| !self.proved.0.contains_key(place)).collect();
        let read = |(place, intent): (PodRef, Versioned<u64>)| {
            let reader = self.ctx.reader.clone();
            async move {
                let key = key::reality(&place.node, &place.pod);
                let answer = reader.get(&key, Query::PLAIN).await?;
                Ok::<_, ReconcileError>((place, intent, answer.value))
            }
        };
        let answers: Vec<_> =
            stream::iter(to_read).map(read).buffer_unordered(READS).collect().await;
        for answer in answers {
            let (place, intent, reality) = answer?;
            let by_agent = self.view.has_agent(&place.node);
            let text = input.spec.manifest.text();
            if reality.is_some_and(|reality| runs(&reality, intent, by_agent, text)) {
                self.proved.0.insert(place, RunningIntent { index: intent.index, since: now });
            }
        }
        input.pods = Arc::new(pods);
        Ok(())
    }

    /// Whether the plan may depend on which pods run their intents.
    fn health_matters(&self, input: &RcView) -> bool {
        let wanted = input.spec.manifest.id();
        let is_outdated = |(place, pod): (&PodRef, &RcPod)| {
            place.pod != *wanted || matches!(pod.intent, Intent::Differs(_))
        };
        let leaves = |place: &PodRef| {
            !input.eligible.contains(&place.node)
                || self.readiness(input, &place.node) > NodeReadiness::Suspect
        };
        let updated = self.chain.status().condition(RcConditionType::Updated);
        input.pods.iter().any(is_outdated)
            || updated.is_some_and(|condition| !condition.status)
            || input.pods.len() > input.spec.replicas_desired as usize
            || self.chain.status().transfer.is_some()
            || input.pods.keys().any(leaves)
    }
}

/// Whether the node may know an earlier intent of a pod whose label was created at `pod`. Both are created by one
/// transaction, so an intent that is newer than its label replaces one that somebody deleted.
fn is_rewritten(intent: Versioned<u64>, pod: Index) -> bool {
    intent.created != intent.index || intent.created > pod
}

/// Whether a node that reports `reality` runs the intent with this hash. `text` is the record's manifest.
fn runs(reality: &Entry, intent: Versioned<u64>, by_agent: bool, text: &str) -> bool {
    let Versioned { index, value: hash, .. } = intent;
    if content_hash(&reality.value) == hash {
        return true;
    }
    // p2's preparer writes manifests in a form of its own, and only after it has launched them.
    !by_agent
        && (reality.modify_index > index
            || hash == content_hash(text.as_bytes()) && means_the_same(&reality.value, text))
}

/// Whether two manifests differ in their form alone.
fn means_the_same(reality: &[u8], text: &str) -> bool {
    let fields = |text: &str| Manifest::parse(text).ok()?.fields().ok();
    let reality = std::str::from_utf8(reality).ok().and_then(fields);
    reality.is_some() && reality == fields(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intent_that_was_deleted_and_made_anew_is_rewritten() {
        let intent =
            |created, index| Versioned { index: Index(index), created: Index(created), value: 1 };
        assert!(!is_rewritten(intent(5, 5), Index(5)), "made with its pod");
        assert!(!is_rewritten(intent(5, 5), Index(8)), "adopted by a newer pod");
        assert!(is_rewritten(intent(5, 9), Index(5)), "replaced");
        assert!(is_rewritten(intent(9, 9), Index(5)), "deleted by hand, then repaired");
    }

    #[test]
    fn reality_of_a_p2_node_counts_once_it_is_newer_or_means_the_same() {
        let (old, new) = ("id: web\nn: 1\n", "{id: web, n: 2}\n");
        let value = content_hash(new.as_bytes());
        let intent = Versioned { index: Index(20), created: Index(5), value };
        let reality = |value: &'static str, index| Entry {
            key: "reality/n1/web".to_owned(),
            value: value.into(),
            flags: 0,
            session: None,
            lock_index: 0,
            create_index: Index(1),
            modify_index: Index(index),
        };
        let runs = |value, index, by_agent| runs(&reality(value, index), intent, by_agent, new);
        for by_agent in [true, false] {
            assert!(runs(new, 10, by_agent));
            assert!(!runs(old, 10, by_agent));
            let as_go_writes_it = "id: web\nn: 2\n";
            assert_eq!(runs(as_go_writes_it, 10, by_agent), !by_agent);
            // An agent repeats its report while it still stops the old manifest.
            assert_eq!(runs(old, 30, by_agent), !by_agent);
        }
    }
}
