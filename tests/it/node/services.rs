//! Services of pods in the catalog: registered with the local Consul agent by the node's agent.

use std::time::Duration;

use rcfarm_api::node::Health;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_emulator::Status;
use rcfarm_node::agent::AtShutdown;
use rcfarm_node::agent::services::id_prefix;
use rcfarm_store::{PodService, Reader, RegisteredService, Store};
use rcfarm_testing::wait::until;

use crate::harness::{Host, manifest};

const WEB: &str = "services: [{name: web, port: '${NODE_PORT}', tags: [v1], meta: {team: a}}]\n";

impl Host {
    /// The pod's service, while it is registered.
    async fn service(&self, pod: &str, name: &str) -> Option<RegisteredService> {
        let prefix = id_prefix(&self.node());
        let mut all = self.store.pod_services(&prefix).await.unwrap();
        all.remove(&format!("{prefix}{pod}:{name}"))
    }

    async fn until_service(&self, pod: &str, name: &str, health: Health) -> PodService {
        until(&format!("service {name} of {pod} is {health}"), async || {
            self.service(pod, name).await.is_some_and(|found| found.health == health)
        })
        .await;
        self.service(pod, name).await.unwrap().service
    }

    async fn until_no_service(&self, pod: &str, name: &str) {
        until(&format!("there is no service {name} of {pod}"), async || {
            self.service(pod, name).await.is_none()
        })
        .await;
    }

    async fn intend_web(&self, pod: &str, more: &str, services: &str) {
        self.intend(pod, &(manifest(pod, "touch well; exec sleep 600", more) + services)).await;
    }

    /// Indexes of the last changes of the service and of its checks.
    fn indexes(&self, name: &str) -> Vec<rcfarm_store::Index> {
        self.store.inspect(|tables| {
            let catalog = &tables.catalog;
            let services = catalog.services().filter(|(_, _, service)| service.name == name);
            let services: Vec<_> =
                services.map(|(node, id, s)| (node, id, s.modify_index)).collect();
            let checks = services.iter().flat_map(|(node, id, _)| {
                catalog.checks_of(node, id).map(|(_, check)| check.modify_index)
            });
            services.iter().map(|(_, _, index)| *index).chain(checks).collect()
        })
    }

