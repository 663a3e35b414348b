//! The process of fake nodes: pods end as their command says, without a process.
//!
//! | command of the first container | the pod |
//! |---|---|
//! | `true` | is reported as ended with 0 at once |
//! | `fail-when N` | fails in the first attempt of its job, once N pods of the job are real |
//! | anything else | runs until it is no longer intended |

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rcfarm_consul::Consul;
use rcfarm_store::time::SystemClock;
use rcfarm_testing::fake_nodes::{FakePod, NodeTimes, StartLog, run};

/// A node acts within 40 ms or so of a change. An agent takes 15 ms (p50), but reads its own intents alone; these nodes
/// read the intents of all.
const TIMES: NodeTimes =
    NodeTimes { acts_every: Duration::from_millis(20), between_reads: Duration::from_millis(20) };

/// Runs the nodes until standard input ends; each line of it is answered with the starts so far.
pub async fn serve(store: Arc<Consul>) -> anyhow::Result<()> {
    let log = Arc::new(Mutex::new(StartLog::default()));
    let (answered, stop) = (log.clone(), tokio_util::sync::CancellationToken::new());
    let stopped = stop.clone();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {
            let log = answered.lock().unwrap_or_else(PoisonError::into_inner);
            println!("{}", serde_json::json!(*log));
        }
        stopped.cancel();
    });
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        ended = run(store, Arc::new(SystemClock), Box::new(exit_code), log, TIMES) => {
            let Err(error) = ended;
            Err(error.into())
        }
    }
}

fn exit_code(pod: &FakePod<'_>) -> Option<i32> {
    match pod.command {
        [word, ..] if word == "true" => Some(0),
        [word, count] if word == "fail-when" && pod.version == 0 => {
            (pod.of_job >= count.parse().ok()?).then_some(1)
        }
        _ => None,
    }
}
