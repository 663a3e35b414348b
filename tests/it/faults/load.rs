//! Users who scale, disable, create, delete and relabel, each change by CAS. They keep a journal of the answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rcfarm_api::Stored;
use rcfarm_api::Timestamp;
use rcfarm_api::audit::{Actor, AuditRecord, ControllerChange, Details, LabelsChange};
use rcfarm_api::ids::{NodeName, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{Labels, decode_labels, encode_labels};
use rcfarm_api::rc::spec::{RcRecord, RcStrategy};
use rcfarm_api::rc::status::RcStatus;
use rcfarm_store::time::IdSource;
use rcfarm_store::{Entry, Index, Key, Op, Prefix, Query, Store, StoreError, Txn, TxnOutcome};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// Number of nodes. At most [`NODES_OUT`], and one per further user, are out of the pool.
pub const NODES: usize = 10;
const NODES_OUT: usize = 2;
/// Low enough that every controller can always be scheduled.
const MOST_REPLICAS: u64 = 6;
/// Number of controllers at any time.
const CONTROLLERS: std::ops::RangeInclusive<usize> = 4..=10;

/// One write of a user.
#[derive(Debug, Clone)]
pub struct Write {
    /// Purpose.
    pub what: &'static str,
    /// Audit record in the same transaction; it proves that the write was applied.
    pub audit: Uuid,
    /// Effects on the keys that users write.
    pub effects: Vec<Effect>,
    /// Answer to the user.
    pub told: WriteAnswer,
}

/// Effect of a write on one key.
#[derive(Debug, Clone)]
pub struct Effect {
    pub key: Key,
    /// Version that it replaces; 0: absent.
    pub base: Index,
    /// New value; `None`: deleted.
    pub value: Option<Bytes>,
}

/// Answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAnswer {
    /// Applied at this index.
    Applied(Index),
    /// Refused: not applied.
    Refused,
    /// Failed, and not applied.
    NotApplied,
    /// Failed, result unknown.
    Unknown,
}

/// All writes of all users.
pub type Journal = Arc<Mutex<Vec<Write>>>;

/// One user; changes to another server after a failure.
pub struct User {
    stores: Vec<Arc<dyn Store>>,
    at: usize,
    ids: IdSource,
    name: String,
    journal: Journal,
}

/// Timeout of a request; its result is unknown then.
const LIMIT: Duration = Duration::from_secs(3);

impl User {
    pub fn new(n: usize, stores: Vec<Arc<dyn Store>>, ids: IdSource, journal: Journal) -> User {
        User { at: n % stores.len(), stores, ids, name: format!("user-{n}"), journal }
    }

    /// Makes one change after the other until the task is told to stop.
    pub async fn work(mut self, stop: tokio_util::sync::CancellationToken) {
        while !stop.is_cancelled() {
            if let Err(_elsewhere) = self.change_something().await {
                self.at = (self.at + 1) % self.stores.len();
            }
            sleep(Duration::from_millis(40 + self.ids.below(120))).await;
        }
    }

    /// Creates all nodes in the pool. No faults are injected yet, so this must succeed.
    pub async fn make_nodes(&mut self) {
        for n in 0..NODES {
            let node: NodeName = format!("n{n:02}").parse().unwrap();
            while self.read(&key::node_labels(&node)).await.is_ok_and(|entry| entry.is_none()) {
                let labels = [("pool".to_owned(), "web".to_owned())].into();
                let _ = self.relabel(&key::node_labels(&node), None, labels).await;
            }
        }
    }

    /// After the faults: puts every node back into the pool and enables most controllers.
    pub async fn tidy_up(&mut self) -> Result<(), StoreError> {
        for entry in self.list(&key::labels(LabelKind::Node)).await? {
            let labels = decode_labels(&entry.value).unwrap();
            if labels["pool"] != "web" {
                let key = Key::parse(&entry.key).unwrap();
                let pool = [("pool".to_owned(), "web".to_owned())].into();
                self.relabel(&key, Some(&entry), pool).await?;
            }
        }
        Ok(())
    }

