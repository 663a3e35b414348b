//! Verdict on a history. Pure, so that tests can give it wrong histories.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rcfarm_api::Stored;
use rcfarm_api::audit::{Details, Logged, Retarget};
use rcfarm_api::ids::{FarmName, NodeName, PodId, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::decode_labels;
use rcfarm_api::rc::spec::{RC_ID, RcRecord};
use rcfarm_api::rc::status::RcStatus;
use rcfarm_store::{Entry, Index};
use uuid::Uuid;

use super::history::{History, Holder};
use super::load::{Write, WriteAnswer};

/// Content of Consul after the run.
#[derive(Debug, Default)]
pub struct Rest {
    /// Keys written by users: records, their labels, node labels.
    pub of_users: Vec<Entry>,
    /// Pod labels.
    pub labels: Vec<Entry>,
    pub intents: Vec<Entry>,
    pub statuses: Vec<Entry>,
    pub audit: Vec<Logged>,
}

/// Counts of checks, and violations.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Retargets and transfers in the log.
    pub transitions: usize,
    /// Versions of pod labels and intents.
    pub pods: usize,
    /// Versions of statuses.
    pub statuses: usize,
    /// Transitions and statuses with a recorded holder.
    pub holder_seen: usize,
    /// Acknowledged writes of users.
    pub applied: usize,
    /// Refused writes, and those that failed without effect.
    pub not_applied: usize,
    /// Writes with unknown result.
    pub unknown: usize,
    /// Of these, the applied ones.
    pub unknown_applied: usize,
    pub violations: Vec<String>,
}

/// Versions of each controller's record; `None`: deleted.
type Records = BTreeMap<RcId, BTreeMap<Index, Option<RcRecord>>>;

pub fn judge(history: &History, writes: &[Write], rest: &Rest) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.violations.extend(history.contradictions.iter().cloned());
    let records = verdict.users(writes, rest);
    let retargets = verdict.transitions(history, &records, &rest.audit);
    verdict.versions_of_pods(history, &retargets);
    verdict.chains(history);
    verdict.at_rest(rest);
    verdict
}

/// Controllers that are enabled without their pods, or whose status reports a problem.
pub fn unrest(of_users: &[Entry], labels: &[Entry], statuses: &[Entry]) -> Vec<String> {
    let mut pods: BTreeMap<RcId, i64> = BTreeMap::new();
    for entry in labels {
        if let Some(rc) = owner(&entry.value) {
            *pods.entry(rc).or_default() += 1;
        }
    }
    let mut restless = Vec::new();
    for entry in of_users.iter().filter(|entry| key::rcs().tail(&entry.key).is_some()) {
        let Ok(record) = RcRecord::decode(&entry.value) else {
            restless.push(format!("{} is no record", entry.key));
            continue;
        };
        let (id, want) = (record.id, record.replicas_desired);
        let has = pods.remove(&id).unwrap_or(0);
        let status = statuses.iter().find(|s| s.key == key::rc_status(id).as_str());
        let status = status.and_then(|s| RcStatus::decode(&s.value).ok()).unwrap_or_default();
        if !record.disabled && has != want {
            restless.push(format!("{id}: {has} pods instead of {want}"));
        } else if status.observed_index != entry.modify_index
            || (!record.disabled && !status.is_settled())
        {
            restless.push(format!("{id}: its status is not settled: {status:?}"));
        }
    }
    restless.extend(pods.keys().map(|rc| format!("{rc}: has pods and no record")));
    restless
}

/// Owner according to a pod's labels.
fn owner(labels: &Bytes) -> Option<RcId> {
    decode_labels(labels).ok()?.get(RC_ID)?.parse().ok()
}

impl Verdict {
    fn wrong(&mut self, what: String) {
        self.violations.push(what);
    }

