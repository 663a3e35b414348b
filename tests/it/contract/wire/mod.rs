//! Codes, headers and bodies of Consul's HTTP API.

mod blocking;
mod catalog;
mod client;
mod kv;
mod lock;
mod session;
mod txn;

use super::{Case, Lane, On};
use crate::consul_server::ConsulServer;
use client::Wire;

const TABLES: &[&[Case<Wire>]] =
    &[kv::CASES, lock::CASES, txn::CASES, session::CASES, blocking::CASES, catalog::CASES];

#[tokio::test(flavor = "multi_thread")]
async fn holds_on_real_consul() {
    // All cases share the agent, so more connections at once than the default allows one address.
    let shared = ConsulServer::with_config("limits { http_max_conns_per_client = 2000 }").await;
    let mut fresh = Vec::new();
    let cases = TABLES.iter().copied().flatten().collect();
    let lane = Lane::run("consul", cases, async |case| match case.on {
        On::Shared => Wire::new(shared.http(), case.id),
        On::Fresh => {
            fresh.push(ConsulServer::dev().await);
            Wire::new(fresh.last().unwrap().http(), case.id)
        }
    });
    lane.await.conclude(120);
}
