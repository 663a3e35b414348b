//! Logging: structured lines on standard error, as text or JSON.

use tracing_subscriber::{EnvFilter, fmt};

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging. `filter` has the syntax of the variable `RUST_LOG`, which replaces it. Targets in `silenced` are off
/// unless the filter names them.
///
/// # Errors
/// Why the filter cannot be used.
pub fn init(format: LogFormat, filter: &str, silenced: &[&str]) -> Result<(), String> {
    let chosen = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let chosen = chosen.as_deref().unwrap_or(filter);
    // These directives come first, so that RUST_LOG can override them.
    let quiet: Vec<String> = silenced.iter().map(|target| format!("{target}=off")).collect();
    let directives = [quiet.as_slice(), &[chosen.to_owned()]].concat().join(",");
    let filter = EnvFilter::try_new(&directives)
        .map_err(|error| format!("the log filter {chosen:?} cannot be used: {error}"))?;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let started = match format {
        LogFormat::Text => {
            use std::io::IsTerminal;
            builder.with_ansi(std::io::stderr().is_terminal()).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(true).try_init(),
    };
    started.map_err(|error| error.to_string())
}
