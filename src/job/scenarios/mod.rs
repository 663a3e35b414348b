//! Runs whole lives of jobs without a store: applies plans to pods in memory, with a manual clock.

mod arrays;
mod carried;
mod deletion;
mod described;
mod ends;
mod evicted;
mod facts;
mod gang_restart;
mod kubeflow;
mod volcano;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cluster::commands::Pending;
use crate::job::caches::Pods;
use crate::job::document;
use crate::job::members::{FreePod, MemberPod};
use crate::job::plan::{Create, GroupStep, JobObserved, ObservedGroup, plan};
use crate::job::writes::group_of;
use rcfarm_api::Index;
use rcfarm_api::Timestamp;
use rcfarm_api::command::{Command, CommandAction, Target};
use rcfarm_api::ids::{Namespaced, NodeName, PodRef};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobSpec, JobUid, Slot};
use rcfarm_api::job::status::{JobConditionType, JobReason, JobStatus, PodPhase};
use rcfarm_api::pod_group::pod_ids::PodIdFormat;

/// A job with its pods and nodes.
struct Scenario {
    id: Namespaced,
    document: Value,
    status: JobStatus,
    pods: Vec<MemberPod>,
    /// Removed pods that still run.
    leaving: Vec<MemberPod>,
    commands: Vec<Pending>,
    /// Pods with the job's labels and no uid.
    free: Vec<FreePod>,
    group: ObservedGroup,
    admitted: bool,
    now: Timestamp,
    /// All phases entered.
    phases: Vec<JobPhase>,
    /// All pods created: slot, version, attempt.
    made: Vec<(Slot, u64, u32)>,
    finished: bool,
    room: usize,
    /// Of the pods of a batched start, every n-th is not created.
    missed: usize,
    /// Group step of the last plan.
    step: GroupStep,
    /// Members that need no node any more, by the last plan.
    ended: BTreeSet<Slot>,
    /// Number of pods whose labels were deleted.
    unlabelled: usize,
    /// Members that leave their nodes by the last plan.
    moves: BTreeMap<Slot, NodeName>,
    /// Whether pods of an older job of the name still run.
    older: bool,
    /// A member without a node.
    homeless: Option<Slot>,
    /// ModifyIndex of commands.
    given_at: Index,
    /// Members whose pod id another owner's pod has on their node.
    taken: BTreeSet<Slot>,
}

impl Scenario {
    fn new(document: Value) -> Scenario {
        Scenario {
            id: "default/j".parse().unwrap(),
            document,
            status: JobStatus::default(),
            pods: Vec::new(),
            leaving: Vec::new(),
            commands: Vec::new(),
            free: Vec::new(),
            group: ObservedGroup::default(),
            admitted: true,
            now: Timestamp::from_second(1_000).unwrap(),
            phases: Vec::new(),
            made: Vec::new(),
            finished: false,
            room: 100,
            missed: usize::MAX,
            step: GroupStep::Keep,
            ended: BTreeSet::new(),
            unlabelled: 0,
            moves: BTreeMap::new(),
            older: false,
            homeless: None,
            given_at: Index(9),
            taken: BTreeSet::new(),
        }
    }

    fn job(&self) -> JobSpec {
        document::read(&self.id, &self.document)
            .unwrap_or_else(|problems| panic!("{problems:?}"))
            .spec
    }

