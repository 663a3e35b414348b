//! What the token may read.

use rcfarm_api::key::Prefix;

use super::{Answer, Entry, Query, Reader, StoreError};

/// Whether the token may read what stands under a prefix: a single read is refused without rights where a list
/// would just be empty (`consul-semantics.md` §0 #13).
///
/// # Errors
/// Any other [`StoreError`].
pub async fn may_read(reader: &dyn Reader, prefix: &Prefix) -> Result<bool, StoreError> {
    let Some(probe) = prefix.key_of("rcfarm-probe") else { return Ok(true) };
    match reader.get(&probe, Query::PLAIN).await {
        Ok(_) => Ok(true),
        Err(StoreError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lists what stands under a prefix, as the leader confirms it. An empty list is asked about once more.
///
/// # Errors
/// [`StoreError::Forbidden`] when the token may not read there; any other [`StoreError`].
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
