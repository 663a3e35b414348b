//! Names of pods on a real Consul: registered by an agent that is killed, and resolved by Consul's DNS.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use rcfarm_api::ids::NodeName;
use rcfarm_api::key;
use rcfarm_store::{Query, Reader};
use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::{Process, free_ports};
use rcfarm_testing::wait::{eventually, until};

use super::acl_policies::{denying_consul, rules_of};
use crate::harness::{RealCluster, id, manifest, node};

/// Type SRV of a DNS question.
const SRV: u16 = 33;
/// Type A of a DNS question.
const A: u16 = 1;

/// Asks a DNS server, and returns the data of the records in the answer.
fn resolve(port: u16, name: &str, kind: u16) -> Vec<Vec<u8>> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).unwrap());
        question.extend(label.as_bytes());
    }
    question.push(0);
    question.extend(kind.to_be_bytes());
    question.extend(1_u16.to_be_bytes());
    socket.send_to(&question, (Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut buffer = [0; 4_096];
    let Ok(length) = socket.recv(&mut buffer) else { return Vec::new() };
    let answer = &buffer[..length];
    let number = |at: usize| usize::from(u16::from_be_bytes([answer[at], answer[at + 1]]));
    // The answers come after the question. Their names are pointers, as Consul compresses them.
    let mut at = question.len();
    let mut records = Vec::new();
    for _ in 0..number(6) {
        at = after_name(answer, at);
        let (kind_here, length) = (number(at), number(at + 8));
        at += 10;
        if kind_here == usize::from(kind) {
            records.push(answer[at..at + length].to_vec());
        }
        at += length;
    }
    records
}

/// Where a name ends.
fn after_name(answer: &[u8], mut at: usize) -> usize {
    loop {
        match answer[at] {
            0 => return at + 1,
            pointer if pointer >= 0xc0 => return at + 2,
            label => at += 1 + usize::from(label),
        }
    }
}

const LOCALHOST: [u8; 4] = [127, 0, 0, 1];

async fn until_resolved(port: u16, name: &str, wanted: &[[u8; 4]]) {
    until(&format!("{name} is {wanted:?}"), async || {
        let found = tokio::task::block_in_place(|| resolve(port, name, A));
        found.iter().map(Vec::as_slice).eq(wanted.iter().map(<[u8; 4]>::as_slice))
    })
    .await;
}

/// The name resolves while the pod runs, over kill -9 of the agent, and again after Consul's agent has lost everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_of_a_pod_resolves_through_consuls_dns() {
    let [dns] = free_ports();
    let server = ConsulServer::with_config(&format!("ports {{ dns = {dns} }}")).await;
    let mut cluster = RealCluster::on_server(server);
    let n1 = node(1);
    let start = |cluster: &RealCluster| cluster.agent_process(n1.as_str(), &[]);
    let mut agent = start(&cluster);
    let services = "services: [{name: web, port: 8123, tags: [blue]}]\n";
    let web = manifest("web", "exec sleep 600", "") + services;
    let intend = async |cluster: &RealCluster| {
        cluster.put(key::intent(&n1, &id("web")), web.clone()).await;
    };
    intend(&cluster).await;
    until_resolved(dns, "web.service.consul", &[LOCALHOST]).await;
    until_resolved(dns, "blue.web.service.consul", &[LOCALHOST]).await;
    let records = resolve(dns, "web.service.consul", SRV);
    assert_eq!(records.len(), 1);
    assert_eq!(u16::from_be_bytes([records[0][4], records[0][5]]), 8123);

    agent.signal("KILL");
    eventually("the agent's end", || !agent.runs()).await;
    until_resolved(dns, "web.service.consul", &[LOCALHOST]).await;
    let next = start(&cluster);
    until_resolved(dns, "web.service.consul", &[LOCALHOST]).await;

    // A Consul in memory has lost everything, intents too: the pod runs on, and so does its name.
    cluster.server.kill();
    cluster.server.until_ready().await;
    until_resolved(dns, "web.service.consul", &[LOCALHOST]).await;

    // The pod goes, and its name with it.
    intend(&cluster).await;
    until("the intent is reported", async || {
        let status = key::pod_status(&id("web"), &n1);
        let status = cluster.store.get(&status, Query::PLAIN).await.ok();
        let status = status.and_then(|answer| answer.value);
        status.is_some_and(|entry| {
            let status: Result<rcfarm_api::node::status::PodStatus, _> =
                rcfarm_api::Stored::decode(&entry.value);
            let index = status.ok().and_then(|status| status.intent_index);
            index.is_some_and(|index| index != rcfarm_api::node::status::IntentIndex::NONE)
        })
    })
    .await;
    cluster.delete(key::intent(&n1, &id("web"))).await;
    until_resolved(dns, "web.service.consul", &[]).await;
    next.stop().await;
}

