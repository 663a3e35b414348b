//! Nodes that only pretend: whatever is intended becomes real and healthy a moment later. For trying out more nodes
//! than there are machines, and for tests of farms.
//!
//! Keys read: `intent/`. Keys written: `reality/<node>/<pod>`, `health/<pod>/<node>`.
//! Who else writes them: the agents of the other nodes, each for its own. A crash between two writes leaves a part of the pods
//! not yet real; the next look makes up for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use rcfarm_api::Timestamp;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_store::time::Clock;
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{Entry, Op, Query, Reader, Store, StoreError, Txn, TxnLimits};

/// How long a pod takes to start or to stop.
const MOMENT: Duration = Duration::from_millis(200);

/// Which nodes pretend.
pub type Pretends = fn(&NodeName) -> bool;

type Pods = BTreeMap<(NodeName, PodId), bytes::Bytes>;

fn pods(pretends: Pretends, prefix: &rcfarm_store::Prefix, entries: Vec<Entry>) -> Pods {
    let pod = |entry: Entry| {
        let place = key::node_and_pod(prefix, &entry.key)?;
        pretends(&place.0).then_some((place, entry.value))
    };
    entries.into_iter().filter_map(pod).collect()
}

/// Pretends until `shutdown`.
pub async fn run(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    pretends: Pretends,
    shutdown: CancellationToken,
) {
    let reader: Arc<dyn Reader> = store.clone();
    let mut watch = TreeWatch::new(reader, key::intents(), Duration::from_secs(300));
    loop {
        let look = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            look = watch.next() => look,
        };
        tokio::time::sleep(MOMENT).await;
        let done = match look {
            Ok(answer) => {
                let intended = pods(pretends, &key::intents(), answer.value);
                pretend(store.as_ref(), pretends, intended, clock.wall()).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            warn!(%error, "the simulated nodes cannot follow");
            watch.reset();
        }
    }
}

async fn pretend(
    store: &dyn Store,
    pretends: Pretends,
    intended: Pods,
    now: Timestamp,
) -> Result<(), StoreError> {
    let listed = store.list(&key::realities(), Query::PLAIN).await?.value;
    let real = pods(pretends, &key::realities(), listed);
    let mut changes: Vec<[Op; 2]> = Vec::new();
    for (place, manifest) in &intended {
        if real.get(place) != Some(manifest) {
            changes.push(become_real(place, manifest, now));
        }
    }
    for (node, pod) in real.keys().filter(|place| !intended.contains_key(place)) {
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
