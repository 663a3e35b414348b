//! B20: effects of restoring a snapshot, on a real Consul and on the emulator.

use std::sync::Arc;
use std::time::Duration;

use rcfarm_api::ids::SessionId;
use rcfarm_emulator::{Emulator, Tables};
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{Prefix, PutMode, Reader, Store};

use libtest_mimic::Trial;

use super::named;
use super::port::{Port, adapter, text};
use rcfarm_testing::consul_server::ConsulServer;

/// A server whose state can be saved and restored.
trait Restorable {
    type Saved;
    fn store(&self) -> Arc<dyn Store>;
    async fn save(&self) -> Self::Saved;
    async fn restore(&self, saved: Self::Saved);
}

impl Restorable for Emulator {
    type Saved = Tables;

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    async fn save(&self) -> Tables {
        self.snapshot()
    }

    async fn restore(&self, saved: Tables) {
        Emulator::restore(self, saved);
    }
}

impl Restorable for ConsulServer {
    type Saved = bytes::Bytes;

    fn store(&self) -> Arc<dyn Store> {
        adapter(self.http())
    }

    async fn save(&self) -> bytes::Bytes {
        let saved = direct().get(format!("http://{}/v1/snapshot", self.http())).send().await;
        saved.unwrap().error_for_status().unwrap().bytes().await.unwrap()
    }

    async fn restore(&self, saved: bytes::Bytes) {
        let put = direct().put(format!("http://{}/v1/snapshot", self.http())).body(saved);
        put.send().await.unwrap().error_for_status().unwrap();
    }
}

/// Without proxies.
fn direct() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

impl Port {
    async fn lock(&self, name: &str) -> SessionId {
        let session = self.session().await;
        assert!(self.put(name, "", PutMode::Acquire(session.clone())).await);
        session
    }
}

async fn a_restored_snapshot(on: impl Restorable) {
    let p = Port::new(on.store(), "B20");
    p.set("tree/a", "old").await;
    let ended = p.lock("tree/ended").await;
    let saved = on.save().await;
    p.end(&ended).await;
    let lost = p.lock("tree/lost").await;
    p.set("tree/a", "new").await;

    let reader: Arc<dyn Reader> = p.store.clone();
    let mut tree = TreeWatch::new(reader, Prefix::parse("tree").unwrap(), Duration::from_secs(2));
    assert_eq!(tree.next().await.unwrap().value.len(), 2);
    let before = p.read("tree/a").await;
    let blocked = p.watch("tree/a", before.index).await;
    // A read that starts later would wait until the old index is reached again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    on.restore(saved).await;

    assert_eq!(blocked.await.unwrap(), before, "a blocked read answers what was before");
    let after = p.read("tree/a").await;
    assert!(after.index < before.index);
    assert_eq!(text(&after.value.unwrap()), "old");
    assert!(p.store.session(&ended).await.unwrap().value.is_some(), "an ended session is back");
    assert_eq!(p.entry("tree/ended").await.session, Some(ended), "with its lock");
    assert!(p.store.session(&lost).await.unwrap().value.is_none(), "a later one is gone");
    assert!(!p.exists("tree/lost").await);

    // A watch would wait forever at the old index, unless it reads again from time to time.
    while !tree.next().await.unwrap().value.iter().any(|entry| text(entry) == "old") {}
    p.set("tree/a", "newest").await;
    assert!(p.entry("tree/a").await.modify_index > before.index);
}

pub fn trials() -> Vec<Trial> {
    let name = |backend| format!("restore::{backend}::B20_a_restored_snapshot");
    let says = "a restored snapshot";
    vec![
        named(name("emulator"), says, || a_restored_snapshot(Emulator::default())),
        named(name("consul"), says, async || a_restored_snapshot(ConsulServer::dev().await).await),
    ]
}
