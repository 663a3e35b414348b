//! Reads reports and intents of pods from Consul, to prove or refute what the agent assumes ([`super::proof`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;
use tracing::debug;

use super::LONGEST_PAUSE;
use super::event::AgentEvent;
use super::proof::{Expected, ProofRead, ProofVerdict, is_witness, verdict};
use super::reported::{ChangedReport, Reported};
use rcfarm_api::Stored;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::node::status::PodStatus;
use rcfarm_api::{backoff, key};
use rcfarm_store::{Entry, Index, Key, Question, Store, StoreError, TxnLimits, TxnOutcome};

/// Reads for one node.
pub(super) struct ProofCheck {
    pub(super) store: Arc<dyn Store>,
    pub(super) node: NodeName,
    pub(super) events: UnboundedSender<AgentEvent>,
}

/// A report in Consul, as far as it may be read.
enum FoundReport {
    Absent,
    Hidden,
    There(Box<PodStatus>, Index),
}

impl ProofCheck {
    /// Reads until Consul answers, and sends a verdict for each pod.
    pub(super) async fn prove(self, pods: BTreeMap<PodId, Expected>) {
        let mut failures = 0;
        loop {
            match self.verdicts(&pods).await {
                Ok(verdicts) => {
                    let _ = self.events.send(AgentEvent::Proved(verdicts));
                    return;
                }
                Err(error) => {
                    failures += 1;
                    debug!(%error, failures, "cannot read whether pods are still intended");
                    sleep(backoff(Duration::from_millis(100), LONGEST_PAUSE, failures)).await;
                }
            }
        }
    }

    async fn verdicts(
        &self,
        pods: &BTreeMap<PodId, Expected>,
    ) -> Result<BTreeMap<PodId, ProofVerdict>, StoreError> {
        let mut found = self.reports(pods.keys()).await?;
        let mut verdicts = BTreeMap::new();
        let ids: Vec<&PodId> = pods.keys().collect();
        for some in ids.chunks(TxnLimits::default().ops / 2) {
            let mut questions = Vec::new();
            let mut asked = Vec::new();
            for id in some {
                let witness = match found.remove(*id) {
                    Some(FoundReport::Hidden) => {
                        verdicts.insert((*id).clone(), ProofVerdict::Unclear);
                        continue;
                    }
                    Some(FoundReport::There(report, index)) if is_witness(&report, &pods[*id]) => {
                        let key = key::pod_status(id, &self.node);
                        questions.push(Question::IsAt { key, index });
                        Some(questions.len() - 1)
                    }
                    _ => None,
                };
                questions.push(Question::Get { key: key::intent(&self.node, id) });
                asked.push((*id, witness, questions.len() - 1));
            }
            let refused = self.refused(&questions).await?;
            for (id, witness, intent) in asked {
                let shown = ProofRead {
                    has_witness: witness.is_some(),
                    report_changed: witness.is_some_and(|op| refused.contains(&op)),
                    intent_absent: refused.contains(&intent),
                };
                verdicts.insert(id.clone(), verdict(shown));
            }
        }
        Ok(verdicts)
    }

    /// Positions of the questions that Consul refuses: all are answered from one state.
    async fn refused(&self, questions: &[Question]) -> Result<BTreeSet<usize>, StoreError> {
        if questions.is_empty() {
            return Ok(BTreeSet::new());
        }
        Ok(match self.store.ask(questions).await? {
            TxnOutcome::Committed { .. } => BTreeSet::new(),
            TxnOutcome::Refused(why) => why.iter().map(|refusal| refusal.op).collect(),
        })
    }

    async fn reports(
        &self,
        pods: impl Iterator<Item = &PodId>,
    ) -> Result<BTreeMap<PodId, FoundReport>, StoreError> {
        let keys: Vec<(PodId, Key)> =
            pods.map(|pod| (pod.clone(), key::pod_status(pod, &self.node))).collect();
        let mut found = BTreeMap::new();
        for some in keys.chunks(TxnLimits::default().ops) {
            let gets: Vec<Question> =
                some.iter().map(|(_, key)| Question::Get { key: key.clone() }).collect();
            let (absent, entries) = match self.store.ask(&gets).await? {
                TxnOutcome::Committed { entries, .. } => (BTreeSet::new(), entries),
                TxnOutcome::Refused(why) => {
                    let absent: BTreeSet<usize> = why.iter().map(|refusal| refusal.op).collect();
                    let there = gets.iter().enumerate().filter(|(op, _)| !absent.contains(op));
                    let there: Vec<Question> = there.map(|(_, get)| get.clone()).collect();
                    (absent, self.entries(&there).await?)
                }
            };
            for (op, (pod, key)) in some.iter().enumerate() {
                let entry = entries.iter().find(|entry| entry.key == key.as_str());
                let report = match entry {
                    _ if absent.contains(&op) => FoundReport::Absent,
                    None => FoundReport::Hidden,
                    Some(entry) => match PodStatus::decode(&entry.value) {
                        Ok(report) => FoundReport::There(Box::new(report), entry.modify_index),
                        Err(_) => FoundReport::Absent,
                    },
                };
                found.insert(pod.clone(), report);
            }
        }
        Ok(found)
    }

    /// The entries of keys that were there a moment ago. None, if one has vanished since.
    async fn entries(&self, questions: &[Question]) -> Result<Vec<Entry>, StoreError> {
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        Ok(match self.store.ask(questions).await? {
            TxnOutcome::Committed { entries, .. } => entries,
            TxnOutcome::Refused(_) => Vec::new(),
        })
    }

    /// Sends which reports are no longer as this agent wrote them, in one of their keys: somebody changed or deleted it,
    /// or a snapshot was restored.
    pub(super) async fn compare(self, reports: BTreeMap<PodId, Reported>) {
        let mut changed = BTreeMap::new();
        let reports: Vec<(PodId, Reported)> = reports.into_iter().collect();
        for some in reports.chunks(TxnLimits::default().ops / Reported::KEYS) {
            let keys = some.iter().flat_map(|(pod, report)| report.keys(pod, &self.node));
            let keys: Vec<(&PodId, &Reported, Key, Index)> = keys.collect();
            let is_at = |(_, _, key, index): &(_, _, Key, Index)| Question::IsAt {
                key: key.clone(),
                index: *index,
            };
            let questions: Vec<Question> = keys.iter().map(is_at).collect();
            match self.refused(&questions).await {
                Ok(refused) => {
                    for (pod, written, key, _) in refused.iter().filter_map(|op| keys.get(*op)) {
                        let new = ChangedReport { written: (*written).clone(), status: false };
                        let found = changed.entry((*pod).clone()).or_insert(new);
                        found.status |= *key == key::pod_status(pod, &self.node);
                    }
                }
                Err(error) => debug!(%error, "the reports of pods cannot be compared"),
            }
        }
        if !changed.is_empty() {
            let _ = self.events.send(AgentEvent::Unreported(changed));
        }
    }
}
