//! Pod manifests: YAML by anybody, signed or not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcfarm_api::manifest::Manifest;

fuzz_target!(|text: &str| {
    match Manifest::parse(text) {
        Ok(manifest) => {
            assert_eq!(manifest.text(), text);
            assert_eq!(Manifest::parse(manifest.text()).expect("again").id(), manifest.id());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
