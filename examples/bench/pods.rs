//! Nodes that only pretend: what is intended on them becomes real, and ends as its command says, without being run.
//!
//! | command of the first container | the pod |
//! |---|---|
//! | `true` | has ended well when it is first told of |
//! | `fail-when N` | fails in the first attempt of its job, once N pods of the job are real |
//! | anything else | runs until it is not wanted any more |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::node::status::{LastExit, NodePodPhase, PodStatus, ProcessStatus};
use rcfarm_consul::Consul;
use rcfarm_store::time::{Clock as _, SystemClock};
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{Entry, Op, Reader};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fleet::write_all;

/// So long after a look at what is intended comes the next: the agents of many nodes would each look at less.
const PAUSE: Duration = Duration::from_millis(100);

/// What a process of pretended nodes has seen, as it says when it is asked.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Every start of a pod, by its id.
    pub starts: BTreeMap<String, usize>,
    /// Members that were real at two places at once.
    pub twice: BTreeSet<String>,
    /// The same try at a member, started again.
    pub again: BTreeSet<String>,
}

#[derive(Clone)]
struct Real {
    manifest: Bytes,
    command: Vec<String>,
    job: Value,
    ended: bool,
}

type Place = (NodeName, PodId);

/// Pretends until standard input ends; each line of it is answered with what was seen so far.
pub async fn pretend(store: Arc<Consul>) -> anyhow::Result<()> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (told, stop) = (seen.clone(), tokio_util::sync::CancellationToken::new());
    let stopped = stop.clone();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {
            let seen = told.lock().unwrap_or_else(PoisonError::into_inner);
            println!("{}", serde_json::json!(*seen));
        }
        stopped.cancel();
    });
    let reader: Arc<dyn Reader> = store.clone();
    let mut watch = TreeWatch::new(reader, key::intents(), Duration::from_secs(300));
    let (mut real, mut tries) = (BTreeMap::new(), BTreeSet::new());
    loop {
        let look = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            look = watch.next() => look?,
        };
        let ops = follow(
            &look.value,
            &mut real,
            &mut tries,
            &mut seen.lock().unwrap_or_else(PoisonError::into_inner),
        );
        write_all(&store, ops).await?;
        tokio::time::sleep(PAUSE).await;
    }
}

fn follow(
    intents: &[Entry],
    real: &mut BTreeMap<Place, Real>,
    tries: &mut BTreeSet<String>,
    seen: &mut Seen,
) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut wanted = BTreeSet::new();
    let mut fresh = Vec::new();
    for entry in intents {
        let Some(place) = key::node_and_pod(&key::intents(), &entry.key) else { continue };
        if real.get(&place).is_none_or(|real| real.manifest != entry.value) {
            fresh.push((place.clone(), entry.value.clone()));
        }
        wanted.insert(place);
    }
    for (node, pod) in real.keys().filter(|place| !wanted.contains(place)) {
        ops.push(Op::Delete { key: key::reality(node, pod) });
        ops.push(Op::Delete { key: key::pod_status(pod, node) });
    }
    real.retain(|place, _| wanted.contains(place));
    for (place, manifest) in fresh {
        let Ok(document) = serde_json::from_slice::<Value>(&manifest) else { continue };
        let first = document["launchables"].as_object().and_then(|all| all.values().next());
        let command = first.and_then(|one| serde_json::from_value(one["command"].clone()).ok());
        let (command, job): (Vec<String>, Value) =
            (command.unwrap_or_default(), document["job"].clone());
        *seen.starts.entry(place.1.to_string()).or_default() += 1;
        if !tries.insert(job.to_string()) {
            seen.again.insert(job.to_string());
        }
        if real.keys().any(|other| other.1 == place.1 && other.0 != place.0) {
            seen.twice.insert(place.1.to_string());
        }
        let ended = command.first().is_some_and(|word| word == "true");
        ops.extend(told(&place, &manifest, ended.then_some(0)));
        real.insert(place, Real { manifest, command, job, ended });
    }
    ops.extend(failures(real));
    ops
}

/// Pods that wait for the others of their job in order to fail.
fn failures(real: &mut BTreeMap<Place, Real>) -> Vec<Op> {
    let failing = |(place, pod): (&Place, &Real)| {
        let [word, count] = &pod.command[..] else { return None };
        let first = pod.job["version"] == 0 && !pod.ended && word == "fail-when";
        let count: usize = count.parse().ok().filter(|_| first)?;
        let of_job = real.values().filter(|other| other.job["id"] == pod.job["id"]).count();
        (of_job >= count).then(|| place.clone())
    };
    let failing: Vec<Place> = real.iter().filter_map(failing).collect();
    let mut ops = Vec::new();
    for place in failing {
        let Some(pod) = real.get_mut(&place) else { continue };
        pod.ended = true;
        ops.extend(told(&place, &pod.manifest, Some(1)));
    }
    ops
}

/// What an agent says of a pod, in one go.
fn told((node, pod): &Place, manifest: &Bytes, exit_code: Option<i32>) -> [Op; 2] {
    let phase = if exit_code.is_some() { NodePodPhase::Ended } else { NodePodPhase::Running };
    let time = SystemClock.wall();
    let last_exit = exit_code.map(|exit_code| LastExit { time, exit_code, exit_status: 0 });
    let process = ProcessStatus {
        launchable_id: "main".to_owned(),
        phase,
        last_exit,
        started_at: Some(time),
        ..ProcessStatus::default()
    };
    let status = PodStatus {
        status: "launched".to_owned(),
        phase,
        processes: vec![process],
        ..PodStatus::default()
    };
    [
        Op::Set { key: key::reality(node, pod), value: manifest.clone(), flags: 0 },
        Op::Set { key: key::pod_status(pod, node), value: status.encode(), flags: 0 },
    ]
}
