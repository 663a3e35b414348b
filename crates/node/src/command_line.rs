//! Splits command lines into words and expands variables. Pure.

use std::collections::BTreeMap;

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

/// Expands `${NAME}`. Unknown variables stay, so that the program may expand them.
#[must_use]
pub fn expand(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let known = inner.find('}').and_then(|end| Some((end, env.get(&inner[..end])?)));
        match known {
            Some((end, value)) => {
                out.push_str(value);
                rest = &inner[end + 1..];
            }
            None => {
                out.push_str("${");
                rest = inner;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_known_variables_are_put_in() {
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        assert_eq!(expand("${A}${B} $A ${A", &env), "1${B} $A ${A");
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
            let _ = expand(&text, &BTreeMap::new());
        }
    }
}
