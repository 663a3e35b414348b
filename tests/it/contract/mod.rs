//! One contract for everything that calls itself Consul here.
//!
//! Wire cases speak HTTP, and run against the model's server and a real Consul. Port cases speak [`rcfarm_store`],
//! and run on the model too. Ids are those of `consul-semantics.md` §11 (`K` keys, `L` locks, `T` transactions,
//! `S` sessions, `B` blocking reads, `C` catalog); numbers from 30 on are further facts of its §1 to §8; `p` begins
//! those of the port.
//!
//! A case has its own prefix of keys on a server shared by all, so all of them run at once. `CONTRACT=K01` runs those
//! whose id begins so.

mod port;
mod restore;
mod wire;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use rcfarm_emulator::Embedded;
use rcfarm_emulator::serve::serve;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Where a case runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    /// The server that all cases share.
    Shared,
    /// A server of its own, on which nothing was ever written.
    Fresh,
    /// A real Consul alone: the model refuses what this is about, and says so.
    Real,
}

/// A case that takes longer waits for what never comes. (The longest rightful one takes 25 s.)
const HANGS: Duration = Duration::from_secs(100);

type Run<C> = fn(C) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// All cases share the agent: more at once than the 200 connections that it grants one address by default.
const MANY_CONNECTIONS: &str = "limits { http_max_conns_per_client = 2000 }";

/// A model of its own, behind Consul's HTTP API.
async fn serve_model() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Embedded::default(), 2_000));
    at
}

/// One fact about Consul. `C` is what it is tried on.
struct Case<C: 'static> {
    id: &'static str,
    says: &'static str,
    on: On,
    run: Run<C>,
}

/// A table of cases: `K01 Shared "what holds" => function;`
macro_rules! cases {
    ($($id:ident $on:ident $says:literal => $run:path;)*) => {
        &[$($crate::contract::Case {
            id: stringify!($id),
            says: $says,
            on: $crate::contract::On::$on,
            run: |on| Box::pin($run(on)),
        }),*]
    };
}
use cases;

/// What one lane (a suite on one backend) found.
struct Lane {
    name: &'static str,
    ran: BTreeSet<&'static str>,
    failures: Vec<String>,
}

impl Lane {
    /// Runs every case at once, to the end, whatever fails.
    async fn run<C, F>(name: &'static str, cases: Vec<&'static Case<C>>, mut target: F) -> Lane
    where
        C: Send + 'static,
        F: AsyncFnMut(&'static Case<C>) -> C,
    {
        let only = std::env::var("CONTRACT").unwrap_or_default();
        let mut tasks = JoinSet::new();
        let mut of_task = std::collections::BTreeMap::new();
        for case in cases.into_iter().filter(|case| case.id.starts_with(&only)) {
            let run = tokio::time::timeout(HANGS, (case.run)(target(case).await));
            of_task.insert(tasks.spawn(run).id(), case);
        }
        let mut lane = Lane { name, ran: BTreeSet::new(), failures: Vec::new() };
        while let Some(ended) = tasks.join_next_with_id().await {
            let (id, failure) = match ended {
                Ok((id, Ok(()))) => (id, None),
                Ok((id, Err(_))) => (id, Some(format!("did not end within {HANGS:?}"))),
                Err(e) => (e.id(), Some(words(e))),
            };
            let case = of_task[&id];
            assert!(lane.ran.insert(case.id), "two cases are called {}", case.id);
            let failure = failure.map(|why| format!("{name} {} ({}): {why}", case.id, case.says));
            lane.failures.extend(failure);
        }
        lane.failures.sort();
        lane
    }
}

/// Fails with every failure of every lane, or when one of them ran fewer than `least` cases.
fn conclude(lanes: &[Lane], least: usize) {
    let failures: Vec<&str> = lanes.iter().flat_map(|l| &l.failures).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    for Lane { name, ran, .. } in lanes {
        let selected = std::env::var_os("CONTRACT").is_some();
        assert!(
            selected || ran.len() >= least,
            "{name}: {} cases ran, of at least {least}",
            ran.len()
        );
    }
}

/// What a panicking case said.
fn words(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast::<&str>().map_or("panicked".into(), |s| s.to_string()),
        },
        Err(error) => error.to_string(),
    }
}
