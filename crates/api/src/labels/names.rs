//! Syntax of label keys and values: Kubernetes' rules.

use crate::InvalidText;

/// Longest name part of a key, and longest value.
const NAME_MAX: usize = 63;
/// Longest prefix of a key.
const PREFIX_MAX: usize = 253;

/// Checks a label key: `[prefix/]name`, the name as a value but not empty, the prefix a lower-case DNS name.
///
/// # Errors
/// [`InvalidText`] with the first rule broken.
pub fn check_label_key(text: &str) -> Result<(), InvalidText> {
    let bad = |why| Err(InvalidText { text: text.to_owned(), what: "label key", why });
    let name = match text.split_once('/') {
        None => text,
        Some((prefix, _)) if prefix.len() > PREFIX_MAX => {
            return bad("the part before '/' is longer than 253 bytes");
        }
        Some((prefix, _)) if !prefix.split('.').all(is_dns_label) => {
            return bad(
                "the part before '/' must be a DNS name in lower case, as in example.com/role",
            );
        }
        Some((_, name)) => name,
    };
    if name.contains('/') {
        return bad("there is more than one '/'");
    }
    if name.is_empty() {
        return bad("it has no name");
    }
    token_fault(name).map_or(Ok(()), bad)
}

/// Checks a label value: empty, or at most 63 of `[A-Za-z0-9_.-]` that begin and end with a letter or digit.
///
/// # Errors
/// [`InvalidText`] with the first rule broken.
pub fn check_label_value(text: &str) -> Result<(), InvalidText> {
    let bad = |why| Err(InvalidText { text: text.to_owned(), what: "label value", why });
    if text.is_empty() { Ok(()) } else { token_fault(text).map_or(Ok(()), bad) }
}

fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

fn token_fault(text: &str) -> Option<&'static str> {
    let bytes = text.as_bytes();
    let is_edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    if bytes.len() > NAME_MAX {
        Some("it is longer than 63 bytes")
    } else if !bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        Some("only letters, digits, '-', '_' and '.' are allowed")
    } else if !is_edge(bytes.first()) || !is_edge(bytes.last()) {
        Some("it must begin and end with a letter or a digit")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_the_rules_of_qualified_names() {
        let prefix = format!("{}/a", vec!["a".repeat(60); 4].join("."));
        for good in
            ["a", "A", "a.b_c-d", "0", "example.com/role", "a/B_1", &prefix, &"k".repeat(63)]
        {
            assert_eq!(check_label_key(good), Ok(()), "{good}");
        }
        let long_prefix = format!("{}/a", "a".repeat(254));
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "A.b/c",
            "a b",
            "-a",
            "a-",
            "a..b/c",
            "ü",
            "a=b",
            &long_prefix,
        ] {
            assert!(check_label_key(bad).is_err(), "{bad}");
        }
        assert!(check_label_key(&"k".repeat(64)).is_err());
    }

    #[test]
    fn values_may_be_empty_but_not_ragged() {
        for good in ["", "a", "A.b-c_d", "1.2.3", &"v".repeat(63)] {
            assert_eq!(check_label_value(good), Ok(()), "{good}");
        }
        for bad in [" ", "a b", "-a", "a.", "a/b", "ü", &"v".repeat(64)] {
            assert!(check_label_value(bad).is_err(), "{bad}");
        }
    }
}
