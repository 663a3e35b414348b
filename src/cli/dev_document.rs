//! Check of files that are meant for `rcfarm dev`.

use super::failure::failure;

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
