//! A driver for the node agent that starts no processes, so that one machine can run many agents.

use std::path::Path;
use std::time::Duration;

use rcfarm_api::node::Health;
use rcfarm_node::agent::driver::{
    Driver, FoundProcess, Launch, ProcessExit, Signalled, StartFailure, Started,
};
use rcfarm_node::agent::health_check::HealthCheck;
use rcfarm_store::time::{Clock as _, SystemClock};

/// Reports every process as running; none ever ends by itself.
pub struct FakeDriver;

#[async_trait::async_trait]
impl Driver for FakeDriver {
    async fn start(&self, _: &Path, launch: &Launch) -> Result<Started, StartFailure> {
        let (attempt, started_at) = (launch.attempt, SystemClock.wall());
        Ok(Started {
            attempt,
            pid: 0,
            start_ticks: 0,
            shim: 0,
            shim_ticks: 0,
            started_at,
            boot: None,
        })
    }

    async fn adopt(&self, _: &Path) -> FoundProcess {
        FoundProcess::Nothing
    }

    async fn exited(&self, _: &Path, _: &Started) -> ProcessExit {
        std::future::pending().await
    }

    async fn stop(&self, _: &Started, _: &str, _: Duration) {}

    async fn signal(&self, _: &Started, _: &str) -> Signalled {
        Signalled::Sent
    }

    async fn check_health(&self, _: &HealthCheck, _: &Launch) -> (Health, String) {
        (Health::Passing, String::new())
    }
}
