//! A status chain on a Consul that loses requests and answers, and applies some of them late.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcfarm::farm::kind::{Action, ClaimedRecord, ControllerContext, ReconcileError};
use rcfarm::farm::metrics::RecordMetrics;
use rcfarm::farm::status_chain::{Change, Committed, RecordGuard, StatusChain, StatusWrite};
use rcfarm::farm::status_check::StatusCheck;
use rcfarm_api::audit::{AuditRecord, EventType};
use rcfarm_api::ids::RecordId;
use rcfarm_api::key;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_emulator::{Fate, FaultOutcome, Request, Verb};
use rcfarm_store::cache::Cache;
use rcfarm_store::time::IdSource;
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Claim, Epoch, Index, NewSession, Op, Reader, Store, TxnLimits, Writer};
use tokio::time::{Instant, sleep};

use crate::harness::{Cluster, SECOND, node, pod_id, rc_id};

/// Number of plans, one transaction each.
const PLANS: u32 = 30;

/// Outcomes of transactions.
#[derive(Default)]
struct Lost {
    request: AtomicUsize,
    answer: AtomicUsize,
    late: AtomicUsize,
}

/// A store that loses at least every third answer of a transaction.
fn faulty(cluster: &Cluster, seed: u64, lost: &Arc<Lost>) -> Arc<dyn Store> {
    let (rng, lost) = (IdSource::from_seed(seed), lost.clone());
    let faults = move |request: &Request<'_>| match request {
        Request::Txn(_) => match rng.below(12) {
            0 => {
                lost.request.fetch_add(1, Ordering::SeqCst);
                Fate::of(FaultOutcome::Lose)
            }
            1 | 2 => {
                lost.answer.fetch_add(1, Ordering::SeqCst);
                Fate::of(FaultOutcome::LoseReply)
            }
            3..=5 => {
                lost.late.fetch_add(1, Ordering::SeqCst);
                let late = Duration::from_millis(1 << rng.below(12));
                Fate::of(FaultOutcome::Late(late))
            }
            _ => Fate::DELIVER,
        },
        Request::Get(_) if rng.below(4) == 0 => Fate::of(FaultOutcome::Lose),
        _ => Fate::DELIVER,
    };
    Arc::new(cluster.store.with_faults(Arc::new(faults)))
}

/// Chain of a claimed record, and the record's index.
async fn claimed(cluster: &Cluster, store: Arc<dyn Store>) -> (StatusChain<RcStatus>, Index) {
    let (chain, _, record) = checked(cluster, store).await;
    (chain, record)
}

/// As [`claimed`], with the check of its status.
async fn checked(
    cluster: &Cluster,
    store: Arc<dyn Store>,
) -> (StatusChain<RcStatus>, Arc<StatusCheck>, Index) {
    let id = rc_id(1);
    cluster.create_rc(1, 1).await;
    let session = cluster.store.create_session(&NewSession::default()).await.unwrap();
    cluster.put_locked(key::rc_lock(id), "a", &session).await;
    let record = cluster.entry(&key::rc(id)).await.unwrap();
    let reader: Arc<dyn Reader> = store.clone();
    let ctx = ControllerContext {
        farm: "a".parse().unwrap(),
        reader: reader.clone(),
        writer: Writer::new(store),
        clock: cluster.clock.clone(),
        ids: Arc::new(cluster.ids.fork()),
        limits: TxnLimits::default(),
    };
    let epoch = Epoch::new(session, Instant::now() + 3_600 * SECOND);
    let claimed = ClaimedRecord {
        id: RecordId::from(id.to_string().as_str()),
        wake: Arc::default(),
        claim: Claim::new(key::rc_lock(id), epoch),
        records: Cache::new(reader.clone(), key::rcs(), PollPolicy::PROMPT),
        labels: Cache::new(
            reader.clone(),
            key::labels(key::LabelKind::ReplicationController),
            PollPolicy::PROMPT,
        ),
        locks: Cache::new(reader.clone(), key::rc_locks(), PollPolicy::PROMPT),
        statuses: Arc::new(StatusCheck::new("rc", reader, 64)),
        metrics: RecordMetrics::new(Arc::default(), "rc", id.to_string().as_str().into()),
    };
    let keys = (key::rc(id), key::rc_status(id));
    let chain = StatusChain::new(&ctx, &claimed, keys, None);
    (chain, claimed.statuses, record.modify_index)
}

