//! The harness of all tests: a Consul, and what runs on it. Waits are in [`rcfarm_testing::wait`].
//!
//! | part | is |
//! |---|---|
//! | [`Cluster`] | a store with farms in the test's process; writes and reads records |
//! | [`HttpCluster`] | a cluster on the emulator over HTTP or on a real Consul, with the built program |
//! | [`Host`] | a machine of a cluster, with an agent in the test's process |

mod cluster;
mod host;
mod http;

pub use cluster::{Cluster, RunningFarm, node, pod_id, rc_id, run};
pub use host::{Host, id, is_alive, manifest};
pub use http::{HttpCluster, MASTER, RealCluster, program};

pub const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

/// Manifest of new controllers.
pub const MANIFEST: &str = "id: web\nlaunchables:\n  web:\n    launchable_type: hoist\n";
