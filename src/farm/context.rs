//! What all parts of a running farm share: settings, environment, and what the farm reports about itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::settings::FarmSettings;
use rcfarm_api::ids::NodeName;
use rcfarm_store::Env;

/// State of a farm, for its HTTP endpoint and for tests.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct FarmReport {
    /// The session; `None` while the farm has none.
    pub session: Option<String>,
    /// Records owned, by kind.
    pub claims: BTreeMap<String, usize>,
    /// What holds destructive plans back.
    pub suspicions: Vec<String>,
    /// Sessions lost since the start.
    pub epochs_lost: u64,
    /// Claims lost since the start, other than with their session.
    pub claims_lost: u64,
}

/// What a farm's presence says about the placement of pods.
#[derive(Debug, Clone, Default)]
pub struct PlacementReport {
    /// Address of a scheduler outside the farm.
    pub scheduler: Option<String>,
    /// Nodes that could not start pods of several records, and until when none is added there.
    pub suspect_nodes: BTreeMap<NodeName, Instant>,
}

/// Reads the current [`PlacementReport`].
pub type ReportPlacement = Arc<dyn Fn() -> PlacementReport + Send + Sync>;

/// What all parts of a running farm share.
pub(super) struct FarmContext {
    pub(super) settings: FarmSettings,
    pub(super) env: Env,
    pub(super) report: Arc<Mutex<FarmReport>>,
    pub(super) placement: ReportPlacement,
}

impl FarmContext {
    /// Changes the report.
    pub(super) fn note(&self, change: impl FnOnce(&mut FarmReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
