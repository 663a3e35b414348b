//! The node agent: runs the pods that `intent/<node>/` asks for and reports them. Also simulated nodes for tests.
//!
//! [`agent`] and [`simulated`] list the keys that they read and write. [`exec`], [`http`], [`procfs`], [`shim`] and
//! [`spec`] use no keys.
#![forbid(unsafe_code)]

pub mod agent;
pub mod exec;
pub mod http;
pub mod procfs;
pub mod shim;
pub mod simulated;
pub mod spec;