/// Without the right to the service the pod runs as before, and the agent says once what it needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_registers_the_names_that_its_token_permits() {
    let cluster = denying_consul().await;
    let n1: NodeName = "n1".parse().unwrap();
    let program = cluster.program.with_token(&cluster.token(&rules_of("node")).await);
    let words = ["node", "run", "--name", "n1", "--data-dir", "data"];
    let dir = cluster.dir.path();
    let agent = Process::start(&mut program.command(&words), dir, "node.log");
    let mut agent = Daemon::new(agent, Some(dir.join("data")));
    let services = "services: [{name: app-a, port: 1}, {name: other, port: 2}, {name: third}]\n";
    let web = manifest("web", "exec sleep 600", "") + services;
    cluster.put(key::intent(&n1, &id("web")), web).await;
    until("the permitted service passes", async || {
        let health = cluster.store.service_health("app-a").await.unwrap().value;
        health.iter().any(|instance| instance.passing)
    })
    .await;
    until("the others are in the pod's notes", async || {
        let status = key::pod_status(&id("web"), &n1);
        let entry = cluster.entry(&status).await;
        entry.is_some_and(|entry| {
            let text = String::from_utf8_lossy(&entry.value).into_owned();
            text.contains("service other is not registered")
                && text.contains("service third is not")
        })
    })
    .await;
    let log = std::fs::read_to_string(dir.join("node.log")).unwrap();
    assert_eq!(log.matches("Consul refuses a service of a pod").count(), 1, "{log}");
    assert!(log.contains("service_prefix write"), "{log}");
    assert!(agent.runs());
    agent.stop().await;
}

/// The example's name resolves once a farm has placed its pod and the pod is healthy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_is_found_by_name() {
    let [dns, port] = free_ports();
    let server = ConsulServer::with_config(&format!("ports {{ dns = {dns} }}")).await;
    let cluster = RealCluster::on_server(server);
    let (name, port_of_node) = (node(1), format!("NODE_PORT={port}"));
    let more = ["--label", "pool=dev", "--env", &port_of_node, "--env", &path_with_program()];
    let agent = cluster.agent_process(name.as_str(), &more);
    let words = ["farm", "run", "--name", "f1", "--log", "warn"];
    let farm = Process::start_logging_here(&mut cluster.program.command(&words));
    let farm = Daemon::new(farm, None);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/services.yaml");
    let example = example.to_str().unwrap();
    cluster.program.run(&["apply", "-f", example]).await.ok();
    until_resolved(dns, "v1.app-web.service.consul", &[LOCALHOST]).await;
    let records = resolve(dns, "app-web.service.consul", SRV);
    assert_eq!(u16::from_be_bytes([records[0][4], records[0][5]]), port);
    farm.stop().await;
    agent.stop().await;
}

/// A farm gives a pod a port of its node's range, which its service has by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_port_of_a_pod_is_in_consuls_dns() {
    let [dns] = free_ports();
    let server = ConsulServer::with_config(&format!("ports {{ dns = {dns} }}")).await;
    let cluster = RealCluster::on_server(server);
    let more = ["--label", "role=web", "--ports", "23000-23009"];
    let agent = cluster.agent_process(node(1).as_str(), &more);
    let farm = cluster.farm_process("f1", &[]);
    let services = "ports: [{name: http}]\nservices: [{name: web, port: http}]\n";
    let script = "echo at $PORT_HTTP; exec sleep 600";
    cluster.create_of(&manifest("web", script, services), &["--replicas", "1"]).await;
    until_resolved(dns, "web.service.consul", &[LOCALHOST]).await;
    let records = resolve(dns, "web.service.consul", SRV);
    let port = u16::from_be_bytes([records[0][4], records[0][5]]);
    assert!((23_000..=23_009).contains(&port), "{port}");
    let key = key::allocation(&node(1));
    let allocated = cluster.value(key).await;
    assert_eq!(allocated["pods"]["web"]["ports"]["http"], port);
    farm.stop().await;
    agent.stop().await;
}

/// `PATH` with the directory of the program, which the example starts.
fn path_with_program() -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_rcfarm"));
    let own = program.parent().unwrap().display();
    format!("PATH={own}:{}", std::env::var("PATH").unwrap())
}
