//! The annotation that holds the payload of a job.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::fields::FieldIssues;

/// Annotation with the payload of a job, in base64: each member finds it in the file that `RCFARM_PAYLOAD` names.
pub const PAYLOAD_ANNOTATION: &str = "rcfarm/payload";
/// Limit of a payload in bytes, as in Nomad. It stands in the manifest of each member, and Consul takes 512 KiB in a
/// transaction.
pub const LARGEST_PAYLOAD: usize = 16 * 1024;

/// The annotation as it is written, with its name.
pub(super) fn text(document: &Value) -> Option<(&'static str, Value)> {
    let value = annotation(document, PAYLOAD_ANNOTATION)?;
    Some((PAYLOAD_ANNOTATION, value.clone()))
}

/// An annotation of a job.
pub(super) fn annotation<'d>(document: &'d Value, name: &str) -> Option<&'d Value> {
    let annotations = document.get("metadata")?.get("annotations")?;
    annotations.get(name).filter(|value| !value.is_null())
}

/// The payload of a document, in base64.
pub(super) fn read(document: &Value, issues: &mut FieldIssues) -> Option<String> {
    let value = annotation(document, PAYLOAD_ANNOTATION)?;
    let path = format!("metadata.annotations.{PAYLOAD_ANNOTATION}");
    let bytes = value.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    match bytes {
        None => issues.problem(path, "it is no text in base64"),
        Some(bytes) if bytes.len() > LARGEST_PAYLOAD => {
            issues.problem(path, too_large(bytes.len()));
        }
        Some(bytes) => return Some(BASE64_STANDARD.encode(bytes)),
    }
    None
}

fn too_large(bytes: usize) -> String {
    format!("the payload has {bytes} bytes: at most {LARGEST_PAYLOAD}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::job::document;

    fn job(payload: &Value) -> Value {
        let container = json!({"name": "c", "command": ["a"]});
        json!({"metadata": {"annotations": {PAYLOAD_ANNOTATION: payload}}, "spec": {"tasks": [
            {"name": "t", "replicas": 1, "template": {"spec": {"containers": [container]}}}]}})
    }

    #[test]
    fn payload_is_base64_of_a_bounded_size_and_does_not_change() {
        let id = "default/a".parse().unwrap();
        let read = |payload: &Value| document::read(&id, &job(payload));
        assert_eq!(read(&json!("aGk=")).unwrap().spec.payload.as_deref(), Some("aGk="));
        assert_eq!(read(&Value::Null).unwrap().spec.payload, None);
        let largest = BASE64_STANDARD.encode(vec![7; LARGEST_PAYLOAD]);
        assert!(read(&json!(largest)).is_ok());
        let larger = BASE64_STANDARD.encode(vec![7; LARGEST_PAYLOAD + 1]);
        for (payload, why) in
            [(json!("no!"), "base64"), (json!(7), "base64"), (json!(larger), "at most 16384")]
        {
            let problems = read(&payload).unwrap_err();
            assert_eq!(problems[0].path, "metadata.annotations.rcfarm/payload");
            assert!(problems[0].problem.contains(why), "{problems:?}");
        }
        let hash = |payload: &str| document::immutable_hash(&job(&json!(payload)));
        assert_ne!(hash("aGk="), hash("aGo="));
        assert_eq!(hash("aGk="), hash("aGk="));
    }
}
