//! The built program on a real Consul: a server, farms and agents that can be killed, and command-line users.

mod acl_policies;
mod agents;
mod carried;
mod cells;
mod controllers;
mod gangs;
mod job_types;
mod jobs;
mod peers;
mod services;
mod ssh_keys;
mod tls;
mod token_rotation;
mod unix_socket;
