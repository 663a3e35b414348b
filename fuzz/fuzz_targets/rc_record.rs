//! Values of `replication_controllers/<uuid>`: by our command line, by p2, by hand.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcfarm_api::Stored;
use rcfarm_api::rc::spec::{RcRecord, RcSpec};

fuzz_target!(|value: &[u8]| {
    match RcRecord::decode(value) {
        Ok(record) => {
            assert_eq!(RcRecord::decode(&record.encode()).expect("its own encoding"), record);
            if let Ok(spec) = RcSpec::check(record.id, &record) {
                assert_eq!(spec.manifest.text(), record.manifest);
                assert_eq!(spec.labels_of_pod()["pod_id"], spec.manifest.id().as_str());
            }
        }
        Err(bad) => assert!(!bad.to_string().is_empty()),
    }
});
