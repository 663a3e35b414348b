//! Asks members of jobs over the network whether they are ready, for steps with probes.
//!
//! Keys read: `rcfarm/pod_group_status/<ns>/<job>` for the nodes of members, `rcfarm/nodes/<node>` for their addresses.
//! Only the addresses of nodes are asked, with time limits, without a proxy and without following redirects. Of an
//! answer only its status counts; its body is not read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;

use super::document::ProbeCheck;
use super::plan::ProbeRequest;
use rcfarm_api::ids::{Namespace, Namespaced, NodeName, ObjectName};
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_api::{Stored, key};
use rcfarm_node::agent::health::http_client;
use rcfarm_store::{Query, Reader, StoreError};

/// Time limit of one probe of one member.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of all probes of a flow.
const ALL_PROBES: Duration = Duration::from_secs(10);
/// Members that are asked at once.
const ASKED_AT_ONCE: usize = 16;
/// Members that a probe asks. Of a larger task the first ones stand for all.
const MOST_MEMBERS: usize = 64;

/// Result of the probes of each step: why one of them does not pass.
pub type ProbeResults = BTreeMap<ObjectName, Result<(), String>>;

/// One probe of one member.
struct MemberProbe<'a> {
    request: &'a ProbeRequest,
    /// Host and port.
    address: String,
}

/// Makes all probes. Takes up to `ALL_PROBES`: not for a reconciliation, of which a kind has 64 at a time.
///
/// # Errors
/// Any [`StoreError`] of the keys read.
pub async fn run_probes(
    reader: &dyn Reader,
    namespace: &Namespace,
    requests: &[ProbeRequest],
) -> Result<ProbeResults, StoreError> {
    let mut results: ProbeResults =
        requests.iter().map(|request| (request.step.clone(), Ok(()))).collect();
    let mut fail = |step: &ObjectName, why: String| {
        results.insert(step.clone(), Err(why));
    };
    let mut members = Vec::new();
    let mut addresses = BTreeMap::new();
    for request in requests {
        match addresses_of(reader, namespace, request, &mut addresses).await? {
            Ok(found) => {
                members.extend(found.into_iter().map(|address| MemberProbe { request, address }));
            }
            Err(why) => fail(&request.step, why),
        }
    }
    let asked: Vec<_> = members.iter().map(ask_member).collect();
    let mut open: BTreeSet<&ObjectName> = requests.iter().map(|request| &request.step).collect();
    let mut left: BTreeMap<&ObjectName, usize> = BTreeMap::new();
    for member in &members {
        *left.entry(&member.request.step).or_default() += 1;
    }
    open.retain(|step| left.contains_key(step));
    let all = async {
        let mut answers = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
        while let Some((step, answer)) = answers.next().await {
            if let Err(why) = answer {
                fail(step, why);
            }
            let count = left.entry(step).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(step);
            }
        }
    };
    if timeout(ALL_PROBES, all).await.is_err() {
        for step in open {
            fail(step, format!("its probes took longer than {ALL_PROBES:?}"));
        }
    }
    Ok(results)
}

/// Addresses of the members of a task, or why there are none.
async fn addresses_of(
    reader: &dyn Reader,
    namespace: &Namespace,
    request: &ProbeRequest,
    known: &mut BTreeMap<NodeName, String>,
) -> Result<Result<Vec<String>, String>, StoreError> {
    let port = match &request.check {
        ProbeCheck::Http { port, .. } | ProbeCheck::Tcp { port } => *port,
        ProbeCheck::Phase(_) => return Ok(Ok(Vec::new())),
    };
    let job = Namespaced { namespace: namespace.clone(), name: request.job.clone() };
    let group = reader.get(&key::pod_group_status(&job), Query::PLAIN).await?.value;
    let group = group.and_then(|entry| PodGroupStatus::decode(&entry.value).ok());
    let group = group.filter(|group| group.owner_uid == Some(request.uid.to_string()));
    let placement = group.and_then(|group| group.placement);
    let nodes = placement.and_then(|mut placement| placement.members.remove(&request.task));
    let nodes: Vec<NodeName> = nodes.into_iter().flatten().flatten().take(MOST_MEMBERS).collect();
    if nodes.is_empty() {
        let why = format!("no member of task {} of job {} is placed", request.task, request.job);
        return Ok(Err(why));
    }
    let mut addresses = Vec::new();
    for node in nodes {
        if !known.contains_key(&node) {
            let entry = reader.get(&key::node(&node), Query::PLAIN).await?.value;
            let record = entry.and_then(|entry| NodeRecord::decode(&entry.value).ok());
            known.insert(node.clone(), record.map(|record| record.address).unwrap_or_default());
        }
        match known.get(&node).filter(|address| !address.is_empty()) {
            Some(address) if address.contains(':') && !address.starts_with('[') => {
                addresses.push(format!("[{address}]:{port}"));
            }
            Some(address) => addresses.push(format!("{address}:{port}")),
            None => return Ok(Err(format!("node {node} has no address"))),
        }
    }
    Ok(Ok(addresses))
}

async fn ask_member<'a>(probe: &MemberProbe<'a>) -> (&'a ObjectName, Result<(), String>) {
    let address = &probe.address;
    let answer = timeout(PROBE_TIMEOUT, async {
        match &probe.request.check {
            ProbeCheck::Http { path, header, .. } => http(address, path, header.as_ref()).await,
            _ => match tokio::net::TcpStream::connect(address).await {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("{address}: {error}")),
            },
        }
    });
    let late = |_| Err(format!("{address}: no answer within {PROBE_TIMEOUT:?}"));
    (&probe.request.step, answer.await.unwrap_or_else(late))
}

async fn http(address: &str, path: &str, header: Option<&(String, String)>) -> Result<(), String> {
    let mut request = http_client()?.get(format!("http://{address}{path}"));
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    // A header may be a secret, and the path may hold one: neither is shown.
    let answer =
        request.send().await.map_err(|error| format!("{address}: {}", error.without_url()))?;
    match answer.status().as_u16() {
        200..=399 => Ok(()),
        status => Err(format!("{address}: status {status}")),
    }
}

#[cfg(test)]
mod tests;
