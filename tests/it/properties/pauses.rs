//! `time::backoff`.

use std::time::Duration;

use proptest::prelude::*;
use rcfarm_api::backoff;

proptest! {
    #[test]
    fn a_pause_grows_from_its_base_to_its_maximum(base in 0u64..10_000_000_000, max: u64, attempt: u32) {
        let (base, max) = (Duration::from_nanos(base), Duration::from_nanos(max));
        let (pause, next) = (backoff(base, max, attempt), backoff(base, max, attempt.saturating_add(1)));
        prop_assert!(pause <= next, "it never shrinks");
        prop_assert!(base.min(max) <= pause && pause <= max);
        prop_assert!(next == max || attempt >= 30 || next == pause * 2, "{pause:?} then {next:?}");
    }
}