    /// No lost update: acknowledged writes are in the log at their index, refused ones are not. The applied writes of
    /// each key replace one another without gaps, and the last one is in Consul.
    fn users(&mut self, writes: &[Write], rest: &Rest) -> Records {
        let logged: BTreeMap<Uuid, Index> = rest.audit.iter().map(|l| (l.id, l.index)).collect();
        let mut chains: BTreeMap<&str, BTreeMap<Index, (Index, Option<&Bytes>)>> = BTreeMap::new();
        for write in writes {
            let found = logged.get(&write.audit).copied();
            match (write.told, found) {
                (WriteAnswer::Applied(at), Some(index)) if at == index => self.applied += 1,
                (WriteAnswer::Applied(at), _) => self.wrong(format!(
                    "lost: {} {} was acknowledged at {at}, the log has it at {found:?}",
                    write.what, write.audit
                )),
                (WriteAnswer::Unknown, _) => {
                    self.unknown += 1;
                    self.unknown_applied += usize::from(found.is_some());
                }
                (WriteAnswer::Refused | WriteAnswer::NotApplied, None) => self.not_applied += 1,
                (WriteAnswer::Refused | WriteAnswer::NotApplied, Some(index)) => {
                    self.wrong(format!(
                        "{} {} was said not to be applied ({:?}), and was at {index}",
                        write.what, write.audit, write.told
                    ))
                }
            }
            let Some(index) = found else { continue };
            for effect in &write.effects {
                let chain = chains.entry(effect.key.as_str()).or_default();
                chain.insert(index, (effect.base, effect.value.as_ref()));
            }
        }
        let mut expected: BTreeMap<&str, (Index, &Bytes)> = BTreeMap::new();
        for (key, chain) in &chains {
            for (index, (base, value)) in chain {
                let stood = expected.get(key).copied();
                let version = stood.map_or(Index::ZERO, |(version, _)| version);
                // Consul applies a `delete-cas` of a key that is gone: what a second delete read came from a server that lags.
                let is_gone = value.is_none() && stood.is_none();
                if *base != version && !is_gone {
                    self.wrong(format!(
                        "lost: {key} at {index} replaced {base}, but {version} stood there"
                    ));
                }
                match *value {
                    // Writing an equal value changes no index.
                    Some(value) if stood.is_some_and(|(_, same)| same == value) => {}
                    Some(value) => drop(expected.insert(key, (*index, value))),
                    None => drop(expected.remove(key)),
                }
            }
        }
        self.last_writes_stand(&expected, rest);
        records(&chains)
    }

