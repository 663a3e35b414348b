//! A scheduler by labels that sometimes misbehaves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use rcfarm::placement::{EligibleNodes, ScheduleError, ScheduleRequest, Scheduler, WantedNodes};
use rcfarm_api::ids::{NodeName, RcId};

/// How a scheduler misbehaves towards one RC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mood {
    /// It answers with errors.
    Fails,
    /// It never answers.
    Hangs,
    Panics,
    /// It allocates nothing.
    TooFew,
    /// It allocates the same node twice.
    Duplicates,
    /// It allocates a node that is not eligible.
    Ineligible,
    /// It allocates a node that is in use.
    InUse,
}

/// Every mood.
pub const MOODS: [Mood; 7] = [
    Mood::Fails,
    Mood::Hangs,
    Mood::Panics,
    Mood::TooFew,
    Mood::Duplicates,
    Mood::Ineligible,
    Mood::InUse,
];

/// Misbehaviour of all schedulers, and the number of their calls.
#[derive(Default)]
pub struct Moods(Mutex<State>);

#[derive(Default)]
struct State {
    moods: BTreeMap<RcId, Mood>,
    asked: BTreeMap<RcId, u64>,
}

impl Moods {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a mood from now on.
    pub fn set(&self, rc: RcId, mood: Option<Mood>) {
        let moods = &mut self.lock().moods;
        match mood {
            Some(mood) => drop(moods.insert(rc, mood)),
            None => drop(moods.remove(&rc)),
        }
    }

    /// Ends all moods.
    pub fn clear(&self) {
        self.lock().moods.clear();
    }

    /// Number of calls for an RC.
    #[must_use]
    pub fn asked(&self, rc: RcId) -> u64 {
        self.lock().asked.get(&rc).copied().unwrap_or(0)
    }

    fn of(&self, rc: RcId) -> Option<Mood> {
        let mut state = self.lock();
        *state.asked.entry(rc).or_default() += 1;
        state.moods.get(&rc).copied()
    }
}

/// A scheduler that panics, hangs or fails as its mood says.
pub struct Odd<S> {
    inner: S,
    moods: Arc<Moods>,
}

impl<S: Scheduler> Odd<S> {
    /// `inner`, in a mood.
    pub fn new(inner: S, moods: Arc<Moods>) -> Odd<S> {
        Odd { inner, moods }
    }

    async fn suffer(&self, mood: Option<Mood>) -> Result<(), ScheduleError> {
        match mood {
            Some(Mood::Fails) => Err(ScheduleError::Unreachable("simulated".to_owned())),
            Some(Mood::Hangs) => std::future::pending().await,
            // Not `panic!`, which would print thousands of messages.
            Some(Mood::Panics) => std::panic::resume_unwind(Box::new("simulated panic")),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl<S: Scheduler> Scheduler for Odd<S> {
    async fn eligible_nodes(
        &self,
        request: ScheduleRequest<'_>,
    ) -> Result<EligibleNodes, ScheduleError> {
        self.suffer(self.moods.of(request.rc)).await?;
        self.inner.eligible_nodes(request).await
    }

    async fn allocate_nodes(
        &self,
        wanted: WantedNodes<'_>,
    ) -> Result<Vec<NodeName>, ScheduleError> {
        let WantedNodes { request, current, .. } = wanted;
        let mood = self.moods.of(request.rc);
        self.suffer(mood).await?;
        let mut nodes = self.inner.allocate_nodes(wanted).await?;
        match mood {
            Some(Mood::TooFew) => nodes.clear(),
            Some(Mood::Duplicates) => nodes.extend(nodes.first().cloned()),
            Some(Mood::Ineligible) => nodes = vec!["nowhere".parse().expect("a node's name")],
            Some(Mood::InUse) => nodes = current.iter().take(1).cloned().collect(),
            _ => {}
        }
        Ok(nodes)
    }

    async fn deallocate_nodes(
        &self,
        request: ScheduleRequest<'_>,
        nodes: &[NodeName],
        token: Uuid,
    ) -> Result<(), ScheduleError> {
        self.suffer(self.moods.of(request.rc)).await?;
        self.inner.deallocate_nodes(request, nodes, token).await
    }

    fn goes_by_labels(&self) -> bool {
        self.inner.goes_by_labels()
    }
}