    /// Applies one plan; `false` if it changes nothing.
    fn look(&mut self) -> bool {
        let job = self.job();
        // A round places all members or none.
        let is_placed = self.homeless.is_none() || self.group.round == 0;
        let places = (self.admitted && is_placed).then(|| {
            let slots = job
                .tasks
                .iter()
                .flat_map(|task| (0..task.replicas).map(|index| Slot::new(&task.name, index)));
            let placed = slots.filter(|slot| self.homeless.as_ref() != Some(slot));
            placed.map(|slot| (slot, "n1".parse().unwrap())).collect()
        });
        self.group.places = places.filter(|_| self.group.exists);
        self.group.is_admitted = self.group.places.is_some();
        self.group.bound = self.group.places.clone().unwrap_or_default();
        if let Some(places) = &mut self.group.places {
            let (draining, status) = (&self.group.draining, &self.status);
            places.retain(|slot, node| !draining.contains(node) || status.has_started(slot));
        }
        let mut leaving = BTreeMap::new();
        for pod in &self.leaving {
            *leaving.entry(pod.slot.clone()).or_default() += 1;
        }
        let plan = plan(&JobObserved {
            id: &self.id,
            uid: JobUid(Index(7)),
            job: &job,
            immutable_hash: document::immutable_hash(&self.document),
            requestless_hash: document::requestless_hash(&self.document),
            status: &self.status,
            pods: &self.pods,
            leaving: &leaving,
            orphans: 0,
            unlabelled: self.unlabelled,
            older: self.older,
            unowned: &self.free,
            mismatched: false,
            taken: &self.taken,
            group: &self.group,
            commands: &self.commands,
            may_remove: true,
            room: self.room,
            now: self.now,
        });
        let exists = match plan.group {
            GroupStep::Keep => true,
            GroupStep::Leave => self.group.exists,
            GroupStep::Delete => false,
        };
        let busy = plan.status != self.status
            || !plan.create.is_empty()
            || !plan.remove.is_empty()
            || !plan.adopt.is_empty()
            || plan.consume.is_some()
            || self.group.exists != exists;
        let first = self.room.saturating_sub(plan.remove.len());
        assert!(plan.create.len() <= first || plan.remove.is_empty());
        assert!(plan.remove.len() <= self.room);
        self.step = plan.group;
        self.ended.clone_from(&plan.ended);
        let runs = |slot: &Slot| {
            let pods = self.pods.iter().filter(|pod| !pod.phase.has_ended()).chain(&self.leaving);
            pods.into_iter().any(|pod| pod.slot == *slot)
        };
        assert!(!plan.moves.keys().any(runs), "{:?}: their pods run there", plan.moves);
        self.moves.clone_from(&plan.moves);
        if plan.group == GroupStep::Keep {
            let places = self.group.places.iter().flatten().map(|(slot, _)| slot);
            let places = places.chain(&plan.ended).collect::<BTreeSet<_>>().len();
            let pods = Pods { own: self.pods.clone(), leaving, ..Pods::default() };
            let uid = JobUid(Index(7));
            let group = group_of(&self.id, uid, &job, &plan, places, &pods, None);
            for pod in self.pods.iter().filter(|pod| !pod.lost).chain(&self.leaving) {
                let held = |task: &rcfarm_api::pod_group::spec::TaskSpec| {
                    task.name == pod.slot.task.to_ascii_lowercase()
                        && task.replicas > pod.slot.index
                };
                assert!(group.spec.tasks.iter().any(held), "{} has no place any more", pod.slot);
            }
            // A group without tasks is not checked.
            let is_bad = !group.spec.tasks.is_empty() && !group.spec.check(&self.id).is_empty();
            assert!(!is_bad, "{:?}", group.spec.check(&self.id));
        }
        if plan.status.state.phase != self.status.state.phase || self.phases.is_empty() {
            self.phases.push(plan.status.state.phase);
        }
        for (pod, _) in &plan.remove {
            let at = self.pods.iter().position(|other| other == pod).unwrap();
            let pod = self.pods.remove(at);
            if !pod.lost {
                self.leaving.push(pod);
            }
        }
        for Create { slot, node, version, attempt } in plan.adopt {
            self.free.retain(|free| (&free.slot, &free.node) != (&slot, &node));
            self.pods.push(pod(slot, node, version, attempt));
        }
        for (n, create) in plan.create.into_iter().enumerate() {
            if n >= first && (n - first) % self.missed == self.missed - 1 {
                continue;
            }
            let Create { slot, node, version, attempt } = create;
            let twin = |pod: &MemberPod| pod.slot == slot;
            assert!(!self.pods.iter().any(twin), "two pods of {slot}");
            assert!(!self.leaving.iter().any(twin), "{slot} began before its older try was gone");
            self.made.push((slot.clone(), version, attempt));
            self.pods.push(pod(slot, node, version, attempt));
        }
        if let Some(consumed) = plan.consume {
            self.commands.retain(|command| command.id != consumed.id);
        }
        self.group.exists = exists;
        if plan.group == GroupStep::Keep && plan.status.round > self.group.round {
            (self.group.round, self.group.is_over) = (plan.status.round, false);
        }
        self.group.is_foreign &= self.step != GroupStep::Delete;
        self.status = plan.status;
        self.finished |= plan.finished;
        self.check();
        busy
    }

