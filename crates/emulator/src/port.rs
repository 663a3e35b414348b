//! Implementation of the port on the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::catalog::{NodeRegistration, ServiceRequest, Status};
use super::fault::{FaultOutcome, Request};
use super::index::Subject;
use super::model::MAX_VALUE;
use super::session::{SessionRequest, parse_id};
use super::txn::{KvOp, Verb};
use super::{Emulator, ModelStep};
use rcfarm_api::ids::SessionId;
use rcfarm_api::node::Health;
use rcfarm_store::{
    Answer, DeleteMode, Entry, Index, Key, NewSession, Op, PodService, Prefix, PutMode, Query,
    Question, Reader, RegisteredService, ServiceHealth, SessionInfo, Store, StoreError, TtlService,
    TxnOutcome,
};

impl Emulator {
    pub(super) async fn read_key(
        &self,
        key: &str,
        query: Query,
    ) -> Result<Answer<Option<Arc<Entry>>>, StoreError> {
        let subject = Subject::Key(key.to_owned());
        self.read(Request::Get(key), subject, query, |t| t.kv.get(key).cloned()).await
    }

    pub(super) async fn read_tree(
        &self,
        prefix: &str,
        query: Query,
    ) -> Result<Answer<Vec<Arc<Entry>>>, StoreError> {
        let subject = Subject::Prefix(prefix.to_owned());
        let select = |t: &super::Tables| t.kv.list(prefix).cloned().collect();
        self.read_many(Request::List(prefix), subject, query, select).await
    }

    pub(super) async fn read_keys(
        &self,
        prefix: &str,
        separator: Option<&str>,
        query: Query,
    ) -> Result<Answer<Vec<String>>, StoreError> {
        let subject = Subject::Prefix(prefix.to_owned());
        let select = |t: &super::Tables| t.kv.keys(prefix, separator);
        self.read_many(Request::Keys(prefix), subject, query, select).await
    }

    pub(super) async fn write_key(&self, op: KvOp) -> Result<bool, StoreError> {
        let fate = self.fate(&Request::Kv(&op));
        self.write(fate, move |model, now| model.kv(now, op)).await?
    }

    pub(super) async fn write_txn(&self, ops: Vec<KvOp>) -> Result<TxnOutcome, StoreError> {
        let fate = self.fate(&Request::Txn(&ops));
        self.write(fate, move |model, now| model.txn(now, ops)).await?
    }

    pub(super) async fn make_session(
        &self,
        mut request: SessionRequest,
    ) -> Result<SessionId, StoreError> {
        if request.node.is_empty() {
            request.node = self.node().to_owned();
        }
        let fate = self.fate(&Request::CreateSession(&request));
        self.write(fate, move |model, now| model.create_session(now, request)).await?
    }

    /// Renews a session. `None`: it is gone.
    pub(super) async fn renew(&self, id: &str) -> Result<Option<super::Session>, StoreError> {
        let session = parse_id(id)?;
        let fate = self.fate(&Request::RenewSession(id));
        if let FaultOutcome::Stale(writes) = fate.outcome {
            let then = |past: &super::Tables| past.sessions.get(&session).cloned();
            return Ok(self.look_back(fate, writes, then).await);
        }
        let renew = move |model: &mut super::Model, now| {
            ModelStep::unchanged(model.renew_session(now, &session))
        };
        self.write(fate, renew).await
    }

    pub(super) async fn destroy(&self, id: &str) -> Result<(), StoreError> {
        let session = parse_id(id)?;
        let fate = self.fate(&Request::DestroySession(id));
        self.write(fate, move |model, now| model.destroy_session(now, &session)).await
    }

    pub(super) async fn register(&self, request: ServiceRequest) -> Result<(), StoreError> {
        let fate = self.fate(&Request::RegisterService(&request));
        let node = self.node.clone();
        self.write(fate, move |model, now| model.register(now, &node, &request)).await
    }

    /// Removes a service from this agent. `false`: the agent has no such service.
    pub(super) async fn deregister(&self, id: &str) -> Result<bool, StoreError> {
        let fate = self.fate(&Request::DeregisterService(id));
        let (node, id) = (self.node.clone(), id.to_owned());
        self.write(fate, move |model, now| model.deregister(now, &node, &id)).await
    }

    pub(super) async fn register_node(&self, request: NodeRegistration) -> Result<(), StoreError> {
        let fate = self.fate(&Request::ChangeCatalog);
        self.write(fate, move |model, now| model.register_node(now, &request)).await?
    }

    /// Removes a service or a check of a node, or the node.
    pub(super) async fn deregister_node(
        &self,
        node: String,
        service: String,
        check: String,
    ) -> Result<(), StoreError> {
        let fate = self.fate(&Request::ChangeCatalog);
        let act = move |model: &mut super::Model, now| {
            model.deregister_node(now, &node, &service, &check)
        };
        self.write(fate, act).await.map(|_| ())
    }

    /// Updates a TTL check of this agent. `false`: the agent has no such check.
    pub(super) async fn set_check(
        &self,
        check: &str,
        status: Status,
        note: &str,
    ) -> Result<bool, StoreError> {
        let fate = self.fate(&Request::BeatCheck(check));
        let (node, check, note) = (self.node.clone(), check.to_owned(), note.to_owned());
        self.write(fate, move |model, now| model.update_check(now, &node, &check, status, &note))
            .await
    }
}

fn owned(entry: &Arc<Entry>) -> Entry {
    Entry::clone(entry)
}

#[async_trait]
impl Reader for Emulator {
    async fn get(&self, key: &Key, query: Query) -> Result<Answer<Option<Entry>>, StoreError> {
        let Answer { value, index, filtered } = self.read_key(key.as_str(), query).await?;
        Ok(Answer { value: value.as_ref().map(owned), index, filtered })
    }

