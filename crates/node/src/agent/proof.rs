//! Proof that the intent of a pod is gone. Pure.
//!
//! A list of intents that lacks a pod proves nothing: Consul may be empty, new, restored from a snapshot, or the token
//! may have lost its rights. So each report of a pod names the intent that it is about. Its transaction is refused
//! unless that intent is unchanged, or an earlier report that names it. A Consul that has such a report has had that
//! intent.
//!
//! | report in Consul, by one atomic read | intent | so |
//! |---|---|---|
//! | names the pod's intent | absent | the intent was deleted: the pod is stopped |
//! | absent, or names none or another | absent | Consul was wiped or restored: the pod goes on, and is reported again |
//! | any | there, or hidden | the list was old or short: it is read again |
//! | changes meanwhile | any | asked again |
//!
//! A process is started only once a report names its pod's intent, so that each process can be proved to be unwanted.

use std::time::Duration;

use rcfarm_api::Timestamp;
use rcfarm_api::node::status::{IntentIndex, PodStatus};
use rcfarm_store::Index;

/// What is known of the intent of a pod that the last list lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Proof {
    /// Not asked yet.
    #[default]
    Unasked,
    /// Being asked.
    Asked,
    /// To be asked again at this time since the agent's start.
    Unclear(Duration),
    /// Consul has the agent's report of the pod and no intent.
    Gone,
    /// Consul has neither the intent nor a report of it. This lasts until the pod is intended again.
    Lost,
}

/// Result of one proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofVerdict {
    /// The intent was deleted.
    Gone,
    /// Consul has neither the intent nor a report that names it.
    Lost,
    /// The intent is there or hidden, or the report changed meanwhile.
    Unclear,
}

/// What the report must say of a pod, so that it shows that its Consul has had the pod's intent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Versions of the intent that the pod was run for. Empty: an older agent started it.
    pub intents: Vec<IntentIndex>,
    /// Process id and start of each running process.
    pub processes: Vec<(i32, Timestamp)>,
}

/// Whether a report shows that its Consul has had the pod's intent. The reports of older agents name no intent. They
/// count for the pods that those agents started, if they name the same processes.
#[must_use]
pub fn is_witness(report: &PodStatus, expected: &Expected) -> bool {
    let has = |(pid, at): &(i32, Timestamp)| {
        let mut processes = report.processes.iter();
        processes.any(|one| one.pid == Some(*pid) && one.started_at == Some(*at))
    };
    match report.intent_index {
        Some(intent) => expected.intents.contains(&intent),
        None => {
            let processes = &expected.processes;
            expected.intents.is_empty() && !processes.is_empty() && processes.iter().all(has)
        }
    }
}

/// What one atomic read shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProofRead {
    /// The report names the pod's intent, by an earlier read.
    pub has_witness: bool,
    /// The report is no longer the one of that earlier read.
    pub report_changed: bool,
    /// There is no intent.
    pub intent_absent: bool,
}

/// The table of this module.
#[must_use]
pub fn verdict(shown: ProofRead) -> ProofVerdict {
    match shown {
        ProofRead { intent_absent: false, .. } | ProofRead { report_changed: true, .. } => {
            ProofVerdict::Unclear
        }
        ProofRead { has_witness: true, .. } => ProofVerdict::Gone,
        ProofRead { has_witness: false, .. } => ProofVerdict::Lost,
    }
}

/// What the last list of intents says of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// There was no list yet, or it lacks the pod.
    Missing,
    /// It has the pod with the same manifest, devices and ports.
    Same(IntentIndex),
    /// It has the pod with others.
    Replaced,
}

/// Input of [`basis`].
#[derive(Debug, Clone, Copy)]
pub struct PodIntent {
    /// The intent that the pod is run for.
    pub intent: Option<IntentIndex>,
    pub listed: Listed,
    pub proof: Proof,
    /// The intent that the pod's last acknowledged report names, and the ModifyIndex of that report.
    pub reported: Option<(IntentIndex, Index)>,
    /// A version of the intent that Consul no longer had when a report was written.
    pub outdated: Option<IntentIndex>,
}

/// What a pod's report names, and what must be unchanged when it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportBasis {
    /// It names this intent, which must be unchanged.
    Intent(IntentIndex),
    /// It names this intent. The earlier report that names it must have this ModifyIndex.
    Report(IntentIndex, Index),
    /// It names this intent, and nothing needs to be unchanged: the intent is known to be gone.
    Known(IntentIndex),
    /// It is not written now: the intents or the proof must be read first.
    Hold,
}

