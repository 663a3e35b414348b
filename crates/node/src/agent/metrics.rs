//! What an agent counts and can be asked for, for `/metrics`. Nothing here is written to Consul.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::event::AgentEvent;
pub use super::event::AgentGauges;

/// How long a scrape waits for the agent's loop.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Counters of an agent, and the way to ask its loop. Shared by the agent and the server of `/metrics`.
#[derive(Debug, Default)]
pub struct AgentMetrics {
    counts: Mutex<AgentCounts>,
    /// Set once the agent runs.
    events: OnceLock<UnboundedSender<AgentEvent>>,
}

/// What an agent has counted since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// Processes that were started.
    pub started: u64,
    /// Processes that could not be started.
    pub not_started: u64,
    /// Processes that ended with code 0.
    pub succeeded: u64,
    /// Processes that ended otherwise, those that the agent stopped included.
    pub failed: u64,
    /// Transactions with reports, by outcome.
    pub reports: BTreeMap<&'static str, u64>,
}

impl AgentMetrics {
    pub fn counts(&self) -> AgentCounts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The state. `None`: the agent does not run, or its loop does not answer in time.
    pub async fn gauges(&self) -> Option<AgentGauges> {
        let (answer, gauges) = oneshot::channel();
        self.events.get()?.send(AgentEvent::Measure(answer)).ok()?;
        timeout(LONGEST_WAIT, gauges).await.ok()?.ok()
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut AgentCounts)) {
        add(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn runs(&self, events: UnboundedSender<AgentEvent>) {
        let _ = self.events.set(events);
    }
}