    async fn list(&self, prefix: &Prefix, query: Query) -> Result<Answer<Vec<Entry>>, StoreError> {
        let Answer { value, index, filtered } = self.read_tree(prefix.as_str(), query).await?;
        Ok(Answer { value: value.iter().map(owned).collect(), index, filtered })
    }

    async fn keys(
        &self,
        prefix: &Prefix,
        separator: Option<&str>,
        query: Query,
    ) -> Result<Answer<Vec<String>>, StoreError> {
        self.read_keys(prefix.as_str(), separator, query).await
    }

    async fn ask(&self, questions: &[Question]) -> Result<TxnOutcome, StoreError> {
        let ops: Vec<Op> = questions.iter().map(Op::from).collect();
        self.txn(&ops).await
    }

    async fn session(&self, id: &SessionId) -> Result<Answer<Option<SessionInfo>>, StoreError> {
        let id = parse_id(id.as_str())?;
        let select = |t: &super::Tables| t.sessions.get(&id).map(super::Session::info);
        let subject = Subject::Session(id.clone());
        self.read(Request::Session(id.as_str()), subject, Query::PLAIN, select).await
    }

    async fn sessions(&self) -> Result<Answer<Vec<SessionInfo>>, StoreError> {
        let select = |t: &super::Tables| t.sessions.all().map(super::Session::info).collect();
        self.read(Request::Sessions, Subject::Sessions, Query::PLAIN, select).await
    }

    async fn service_health(
        &self,
        service: &str,
    ) -> Result<Answer<Vec<ServiceHealth>>, StoreError> {
        let subject = Subject::Service(service.to_owned());
        self.read(Request::Catalog, subject, Query::PLAIN, |t| t.catalog.health(service)).await
    }

    async fn leader(&self) -> Result<String, StoreError> {
        let select = |_: &super::Tables| super::LEADER.to_owned();
        match self.read(Request::Leader, Subject::Nodes, Query::PLAIN, select).await {
            Ok(answer) => Ok(answer.value),
            Err(StoreError::NoLeader) => Ok(String::new()),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Store for Emulator {
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        flags: u64,
        mode: PutMode,
    ) -> Result<bool, StoreError> {
        let (verb, index, session) = match mode {
            PutMode::Set => (Verb::Set, Index::ZERO, String::new()),
            PutMode::Cas(index) => (Verb::Cas, index, String::new()),
            PutMode::Acquire(session) => (Verb::Lock, Index::ZERO, session.to_string()),
            PutMode::Release(session) => (Verb::Unlock, Index::ZERO, session.to_string()),
        };
        let key = key.as_str().to_owned();
        self.write_key(KvOp { verb, key, value, flags, index, session }).await
    }

    async fn delete(&self, key: &Key, mode: DeleteMode) -> Result<bool, StoreError> {
        let op = match mode {
            DeleteMode::Always => KvOp::new(Verb::Delete, key.as_str()),
            DeleteMode::Cas(index) => KvOp { index, ..KvOp::new(Verb::DeleteCas, key.as_str()) },
        };
        self.write_key(op).await
    }

    async fn delete_tree(&self, prefix: &Prefix) -> Result<(), StoreError> {
        self.write_key(KvOp::new(Verb::DeleteTree, prefix.as_str())).await.map(|_| ())
    }

    async fn txn(&self, ops: &[Op]) -> Result<TxnOutcome, StoreError> {
        let bytes: usize = ops.iter().map(Op::body_bytes).sum();
        if bytes > MAX_VALUE {
            return Err(StoreError::TooLarge { detail: super::body_too_large(bytes) });
        }
        self.write_txn(ops.iter().map(KvOp::from).collect()).await
    }

    async fn create_session(&self, new: &NewSession) -> Result<SessionId, StoreError> {
        self.make_session(SessionRequest::from(new)).await
    }

    async fn renew_session(&self, id: &SessionId) -> Result<bool, StoreError> {
        Ok(self.renew(id.as_str()).await?.is_some())
    }

    async fn destroy_session(&self, id: &SessionId) -> Result<(), StoreError> {
        self.destroy(id.as_str()).await
    }

    async fn register_service(&self, service: &TtlService) -> Result<(), StoreError> {
        self.register(ServiceRequest::from(service)).await?;
        // A check that existed kept its state.
        self.set_check(&service.check_id(), Status::Passing, "").await.map(|_| ())
    }

    async fn pass_check(&self, check: &str, note: &str) -> Result<bool, StoreError> {
        self.set_check(check, Status::Passing, note).await
    }

    async fn pod_services(
        &self,
        id_prefix: &str,
    ) -> Result<BTreeMap<String, RegisteredService>, StoreError> {
        let select = |t: &super::Tables| t.catalog.pod_services(&self.node, id_prefix);
        let answer = self.read(Request::Catalog, Subject::Services, Query::PLAIN, select).await?;
        Ok(answer.value)
    }

    async fn register_pod_service(
        &self,
        service: &PodService,
        node_service: &str,
        health: Health,
    ) -> Result<(), StoreError> {
        self.register(ServiceRequest::of_pod(service, node_service, health)).await
    }

    async fn update_check(
        &self,
        check: &str,
        health: Health,
        note: &str,
    ) -> Result<bool, StoreError> {
        self.set_check(check, Status::of(health), note).await
    }

    // The model has no ACLs.
    async fn may_register(&self, _: &str) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn deregister_service(&self, id: &str) -> Result<(), StoreError> {
        self.deregister(id).await.map(|_| ())
    }
}
