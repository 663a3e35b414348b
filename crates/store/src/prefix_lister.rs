//! Lists of one tree that may be too large for one answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::incremental::{Sizes, divide};
use super::{Answer, Entry, Prefix, Query, Reader, StoreError};

/// A tree with more bytes is listed in parts once one list of it had no answer in time.
const LARGE: usize = 32 * 1024 * 1024;

/// Lists one tree: whole, or in parts after a list had no answer in time. A client gives up an answer after some seconds,
/// and Consul holds each answer in memory as a whole; both bound the size of one list, but not that of a tree.
///
/// A tree that was listed in parts has the index of its keys, which are read first. Each entry is at least as new as that
/// index; some are newer. [`TreeWatch`](crate::watch::TreeWatch) says the same of incremental reads.
pub struct PrefixLister {
    reader: Arc<dyn Reader>,
    prefix: Prefix,
    in_parts: AtomicBool,
}

impl PrefixLister {
    /// A lister of `prefix`, which lists it whole until that takes too long.
    pub fn new(reader: Arc<dyn Reader>, prefix: Prefix) -> Self {
        PrefixLister { reader, prefix, in_parts: AtomicBool::new(false) }
    }

    /// The listed prefix.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    pub(super) fn reader(&self) -> &dyn Reader {
        self.reader.as_ref()
    }

    /// Lists the tree. A blocking query of a tree that is listed in parts does not wait: the caller waits on the keys.
    ///
    /// # Errors
    /// Any [`StoreError`]. [`StoreError::Timeout`]: the keys, or the list of one of the smallest parts, had no answer.
    pub async fn list(&self, query: Query) -> Result<Answer<Vec<Entry>>, StoreError> {
        if !self.in_parts.load(Ordering::SeqCst) {
            match self.reader.list(&self.prefix, query).await {
                Err(StoreError::Timeout { .. }) if query.wait.is_none() => {}
                answer => return answer,
            }
        }
        let answer = self.list_in_parts().await?;
        let bytes: usize = answer.value.iter().map(|e| e.key.len() + e.value.len()).sum();
        self.in_parts.store(bytes >= LARGE, Ordering::SeqCst);
        Ok(answer)
    }

    /// Reads the keys, divides them by prefix and lists one part after the other. A part without an answer is divided
    /// again.
    async fn list_in_parts(&self) -> Result<Answer<Vec<Entry>>, StoreError> {
        // Parts must not be older than the keys: a deposed leader would answer other queries.
        let keys = self.reader.keys(&self.prefix, None, Query::CONSISTENT).await?;
        let (mut entries, mut filtered) = (Vec::with_capacity(keys.value.len()), keys.filtered);
        let whole = || vec![self.prefix.clone()];
        let mut open = divide(&keys.value, Sizes::SMALLEST).unwrap_or_else(whole);
        open.reverse();
        while let Some(part) = open.pop() {
            match self.reader.list(&part, Query::CONSISTENT).await {
                Ok(answer) => {
                    filtered |= answer.filtered;
                    entries.extend(answer.value);
                }
                Err(error @ StoreError::Timeout { .. }) => {
                    let of_part: Vec<String> =
                        keys.value.iter().filter(|key| part.tail(key).is_some()).cloned().collect();
                    let pieces = divide(&of_part, Sizes::SMALLEST).ok_or(error)?;
                    open.extend(pieces.into_iter().rev());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Answer { value: entries, index: keys.index, filtered })
    }
}
