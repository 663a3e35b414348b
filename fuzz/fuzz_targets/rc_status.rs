//! Values of `status/replication_controllers/<uuid>/rcfarm`: by farms of this version and of others.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcfarm_api::Stored;
use rcfarm_api::rc::status::RcStatus;

fuzz_target!(|value: &[u8]| {
    if let Ok(status) = RcStatus::decode(value) {
        assert_eq!(RcStatus::decode(&status.encode()).expect("its own encoding"), status);
        let _ = status.is_settled();
    }
});
