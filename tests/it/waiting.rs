//! Waiting for what must come. What never comes fails instead of hanging; nothing waits so long when all is well.

use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How often it is asked. A pause, too, so that on one thread others get on meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `holds`.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "it never happened: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The same for what can be seen at once.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, async || holds()).await;
}

/// Waits for an end.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = tokio::time::timeout(PATIENCE, future).await;
    limit.unwrap_or_else(|_| panic!("it never happened: {what}"))
}
