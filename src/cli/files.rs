//! Files named on the command line.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::de::DeserializeOwned;

use super::failure::failure;
use crate::job::document::yaml_problem;

/// Reads a YAML or JSON file. `flag` names its flag in errors, as in ` (--config)`.
pub(super) fn read_yaml<T: DeserializeOwned>(path: &Path, flag: &str) -> anyhow::Result<T> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}{flag}"))?;
    serde_saphyr::from_str(&text)
        .map_err(|error| anyhow::anyhow!("{shown}: {}", yaml_problem(&error)))
}

/// Refuses a file for `rcfarm apply` where a manifest is expected.
///
/// # Errors
/// The text describes controllers.
pub(super) fn check_not_described(file: &str, text: &str) -> anyhow::Result<()> {
    let document = serde_saphyr::from_str::<serde_json::Value>(text).unwrap_or_default();
    if document.get("replication_controllers").is_none() {
        return Ok(());
    }
    Err(failure(
        format!("{file} describes replication controllers; it is no pod's manifest"),
        format!("create them with rcfarm apply -f {file}, or try them: rcfarm dev --apply {file}"),
    ))
}

/// Extensions of the files of a directory that are read.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Names and texts of files. Those of a directory are in the order of their names; directories in it are not read.
pub(super) fn contents(files: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for file in files {
        if file == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            all.push((file.clone(), text));
            continue;
        }
        let path = Path::new(file);
        let paths = if path.is_dir() { files_in(path)? } else { vec![path.to_owned()] };
        for path in paths {
            let text =
                std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            all.push((path.display().to_string(), text));
        }
    }
    Ok(all)
}

fn files_in(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let shown = || directory.display().to_string();
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(shown)? {
        let path = entry.with_context(shown)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_file() && extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        let why = format!("{} has no files of {}", shown(), EXTENSIONS.join(", "));
        return Err(failure(why, "name a file, or another directory"));
    }
    Ok(paths)
}
