//! A model of Consul in memory.
