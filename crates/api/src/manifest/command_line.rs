//! Splits command lines into words and expands variables, within the kernel's limits. Pure.

use std::collections::{BTreeMap, BTreeSet};

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

/// Variables that a process inherits from its agent. [`Expansion::Kubernetes`] does not know them, as Kubernetes does
/// not know those of an image.
pub const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// How references to variables are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Expansion {
    /// `${NAME}`. Unknown variables stay, so that the program may expand them.
    #[default]
    Braces,
    /// `$(NAME)`, as in Kubernetes: unknown references stay, `$$` is `$`, nothing else is changed.
    Kubernetes,
}

impl Expansion {
    /// Expands the references to variables in `env`. `None`: the result has more than `longest` bytes; no more than
    /// that is ever allocated.
    #[must_use]
    pub fn expand(
        self,
        text: &str,
        env: &BTreeMap<String, String>,
        longest: usize,
    ) -> Option<String> {
        self.expand_with(text, |name| env.get(name).map(String::as_str), longest)
    }

    fn expand_with<'v>(
        self,
        text: &str,
        value: impl Fn(&str) -> Option<&'v str>,
        longest: usize,
    ) -> Option<String> {
        let mut out = Bounded { text: String::new(), longest };
        match self {
            Expansion::Braces => braces(text, value, &mut out)?,
            Expansion::Kubernetes => parentheses(text, value, &mut out)?,
        }
        Some(out.text)
    }
}

/// A text that does not grow beyond a limit.
struct Bounded {
    text: String,
    longest: usize,
}

impl Bounded {
    fn push(&mut self, piece: &str) -> Option<()> {
        let fits = piece.len() <= self.longest - self.text.len();
        fits.then(|| self.text.push_str(piece))
    }
}

fn braces<'v>(
    text: &str,
    value: impl Fn(&str) -> Option<&'v str>,
    out: &mut Bounded,
) -> Option<()> {
    let mut parts = text.split("${");
    out.push(parts.next()?)?;
    for part in parts {
        let known = part.split_once('}').and_then(|(name, rest)| Some((value(name)?, rest)));
        let (start, rest) = known.unwrap_or(("${", part));
        out.push(start)?;
        out.push(rest)?;
    }
    Some(())
}

/// Kubernetes' expansion of `command`, `args` and `env` of a container (`third_party/forked/golang/expansion`).
fn parentheses<'v>(
    text: &str,
    value: impl Fn(&str) -> Option<&'v str>,
    out: &mut Bounded,
) -> Option<()> {
    let mut rest = text;
    // No reference ends behind the last `)`. What follows it is not searched again and again.
    let unclosed = text.rfind(')').map_or(usize::MAX, |last| text.len() - last);
    while let Some(at) = rest.find('$') {
        out.push(&rest[..at])?;
        let after = &rest[at + 1..];
        let inner = after.strip_prefix('(').filter(|inner| inner.len() >= unclosed);
        match inner.and_then(|inner| inner.split_once(')')) {
            Some((name, tail)) => {
                match value(name) {
                    Some(value) => out.push(value)?,
                    None => out.push(&rest[at..rest.len() - tail.len()])?,
                }
                rest = tail;
            }
            None => {
                out.push("$")?;
                rest = after.strip_prefix('$').unwrap_or(after);
            }
        }
    }
    out.push(rest)
}

/// Variables of a process in the order in which they are set, and how references to them are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    /// Names and values, not expanded. A later one replaces an earlier one of its name.
    pub list: Vec<(String, String)>,
    /// How references are written, in the values and in the command.
    pub expansion: Expansion,
}

/// Arguments and environment of a process, expanded within the kernel's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expanded {
    /// Program and arguments.
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Size of both as the kernel counts it, in bytes.
    pub bytes: usize,
}

