//! Sessions.

use std::time::{Duration, Instant};

use rcfarm_api::ids::SessionId;
use rcfarm_store::{Behavior, NewSession, PutMode};

use super::super::cases;
use super::{Case, Port, rejected};

pub const CASES: &[Case<Port>] = cases! {
    pS02 Shared "a TTL outside 10 s to 24 h is rejected" => ttl_bounds;
    pS04 Shared "a check that does not exist is rejected" => unknown_check;
    pS05 Shared "a session that is gone is none" => unknown;
    pS07 Shared "ending a session twice is fine" => ended_twice;
    pS08 Shared "a TTL of 10 s ends after 20 s, and its lock with it" => expires;
    pS09 Shared "a renewal starts the TTL anew" => renewed;
    pS12 Shared "a session ends with its check's service" => service_gone;
    pS30 Shared "renewing is true while it lives, false when it is gone" => renew;
    pS34 Shared "a session is shown as it was made, alone and in the list" => shown;
    pS38 Shared "a silent check ends the session at the check's TTL, and frees its locks" => check_silent;
    pS40 Shared "a beaten check keeps its session" => check_beaten;
    pS41 Shared "sessions have different ids" => distinct;
};

const SECOND: Duration = Duration::from_secs(1);

impl Port {
    async fn lives(&self, session: &SessionId) -> bool {
        self.store.session(session).await.unwrap().value.is_some()
    }

    async fn until_gone(&self, session: &SessionId) {
        while self.lives(session).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn with_ttl(ttl: Duration) -> NewSession {
    NewSession { ttl: Some(ttl), ..NewSession::default() }
}

async fn ttl_bounds(p: Port) {
    for bad in [SECOND * 9, SECOND * 24 * 3600 + SECOND] {
        rejected(p.store.create_session(&with_ttl(bad)).await);
    }
    for good in [SECOND * 10, Duration::from_millis(10_500), SECOND * 24 * 3600] {
        let s = p.session_with(with_ttl(good)).await;
        assert_eq!(p.store.session(&s).await.unwrap().value.unwrap().ttl, Some(good));
    }
}

async fn unknown_check(p: Port) {
    let checks = vec![p.service(SECOND).check_id()];
    rejected(p.store.create_session(&NewSession { checks, ..NewSession::default() }).await);
}

async fn unknown(p: Port) {
    let gone = SessionId::from(&*uuid::Uuid::new_v4().to_string());
    assert!(!p.lives(&gone).await);
    rejected(p.store.session(&SessionId::from("abc")).await);
}

async fn ended_twice(p: Port) {
    let s = p.session().await;
    p.end(&s).await;
    p.end(&s).await;
    assert!(!p.lives(&s).await);
}

async fn expires(p: Port) {
    let from = Instant::now();
    let s = p.session_with(with_ttl(SECOND * 10)).await;
    assert!(p.put("a", "x", PutMode::Acquire(s.clone())).await);
    let index = p.read("a").await.index;
    let freed = p.watch("a", index).await.await.unwrap();
    assert_eq!(freed.value, None);
    // Only a lower bound: the upper one depends on the machine's load.
    assert!(from.elapsed() >= Duration::from_millis(19_900), "{:?}", from.elapsed());
    assert!(!p.store.renew_session(&s).await.unwrap());
}

async fn renewed(p: Port) {
    let s = p.session_with(with_ttl(SECOND * 10)).await;
    tokio::time::sleep(SECOND * 5).await;
    let from = Instant::now();
    assert!(p.store.renew_session(&s).await.unwrap());
    p.until_gone(&s).await;
    assert!(from.elapsed() >= Duration::from_millis(19_900), "{:?}", from.elapsed());
}

async fn service_gone(p: Port) {
    let service = p.service(SECOND * 60);
    p.store.register_service(&service).await.unwrap();
    let s = p
        .session_with(NewSession { checks: vec![service.check_id()], ..NewSession::default() })
        .await;
    p.store.deregister_service(&service.id).await.unwrap();
    p.until_gone(&s).await;
}

async fn renew(p: Port) {
    let s = p.session_with(with_ttl(SECOND * 30)).await;
    let before = p.store.session(&s).await.unwrap().value;
    assert!(p.store.renew_session(&s).await.unwrap());
    assert_eq!(p.store.session(&s).await.unwrap().value, before);
    let endless = p.session().await;
    assert!(p.store.renew_session(&endless).await.unwrap());
    p.end(&s).await;
    assert!(!p.store.renew_session(&s).await.unwrap());
    rejected(p.store.renew_session(&SessionId::from("abc")).await);
}

async fn shown(p: Port) {
    let new = NewSession {
        name: p.service(SECOND).name,
        ttl: Some(SECOND * 15),
        lock_delay: Duration::from_millis(2_500),
        behavior: Behavior::Release,
        checks: vec![],
    };
    let id = p.session_with(new.clone()).await;
    let seen = p.store.session(&id).await.unwrap();
    let info = seen.value.unwrap();
    assert_eq!((&info.id, &info.name), (&id, &new.name));
    assert_eq!((info.ttl, info.lock_delay, info.behavior), (new.ttl, new.lock_delay, new.behavior));
    assert!(!info.node.is_empty());
    assert!(seen.index >= info.create_index);
    assert!(p.store.sessions().await.unwrap().value.contains(&info));
    let plain = p.session().await;
    let plain = p.store.session(&plain).await.unwrap().value.unwrap();
    assert_eq!(
        (plain.ttl, plain.lock_delay, plain.behavior),
        (None, Duration::ZERO, Behavior::Delete)
    );
}

async fn check_silent(p: Port) {
    let service = p.service(SECOND * 2);
    p.store.register_service(&service).await.unwrap();
    let from = Instant::now();
    assert!(p.store.pass_check(&service.check_id(), "").await.unwrap());
    let new = NewSession { checks: vec![service.check_id()], ..with_ttl(SECOND * 30) };
    let s = p.session_with(new).await;
    assert!(p.put("a", "x", PutMode::Acquire(s.clone())).await);
    let index = p.read("a").await.index;
    assert_eq!(p.watch("a", index).await.await.unwrap().value, None);
    assert!(from.elapsed() >= Duration::from_millis(1_900), "{:?}", from.elapsed());
    let next = p.session().await;
    assert!(p.put("a", "x", PutMode::Acquire(next)).await);
    p.store.deregister_service(&service.id).await.unwrap();
}

async fn check_beaten(p: Port) {
    let service = p.service(SECOND * 8);
    p.store.register_service(&service).await.unwrap();
    let s = p
        .session_with(NewSession { checks: vec![service.check_id()], ..NewSession::default() })
        .await;
    for beat in 0..20 {
        assert!(p.store.pass_check(&service.check_id(), &format!("beat {beat}")).await.unwrap());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(p.lives(&s).await);
    p.store.deregister_service(&service.id).await.unwrap();
}

async fn distinct(p: Port) {
    let (a, b) = (p.session().await, p.session().await);
    assert_ne!(a, b);
    assert_eq!(a.as_str().len(), 36);
}
