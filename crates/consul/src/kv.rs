//! Reads and writes of single keys and prefixes.

use std::time::Duration;

use bytes::Bytes;
use consulrs::api;
use consulrs::api::kv::requests::{DeleteKeyRequest, SetKeyRequest};
use reqwest::{Method, Url};

use super::client::{Call, Client, Reply};
use super::error::RequestContext;
use super::wire::{WireEntry, go_duration};
use rcfarm_store::offload;
use rcfarm_store::{
    Answer, Consistency, DeleteMode, Entry, Index, Key, Prefix, PutMode, Query, StoreError,
};

/// Size of a small entry in an answer. Longer answers are decoded off the runtime's workers.
const BYTES_PER_ITEM: usize = 256;

impl Client {
    pub(super) async fn get(
        &self,
        key: &Key,
        query: Query,
    ) -> Result<Answer<Option<Entry>>, StoreError> {
        let asked = RequestContext::new("reading", key.as_str());
        let url = self.url(path_of(key.as_str()));
        let answer = self.read::<Vec<WireEntry>>(url, query, &asked).await?;
        let entry = answer.value.into_iter().flatten().next();
        Ok(Answer { value: entry.map(Entry::from), index: answer.index, filtered: answer.filtered })
    }

    pub(super) async fn list(
        &self,
        prefix: &Prefix,
        query: Query,
    ) -> Result<Answer<Vec<Entry>>, StoreError> {
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

    pub(super) async fn keys(
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

    /// Sends a read and decodes its JSON. `None`: 404 of Consul.
    pub(super) async fn read<T: serde::de::DeserializeOwned>(
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

    pub(super) async fn put(
        &self,
        key: &Key,
        value: Bytes,
        flags: u64,
        mode: PutMode,
    ) -> Result<bool, StoreError> {
        let mut asked = RequestContext::new("writing", key.as_str());
        let mut endpoint = SetKeyRequest {
            key: format!("{key}"),
            value: value.into(),
            dc: self.datacenter.clone(),
            flags: Some(flags),
            ..SetKeyRequest::default()
        };
        match &mode {
            PutMode::Set => {}
            PutMode::Cas(index) => endpoint.cas = Some(index.0),
            PutMode::Acquire(session) => {
                endpoint.acquire = Some(session.to_string());
                asked.session = Some(session);
            }
            PutMode::Release(session) => endpoint.release = Some(session.to_string()),
        }
        self.through_consulrs(Call::Write, &asked, |c| api::exec_with_result(c, endpoint))
            .await?
            .map_err(|refused| refused.error(&asked))
    }

    pub(super) async fn delete(&self, key: &Key, mode: DeleteMode) -> Result<bool, StoreError> {
        let cas = match mode {
            DeleteMode::Always => None,
            DeleteMode::Cas(index) => Some(index.0),
        };
        self.delete_with(RequestContext::new("deleting", key.as_str()), cas, None).await
    }

    pub(super) async fn delete_tree(&self, prefix: &Prefix) -> Result<(), StoreError> {
        let asked = RequestContext::new("deleting the tree", prefix.as_str());
        self.delete_with(asked, None, Some(true)).await.map(|_| ())
    }

    /// `recurse` is `Some(true)` or absent: Consul ignores its value.
    async fn delete_with(
        &self,
        asked: RequestContext<'_>,
        cas: Option<u64>,
        recurse: Option<bool>,
    ) -> Result<bool, StoreError> {
        let endpoint = DeleteKeyRequest {
            key: asked.about.to_owned(),
            cas,
            dc: self.datacenter.clone(),
            recurse,
            ..DeleteKeyRequest::default()
        };
        self.through_consulrs(Call::Write, &asked, |c| api::exec_with_result(c, endpoint))
            .await?
            .map_err(|refused| refused.error(&asked))
    }
}

fn path_of(key: &str) -> impl Iterator<Item = &str> {
    std::iter::once("kv").chain(key.split('/'))
}