    async fn change_something(&mut self) -> Result<(), StoreError> {
        let records = self.list(&key::rcs()).await?;
        let rng = self.ids.below(100);
        if records.len() < *CONTROLLERS.start() || (rng < 8 && records.len() < *CONTROLLERS.end()) {
            return self.create().await;
        }
        let entry = records[self.pick(records.len())].clone();
        let record = RcRecord::decode(&entry.value).expect("users write it alone");
        match rng {
            0..8 => Ok(()),
            8..50 if record.disabled => self.switch(&entry, record).await,
            8..50 => self.scale(&entry, record).await,
            50..58 => self.switch(&entry, record).await,
            58..75 => self.move_node().await,
            75..87 => self.relabel_controller(record.id).await,
            _ if record.replicas_desired == 0 && !record.disabled => {
                self.delete(&entry, record).await
            }
            // Pods are removed before the record.
            _ if records.len() > *CONTROLLERS.start() && !record.disabled => {
                self.set_count(&entry, record, 0).await
            }
            _ => Ok(()),
        }
    }

    async fn create(&mut self) -> Result<(), StoreError> {
        let id = RcId(self.ids.uuid());
        let strategy =
            if self.ids.below(2) == 0 { RcStrategy::Static } else { RcStrategy::Dynamic };
        let record = RcRecord {
            id,
            // A pod id of its own, so that controllers do not conflict.
            manifest: format!("id: pod-{}\n", &id.to_string()[..8]),
            node_selector: "pool=web".to_owned(),
            pod_labels: None,
            replicas_desired: self.count(),
            disabled: false,
            allocation_strategy: strategy.as_str().to_owned(),
            other: serde_json::Map::new(),
        };
        let labels: Labels = [("tier".to_owned(), "web".to_owned())].into();
        let new = |key, value| Effect { key, base: Index::ZERO, value: Some(value) };
        let effects = vec![
            new(key::rc(id), record.encode()),
            new(key::rc_labels(id), encode_labels(&labels)),
        ];
        let about = ControllerChange { desired_before: None, ..self.about(&record) };
        self.commit("create", effects, vec![], Details::ControllerCreated(about)).await
    }

    async fn scale(&mut self, entry: &Entry, record: RcRecord) -> Result<(), StoreError> {
        let count = self.count();
        self.set_count(entry, record, count).await
    }

    async fn set_count(
        &mut self,
        entry: &Entry,
        mut record: RcRecord,
        count: i64,
    ) -> Result<(), StoreError> {
        let mut about = self.about(&record);
        record.replicas_desired = count;
        about.desired_after = Some(count);
        let effect = replaces(entry, record.encode());
        self.commit("scale", vec![effect], vec![], Details::ControllerScaled(about)).await
    }

    async fn switch(&mut self, entry: &Entry, mut record: RcRecord) -> Result<(), StoreError> {
        record.disabled = !record.disabled;
        let about = self.about(&record);
        let details = match record.disabled {
            true => Details::ControllerDisabled(about),
            false => Details::ControllerEnabled(about),
        };
        self.commit("switch", vec![replaces(entry, record.encode())], vec![], details).await
    }

    /// As `rcfarm rc delete`: only if the status reports no pods.
    async fn delete(&mut self, entry: &Entry, record: RcRecord) -> Result<(), StoreError> {
        let id = record.id;
        let Some(status) = self.read(&key::rc_status(id)).await? else { return Ok(()) };
        let status = RcStatus::decode(&status.value).unwrap();
        if status.observed_index != entry.modify_index || status.replicas.current > 0 {
            return Ok(());
        }
        let Some(labels) = self.read(&key::rc_labels(id)).await? else { return Ok(()) };
        let gone = |key, entry: &Entry| Effect { key, base: entry.modify_index, value: None };
        let effects = vec![gone(key::rc(id), entry), gone(key::rc_labels(id), &labels)];
        let more = vec![Op::Delete { key: key::rc_status(id) }];
        let about = ControllerChange { desired_after: None, ..self.about(&record) };
        self.commit("delete", effects, more, Details::ControllerDeleted(about)).await
    }

    /// Takes a node out of the pool, or puts it back.
    async fn move_node(&mut self) -> Result<(), StoreError> {
        let nodes = self.list(&key::labels(LabelKind::Node)).await?;
        let is_out = |entry: &&Entry| decode_labels(&entry.value).unwrap()["pool"] != "web";
        let out: Vec<&Entry> = nodes.iter().filter(is_out).collect();
        let (entry, pool) = if out.len() >= NODES_OUT {
            (out[self.pick(out.len())], "web")
        } else {
            let entry = &nodes[self.pick(nodes.len())];
            (entry, if is_out(&entry) { "web" } else { "drained" })
        };
        let key = Key::parse(&entry.key).unwrap();
        self.relabel(&key, Some(entry), [("pool".to_owned(), pool.to_owned())].into()).await
    }

