//! Records of each kind through the whole reconcile of a farm; see `src/reconcile.rs`, which tests share.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../src/reconcile.rs"]
mod reconcile;

fuzz_target!(|input: &[u8]| {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(reconcile::run(input));
});
