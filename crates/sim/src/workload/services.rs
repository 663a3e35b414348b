//! Writes of users to replication controllers: as the commands make them, and sometimes wrong ones.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::documents::{self, pod_id, rc_id, record, service};
use super::users::Workload;
use crate::facts::SimActor;
use crate::reached::{Occasion, met};
use rcfarm_api::Stored;
use rcfarm_api::audit::{self, AuditRecord, ControllerChange, Details};
use rcfarm_api::ids::NodeName;
use rcfarm_api::ids::{PodRef, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{decode_labels, encode_labels};
use rcfarm_api::rc::spec::{POD_ID, RC_ID, RcRecord};
use rcfarm_api::rc::update::{UpdateChoice, UpdateOrder};
use rcfarm_store::time::Clock;
use rcfarm_store::{DeleteMode, Entry, Index, NewSession, Op, PutMode, Store, TxnOutcome};

impl Workload {
    fn txn(&self, ops: &[Op]) -> bool {
        let done = self.checker.now(SimActor::User, self.consul.txn(ops));
        matches!(done, Ok(TxnOutcome::Committed { .. }))
    }

    pub(super) fn change(
        &self,
        n: usize,
        before: Option<i64>,
        after: Option<i64>,
    ) -> ControllerChange {
        ControllerChange {
            replication_controller_id: rc_id(n),
            pod_id: Some(pod_id(n)),
            availability_zone: String::new(),
            cluster_name: String::new(),
            actor: audit::Actor::User { name: "sim".to_owned() },
            reason: "UserRequest".to_owned(),
            desired_before: before,
            desired_after: after,
            record: None,
            changed: Vec::new(),
            orphans: Vec::new(),
        }
    }

    fn log(&self, details: &Details) -> Op {
        let now = self.clock.wall();
        rcfarm_store::audit_op(self.ids.ordered_uuid(now), &AuditRecord::new(details, now))
    }

    fn read(&self, n: usize) -> Option<RcRecord> {
        RcRecord::decode(&self.get(&key::rc(rc_id(n)))?.value).ok()
    }

    fn bell(&self, id: RcId) -> Op {
        let value = self.ids.uuid().to_string().into();
        Op::Set { key: key::rc_bell(id), value, flags: 0 }
    }

    /// Creates a record.
    pub fn create_rc(&self, n: usize) {
        self.create(&record(n), self.change(n, None, Some(record(n).replicas_desired)));
    }

    /// Creates a record with its audit record.
    pub(super) fn create(&self, record: &RcRecord, created: ControllerChange) {
        let (key, value) = (key::rc(record.id), record.encode());
        let put = Op::Set { key, value, flags: 0 };
        self.txn(&[put, self.log(&Details::ControllerCreated(created)), self.bell(record.id)]);
    }

    /// Changes a record if it is valid.
    fn edit_rc(&self, n: usize, how: impl FnOnce(&mut RcRecord)) {
        let Some(mut record) = self.read(n) else { return };
        let before = record.replicas_desired;
        how(&mut record);
        let scaled = self.change(n, Some(before), Some(record.replicas_desired));
        let put = Op::Set { key: key::rc(record.id), value: record.encode(), flags: 0 };
        let log = self.log(&Details::ControllerScaled(scaled));
        // Some users ring the doorbell, some do not.
        let bell = self.bell(record.id);
        let ops = [put, log, bell];
        self.txn(if self.ids.below(2) == 0 { &ops } else { &ops[..2] });
    }

    /// Sets the desired count.
    pub fn scale_rc(&self, n: usize, count: i64) {
        self.edit_rc(n, |record| record.replicas_desired = count);
    }

    /// Disables or enables.
    pub fn disable(&self, n: usize, disabled: bool) {
        self.edit_rc(n, |record| record.disabled = disabled);
    }

    /// Changes the node selector.
    pub fn select_nodes(&self, n: usize, selector: &str) {
        self.edit_rc(n, |record| record.node_selector = selector.to_owned());
    }

    /// Labels a record; the third one declares a minimum health.
    pub fn tier(&self, n: usize, tier: &str) {
        let least = if n == 2 { Some((key::MIN_HEALTH_LABEL, "2")) } else { None };
        let labels: BTreeMap<&str, &str> = [("tier", tier)].into_iter().chain(least).collect();
        let value = serde_json::to_vec(&labels).expect("labels encode");
        self.put(&key::rc_labels(rc_id(n)), value);
    }

    /// Writes a malformed record.
    pub fn malform_rc(&self, n: usize) {
        self.put(&key::rc(rc_id(n)), "{");
    }

    /// Writes malformed labels of a record.
    pub fn bad_labels(&self, n: usize) {
        self.put(&key::rc_labels(rc_id(n)), "[");
    }

    /// Repairs a record that is malformed, missing or disabled.
    pub fn mend_rc(&self, n: usize, tier: &str) {
        match self.read(n) {
            Some(record) if record.disabled => self.disable(n, false),
            Some(_) => {}
            None => self.create_rc(n),
        }
        let labels = self.get(&key::rc_labels(rc_id(n)));
        if labels.is_none_or(|labels| !labels.value.starts_with(b"{")) {
            self.tier(n, tier);
        }
    }

    /// Deletes a record by force: its pods stay.
    pub fn delete_rc(&self, n: usize) {
        let Some(record) = self.read(n) else { return };
        let mut deleted = self.change(n, Some(record.replicas_desired), None);
        let places = self.checker.look(|model, _| model.services.places(rc_id(n)));
        deleted.orphans = places.into_iter().map(|place| place.node).collect();
        let log = self.log(&Details::ControllerDeleted(deleted));
        self.txn(&[Op::Delete { key: key::rc(rc_id(n)) }, log]);
    }

    /// Relabels a pod to another record with the same pod id.
    pub fn give_pod(&self, from: usize, to: usize) {
        let (old, new) = (rc_id(from), rc_id(to));
        let places =
            self.checker.look(|model, _| (model.services.places(old), model.services.places(new)));
        let taken = |place: &&PodRef| places.1.iter().all(|other| other.node != place.node);
        let Some(PodRef { node, pod }) = places.0.iter().find(taken) else { return };
        let labels: BTreeMap<&str, String> =
            BTreeMap::from([(RC_ID, new.to_string()), (POD_ID, pod.to_string())]);
        let value = serde_json::to_vec(&labels).expect("labels encode");
        self.put(&key::pod_labels(node, pod), value);
        met(Occasion::PodGivenAway);
    }

    /// Deletes an intent of a record's pod.
    pub fn drop_rc_intent(&self, n: usize) {
        let places = self.checker.look(|model, _| model.services.places(rc_id(n)));
        let Some(PodRef { node, pod }) = places.first() else { return };
        let key = key::intent(node, pod);
        let delete = self.consul.delete(&key, DeleteMode::Always);
        let _ = self.checker.now(SimActor::User, delete);
    }

    /// As `p2-rm --deallocate`: disables the record, deletes a pod, lowers the count and enables the record again, in one
    /// breath. Each is a write of its own, so that a farm may see any of them with older others.
    pub fn deallocate(&self, n: usize) {
        let places = self.checker.look(|model, _| model.services.places(rc_id(n)));
        let is_enabled = self.read(n).is_some_and(|record| !record.disabled);
        let Some(PodRef { node, pod }) = places.first().filter(|_| is_enabled) else { return };
        met(Occasion::Deallocated);
        self.disable(n, true);
        let keys = [key::pod_labels(node, pod), key::intent(node, pod)];
        self.txn(&keys.map(|key| Op::Delete { key }));
        self.edit_rc(n, |record| record.replicas_desired = (record.replicas_desired - 1).max(0));
        self.disable(n, false);
    }

    /// Relabels a node that has a pod of the record, so that no selector matches it, and lowers the count: two writes in
    /// one breath, of which a farm may see either first.
    pub fn scale_off_node(&self, node: &NodeName, n: usize) {
        let places = self.checker.look(|model, _| model.services.places(rc_id(n)));
        if places.iter().all(|place| place.node != *node) {
            return;
        }
        met(Occasion::ScaledOffNode);
        self.put(&key::node_labels(node), r#"{"pool":"none"}"#);
        self.edit_rc(n, |record| record.replicas_desired = (record.replicas_desired - 1).max(0));
    }

    /// Writes a record's manifest and the label that says in which order its pods get it, as `rcfarm rc update` does.
    pub fn update_manifest(&self, n: usize, version: usize) {
        let (record_key, labels_key) = (key::rc(rc_id(n)), key::rc_labels(rc_id(n)));
        let (Some(entry), labels) = (self.get(&record_key), self.get(&labels_key)) else { return };
        let Ok(mut record) = RcRecord::decode(&entry.value) else { return };
        let of_labels = labels.as_ref().map(|entry| decode_labels(&entry.value));
        let Ok(mut after) = of_labels.transpose().map(Option::unwrap_or_default) else { return };
        let plain = documents::record(n).manifest;
        record.manifest = format!("{plain}config: {{version: {version}}}\n");
        let choice = UpdateChoice::new(UpdateOrder::InOrder, &record.manifest);
        after.insert(key::UPDATE_LABEL.to_owned(), choice.to_string());
        let count = Some(record.replicas_desired);
        let log = self.log(&Details::ControllerScaled(self.change(n, count, count)));
        let cas = |key, value, entry: Option<&Entry>| {
            let index = entry.map_or(Index::ZERO, |entry| entry.modify_index);
            Op::Cas { key, value, flags: 0, index }
        };
        let record = cas(record_key, record.encode(), Some(&entry));
        let labels = cas(labels_key, encode_labels(&after), labels.as_ref());
        self.txn(&[record, labels, log, self.bell(rc_id(n))]);
    }

    /// Writes a pod by hand on a node where a record's pod may be placed.
    pub fn squat(&self, node: &NodeName, n: usize) {
        let place = PodRef { node: node.clone(), pod: pod_id(n) };
        let taken = self.checker.look(|model, _| model.services.pods.contains_key(&place));
        if !taken {
            let value = format!("{}by: hand\n", service(&place.pod, "")).into();
            let put =
                Op::Cas { key: key::intent(node, &place.pod), value, flags: 0, index: Index::ZERO };
            self.txn(&[put]);
        }
    }

    /// Removes it.
    pub fn unsquat(&self, node: &NodeName, n: usize) {
        let key = key::intent(node, &pod_id(n));
        if let Some(entry) = self.get(&key).filter(|entry| entry.value.ends_with(b"by: hand\n")) {
            let labels = key::pod_labels(node, &pod_id(n));
            let gone = Op::CheckNotExists { key: labels };
            self.txn(&[gone, Op::DeleteCas { key, index: entry.modify_index }]);
        }
    }

    /// Takes a record's mutation lock, or releases it.
    pub fn hold_lock(&self, n: usize, hold: bool) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if !hold {
            if let Some(session) = locks.remove(&n) {
                let _ = self.checker.now(SimActor::User, self.consul.destroy_session(&session));
            }
            return;
        }
        let new = NewSession::default();
        let Ok(session) = self.checker.now(SimActor::User, self.consul.create_session(&new)) else {
            return;
        };
        let key = key::rc_mutation_lock(rc_id(n));
        let mode = PutMode::Acquire(session.clone());
        let _ = self.checker.now(SimActor::User, self.consul.put(&key, "user".into(), 0, mode));
        locks.insert(n, session);
    }

    /// Writes keys that do not belong there.
    pub fn litter_rcs(&self) {
        for prefix in [key::rcs(), key::labels(LabelKind::Pod), key::intents(), key::rc_statuses()]
        {
            if let Some(key) = prefix.key_of("litter") {
                self.put(&key, "?");
            }
        }
    }
}