/// What the next report of a pod names.
#[must_use]
pub fn basis(known: PodIntent) -> ReportBasis {
    let earlier = known.reported.map(|(intent, index)| ReportBasis::Report(intent, index));
    let intent = known.intent.unwrap_or(IntentIndex::NONE);
    match known.listed {
        Listed::Same(listed) => match earlier {
            Some(ReportBasis::Report(named, index)) if named == listed => {
                ReportBasis::Report(named, index)
            }
            _ if known.outdated == Some(listed) => ReportBasis::Hold,
            _ => ReportBasis::Intent(listed),
        },
        // An intent of other content is proof enough that the pod's own is gone.
        Listed::Replaced => earlier.unwrap_or(ReportBasis::Known(intent)),
        Listed::Missing => match known.proof {
            Proof::Gone => ReportBasis::Known(intent),
            Proof::Lost => ReportBasis::Known(IntentIndex::NONE),
            Proof::Unasked | Proof::Asked | Proof::Unclear(_) => {
                earlier.unwrap_or(ReportBasis::Hold)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_api::node::status::ProcessStatus;

    fn intent(index: u64) -> IntentIndex {
        IntentIndex { create_index: Index(index), modify_index: Index(index) }
    }

    #[test]
    fn pod_is_stopped_only_if_report_is_there_and_intent_is_not() {
        for (has_witness, report_changed, intent_absent, expected) in [
            (true, false, true, ProofVerdict::Gone),
            (false, false, true, ProofVerdict::Lost),
            (true, false, false, ProofVerdict::Unclear),
            (false, false, false, ProofVerdict::Unclear),
            (true, true, true, ProofVerdict::Unclear),
            (true, true, false, ProofVerdict::Unclear),
        ] {
            let shown = ProofRead { has_witness, report_changed, intent_absent };
            assert_eq!(verdict(shown), expected, "{shown:?}");
        }
    }

    #[test]
    fn witness_names_an_intent_of_the_pod() {
        let report = |index| PodStatus { intent_index: index, ..PodStatus::default() };
        let expected = Expected { intents: vec![intent(5), intent(7)], processes: Vec::new() };
        for (named, is) in [(5, true), (7, true), (6, false), (0, false)] {
            assert_eq!(is_witness(&report(Some(intent(named))), &expected), is, "{named}");
        }
        assert!(
            !is_witness(&report(None), &expected),
            "an older agent's report, of this agent's pod"
        );
    }

    #[test]
    fn older_agents_report_is_a_witness_for_the_same_processes_only() {
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let process =
            |pid| ProcessStatus { pid: Some(pid), started_at: Some(at), ..Default::default() };
        let report = PodStatus { processes: vec![process(7), process(8)], ..Default::default() };
        let expected = |pids: &[i32]| Expected {
            intents: Vec::new(),
            processes: pids.iter().map(|pid| (*pid, at)).collect(),
        };
        assert!(is_witness(&report, &expected(&[7, 8])));
        assert!(is_witness(&report, &expected(&[8])));
        assert!(!is_witness(&report, &expected(&[8, 9])));
        assert!(!is_witness(&report, &expected(&[])));
        let newer = PodStatus { intent_index: Some(IntentIndex::NONE), ..report };
        assert!(!is_witness(&newer, &expected(&[7])), "this agent wrote it without an intent");
    }

    #[test]
    fn first_report_depends_on_the_intent_and_later_ones_on_the_report_before() {
        let known = PodIntent {
            intent: Some(intent(5)),
            listed: Listed::Same(intent(5)),
            proof: Proof::Unasked,
            reported: None,
            outdated: None,
        };
        assert_eq!(basis(known), ReportBasis::Intent(intent(5)));
        let reported = PodIntent { reported: Some((intent(5), Index(9))), ..known };
        let chained = ReportBasis::Report(intent(5), Index(9));
        assert_eq!(basis(reported), chained);
        // The intent was written again, with the same content.
        let again = PodIntent { listed: Listed::Same(intent(7)), ..reported };
        assert_eq!(basis(again), ReportBasis::Intent(intent(7)));
        let refused = PodIntent { outdated: Some(intent(7)), ..again };
        assert_eq!(basis(refused), ReportBasis::Hold, "until the list shows what is there");
        let replaced = PodIntent { listed: Listed::Replaced, ..known };
        assert_eq!(basis(replaced), ReportBasis::Known(intent(5)));
    }

    #[test]
    fn report_of_a_missing_pod_waits_for_its_proof() {
        let known = |proof, reported| PodIntent {
            intent: Some(intent(5)),
            listed: Listed::Missing,
            proof,
            reported,
            outdated: None,
        };
        let reported = Some((intent(5), Index(9)));
        for proof in [Proof::Unasked, Proof::Asked, Proof::Unclear(Duration::ZERO)] {
            assert_eq!(basis(known(proof, None)), ReportBasis::Hold);
            let chained = ReportBasis::Report(intent(5), Index(9));
            assert_eq!(basis(known(proof, reported)), chained);
        }
        assert_eq!(basis(known(Proof::Gone, None)), ReportBasis::Known(intent(5)));
        let none = ReportBasis::Known(IntentIndex::NONE);
        assert_eq!(basis(known(Proof::Lost, reported)), none);
    }
}
