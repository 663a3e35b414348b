//! Hostile records that make or order others: CronJobs, JobFlows, templates, priority classes, groups that ask for cells,
//! and jobs with annotations.
//!
//! Those that are valid are small or can never run, so that they take from nobody what queues and cells promise.

use serde_json::{Value, json};

use super::documents::document;
use super::flows::{FLOWS, TEMPLATES, flow_document, template_document};
use super::hostile::{HUGE, HostileKind, NAMESPACE, Nature, deep, doubling};
use super::schedules::{CRONS, cron_document};
use super::users::Workload;
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::key;

fn name(kind: &str, nature: Nature) -> Namespaced {
    format!("{NAMESPACE}/{kind}-of-{}", nature as u8).parse().expect("a record's name")
}

/// The `spec` of a job that is `nature` in itself.
fn job_spec(nature: Nature) -> Value {
    let mut container = json!({"name": "c", "command": ["true"]});
    let mut metadata = json!({});
    let mut replicas = json!(1);
    match nature {
        Nature::Huge => metadata["annotations"] = json!({"huge": "x".repeat(HUGE)}),
        Nature::Overflowing => replicas = json!(u32::MAX),
        Nature::Many => replicas = json!(100_000),
        Nature::SelfReferring => {
            let env = doubling(|n| format!("$(A{n:02})")).into_iter();
            let env: Vec<Value> =
                env.map(|(name, value)| json!({"name": name, "value": value})).collect();
            container["env"] = json!(env);
        }
        Nature::Deep | Nature::Colliding => {}
    }
    let spec = json!({"restartPolicy": "Never", "containers": [container]});
    let template = json!({"metadata": metadata, "spec": spec});
    json!({"queue": "default", "tasks": [{"name": "w", "replicas": replicas, "template": template}]})
}

impl Workload {
    /// Writes a hostile record of a kind that has no number in the older worlds. `of` chooses whose name it has.
    pub(super) fn write_hostile_owner(&self, kind: HostileKind, nature: Nature, of: usize) {
        match kind {
            HostileKind::Cron => self.hostile_cron(nature, of),
            HostileKind::Flow => self.hostile_flow(nature, of),
            HostileKind::Template => self.hostile_template(nature, of),
            HostileKind::PriorityClass => self.hostile_class(nature),
            HostileKind::Cells => self.hostile_cells(nature, of),
            _ => self.hostile_annotations(nature),
        }
    }

