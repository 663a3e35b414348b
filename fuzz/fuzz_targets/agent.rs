//! Manifests through the whole agent; see `src/agent.rs`, which tests share.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../src/agent.rs"]
mod agent;

fuzz_target!(|input: &[u8]| {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(agent::run(input));
});
