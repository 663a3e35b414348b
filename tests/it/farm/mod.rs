//! Farms on the emulator in virtual time: assertions of p2's own tests (`p2.md` §5), and more.

mod batched_starts;
mod caches;
mod capacity;
mod cells;
mod cron;
mod dummy_kind;
mod faults;
mod flow;
mod jobs;
mod large_trees;
mod leftovers;
mod manifest_updates;
mod nodes;
mod overlaps;
mod ownership;
mod queues;
mod removals;
mod rest;
mod restored;
mod rolling_updates;
mod scheduling;
mod sessions;
mod sizes;
mod status_chain;
mod transfer;
mod wakeups;
