//! TTL services, their checks and health.

use std::time::{Duration, Instant};

use rcfarm_api::node::Health;
use rcfarm_store::{PodService, RegisteredService, TtlService};

use super::super::cases;
use super::{Case, Port};

pub const CASES: &[Case<Port>] = cases! {
    pC01 Shared "a service passes when registered, and no longer when silent for its TTL" => silent;
    pC02 Shared "beating an unknown check is false" => unknown_check;
    pC05 Shared "an unknown service has no health" => unknown_service;
    pC32 Shared "a service that is removed is gone; removing it again is fine" => removed;
    pC35 Shared "registering again keeps one instance, and makes it pass" => again;
    pC37 Shared "there is a leader" => leader;
    pC40 Shared "two instances of a service are two" => instances;
    pC51 Shared "a pod's service is read as it was registered" => pod_service;
    pC52 Shared "registering a pod's service again keeps its health, and takes the new fields" => pod_service_again;
    pC53 Shared "the check of a pod's service has the health that it was given" => pod_health;
    pC54 Shared "a pod's service passes no longer when its node agent is silent" => pod_of_silent_node;
    pC55 Shared "without ACLs any service may be registered" => may_register;
};

impl Port {
    async fn health(&self, service: &TtlService) -> Vec<bool> {
        let health = self.store.service_health(&service.name).await.unwrap().value;
        assert!(health.iter().all(|h| !h.node.is_empty()), "{health:?}");
        health.iter().map(|h| h.passing).collect()
    }

