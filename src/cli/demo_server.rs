//! `rcfarm demo-server`: serves a page that names its pod and node, for use as an example workload. `rcfarm hello`
//! is its old name.

use std::path::Path;

use axum::Router;
use axum::http::{Method, Uri};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::failure::{CliExit, failure};
use super::farm_run::stop_on_signal;
use super::files::read_yaml;

#[derive(clap::Args)]
pub struct DemoServerArgs {
    /// Serve on this address
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "HOST:PORT")]
    listen: String,
}

/// The part of the pod's configuration that the server reads.
#[derive(Deserialize)]
struct Config {
    greeting: Option<String>,
}

/// Serves until SIGTERM or SIGINT. Logs each request to standard output.
pub(super) async fn run(args: DemoServerArgs) -> anyhow::Result<CliExit> {
    let page = page(&greeting()?);
    let listener = TcpListener::bind(&args.listen).await.map_err(|error| {
        failure(format!("cannot listen on {}: {error}", args.listen), "choose another --listen")
    })?;
    println!("listening on http://{}", listener.local_addr()?);
    let shutdown = CancellationToken::new();
    tokio::spawn(stop_on_signal(shutdown.clone()));
    let answer = move |method: Method, uri: Uri| async move {
        println!("{method} {uri}");
        page
    };
    let app = Router::new().fallback(answer);
    axum::serve(listener, app).with_graceful_shutdown(shutdown.cancelled_owned()).await?;
    println!("stopped");
    Ok(CliExit::Ok)
}

/// The greeting in the pod's configuration file.
fn greeting() -> anyhow::Result<String> {
    let Some(path) = std::env::var_os("CONFIG_PATH") else { return Ok("Hello".to_owned()) };
    let config: Config = read_yaml(Path::new(&path), "")?;
    Ok(config.greeting.unwrap_or_else(|| "Hello".to_owned()))
}

fn page(greeting: &str) -> String {
    let told = |name: &str| std::env::var(name).unwrap_or_else(|_| "nowhere".to_owned());
    let (pod, node) = (told("RCFARM_POD"), told("RCFARM_NODE"));
    format!("{greeting} from pod {pod} on {node}, process {}\n", std::process::id())
}
