//! What happens to nodes that the real agent runs.

use std::time::Duration;

use super::action::NodeAction;
use super::builder::ScheduleBuilder;

impl ScheduleBuilder {
    /// Adds faults of the agents of these nodes, of their networks and of their tokens.
    pub fn agents(&mut self, agents: &[usize]) {
        use NodeAction as A;
        for _ in 0..self.rng.below(4) {
            let (at, n) = (self.moment(), *self.rng.pick(agents));
            match self.rng.below(11) {
                0 | 1 => self.while_(at, 1, 20, A::AgentDown(n), A::AgentUp(n)),
                2 => self.while_(at, 1, 15, A::AgentCut(n, true), A::AgentCut(n, false)),
                3 => self.while_(at, 1, 15, A::AgentDeaf(n, true), A::AgentDeaf(n, false)),
                4 | 5 => {
                    let storm = Box::new(self.storm());
                    self.while_(
                        at,
                        2,
                        15,
                        A::AgentStorm(n, storm),
                        A::AgentStorm(n, Box::default()),
                    );
                }
                6 => self.while_(at, 1, 20, A::AgentFreeze(n, true), A::AgentFreeze(n, false)),
                7 => self.while_(at, 1, 9, A::AgentForbid(n, true), A::AgentForbid(n, false)),
                8 | 9 => {
                    let tree =
                        *self.rng.pick(&["intent/", "intent/", "labels/pod/", "status/pods/"]);
                    let hide = A::AgentHide(n, Some(tree.to_owned()));
                    self.while_(at, 1, 12, hide, A::AgentHide(n, None));
                }
                _ => self.at(at, A::AgentSession(n)),
            }
            // An agent that comes back may find other intents than it left.
            let soon = self.soon(at + Duration::from_secs(1));
            if self.rng.permille(300) {
                self.while_(soon, 1, 6, A::AgentDown(n), A::AgentUp(n));
            }
        }
    }
}
