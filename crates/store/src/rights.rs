//! Checks of the token's right to read. Key read: `<prefix>rcfarm-probe`, which does not exist.

use rcfarm_api::key::Prefix;

use super::{Answer, Entry, Query, Reader, StoreError};

/// Whether the token may read under a prefix. Without rights Consul refuses to read a key, while a list is empty
/// (`consul-semantics.md` §0 #13).
///
/// # Errors
/// Any [`StoreError`] but [`StoreError::Forbidden`].
pub async fn may_read(reader: &dyn Reader, prefix: &Prefix) -> Result<bool, StoreError> {
    let Some(probe) = prefix.key_of("rcfarm-probe") else { return Ok(true) };
    match reader.get(&probe, Query::PLAIN).await {
        Ok(_) => Ok(true),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lists a prefix with a consistent read. If the list is empty, checks that the token may read there.
///
/// # Errors
/// [`StoreError::Forbidden`] if the token may not read there; any other [`StoreError`].
pub async fn list_surely(
    reader: &dyn Reader,
    prefix: &Prefix,
) -> Result<Answer<Vec<Entry>>, StoreError> {
    let answer = reader.list(prefix, Query::CONSISTENT).await?;
    if answer.value.is_empty() && !may_read(reader, prefix).await? {
        return Err(StoreError::Forbidden { what: prefix.to_string() });
    }
    Ok(answer)
}
