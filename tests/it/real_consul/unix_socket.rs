//! An agent that listens on a unix socket: that address is refused, and what the message says instead works.

use std::os::unix::fs::FileTypeExt;

use rcfarm_testing::consul_server::ConsulServer;

use crate::harness::RealCluster;

#[tokio::test]
async fn agent_on_a_socket_is_reached_over_loopback() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("consul.sock");
    let address = format!("unix://{}", socket.display());
    let config = format!("addresses {{ http = \"{address} 127.0.0.1\" }}");
    let cluster = RealCluster::on_server(ConsulServer::with_config(&config).await);
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
    cluster.run(&["rc", "list"]).await.ok();

    for refused in [
        cluster.program.with_env("CONSUL_HTTP_ADDR", &address).run(&["rc", "list"]).await,
        cluster.run(&["rc", "list", "--http-addr", &address]).await,
    ] {
        let error = refused.failed();
        assert!(error.contains(&address) && error.contains("not supported"), "{error}");
        assert!(error.contains("addresses { http = \"unix://… 127.0.0.1\" }"), "{error}");
    }
}
