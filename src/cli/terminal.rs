//! What reaches the terminal: colours, and text without control characters.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use clap::{ColorChoice, ValueEnum};

/// When to use colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorWhen {
    /// On a terminal.
    #[default]
    Auto,
    Always,
    Never,
}

impl ColorWhen {
    /// The choice of the flags `--color` and `--no-color`, or else that of the environment. As https://no-color.org has
    /// it, an empty variable counts as absent, and a flag comes before it.
    pub(super) fn chosen(flag: Option<ColorWhen>, no_color: bool) -> ColorWhen {
        let is_plain = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match flag {
            _ if no_color => ColorWhen::Never,
            Some(when) => when,
            None if is_plain() => ColorWhen::Never,
            None => ColorWhen::Auto,
        }
    }

    /// The choice of arguments that may be wrong, for the message that says so. Flags may have one dash or two.
    pub(super) fn in_arguments(args: &[String]) -> ColorWhen {
        let words: Vec<&str> = args.iter().map(|arg| arg.trim_start_matches('-')).collect();
        let values = words.iter().enumerate().filter_map(|(n, word)| match *word {
            "color" => words.get(n + 1).copied(),
            word => word.strip_prefix("color="),
        });
        let flag = values.filter_map(|value| ColorWhen::from_str(value, false).ok()).next_back();
        ColorWhen::chosen(flag, words.contains(&"no-color"))
    }

    /// Whether to colour what goes to this stream.
    pub(super) fn is_on(self, is_terminal: bool) -> bool {
        match self {
            ColorWhen::Auto => is_terminal,
            ColorWhen::Always => true,
            ColorWhen::Never => false,
        }
    }
}

impl From<ColorWhen> for ColorChoice {
    fn from(when: ColorWhen) -> ColorChoice {
        match when {
            ColorWhen::Auto => ColorChoice::Auto,
            ColorWhen::Always => ColorChoice::Always,
            ColorWhen::Never => ColorChoice::Never,
        }
    }
}

/// Prints a line `<word>: <text>` on stderr.
pub(super) fn say(word: &str, colour: &str, text: &str, color: ColorWhen) {
    let text = printable(text);
    let mut stderr = io::stderr().lock();
    // A failure to write to stderr cannot be reported.
    let _ = if color.is_on(stderr.is_terminal()) {
        writeln!(stderr, "\x1b[1;{colour}m{word}:\x1b[0m {text}")
    } else {
        writeln!(stderr, "{word}: {text}")
    };
}

/// The text with control characters spelled out, but line ends and tabs: what others wrote must not reach the terminal
/// as commands. Also without characters that reverse the direction of text.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !is_control(c) || matches!(c, '\n' | '\t');
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let spelled = |c: char| match is_plain(c) {
        true => c.to_string(),
        false => c.escape_unicode().to_string(),
    };
    Cow::Owned(text.chars().map(spelled).collect())
}

/// Whether a terminal may take this character as a command or reverse text with it.
pub(super) fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_of_arguments_that_may_be_wrong() {
        use ColorWhen::{Always, Never};
        for (args, when) in [
            ("rcfarm --color=always nothing", Always),
            ("rcfarm -color always nothing", Always),
            ("rcfarm --color never --color", Never),
            ("rcfarm --color=always --color never", Never),
            ("rcfarm --color always --no-color", Never),
            ("rcfarm --color=always --color=sometimes", Always),
        ] {
            let words: Vec<String> = args.split(' ').map(str::to_owned).collect();
            assert_eq!(ColorWhen::in_arguments(&words), when, "{args}");
        }
    }
}
