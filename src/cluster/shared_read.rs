//! A read that many tasks ask for at once.

use std::sync::atomic::{AtomicU64, Ordering};

use rcfarm_store::StoreError;

/// A read that many callers ask for at once.
#[derive(Default)]
pub struct SharedRead {
    /// Held while it is under way.
    reading: tokio::sync::Mutex<()>,
    /// Number of the last one that began.
    begun: AtomicU64,
    /// Number of the last one that succeeded.
    finished: AtomicU64,
}

impl SharedRead {
    /// Awaits `read`. Callers that arrive while one is under way share the next one, if it succeeds.
    ///
    /// # Errors
    /// Those of `read`.
    pub async fn run(
        &self,
        read: impl Future<Output = Result<(), StoreError>>,
    ) -> Result<(), StoreError> {
        let begun = self.begun.load(Ordering::SeqCst);
        let _reading = self.reading.lock().await;
        if self.finished.load(Ordering::SeqCst) > begun {
            return Ok(());
        }
        let this = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        read.await?;
        self.finished.store(this, Ordering::SeqCst);
        Ok(())
    }
}
