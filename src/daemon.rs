//! Composition root: builds a farm from its kinds. A new kind of record is one line in `KINDS`.

use std::sync::Arc;
use std::time::Duration;

use crate::batch;
use crate::batch::caches::SchedulerCaches;
use crate::cluster::ClusterView;
use crate::cluster::commands::Commands;
use crate::cron;
use crate::farm::kind::{ControllerContext, Kind, KindSpec, RegisteredKind};
use crate::farm::{Farm, FarmSettings, PlacementReport};
use crate::flow;
use crate::job;
use crate::job::caches::JobCaches;
use crate::placement::{Discovery, Scheduler, SelectorScheduler};
use crate::replication::caches::RcCaches;
use crate::replication::{self, PlacementSources};
use rcfarm_api::key;
use rcfarm_store::Env;
use rcfarm_store::cache::Cache;
use rcfarm_store::sealing::KeySealing;
use rcfarm_store::watch::PollPolicy;

/// Builds a scheduler on the cluster view that the farm watches.
pub type MakeScheduler = Box<dyn FnOnce(&Arc<ClusterView>) -> Arc<dyn Scheduler> + Send>;

/// Builds the built-in scheduler: by node labels and free capacity.
#[must_use]
pub fn by_labels() -> MakeScheduler {
    Box::new(|view| Arc::new(selector_scheduler(view)))
}

/// The built-in scheduler over the caches of a farm.
#[must_use]
pub fn selector_scheduler(view: &Arc<ClusterView>) -> SelectorScheduler {
    let (labels, capacities) = (view.clone(), view.clone());
    SelectorScheduler::new(move || labels.node_labels(), move || capacities.node_capacities())
}

/// What kinds are built from, besides their [`ControllerContext`].
struct Parts {
    view: Arc<ClusterView>,
    rc_caches: Arc<RcCaches>,
    placement: PlacementSources,
    scheduler_caches: Arc<SchedulerCaches>,
    job_caches: Arc<JobCaches>,
    job_ttl: Option<Duration>,
    sealing: KeySealing,
    finds_leftovers: bool,
}

impl Parts {
    fn new(
        settings: &FarmSettings,
        env: &Env,
        scheduler: MakeScheduler,
        discovery: Arc<dyn Discovery>,
    ) -> Parts {
        let store = &env.store;
        let view = ClusterView::new(store.clone(), settings.node_grace);
        let commands = Cache::<Commands>::new(store.clone(), key::commands(), PollPolicy::PROMPT);
        Parts {
            placement: PlacementSources { scheduler: scheduler(&view), discovery },
            rc_caches: RcCaches::new(store.clone(), view.clone()),
            scheduler_caches: SchedulerCaches::new(store.clone(), view.clone(), commands.clone()),
            job_caches: JobCaches::new(store.clone(), view.clone(), commands),
            job_ttl: settings.job_ttl,
            sealing: settings.ssh_keys.clone(),
            finds_leftovers: settings.finds_leftovers,
            view,
        }
    }
}

/// A kind's data, and how its behaviour is built.
struct KindEntry {
    spec: fn() -> KindSpec,
    build: fn(ControllerContext, &Parts) -> Arc<dyn Kind>,
}

/// The kinds of records that a farm claims: one line each.
#[rustfmt::skip]
const KINDS: [KindEntry; 5] = [
    KindEntry { spec: replication::kind::spec, build: |ctx, p| Arc::new(replication::kind::RcKind::new(ctx, p.rc_caches.clone(), p.placement.clone())) },
    KindEntry { spec: batch::kind::spec, build: |ctx, p| Arc::new(batch::kind::SchedulerKind::new(ctx, p.scheduler_caches.clone(), p.placement.scheduler.clone())) },
    KindEntry { spec: job::kind::spec, build: |ctx, p| Arc::new(job::kind::JobKind::new(ctx, p.job_caches.clone(), p.job_ttl, p.sealing.clone())) },
    KindEntry { spec: cron::kind::spec, build: |ctx, p| Arc::new(cron::kind::CronKind::new(ctx, p.finds_leftovers)) },
    KindEntry { spec: flow::kind::spec, build: |ctx, p| Arc::new(flow::kind::FlowKind::new(ctx, p.finds_leftovers)) },
];

/// The data of all kinds, without a farm.
#[must_use]
pub fn kind_specs() -> Vec<KindSpec> {
    KINDS.iter().map(|entry| (entry.spec)()).collect()
}

impl Farm {
    #[must_use]
    pub fn of_all_kinds(
        settings: FarmSettings,
        env: Env,
        scheduler: MakeScheduler,
        discovery: Arc<dyn Discovery>,
    ) -> Farm {
        let parts = Parts::new(&settings, &env, scheduler, discovery);
        let register = |entry: &KindEntry| {
            let spec = (entry.spec)();
            let ctx = ControllerContext::new(&settings, &env, &spec);
            RegisteredKind::new(spec, (entry.build)(ctx, &parts))
        };
        let kinds = KINDS.iter().map(register).collect();
        let Parts { view, placement, .. } = parts;
        let farm = Farm::new(settings, env, kinds);
        let metrics = farm.metrics();
        view.on_lag(move |tree, lag| metrics.caught_up(tree, lag));
        farm.reporting(Arc::new(move || PlacementReport {
            scheduler: placement.scheduler.address(),
            suspect_nodes: view.suspects(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use rcfarm_store::Prefix;

    const FARM_POLICY: &str = include_str!("../docs/operate/acl/farm.hcl");

    /// Prefixes (or single keys) that the policy grants `right` on.
    fn granted(resource: &str, right: &str) -> BTreeSet<String> {
        let rules = FARM_POLICY.lines().filter(|line| line.starts_with(&format!("{resource} ")));
        let rules = rules.filter(|line| line.contains(&format!("policy = {right:?}")));
        rules.filter_map(|line| Some(line.split('"').nth(1)?.to_owned())).collect()
    }

    #[test]
    fn farm_policy_grants_what_kinds_declare() {
        let specs = kind_specs();
        let names = |prefixes: Vec<&Prefix>| -> BTreeSet<String> {
            prefixes.into_iter().map(ToString::to_string).collect()
        };
        let (farms, bells, audit) = (key::farms(), key::bells(), key::audit_logs());
        let mut written = names(specs.iter().flat_map(KindSpec::writable).collect());
        written.extend(names(vec![&farms, &bells, &audit]));
        assert_eq!(granted("key_prefix", "write"), written);
        let mut read = names(specs.iter().flat_map(KindSpec::readable).collect());
        read.retain(|prefix| !written.contains(prefix));
        assert_eq!(granted("key_prefix", "read"), read);
        let sentinels = specs.iter().flat_map(|spec| &spec.sentinels);
        let single = sentinels.filter(|prefix| !written.contains(prefix.as_str()));
        let mut single: BTreeSet<String> = single.map(|p| p.sentinel().to_string()).collect();
        single.insert(key::layout().to_string());
        assert_eq!(granted("key", "write"), single);
    }

    #[test]
    fn kinds_do_not_share_names_or_locks() {
        let specs = kind_specs();
        let names: BTreeSet<&str> = specs.iter().map(|spec| spec.name).collect();
        let locks: BTreeSet<&Prefix> = specs.iter().map(|spec| &spec.locks).collect();
        assert_eq!((names.len(), locks.len()), (specs.len(), specs.len()));
    }
}
