//! Servers shared by cases. The first case that needs one starts it.

use std::net::{Ipv4Addr, SocketAddr};

use rcfarm_emulator::Emulator;
use rcfarm_emulator::serve::serve;
use rcfarm_testing::consul_server::ConsulServer;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

use crate::On;

/// Address of a Consul that all processes of a test run share; `.ci/contract-consul` starts it under nextest.
const SHARED: &str = "RCFARM_CONTRACT_CONSUL";

/// All cases connect from one address; the default limit is 200 connections.
const MANY_CONNECTIONS: &str = "limits { http_max_conns_per_client = 2000 }";

/// Ends with the process: see [`rcfarm_testing::process`].
static CONSUL: OnceCell<ConsulServer> = OnceCell::const_new();
static EMULATOR: OnceCell<SocketAddr> = OnceCell::const_new();

/// HTTP server of the emulator, shared or new.
pub async fn emulator(on: On) -> SocketAddr {
    match on {
        On::Fresh => serve_emulator().await,
        On::Shared | On::Real => *EMULATOR.get_or_init(serve_emulator).await,
    }
}

/// A real Consul, shared or new.
pub async fn consul(on: On) -> SocketAddr {
    static FRESH: std::sync::Mutex<Vec<ConsulServer>> = std::sync::Mutex::new(Vec::new());
    if on == On::Fresh {
        let server = ConsulServer::dev().await;
        let at = server.http();
        FRESH.lock().unwrap().push(server);
        return at;
    }
    match std::env::var(SHARED) {
        Ok(address) => address.parse().expect("an address"),
        Err(_) => CONSUL.get_or_init(|| ConsulServer::with_config(MANY_CONNECTIONS)).await.http(),
    }
}

async fn serve_emulator() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Emulator::default(), 2_000));
    at
}
