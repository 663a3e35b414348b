//! Runs the built binary against the emulator over HTTP; ACL tests use a real Consul.

mod apply;
mod audit;
mod beside_p2;
mod capacity;
mod cell;
mod cron;
mod daemon_logs;
mod dev;
mod dispatch;
mod doctor;
mod flow;
mod job;
mod job_ends;
mod job_logs;
mod job_programs;
mod label;
mod meet;
mod members;
mod node;
mod priority_class;
mod queue;
mod rc;
mod terminal_escapes;
mod upstream;
mod usage;
mod with_a_farm;
