//! TTL services, their checks and health.

use std::time::{Duration, Instant};

use rcfarm_store::TtlService;

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
