//! What all controllers of flows share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::probing::ProbeSlots;
use crate::farm::records::Records;
use crate::job::owner_caches::OwnerCaches;
use rcfarm_api::flow::FlowStatus;
use rcfarm_api::ids::RecordId;
use rcfarm_api::key;
use rcfarm_store::Reader;
use rcfarm_store::cache::Cache;
use rcfarm_store::watch::PollPolicy;

/// What all controllers of flows share.
pub struct FlowCaches {
    pub(super) owner: OwnerCaches<FlowStatus>,
    /// `rcfarm/job_templates/`
    pub(super) templates: Arc<Cache<Records>>,
    pub(super) probe_slots: ProbeSlots,
    /// By flow, the templates that its steps wait for.
    waiting: Mutex<BTreeMap<RecordId, BTreeSet<RecordId>>>,
}

impl FlowCaches {
    pub(super) fn new(reader: &Arc<dyn Reader>) -> FlowCaches {
        FlowCaches {
            owner: OwnerCaches::new(reader.clone(), key::job_flows(), key::job_flow_statuses()),
            templates: Cache::new(reader.clone(), key::job_templates(), PollPolicy::PROMPT),
            probe_slots: ProbeSlots::default(),
            waiting: Mutex::default(),
        }
    }

    /// The templates that a flow waits for from now on.
    pub(super) fn set_waiting(&self, flow: &RecordId, templates: BTreeSet<RecordId>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match templates.is_empty() {
            true => drop(waiting.remove(flow)),
            false => drop(waiting.insert(flow.clone(), templates)),
        }
    }

    /// Flows that wait for one of these templates.
    pub(super) fn waiting_for(&self, templates: &BTreeSet<RecordId>) -> BTreeSet<RecordId> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |wanted: &BTreeSet<RecordId>| templates.iter().any(|one| wanted.contains(one));
        waiting.iter().filter(|(_, wanted)| waits(wanted)).map(|(flow, _)| flow.clone()).collect()
    }
}
