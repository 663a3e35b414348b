//! Operations that report a pod to Consul, and their rate limits. Pure.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::proof::ReportBasis;
use rcfarm_api::Stored;
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{Namespaced, NodeName, PodId, RcId, SessionId};
use rcfarm_api::key;
use rcfarm_api::manifest::command_line::cut;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_store::{Op, TokenBucket};

/// The reported state of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodReport {
    /// The manifest of the pod. `None` until each process was started once, or all have ended.
    pub reality: Option<Arc<str>>,
    /// The pod's status on this node.
    pub status: PodStatus,
}

/// Upper bound of `CannotStart`, `Unfit` and `Restarting` in a health key, in characters. Farms read all health keys often.
const LONGEST_WHY: usize = 200;

/// Upper bound of each text in a status, in bytes. Texts may repeat parts of the manifest.
pub const LONGEST_TEXT: usize = 1_024;

impl PodReport {
    /// The report without its large parts, for a pod whose report alone does not fit a transaction: first without the
    /// manifest, then also without the processes and notes.
    #[must_use]
    pub fn reduced(&self) -> [PodReport; 2] {
        let mut report = PodReport { reality: None, ..self.clone() };
        let why =
            "the pod's report is too large for a transaction: its manifest is not in reality/";
        report.status.message = prefixed(why, &self.status.message);
        let mut shortest = report.clone();
        let why = format!("{why}, and its processes are not listed");
        shortest.status.message = prefixed(&why, &self.status.message);
        shortest.status.processes.clear();
        shortest.status.notes.clear();
        shortest.status.devices.clear();
        shortest.status.ports.clear();
        [report, shortest]
    }

    /// The operation that only writes the status, for a pod that is to be started once its report names its intent.
    #[must_use]
    pub fn announcement(&self, node: &NodeName, pod: &PodId) -> Op {
        Op::Set { key: key::pod_status(pod, node), value: self.status.encode(), flags: 0 }
    }

    /// The operations of the report. The health key is a lock of `session`, so it vanishes with the agent.
    #[must_use]
    pub fn ops(
        &self,
        node: &NodeName,
        pod: &PodId,
        session: &SessionId,
        now: Timestamp,
    ) -> Vec<Op> {
        let reality = key::reality(node, pod);
        let reality = match &self.reality {
            Some(text) => {
                Op::Set { key: reality, value: Bytes::from(text.as_bytes().to_vec()), flags: 0 }
            }
            None => Op::Delete { key: reality },
        };
        // p2 puts `Expires` of a health key that is bound to a session a hundred years ahead.
        let mut health = json!({
            "Id": pod, "Node": node, "Service": pod, "Status": self.status.health,
            "Time": now, "Expires": now + Duration::from_secs(100 * 365 * 86_400),
        });
        if let Some(why) = &self.status.cannot_start {
            health["CannotStart"] = json!(why.chars().take(LONGEST_WHY).collect::<String>());
            if self.status.start_error {
                health["StartError"] = json!(true);
            }
        } else if self.status.phase == NodePodPhase::Unfit {
            let why = self.status.message.chars().take(LONGEST_WHY);
            health["Unfit"] = json!(why.collect::<String>());
        } else if let Some(why) = &self.status.restarting {
            health["Restarting"] = json!(why.chars().take(LONGEST_WHY).collect::<String>());
        }
        vec![
            reality,
            Op::Set { key: key::pod_status(pod, node), value: self.status.encode(), flags: 0 },
            Op::Lock {
                key: key::health(pod, node),
                value: health.to_string().into(),
                session: session.clone(),
            },
        ]
    }
}

/// The operation that a report of a pod begins with: Consul refuses the report unless this still holds.
#[must_use]
pub fn guard(node: &NodeName, pod: &PodId, basis: ReportBasis) -> Option<Op> {
    match basis {
        ReportBasis::Intent(intent) => {
            Some(Op::CheckIndex { key: key::intent(node, pod), index: intent.modify_index })
        }
        ReportBasis::Report(_, index) => {
            Some(Op::CheckIndex { key: key::pod_status(pod, node), index })
        }
        ReportBasis::Known(_) | ReportBasis::Hold => None,
    }
}

/// Cuts each text of a status to [`LONGEST_TEXT`].
pub fn cut_texts(status: &mut PodStatus) {
    let shorten = |text: &mut String| *text = cut(text, LONGEST_TEXT);
    shorten(&mut status.message);
    status.cannot_start.iter_mut().for_each(shorten);
    status.restarting.iter_mut().for_each(shorten);
    status.notes.iter_mut().for_each(shorten);
    for process in &mut status.processes {
        shorten(&mut process.message);
        shorten(&mut process.entry_point);
    }
}

fn prefixed(why: &str, message: &str) -> String {
    if message.is_empty() { why.to_owned() } else { format!("{why}; {message}") }
}

/// The operations that delete a pod's keys.
#[must_use]
pub fn removal(node: &NodeName, pod: &PodId) -> Vec<Op> {
    [key::reality(node, pod), key::pod_status(pod, node), key::health(pod, node)]
        .map(|key| Op::Delete { key })
        .to_vec()
}

/// Writes the doorbell of a replication controller. `value` must be new: an unchanged value wakes no watch.
#[must_use]
pub fn bell(owner: RcId, value: &str) -> Op {
    Op::Set { key: key::rc_bell(owner), value: Bytes::from(value.as_bytes().to_vec()), flags: 0 }
}

/// Shortest interval between job doorbells of one agent. Farms see the pods that end meanwhile with their next read of
/// the tree.
const JOB_BELL_EVERY: Duration = Duration::from_secs(1);

