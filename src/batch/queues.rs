//! Queues of one pass: which are open, and their remaining capability. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::batch::queue_machine::Wanted;
use crate::cluster::queues::{StoredQueue, StoredQueues};
use rcfarm_api::FieldError;
use rcfarm_api::Index;
use rcfarm_api::ResourceList;
use rcfarm_api::ids::{ObjectName, QueueName};
use rcfarm_api::pod_group::status::PodGroupReason;
use rcfarm_api::priority_class::PriorityClasses;
use rcfarm_api::queue::spec::{
    DEFAULT_SCHEDULER, Desired, QueueSpec, ancestors, check_family, children,
};

/// A queue with its place in the tree, as a pass sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    /// ModifyIndex of its record.
    pub index: Index,
    /// Spec; defaults if the record cannot be decoded.
    pub spec: QueueSpec,
    /// Errors in the record and in its place in the tree. With any, the queue admits nothing.
    pub problems: Vec<FieldError>,
    /// Desired state, by its own record and those above it.
    pub wanted: Wanted,
    /// The queue and its ancestors, nearest first.
    pub chain: Vec<QueueName>,
    /// Queues whose `parent` it is. A queue with children takes no groups.
    pub children: Vec<QueueName>,
}

/// All queues by name, those of other schedulers included, and the priority classes that order their groups.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Queues(pub BTreeMap<QueueName, Queue>, pub PriorityClasses);

/// Reason why a request exceeds a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooMuch {
    /// [`PodGroupReason::ExceedsCapability`] or [`PodGroupReason::QueueFull`].
    pub reason: PodGroupReason,
    /// The queue whose limit it is: the group's own, or one above.
    pub queue: QueueName,
    /// Message for users.
    pub message: String,
}

impl Queues {
    /// Builds the tree of queues from their records.
    #[must_use]
    pub fn of(stored: &StoredQueues, classes: PriorityClasses) -> Queues {
        let readable = |queue: &StoredQueue| Some(queue.value.as_ref().ok()?.spec.clone());
        let specs: BTreeMap<QueueName, QueueSpec> = stored
            .iter()
            .filter_map(|(name, queue)| Some((name.clone(), readable(queue)?)))
            .collect();
        let queue = |(name, stored): (&QueueName, &Arc<StoredQueue>)| {
            let mut problems = match &stored.value {
                Ok(record) => record.spec.check(name),
                Err(bad) => vec![bad.clone()],
            };
            problems.extend(check_family(name, &specs));
            let above = ancestors(name, &specs).unwrap_or_default();
            let closed_above = above.iter().any(|q| specs[*q].state == Desired::Closed);
            let spec = specs.get(name).cloned().unwrap_or_default();
            let wanted = match problems.is_empty() {
                true => Wanted::of(spec.state, closed_above),
                false => Wanted::Unreadable,
            };
            let chain = std::iter::once(name).chain(above).cloned().collect();
            let children = children(name, &specs).cloned().collect();
            (name.clone(), Queue { index: stored.index, spec, problems, wanted, chain, children })
        };
        Queues(stored.iter().map(queue).collect(), classes)
    }

    /// Scheduler of a queue. For a missing queue it is the default scheduler, which then reports the missing queue.
    #[must_use]
    pub fn scheduler(&self, name: &QueueName) -> ObjectName {
        match self.0.get(name) {
            Some(queue) => queue.spec.scheduler.clone(),
            None => DEFAULT_SCHEDULER.parse().expect("a legal name"),
        }
    }

    /// Reason why a queue accepts no groups; `None`: it accepts them.
    #[must_use]
    pub fn refusal(&self, name: &QueueName) -> Option<(PodGroupReason, String)> {
        let Some(queue) = self.0.get(name) else {
            let message = format!("there is no queue {name}: rcfarm queue create {name}");
            return Some((PodGroupReason::QueueMissing, message));
        };
        match queue.wanted {
            Wanted::Unreadable => {
                Some((PodGroupReason::QueueInvalid, FieldError::list(&queue.problems)))
            }
            Wanted::Closed => {
                Some((PodGroupReason::QueueClosed, format!("queue {name} is closed")))
            }
            Wanted::ClosedByParent => {
                Some((PodGroupReason::QueueClosed, format!("a queue above {name} is closed")))
            }
            Wanted::Open if !queue.children.is_empty() => {
                let message = format!("{name} has queues below it: use one of them");
                Some((PodGroupReason::QueueHasChildren, message))
            }
            Wanted::Open => None,
        }
    }

