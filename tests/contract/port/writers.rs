//! Claims, and writers fenced by them.

use std::time::Duration;

use rcfarm_store::{Claim, Commit, Epoch, Index, PutMode, Txn, Writer};
use tokio::time::Instant;

use super::super::cases;
use super::{Case, Port, cas, key, set, text};

pub const CASES: &[Case<Port>] = cases! {
    pW01 Shared "a live claim writes, again and again" => writes;
    pW02 Shared "a stale guard refuses the transaction, and the claim stays" => stale_guard;
    pW03 Shared "a released lock loses the claim, whatever else was wrong" => released;
    pW04 Shared "the end of the session loses the claim" => session_ended;
    pW05 Shared "a lock taken by another session loses the claim" => taken;
    pW06 Shared "past the local deadline nothing is sent, though Consul would take it" => deadline;
    pW07 Shared "a lost claim writes nothing more, and hurts no other claim" => one_of_two;
    pW08 Shared "of two farms that race for a lock, one writes" => race;
};

const LONG: Duration = Duration::from_secs(600);

impl Port {
    /// Claim on a lock of its session.
    async fn claim(&self, lock: &str, epoch: &Epoch) -> Claim {
        assert!(self.put(lock, "", PutMode::Acquire(epoch.session().clone())).await);
        Claim::new(key(lock), epoch.clone())
    }

    async fn epoch(&self) -> Epoch {
        Epoch::new(self.session().await, Instant::now() + LONG)
    }

    async fn write(&self, claim: &Claim, name: &str, text: &str) -> Commit {
        let mut txn = Txn::under(claim);
        txn.push(set(name, text));
        Writer::new(self.store.clone()).commit(txn).await.unwrap()
    }
}

async fn writes(p: Port) {
    let claim = p.claim("lock", &p.epoch().await).await;
    for text in ["1", "2"] {
        let commit = p.write(&claim, "data", text).await;
        assert_eq!(commit, Commit::Applied(p.entry("data").await.modify_index));
    }
    assert!(claim.is_live());
}

async fn stale_guard(p: Port) {
    let claim = p.claim("lock", &p.epoch().await).await;
    p.set("data", "x").await;
    let mut txn = Txn::under(&claim);
    txn.push(cas("data", "y", Index(1))).push(set("other", "y"));
    let commit = Writer::new(p.store.clone()).commit(txn).await.unwrap();
    let Commit::Refused(refusals) = commit else { panic!("{commit:?}") };
    assert_eq!(refusals.iter().map(|r| r.op).collect::<Vec<_>>(), [1]);
    assert!(claim.is_live());
    assert!(!p.exists("other").await);
}

async fn released(p: Port) {
    let epoch = p.epoch().await;
    let claim = p.claim("lock", &epoch).await;
    assert!(p.put("lock", "", PutMode::Release(epoch.session().clone())).await);
    let mut txn = Txn::under(&claim);
    txn.push(cas("data", "x", Index(7)));
    let commit = Writer::new(p.store.clone()).commit(txn).await.unwrap();
    assert_eq!(commit, Commit::ClaimLost);
    assert!(!claim.is_live() && epoch.is_live());
}

async fn session_ended(p: Port) {
    let epoch = p.epoch().await;
    let claim = p.claim("lock", &epoch).await;
    p.end(epoch.session()).await;
    assert_eq!(p.write(&claim, "data", "x").await, Commit::ClaimLost);
    assert!(!p.exists("data").await);
}

async fn taken(p: Port) {
    let (epoch, other) = (p.epoch().await, p.epoch().await);
    let claim = p.claim("lock", &epoch).await;
    p.put("lock", "", PutMode::Release(epoch.session().clone())).await;
    let theirs = p.claim("lock", &other).await;
    assert_eq!(p.write(&claim, "data", "mine").await, Commit::ClaimLost);
    assert!(matches!(p.write(&theirs, "data", "theirs").await, Commit::Applied(_)));
    assert_eq!(text(&p.entry("data").await), "theirs");
}

async fn deadline(p: Port) {
    let epoch = Epoch::new(p.session().await, Instant::now() + Duration::from_millis(200));
    let claim = p.claim("lock", &epoch).await;
    tokio::time::sleep_until(epoch.good_until()).await;
    assert_eq!(p.write(&claim, "data", "x").await, Commit::ClaimLost);
    epoch.extend(Instant::now() + LONG);
    assert_eq!(p.write(&claim, "data", "x").await, Commit::ClaimLost);
    assert!(!p.exists("data").await);
}

async fn one_of_two(p: Port) {
    let epoch = p.epoch().await;
    let (lost, kept) = (p.claim("lock/1", &epoch).await, p.claim("lock/2", &epoch).await);
    p.put("lock/1", "", PutMode::Release(epoch.session().clone())).await;
    assert_eq!(p.write(&lost, "data", "x").await, Commit::ClaimLost);
    assert!(p.put("lock/1", "", PutMode::Acquire(epoch.session().clone())).await);
    // Consul would accept the write, but a lost claim stays lost.
    assert_eq!(p.write(&lost, "data", "x").await, Commit::ClaimLost);
    assert!(matches!(p.write(&kept, "data", "y").await, Commit::Applied(_)));
}

async fn race(p: Port) {
    let contend = async |name: &'static str| {
        let epoch = p.epoch().await;
        let won = p.put("lock", "", PutMode::Acquire(epoch.session().clone())).await;
        let claim = Claim::new(key("lock"), epoch);
        let commit = p.write(&claim, "data", name).await;
        assert_eq!(won, matches!(commit, Commit::Applied(_)), "{name}: {commit:?}");
        won
    };
    let (a, b) = tokio::join!(contend("a"), contend("b"));
    assert!(a ^ b);
    assert_eq!(text(&p.entry("data").await), if a { "a" } else { "b" });
}
