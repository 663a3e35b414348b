//! Baseline: the same requests to the same Consul without a farm. Transactions per second, and latency.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::bail;
use rcfarm_api::ids::{PodId, RcId, SessionId};
use rcfarm_api::key;
use rcfarm_consul::Consul;
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{
    Behavior, Claim, Commit, Entry, Epoch, Index, NewSession, Op, PutMode, Query, Reader as _,
    Store as _, Txn, TxnOutcome, Writer,
};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use uuid::Uuid;

use crate::fleet::{Rc, node};
use crate::machine;

/// Length of a measurement of a rate.
const FOR: Duration = Duration::from_millis(1_500);
/// Number of connections, as a farm uses.
const CONNECTIONS: usize = 8;

/// A record with a count of pods, and the claim on it.
struct Owned {
    session: SessionId,
    claim: Claim,
    record: (RcId, Index),
}

async fn own(store: &Arc<Consul>, pods: usize) -> anyhow::Result<Owned> {
    let epoch = epoch(store).await?;
    let session = epoch.session().clone();
    let rc = Rc::new(0);
    let lock = key::rc_lock(rc.id);
    store.put(&lock, "bench".into(), 0, PutMode::Acquire(session.clone())).await?;
    rc.write(store, pods).await?;
    let record = store.get(&key::rc(rc.id), Query::PLAIN).await?.value;
    let Some(record) = record else { bail!("the record is gone") };
    Ok(Owned { session, claim: Claim::new(lock, epoch), record: (rc.id, record.modify_index) })
}

/// Transactions per second of `pods` pods each: fence, check-index of the record, status cas, per pod label cas
/// and intent cas, audit set; values as long as a farm's.
pub async fn rate(store: &Arc<Consul>, pods: usize) -> anyhow::Result<f64> {
    Ok(rate_and_cpu(store, pods, None).await?.0)
}

/// As [`rate`], and the processor time that one transaction takes in this process and in `consul`.
pub async fn rate_and_cpu(
    store: &Arc<Consul>,
    pods: usize,
    consul: Option<u32>,
) -> anyhow::Result<(f64, Duration)> {
    let cpu = || {
        let pids = consul.into_iter().chain([std::process::id()]);
        pids.map(machine::cpu).sum::<anyhow::Result<Duration>>()
    };
    let Owned { session, claim, record } = own(store, pods).await?;
    let (done, number) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (start, before) = (Instant::now(), cpu()?);
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let writer = Writer::new(store.clone());
        let (claim, done, number) = (claim.clone(), done.clone(), number.clone());
        clients.spawn(async move {
            while start.elapsed() < FOR {
                let n = number.fetch_add(1, Ordering::Relaxed);
                let txn = transaction(&claim, record, n, pods);
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
    let done = done.load(Ordering::Relaxed) as f64;
    let rate = done / start.elapsed().as_secs_f64();
    let each = (cpu()? - before).div_f64(done.max(1.0));
    store.destroy_session(&session).await?;
    crate::fleet::wipe(store).await?;
    Ok((rate, each))
}

/// Durations of `count` transactions of `pods` pods each, one after the other.
pub async fn one_after_the_other(
    store: &Arc<Consul>,
    pods: usize,
    count: usize,
) -> anyhow::Result<Duration> {
    let Owned { session, claim, record } = own(store, pods).await?;
    let writer = Writer::new(store.clone());
    let start = Instant::now();
    for n in 0..count {
        match writer.commit(transaction(&claim, record, n, pods)).await? {
            Commit::Applied(_) => {}
            other => bail!("refused: {other:?}"),
        }
    }
    let took = start.elapsed();
    store.destroy_session(&session).await?;
    Ok(took)
}

async fn epoch(store: &Consul) -> anyhow::Result<Epoch> {
    let session = NewSession { behavior: Behavior::Delete, ..NewSession::default() };
    let session = store.create_session(&session).await?;
    Ok(Epoch::new(session, Instant::now() + Duration::from_secs(3600)))
}

/// The minimum of requests that a farm needs: a watch on the records, and for each changed one a lock, if it is new,
/// and a transaction that writes one pod. It shows how fast a farm could be.
pub struct Echo {
    epoch: Epoch,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Echo {
    pub async fn start(store: Arc<Consul>) -> anyhow::Result<Echo> {
        let epoch = epoch(&store).await?;
        let mut watch = TreeWatch::new(store.clone(), key::rcs(), Duration::from_secs(3_600));
        let records = watch.next().await?.value;
        let ids: Vec<RcId> = records.iter().filter_map(id).collect();
        for ids in ids.chunks(64) {
            lock(&store, &epoch, ids).await?;
        }
        let known = records.into_iter().map(|record| (record.key, record.modify_index)).collect();
        let task = tokio::spawn(echo(store, epoch.clone(), watch, known));
        Ok(Echo { epoch, task })
    }

    pub async fn stop(self, store: &Consul) -> anyhow::Result<()> {
        if self.task.is_finished() {
            self.task.await??;
            bail!("the echo has ended");
        }
        self.task.abort();
        store.destroy_session(self.epoch.session()).await?;
        Ok(())
    }
}

fn id(record: &Entry) -> Option<RcId> {
    key::rcs().tail(&record.key)?.parse().ok()
}

async fn lock(store: &Consul, epoch: &Epoch, rcs: &[RcId]) -> anyhow::Result<()> {
    let session = epoch.session();
    let lock = |rc: &RcId| Op::Lock {
        key: key::rc_lock(*rc),
        value: "bench".into(),
        session: session.clone(),
    };
    match store.txn(&rcs.iter().map(lock).collect::<Vec<_>>()).await? {
        TxnOutcome::Committed { .. } => Ok(()),
        TxnOutcome::Refused(why) => bail!("no lock: {why:?}"),
    }
}

async fn echo(
    store: Arc<Consul>,
    epoch: Epoch,
    mut watch: TreeWatch,
    mut known: BTreeMap<String, Index>,
) -> anyhow::Result<()> {
    let writer = Writer::new(store.clone());
    let mut n = 0;
    loop {
        for record in watch.next().await?.value {
            let before = known.insert(record.key.clone(), record.modify_index);
            let Some(rc) = id(&record).filter(|_| before != Some(record.modify_index)) else {
                continue;
            };
            if before.is_none() {
                lock(&store, &epoch, &[rc]).await?;
            }
            let claim = Claim::new(key::rc_lock(rc), epoch.clone());
            // One answer may show several new records; each gets a pod.
            n += 1;
            match writer.commit(transaction(&claim, (rc, record.modify_index), n, 1)).await? {
                Commit::Applied(_) => {}
                other => bail!("refused: {other:?}"),
            }
        }
    }
}

fn transaction(
    claim: &Claim,
    (rc, index): (RcId, Index),
    n: usize,
    pods: usize,
) -> Txn<rcfarm_store::Fenced> {
    let filler = |len: usize| bytes::Bytes::from(vec![b'x'; len]);
    let mut txn = Txn::under(claim);
    txn.push(Op::CheckIndex { key: key::rc(rc), index });
    // As long as real statuses and audit records.
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
