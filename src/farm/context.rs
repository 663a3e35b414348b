//! Shared parts of a running farm: settings, environment, and the farm's own report.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::metrics::FarmMetrics;
use super::settings::FarmSettings;
use rcfarm_api::ids::NodeName;
use rcfarm_store::Env;

/// State of a farm, for its HTTP endpoint and tests.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct FarmReport {
    /// Id of the session; `None` while there is none.
    pub session: Option<String>,
    /// Why the session has no check, so that a crash of the farm is noticed late.
    pub check_problem: Option<String>,
    /// Records owned, by kind.
    pub claims: BTreeMap<String, usize>,
    /// Caches that the mass deletion guard holds back, each with the reason.
    pub suspicions: Vec<String>,
    /// Sessions lost since the start.
    pub epochs_lost: u64,
    /// Claims lost since the start while their session was live.
    pub claims_lost: u64,
}

/// What the presence says about placement.
#[derive(Debug, Clone, Default)]
pub struct PlacementReport {
    /// Address of an HTTP scheduler; `None`: the built-in one.
    pub scheduler: Option<String>,
    /// Nodes that failed to start pods of several records, and until when no pod is added there.
    pub suspect_nodes: BTreeMap<NodeName, Instant>,
}

/// Reads the current [`PlacementReport`].
pub type ReportPlacement = Arc<dyn Fn() -> PlacementReport + Send + Sync>;

pub(super) struct FarmContext {
    pub(super) settings: FarmSettings,
    pub(super) env: Env,
    pub(super) report: Arc<Mutex<FarmReport>>,
    pub(super) metrics: Arc<FarmMetrics>,
    pub(super) placement: ReportPlacement,
}

impl FarmContext {
    pub(super) fn note(&self, change: impl FnOnce(&mut FarmReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
