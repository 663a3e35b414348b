//! Checks before a farm claims anything: rights and layout version. Then it creates what is missing.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::kind::RegisteredKind;
use super::rights::readable_by_farms;
use super::seeds::{self, NEW};
use rcfarm_api::{Stored, key};
use rcfarm_store::{Key, Prefix, Query, Store, StoreError, may_read};

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
    /// [`StoreError::tls_remedy`] of the store's failure.
    pub(super) fn tls_remedy(&self) -> Option<&'static str> {
        match self {
            PreflightError::Store(error) => error.tls_remedy(),
            _ => None,
        }
    }

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

/// Checks rights and layout version, then creates sentinels and seed records. Adds to `readable` which prefixes the token
/// may read, and asks for the others only, so that a farm whose requests fail now and then does not begin again and again.
pub(super) async fn check(
    store: &dyn Store,
    kinds: &[RegisteredKind],
    readable: &mut BTreeSet<Prefix>,
) -> Result<(), PreflightError> {
    check_rights(store, kinds, readable).await?;
    check_layout(store).await?;
    seeds::create(store, kinds.iter().map(|kind| kind.spec.as_ref())).await?;
    Ok(())
}

async fn check_rights(
    store: &dyn Store,
    kinds: &[RegisteredKind],
    readable: &mut BTreeSet<Prefix>,
) -> Result<(), PreflightError> {
    let mut hidden = Vec::new();
    for prefix in readable_by_farms(kinds.iter().map(|kind| kind.spec.as_ref())) {
        if readable.contains(&prefix) {
            continue;
        }
        match may_read(store, &prefix).await? {
            true => drop(readable.insert(prefix)),
            false => hidden.push(prefix.to_string()),
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
