//! Which RCs a change of nodes concerns, so that the others are not woken.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::wake::NodeChanges;
use crate::placement::NodeLabels;
use rcfarm_api::ids::{NodeName, RcId};
use rcfarm_api::labels::Selector;

/// Node selectors of the RCs that this farm owns. One entry per distinct selector: thousands of RCs often share one.
#[derive(Debug, Default)]
pub(super) struct Interests {
    by_selector: BTreeMap<String, (Selector, BTreeSet<RcId>)>,
    selector_of: BTreeMap<RcId, String>,
    /// RCs that look for a node.
    seeking: BTreeSet<RcId>,
}

impl Interests {
    /// Notes the selector of an RC. Must be called before the RC's eligible nodes are read.
    pub(super) fn select(&mut self, id: RcId, selector: &Selector) {
        let text = selector.to_string();
        if self.selector_of.get(&id) == Some(&text) {
            return;
        }
        self.forget(id);
        let entry = self.by_selector.entry(text.clone());
        entry.or_insert_with(|| (selector.clone(), BTreeSet::new())).1.insert(id);
        self.selector_of.insert(id, text);
    }

    /// Notes whether an RC looks for a node. Must be called before the readiness of nodes is read.
    pub(super) fn seek(&mut self, id: RcId, seeks: bool) {
        match seeks {
            true => drop(self.seeking.insert(id)),
            false => drop(self.seeking.remove(&id)),
        }
    }

    pub(super) fn forget(&mut self, id: RcId) {
        self.seeking.remove(&id);
        let Some(selector) = self.selector_of.remove(&id) else { return };
        if let Some((_, rcs)) = self.by_selector.get_mut(&selector) {
            rcs.remove(&id);
            if rcs.is_empty() {
                self.by_selector.remove(&selector);
            }
        }
    }

    /// RCs whose eligible nodes changed, and RCs that look for a node if an eligible one changed.
    pub(super) fn concerned(&self, changes: &NodeChanges<'_>) -> BTreeSet<RcId> {
        let (before, after) = changes.labels;
        let mut concerned = BTreeSet::new();
        for (selector, rcs) in self.by_selector.values() {
            let matches = |labels: &NodeLabels, node: &NodeName| {
                labels.nodes.get(node).is_some_and(|labels| selector.matches(labels))
            };
            let is = |node: &&NodeName| matches(after, node);
            if changes.nodes.iter().any(|node| matches(before, node) != is(&node)) {
                concerned.extend(rcs);
            } else if !self.seeking.is_empty() && changes.nodes.iter().any(|node| is(&node)) {
                concerned.extend(rcs.intersection(&self.seeking));
            }
        }
        concerned
    }
}

#[cfg(test)]
mod tests {
    use rcfarm_api::labels::Labels;
    use uuid::Uuid;

    use super::*;

    fn labels(nodes: &[(&str, &str)]) -> NodeLabels {
        let pool = |pool: &str| Labels::from([("pool".into(), pool.into())]);
        let nodes = nodes.iter().map(|(node, of)| (node.parse().unwrap(), pool(of)));
        NodeLabels { nodes: nodes.collect() }
    }

    fn changes<'a>(before: &'a NodeLabels, after: &'a NodeLabels, node: &str) -> NodeChanges<'a> {
        NodeChanges { nodes: [node.parse().unwrap()].into(), labels: (before, after) }
    }

    #[test]
    fn node_change_concerns_those_that_it_makes_eligible_or_who_look_for_one() {
        let (web, batch) = (RcId(Uuid::from_u128(1)), RcId(Uuid::from_u128(2)));
        let mut interests = Interests::default();
        interests.select(web, &"pool=web".parse().unwrap());
        interests.select(batch, &"pool=batch".parse().unwrap());
        let (old, new) =
            (labels(&[("n1", "web"), ("n2", "db")]), labels(&[("n1", "web"), ("n2", "batch")]));
        assert_eq!(interests.concerned(&changes(&old, &new, "n2")), [batch].into());
        assert_eq!(interests.concerned(&changes(&new, &old, "n2")), [batch].into());
        assert_eq!(interests.concerned(&changes(&new, &new, "n1")), [].into());
        interests.seek(web, true);
        assert_eq!(interests.concerned(&changes(&new, &new, "n1")), [web].into());
        assert_eq!(interests.concerned(&changes(&new, &new, "n2")), [].into());
        interests.seek(web, false);
        interests.select(web, &"pool=batch".parse().unwrap());
        interests.seek(web, true);
        assert_eq!(interests.concerned(&changes(&new, &new, "n1")), [].into());
        assert_eq!(interests.concerned(&changes(&new, &new, "n2")), [web].into());
        interests.forget(web);
        assert_eq!(interests.concerned(&changes(&new, &new, "n2")), [].into());
        assert_eq!(interests.concerned(&changes(&old, &new, "n2")), [batch].into());
    }
}
