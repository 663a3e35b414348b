//! What controllers need of the store at their start, read once for a whole batch of claims.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rcfarm_store::{Index, StoreError};

/// Result of one bulk read, from which each controller of the claimed records takes its part.
#[derive(Debug)]
pub struct ClaimRead<T>(Mutex<Option<(Index, T)>>);

impl<T> ClaimRead<T> {
    /// Reads, unless all claimed records, of which the oldest was created at `oldest`, are newer than the last result:
    /// nothing was stored of them then. `read` returns the index of its result.
    ///
    /// # Errors
    /// Those of `read`. Controllers get no part then, and read for themselves.
    pub async fn refresh(
        &self,
        oldest: Index,
        read: impl Future<Output = Result<(Index, T), StoreError>> + Send,
    ) -> Result<(), StoreError> {
        if self.lock().as_ref().is_some_and(|(index, _)| oldest > *index) {
            return Ok(());
        }
        // A controller that starts meanwhile must not get the last result.
        *self.lock() = None;
        let result = read.await?;
        *self.lock() = Some(result);
        Ok(())
    }

    /// Takes a part of the result. `None`: there is no result.
    pub fn take<P>(&self, part: impl FnOnce(&mut T) -> P) -> Option<P> {
        self.lock().as_mut().map(|(_, result)| part(result))
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Index, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for ClaimRead<T> {
    fn default() -> Self {
        ClaimRead(Mutex::new(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_only_if_a_record_is_older_than_the_result() {
        let claims = ClaimRead::default();
        let read = async |oldest, result| claims.refresh(Index(oldest), async { result }).await;
        assert_eq!(claims.take(|n| *n), None);
        read(1, Ok((Index(5), 1))).await.unwrap();
        read(6, Ok((Index(9), 2))).await.unwrap();
        assert_eq!(claims.take(|n| *n), Some(1), "the record is newer than the result");
        read(5, Ok((Index(9), 3))).await.unwrap();
        assert_eq!(claims.take(std::mem::take), Some(3));
        assert_eq!(claims.take(|n| *n), Some(0), "parts are taken once");
        read(1, Err(StoreError::NoLeader)).await.unwrap_err();
        assert_eq!(claims.take(|n| *n), None, "nothing old after a failure");
    }
}
