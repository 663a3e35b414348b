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

    /// What [`PrefixLister::list`] lists.
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
        let mut late = None;
        if !self.in_parts.load(Ordering::SeqCst) {
            match self.reader.list(&self.prefix, query).await {
                Err(error @ StoreError::Timeout { .. }) if query.wait.is_none() => {
                    late = Some(error)
                }
                answer => return answer,
            }
        }
        let answer = self.list_in_parts(late).await?;
        let bytes: usize = answer.value.iter().map(|e| e.key.len() + e.value.len()).sum();
        self.in_parts.store(bytes >= LARGE, Ordering::SeqCst);
        Ok(answer)
    }

    /// Reads the keys, divides them by prefix and lists one part after the other. A part without an answer is divided
    /// again. `late`: the time-out of the whole list, which is returned if the tree cannot be divided.
    async fn list_in_parts(
        &self,
        late: Option<StoreError>,
    ) -> Result<Answer<Vec<Entry>>, StoreError> {
        // Parts must not be older than the keys: a deposed leader would answer other queries.
        let keys = self.reader.keys(&self.prefix, None, Query::CONSISTENT).await?;
        let (mut entries, mut filtered) = (Vec::with_capacity(keys.value.len()), keys.filtered);
        let mut open = match (divide(&keys.value, Sizes::SMALLEST), late) {
            (Some(parts), _) => parts,
            (None, Some(late)) if keys.value.len() > 1 => return Err(late),
            (None, _) => vec![self.prefix.clone()],
        };
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use async_trait::async_trait;

    use super::*;
    use crate::{Index, Key, Question, ServiceHealth, SessionId, SessionInfo, TxnOutcome};

    /// A tree whose list as a whole has no answer.
    struct FakeReader {
        keys: Vec<String>,
        lists: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl Reader for FakeReader {
        async fn list(&self, prefix: &Prefix, _: Query) -> Result<Answer<Vec<Entry>>, StoreError> {
            self.lists.lock().unwrap().push(prefix.to_string());
            if prefix.as_str() == "t/" {
                return Err(StoreError::Timeout { after: Duration::from_secs(10) });
            }
            let keys = self.keys.iter().filter(|key| prefix.tail(key).is_some());
            let entry = |key: &String| Entry {
                key: key.clone(),
                value: bytes::Bytes::new(),
                flags: 0,
                create_index: Index(1),
                modify_index: Index(1),
                lock_index: 0,
                session: None,
            };
            Ok(Answer { value: keys.map(entry).collect(), index: Index(1), filtered: false })
        }

        async fn keys(
            &self,
            _: &Prefix,
            _: Option<&str>,
            _: Query,
        ) -> Result<Answer<Vec<String>>, StoreError> {
            Ok(Answer { value: self.keys.clone(), index: Index(1), filtered: false })
        }

        async fn get(&self, _: &Key, _: Query) -> Result<Answer<Option<Entry>>, StoreError> {
            unreachable!()
        }

        async fn ask(&self, _: &[Question]) -> Result<TxnOutcome, StoreError> {
            unreachable!()
        }

        async fn session(&self, _: &SessionId) -> Result<Answer<Option<SessionInfo>>, StoreError> {
            unreachable!()
        }

        async fn sessions(&self) -> Result<Answer<Vec<SessionInfo>>, StoreError> {
            unreachable!()
        }

        async fn service_health(&self, _: &str) -> Result<Answer<Vec<ServiceHealth>>, StoreError> {
            unreachable!()
        }

        async fn leader(&self) -> Result<String, StoreError> {
            unreachable!()
        }
    }

    async fn listed(keys: &[&str]) -> (Result<Vec<String>, StoreError>, usize) {
        let mut all: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        all.sort();
        let tree = Arc::new(FakeReader { keys: all, lists: Mutex::default() });
        let lister = PrefixLister::new(tree.clone(), Prefix::parse("t").unwrap());
        let answer = lister.list(Query::CONSISTENT).await;
        let lists = tree.lists.lock().unwrap();
        let whole = lists.iter().filter(|prefix| *prefix == "t/").count();
        (answer.map(|answer| answer.value.into_iter().map(|entry| entry.key).collect()), whole)
    }

    #[tokio::test]
    async fn keys_outside_the_grammar_are_listed_in_parts_too() {
        for odd in ["t/ x", "t/\u{fc}/web", "t/a b/web", "t/99?%"] {
            let mut keys = vec!["t/a/web", "t/b/web", "t/\u{e9}", "t/c", odd];
            keys.sort_unstable();
            let (found, whole) = listed(&keys).await;
            assert_eq!(found.unwrap(), keys, "{odd}");
            assert_eq!(whole, 1, "{odd}");
        }
    }

    #[tokio::test]
    async fn tree_that_cannot_be_divided_is_not_listed_whole_again() {
        let (found, whole) = listed(&["t//a", "t//b"]).await;
        assert!(matches!(found, Err(StoreError::Timeout { .. })), "{found:?}");
        assert_eq!(whole, 1);
    }
}
