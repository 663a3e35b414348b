//! The queues as one pass sees them: which may take work, and what each has left. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::batch::queue_machine::Wanted;
use crate::cluster::queues::{StoredQueue, StoredQueues};
use rcfarm_api::FieldError;
use rcfarm_api::Index;
use rcfarm_api::amounts::Amounts;
use rcfarm_api::ids::{ObjectName, QueueName};
use rcfarm_api::pod_group::status::PodGroupReason;
use rcfarm_api::queue::spec::{
    DEFAULT_SCHEDULER, Desired, QueueSpec, ancestors, check_family, children,
};

/// A queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    /// ModifyIndex of its record.
    pub index: Index,
    /// What it says; its defaults when that cannot be told.
    pub spec: QueueSpec,
    /// What is wrong with it.
    pub problems: Vec<FieldError>,
    /// Whether it shall take work.
    pub wanted: Wanted,
    /// Itself, then those above it, the nearest first.
    pub chain: Vec<QueueName>,
    /// Queues below it.
    pub children: Vec<QueueName>,
}

/// All queues.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Queues(pub BTreeMap<QueueName, Queue>);

/// Why a request is too much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooMuch {
    /// [`PodGroupReason::ExceedsCapability`] or [`PodGroupReason::QueueFull`].
    pub reason: PodGroupReason,
    /// For people.
    pub message: String,
}

impl Queues {
    /// The queues that these records make.
    #[must_use]
    pub fn of(stored: &StoredQueues) -> Queues {
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
        Queues(stored.iter().map(queue).collect())
    }

    /// Who orders a queue. One that does not exist is the business of the default scheduler: somebody must say so.
    #[must_use]
    pub fn scheduler(&self, name: &QueueName) -> ObjectName {
        match self.0.get(name) {
            Some(queue) => queue.spec.scheduler.clone(),
            None => DEFAULT_SCHEDULER.parse().expect("a legal name"),
        }
    }

    /// Why a queue takes no work at all; `None`: it does.
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

    /// Whether a queue's groups may use so much more, and why not: neither it nor a queue above it may come to more
    /// than its capability, and what siblings are guaranteed stays free for them.
    ///
    /// # Errors
    /// [`TooMuch`].
    pub fn fits(&self, usage: &Usage, name: &QueueName, request: &Amounts) -> Result<(), TooMuch> {
        let Some(queue) = self.0.get(name) else { return Ok(()) };
        let links = || queue.chain.iter().filter_map(|link| Some((link, self.0.get(link)?)));
        for (link, above) in links() {
            if let Some((what, asked, limit)) = above.spec.capability.exceeded_by(request) {
                let (asked, limit) = (Amounts::spell(what, asked), Amounts::spell(what, limit));
                let message =
                    format!("{what}: {asked} wanted, and queue {link} has {limit} in all");
                return Err(TooMuch { reason: PodGroupReason::ExceedsCapability, message });
            }
        }
        let mut below = name;
        for (link, above) in links() {
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
                let limit = above.spec.capability.of(what)?;
                (sum > limit && asked.contains(&what)).then_some((what, limit))
            });
            if let Some((what, limit)) = over {
                let spell = |n: Option<u64>| Amounts::spell(what, n.unwrap_or(0));
                let message = format!(
                    "{what}: {} wanted, and of queue {link}'s {} are {} in use or kept for others",
                    spell(request.of(what)),
                    spell(Some(limit)),
                    spell(used.of(what)),
                );
                return Err(TooMuch { reason: PodGroupReason::QueueFull, message });
            }
            below = link;
        }
        Ok(())
    }
}

/// What the admitted groups of each queue are charged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    own: BTreeMap<QueueName, Amounts>,
    total: BTreeMap<QueueName, Amounts>,
    nothing: Amounts,
}

impl Usage {
    /// One queue's, those below it counted.
    #[must_use]
    pub fn total(&self, name: &QueueName) -> &Amounts {
        self.total.get(name).unwrap_or(&self.nothing)
    }

    /// One queue's, those below it not counted.
    #[must_use]
    pub fn own(&self, name: &QueueName) -> &Amounts {
        self.own.get(name).unwrap_or(&self.nothing)
    }

    /// Charges a queue, and with it those above.
    pub fn charge(&mut self, queues: &Queues, name: &QueueName, amounts: &Amounts) {
        self.own.entry(name.clone()).or_default().add(amounts);
        for link in links(queues, name) {
            self.total.entry(link.clone()).or_default().add(amounts);
        }
    }

    /// Takes a charge back.
    pub fn discharge(&mut self, queues: &Queues, name: &QueueName, amounts: &Amounts) {
        self.own.entry(name.clone()).or_default().take(amounts);
        for link in links(queues, name) {
            self.total.entry(link.clone()).or_default().take(amounts);
        }
    }
}

fn links<'q>(queues: &'q Queues, name: &'q QueueName) -> &'q [QueueName] {
    queues.0.get(name).map_or(std::slice::from_ref(name), |queue| &queue.chain)
}
