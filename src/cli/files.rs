//! Files named on the command line.

use std::path::Path;

use anyhow::Context;
use serde::de::DeserializeOwned;

use super::failure::failure;

/// Reads a YAML or JSON file. `flag` names its flag in errors, as in ` (--config)`.
pub(super) fn read_yaml<T: DeserializeOwned>(path: &Path, flag: &str) -> anyhow::Result<T> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}{flag}"))?;
    serde_saphyr::from_str(&text)
        .map_err(|error| anyhow::anyhow!("{shown}: {}", error.without_snippet()))
}

/// Refuses a file of `rcfarm dev --apply` where a manifest or a job document is expected.
///
/// # Errors
/// The text describes controllers for `rcfarm dev --apply`.
pub(super) fn check_not_described(file: &str, text: &str) -> anyhow::Result<()> {
    let document = serde_saphyr::from_str::<serde_json::Value>(text).unwrap_or_default();
    if document.get("replication_controllers").is_none() {
        return Ok(());
    }
    Err(failure(
        format!("{file} is a file for rcfarm dev: it describes replication controllers"),
        format!(
            "try it with rcfarm dev --apply {file}; for a controller on Consul put the text below manifest: into a \
             file of its own: rcfarm rc create -f MANIFEST --node-selector SELECTOR --replicas N"
        ),
    ))
}