    /// Checks invariants 20 to 22.
    fn check(&self) {
        let condition = |kind| rcfarm_api::job::status::holds(&self.status.conditions, kind);
        use JobConditionType as C;
        assert!(!(condition(C::Succeeded) && condition(C::Failed)));
        assert!(!(condition(C::Running) && condition(C::Restarting)));
        assert!(self.status.retry_count <= self.job().max_retry);
        for made in &self.made {
            assert_eq!(self.made.iter().filter(|other| *other == made).count(), 1, "{made:?}");
        }
    }

    /// Applies plans until nothing changes; removed pods stop at once.
    fn reconcile(&mut self) -> JobPhase {
        for _ in 0..200 {
            let was_leaving = !self.leaving.is_empty();
            let busy = self.look();
            self.leaving.clear();
            if !busy && !was_leaving {
                return self.status.state.phase;
            }
        }
        panic!("it never comes to rest: {:?}", self.status);
    }

    /// Advances the clock and reconciles.
    fn wait(&mut self, seconds: u64) -> JobPhase {
        self.now = self.now.checked_add(Duration::from_secs(seconds)).unwrap();
        self.reconcile()
    }

    /// Sets all pending pods to running.
    fn run(&mut self) -> JobPhase {
        self.reconcile();
        for pod in &mut self.pods {
            if pod.phase == PodPhase::Pending {
                (pod.phase, pod.ready) = (PodPhase::Running, true);
            }
        }
        self.reconcile()
    }

    fn pod(&mut self, task: &str, index: u32) -> &mut MemberPod {
        let slot = Slot::new(task, index);
        self.pods.iter_mut().find(|pod| pod.slot == slot).unwrap_or_else(|| panic!("no {slot}"))
    }

    fn end(&mut self, task: &str, index: u32, code: i32) -> JobPhase {
        let pod = self.pod(task, index);
        pod.phase = if code == 0 { PodPhase::Succeeded } else { PodPhase::Failed };
        (pod.exit_code, pod.ready) = (Some(code), false);
        self.reconcile()
    }

    fn command(
        &mut self,
        action: CommandAction,
        task: Option<&str>,
        index: Option<u32>,
    ) -> JobPhase {
        let target = Target::Job {
            job: self.id.clone(),
            uid: Some(Index(7)),
            task: task.map(str::to_owned),
            index,
        };
        self.give(action, target)
    }

    fn give(&mut self, action: CommandAction, target: Target) -> JobPhase {
        let n = u128::try_from(self.commands.len() + self.made.len()).unwrap();
        let command = Command { action, target, reason: String::new(), issued_by: "me".into() };
        let id = Uuid::from_u128(n + 1);
        let key = rcfarm_api::key::command(id);
        self.commands.push(Pending { id, key, index: self.given_at, command: command.into() });
        self.reconcile();
        assert!(self.commands.is_empty(), "{action} was not consumed");
        self.status.state.phase
    }

    fn slots(&self) -> Vec<String> {
        let mut slots: Vec<String> = self.pods.iter().map(|pod| pod.slot.to_string()).collect();
        slots.sort();
        slots
    }
}

fn pod(slot: Slot, node: NodeName, version: u64, attempt: u32) -> MemberPod {
    let pod = slot.pod_id(&"default/j".parse().unwrap(), PodIdFormat::Hashed).unwrap();
    MemberPod {
        slot,
        place: PodRef { node, pod },
        version,
        attempt,
        label_index: Index(1),
        intent: Some(Index(1)),
        phase: PodPhase::Pending,
        ready: false,
        exit_code: None,
        restarts: 0,
        lost: false,
        on_down_node: false,
        message: String::new(),
        failure: None,
        is_due: false,
    }
}

fn task(name: &str, replicas: u32) -> Value {
    json!({"name": name, "replicas": replicas, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}],
    }}})
}

fn volcano(tasks: &[Value], more: Value) -> Scenario {
    let mut spec = json!({"tasks": tasks});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Scenario::new(json!({"spec": spec}))
}

fn policy(event: &str, action: &str) -> Value {
    json!({"policies": [{"event": event, "action": action}]})
}

fn tf(members: &[(&str, u32, &str)], more: Value) -> Scenario {
    let members: serde_json::Map<String, Value> = members
        .iter()
        .map(|(name, replicas, restart)| {
            let template =
                json!({"spec": {"containers": [{"name": "tensorflow", "command": ["t"]}]}});
            let member =
                json!({"replicas": replicas, "restartPolicy": restart, "template": template});
            ((*name).to_owned(), member)
        })
        .collect();
    let mut spec = json!({"tfReplicaSpecs": members});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Scenario::new(json!({"kind": "TFJob", "spec": spec}))
}
