//! What the same Consul sustains with the same transactions and no farm.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::bail;
use rcfarm::consul::Consul;
use rcfarm::ids::{PodId, RcId};
use rcfarm::store::{
    Behavior, Claim, Commit, Epoch, Index, NewSession, Op, PutMode, Query, Reader as _, Store as _,
    Txn, Writer, key,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use crate::fleet::{Rc, node};

/// How long a rate is taken.
const FOR: Duration = Duration::from_millis(1_500);
/// As many connections as a farm uses.
const CONNECTIONS: usize = 8;

/// Transactions per second of `pods` pods each: fence, check-index of the record, status cas, per pod label cas
/// and intent cas, audit set; values as long as a farm's.
pub async fn rate(store: &Arc<Consul>, pods: usize) -> anyhow::Result<f64> {
    let session = store
        .create_session(&NewSession { behavior: Behavior::Delete, ..NewSession::default() })
        .await?;
    let epoch = Epoch::new(session.clone(), Instant::now() + Duration::from_secs(3600));
    let rc = Rc::new(0);
    let lock = key::rc_lock(rc.id);
    store.put(&lock, "bench".into(), 0, PutMode::Acquire(session.clone())).await?;
    rc.write(store, pods).await?;
    let record = store.get(&key::rc(rc.id), Query::PLAIN).await?.value;
    let Some(record) = record else { bail!("the record is gone") };
    let claim = Claim::new(lock, epoch);
    let (done, number) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let writer = Writer::new(store.clone());
        let (claim, done, number) = (claim.clone(), done.clone(), number.clone());
        let index = record.modify_index;
        clients.spawn(async move {
            while start.elapsed() < FOR {
                let n = number.fetch_add(1, Ordering::Relaxed);
                let txn = transaction(&claim, (rc.id, index), n, pods);
                match writer.commit(txn).await? {
                    Commit::Applied(_) => done.fetch_add(1, Ordering::Relaxed),
                    other => bail!("refused: {other:?}"),
                };
            }
            Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    let rate = done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    store.destroy_session(&session).await?;
    crate::fleet::wipe(store).await?;
    Ok(rate)
}

fn transaction(
    claim: &Claim,
    (rc, index): (RcId, Index),
    n: usize,
    pods: usize,
) -> Txn<rcfarm::store::Fenced> {
    let filler = |len: usize| bytes::Bytes::from(vec![b'x'; len]);
    let mut txn = Txn::under(claim);
    txn.push(Op::CheckIndex { key: key::rc(rc), index });
    // As long as a status and an audit record are.
    let status = key::rc_status(RcId(Uuid::new_v4()));
    txn.push(Op::Cas { key: status, value: filler(760), flags: 0, index: Index::ZERO });
    let pod: PodId = format!("raw-{n}").parse().expect("a legal name");
    let labels = json!({"availability_zone": "az1", "cluster_name": "bench", "pod_id": pod,
        "replication_controller_id": rc});
    for p in 0..pods {
        let node = node((n * pods + p) % 200);
        let label = key::pod_labels(&node, &pod);
        let value = labels.to_string().into();
        txn.push(Op::Cas { key: label, value, flags: 0, index: Index::ZERO });
        let intent = key::intent(&node, &pod);
        let value = Rc::manifest(n).into();
        txn.push(Op::Cas { key: intent, value, flags: 0, index: Index::ZERO });
    }
    let audit = key::audit_log(Uuid::now_v7());
    txn.push(Op::Set { key: audit, value: filler(500 + 40 * pods), flags: 0 });
    txn
}