/// The doorbell of the pod's job, if the pod ended and `limit` permits. All doorbells of one transaction (the same
/// `now`) count as one.
pub fn limited_job_bell(
    limit: &mut TokenBucket,
    report: &PodReport,
    value: &str,
    now: Instant,
) -> Option<Op> {
    let op = job_bell(report, value)?;
    let is_permitted = limit.consumed(now) == JOB_BELL_EVERY
        || limit.take(JOB_BELL_EVERY, JOB_BELL_EVERY, now).is_ok();
    is_permitted.then_some(op)
}

/// The doorbell of the pod's job, if the pod ended. Other changes do not need to reach the job at once.
fn job_bell(report: &PodReport, value: &str) -> Option<Op> {
    if report.status.phase != NodePodPhase::Ended {
        return None;
    }
    let manifest: JobManifest = serde_json::from_str(report.reality.as_deref()?).ok()?;
    let value = Bytes::from(value.as_bytes().to_vec());
    Some(Op::Set { key: key::job_bell(&manifest.job.id), value, flags: 0 })
}

/// The part of a job pod's manifest that names its job.
#[derive(Deserialize)]
struct JobManifest {
    job: JobReference,
}

#[derive(Deserialize)]
struct JobReference {
    id: Namespaced,
}

/// Rate limit for the writes of one pod, with p2's numbers: 4 per minute, 16 at once. The last one writes health
/// `unknown`; then nothing is written until 4 tokens have come together (`p2.md` §1.10).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodWriteLimiter {
    bucket: TokenBucket,
    is_exhausted: bool,
}

/// Answer of a [`PodWriteLimiter`] to a request to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteDecision {
    /// Write the report.
    Write,
    /// Write [`flapping`] in its place; the limiter is then exhausted.
    WriteFlapping,
    /// Do not write before this moment.
    Wait(Instant),
}

impl PodWriteLimiter {
    /// Cost of a write.
    const TOKEN: Duration = Duration::from_secs(60 / 4);
    const BURST: Duration = Duration::from_secs(16 * 60 / 4);
    /// An exhausted limiter permits writes again once no more than this is consumed.
    const RESUME: Duration = Duration::from_secs((16 - 4) * 60 / 4);

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Instant) -> WriteDecision {
        let wait = self.bucket.consumed(now).saturating_sub(Self::RESUME);
        if self.is_exhausted && !wait.is_zero() {
            return WriteDecision::Wait(now + wait);
        }
        self.bucket.consume(Self::TOKEN, Self::BURST, now);
        self.is_exhausted = self.bucket.consumed(now) + Self::TOKEN > Self::BURST;
        if self.is_exhausted { WriteDecision::WriteFlapping } else { WriteDecision::Write }
    }
}

/// The report of a pod that changes too often: health `unknown`.
#[must_use]
pub fn flapping(report: &PodReport) -> PodReport {
    let mut report = report.clone();
    report.status.health = Health::Unknown;
    report.status.message = "the pod changes state too often; see its log".to_owned();
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_store::time::monotonic;

    #[test]
    fn job_pod_end_rings_doorbell_at_most_once_a_second() {
        let of = |reality: &str, phase| {
            let status = PodStatus { phase, ..PodStatus::default() };
            let bell = job_bell(&PodReport { reality: Some(reality.into()), status }, "1");
            bell.map(|op| match op {
                Op::Set { key, .. } => key.to_string(),
                other => panic!("{other:?}"),
            })
        };
        let made = r#"{"id":"j-w-0","job":{"id":"team/j","uid":7,"task":"w","index":0}}"#;
        assert_eq!(of(made, NodePodPhase::Ended).as_deref(), Some("rcfarm/bell/job/team/j"));
        assert_eq!(of(made, NodePodPhase::Running), None);
        let status = PodStatus { phase: NodePodPhase::Ended, ..PodStatus::default() };
        let end = PodReport { reality: Some(made.into()), status };
        let (mut limit, now) = (TokenBucket::default(), monotonic());
        for (after, rings) in [(0, true), (0, true), (999, false), (1_000, true), (1_999, false)] {
            let at = now + Duration::from_millis(after);
            let bell = limited_job_bell(&mut limit, &end, "1", at);
            assert_eq!(bell.is_some(), rings, "after {after} ms");
        }
        assert_eq!(of("id: web\n", NodePodPhase::Ended), None);
        assert_eq!(of(r#"{"id":"web","job":"x"}"#, NodePodPhase::Ended), None);
    }

    #[test]
    fn reduced_report_says_what_is_left_out() {
        let status = PodStatus { message: "m".to_owned(), ..PodStatus::default() };
        let report = PodReport { reality: Some("x".repeat(600_000).into()), status };
        for short in report.reduced() {
            assert_eq!(short.reality, None);
            assert!(short.status.message.contains("too large"), "{}", short.status.message);
            assert!(short.status.message.ends_with("; m"), "{}", short.status.message);
        }
    }

    #[test]
    fn bucket_limits_a_flapping_pod_to_its_rate_and_refills() {
        let start = monotonic();
        let mut bucket = PodWriteLimiter::default();
        let (mut writes, mut flapping) = (0, 0);
        for second in 0..3_600 {
            match bucket.take(start + Duration::from_secs(second)) {
                WriteDecision::Write => writes += 1,
                WriteDecision::WriteFlapping => flapping += 1,
                WriteDecision::Wait(until) => assert!(until > start + Duration::from_secs(second)),
            }
        }
        assert!((200..=256).contains(&(writes + flapping)), "{writes} and {flapping}");
        assert!(flapping > 0);
        let quiet = start + Duration::from_secs(3_600 + 60);
        assert_ne!(
            bucket.take(quiet),
            WriteDecision::Wait(quiet),
            "after a minute there are four again"
        );
        assert!(!matches!(bucket.take(quiet), WriteDecision::Wait(_)));
    }
}
