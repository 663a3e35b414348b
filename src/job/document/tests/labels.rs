//! Labels of the metadata.

use super::*;

#[test]
fn labels_in_a_record_are_those_that_are_texts() {
    let labels = |text: &str| {
        let all = labels_in(text.as_bytes());
        all.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    };
    assert_eq!(labels(r#"{"metadata":{"name":"j","labels":{"a":"b","c":""}},"spec":7}"#), "a=b,c=");
    assert_eq!(labels(r#"{"metadata":{"labels":{"a":"b","n":7}}}"#), "a=b");
    for none in ["", "[]", "{}", r#"{"metadata":null}"#, r#"{"metadata":{"labels":null}}"#] {
        assert_eq!(labels(none), "", "{none}");
    }
}

#[test]
fn labels_that_kubernetes_refuses_are_warned_about() {
    let read = accepted(
        r#"{"metadata": {"name": "j", "labels": {"app": "a", "b": "two words", "c/": "d"}},
        "spec": {"tasks": [{"replicas": 1, "template": {"spec": {"containers": [
        {"name": "c", "command": ["true"]}]}}}]}}"#,
    );
    assert_eq!(fields(&read.warnings), ["metadata.labels.b", "metadata.labels.c/"]);
    assert_eq!(read.labels.len(), 3, "stored records stay valid");
}

#[test]
fn names_that_kubernetes_refuses_are_warned_about() {
    let value = br#"{"spec": {"tasks": [{"replicas": 1, "template": {"spec": {"containers": [
        {"name": "c", "command": ["true"]}]}}}]}}"#;
    let warned = |id: &str| {
        let (_, read) = decode(&id.parse().unwrap(), value).unwrap();
        fields(&read.warnings).join(",")
    };
    assert_eq!(warned("default/j1"), "");
    assert_eq!(warned("default/1j"), "metadata.name");
    assert_eq!(warned("Foo_bar/j"), "metadata.namespace");
}
