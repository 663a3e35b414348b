//! A whole kind with its test (`docs/contribute/adding-a-kind.md`): copies `notes/<name>` into `note_status/<name>`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rcfarm::farm::Farm;
use rcfarm::farm::kind::{
    Action, ClaimedRecord, Controller, ControllerContext, Kind, KindSpec, ReconcileError,
    ReconcileResult, RegisteredKind,
};
use rcfarm_emulator::{Fate, Request, Verb};
use rcfarm_store::{Commit, Op, Prefix, Txn};
use rcfarm_testing::wait::within;

use crate::harness::{Cluster, SECOND, run};

fn spec() -> KindSpec {
    let [records, locks, labels, status] =
        ["notes/", "lock/notes/", "labels/note/", "note_status/"]
            .map(|p| Prefix::parse(p).unwrap());
    KindSpec { writes: vec![status], ..KindSpec::new("note", records, locks, labels) }
}

struct NoteKind(ControllerContext);

impl Kind for NoteKind {
    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller> {
        Box::new(NoteController(self.0.clone(), claimed, 0))
    }
}

struct NoteController(ControllerContext, ClaimedRecord, usize);

impl NoteController {
    async fn write(&self, text: String) -> ReconcileResult {
        let key = spec().writes[0].key_of(self.1.id.as_str()).unwrap();
        let mut txn = Txn::under(&self.1.claim);
        txn.push(Op::Set { key, value: text.into(), flags: 0 });
        match self.0.writer.commit(txn).await? {
            Commit::Applied(_) => Ok(Action::AwaitChange),
            _ => Err(ReconcileError::ClaimLost),
        }
    }
}

#[async_trait]
impl Controller for NoteController {
    async fn reconcile(&mut self) -> ReconcileResult {
        self.2 += 1;
        match self.1.records.snapshot().value.0.get(&self.1.id) {
            None => Ok(Action::AwaitChange),
            Some(note) if note.value == "bad" => Err(ReconcileError::Record("bad note".into())),
            Some(note) => {
                self.write(format!("{} {}", self.2, String::from_utf8_lossy(&note.value))).await
            }
        }
    }

    async fn report_quarantine(&mut self, error: &str, _: Duration) -> Result<(), ReconcileError> {
        self.write(format!("quarantined: {error}")).await.map(drop)
    }
}

#[tokio::test(start_paused = true)]
async fn dummy_kind_is_claimed_fenced_woken_quarantined_and_released() {
    static FENCED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let cluster = Cluster::new(0).await;
    let store = Arc::new(cluster.store.with_faults(Arc::new(|request: &Request<'_>| {
        if let Request::Txn(ops) = request
            && ops.iter().any(|op| op.key.starts_with("note_status/"))
        {
            FENCED[usize::from(ops[0].verb == Verb::CheckSession)].fetch_add(1, Ordering::SeqCst);
        }
        Fate::DELIVER
    })));
    let (settings, env) = cluster.settings("f1", "team=a", store);
    let kind = NoteKind(ControllerContext::new(&settings, &env, &spec()));
    let farm = run(Farm::new(settings, env, vec![RegisteredKind::new(spec(), Arc::new(kind))]));
    let status = async || cluster.get("note_status/x").await.unwrap_or_default();
    let is = async |text: &str| within(5 * SECOND, text, async || status().await == text).await;

    cluster.put("labels/note/x", r#"{"team":"a"}"#).await;
    cluster.put("notes/x", "one").await;
    is("1 one").await;
    cluster.put("notes/x", "two").await;
    is("2 two").await;
    cluster.put("rcfarm/bell/note/x", "").await;
    is("3 two").await;
    cluster.put("notes/x", "bad").await;
    is("quarantined: bad note").await;
    let [unfenced, fenced] = FENCED.each_ref().map(|count| count.load(Ordering::SeqCst));
    assert!(unfenced == 0 && fenced >= 4, "{unfenced} {fenced}");
    cluster.put("labels/note/x", r#"{"team":"b"}"#).await;
    within(5 * SECOND, "released", async || {
        cluster.get("lock/notes/x").await.is_none_or(|text| text.is_empty())
    })
    .await;
    farm.stop().await;
}
