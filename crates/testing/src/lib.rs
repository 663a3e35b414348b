//! Shared by tests, benchmarks and the simulator. Each tool exists once, here.
//!
//! | module | is |
//! |---|---|
//! | [`clock`] | wall-clock time that follows tokio's paused clock, and can be set wrong |
//! | [`wait`] | waits for a condition, in real or in virtual time, and fails after a limit |
//! | [`requests`] | counts the requests that are sent to an emulator |
//! | [`fake_nodes`] | nodes that report pods as running and ended, without processes |
//! | [`fake_driver`] | a driver for the real node agent that starts no processes |
//! | [`process`] | child processes that end with the test, free ports, the Consul program |
//! | [`daemon`] | a farm or an agent as a child process |
//! | [`program`] | the built program, pointed at a Consul |
//! | [`consul_server`] | a real Consul on loopback |
//! | [`pod_processes`] | processes that a node agent left below its data directory |
//!
//! The crate does not depend on the root package: an edit of `src/` does not rebuild it.
#![forbid(unsafe_code)]

pub mod clock;
pub mod consul_server;
pub mod daemon;
pub mod fake_driver;
pub mod fake_nodes;
pub mod pod_processes;
pub mod process;
pub mod program;
pub mod requests;
pub mod wait;
