//! Whether service discovery shows a controller's pods as they are: a condition of a node transfer (`p2.md` §2.3).

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_store::{Reader, StoreError};

/// A view of service discovery.
#[async_trait]
pub trait Discovery: Send + Sync + 'static {
    /// Whether clients are sent to exactly those of `nodes` that run a healthy pod of `service`.
    async fn synced(
        &self,
        service: &PodId,
        healthy: &BTreeSet<NodeName>,
    ) -> Result<bool, StoreError>;
}

/// Nobody looks pods up: always in step.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDiscovery;

#[async_trait]
impl Discovery for NoDiscovery {
    async fn synced(&self, _: &PodId, _: &BTreeSet<NodeName>) -> Result<bool, StoreError> {
        Ok(true)
    }
}

/// Clients use Consul's catalog: in step when every healthy pod's node has a passing instance of the service
/// that is named as the pod is.
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
