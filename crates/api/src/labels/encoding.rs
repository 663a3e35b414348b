//! Labels as stored: one flat JSON object of strings.

use bytes::Bytes;

use super::Labels;

/// Why a stored value is not a set of labels.
#[derive(Debug, thiserror::Error)]
#[error("labels must be a flat JSON object of strings, as {{\"role\":\"web\"}}: {0}")]
pub struct LabelError(#[from] serde_json::Error);

/// Reads a stored set of labels; `null` is the empty set, as it is to Go.
///
/// Keys and values are not checked: what p2 and scripts wrote must stay readable even if it breaks the rules of
/// [`super::check_label_key`].
///
/// # Errors
/// [`LabelError`] when the value is not a JSON object (or `null`) or a member of it is not a string.
pub fn decode_labels(value: &[u8]) -> Result<Labels, LabelError> {
    Ok(serde_json::from_slice::<Option<Labels>>(value)?.unwrap_or_default())
}

/// Writes a set of labels byte for byte as p2 does: compact, keys sorted, Go's escapes.
pub fn encode_labels(labels: &Labels) -> Bytes {
    let mut out = Vec::with_capacity(labels.len() * 32 + 2);
    let mut json = serde_json::Serializer::with_formatter(&mut out, GoFormatter);
    serde::Serialize::serialize(labels, &mut json).expect("strings always serialise");
    out.into()
}

/// Go's `encoding/json` also escapes characters that HTML and JavaScript treat specially.
struct GoFormatter;

impl serde_json::ser::Formatter for GoFormatter {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let escaped = rest[at..].chars().next().expect("found there");
            writer.write_all(&rest.as_bytes()[..at])?;
            write!(writer, "\\u{:04x}", u32::from(escaped))?;
            rest = &rest[at + escaped.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_those_of_p2() {
        // As a p2 binary wrote it (p2.md §1.3).
        let stored =
            br#"{"availability_zone":"az1","cluster_name":"prod","extra":"yes","pod_id":"hello"}"#;
        let labels = decode_labels(stored).unwrap();
        assert_eq!(labels["cluster_name"], "prod");
        assert_eq!(encode_labels(&labels), &stored[..]);
    }

    #[test]
    fn null_and_the_empty_object_are_no_labels() {
        assert_eq!(decode_labels(b"null").unwrap(), Labels::new());
        assert_eq!(decode_labels(b" {} ").unwrap(), Labels::new());
        assert_eq!(encode_labels(&Labels::new()), &b"{}"[..]);
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in
            ["", "[]", "1", "{\"a\":1}", "{\"a\":{}}", "{\"a\":null}", "{\"a\":\"b\"} x", "{a:b}"]
        {
            let error = decode_labels(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("flat JSON object"), "{bad}: {error}");
        }
    }

    #[test]
    fn html_is_escaped_as_go_escapes_it() {
        let labels = Labels::from([("a".to_owned(), "<&>\u{2028}é\"\n".to_owned())]);
        let bytes = encode_labels(&labels);
        assert_eq!(
            std::str::from_utf8(&bytes).unwrap(),
            r#"{"a":"\u003c\u0026\u003e\u2028é\"\n"}"#
        );
    }

    proptest! {
        #[test]
        fn encoding_round_trips(labels: Labels) {
            prop_assert_eq!(decode_labels(&encode_labels(&labels)).unwrap(), labels);
        }
    }
}
