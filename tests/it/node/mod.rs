//! The node agent with real processes, on the embedded store.

mod adoption;
mod alone;
mod devices;
mod health;
mod host;
mod pods;
mod trust;
