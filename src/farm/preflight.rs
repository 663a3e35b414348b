//! What a farm makes sure of before it touches anything.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::LAYOUT;
use super::kind::Kind;
use rcfarm_api::Stored;
use rcfarm_api::key;
use rcfarm_store::{Key, Prefix, PutMode, Query, Store, StoreError, may_read};

/// Why a farm does not start.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The token may not read what a farm must see. Going on would mistake hidden trees for empty ones.
    #[error(
        "the token may not read {}: grant `key_prefix` read there (docs/operate/acl/ has the policy)",
        .0.join(", ")
    )]
    Hidden(Vec<String>),
    /// The tree belongs to a newer program.
    #[error(
        "{key} says layout {found}, this program knows {LAYOUT}: upgrade this farm, or use another --root"
    )]
    NewerLayout {
        /// The layout key.
        key: Key,
        /// The version there.
        found: u32,
    },
    /// The layout key holds nonsense.
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
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, PreflightError::Store(error) if error.is_retryable())
    }
}

#[derive(Serialize, Deserialize)]
struct Layout {
    version: u32,
}

impl Stored for Layout {}

/// Rights, layout version, sentinel.
pub(super) async fn check(
    store: &dyn Store,
    kinds: &[std::sync::Arc<dyn Kind>],
) -> Result<(), PreflightError> {
    check_rights(store, kinds).await?;
    check_layout(store).await?;
    // An empty prefix wakes its watchers on unrelated writes; a key that stays makes it quiet.
    store
        .put(&key::bell_sentinel(), Bytes::new(), 0, PutMode::Cas(rcfarm_api::Index::ZERO))
        .await?;
    plant(store, kinds).await
}

/// Makes the records that the kinds want to be there, and the sentinels. Without the right to it, somebody else has to.
async fn plant(
    store: &dyn Store,
    kinds: &[std::sync::Arc<dyn Kind>],
) -> Result<(), PreflightError> {
    for prefix in kinds.iter().flat_map(|kind| kind.sentinels()) {
        let (key, new) = (prefix.sentinel(), PutMode::Cas(rcfarm_api::Index::ZERO));
        match store.put(&key, Bytes::new(), 0, new).await {
            // Without it there are more requests, no more.
            Ok(_) | Err(StoreError::Forbidden { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for (key, value) in kinds.iter().flat_map(|kind| kind.seeds()) {
        match store.put(&key, value, 0, PutMode::Cas(rcfarm_api::Index::ZERO)).await {
            Ok(_) => {}
            Err(StoreError::Forbidden { .. }) => {
                tracing::warn!(%key, "the token may not make this record: somebody else has to");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn check_rights(
    store: &dyn Store,
    kinds: &[std::sync::Arc<dyn Kind>],
) -> Result<(), PreflightError> {
    let own = [key::bells(), key::farms()];
    let prefixes = kinds
        .iter()
        .flat_map(|kind| [kind.records(), kind.locks(), kind.labels()])
        .chain(kinds.iter().flat_map(|kind| kind.trees()))
        .chain(own);
    let prefixes: BTreeSet<Prefix> = prefixes.collect();
    let mut hidden = Vec::new();
    for prefix in prefixes {
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
        if store.put(&key, value, 0, PutMode::Cas(rcfarm_api::Index::ZERO)).await? {
            return Ok(());
        }
    }
    Ok(())
}
