//! Waits for a condition; fails when it does not hold within a limit. No wait is longer than needed.

use rcfarm_store::time::monotonic;
use std::time::Duration;

/// Limit of a wait in real time: longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How often a condition is checked in real time.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// How often a condition is checked in virtual time.
const CHECK_EVERY_VIRTUAL: Duration = Duration::from_millis(5);

/// Waits up to [`PATIENCE`] until `holds`.
///
/// # Panics
/// With `what` after that time.
pub async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    check_until(PATIENCE, CHECK_EVERY, what, holds).await;
}

/// As [`until`], for a condition that is computed without waiting.
///
/// # Panics
/// With `what` after [`PATIENCE`].
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, async || holds()).await;
}

/// Waits up to `limit` until `holds`, in tests with a paused clock. Returns how long it took.
///
/// # Panics
/// With `what` after `limit`.
pub async fn within<F: Future<Output = bool>>(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> F,
) -> Duration {
    check_until(limit, CHECK_EVERY_VIRTUAL, what, async || holds().await).await
}

/// Waits up to [`PATIENCE`] for the output of a future.
///
/// # Panics
/// With `what` after that time.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = tokio::time::timeout(PATIENCE, future).await;
    limit.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

async fn check_until(
    limit: Duration,
    every: Duration,
    what: &str,
    mut holds: impl AsyncFnMut() -> bool,
) -> Duration {
    let start = monotonic();
    while !holds().await {
        assert!(monotonic() - start < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(every).await;
    }
    monotonic() - start
}
