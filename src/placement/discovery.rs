//! Whether service discovery shows a controller's healthy pods: a condition of a node transfer (`p2.md` §2.3).

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_store::{Reader, StoreError};

/// A view of service discovery.
#[async_trait]
pub trait Discovery: Send + Sync + 'static {
    /// Whether clients can find `service` on every node of `healthy`.
    async fn synced(
        &self,
        service: &PodId,
        healthy: &BTreeSet<NodeName>,
    ) -> Result<bool, StoreError>;
}

/// No service discovery: always in sync.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDiscovery;

#[async_trait]
impl Discovery for NoDiscovery {
    async fn synced(&self, _: &PodId, _: &BTreeSet<NodeName>) -> Result<bool, StoreError> {
        Ok(true)
    }
}

/// Consul's catalog: in sync if every node with a healthy pod has a passing instance of the service that has the pod's
/// id.
pub struct CatalogDiscovery {
    reader: Arc<dyn Reader>,
}

impl CatalogDiscovery {
    /// Discovery through the catalog that `reader` reads.
    #[must_use]
    pub fn new(reader: Arc<dyn Reader>) -> Self {
        CatalogDiscovery { reader }
    }
}

#[async_trait]
impl Discovery for CatalogDiscovery {
    async fn synced(
        &self,
        service: &PodId,
        healthy: &BTreeSet<NodeName>,
    ) -> Result<bool, StoreError> {
        let instances = self.reader.service_health(service.as_str()).await?.value;
        let shown: BTreeSet<&str> =
            instances.iter().filter(|i| i.passing).map(|i| i.node.as_str()).collect();
        Ok(healthy.iter().all(|node| shown.contains(node.as_str())))
    }
}
