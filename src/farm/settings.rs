//! Settings of a farm.

use std::time::Duration;

use rcfarm_api::ids::FarmName;
use rcfarm_api::labels::Selector;
use rcfarm_store::TxnLimits;
use rcfarm_store::sealing::KeySealing;
use rcfarm_store::session::SessionSettings;

#[derive(Clone)]
pub struct FarmSettings {
    /// Name of the farm; unique among the live farms on a Consul tree.
    pub name: FarmName,
    /// Labels of the records that it claims.
    pub selector: Selector,
    /// Session and health check by which Consul decides that the farm is alive.
    pub session: SessionSettings,
    /// Size limits of one transaction.
    pub limits: TxnLimits,
    /// A node counts as down this long after its agent's session is gone.
    pub node_grace: Duration,
    /// Jobs whose document says nothing of `ttlSecondsAfterFinished` are deleted this long after their end; `None`: never.
    pub job_ttl: Option<Duration>,
    /// How the private ssh keys of jobs are stored.
    pub ssh_keys: KeySealing,
    /// Whether it lists the statuses of CronJobs and flows at its start and every five minutes, and collects those whose
    /// record was deleted while no farm ran. Worlds of the simulator do not: the requests would change what their seeds
    /// draw.
    pub finds_leftovers: bool,
}

/// [`FarmSettings::node_grace`], unless set otherwise.
pub const NODE_GRACE: Duration = Duration::from_secs(10);