    fn last_writes_stand<'l>(
        &mut self,
        expected: &BTreeMap<&'l str, (Index, &'l Bytes)>,
        rest: &'l Rest,
    ) {
        let stands = |entry: &'l Entry| (entry.key.as_str(), (entry.modify_index, &entry.value));
        let stands: BTreeMap<&str, (Index, &Bytes)> = rest.of_users.iter().map(stands).collect();
        for key in expected.keys().chain(stands.keys()).collect::<BTreeSet<_>>() {
            let (found, expected) = (stands.get(key), expected.get(key));
            if found != expected {
                self.wrong(format!("lost: {key} is {found:?}, users last wrote {expected:?}"));
            }
        }
    }

    /// Changes by farms match the record at that index, and were made by the lock's holder. Returns the retargets per
    /// index.
    fn transitions(
        &mut self,
        history: &History,
        records: &Records,
        audit: &[Logged],
    ) -> BTreeMap<Index, Vec<(RcId, Retarget)>> {
        let mut retargets: BTreeMap<Index, Vec<(RcId, Retarget)>> = BTreeMap::new();
        for Logged { id, index, record } in audit {
            let details = match record.details() {
                Ok(details) => details,
                Err(error) => {
                    self.wrong(format!("audit record {id}: {error}"));
                    continue;
                }
            };
            let (rc, farm) = match &details {
                Details::Retarget(d) => (d.replication_controller_id, &d.farm),
                Details::NodeTransferStart(d)
                | Details::NodeTransferCompletion(d)
                | Details::NodeTransferRollback(d) => (d.replication_controller_id, &d.farm),
                _ => continue,
            };
            self.transitions += 1;
            self.by_holder(history, rc, *index, farm.as_ref(), "transition");
            let was = records.get(&rc).and_then(|r| r.range(..index).next_back());
            // Undoing a transfer releases an allocation and leaves pods unchanged.
            let is_undone = matches!(details, Details::NodeTransferRollback(_));
            match was.and_then(|(_, record)| record.as_ref()) {
                None => self.wrong(format!("{rc} at {index}: changed without a record")),
                Some(record) if record.disabled && !is_undone => {
                    self.wrong(format!("{rc} at {index}: changed while disabled"));
                }
                Some(record) => self.follows(*index, record, &details),
            }
            if let Details::Retarget(retarget) = details {
                let same = retargets.entry(*index).or_default();
                if same.iter().any(|(other, _)| *other == rc) {
                    self.violations.push(format!("{rc} at {index}: two records of one change"));
                }
                same.push((rc, retarget));
            }
        }
        retargets
    }

    fn follows(&mut self, index: Index, record: &RcRecord, details: &Details) {
        let Details::Retarget(d) = details else { return };
        let (rc, want) = (record.id, record.replicas_desired);
        if d.desired_after != want {
            self.wrong(format!("{rc} at {index}: for {} pods, asked were {want}", d.desired_after));
        }
        let count = i64::try_from(d.count).unwrap();
        if d.nodes_removed.is_empty() && !d.nodes_added.is_empty() && count > want {
            self.wrong(format!("{rc} at {index}: {count} pods, asked were {want}"));
        }
        if d.nodes_added.is_empty() && !d.nodes_removed.is_empty() && count < want {
            self.wrong(format!("{rc} at {index}: {count} pods left, asked were {want}"));
        }
    }

    fn by_holder(
        &mut self,
        history: &History,
        rc: RcId,
        index: Index,
        farm: Option<&FarmName>,
        what: &str,
    ) {
        let writer = farm.map_or("nobody", FarmName::as_str);
        match history.holder(rc, index) {
            Holder::Farm(holder) => {
                self.holder_seen += 1;
                if holder != writer {
                    self.wrong(format!(
                        "{what} of {rc} at {index} by {writer}, while {holder} held the lock"
                    ));
                }
            }
            Holder::Unseen => {}
        }
    }

    /// Each version of a pod's labels and intent was written with an audit record of the pod.
    fn versions_of_pods(
        &mut self,
        history: &History,
        retargets: &BTreeMap<Index, Vec<(RcId, Retarget)>>,
    ) {
        let explains =
            |rc: Option<RcId>, node: &NodeName, pod: &PodId, retarget: &(RcId, Retarget)| {
                let (whose, d) = retarget;
                rc.is_none_or(|rc| rc == *whose)
                    && d.pod_id == *pod
                    && d.nodes_added.iter().chain(&d.nodes_repaired).any(|named| named == node)
            };
        let trees =
            [(key::labels(LabelKind::Pod), &history.labels), (key::intents(), &history.intents)];
        for (prefix, versions) in trees {
            for ((key, index), value) in versions {
                self.pods += 1;
                let Some((node, pod)) = key::node_and_pod(&prefix, key) else {
                    self.wrong(format!("{key} at {index} names no pod"));
                    continue;
                };
                let rc = if prefix == key::intents() { None } else { owner(value) };
                let same = retargets.get(index).map(Vec::as_slice).unwrap_or_default();
                if !same.iter().any(|retarget| explains(rc, &node, &pod, retarget)) {
                    self.wrong(format!("{key} at {index}: no audit record of that index names it"));
                }
            }
        }
    }

    /// Revisions of a status only grow.
    fn chains(&mut self, history: &History) {
        for (rc, versions) in &history.statuses {
            let mut before = 0;
            for (index, status) in versions {
                self.statuses += 1;
                let farm = status.owner.as_ref().map(|owner| &owner.farm);
                self.by_holder(history, *rc, *index, farm, "status");
                if status.revision <= before {
                    let revision = status.revision;
                    self.wrong(format!("{rc} at {index}: revision {revision} after {before}"));
                }
                before = status.revision;
            }
        }
    }

    fn at_rest(&mut self, rest: &Rest) {
        self.violations.extend(unrest(&rest.of_users, &rest.labels, &rest.statuses));
        let pods = |prefix, entries: &[Entry]| -> BTreeSet<(NodeName, PodId)> {
            entries.iter().filter_map(|entry| key::node_and_pod(&prefix, &entry.key)).collect()
        };
        let labels = pods(key::labels(LabelKind::Pod), &rest.labels);
        let intents = pods(key::intents(), &rest.intents);
        for (node, pod) in labels.symmetric_difference(&intents) {
            self.wrong(format!("pod {pod} on {node} has labels or an intent, and not both"));
        }
    }
}

/// Versions of records among the users' writes.
fn records(chains: &BTreeMap<&str, BTreeMap<Index, (Index, Option<&Bytes>)>>) -> Records {
    let mut records = Records::new();
    for (key, chain) in chains {
        let Some(rc) = key::rcs().tail(key).and_then(|id| id.parse().ok()) else { continue };
        let record = |value: &Option<&Bytes>| RcRecord::decode(value.as_deref()?).ok();
        let versions = chain.iter().map(|(index, (_, value))| (*index, record(value)));
        records.insert(rc, versions.collect());
    }
    records
}
