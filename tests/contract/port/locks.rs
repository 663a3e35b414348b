//! Locks on single keys.

use std::time::{Duration, Instant};

use rcfarm_api::ids::SessionId;
use rcfarm_store::{Behavior, DeleteMode, NewSession, PutMode, StoreError};

use super::super::cases;
use super::{Case, Port, key, text};

pub const CASES: &[Case<Port>] = cases! {
    pL01 Shared "acquiring a free key sets the session, lock index 1 and the value" => acquired;
    pL02 Shared "acquiring again: the same value changes nothing, another one only the modify index" => again;
    pL04 Shared "release: only the holder, once, and the value is stored" => released;
    pL07 Shared "plain and cas writes on a locked key keep the session and reset the lock index" => written;
    pL08 Shared "anybody may delete a locked key, and it can be locked again at once" => deleted;
    pL10 Shared "the end of a session, release: all keys free at one index, values kept" => ended_releasing;
    pL11 Shared "the end of a session, delete: locked keys vanish, written ones stay" => ended_deleting;
    pL13 Shared "no delay after a release" => no_delay;
    pL14 Shared "lock-delay refuses the lock, not the write" => delayed;
    pL30 Shared "a lock that another session holds is refused and not changed" => busy;
    pL31 Shared "a lock for a session that is gone is an error that says so" => session_gone;
    pL32 Shared "a release for a session that is gone is refused" => release_gone;
    pL33 Shared "the lock index counts acquisitions" => counted;
    pL34 Shared "lock-delay ends by itself" => delay_ends;
};

fn acquire(session: &SessionId) -> PutMode {
    PutMode::Acquire(session.clone())
}

fn release(session: &SessionId) -> PutMode {
    PutMode::Release(session.clone())
}

async fn acquired(p: Port) {
    let s = p.session().await;
    assert!(p.put("a", "mine", acquire(&s)).await);
    let entry = p.entry("a").await;
    assert_eq!((entry.session.as_ref(), entry.lock_index, text(&entry)), (Some(&s), 1, "mine"));
}

async fn again(p: Port) {
    let s = p.session().await;
    p.put("a", "x", acquire(&s)).await;
    let first = p.entry("a").await;
    assert!(p.put("a", "x", acquire(&s)).await);
    assert_eq!(p.entry("a").await, first);
    assert!(p.put("a", "y", acquire(&s)).await);
    let third = p.entry("a").await;
    assert!(third.modify_index > first.modify_index);
    assert_eq!(third.lock_index, 1);
}

async fn released(p: Port) {
    let (s, other) = (p.session().await, p.session().await);
    p.put("a", "x", acquire(&s)).await;
    assert!(!p.put("a", "y", release(&other)).await);
    assert!(p.put("a", "z", release(&s)).await);
    let entry = p.entry("a").await;
    assert_eq!((entry.session.as_ref(), entry.lock_index, text(&entry)), (None, 1, "z"));
    assert!(!p.put("a", "z", release(&s)).await);
    assert!(!p.put("absent", "z", release(&s)).await);
}

async fn written(p: Port) {
    let s = p.session().await;
    p.put("a", "x", acquire(&s)).await;
    p.set("a", "y").await;
    let plain = p.entry("a").await;
    assert_eq!((plain.session.as_ref(), plain.lock_index), (Some(&s), 0));
    assert!(p.put("a", "z", PutMode::Cas(plain.modify_index)).await);
    let cas = p.entry("a").await;
    assert_eq!((cas.session.as_ref(), cas.lock_index), (Some(&s), 0));
}

async fn deleted(p: Port) {
    let (s, other) = (p.session().await, p.session().await);
    p.put("a", "x", acquire(&s)).await;
    assert!(p.store.delete(&key("a"), DeleteMode::Always).await.unwrap());
    assert!(p.put("a", "y", acquire(&other)).await);
    assert_eq!(p.entry("a").await.lock_index, 1);
}

async fn ended_releasing(p: Port) {
    let s =
        p.session_with(NewSession { behavior: Behavior::Release, ..NewSession::default() }).await;
    for name in ["a", "b"] {
        p.put(name, name, acquire(&s)).await;
    }
    p.end(&s).await;
    let (a, b) = (p.entry("a").await, p.entry("b").await);
    assert_eq!((&a.session, &b.session), (&None, &None));
    assert_eq!(a.modify_index, b.modify_index);
    assert_eq!((text(&a), a.lock_index), ("a", 1));
}

async fn ended_deleting(p: Port) {
    let s = p.session().await;
    p.put("locked", "x", acquire(&s)).await;
    p.set("written", "x").await;
    p.put("released", "x", acquire(&s)).await;
    p.put("released", "x", release(&s)).await;
    p.end(&s).await;
    assert_eq!(p.keys("", None).await, ["released", "written"]);
}

async fn no_delay(p: Port) {
    let delay = NewSession { lock_delay: Duration::from_secs(30), ..NewSession::default() };
    let (s, next) = (p.session_with(delay).await, p.session().await);
    p.put("a", "x", acquire(&s)).await;
    p.put("a", "x", release(&s)).await;
    p.end(&s).await;
    assert!(p.put("a", "x", acquire(&next)).await);
}

async fn delayed(p: Port) {
    let delay = NewSession { lock_delay: Duration::from_secs(30), ..NewSession::default() };
    let (s, next) = (p.session_with(delay).await, p.session().await);
    p.put("a", "x", acquire(&s)).await;
    p.end(&s).await;
    assert!(!p.put("a", "x", acquire(&next)).await);
    assert!(!p.exists("a").await);
    p.set("a", "x").await;
}

async fn busy(p: Port) {
    let (s, other) = (p.session().await, p.session().await);
    p.put("a", "x", acquire(&s)).await;
    let before = p.entry("a").await;
    assert!(!p.put("a", "y", acquire(&other)).await);
    assert_eq!(p.entry("a").await, before);
}

async fn session_gone(p: Port) {
    let s = p.session().await;
    p.end(&s).await;
    let error = p.store.put(&key("a"), "x".into(), 0, acquire(&s)).await.unwrap_err();
    assert_eq!(error, StoreError::SessionGone { session: s });
    assert!(!error.is_retryable() && !error.outcome_unknown());
    assert!(!p.exists("a").await);
}

async fn release_gone(p: Port) {
    let s = p.session().await;
    p.end(&s).await;
    p.set("a", "x").await;
    assert!(!p.put("a", "y", release(&s)).await);
    assert_eq!(text(&p.entry("a").await), "x");
}

async fn counted(p: Port) {
    let s = p.session().await;
    for n in 1..=3 {
        assert!(p.put("a", "x", acquire(&s)).await);
        assert_eq!(p.entry("a").await.lock_index, n);
        assert!(p.put("a", "x", release(&s)).await);
    }
}

async fn delay_ends(p: Port) {
    let delay = NewSession { lock_delay: Duration::from_secs(2), ..NewSession::default() };
    let (s, next) = (p.session_with(delay).await, p.session().await);
    p.put("a", "x", acquire(&s)).await;
    let ended = Instant::now();
    p.end(&s).await;
    assert!(!p.put("a", "x", acquire(&next)).await);
    while !p.put("a", "x", acquire(&next)).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Only a lower bound: the upper one depends on the machine's load.
    assert!(ended.elapsed() >= Duration::from_millis(1_900), "{:?}", ended.elapsed());
}
