//! A store below a configured prefix: adds it to the keys of requests and strips it from answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Answer, DeleteMode, Entry, Key, NewSession, Op, PodService, Prefix, PutMode, Query, Question,
    Reader, RegisteredService, ServiceHealth, SessionInfo, Store, StoreError, TtlService,
    TxnOutcome,
};
use rcfarm_api::ids::SessionId;
use rcfarm_api::node::Health;

/// A store whose keys all lie below one prefix. Sessions and services are not affected.
#[derive(Clone)]
pub struct Prefixed {
    inner: Arc<dyn Store>,
    root: Prefix,
}

impl Prefixed {
    /// `store` below `root`. An empty `root` returns `store` itself.
    #[expect(clippy::new_ret_no_self, reason = "an empty root needs no wrapper")]
    pub fn new(store: Arc<dyn Store>, root: Prefix) -> Arc<dyn Store> {
        if root.as_str().is_empty() {
            return store;
        }
        Arc::new(Prefixed { inner: store, root })
    }

    fn strip(&self, key: String) -> String {
        match self.root.tail(&key) {
            Some(tail) => tail.to_owned(),
            None => key,
        }
    }

    fn entry(&self, mut entry: Entry) -> Entry {
        entry.key = self.strip(entry.key);
        entry
    }

    fn outcome(&self, outcome: TxnOutcome) -> TxnOutcome {
        match outcome {
            TxnOutcome::Committed { index, entries } => TxnOutcome::Committed {
                index,
                entries: entries.into_iter().map(|e| self.entry(e)).collect(),
            },
            refused @ TxnOutcome::Refused(_) => refused,
        }
    }

    fn op(&self, op: &Op) -> Op {
        let mut op = op.clone();
        match &mut op {
            Op::GetTree { prefix } | Op::DeleteTree { prefix } => {
                *prefix = self.root.join_prefix(prefix);
            }
            Op::Set { key, .. }
            | Op::Cas { key, .. }
            | Op::Lock { key, .. }
            | Op::Unlock { key, .. }
            | Op::Get { key }
            | Op::CheckIndex { key, .. }
            | Op::CheckSession { key, .. }
            | Op::CheckNotExists { key }
            | Op::Delete { key }
            | Op::DeleteCas { key, .. } => *key = self.root.join(key),
        }
        op
    }
}

#[async_trait]
impl Reader for Prefixed {
    async fn get(&self, key: &Key, query: Query) -> Result<Answer<Option<Entry>>, StoreError> {
        let a = self.inner.get(&self.root.join(key), query).await?;
        let value = a.value.map(|e| self.entry(e));
        Ok(Answer { value, index: a.index, filtered: a.filtered })
    }

    async fn list(&self, prefix: &Prefix, query: Query) -> Result<Answer<Vec<Entry>>, StoreError> {
        let a = self.inner.list(&self.root.join_prefix(prefix), query).await?;
        let value = a.value.into_iter().map(|e| self.entry(e)).collect();
        Ok(Answer { value, index: a.index, filtered: a.filtered })
    }

    async fn keys(
        &self,
        prefix: &Prefix,
        separator: Option<&str>,
        query: Query,
    ) -> Result<Answer<Vec<String>>, StoreError> {
        let a = self.inner.keys(&self.root.join_prefix(prefix), separator, query).await?;
        let value = a.value.into_iter().map(|k| self.strip(k)).collect();
        Ok(Answer { value, index: a.index, filtered: a.filtered })
    }

    async fn ask(&self, questions: &[Question]) -> Result<TxnOutcome, StoreError> {
        let below = |question: &Question| match question.clone() {
            Question::Get { key } => Question::Get { key: self.root.join(&key) },
            Question::IsAt { key, index } => Question::IsAt { key: self.root.join(&key), index },
        };
        let questions: Vec<Question> = questions.iter().map(below).collect();
        Ok(self.outcome(self.inner.ask(&questions).await?))
    }

    async fn session(&self, id: &SessionId) -> Result<Answer<Option<SessionInfo>>, StoreError> {
        self.inner.session(id).await
    }

    async fn sessions(&self) -> Result<Answer<Vec<SessionInfo>>, StoreError> {
        self.inner.sessions().await
    }

    async fn service_health(
        &self,
        service: &str,
    ) -> Result<Answer<Vec<ServiceHealth>>, StoreError> {
        self.inner.service_health(service).await
    }

    async fn leader(&self) -> Result<String, StoreError> {
        self.inner.leader().await
    }
}

#[async_trait]
impl Store for Prefixed {
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        flags: u64,
        mode: PutMode,
    ) -> Result<bool, StoreError> {
        self.inner.put(&self.root.join(key), value, flags, mode).await
    }

    async fn delete(&self, key: &Key, mode: DeleteMode) -> Result<bool, StoreError> {
        self.inner.delete(&self.root.join(key), mode).await
    }

    async fn delete_tree(&self, prefix: &Prefix) -> Result<(), StoreError> {
        self.inner.delete_tree(&self.root.join_prefix(prefix)).await
    }

    async fn txn(&self, ops: &[Op]) -> Result<TxnOutcome, StoreError> {
        let ops: Vec<Op> = ops.iter().map(|op| self.op(op)).collect();
        Ok(self.outcome(self.inner.txn(&ops).await?))
    }

    async fn txn_if(
        &self,
        ops: &[Op],
        may_send: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Option<TxnOutcome>, StoreError> {
        let ops: Vec<Op> = ops.iter().map(|op| self.op(op)).collect();
        Ok(self.inner.txn_if(&ops, may_send).await?.map(|outcome| self.outcome(outcome)))
    }

    async fn create_session(&self, new: &NewSession) -> Result<SessionId, StoreError> {
        self.inner.create_session(new).await
    }

    async fn renew_session(&self, id: &SessionId) -> Result<bool, StoreError> {
        self.inner.renew_session(id).await
    }

    async fn destroy_session(&self, id: &SessionId) -> Result<(), StoreError> {
        self.inner.destroy_session(id).await
    }

    async fn register_service(&self, service: &TtlService) -> Result<(), StoreError> {
        self.inner.register_service(service).await
    }

    async fn pass_check(&self, check: &str, note: &str) -> Result<bool, StoreError> {
        self.inner.pass_check(check, note).await
    }

    async fn pod_services(
        &self,
        id_prefix: &str,
    ) -> Result<BTreeMap<String, RegisteredService>, StoreError> {
        self.inner.pod_services(id_prefix).await
    }

    async fn register_pod_service(
        &self,
        service: &PodService,
        node_service: &str,
        health: Health,
    ) -> Result<(), StoreError> {
        self.inner.register_pod_service(service, node_service, health).await
    }

    async fn update_check(
        &self,
        check: &str,
        health: Health,
        note: &str,
    ) -> Result<bool, StoreError> {
        self.inner.update_check(check, health, note).await
    }

    async fn may_register(&self, service: &str) -> Result<bool, StoreError> {
        self.inner.may_register(service).await
    }

    async fn deregister_service(&self, id: &str) -> Result<(), StoreError> {
        self.inner.deregister_service(id).await
    }
}
