use std::sync::Arc;

use rcfarm_emulator::{Emulator, Settings};
use rcfarm_store::time::IdSource;
use rcfarm_store::{PutMode, Store};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use rcfarm_api::Index;

/// A server that answers each request with `answer`, and its port.
async fn server(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

fn request(step: &str, check: ProbeCheck) -> ProbeRequest {
    let (step, job) = (step.parse().unwrap(), "f-a".parse().unwrap());
    ProbeRequest { step, job, uid: Index(7), task: "t".to_owned(), check }
}

fn http(port: u16) -> ProbeCheck {
    ProbeCheck::Http { path: "/x".to_owned(), port, header: None }
}

#[tokio::test]
async fn members_are_asked_at_their_nodes_and_redirects_are_not_followed() {
    let store = Emulator::new(&Settings::default(), &Arc::new(IdSource::from_seed(1)));
    let put = async |key: rcfarm_store::Key, value: serde_json::Value| {
        store.put(&key, value.to_string().into(), 0, PutMode::Set).await.unwrap();
    };
    let group: Namespaced = "default/f-a".parse().unwrap();
    let status = json!({"phase": "Running", "ownerUid": "7",
        "placement": {"state": "Bound", "members": {"t": ["n1"], "u": ["n2"]}}});
    put(key::pod_group_status(&group), status).await;
    put(key::node(&"n1".parse().unwrap()), json!({"address": "127.0.0.1"})).await;
    let good = server("HTTP/1.1 204 No Content\r\n\r\n").await;
    let away =
        server("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")
            .await;
    let bad = server("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let requests = [
        request("good", http(good)),
        request("good", ProbeCheck::Tcp { port: good }),
        request("away", http(away)),
        request("bad", http(bad)),
        request("closed", ProbeCheck::Tcp { port: closed }),
        ProbeRequest { uid: Index(8), ..request("older", http(good)) },
        ProbeRequest { task: "u".to_owned(), ..request("nowhere", http(good)) },
    ];
    let results = run_probes(&store, &group.namespace, &requests).await.unwrap();
    let of = |step: &str| results[&step.parse::<ObjectName>().unwrap()].clone();
    assert_eq!((of("good"), of("away")), (Ok(()), Ok(())));
    assert!(of("bad").unwrap_err().contains("status 503"));
    assert!(of("closed").unwrap_err().contains("refused"));
    assert!(of("older").unwrap_err().contains("no member of task t"));
    assert!(of("nowhere").unwrap_err().contains("node n2 has no address"));
}
