//! Bodies of `PUT /v1/txn` at the embedded server, which answers anybody on the machine.
#![no_main]

use axum::body::Body;
use axum::http::Request;
use libfuzzer_sys::fuzz_target;
use rcfarm_emulator::{Emulator, Tables};
use rcfarm_emulator::serve::respond;

fuzz_target!(|body: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let consul = Emulator::default();
        let put = || Request::put("/v1/txn").body(Body::from(body.to_vec())).unwrap();
        let first = respond(&consul, put()).await.status();
        assert!([200, 400, 409, 413, 500].contains(&first.as_u16()), "{first}");
        let before = consul.snapshot();
        let second = respond(&consul, put()).await.status();
        // A refused transaction changes nothing but the index.
        if !second.is_success() {
            assert!(Tables { index: before.index, ..consul.snapshot() } == before);
        }
    });
});
