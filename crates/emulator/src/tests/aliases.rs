//! Alias checks, and the deregistration of services that stay critical (`consul-semantics.md` §8).

use rcfarm_api::node::Health;
use rcfarm_store::{PodService, TtlService};
use tokio::time::{Instant, sleep_until};

use super::*;

/// The node agent's own service must not go first: in Consul an alias of a service that was deregistered may pass.
#[tokio::test(start_paused = true)]
async fn service_of_a_pod_goes_before_that_of_its_dead_node_agent() {
    let c = consul();
    let node = TtlService {
        name: "rcfarm-node".to_owned(),
        id: "rcfarm-node-n1".to_owned(),
        meta: [].into(),
        ttl: 10 * SEC,
        deregister_after: 120 * SEC,
    };
    let pod = PodService {
        id: "rcfarm-pod:n1:web:web".to_owned(),
        name: "web".to_owned(),
        address: String::new(),
        port: 80,
        tags: Vec::new(),
        meta: [].into(),
    };
    let start = Instant::now();
    c.register_service(&node).await.unwrap();
    c.register_pod_service(&pod, &node.id, Health::Passing).await.unwrap();
    let is_passing = async || {
        let health = c.service_health("web").await.unwrap().value;
        health.first().map(|instance| instance.passing)
    };
    sleep_until(start + Duration::from_millis(9_999)).await;
    assert_eq!(is_passing().await, Some(true));
    for (seconds, passing) in [(10, Some(false)), (69, Some(false)), (70, None), (200, None)] {
        sleep_until(start + seconds * SEC).await;
        assert_eq!(is_passing().await, passing, "after {seconds} s");
    }
    assert_eq!(c.service_health("rcfarm-node").await.unwrap().value, []);
}