    async fn passes(&self, name: &str) -> bool {
        let health = self.store.service_health(name).await.unwrap().value;
        health.iter().any(|instance| instance.passing)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_is_registered_while_its_pod_runs() {
    let mut host = Host::new();
    host.start();
    host.intend_web("web", "", WEB).await;
    let service = host.until_service("web", "web", Health::Passing).await;
    assert_eq!((service.address.as_str(), service.port), ("127.0.0.1", 12345));
    assert_eq!(service.tags, ["v1"]);
    let meta = [("rcfarm-node", "n1"), ("rcfarm-pod", "web"), ("team", "a")];
    assert_eq!(service.meta, meta.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    assert!(host.passes("web").await);
    // Another version of the manifest, with another service.
    host.intend_web("web", "", "services: [{name: web-2}]\n").await;
    let service = host.until_service("web", "web-2", Health::Passing).await;
    assert_eq!(service.port, 0);
    host.until_no_service("web", "web").await;
    host.unintend("web").await;
    host.until_no_service("web", "web-2").await;
    host.until_gone("web").await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_check_follows_the_health_of_the_pod() {
    let mut host = Host::new();
    host.start();
    let check = "    health: {exec: [sh, -c, 'test -e \"$POD_HOME/well\" || exit 2'], \
                 interval: 100ms, critical_after: 1}\n";
    host.intend_web("web", check, WEB).await;
    host.until_service("web", "web", Health::Passing).await;
    let well = host.settings.data_dir.join("pods/web/well");
    std::fs::remove_file(&well).unwrap();
    host.until_service("web", "web", Health::Critical).await;
    let output = host.store.inspect(|tables| {
        let check = PodService::health_check("rcfarm-pod:n1:web:web");
        tables.catalog.check(host.store.node(), &check).unwrap().output.clone()
    });
    assert!(output.contains("exit status: 2"), "{output}");
    std::fs::write(well, "").unwrap();
    host.until_service("web", "web", Health::Passing).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_of_an_ended_pod_is_deregistered() {
    let mut host = Host::new();
    host.start();
    let script = "while ! [ -e end ]; do sleep 0.05; done";
    host.intend("job", &(manifest("job", script, "    restart: never\n") + WEB)).await;
    host.until_service("job", "web", Health::Passing).await;
    std::fs::write(host.settings.data_dir.join("pods/job/end"), "").unwrap();
    host.until("job", |status| status.phase == NodePodPhase::Ended).await;
    host.until_no_service("job", "web").await;
    host.end().await;
}

/// Neither the service nor a check of it changes, even though the new agent does not know the pod's health at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_agent_leaves_its_services_as_they_are() {
    let mut host = Host::new();
    host.start();
    let check = "    health: {exec: [sh, -c, 'test -e \"$POD_HOME/well\" || exit 2'], \
                 interval: 500ms, critical_after: 1}\n";
    host.intend_web("web", check, WEB).await;
    host.until_service("web", "web", Health::Passing).await;
    let before = host.indexes("web");
    let session = host.node_record().await.unwrap().0.session;
    host.kill().await;
    host.start();
    until("the new agent is registered", async || {
        host.node_record().await.unwrap().0.session != session
    })
    .await;
    // It is reported with its health again.
    host.until("web", |status| status.health == Health::Passing).await;
    assert_eq!(host.indexes("web"), before);
    // It still looks after them.
    std::fs::remove_file(host.settings.data_dir.join("pods/web/well")).unwrap();
    host.until_service("web", "web", Health::Critical).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_of_a_pod_that_went_while_no_agent_ran_is_deregistered() {
    let mut host = Host::new();
    host.start();
    host.intend_web("web", "", WEB).await;
    host.until_service("web", "web", Health::Passing).await;
    host.kill().await;
    host.unintend("web").await;
    let other = PodService {
        id: "rcfarm-pod:n2:web:web".to_owned(),
        name: "web".to_owned(),
        address: String::new(),
        port: 1,
        tags: Vec::new(),
        meta: [].into(),
    };
    let of_nobody = PodService { id: "rcfarm-pod:n1:gone:web".to_owned(), ..other.clone() };
    for service in [&other, &of_nobody] {
        let registered =
            host.store.register_pod_service(service, "rcfarm-node-x", Health::Passing).await;
        registered.unwrap();
    }
    host.start();
    host.until_no_service("gone", "web").await;
    host.until_no_service("web", "web").await;
    let others = host.store.pod_services("rcfarm-pod:n2:").await.unwrap();
    assert_eq!(others.len(), 1, "another node's service stays");
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_consul_agent_gets_all_services_again() {
    let mut host = Host::new();
    host.start();
    let pods = ["a", "b", "c"];
    for pod in pods {
        host.intend_web(pod, "", WEB).await;
        host.until_service(pod, "web", Health::Passing).await;
    }
    let ids = host.store.inspect(|tables| {
        let services = tables.catalog.services();
        services.map(|(_, id, _)| id.to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(ids.len(), 4);
    for id in ids {
        host.store.deregister_service(&id).await.unwrap();
    }
    for pod in pods {
        host.until_service(pod, "web", Health::Passing).await;
    }
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_of_a_dead_agent_turn_critical_with_its_check() {
    let mut host = Host::new();
    host.settings.session.check_ttl = Some(Duration::from_secs(1));
    host.start();
    host.intend_web("web", "", WEB).await;
    host.until_service("web", "web", Health::Passing).await;
    assert!(host.passes("web").await);
    host.kill().await;
    until("the service no longer passes", async || !host.passes("web").await).await;
    let status = host.store.inspect(|tables| {
        let check = PodService::health_check("rcfarm-pod:n1:web:web");
        tables.catalog.check(host.store.node(), &check).unwrap().status
    });
    assert_eq!(status, Status::Passing, "the pod runs on");
    host.start();
    until("the service passes again", async || host.passes("web").await).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_that_stops_its_pods_deregisters_their_services() {
    let mut host = Host::new();
    host.settings.at_shutdown = AtShutdown::StopPods;
    host.start();
    host.intend_web("web", "", WEB).await;
    host.until_service("web", "web", Health::Passing).await;
    host.stop().await.unwrap();
    assert!(host.service("web", "web").await.is_none());
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_fields_that_the_node_does_not_allow_are_not_registered() {
    let mut host = Host::new();
    host.settings.permits.services = vec!["app-*".to_owned(), "web".to_owned()];
    host.start();
    let services =
        "services: [{name: app-a}, {name: web}, {name: web2}, {name: app-b, port: '${NONE}'}]\n";
    host.intend_web("some", "", services).await;
    host.until_service("some", "web", Health::Passing).await;
    host.until_service("some", "app-a", Health::Passing).await;
    let status = host.until("some", |status| status.notes.len() == 2).await;
    assert!(status.notes[0].contains("web2") && status.notes[0].contains("--allow-service"));
    assert!(status.notes[1].contains("app-b") && status.notes[1].contains("NONE"));
    let all = host.store.pod_services(&id_prefix(&host.node())).await.unwrap();
    assert_eq!(all.len(), 2, "{all:?}");
    // What would never be allowed is not run: `create` would have refused it.
    host.intend_web("bad", "", "services: [{name: ok}, {name: consul}]\n").await;
    let status = host.until("bad", |status| status.phase == NodePodPhase::Unfit).await;
    assert!(status.message.contains("services[1].name"), "{}", status.message);
    host.end().await;
}
