//! What an agent writes about its pods, and how seldom. Pure.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use rcfarm_api::Timestamp;
use rcfarm_api::ids::{Namespaced, NodeName, PodId, RcId, SessionId};
use rcfarm_api::key;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_store::Op;

/// What is to be known of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodReport {
    /// The manifest that is real; `None`: nothing of it was started.
    pub reality: Option<Arc<str>>,
    /// Its status.
    pub status: PodStatus,
}

/// Characters of an explanation that a health record holds: farms read all of them often.
const LONGEST_WHY: usize = 200;

impl PodReport {
    /// The operations that make it known. Health is a lock of `session`, so that it goes with the agent.
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
        // p2 sets the end of a record that is bound to a session a hundred years ahead.
        let mut health = json!({
            "Id": pod, "Node": node, "Service": pod, "Status": self.status.health,
            "Time": now, "Expires": now + Duration::from_secs(100 * 365 * 86_400),
        });
        if let Some(why) = &self.status.cannot_start {
            health["CannotStart"] = json!(why.chars().take(LONGEST_WHY).collect::<String>());
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

/// The operations that make a pod's end known.
#[must_use]
pub fn removal(node: &NodeName, pod: &PodId) -> Vec<Op> {
    [key::reality(node, pod), key::pod_status(pod, node), key::health(pod, node)]
        .map(|key| Op::Delete { key })
        .to_vec()
}

/// The owner's doorbell. `value` is new each time: the same value would wake nobody.
#[must_use]
pub fn bell(owner: RcId, value: &str) -> Op {
    Op::Set { key: key::rc_bell(owner), value: Bytes::from(value.as_bytes().to_vec()), flags: 0 }
}

/// Rings jobs at the ends of their pods, and not all the time: the doorbells would cost the farms more than they tell them. What
/// ends meanwhile they see when they read the tree.
#[derive(Debug, Default)]
pub struct JobBells {
    last: Option<Instant>,
}

impl JobBells {
    /// Bells of one moment go together; the next ones may follow after this.
    const EVERY: Duration = Duration::from_secs(1);

    /// The operation that rings, if it is to be rung.
    pub fn ring(&mut self, report: &PodReport, value: &str, now: Instant) -> Option<Op> {
        let may = self.last.is_none_or(|last| now == last || now >= last + Self::EVERY);
        let op = job_bell(report, value).filter(|_| may)?;
        self.last = Some(now);
        Some(op)
    }
}

/// The doorbell of the job that a pod which has ended was made for: of the rest no job has to know at once.
fn job_bell(report: &PodReport, value: &str) -> Option<Op> {
    if report.status.phase != NodePodPhase::Ended {
        return None;
    }
    let made: MadeForJob = serde_json::from_str(report.reality.as_deref()?).ok()?;
    let value = Bytes::from(value.as_bytes().to_vec());
    Some(Op::Set { key: key::job_bell(&made.job.id), value, flags: 0 })
}

/// What a manifest says of the job that it was made for.
#[derive(Deserialize)]
struct MadeForJob {
    job: WhichJob,
}

#[derive(Deserialize)]
struct WhichJob {
    id: Namespaced,
}

/// Keeps the writes of a pod that flaps rare, as p2 does: 4 a minute, 16 at once; once they are used up, the pod's
/// health is said to be unknown, and nothing more until 4 have come together (`p2.md` §1.10).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    tokens: f64,
    at: Instant,
    is_resting: bool,
}

/// What a bucket says about a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Write.
    Write,
    /// Write that it flaps, and then no more for a while.
    WriteFlapping,
    /// Nothing before this moment.
    Wait(Instant),
}

impl Bucket {
    const SIZE: f64 = 16.0;
    const PER_SECOND: f64 = 4.0 / 60.0;
    const RESUME: f64 = 4.0;

    /// A full one.
    #[must_use]
    pub fn full(now: Instant) -> Bucket {
        Bucket { tokens: Self::SIZE, at: now, is_resting: false }
    }

    /// Asks for a write.
    pub fn take(&mut self, now: Instant) -> Leave {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * Self::PER_SECOND).min(Self::SIZE);
        self.at = now;
        if self.is_resting && self.tokens < Self::RESUME {
            let missing = (Self::RESUME - self.tokens) / Self::PER_SECOND;
            return Leave::Wait(now + Duration::from_secs_f64(missing.max(0.001)));
        }
        self.is_resting = false;
        self.tokens -= 1.0;
        if self.tokens >= 1.0 {
            return Leave::Write;
        }
        self.is_resting = true;
        Leave::WriteFlapping
    }
}

/// The report of a pod that changes too often to be followed.
#[must_use]
pub fn flapping(report: &PodReport) -> PodReport {
    let mut report = report.clone();
    report.status.health = Health::Unknown;
    report.status.message = "it changes too often to be followed; its log tells more".to_owned();
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_jobs_pod_rings_its_job_and_nothing_else_does() {
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
        let (mut bells, now) = (JobBells::default(), Instant::now());
        for (after, rings) in [(0, true), (0, true), (999, false), (1_000, true), (1_999, false)] {
            let at = now + Duration::from_millis(after);
            assert_eq!(bells.ring(&end, "1", at).is_some(), rings, "after {after} ms");
        }
        assert_eq!(of("id: web\n", NodePodPhase::Ended), None);
        assert_eq!(of(r#"{"id":"web","job":"x"}"#, NodePodPhase::Ended), None);
    }

    #[test]
    fn a_pod_that_flaps_for_an_hour_costs_few_writes_and_its_last_state_comes_through() {
        let start = Instant::now();
        let mut bucket = Bucket::full(start);
        let (mut writes, mut flapping) = (0, 0);
        for second in 0..3_600 {
            match bucket.take(start + Duration::from_secs(second)) {
                Leave::Write => writes += 1,
                Leave::WriteFlapping => flapping += 1,
                Leave::Wait(until) => assert!(until > start + Duration::from_secs(second)),
            }
        }
        assert!((200..=256).contains(&(writes + flapping)), "{writes} and {flapping}");
        assert!(flapping > 0);
        let quiet = start + Duration::from_secs(3_600 + 60);
        assert_ne!(bucket.take(quiet), Leave::Wait(quiet), "after a minute there are four again");
        assert!(!matches!(bucket.take(quiet), Leave::Wait(_)));
    }
}