    /// Checks a request against the capability of the queue and its ancestors, less the unused guarantees of siblings.
    ///
    /// # Errors [`TooMuch`].
    pub fn fits(
        &self,
        usage: &Usage,
        name: &QueueName,
        request: &ResourceList,
    ) -> Result<(), TooMuch> {
        let Some(queue) = self.0.get(name) else { return Ok(()) };
        let links = || queue.chain.iter().filter_map(|link| Some((link, self.0.get(link)?)));
        for (link, above) in links() {
            if let Some((what, asked, limit)) = above.spec.capability.exceeded_by(request) {
                let (asked, limit) =
                    (ResourceList::spell(what, asked), ResourceList::spell(what, limit));
                let message =
                    format!("{what}: {asked} wanted, and queue {link} has {limit} in all");
                let (reason, queue) = (PodGroupReason::ExceedsCapability, link.clone());
                return Err(TooMuch { reason, queue, message });
            }
        }
        let mut below = name;
        for (link, above) in links() {
            if above.spec.capability.is_empty() {
                below = link;
                continue;
            }
            let mut all = usage.total(link).clone();
            for sibling in above.children.iter().filter(|child| *child != below) {
                let Some(kept) = self.0.get(sibling).map(|q| &q.spec.guarantee.resource) else {
                    continue;
                };
                all.add(&kept.beyond(usage.total(sibling)));
            }
            let used = all.clone();
            all.add(request);
            let asked: Vec<&str> = request.iter().filter(|(_, n)| *n > 0).map(|(w, _)| w).collect();
            let over = all.iter().find_map(|(what, sum)| {
                let limit = above.spec.capability.get(what)?;
                (sum > limit && asked.contains(&what)).then_some((what, limit))
            });
            if let Some((what, limit)) = over {
                let spell = |n: Option<u64>| ResourceList::spell(what, n.unwrap_or(0));
                let message = format!(
                    "{what}: {} wanted, and of queue {link}'s {} are {} in use or kept for others",
                    spell(request.get(what)),
                    spell(Some(limit)),
                    spell(used.get(what)),
                );
                let (reason, queue) = (PodGroupReason::QueueFull, link.clone());
                return Err(TooMuch { reason, queue, message });
            }
            below = link;
        }
        Ok(())
    }
}

/// Charges of the admitted groups, per queue.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    own: BTreeMap<QueueName, ResourceList>,
    total: BTreeMap<QueueName, ResourceList>,
    nothing: ResourceList,
}

impl Usage {
    /// Charge of a queue with its descendants.
    #[must_use]
    pub fn total(&self, name: &QueueName) -> &ResourceList {
        self.total.get(name).unwrap_or(&self.nothing)
    }

    /// Charge of a queue without its descendants.
    #[must_use]
    pub fn own(&self, name: &QueueName) -> &ResourceList {
        self.own.get(name).unwrap_or(&self.nothing)
    }

    /// Charges a queue and its ancestors.
    pub fn charge(&mut self, queues: &Queues, name: &QueueName, amounts: &ResourceList) {
        self.own.entry(name.clone()).or_default().add(amounts);
        for link in links(queues, name) {
            self.total.entry(link.clone()).or_default().add(amounts);
        }
    }

    /// Takes a charge back, from a queue and its ancestors.
    pub fn discharge(&mut self, queues: &Queues, name: &QueueName, amounts: &ResourceList) {
        self.own.entry(name.clone()).or_default().sub(amounts);
        for link in links(queues, name) {
            self.total.entry(link.clone()).or_default().sub(amounts);
        }
    }

    /// Replaces what a queue and its ancestors are charged for one group.
    pub fn recharge(
        &mut self,
        queues: &Queues,
        name: &QueueName,
        charged: &mut ResourceList,
        amounts: ResourceList,
    ) {
        self.discharge(queues, name, charged);
        *charged = amounts;
        self.charge(queues, name, charged);
    }
}

fn links<'q>(queues: &'q Queues, name: &'q QueueName) -> &'q [QueueName] {
    queues.0.get(name).map_or(std::slice::from_ref(name), |queue| &queue.chain)
}