/// Commits plans that each create a key and increment a counter; returns those reported as applied.
async fn carry_out_plans(
    cluster: &Cluster,
    chain: &mut StatusChain<RcStatus>,
    record: Index,
) -> BTreeSet<usize> {
    let (mut attempt, mut applied) = (0, BTreeSet::new());
    while chain.status().replicas.desired < PLANS {
        assert!(attempt < 1_000, "it makes progress");
        if chain.is_behind() {
            match chain.refresh().await {
                Ok(()) => chain.caught_up(),
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
            continue;
        }
        attempt += 1;
        let mut status = chain.status().clone();
        status.replicas.desired += 1;
        let key = key::pod_labels(&node(attempt), &pod_id(1));
        let audit = AuditRecord {
            event_type: EventType::Other("Planned".to_owned()),
            event_details: serde_json::json!({"attempt": attempt}),
            timestamp: cluster.clock.wall(),
            schema_version: 1,
            cause: None,
        };
        let change = Change {
            record: RecordGuard::At(record),
            status: StatusWrite::Replace(status),
            ops: vec![Op::Cas { key, value: "{}".into(), flags: 0, index: Index::ZERO }],
            shared: Vec::new(),
            audit: vec![audit],
        };
        match chain.commit(change).await {
            Ok(Committed::Applied(_)) => assert!(applied.insert(attempt)),
            Ok(Committed::Refused(_)) => {
                let Action::RequeueAfter(pause) = chain.after_refusal() else { panic!("no pause") };
                sleep(pause).await;
            }
            Err(ReconcileError::Store(_)) => sleep(Duration::from_millis(50)).await,
            Err(error) => panic!("{error}"),
        }
    }
    applied
}

#[tokio::test(start_paused = true)]
async fn plans_are_carried_out_once_although_answers_are_lost() {
    let lost = Arc::new(Lost::default());
    let mut reported = 0;
    for seed in 0..40 {
        let cluster = Cluster::new(0).await;
        let (mut chain, record) = claimed(&cluster, faulty(&cluster, seed, &lost)).await;
        let applied = carry_out_plans(&cluster, &mut chain, record).await;
        reported += applied.len();
        // Delayed transactions arrive.
        sleep(10 * SECOND).await;
        let status = cluster.status(1).await.unwrap();
        assert_eq!((status.replicas.desired, status.revision), (PLANS, u64::from(PLANS)));
        assert_eq!(&status, chain.status(), "seed {seed}: it knows what stands there");
        let prefix = key::labels(key::LabelKind::Pod);
        let pods = cluster.list(&prefix).await;
        assert_eq!(pods.len(), PLANS as usize, "seed {seed}: one pod for each plan");
        let is_there = |n: &usize| {
            let key = key::pod_labels(&node(*n), &pod_id(1));
            pods.iter().any(|entry| entry.key == key.as_str())
        };
        assert!(applied.iter().all(is_there), "seed {seed}: what was reported is there");
        assert_eq!(cluster.audit().await.len(), PLANS as usize, "seed {seed}");
    }
    let counts = [&lost.request, &lost.answer, &lost.late].map(|n| n.load(Ordering::SeqCst));
    assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    // About 650 of 1,200 plans are answered; the others count once their statuses are recognised.
    assert!(reported > 750, "{reported}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_gone_ends_the_chain() {
    let cluster = Cluster::new(0).await;
    let (mut chain, record) = claimed(&cluster, Arc::new(cluster.store.clone())).await;
    chain.refresh().await.unwrap();
    chain.caught_up();
    cluster.delete(key::rc_lock(rc_id(1))).await;
    let change = Change::of_status(RecordGuard::At(record), chain.status().clone());
    assert!(matches!(chain.commit(change).await, Err(ReconcileError::ClaimLost)));
    assert!(cluster.status(1).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn another_record_is_a_refusal_and_leaves_the_chain_as_it_is() {
    let cluster = Cluster::new(0).await;
    let (mut chain, record) = claimed(&cluster, Arc::new(cluster.store.clone())).await;
    chain.refresh().await.unwrap();
    chain.caught_up();
    cluster.create_rc(1, 2).await;
    let change = Change::of_status(RecordGuard::At(record), chain.status().clone());
    let Committed::Refused(refused) = chain.commit(change).await.unwrap() else {
        panic!("the record has changed")
    };
    assert!(refused.record && !refused.own && refused.shared.is_empty());
    assert!(!chain.is_behind());
}

/// A restored snapshot may bring back a status that the owner has replaced.
#[tokio::test(start_paused = true)]
async fn status_that_is_not_the_owners_makes_its_chain_fall_behind() {
    let cluster = Cluster::new(1).await;
    let (mut chain, statuses, record) = checked(&cluster, Arc::new(cluster.store.clone())).await;
    let found = async || statuses.check().await.unwrap().len();
    assert_eq!(found().await, 0, "nothing is known of it yet");
    chain.refresh().await.unwrap();
    chain.caught_up();
    tokio::time::sleep(SECOND).await;
    assert_eq!((found().await, chain.is_behind()), (0, false), "there is no status, as expected");
    cluster.put(key::rc_status(rc_id(1)), "{}").await;
    assert_eq!((found().await, chain.is_behind()), (1, true), "somebody wrote one");
    chain.refresh().await.unwrap();
    chain.caught_up();
    let snapshot = cluster.store.snapshot();
    let change = Change::of_status(RecordGuard::At(record), RcStatus::default());
    assert!(matches!(chain.commit(change).await, Ok(Committed::Applied(_))));
    assert_eq!(found().await, 0, "it was written after the question");
    tokio::time::sleep(SECOND).await;
    assert_eq!((found().await, chain.is_behind()), (0, false));
    cluster.store.restore(snapshot);
    assert_eq!((found().await, chain.is_behind()), (1, true));
    drop(chain);
    assert_eq!(found().await, 0, "it has no owner any more");
}

/// The check asks between the moment at which a status is written and that at which its owner hears of it.
#[tokio::test(start_paused = true)]
async fn status_that_is_being_written_is_not_somebody_elses() {
    let cluster = Cluster::new(1).await;
    let late = |request: &Request<'_>| match request {
        Request::Txn(ops) if ops.iter().any(|op| op.verb == Verb::Cas) => {
            Fate { after: 2 * SECOND, ..Fate::DELIVER }
        }
        _ => Fate::DELIVER,
    };
    let slow = Arc::new(cluster.store.with_faults(Arc::new(late)));
    let (mut chain, statuses, record) = checked(&cluster, slow).await;
    let found = async || statuses.check().await.unwrap().len();
    chain.refresh().await.unwrap();
    chain.caught_up();
    sleep(SECOND).await;
    let change = Change::of_status(RecordGuard::At(record), RcStatus::default());
    let (committed, is_found) = tokio::join!(chain.commit(change), async {
        sleep(SECOND).await;
        assert!(cluster.status(1).await.is_some(), "it is applied");
        found().await
    });
    assert!(matches!(committed, Ok(Committed::Applied(_))));
    assert_eq!((is_found, chain.is_behind()), (0, false));
    // A refused one leaves the status as it is, and it is compared again.
    cluster.create_rc(1, 2).await;
    let change = Change::of_status(RecordGuard::At(record), RcStatus::default());
    assert!(matches!(chain.commit(change).await, Ok(Committed::Refused(_))));
    sleep(SECOND).await;
    assert_eq!((found().await, chain.is_behind()), (0, false));
    cluster.put(key::rc_status(rc_id(1)), "{}").await;
    sleep(SECOND).await;
    assert_eq!((found().await, chain.is_behind()), (1, true));
}