    /// Toggles the label by which the last farm ignores a controller.
    async fn relabel_controller(&mut self, id: RcId) -> Result<(), StoreError> {
        let Some(entry) = self.read(&key::rc_labels(id)).await? else { return Ok(()) };
        let labels = decode_labels(&entry.value).unwrap();
        let tier = if labels["tier"] == "web" { "batch" } else { "web" };
        let labels = [("tier".to_owned(), tier.to_owned())].into();
        self.relabel(&key::rc_labels(id), Some(&entry), labels).await
    }

    async fn relabel(
        &mut self,
        key: &Key,
        entry: Option<&Entry>,
        labels: Labels,
    ) -> Result<(), StoreError> {
        let base = entry.map_or(Index::ZERO, |entry| entry.modify_index);
        let value = Some(encode_labels(&labels));
        let (kind, id) = key.as_str().rsplit_once('/').unwrap();
        let details = Details::LabelsChanged(LabelsChange {
            kind: kind.trim_start_matches("labels/").to_owned(),
            id: id.to_owned(),
            actor: Actor::User { name: self.name.clone() },
            reason: "Requested".to_owned(),
            set: labels,
            removed: Labels::new(),
        });
        let effects = vec![Effect { key: key.clone(), base, value }];
        self.commit("relabel", effects, vec![], details).await
    }

    /// Sends a write once and records the answer. A retry starts with a new read.
    async fn commit(
        &mut self,
        what: &'static str,
        effects: Vec<Effect>,
        more: Vec<Op>,
        details: Details,
    ) -> Result<(), StoreError> {
        let now = Timestamp::now();
        let audit = self.ids.ordered_uuid(now);
        let mut txn = Txn::by_user();
        txn.extend(effects.iter().map(|Effect { key, base, value }| match value.clone() {
            Some(value) => Op::Cas { key: key.clone(), value, flags: 0, index: *base },
            None => Op::DeleteCas { key: key.clone(), index: *base },
        }));
        txn.extend(more);
        txn.push(rcfarm_store::audit_op(audit, &AuditRecord::new(&details, now)));
        let place = {
            let mut journal = self.journal.lock().unwrap();
            journal.push(Write { what, audit, effects, told: WriteAnswer::Unknown });
            journal.len() - 1
        };
        let answer = limited(self.stores[self.at].txn(txn.ops())).await;
        let told = match &answer {
            Ok(TxnOutcome::Committed { index, .. }) => WriteAnswer::Applied(*index),
            Ok(TxnOutcome::Refused(_)) => WriteAnswer::Refused,
            Err(error) if error.outcome_unknown() => WriteAnswer::Unknown,
            Err(_) => WriteAnswer::NotApplied,
        };
        self.journal.lock().unwrap()[place].told = told;
        answer.map(drop)
    }

    fn about(&self, record: &RcRecord) -> ControllerChange {
        ControllerChange {
            replication_controller_id: record.id,
            pod_id: Some(format!("pod-{}", &record.id.to_string()[..8]).parse().unwrap()),
            availability_zone: String::new(),
            cluster_name: String::new(),
            actor: Actor::User { name: self.name.clone() },
            reason: "Requested".to_owned(),
            desired_before: Some(record.replicas_desired),
            desired_after: Some(record.replicas_desired),
            record: None,
            changed: Vec::new(),
            orphans: Vec::new(),
        }
    }

    fn count(&self) -> i64 {
        i64::try_from(self.ids.below(MOST_REPLICAS + 1)).unwrap()
    }

    fn pick(&self, n: usize) -> usize {
        usize::try_from(self.ids.below(n as u64)).unwrap()
    }

    async fn read(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        Ok(limited(self.stores[self.at].get(key, Query::PLAIN)).await?.value)
    }

    async fn list(&self, prefix: &Prefix) -> Result<Vec<Entry>, StoreError> {
        Ok(limited(self.stores[self.at].list(prefix, Query::PLAIN)).await?.value)
    }
}

fn replaces(entry: &Entry, value: Bytes) -> Effect {
    let key = Key::parse(&entry.key).unwrap();
    Effect { key, base: entry.modify_index, value: Some(value) }
}

async fn limited<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let limit = timeout(LIMIT, request).await;
    limit.unwrap_or(Err(StoreError::Timeout { after: LIMIT }))
}