    fn hostile_cron(&self, nature: Nature, of: usize) {
        let mut spec = json!({"schedule": "* * * * *", "jobTemplate": {"spec": job_spec(nature)}});
        let mut id = name("cron", nature);
        match nature {
            Nature::Deep => return self.put(&key::cron_job(&id), deep()),
            Nature::Overflowing => {
                spec["startingDeadlineSeconds"] = json!(i64::MAX);
                spec["successfulJobsHistoryLimit"] = json!(u32::MAX);
            }
            Nature::Colliding => {
                let kind = CRONS[of % CRONS.len()];
                id = format!("{NAMESPACE}/{kind}-0").parse().expect("a CronJob's name");
                spec = cron_document(kind)["spec"].take();
            }
            Nature::Many => {
                spec["schedule"] = json!("0-59,0-59,0-59/1 ".repeat(2_000) + "* * * *");
            }
            Nature::Huge | Nature::SelfReferring => {}
        }
        let kind =
            json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "CronJob", "spec": spec});
        self.put(&key::cron_job(&id), kind.to_string());
    }

    fn hostile_flow(&self, nature: Nature, of: usize) {
        let step = |n: usize| json!({"name": format!("s{n}"), "template": "none"});
        let mut id = name("flow", nature);
        let flows = match nature {
            Nature::Deep => return self.put(&key::job_flow(&id), deep()),
            Nature::Huge => {
                let patch = json!({"jobSpec": {"huge": "x".repeat(HUGE)}});
                json!([{"name": "a", "template": TEMPLATES[0], "patch": patch}])
            }
            Nature::Overflowing => json!([{"name": "a", "template": "none", "retry": u64::MAX}]),
            Nature::SelfReferring => json!([
                {"name": "a", "template": "none", "dependsOn": {"targets": ["a", "b"]}},
                {"name": "b", "template": "none", "dependsOn": {"targets": ["a"]}},
            ]),
            Nature::Colliding => {
                let kind = FLOWS[of % FLOWS.len()];
                id = format!("{NAMESPACE}/{kind}-0").parse().expect("a JobFlow's name");
                flow_document(kind)["spec"]["flows"].take()
            }
            // Each waits for a template that never comes.
            Nature::Many => (0..1_000).map(step).collect(),
        };
        let spec = json!({"flows": flows});
        let flow =
            json!({"apiVersion": "flow.volcano.sh/v1alpha1", "kind": "JobFlow", "spec": spec});
        self.put(&key::job_flow(&id), flow.to_string());
    }

    fn hostile_template(&self, nature: Nature, of: usize) {
        let of = of % TEMPLATES.len();
        let id: Namespaced =
            format!("{NAMESPACE}/{}", TEMPLATES[of]).parse().expect("a template's name");
        let mut template = template_document(of);
        match nature {
            Nature::Deep => return self.put(&key::job_template(&id), deep()),
            Nature::Colliding => {}
            _ => template["spec"] = job_spec(nature),
        }
        self.put(&key::job_template(&id), template.to_string());
    }

    fn hostile_class(&self, nature: Nature) {
        let id: ObjectName =
            format!("{NAMESPACE}-{}", nature as u8).parse().expect("a class's name");
        let value = match nature {
            Nature::Huge => json!({"value": 1, "description": "x".repeat(HUGE)}).to_string(),
            Nature::Deep => deep(),
            Nature::Overflowing => json!({"value": i64::MAX}).to_string(),
            _ => json!({"value": "one", "preemptionPolicy": ["Never"]}).to_string(),
        };
        self.put(&key::priority_class(&id), value);
    }

    /// A group that no cells are enough for.
    fn hostile_cells(&self, nature: Nature, of: usize) {
        let id = name("cells", nature);
        let (mut cluster, mut own, mut cells) = ("A".to_owned(), id.to_string(), 1_000);
        let mut children = json!([]);
        match nature {
            Nature::Deep => return self.put(&key::pod_group(&id), deep()),
            Nature::Huge => cluster = "x".repeat(HUGE),
            Nature::Overflowing => cells = u32::MAX,
            // The name of the group of another tenant's job, in the same virtual cluster.
            Nature::Colliding => own = format!("team/own-{of}"),
            Nature::SelfReferring => children = json!([{"withinOneCell": "RACK", "member": 7}]),
            Nature::Many => children = json!(vec![json!({"member": 0}); 5_000]),
        }
        let group = json!({
            "key": {"virtualCluster": cluster, "name": own}, "priority": 1_000,
            "members": [{"pods": 1, "cells": cells}], "nested": {"children": children},
        });
        let tasks = json!([{"name": "w", "replicas": 1, "resources": {"gpu": cells}}]);
        let asked = json!({"group": group, "tasks": {"w": 0}});
        let spec = json!({"queue": "default", "cells": asked, "tasks": tasks});
        self.put(&key::pod_group(&id), json!({"spec": spec}).to_string());
    }

    fn hostile_annotations(&self, nature: Nature) {
        let id = name("job", nature);
        let text = match nature {
            Nature::Huge => json!({"rcfarm/payload": "eA==".repeat(HUGE / 4)}),
            Nature::Deep => json!({"rcfarm/depends-on": "afterok:".repeat(DEPTH)}),
            Nature::Overflowing => json!({"rcfarm/array": "0-4294967295%4294967295"}),
            Nature::SelfReferring => json!({"rcfarm/depends-on": format!("afterok:{}", id.name)}),
            Nature::Colliding => json!({"rcfarm/depends-on": "afterany:one-0,gang-1"}),
            Nature::Many => json!({"rcfarm/array": "0-99999%1"}),
        };
        let mut job = document("one", 2);
        job["metadata"] = json!({"annotations": text});
        let container = job["spec"].pointer_mut("/tasks/0/template/spec/containers/0");
        if let Some(Value::Object(container)) = container {
            container.remove("resources");
        }
        self.put(&key::job(&id), job.to_string());
    }
}

/// Number of words in a long list of dependencies.
const DEPTH: usize = 5_000;
