//! Splits command lines into words and expands variables, within the kernel's limits. Pure.

use std::collections::BTreeMap;

use crate::FieldError;

/// Splits a line at spaces, with a shell's quotes and backslashes. `None`: a quote is not closed.
pub fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '\\' => word.push(chars.next()?),
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next()?),
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Upper bound of one argument, or of one variable with its name, in bytes: Linux's `MAX_ARG_STRLEN` (128 KiB) without
/// the closing NUL.
pub const LONGEST_STRING: usize = 128 * 1024 - 1;

/// Upper bound of all arguments and variables of a process, in bytes: Linux allows a quarter of the stack limit, which
/// is 8 MiB by default.
pub const LONGEST_ARGUMENTS: usize = 2 * 1024 * 1024;

/// What the kernel adds to each string: the closing NUL and a pointer.
const STRING_OVERHEAD: usize = 9;

/// Expands `${NAME}`. Unknown variables stay, so that the program may expand them. `None`: the result has more than
/// `longest` bytes; no more than that is ever allocated.
pub fn expand(text: &str, env: &BTreeMap<String, String>, longest: usize) -> Option<String> {
    let mut out = String::new();
    let mut push = |piece: &str| {
        let fits = piece.len() <= longest - out.len();
        fits.then(|| out.push_str(piece))
    };
    let mut parts = text.split("${");
    push(parts.next()?)?;
    for part in parts {
        let known = part.split_once('}').and_then(|(name, rest)| Some((env.get(name)?, rest)));
        let (start, rest) = known.map_or(("${", part), |(value, rest)| (value.as_str(), rest));
        push(start)?;
        push(rest)?;
    }
    Some(out)
}

/// Arguments and environment of a process, expanded within the kernel's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expanded {
    /// Program and arguments.
    pub command: Vec<String>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// Size of both as the kernel counts it, in bytes.
    pub bytes: usize,
}

impl Expanded {
    /// Adds the variables `own` to `env`, each expanded with those before it, and expands `command` with all.
    ///
    /// # Errors
    /// [`FieldError`] at `env`, `env.<NAME>` or `command`: a string is longer than [`LONGEST_STRING`], or all together
    /// are longer than [`LONGEST_ARGUMENTS`].
    pub fn of(
        command: &[String],
        own: &BTreeMap<String, String>,
        mut env: BTreeMap<String, String>,
    ) -> Result<Expanded, FieldError> {
        let size = |(name, value): (&String, &String)| name.len() + value.len() + 1;
        let mut used: usize = env.iter().map(|one| size(one) + STRING_OVERHEAD).sum();
        let mut add = |path: &dyn Fn() -> String, len: Option<usize>| {
            let len = len.ok_or_else(|| too_long(path()))?;
            used += len + STRING_OVERHEAD;
            if used <= LONGEST_ARGUMENTS { Ok(()) } else { Err(too_many(path())) }
        };
        for (name, value) in own {
            let longest = LONGEST_STRING.saturating_sub(name.len() + 1);
            let value = expand(value, &env, longest);
            let len = value.as_ref().map(|value| name.len() + 1 + value.len());
            add(&|| format!("env.{}", cut(name, LONGEST_NAME)), len)?;
            env.insert(name.clone(), value.unwrap_or_default());
        }
        let mut words = Vec::new();
        for word in command {
            let word = expand(word, &env, LONGEST_STRING);
            add(&|| "command".to_owned(), word.as_ref().map(String::len))?;
            words.extend(word);
        }
        Ok(Expanded { command: words, env, bytes: used })
    }
}

/// Upper bound of a name in an error, in bytes.
pub(super) const LONGEST_NAME: usize = 100;

fn too_long(path: String) -> FieldError {
    let problem = format!(
        "it is longer than {LONGEST_STRING} bytes once its variables are expanded, which is the \
         kernel's limit of one string (MAX_ARG_STRLEN)"
    );
    FieldError::new(path, problem, "pass long values in a file, such as `config`")
}

fn too_many(path: String) -> FieldError {
    let problem = format!(
        "arguments and environment up to here are longer than {LONGEST_ARGUMENTS} bytes once \
         variables are expanded, which is the kernel's limit (a quarter of a stack of 8 MiB)"
    );
    FieldError::new(path, problem, "pass long values in a file, such as `config`")
}

/// The text, cut to at most `longest` bytes; a cut text ends with `…`, which adds three bytes.
pub fn cut(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(longest)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_known_variables_are_put_in() {
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        assert_eq!(expand("${A}${B} $A ${A", &env, 15).unwrap(), "1${B} $A ${A");
        assert_eq!(expand("${A}${B} $A ${A", &env, 11), None);
    }

    fn doubling(count: usize, base: &str) -> BTreeMap<String, String> {
        let value = |n: usize| match n {
            0 => base.to_owned(),
            _ => format!("${{A{:02}}}${{A{:02}}}", n - 1, n - 1),
        };
        (0..count).map(|n| (format!("A{n:02}"), value(n))).collect()
    }

    #[test]
    fn expansion_stops_at_the_limit_of_one_string() {
        let error = Expanded::of(&[], &doubling(99, "0123456789abcdef"), BTreeMap::new());
        let error = error.unwrap_err();
        assert_eq!(error.path, "env.A13", "16 bytes, doubled 13 times, are 128 KiB");
        assert!(error.to_string().contains("MAX_ARG_STRLEN"), "{error}");
        let within = Expanded::of(&[], &doubling(13, "0123456789abcdef"), BTreeMap::new()).unwrap();
        assert_eq!(within.env["A12"].len(), 65_536);
    }

    #[test]
    fn expansion_stops_at_the_limit_of_all_strings() {
        let own = doubling(13, "0123456789abcdef");
        let words = |count| vec!["${A12}".to_owned(); count];
        let error = Expanded::of(&words(31), &own, BTreeMap::new()).unwrap_err();
        assert_eq!(error.path, "command");
        assert!(error.to_string().contains("2097152"), "{error}");
        Expanded::of(&words(29), &own, BTreeMap::new()).unwrap();
        // A variable of the node counts, too.
        let node = BTreeMap::from([("NODE".to_owned(), "x".repeat(100_000))]);
        let own = (0..40).map(|n| (format!("B{n:02}"), "${NODE}".to_owned())).collect();
        assert_eq!(Expanded::of(&[], &own, node).unwrap_err().path, "env.B19");
    }

    #[test]
    fn expansion_takes_linear_time() {
        let open = "${".repeat(1_000_000) + "}";
        assert_eq!(expand(&open, &BTreeMap::new(), open.len()).unwrap(), open);
    }

    #[test]
    fn cut_keeps_whole_characters() {
        assert_eq!((cut("aé", 3), cut("aéb", 2)), ("aé".to_owned(), "a…".to_owned()));
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words_in in prop::collection::vec("[^'\\\\]{0,8}", 1..5)) {
            let line: Vec<String> = words_in.iter().map(|word| format!("'{word}'")).collect();
            prop_assert_eq!(words(&line.join(" ")), Some(words_in));
        }

        #[test]
        fn no_text_makes_the_splitter_or_the_expansion_panic(text in "\\PC{0,40}") {
            let _ = words(&text);
            let _ = expand(&text, &BTreeMap::new(), 20);
        }
    }
}
