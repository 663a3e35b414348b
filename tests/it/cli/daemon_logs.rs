//! Logs of daemons in JSON: each line is one object in which no key stands twice, with the daemon's name and without
//! secrets.

use std::collections::BTreeSet;
use std::fmt;

use axum::body::to_bytes;
use rcfarm_node::http;
use rcfarm_testing::process::{Process, free_ports};
use rcfarm_testing::wait::{eventually, until};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::harness::HttpCluster;

/// JSON without a key that stands twice in an object. Many programs take the last one, some refuse the line.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Unique)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some((key, _)) = map.next_entry::<String, Unique>()? {
            if !keys.insert(key.clone()) {
                return Err(A::Error::custom(format!("{key} stands twice")));
            }
        }
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Unique, A::Error> {
        while list.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }
}

#[test]
fn key_that_stands_twice_is_found() {
    assert!(
        serde_json::from_str::<Unique>(r#"{"a": [{"b": 1, "c": null}], "d": {"a": "b"}}"#).is_ok()
    );
    let error = serde_json::from_str::<Unique>(r#"{"a": [{"b": 1, "b": 2}]}"#).err().unwrap();
    assert!(error.to_string().contains("b stands twice"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_logs_have_no_key_twice_and_no_password() {
    let cluster = HttpCluster::new().await;
    let dir = cluster.dir.path();
    let scheduler = "http://bob:hunter2@127.0.0.1:1/";
    let json = ["--log-format", "json", "--log", "debug"];
    let farm = ["farm", "run", "--name", "f1", "--scheduler", scheduler];
    let node = ["node", "run", "--name", "n1", "--data-dir", "data"];
    let mut running = Vec::new();
    for (words, log) in [(&farm[..], "farm.log"), (&node[..], "node.log")] {
        let mut command = cluster.program.command(&[words, &json].concat());
        running.push(Process::start(&mut command, dir, log));
    }
    for (log, kind, name) in [("farm.log", "farm", "f1"), ("node.log", "node", "n1")] {
        let read = || std::fs::read_to_string(dir.join(log)).unwrap();
        eventually("a session", || read().contains("session opened")).await;
        let text = read();
        // The last line may be half written.
        let (whole, _) = text.rsplit_once('\n').unwrap();
        let mut is_named = false;
        for line in whole.lines() {
            let unique = serde_json::from_str::<Unique>(line);
            assert!(unique.is_ok(), "{}: {line}", unique.err().unwrap());
            let line: Value = serde_json::from_str(line).unwrap();
            let spans = line["spans"].as_array().into_iter().flatten();
            is_named |= spans.into_iter().any(|span| span["name"] == kind && span[kind] == name);
        }
        assert!(is_named, "{log} never says whose it is:\n{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let farm = std::fs::read_to_string(dir.join("farm.log")).unwrap();
    assert!(farm.contains("http://127.0.0.1:1/"), "the address is there:\n{farm}");
}

/// Presences and the farm's pages are read by many.
#[tokio::test(flavor = "multi_thread")]
async fn records_and_pages_have_no_password_of_a_scheduler() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(2).await;
    let [port] = free_ports();
    let address = format!("127.0.0.1:{port}");
    let scheduler = "http://bob:hunter2@127.0.0.1:1/";
    let _farm = cluster.farm_process("f1", &["--scheduler", scheduler, "--http", &address]);
    let id = cluster.create(&["--replicas", "1"]).await;
    let presence = async || cluster.get("rcfarm/farms/f1").await.unwrap_or_default();
    until("its address", async || presence().await.contains("http://127.0.0.1:1/")).await;
    let mut texts = vec![presence().await];
    for command in [&["farm", "list", "-o", "json"][..], &["rc", "explain", &id], &["rc", "list"]] {
        texts.push(cluster.run(command).await.stdout);
    }
    for page in ["/status", "/metrics", "/readyz"] {
        let stream = TcpStream::connect(&address).await.unwrap();
        let answer = http::get(stream, &address, page, None).await.unwrap();
        assert_eq!(answer.status(), 200, "{page}");
        let text = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        texts.push(String::from_utf8(text.to_vec()).unwrap());
    }
    for text in texts {
        assert!(!text.is_empty() && !text.contains("hunter2") && !text.contains("bob"), "{text}");
    }
}
