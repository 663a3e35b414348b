//! Watches the keys under `reality/<node>/`, so that a reality that somebody deletes is written again at once.
//!
//! The watch is a chain of blocking reads of the keys, at most one a second, and only while the agent has written a
//! reality: the prefix is then not empty, and other nodes' writes do not wake it (`consul-semantics.md` §0 #9). What it
//! finds only asks for a comparison of the reports with Consul; the comparison decides.
//!
//! After a restored snapshot a blocking read returns early with what was there before (`consul-semantics.md` §0 #12).
//! That asks for a comparison, too: an intent that is deleted before its report is back could not be proved to be gone.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;
use tracing::debug;

use super::event::AgentEvent;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_store::time::monotonic;
use rcfarm_store::watch::LONGEST_WAIT;
use rcfarm_store::{Answer, Env, Index, Query};

/// Pause before each read but the first.
const EVERY: Duration = Duration::from_secs(1);
/// Pause after a read that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// State of the watch in the agent's loop.
#[derive(Debug, Default)]
pub(super) struct RealityWatch {
    /// A read is under way.
    pub(super) is_reading: bool,
    /// Index of the last list. 0: the next read returns at once.
    index: Index,
}

impl RealityWatch {
    /// The next read, which waits for a change. It sends [`AgentEvent::RealitiesListed`].
    pub(super) fn read(
        &mut self,
        env: &Env,
        node: &NodeName,
        events: &UnboundedSender<AgentEvent>,
    ) -> impl Future<Output = ()> + use<> {
        self.is_reading = true;
        let (store, events, after) = (env.store.clone(), events.clone(), self.index);
        let prefix = key::node_realities(node);
        async move {
            let asked = monotonic();
            let query = match after {
                Index::ZERO => Query::CONSISTENT,
                after => {
                    sleep(EVERY).await;
                    Query::after(after, LONGEST_WAIT)
                }
            };
            let listed = match store.keys(&prefix, None, query).await {
                Ok(Answer { value, index, filtered }) => {
                    let is_restored = after != Index::ZERO
                        && index == after
                        && monotonic() < asked + EVERY + LONGEST_WAIT;
                    if is_restored {
                        let _ = events.send(AgentEvent::CompareReports);
                    }
                    let index = if is_restored { Index::ZERO } else { index };
                    let pods = value.iter().filter_map(|key| prefix.tail(key)?.parse().ok());
                    Some(Answer { value: pods.collect::<BTreeSet<PodId>>(), index, filtered })
                }
                Err(error) => {
                    debug!(tree = %prefix, %error, "realities cannot be listed");
                    sleep(AFTER_FAILURE).await;
                    None
                }
            };
            let _ = events.send(AgentEvent::RealitiesListed(listed));
        }
    }

    /// Notes the result of a read. An index that went backwards counts as 0.
    pub(super) fn read_finished(&mut self, listed: Option<&Answer<BTreeSet<PodId>>>) {
        self.is_reading = false;
        let index = listed.map_or(Index::ZERO, |listed| listed.index);
        self.index = if index < self.index { Index::ZERO } else { index };
    }
}
