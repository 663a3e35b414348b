//! Conformance vectors of the reference, random histories, and rebuilding.

mod driven;
mod histories;
mod rebuild;
mod stages;
mod vectors_m;
mod vectors_t;
mod vectors_v2;
