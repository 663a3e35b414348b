//! Ends of sessions and their effect on locks (`consul-semantics.md` §3).

use tokio::time::{Instant, sleep, sleep_until};

use super::*;

async fn is_alive(c: &Emulator, s: &SessionId) -> bool {
    c.session(s).await.unwrap().value.is_some()
}

#[tokio::test(start_paused = true)]
async fn session_expires_twice_its_ttl_after_the_last_renewal() {
    let c = consul();
    let s = session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }).await;
    let start = Instant::now();
    sleep_until(start + 19 * SEC).await;
    assert!(c.renew_session(&s).await.unwrap());
    sleep_until(start + Duration::from_millis(38_999)).await;
    assert!(is_alive(&c, &s).await);
    sleep_until(start + 39 * SEC).await;
    assert!(!is_alive(&c, &s).await);
    assert!(!c.renew_session(&s).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn election_restarts_the_ttl_of_every_session() {
    let c = consul();
    let s = session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }).await;
    sleep(19 * SEC).await;
    c.elect();
    sleep(19 * SEC).await;
    assert!(is_alive(&c, &s).await);
    sleep(SEC).await;
    assert!(!is_alive(&c, &s).await);
}

#[tokio::test(start_paused = true)]
async fn end_of_a_session_releases_all_its_keys_at_one_index() {
    let c = consul();
    let s = session(&c, &plain()).await;
    let other = session(&c, &plain()).await;
    for k in ["a", "b", "c"] {
        assert!(acquire(&c, k, &s).await);
    }
    assert!(acquire(&c, "d", &other).await);
    c.destroy_session(&s).await.unwrap();
    let freed =
        [get(&c, "a").await.unwrap(), get(&c, "b").await.unwrap(), get(&c, "c").await.unwrap()];
    for entry in &freed {
        assert_eq!(entry.modify_index, freed[0].modify_index);
        assert_eq!((entry.lock_index, &entry.session), (1, &None));
        assert_eq!(entry.value, value("held"));
    }
    assert_eq!(get(&c, "d").await.unwrap().session, Some(other));
    c.destroy_session(&s).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn behavior_delete_deletes_only_locked_keys() {
    let c = consul();
    let s = session(&c, &NewSession { behavior: Behavior::Delete, ..plain() }).await;
    assert!(acquire(&c, "locked", &s).await);
    assert!(acquire(&c, "released", &s).await);
    assert!(release(&c, "released", "v", &s).await);
    set(&c, "written", "v").await;
    c.destroy_session(&s).await.unwrap();
    assert!(get(&c, "locked").await.is_none());
    assert!(get(&c, "released").await.is_some());
    assert!(get(&c, "written").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn lock_delay_bars_the_lock_and_nothing_else() {
    let c = consul();
    let s = session(&c, &NewSession { lock_delay: 15 * SEC, ..plain() }).await;
    let next = session(&c, &plain()).await;
    assert!(acquire(&c, "clean", &s).await);
    assert!(release(&c, "clean", "", &s).await);
    assert!(acquire(&c, "k", &s).await);
    c.destroy_session(&s).await.unwrap();
    let end = Instant::now();
    assert!(acquire(&c, "clean", &next).await, "no delay after a clean release");
    assert!(!acquire(&c, "k", &next).await);
    let lock = Op::Lock { key: key("k"), value: value("v"), session: next.clone() };
    let TxnOutcome::Refused(refusals) = c.txn(std::slice::from_ref(&lock)).await.unwrap() else {
        panic!()
    };
    assert_eq!(refusals[0].what, "failed to lock key \"k\" due to lock delay");
    set(&c, "k", "still writable").await;
    sleep_until(end + Duration::from_millis(14_999)).await;
    assert!(!acquire(&c, "k", &next).await);
    sleep_until(end + 15 * SEC).await;
    assert!(acquire(&c, "k", &next).await);
}

#[tokio::test(start_paused = true)]
async fn lock_delay_is_at_most_a_minute_and_counts_from_the_expiry() {
    let c = consul();
    let new = NewSession { lock_delay: 300 * SEC, ttl: Some(10 * SEC), ..plain() };
    let s = session(&c, &new).await;
    let next = session(&c, &plain()).await;
    assert!(acquire(&c, "k", &s).await);
    // No request for a while after the session expired at 20 s.
    sleep(79 * SEC).await;
    assert!(!acquire(&c, "k", &next).await);
    sleep(SEC).await;
    assert!(acquire(&c, "k", &next).await);
}

#[tokio::test(start_paused = true)]
async fn a_fence_holds_only_while_the_lock_is_held() {
    let c = consul();
    let s = session(&c, &NewSession { behavior: Behavior::Delete, ..plain() }).await;
    let other = session(&c, &plain()).await;
    let fenced = async |v: &str| {
        let ops = [
            Op::CheckSession { key: key("lock"), session: s.clone() },
            Op::Set { key: key("data"), value: value(v), flags: 0 },
        ];
        matches!(c.txn(&ops).await.unwrap(), TxnOutcome::Committed { .. })
    };
    assert!(!fenced("absent").await);
    assert!(acquire(&c, "lock", &s).await);
    assert!(fenced("held").await);
    assert!(release(&c, "lock", "", &s).await);
    assert!(!fenced("released").await);
    assert!(acquire(&c, "lock", &other).await);
    assert!(!fenced("another's").await);
    assert!(release(&c, "lock", "", &other).await);
    assert!(acquire(&c, "lock", &s).await);
    assert!(fenced("again").await);
    c.destroy_session(&s).await.unwrap();
    assert!(!fenced("destroyed").await);
    assert_eq!(get(&c, "data").await.unwrap().value, value("again"));
}

fn service(ttl: Duration) -> TtlService {
    TtlService {
        name: "farm".to_owned(),
        id: "farm-1".to_owned(),
        meta: std::collections::BTreeMap::new(),
        ttl,
        deregister_after: 60 * SEC,
    }
}

#[tokio::test(start_paused = true)]
async fn missed_ttl_check_ends_sessions_exactly_at_its_ttl() {
    let c = consul();
    c.register_service(&service(2 * SEC)).await.unwrap();
    let new = NewSession { checks: vec!["service:farm-1".to_owned()], ..plain() };
    let s = session(&c, &new).await;
    assert!(acquire(&c, "k", &s).await);
    sleep(Duration::from_millis(1_500)).await;
    assert!(c.pass_check("service:farm-1", "beat").await.unwrap());
    sleep(Duration::from_millis(1_999)).await;
    assert!(is_alive(&c, &s).await);
    sleep(Duration::from_millis(1)).await;
    assert!(!is_alive(&c, &s).await);
    assert_eq!(get(&c, "k").await.unwrap().session, None);
    assert!(!c.service_health("farm").await.unwrap().value[0].passing);

    let refused = c.create_session(&new).await.unwrap_err();
    assert!(matches!(refused, StoreError::Rejected { status: 500, .. }), "{refused}");
    assert!(c.pass_check("service:farm-1", "").await.unwrap());
    session(&c, &new).await;
}

#[tokio::test(start_paused = true)]
async fn agent_deregisters_a_service_that_stays_critical() {
    let c = consul();
    c.register_service(&service(2 * SEC)).await.unwrap();
    sleep(61 * SEC).await;
    assert_eq!(c.service_health("farm").await.unwrap().value.len(), 1);
    sleep(SEC).await;
    assert!(c.service_health("farm").await.unwrap().value.is_empty());
    assert!(!c.pass_check("service:farm-1", "").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn deregistering_a_service_ends_its_sessions() {
    let c = consul();
    c.register_service(&service(2 * SEC)).await.unwrap();
    let new = NewSession { checks: vec!["service:farm-1".to_owned()], ..plain() };
    let s = session(&c, &new).await;
    let elsewhere = c.at_node("n2");
    elsewhere.deregister_service("farm-1").await.unwrap();
    assert!(is_alive(&c, &s).await, "another node's service of that id");
    c.deregister_service("farm-1").await.unwrap();
    assert!(!is_alive(&c, &s).await);
    c.deregister_service("farm-1").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn registration_does_not_pass_a_critical_check() {
    let c = consul();
    c.register_service(&service(2 * SEC)).await.unwrap();
    sleep(3 * SEC).await;
    assert!(!c.service_health("farm").await.unwrap().value[0].passing);
    c.register_service(&service(2 * SEC)).await.unwrap();
    assert!(c.service_health("farm").await.unwrap().value[0].passing, "the port beats it as well");
    sleep(2 * SEC).await;
    assert!(!c.service_health("farm").await.unwrap().value[0].passing);
}

#[tokio::test(start_paused = true)]
async fn bad_requests_are_refused() {
    let c = consul();
    let gone: SessionId = "11111111-1111-1111-1111-111111111111".into();
    let refused = c.put(&key("k"), value(""), 0, PutMode::Acquire(gone.clone())).await.unwrap_err();
    assert_eq!(refused, StoreError::SessionGone { session: gone.clone() });
    assert!(!release(&c, "k", "", &gone).await);
    for ttl in [Duration::from_millis(9_999), 86_401 * SEC] {
        let new = NewSession { ttl: Some(ttl), ..plain() };
        let refused = c.create_session(&new).await.unwrap_err();
        assert!(refused.to_string().contains("must be between"), "{refused}");
    }
    assert!(c.session(&SessionId::from("x")).await.is_err());
}
