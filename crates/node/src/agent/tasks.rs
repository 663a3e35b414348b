//! Background tasks of one agent.

use tokio::task::{AbortHandle, JoinError, JoinSet};
use tracing::Instrument;

use rcfarm_store::failpoints;

/// Background tasks of one agent. Each runs in the span that is current when it is spawned, which names the node.
#[derive(Default)]
pub(super) struct Tasks(JoinSet<()>);

impl Tasks {
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.0.spawn(failpoints::task(task.in_current_span()))
    }

    /// The result of the next task that ends; `None` while there are no tasks.
    pub(super) async fn join_next(&mut self) -> Option<Result<(), JoinError>> {
        self.0.join_next().await
    }

    /// Aborts all tasks and waits until they have ended.
    pub(super) async fn shutdown(&mut self) {
        self.0.shutdown().await;
    }
}
