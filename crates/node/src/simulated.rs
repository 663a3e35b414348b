//! Simulated nodes: every intended pod becomes real and healthy 200 ms later. For trials with more nodes than
//! machines, and for tests of farms.
//!
//! Keys read: `intent/`, `reality/`. Keys written: `reality/<node>/<pod>`, `health/<pod>/<node>`.
//! Who else writes them: the agents of the other nodes, each for its own node. A crash between two writes leaves some
//! pods not yet real; the next read of the intents completes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::{Timestamp, key};
use rcfarm_store::time::Clock;
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{Entry, Op, Query, Reader, Store, StoreError, Txn, TxnLimits};

/// How long a pod takes to start or to stop.
const DELAY: Duration = Duration::from_millis(200);

/// Whether a node is simulated.
pub type IsSimulated = fn(&NodeName) -> bool;

type Pods = BTreeMap<(NodeName, PodId), bytes::Bytes>;

fn pods(is_simulated: IsSimulated, prefix: &rcfarm_store::Prefix, entries: Vec<Entry>) -> Pods {
    let pod = |entry: Entry| {
        let node_and_pod = key::node_and_pod(prefix, &entry.key)?;
        is_simulated(&node_and_pod.0).then_some((node_and_pod, entry.value))
    };
    entries.into_iter().filter_map(pod).collect()
}

/// Simulates nodes until `shutdown`. Failed reads and writes are logged and retried.
pub async fn run(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    is_simulated: IsSimulated,
    shutdown: CancellationToken,
) {
    let reader: Arc<dyn Reader> = store.clone();
    let mut watch = TreeWatch::new(reader, key::intents(), Duration::from_secs(300));
    loop {
        let read = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            read = watch.next() => read,
        };
        tokio::time::sleep(DELAY).await;
        let done = match read {
            Ok(answer) => {
                let intended = pods(is_simulated, &key::intents(), answer.value);
                reconcile(store.as_ref(), is_simulated, intended, clock.wall()).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            warn!(%error, "simulated nodes cannot be updated");
            watch.reset();
        }
    }
}

/// Creates or deletes `reality` and `health` of every pod whose reality differs from its intent.
async fn reconcile(
    store: &dyn Store,
    is_simulated: IsSimulated,
    intended: Pods,
    now: Timestamp,
) -> Result<(), StoreError> {
    let listed = store.list(&key::realities(), Query::PLAIN).await?.value;
    let real = pods(is_simulated, &key::realities(), listed);
    let mut changes: Vec<[Op; 2]> = Vec::new();
    for (node_and_pod, manifest) in &intended {
        if real.get(node_and_pod) != Some(manifest) {
            changes.push(become_real(node_and_pod, manifest, now));
        }
    }
    for (node, pod) in real.keys().filter(|pod| !intended.contains_key(pod)) {
        let (reality, health) = (key::reality(node, pod), key::health(pod, node));
        changes.push([Op::Delete { key: reality }, Op::Delete { key: health }]);
    }
    for batch in changes.chunks(TxnLimits::default().ops / 2) {
        let mut txn = Txn::by_user();
        txn.extend(batch.iter().flatten().cloned());
        let _ = store.txn(txn.ops()).await?;
    }
    Ok(())
}

fn become_real(
    (node, pod): &(NodeName, PodId),
    manifest: &bytes::Bytes,
    now: Timestamp,
) -> [Op; 2] {
    let health = json!({
        "Id": pod, "Node": node, "Service": pod, "Status": "passing",
        "Time": now, "Expires": "2126-01-01T00:00:00Z",
    });
    let (reality, health_key) = (key::reality(node, pod), key::health(pod, node));
    [
        Op::Set { key: reality, value: manifest.clone(), flags: 0 },
        Op::Set { key: health_key, value: health.to_string().into(), flags: 0 },
    ]
}
