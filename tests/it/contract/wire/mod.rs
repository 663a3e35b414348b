//! Codes, headers and bodies of Consul's HTTP API.

mod blocking;
mod catalog;
mod client;
mod kv;
mod lock;
mod session;
mod txn;

use super::{Case, Lane, MANY_CONNECTIONS, On, conclude, serve_model};
use client::Wire;
use rcfarm_testing::consul_server::ConsulServer;

const TABLES: &[&[Case<Wire>]] =
    &[kv::CASES, lock::CASES, txn::CASES, session::CASES, blocking::CASES, catalog::CASES];

fn cases(not: Option<On>) -> Vec<&'static Case<Wire>> {
    TABLES.iter().copied().flatten().filter(|case| Some(case.on) != not).collect()
}

async fn on_the_model() -> Lane {
    let shared = serve_model().await;
    let target = async |case: &Case<Wire>| match case.on {
        On::Fresh => Wire::new(serve_model().await, case.id),
        On::Shared | On::Real => Wire::new(shared, case.id),
    };
    Lane::run("model", cases(Some(On::Real)), target).await
}

async fn on_consul() -> Lane {
    let shared = ConsulServer::with_config(MANY_CONNECTIONS).await;
    let mut fresh = Vec::new();
    let target = async |case: &Case<Wire>| match case.on {
        On::Shared | On::Real => Wire::new(shared.http(), case.id),
        On::Fresh => {
            fresh.push(ConsulServer::dev().await);
            Wire::new(fresh.last().unwrap().http(), case.id)
        }
    };
    Lane::run("consul", cases(None), target).await
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_on_the_models_server_and_a_real_consul() {
    let lanes = tokio::join!(on_the_model(), on_consul());
    conclude(&<[Lane; 2]>::from(lanes), 120);
}