impl Expanded {
    /// Adds the variables `own` to the node's `env`, each expanded with those before it, and expands `command` with
    /// all.
    ///
    /// # Errors
    /// [`FieldError`] at `env`, `env.<NAME>` or `command`: a string is longer than [`LONGEST_STRING`], or all together
    /// are longer than [`LONGEST_ARGUMENTS`].
    pub fn of(
        command: &[String],
        own: &Variables,
        mut env: BTreeMap<String, String>,
    ) -> Result<Expanded, FieldError> {
        let expansion = own.expansion;
        let mut hidden: BTreeSet<&str> = match expansion {
            Expansion::Braces => BTreeSet::new(),
            Expansion::Kubernetes => INHERITED.into(),
        };
        let size = |(name, value): (&String, &String)| name.len() + value.len() + 1;
        let mut used: usize = env.iter().map(|one| size(one) + STRING_OVERHEAD).sum();
        let mut add = |path: &dyn Fn() -> String, len: Option<usize>| {
            let len = len.ok_or_else(|| too_long(path()))?;
            used += len + STRING_OVERHEAD;
            if used <= LONGEST_ARGUMENTS { Ok(()) } else { Err(too_many(path())) }
        };
        for (name, value) in &own.list {
            let longest = LONGEST_STRING.saturating_sub(name.len() + 1);
            let known = |name: &str| env.get(name).filter(|_| !hidden.contains(name));
            let value = expansion.expand_with(value, |name| Some(known(name)?.as_str()), longest);
            let len = value.as_ref().map(|value| name.len() + 1 + value.len());
            add(&|| format!("env.{}", cut(name, LONGEST_NAME)), len)?;
            hidden.remove(name.as_str());
            env.insert(name.clone(), value.unwrap_or_default());
        }
        let known = |name: &str| env.get(name).filter(|_| !hidden.contains(name));
        let mut words = Vec::new();
        for word in command {
            let known = |name: &str| Some(known(name)?.as_str());
            let word = expansion.expand_with(word, known, LONGEST_STRING);
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
        let expand = |longest| Expansion::Braces.expand("${A}${B} $A ${A", &env, longest);
        assert_eq!(expand(15).unwrap(), "1${B} $A ${A");
        assert_eq!(expand(11), None);
    }

    /// The cases of Kubernetes' own test of its expansion, `third_party/forked/golang/expansion`.
    #[test]
    fn kubernetes_expansion_cases() {
        let env = [
            ("VAR_A", "A"),
            ("VAR_B", "B"),
            ("VAR_C", "C"),
            ("VAR_REF", "$(VAR_A)"),
            ("VAR_EMPTY", ""),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        for (text, expanded) in [
            ("$(VAR_A)", "A"),
            ("$(VAR_A)-$(VAR_A)", "A-A"),
            ("$(VAR_A)-1", "A-1"),
            ("___$(VAR_B)___", "___B___"),
            ("___$(VAR_C)", "___C"),
            ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
            ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
            ("$$(VAR_A)_$$(VAR_B)", "$(VAR_A)_$(VAR_B)"),
            ("f000-$$VAR_A", "f000-$VAR_A"),
            (r"foo\$(VAR_C)bar", r"foo\Cbar"),
            (r"foo\\$(VAR_C)bar", r"foo\\Cbar"),
            (r"foo\\\\$(VAR_A)bar", r"foo\\\\Abar"),
            ("$(VAR_A$(VAR_B))", "$(VAR_A$(VAR_B))"),
            ("$(VAR_A$(VAR_B)", "$(VAR_A$(VAR_B)"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
            ("foo$(VAR_EMPTY)bar", "foobar"),
            ("foo$(VAR_Awhoops!", "foo$(VAR_Awhoops!"),
            ("f00__(VAR_A)__", "f00__(VAR_A)__"),
            ("$?_boo_$!", "$?_boo_$!"),
            ("$VAR_A", "$VAR_A"),
            ("$(VAR_DNE)", "$(VAR_DNE)"),
            ("$$$$$$(BIG_MONEY)", "$$$(BIG_MONEY)"),
            ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
            ("$$$$$$$(GOOD_ODDS)", "$$$$(GOOD_ODDS)"),
            ("$$$$$$$(VAR_A)", "$$$A"),
            ("$VAR_A)", "$VAR_A)"),
            ("${VAR_A}", "${VAR_A}"),
            ("$(VAR_B)_______$(A", "B_______$(A"),
            ("$(VAR_C)_______$(", "C_______$("),
            ("$(VAR_A)foobarzab$", "Afoobarzab$"),
            (r"foo-\$(VAR_A", r"foo-\$(VAR_A"),
            ("--$($($($($--", "--$($($($($--"),
            ("$($($($($--foo$(", "$($($($($--foo$("),
            ("foo0--$($($($(", "foo0--$($($($("),
            ("$(foo$$var)", "$(foo$$var)"),
            ("\n", "\n"),
            // Of a shell.
            ("echo $(date +%s) $((1+2))", "echo $(date +%s) $((1+2))"),
        ] {
            let found = Expansion::Kubernetes.expand(text, &env, LONGEST_STRING);
            assert_eq!(found.unwrap(), expanded, "{text}");
        }
    }

    /// `TestMapReference` of Kubernetes, and what the node sets.
    #[test]
    fn kubernetes_variables_know_the_earlier_ones() {
        let list = [
            ("LATER", "$(ZOO)$(HOME)$(RCFARM_POD)"),
            ("FOO", "bar"),
            ("ZOO", "$(FOO)-1"),
            ("BLU", "$(ZOO)-2"),
            ("HOME", "/srv"),
        ];
        let list = list.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let own = Variables { list, expansion: Expansion::Kubernetes };
        let node = [("HOME", "/root"), ("PATH", "/bin"), ("RCFARM_POD", "p")];
        let node = node.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let command = ["$(BLU) $(HOME) $(PATH) ${FOO}".to_owned()];
        let expanded = Expanded::of(&command, &own, node).unwrap();
        assert_eq!(expanded.command, ["bar-1-2 /srv $(PATH) ${FOO}"]);
        assert_eq!(expanded.env["LATER"], "$(ZOO)$(HOME)p");
    }

    fn own(variables: BTreeMap<String, String>) -> Variables {
        Variables { list: variables.into_iter().collect(), expansion: Expansion::Braces }
    }

    fn doubling(count: usize, base: &str) -> Variables {
        let value = |n: usize| match n {
            0 => base.to_owned(),
            _ => format!("${{A{:02}}}${{A{:02}}}", n - 1, n - 1),
        };
        own((0..count).map(|n| (format!("A{n:02}"), value(n))).collect())
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
        let doubled = doubling(13, "0123456789abcdef");
        let words = |count| vec!["${A12}".to_owned(); count];
        let error = Expanded::of(&words(31), &doubled, BTreeMap::new()).unwrap_err();
        assert_eq!(error.path, "command");
        assert!(error.to_string().contains("2097152"), "{error}");
        Expanded::of(&words(29), &doubled, BTreeMap::new()).unwrap();
        // A variable of the node counts, too.
        let node = BTreeMap::from([("NODE".to_owned(), "x".repeat(100_000))]);
        let many = own((0..40).map(|n| (format!("B{n:02}"), "${NODE}".to_owned())).collect());
        assert_eq!(Expanded::of(&[], &many, node).unwrap_err().path, "env.B19");
    }

    #[test]
    fn expansion_takes_linear_time() {
        for (expansion, open) in [
            (Expansion::Braces, "${".repeat(1_000_000) + "}"),
            (Expansion::Kubernetes, ")".to_owned() + &"$(".repeat(1_000_000)),
        ] {
            let found = expansion.expand(&open, &BTreeMap::new(), open.len());
            assert_eq!(found.unwrap(), open);
        }
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
            let _ = Expansion::Braces.expand(&text, &BTreeMap::new(), 20);
            let _ = Expansion::Kubernetes.expand(&text, &BTreeMap::new(), 20);
        }
    }
}
