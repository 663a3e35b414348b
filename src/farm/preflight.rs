//! Checks before a farm claims anything: rights, layout version, sentinels and seed records.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::kind::RegisteredKind;
use super::rights::readable_by_farms;
use rcfarm_api::{Index, Stored, key};
use rcfarm_store::{Key, PutMode, Query, Store, StoreError, may_read};

/// Major version of the key layout that this program writes.
pub const LAYOUT: u32 = 1;

/// A failed preflight check.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The token may not read some prefixes. Consul lists a hidden prefix as empty, so the farm must not go on.
    #[error(
        "the token may not read {}: grant `key_prefix` read there (docs/operate/acl/ has the policy)",
        .0.join(", ")
    )]
    Hidden(Vec<String>),
    /// A newer version of the program has written to this tree.
    #[error(
        "{key} says layout {found}, this program knows {LAYOUT}: upgrade this farm, or use another --root"
    )]
    NewerLayout {
        /// The layout key.
        key: Key,
        /// The version there.
        found: u32,
    },
    /// The layout key cannot be decoded.
    #[error("{key} cannot be read ({why}): restore it, or delete it if no farm is running")]
    BadLayout {
        /// The layout key.
        key: Key,
        /// What is wrong.
        why: String,
    },
}

impl PreflightError {
    /// Whether trying again may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, PreflightError::Store(error) if error.is_retryable())
    }
}

#[derive(Serialize, Deserialize)]
struct Layout {
    version: u32,
}

impl Stored for Layout {}

/// Checks rights and layout version, then creates sentinels and seed records.
pub(super) async fn check(
    store: &dyn Store,
    kinds: &[RegisteredKind],
) -> Result<(), PreflightError> {
    check_rights(store, kinds).await?;
    check_layout(store).await?;
    // A watch on an empty prefix wakes on unrelated writes; the sentinel keeps the prefix from being empty.
    store.put(&key::bell_sentinel(), Bytes::new(), 0, NEW).await?;
    create_missing(store, kinds).await
}

/// Writes a key only if it does not exist.
const NEW: PutMode = PutMode::Cas(Index::ZERO);

/// Creates sentinels and seed records. A farm starts without them if its token may not write them.
async fn create_missing(store: &dyn Store, kinds: &[RegisteredKind]) -> Result<(), PreflightError> {
    for prefix in kinds.iter().flat_map(|kind| &kind.spec.sentinels) {
        match store.put(&prefix.sentinel(), Bytes::new(), 0, NEW).await {
            // Without the sentinel the watch wakes more often.
            Ok(_) | Err(StoreError::Forbidden { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for (key, value) in kinds.iter().flat_map(|kind| &kind.spec.seeds) {
        match store.put(key, value.clone(), 0, NEW).await {
            Ok(_) => {}
            Err(StoreError::Forbidden { .. }) => {
                tracing::warn!(%key, "the token may not create this record: create it with another token");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn check_rights(store: &dyn Store, kinds: &[RegisteredKind]) -> Result<(), PreflightError> {
    let mut hidden = Vec::new();
    for prefix in readable_by_farms(kinds.iter().map(|kind| kind.spec.as_ref())) {
        if !may_read(store, &prefix).await? {
            hidden.push(prefix.to_string());
        }
    }
    if hidden.is_empty() { Ok(()) } else { Err(PreflightError::Hidden(hidden)) }
}

async fn check_layout(store: &dyn Store) -> Result<(), PreflightError> {
    let key = key::layout();
    for _ in 0..3 {
        if let Some(entry) = store.get(&key, Query::CONSISTENT).await?.value {
            let layout = Layout::decode(&entry.value)
                .map_err(|e| PreflightError::BadLayout { key: key.clone(), why: e.to_string() })?;
            return match layout.version > LAYOUT {
                true => Err(PreflightError::NewerLayout { key, found: layout.version }),
                false => Ok(()),
            };
        }
        let value = Layout { version: LAYOUT }.encode();
        if store.put(&key, value, 0, NEW).await? {
            return Ok(());
        }
    }
    Ok(())
}
