//! A whole audit log, a record per line: the envelope, the details, and what folding them makes of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcfarm_api::Stored;
use rcfarm_api::audit::{AuditRecord, Logged, compare, fold};
use rcfarm_store::Index;

fuzz_target!(|value: &[u8]| {
    let mut log = Vec::new();
    for (n, line) in (1..).zip(value.split(|byte| *byte == b'\n')) {
        let Ok(record) = AuditRecord::decode(line) else { continue };
        if let Ok(details) = record.details() {
            let again = AuditRecord::new(&details, record.timestamp);
            assert_eq!(again.event_type, record.event_type);
            assert_eq!(again.details().expect("its own encoding"), details);
        }
        let id = uuid::Uuid::from_u128(n);
        log.push(Logged { id, index: Index(n as u64), record });
    }
    let folded = fold(&log);
    let _ = compare(&folded, &[].into());
});
