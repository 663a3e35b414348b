//! Adapter to a real Consul over HTTP.
