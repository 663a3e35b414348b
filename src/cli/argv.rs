//! Long flags with one dash (`-http-addr=…`), as HashiCorp's tools accept them: they are rewritten before parsing.

use std::collections::BTreeSet;
use std::ffi::OsString;

/// Adds a second dash to every argument that is one of the command's long flags with a single dash.
///
/// Arguments after `--` and all others, such as short flags, stay as they are.
pub(super) fn with_double_dashes(
    command: &clap::Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut known = BTreeSet::from(["help".to_owned(), "version".to_owned()]);
    collect(command, &mut known);
    let mut is_rest = false;
    arguments
        .into_iter()
        .map(|argument| {
            is_rest |= argument == "--";
            match argument.to_str() {
                Some(text) if !is_rest && is_single_dashed(text, &known) => {
                    format!("-{text}").into()
                }
                _ => argument,
            }
        })
        .collect()
}

fn is_single_dashed(text: &str, known: &BTreeSet<String>) -> bool {
    let Some(flag) = text.strip_prefix('-') else { return false };
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    name.len() > 1 && known.contains(name)
}

fn collect(command: &clap::Command, known: &mut BTreeSet<String>) {
    let names = command.get_arguments().flat_map(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long().into_iter().chain(aliases)
    });
    known.extend(names.map(str::to_owned));
    for subcommand in command.get_subcommands() {
        collect(subcommand, known);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn mended(arguments: &[&str]) -> Vec<String> {
        let command = super::super::Cli::command();
        with_double_dashes(&command, arguments.iter().map(OsString::from))
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect()
    }

    #[test]
    fn known_long_flags_get_their_second_dash() {
        assert_eq!(
            mended(&["rcfarm", "-http-addr=h:1", "rc", "list", "-stale", "-token", "t", "-help"]),
            ["rcfarm", "--http-addr=h:1", "rc", "list", "--stale", "--token", "t", "--help"]
        );
    }

    #[test]
    fn everything_else_stays() {
        let arguments =
            ["rcfarm", "-o", "json", "-ojson", "-1", "-", "--root", "-unknown", "--", "-root"];
        assert_eq!(mended(&arguments), arguments);
    }
}
