//! Keys, prefixes and the names in them: `--root`, `--name`, and whatever stands in Consul's trees.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcfarm_store::{Key, Prefix};
use rcfarm_api::key;

fuzz_target!(|text: &str| {
    if let Ok(key) = Key::parse(text) {
        assert_eq!(key.as_str(), text);
        assert!(text.split('/').all(|segment| !segment.is_empty() && !segment.starts_with('.')));
    }
    if let Ok(prefix) = Prefix::parse(text) {
        assert!(prefix.as_str().is_empty() || prefix.as_str().ends_with('/'));
        assert_eq!(Prefix::parse(prefix.as_str()).expect("itself"), prefix);
        let below = prefix.join(&Key::parse("a/b").expect("legal"));
        assert_eq!(prefix.tail(below.as_str()), Some("a/b"));
    }
    if let Some((node, pod)) = key::node_and_pod(&key::intents(), text) {
        assert_eq!(key::intent(&node, &pod).as_str(), text);
    }
    let (record, other) = key::split_lock(&key::rc_locks(), text);
    assert_eq!(text, other.map_or(record.to_owned(), |other| format!("{record}/{other}")));
});
