//! How records are written to Consul and read from it.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::FieldError;

/// A record that is stored in Consul as one JSON object.
pub trait Stored: Serialize + DeserializeOwned {
    /// The page that documents the fields; errors name it.
    const PAGE: &'static str = "docs/reference/keys.md";

    /// Decodes a stored value.
    ///
    /// # Errors
    /// [`FieldError`] with the path of the first field that has the wrong shape.
    fn decode(value: &[u8]) -> Result<Self, FieldError> {
        // The path is tracked on a second pass, because tracking slows the first one down.
        serde_json::from_slice(value).or_else(|_| decode_with_path(value, Self::PAGE))
    }

    /// Encodes the record as it is stored.
    ///
    /// # Panics
    /// When the type cannot be JSON, such as a map whose keys are not strings. No record is of such a type.
    fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a record has a JSON form").into()
    }
}

fn decode_with_path<T: DeserializeOwned>(value: &[u8], page: &str) -> Result<T, FieldError> {
    let fix = format!("compare with {page}");
    from_object(object(value, &fix)?, &fix)
}

/// Reads a type from a JSON object.
///
/// # Errors
/// [`FieldError`] with the path of the first field that has the wrong shape, and `fix`.
pub fn from_object<T: DeserializeOwned>(object: Value, fix: &str) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(object).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { FieldError::WHOLE.to_owned() } else { path };
        FieldError::new(path, error.into_inner().to_string(), fix)
    })
}

/// Parses a JSON object.
///
/// # Errors
/// [`FieldError`] about the whole value, with `fix`, when it is no JSON or no object.
pub(crate) fn object(value: &[u8], fix: &str) -> Result<Value, FieldError> {
    let whole = |problem: String| FieldError::new(FieldError::WHOLE, problem, fix);
    let value: Value =
        serde_json::from_slice(value).map_err(|error| whole(format!("not JSON: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(whole("not a JSON object".to_owned())) }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        count: u32,
        #[serde(default)]
        inner: Vec<Inner>,
        #[serde(flatten)]
        other: serde_json::Map<String, Value>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        name: String,
    }

    impl Stored for Sample {
        const PAGE: &'static str = "docs/sample.md";
    }

    #[test]
    fn errors_name_the_path_and_the_page() {
        for (text, path) in [
            (r#"{"count":-1}"#, "count"),
            (r#"{"count":1,"inner":[{"name":"a"},{"name":7}]}"#, "inner[1].name"),
            (r#"{"count":1,"inner":[{}]}"#, "inner[0]"),
            (r#"{"inner":[]}"#, FieldError::WHOLE),
            ("[1]", FieldError::WHOLE),
            ("{", FieldError::WHOLE),
            ("", FieldError::WHOLE),
        ] {
            let error = Sample::decode(text.as_bytes()).unwrap_err();
            assert_eq!(error.path, path, "{text}: {error}");
            assert!(error.to_string().ends_with("; compare with docs/sample.md"), "{error}");
        }
    }

    #[test]
    fn decoding_reverses_encoding() {
        let text = r#"{"count":3,"inner":[{"name":"a"}],"later":true}"#;
        let sample = Sample::decode(text.as_bytes()).unwrap();
        assert_eq!(sample.encode(), text.as_bytes());
    }
}