    /// Waits for this health of the service's instances; the agent syncs to the servers with a delay.
    async fn until_health(&self, service: &TtlService, wanted: &[bool]) {
        while self.health(service).await != wanted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

const MINUTE: Duration = Duration::from_secs(60);

async fn silent(p: Port) {
    let service = p.service(Duration::from_secs(2));
    let from = Instant::now();
    p.store.register_service(&service).await.unwrap();
    p.until_health(&service, &[true]).await;
    p.until_health(&service, &[false]).await;
    assert!(from.elapsed() >= Duration::from_millis(1_900), "{:?}", from.elapsed());
    assert!(p.store.pass_check(&service.check_id(), "back").await.unwrap());
    p.until_health(&service, &[true]).await;
}

async fn unknown_check(p: Port) {
    let service = p.service(MINUTE);
    assert!(!p.store.pass_check(&service.check_id(), "").await.unwrap());
    p.store.register_service(&service).await.unwrap();
    assert!(p.store.pass_check(&service.check_id(), "").await.unwrap());
    p.store.deregister_service(&service.id).await.unwrap();
    assert!(!p.store.pass_check(&service.check_id(), "").await.unwrap());
}

async fn unknown_service(p: Port) {
    assert!(p.health(&p.service(MINUTE)).await.is_empty());
}

async fn removed(p: Port) {
    let service = p.service(MINUTE);
    p.store.register_service(&service).await.unwrap();
    p.until_health(&service, &[true]).await;
    for _ in 0..2 {
        p.store.deregister_service(&service.id).await.unwrap();
        p.until_health(&service, &[]).await;
    }
}

async fn again(p: Port) {
    let service = p.service(Duration::from_secs(1));
    p.store.register_service(&service).await.unwrap();
    p.until_health(&service, &[false]).await;
    p.store.register_service(&service).await.unwrap();
    p.until_health(&service, &[true]).await;
}

async fn leader(p: Port) {
    assert!(p.store.leader().await.unwrap().contains(':'));
}

async fn instances(p: Port) {
    let first = p.service(MINUTE);
    let second = TtlService { id: format!("{}-2", first.name), ..first.clone() };
    p.store.register_service(&first).await.unwrap();
    p.store.register_service(&second).await.unwrap();
    p.until_health(&first, &[true, true]).await;
    p.store.deregister_service(&first.id).await.unwrap();
    p.until_health(&first, &[true]).await;
}

impl Port {
    /// A service of a pod, used only by this case. The node agent's service is [`Port::service`].
    fn pod_service(&self) -> PodService {
        let name = format!("{}-pod", self.service(MINUTE).name);
        PodService {
            id: format!("rcfarm-pod:{name}:p:web"),
            name,
            address: "127.0.0.2".to_owned(),
            port: 8080,
            tags: vec!["b".to_owned(), "a b".to_owned()],
            meta: [("k".to_owned(), "v".to_owned())].into(),
        }
    }

    async fn pod_services(&self, service: &PodService) -> Vec<RegisteredService> {
        self.store.pod_services(&service.id).await.unwrap().into_values().collect()
    }

    /// Whether the instances of a pod's service pass, in the catalog.
    async fn until_passing(&self, service: &PodService, wanted: &[bool]) {
        loop {
            let health = self.store.service_health(&service.name).await.unwrap().value;
            if health.iter().map(|h| h.passing).eq(wanted.iter().copied()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn pod_service(p: Port) {
    let (node, service) = (p.service(MINUTE), p.pod_service());
    p.store.register_service(&node).await.unwrap();
    assert_eq!(p.pod_services(&service).await, []);
    p.store.register_pod_service(&service, &node.id, Health::Passing).await.unwrap();
    let health = Health::Passing;
    let registered = RegisteredService {
        service: service.clone(),
        health,
        has_node_check: true,
        is_current: true,
    };
    assert_eq!(p.pod_services(&service).await, [registered]);
    p.until_passing(&service, &[true]).await;
    p.store.deregister_service(&service.id).await.unwrap();
    assert_eq!(p.pod_services(&service).await, []);
    p.until_passing(&service, &[]).await;
}

async fn pod_service_again(p: Port) {
    let (node, service) = (p.service(MINUTE), p.pod_service());
    p.store.register_service(&node).await.unwrap();
    p.store.register_pod_service(&service, &node.id, Health::Passing).await.unwrap();
    let changed = PodService { tags: vec!["c".to_owned()], port: 0, ..service };
    p.store.register_pod_service(&changed, &node.id, Health::Critical).await.unwrap();
    let registered = p.pod_services(&changed).await;
    assert_eq!(registered.len(), 1);
    assert_eq!((&registered[0].service, registered[0].health), (&changed, Health::Passing));
}

async fn pod_health(p: Port) {
    let (node, service) = (p.service(MINUTE), p.pod_service());
    let check = PodService::health_check(&service.id);
    assert!(!p.store.update_check(&check, Health::Passing, "").await.unwrap());
    p.store.register_service(&node).await.unwrap();
    p.store.register_pod_service(&service, &node.id, Health::Unknown).await.unwrap();
    assert_eq!(p.pod_services(&service).await[0].health, Health::Critical);
    p.until_passing(&service, &[false]).await;
    for health in [Health::Passing, Health::Warning, Health::Critical] {
        assert!(p.store.update_check(&check, health, "why").await.unwrap());
        assert_eq!(p.pod_services(&service).await[0].health, health);
        p.until_passing(&service, &[health == Health::Passing]).await;
    }
    // The other check has no TTL.
    let node_check = PodService::node_check(&service.id);
    assert!(!p.store.update_check(&node_check, Health::Critical, "").await.unwrap());
}

async fn pod_of_silent_node(p: Port) {
    let (node, service) = (p.service(Duration::from_secs(2)), p.pod_service());
    p.store.register_service(&node).await.unwrap();
    p.store.register_pod_service(&service, &node.id, Health::Passing).await.unwrap();
    p.until_passing(&service, &[true]).await;
    p.until_passing(&service, &[false]).await;
    assert_eq!(p.pod_services(&service).await[0].health, Health::Passing, "the pod's own");
    assert!(p.store.pass_check(&node.check_id(), "").await.unwrap());
    p.until_passing(&service, &[true]).await;
}

async fn may_register(p: Port) {
    assert!(p.store.may_register(&p.pod_service().name).await.unwrap());
    assert_eq!(p.pod_services(&p.pod_service()).await, []);
}
