//! [`Reader`] of a real Consul: reads of keys, sessions, the health of services, and the leader.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::{Method, Url};

use super::client::{Call, Consul, Reply};
use super::error::RequestContext;
use super::txn::{outcome, subject};
use super::wire::{WireEntry, WireInstance, WireSession, go_duration};
use rcfarm_api::ids::SessionId;
use rcfarm_store::{
    Answer, Consistency, Entry, Index, Key, Op, Prefix, Query, Question, Reader, ServiceHealth,
    SessionInfo, StoreError, TxnOutcome, offload,
};

/// Size of a small entry in an answer. Longer answers are decoded off the runtime's workers.
const BYTES_PER_ITEM: usize = 256;

#[async_trait]
impl Reader for Consul {
    async fn get(&self, key: &Key, query: Query) -> Result<Answer<Option<Entry>>, StoreError> {
        let asked = RequestContext::new("reading", key.as_str());
        let url = self.url(path_of(key.as_str()));
        let answer = self.read::<Vec<WireEntry>>(url, query, &asked).await?;
        let entry = answer.value.into_iter().flatten().next();
        Ok(Answer { value: entry.map(Entry::from), index: answer.index, filtered: answer.filtered })
    }

    async fn list(&self, prefix: &Prefix, query: Query) -> Result<Answer<Vec<Entry>>, StoreError> {
        let asked = RequestContext::new("listing", prefix.as_str());
        let mut url = self.url(path_of(prefix.as_str()));
        url.query_pairs_mut().append_key_only("recurse");
        let answer = self.read::<Vec<WireEntry>>(url, query, &asked).await?;
        let entries = answer.value.into_iter().flatten();
        Ok(Answer {
            value: entries.map(Entry::from).collect(),
            index: answer.index,
            filtered: answer.filtered,
        })
    }

    async fn keys(
        &self,
        prefix: &Prefix,
        separator: Option<&str>,
        query: Query,
    ) -> Result<Answer<Vec<String>>, StoreError> {
        let asked = RequestContext::new("listing", prefix.as_str());
        let mut url = self.url(path_of(prefix.as_str()));
        url.query_pairs_mut().append_key_only("keys");
        if let Some(separator) = separator {
            url.query_pairs_mut().append_pair("separator", separator);
        }
        let answer = self.read::<Vec<String>>(url, query, &asked).await?;
        Ok(Answer {
            value: answer.value.unwrap_or_default(),
            index: answer.index,
            filtered: answer.filtered,
        })
    }

    // Consul handles a transaction that only reads as a read.
    async fn ask(&self, questions: &[Question]) -> Result<TxnOutcome, StoreError> {
        let ops: Vec<Op> = questions.iter().map(Op::from).collect();
        let asked = RequestContext::new("reading", subject(&ops));
        let mut url = self.url(["txn"]);
        url.query_pairs_mut().append_key_only("consistent");
        let request = self.txn_request(url, &ops, &asked)?;
        outcome(&self.send(Call::Read, request, Duration::ZERO).await?, &ops, &asked)
    }

    async fn session(&self, id: &SessionId) -> Result<Answer<Option<SessionInfo>>, StoreError> {
        let asked = RequestContext::new("reading the session", id.as_str());
        let url = self.url(["session", "info", id.as_str()]);
        let answer = self.read::<Vec<WireSession>>(url, Query::PLAIN, &asked).await?;
        let found = answer.value.into_iter().flatten().next();
        Ok(Answer {
            value: found.map(SessionInfo::from),
            index: answer.index,
            filtered: answer.filtered,
        })
    }

    async fn sessions(&self) -> Result<Answer<Vec<SessionInfo>>, StoreError> {
        let asked = RequestContext::new("listing", "sessions");
        let url = self.url(["session", "list"]);
        let answer = self.read::<Vec<WireSession>>(url, Query::PLAIN, &asked).await?;
        let found = answer.value.into_iter().flatten();
        Ok(Answer {
            value: found.map(SessionInfo::from).collect(),
            index: answer.index,
            filtered: answer.filtered,
        })
    }

    async fn service_health(
        &self,
        service: &str,
    ) -> Result<Answer<Vec<ServiceHealth>>, StoreError> {
        let asked = RequestContext::new("reading the health of", service);
        let url = self.url(["health", "service", service]);
        let answer = self.read::<Vec<WireInstance>>(url, Query::PLAIN, &asked).await?;
        let instances = answer.value.into_iter().flatten();
        Ok(Answer {
            value: instances.map(ServiceHealth::from).collect(),
            index: answer.index,
            filtered: answer.filtered,
        })
    }

    async fn leader(&self) -> Result<String, StoreError> {
        let asked = RequestContext::new("asking for", "the leader");
        let request = self.request(Method::GET, self.url(["status", "leader"]));
        let reply = self.send(Call::Read, request, Duration::ZERO).await?;
        match reply.status {
            200 => reply.json(&asked),
            _ => Err(reply.error(&asked)),
        }
    }
}

impl Consul {
    /// Sends a read and decodes its JSON. `None`: 404 of Consul.
    async fn read<T: serde::de::DeserializeOwned>(
        &self,
        mut url: Url,
        query: Query,
        asked: &RequestContext<'_>,
    ) -> Result<Answer<Option<T>>, StoreError> {
        match query.consistency {
            Consistency::Leader if !self.stale => {}
            Consistency::Leader | Consistency::Stale => {
                url.query_pairs_mut().append_key_only("stale");
            }
            Consistency::Consistent => {
                url.query_pairs_mut().append_key_only("consistent");
            }
        }
        let mut call = Call::Read;
        let mut waits = Duration::ZERO;
        if let Some(wait) = query.wait.filter(|wait| wait.after != Index::ZERO) {
            call = Call::BlockingRead;
            // Consul takes a wait of 0 for five minutes.
            waits = wait.at_most.max(Duration::from_millis(1));
            url.query_pairs_mut()
                .append_pair("index", &wait.after.to_string())
                .append_pair("wait", &go_duration(waits));
        }
        let reply = self.send(call, self.request(Method::GET, url), waits).await?;
        let value = match reply.status {
            200 => Some(offload(reply.body.len() / BYTES_PER_ITEM, || reply.json(asked)).await?),
            404 if reply.index.is_some() => None,
            _ => return Err(reply.error(asked)),
        };
        let Reply { filtered, .. } = reply;
        Ok(Answer { value, index: reply.index(asked)?, filtered })
    }
}

fn path_of(key: &str) -> impl Iterator<Item = &str> {
    std::iter::once("kv").chain(key.split('/'))
}
