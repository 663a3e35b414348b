//! A Consul of our own: on loopback, on free ports, gone when the benchmark is.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

const NODE: &str = "bench";

pub struct Server {
    address: String,
    child: Child,
    /// Ends Consul when our end of its pipe closes, however we end.
    guard: Child,
    _leash: ChildStdin,
}

impl Server {
    /// `-dev`, or with `data_dir` a server that syncs to disk; all limits are Consul's defaults.
    pub async fn start(
        program: &Path,
        data_dir: Option<&Path>,
        scratch: &Path,
    ) -> anyhow::Result<Server> {
        let [http, rpc, serf] = free_ports()?;
        let config = serde_json::json!({
            "bind_addr": "127.0.0.1", "node_name": NODE, "disable_update_check": true,
            "ports": {"http": http, "server": rpc, "serf_lan": serf, "serf_wan": -1, "dns": -1,
                "grpc": -1},
        });
        let file = scratch.join("consul.json");
        std::fs::write(&file, config.to_string())?;
        let log = scratch.join("consul.log");
        let mut command = Command::new(program);
        command.args(["agent", "-log-level=warn", "-config-file"]).arg(file);
        match data_dir {
            None => command.arg("-dev"),
            Some(dir) => command.args(["-server", "-bootstrap-expect=1", "-data-dir"]).arg(dir),
        };
        let out = File::create(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let mut guard = Command::new("sh")
            .args(["-c", r#"read -r _; kill -9 "$1""#, "guard", &child.id().to_string()])
            .stdin(Stdio::piped())
            .spawn()?;
        let leash = guard.stdin.take().context("no pipe")?;
        let address = format!("127.0.0.1:{http}");
        let mut server = Server { address, child, guard, _leash: leash };
        server.wait_until_ready(&log).await?;
        Ok(server)
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a leader, and for the agent's own node, which sessions need.
    async fn wait_until_ready(&mut self, log: &Path) -> anyhow::Result<()> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        let health = format!("http://{}/v1/health/node/{NODE}", self.address);
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            if self.child.try_wait()?.is_some() || Instant::now() > give_up {
                bail!("Consul did not start:\n{}", std::fs::read_to_string(log)?);
            }
            let answer = http.get(&health).timeout(Duration::from_secs(10)).send().await;
            if let Ok(answer) = answer
                && answer.text().await.is_ok_and(|body| body.contains("passing"))
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in [&mut self.child, &mut self.guard] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_ports() -> std::io::Result<[u16; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = [bind()?, bind()?, bind()?];
    let port = |n: usize| held[n].local_addr().map(|address| address.port());
    Ok([port(0)?, port(1)?, port(2)?])
}
