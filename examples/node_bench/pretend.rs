//! A driver whose processes only seem to run, and never end: for more agents than one machine has processes for.

use std::path::Path;
use std::time::Duration;

use rcfarm::node::agent::driver::{Driver, Exit, Found, Launch, Running};
use rcfarm::time::{Clock as _, SystemClock};

pub struct Pretend;

#[async_trait::async_trait]
impl Driver for Pretend {
    async fn start(&self, _: &Path, launch: &Launch) -> Result<Running, String> {
        let (attempt, started_at) = (launch.attempt, SystemClock.wall());
        Ok(Running { attempt, pid: 0, start_ticks: 0, shim: 0, shim_ticks: 0, started_at })
    }

    async fn adopt(&self, _: &Path) -> Found {
        Found::Nothing
    }

    async fn exited(&self, _: &Path, _: &Running) -> Exit {
        std::future::pending().await
    }

    async fn stop(&self, _: &Running, _: &str, _: Duration) {}
}
