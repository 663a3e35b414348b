//! Logs: one structured line per decision, as text or as JSON, on standard error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// The form of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object per line.
    Json,
}

/// Starts logging. `filter` is in the syntax of `RUST_LOG`, which wins over it.
///
/// # Errors
/// What is wrong with the filter.
pub fn init(format: LogFormat, filter: &str, silenced: &[&str]) -> Result<(), String> {
    let chosen = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let chosen = chosen.as_deref().unwrap_or(filter);
    // What libraries log of each request is in our own errors; it comes first, so that RUST_LOG can ask for it.
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
