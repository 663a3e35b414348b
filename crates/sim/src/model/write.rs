//! One applied write, decoded for the checks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::agents::NodeEvent;
use super::flows::FlowEvent;
use super::jobs::ModelEvent;
use super::services::{Item, ServicePod};
use crate::facts::SimActor;
use rcfarm_api::ids::RcId;
use rcfarm_api::key;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_emulator::{KvChange, KvOp, Verb};

/// One applied write of one actor.
pub struct AppliedWrite<'a> {
    /// Time since the start.
    pub at: Duration,
    /// Its author.
    pub actor: SimActor,
    /// Its changes by kind of object. Empty in a world without replication controllers.
    pub changes: Vec<(Item, &'a KvChange)>,
    /// The record that a controller's transaction is about, with its status before ([`record_of`]).
    pub record: Option<(RcId, RcStatus)>,
    /// Its effects on jobs and queues. Empty in a world without jobs.
    pub events: Vec<ModelEvent>,
    /// Its effects on CronJobs and JobFlows. Empty in a world without them.
    pub of_flows: Vec<FlowEvent>,
    /// What it did to pods of nodes that the real agent runs.
    pub of_nodes: Vec<NodeEvent>,
}

/// The RC that a transaction is about: the one whose status it replaces.
#[must_use]
pub fn record_of(ops: &[KvOp]) -> Option<RcId> {
    let statuses = key::rc_statuses();
    ops.iter().filter(|op| op.verb != Verb::Get).find_map(|op| {
        let tail = statuses.tail(&op.key)?.split_once('/')?.0;
        tail.parse().ok()
    })
}

impl AppliedWrite<'_> {
    /// The RC that it is about.
    #[must_use]
    pub fn record(&self) -> Option<RcId> {
        self.record.as_ref().map(|(id, _)| *id)
    }

    /// RCs whose pods it changed: owners before and after.
    #[must_use]
    pub fn owners_of_pods(&self) -> BTreeSet<RcId> {
        let pods = self.changes.iter().filter(|(item, _)| matches!(item, Item::Pod(_)));
        let sides = pods.flat_map(|(_, change)| [&change.before, &change.after]).flatten();
        sides.filter_map(|entry| ServicePod::of(entry).rc).collect()
    }

    /// The process that made it, if any.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        match self.actor {
            SimActor::Process(n) => Some(n),
            _ => None,
        }
    }
}
