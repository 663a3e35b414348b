//! Errors of commands, and exit codes.

use std::fmt;
use std::io;
use std::process::ExitCode;

use super::terminal::{ColorWhen, say};
use rcfarm_store::StoreError;

/// Exit code of a command. The codes are part of the interface: `--help` and `docs/guide/cli.md` list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CliExit {
    /// Success. Of `plan`, `rc plan` and `audit verify`: no difference.
    Ok,
    /// The command failed, or its arguments are wrong.
    Error,
    /// `plan` or `rc plan` found changes to make, or `cell what-if` no place.
    Changes,
    /// `plan`, `rc plan` or `cell what-if` failed. They use 1 for what they found.
    PlanFailed,
    /// `audit verify` found a difference, or the job of `job wait` or `job run --follow` ended in another state.
    Found,
}

impl CliExit {
    /// The exit code of `plan`, `rc plan` and `cell what-if` for this result.
    #[must_use]
    pub fn of_plan(self) -> CliExit {
        if self == CliExit::Error { CliExit::PlanFailed } else { self }
    }
}

/// Description of the exit codes for `--help`.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  done; `plan`, `rc plan` and `audit verify` found nothing
  1  failed, or the arguments are wrong; nothing was changed unless the output says so.
     Of `plan` and `rc plan`: there are changes to make; of `cell what-if`: there is no place
  2  `audit verify` found differences, or the job of `job wait` or `job run --follow` has ended
     otherwise than asked for. Of `plan`, `rc plan` and `cell what-if`: failed, or the arguments
     are wrong";

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> ExitCode {
        ExitCode::from(match exit {
            CliExit::Ok => 0,
            CliExit::Error | CliExit::Changes => 1,
            CliExit::PlanFailed | CliExit::Found => 2,
        })
    }
}

#[derive(Debug)]
pub(super) struct Failure {
    message: String,
    hint: String,
}

/// An error, and a hint what to do about it.
pub(super) fn failure(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    Failure { message: message.into(), hint: hint.into() }.into()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
impl std::error::Error for Failure {}

/// Prints an error and its hint, if there is one. A closed standard output (`rcfarm … | head`) is no error.
pub(super) fn report(error: &anyhow::Error, address: Option<&str>, color: ColorWhen) -> CliExit {
    if error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    }) {
        return CliExit::Ok;
    }
    say("error", "31", &format!("{error:#}"), color);
    if let Some(hint) = hint(error, address) {
        say("hint", "36", &hint, color);
    }
    CliExit::Error
}

fn hint(error: &anyhow::Error, address: Option<&str>) -> Option<String> {
    let address = address.unwrap_or("the given address");
    error.chain().find_map(|cause| {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return Some(failure.hint.clone());
        }
        let error = cause.downcast_ref::<StoreError>()?;
        if let Some(hint) = error.tls_remedy() {
            return Some(hint.to_owned());
        }
        Some(match error {
            StoreError::Unreachable { .. } => format!(
                "is the agent running at {address}? Name another with CONSUL_HTTP_ADDR or --http-addr; to try things \
                 out without Consul: rcfarm dev"
            ),
            StoreError::Timeout { .. } | StoreError::NoLeader | StoreError::Overloaded { .. } => {
                format!("see what ails the cluster behind {address}: rcfarm doctor")
            }
            StoreError::Forbidden { .. } => {
                "see which rights the token lacks: rcfarm doctor --for user".to_owned()
            }
            _ => return None,
        })
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_remedy_is_found_behind_any_context() {
        let error = Err::<(), _>(StoreError::Unreachable { detail: "refused".to_owned() })
            .context("cannot list")
            .unwrap_err();
        let hint = hint(&error, Some("http://10.0.0.1:8500/")).unwrap();
        assert!(hint.contains("http://10.0.0.1:8500/") && hint.contains("CONSUL_HTTP_ADDR"));
        let detail = "invalid peer certificate: UnknownIssuer".to_owned();
        let of_tls = super::hint(&StoreError::Unreachable { detail }.into(), None).unwrap();
        assert!(of_tls.contains("--ca-file"), "{of_tls}");
        assert_eq!(super::hint(&failure("a", "b"), None).unwrap(), "b");
        assert_eq!(super::hint(&anyhow::anyhow!("a"), None), None);
    }
}
