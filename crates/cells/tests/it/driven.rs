//! A scheduler with pods, driven as the reference's tests drive theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use rcfarm_cells::request::{AffinityGroupMemberSpec, AffinityGroupSpec, PodSchedulingSpec};
use rcfarm_cells::{
    AffinityGroupState, CellConfig, CellDecision, CellHealthiness, CellScheduler, GroupKey,
    PodRequest,
};

pub const DESIGN: &str = include_str!("../../testdata/design.yaml");

/// What the scheduler said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Node and devices.
    Bind(String, Vec<i32>),
    /// Pods of the victims.
    Preempt(BTreeSet<String>),
    Wait(String),
    Refused(String),
}

pub fn bind(node: &str, devices: impl IntoIterator<Item = i32>) -> Outcome {
    Outcome::Bind(node.to_owned(), devices.into_iter().collect())
}

pub fn preempt(pods: &[&str]) -> Outcome {
    Outcome::Preempt(pods.iter().map(|&pod| pod.to_owned()).collect())
}

impl Outcome {
    pub fn waits(&self, part: &str) {
        match self {
            Outcome::Wait(reason) => assert!(reason.contains(part), "{reason}"),
            other => panic!("{other:?} is no wait for {part}"),
        }
    }
    pub fn refused(&self, part: &str) {
        match self {
            Outcome::Refused(message) => assert!(message.contains(part), "{message}"),
            other => panic!("{other:?} is no refusal for {part}"),
        }
    }
    pub fn node(&self) -> &str {
        match self {
            Outcome::Bind(node, _) => node,
            other => panic!("{other:?} is no place"),
        }
    }
}

/// A V1 request: virtual cluster, priority, device type, devices of the pod, group, members (pods, devices).
#[derive(Debug, Clone)]
pub struct Spec(pub PodSchedulingSpec);

pub fn spec(
    vc: &str,
    priority: i64,
    leaf_type: &str,
    leaves: i64,
    group: &str,
    members: &[(i64, i64)],
) -> Spec {
    let members = members.iter().map(|&(pod_number, leaf_cell_number)| AffinityGroupMemberSpec {
        pod_number,
        leaf_cell_number,
    });
    Spec(PodSchedulingSpec {
        virtual_cluster: vc.to_owned(),
        priority,
        leaf_cell_type: leaf_type.to_owned(),
        leaf_cell_number: leaves,
        ignore_k8s_suggested_nodes: true,
        affinity_group: Some(AffinityGroupSpec {
            name: group.to_owned(),
            members: members.collect(),
        }),
        ..PodSchedulingSpec::default()
    })
}

impl Spec {
    pub fn lazy(mut self) -> Spec {
        self.0.lazy_preemption_enable = true;
        self
    }
    pub fn pinned(mut self, id: &str) -> Spec {
        self.0.pinned_cell_id = id.to_owned();
        self
    }
    pub fn strict(mut self) -> Spec {
        self.0.ignore_k8s_suggested_nodes = false;
        self
    }
}

/// The reference's phase: only the second may reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Filtering,
    Preempting,
}

pub struct DrivenCells {
    pub cells: CellScheduler,
    pub groups_of: BTreeMap<String, GroupKey>,
}

impl DrivenCells {
    /// All nodes healthy.
    pub fn new(config: &CellConfig) -> DrivenCells {
        let model = config.validate().unwrap_or_else(|errors| panic!("{errors:#?}"));
        let mut cells = CellScheduler::new(Arc::new(model));
        let nodes: Vec<String> = cells.model().nodes().map(str::to_owned).collect();
        cells.set_nodes(nodes.iter().map(|node| (node.as_str(), CellHealthiness::Healthy)));
        DrivenCells { cells, groups_of: BTreeMap::new() }
    }

    pub fn yaml(text: &str) -> DrivenCells {
        DrivenCells::new(&CellConfig::parse(text).unwrap_or_else(|error| panic!("{error}")))
    }

    pub fn all_nodes(&self) -> Vec<String> {
        self.cells.model().nodes().map(str::to_owned).collect()
    }

    pub fn schedule(&mut self, pod: &str, spec: &Spec) -> Outcome {
        self.schedule_in(pod, spec, Phase::Preempting, None)
    }

    pub fn filter(&mut self, pod: &str, spec: &Spec) -> Outcome {
        self.schedule_in(pod, spec, Phase::Filtering, None)
    }

    pub fn schedule_on(&mut self, pod: &str, spec: &Spec, suggested: &[&str]) -> Outcome {
        let nodes = suggested.iter().map(|&node| node.to_owned()).collect();
        self.schedule_in(pod, spec, Phase::Preempting, Some(&nodes))
    }

    pub fn schedule_in(
        &mut self,
        pod: &str,
        spec: &Spec,
        phase: Phase,
        suggested: Option<&BTreeSet<String>>,
    ) -> Outcome {
        match spec.0.request("test", pod) {
            Ok(request) => self.decide(pod, &request, phase, suggested),
            Err(error) => Outcome::Refused(error.message),
        }
    }

    pub fn decide(
        &mut self,
        pod: &str,
        request: &PodRequest,
        phase: Phase,
        suggested: Option<&BTreeSet<String>>,
    ) -> Outcome {
        let decision = match self.cells.plan(request, &format!("{pod}(test/{pod})"), suggested) {
            Ok(decision) => decision,
            Err(error) => return Outcome::Refused(error.message),
        };
        let key = request.group.key.clone();
        let commit = |driven: &mut DrivenCells, plan| {
            driven.cells.commit(plan, pod, Timestamp::UNIX_EPOCH).expect("nothing has changed");
            driven.groups_of.insert(pod.to_owned(), key.clone());
        };
        match &decision {
            CellDecision::Bind(plan) => {
                commit(self, plan);
                let place = plan.place();
                Outcome::Bind(place.node.clone(), place.devices.clone())
            }
            CellDecision::Preempt(plan) => {
                if phase == Phase::Preempting {
                    commit(self, plan);
                }
                let victims = plan.victims.iter().filter_map(|key| self.cells.group(key));
                let pods = victims.flat_map(|group| group.allocated_pods().map(str::to_owned));
                Outcome::Preempt(pods.collect())
            }
            CellDecision::Wait(wait) => {
                assert!(!wait.reasons.is_empty());
                if let (Some(reason), Phase::Preempting) = (&wait.cancel, phase) {
                    self.cells.cancel(&key, reason);
                }
                let reasons: Vec<&str> = wait.reasons.iter().map(|of| of.reason.as_str()).collect();
                assert!(reasons.iter().all(|reason| !reason.is_empty()));
                Outcome::Wait(reasons.join("; "))
            }
        }
    }

    pub fn delete(&mut self, pod: &str) {
        let key = self.groups_of.remove(pod).expect("the pod is known");
        self.cells.pod_gone(&key, pod);
    }

    pub fn bad(&mut self, node: &str) {
        self.cells.set_node(node, CellHealthiness::Bad);
    }

    pub fn heal(&mut self, node: &str) {
        self.cells.set_node(node, CellHealthiness::Healthy);
    }

    pub fn state(&self, vc: &str, group: &str) -> Option<AffinityGroupState> {
        self.cells.group_state(&GroupKey::new(vc, group))
    }

    pub fn preemptor(&self, vc: &str, group: &str) -> Option<String> {
        let group = self.cells.group(&GroupKey::new(vc, group))?;
        Some(group.lazy_preemption.as_ref()?.preemptor.clone())
    }
}
