//! Asks a scheduler over HTTP about gangs, between two passes.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;

use crate::batch::answers::{ASKED_AT_ONCE, GangAnswers, GangAsk};
use crate::placement::{GangRequest, Scheduler};
use rcfarm_api::ids::ObjectName;
use rcfarm_store::time::monotonic;

/// Requests to the scheduler that are under way at once.
const CONCURRENT: usize = 8;

/// The farm's scheduler, what it has said about gangs, and what it is to be asked.
pub(super) struct GangScheduler {
    scheduler: Arc<dyn Scheduler>,
    answers: GangAnswers,
    asks: Vec<GangAsk>,
}

impl GangScheduler {
    pub(super) fn new(scheduler: Arc<dyn Scheduler>) -> GangScheduler {
        GangScheduler { scheduler, answers: GangAnswers::default(), asks: Vec::new() }
    }

    /// What it has said; `None`: it places no gangs.
    pub(super) fn answers(&self) -> Option<&GangAnswers> {
        self.scheduler.places_gangs().then_some(&self.answers)
    }

    /// Forgets what no longer counts. Returns whether that was anything.
    pub(super) fn expire(&mut self) -> bool {
        self.asks.clear();
        self.answers.expire(monotonic())
    }

    pub(super) fn had_their_pass(&mut self) {
        self.answers.had_their_pass();
    }

    /// Takes over what a pass asks for, the first groups first.
    pub(super) fn wants(&mut self, asks: &[GangAsk]) {
        self.asks = asks.iter().take(ASKED_AT_ONCE).cloned().collect();
    }

    /// Asks. Returns whether there are answers.
    pub(super) async fn ask(&mut self, by: &ObjectName) -> bool {
        let asks = std::mem::take(&mut self.asks);
        let scheduler = &self.scheduler;
        let one = |ask: GangAsk| async move {
            let GangAsk { id, queue, gang } = &ask;
            let answer = scheduler.place(GangRequest { scheduler: by, queue, id, gang }).await;
            (ask, answer)
        };
        let answers: Vec<_> = stream::iter(asks).map(one).buffered(CONCURRENT).collect().await;
        let is_answered = !answers.is_empty();
        for (ask, answer) in answers {
            self.answers.note(ask, answer, monotonic());
        }
        is_answered
    }
}
