//! Selectors: `--selector`, `node_selector` of a record, the presence of another farm.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcfarm_api::labels::{Labels, Selector};

fuzz_target!(|text: &str| {
    match text.parse::<Selector>() {
        Ok(selector) => {
            let canonical = selector.to_string();
            assert_eq!(canonical.parse::<Selector>().expect("canonical"), selector);
            let labels: Labels = [("a".to_owned(), "b".to_owned())].into();
            assert_eq!(selector.matches(&labels), selector.explain(&labels).is_none());
        }
        Err(error) => assert!(error.position <= text.len() && !error.to_string().is_empty()),
    }
});
