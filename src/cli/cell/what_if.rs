//! `rcfarm cell what-if`: whether jobs would get their cells now, where, and who would go. Nothing is changed.
//!
//! It decides as the scheduler does (`crate::placement::cells::gang::decide`), for each job alone, as if it came next: the
//! order of queues and the ports of nodes do not count.

use std::collections::BTreeMap;

use serde::Serialize;

use super::scheduler::read;
use crate::cli::apply::described;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::job::apply::WantedJob;
use crate::cli::job_type::apply::WantedTypes;
use crate::cli::output::{or_dash, table};
use crate::cli::queue::snapshot::{QueueSnapshot, snapshot};
use crate::cluster::cells::CellsSnapshot;
use crate::job::writes::tasks_of_new;
use crate::placement::cells::{self, gang};
use rcfarm_api::ResourceList;
use rcfarm_api::cells::{AffinityGroupRecord, CellRequest, ChainReason, PodPlacementRecord};
use rcfarm_api::ids::{Namespace, Namespaced, NodeName};
use rcfarm_api::job::spec::JobSpec;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupRecord, PodGroupSpec};
use rcfarm_cells::{CellDecision, CellPlan, CellScheduler, GroupKey, GroupRequest, PodRequest};

#[derive(clap::Args)]
pub struct WhatIfArgs {
    /// A YAML or JSON file with jobs that ask for cells, or a directory of such files; - reads standard input; may be
    /// repeated
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<String>,
    /// Namespace of jobs whose document has none (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE", default_value = "default")]
    within: Namespace,
}

/// A pod of the job in its place.
#[derive(Debug, Serialize)]
struct PodPlace {
    pod: String,
    node: String,
    devices: String,
    virtual_cell: Option<String>,
}

/// Another group for which something would change.
#[derive(Debug, Serialize)]
struct AffectedGroup {
    /// Virtual cluster and name.
    group: String,
    /// The PodGroup, which has its job's name.
    pod_group: Option<GroupId>,
}

/// The answer for a job.
#[derive(Debug, Serialize)]
struct WhatIf {
    job: Namespaced,
    group: String,
    /// Whether it would get its cells: at once, or once the victims have stopped.
    placed: bool,
    /// Whether it has them already.
    holds: bool,
    chain: Option<String>,
    pods: Vec<PodPlace>,
    /// Groups that would be stopped.
    victims: Vec<AffectedGroup>,
    /// Groups that would run on as opportunistic.
    downgraded: Vec<AffectedGroup>,
    /// Groups that would lose what they reserve.
    reservations_lost: Vec<AffectedGroup>,
    /// Why it would not be placed.
    reasons: Vec<ChainReason>,
}

pub(super) async fn run(context: &CommandContext, args: &WhatIfArgs) -> anyhow::Result<CliExit> {
    let queues = snapshot(context).await?;
    let jobs = jobs(context, args, &queues).await?;
    let now = read(context).await?;
    let answers: Vec<WhatIf> = jobs
        .iter()
        .map(|job| {
            let (id, spec) = job.described();
            answer(context, id, spec, &now, &queues)
        })
        .collect::<anyhow::Result<_>>()?;
    context.show(&answers, || answers.iter().map(text).collect::<Vec<_>>().join("\n"))?;
    let all = answers.iter().all(|answer| answer.placed);
    Ok(if all { CliExit::Ok } else { CliExit::Changes })
}

/// The jobs of the files, checked as `apply` does.
async fn jobs(
    context: &CommandContext,
    args: &WhatIfArgs,
    queues: &QueueSnapshot,
) -> anyhow::Result<Vec<WantedJob>> {
    let files = args.filename.join(", ");
    let described = described(&args.filename, &args.within)?.jobs;
    if described.is_empty() {
        return Err(failure(
            format!("{files} has no jobs"),
            "write a job that asks for cells into it",
        ));
    }
    let mut problems = Vec::new();
    let types = WantedTypes::default();
    let others = (&queues.queues, None, &types);
    let jobs = WantedJob::read_all(context, described, others, &mut problems).await?;
    if problems.is_empty() {
        return Ok(jobs);
    }
    let why = format!("{files} cannot be applied:\n  {}", problems.join("\n  "));
    Err(failure(why, "correct the fields named"))
}

fn answer(
    context: &CommandContext,
    id: &Namespaced,
    job: &JobSpec,
    now: &CellsSnapshot,
    queues: &QueueSnapshot,
) -> anyhow::Result<WhatIf> {
    let Some(request) = &job.cells else {
        let hint = "write the annotation hivedscheduler.microsoft.com/pod-scheduling-spec on its templates";
        return Err(failure(format!("{id} asks for no cells"), hint));
    };
    let key = &request.group.key;
    let mut found = WhatIf {
        job: id.clone(),
        group: key.to_string(),
        placed: false,
        holds: false,
        chain: None,
        pods: Vec::new(),
        victims: Vec::new(),
        downgraded: Vec::new(),
        reservations_lost: Vec::new(),
        reasons: Vec::new(),
    };
    match now.holder(key) {
        Some((holder, record)) if holder == id => {
            (found.placed, found.holds) = (true, true);
            found.chain = Some(record.chain.clone());
            found.pods = record.pods.iter().map(pod_place).collect();
            found.victims = affected(now, &now.scheduler.victims(key));
            return Ok(found);
        }
        Some((holder, _)) => {
            found.reasons = vec![reason(format!("PodGroup {holder} is the affinity group {key}"))];
            return Ok(found);
        }
        None => {}
    }
    let spec = PodGroupSpec {
        tasks: tasks_of_new(job),
        cells: Some(request.clone()),
        queue: job.queue.parse()?,
        ..PodGroupSpec::default()
    };
    let charge = spec.charge(&spec.all());
    if let Err(too_much) = queues.queues.fits(&queues.usage, &spec.queue, &charge) {
        found.reasons = vec![reason(format!("queue {}: {}", spec.queue, too_much.message))];
        return Ok(found);
    }
    match place(context, id, &spec, request, now, queues) {
        Ok((plan, record)) => {
            found.placed = true;
            found.chain = Some(plan.chain.clone());
            found.pods = record.pods.iter().map(pod_place).collect();
            found.victims = affected(now, &plan.victims);
            found.downgraded = affected(now, &plan.downgrades);
            found.reservations_lost = affected(now, &plan.cancels);
        }
        Err(reasons) => found.reasons = reasons,
    }
    Ok(found)
}

fn reason(text: String) -> ChainReason {
    ChainReason { chain: String::new(), reason: text }
}

/// Where a group would be placed.
///
/// # Errors
/// Why it would not.
fn place(
    context: &CommandContext,
    id: &Namespaced,
    spec: &PodGroupSpec,
    request: &CellRequest,
    now: &CellsSnapshot,
    queues: &QueueSnapshot,
) -> Result<(CellPlan, AffinityGroupRecord), Vec<ChainReason>> {
    let one = |text: String| vec![reason(text)];
    let group = GroupRequest { ignore_suggested_nodes: false, ..request.group.clone() };
    let pod = PodRequest { group, member: 0 };
    let free = |node: &NodeName, freed: &BTreeMap<NodeName, ResourceList>| {
        let mut free = now.fleet.node_capacities.of(node).free();
        if let Some(freed) = freed.get(node) {
            free.add(freed);
        }
        free
    };
    let model = now.scheduler.model();
    let decision = gang::decide(&pod.group, false, |preempting| {
        let freed = match preempting {
            true => asks_of(now, |record| gang::may_preempt(&pod.group, record)),
            false => BTreeMap::new(),
        };
        let suggested = cells::suggested(model, &now.fleet, &spec.tasks, |node| free(node, &freed));
        now.scheduler.plan(&pod, &id.to_string(), Some(&suggested))
    });
    let plan = match decision.map_err(|bad| one(bad.message))? {
        CellDecision::Bind(plan) | CellDecision::Preempt(plan) => plan,
        CellDecision::Wait(wait) => return Err(wait.reasons),
    };
    let freed = asks_of(now, |record| plan.victims.contains(&record.request.key));
    if let Some(lack) = gang::lack(&plan, spec, |node| free(node, &freed)) {
        let chain = plan.chain.clone();
        return Err(vec![ChainReason { chain, reason: lack }]);
    }
    let of = |key: &GroupKey| {
        let (id, record) = now.holder(key)?;
        let group = queues.groups.get(id).and_then(|group| group.value.as_ref().ok());
        Some((record, group.and_then(PodGroupRecord::forbids_stop)))
    };
    if let Some(why) = gang::forbidden(&plan, of) {
        return Err(vec![ChainReason { chain: plan.chain.clone(), reason: why }]);
    }
    let slots = gang::slots(spec, request).map_err(one)?;
    let (_, names) = gang::assign(spec, &plan, &slots).map_err(one)?;
    let mut after: CellScheduler = now.scheduler.clone();
    after.commit_gang(&plan, &names, context.now()).map_err(|bad| one(bad.to_string()))?;
    let record = after.record(&plan.key);
    record.map(|record| (plan, record)).ok_or_else(|| one("it has no cells".to_owned()))
}

/// What groups have on each node, by what they hold.
fn asks_of(
    now: &CellsSnapshot,
    of: impl Fn(&AffinityGroupRecord) -> bool,
) -> BTreeMap<NodeName, ResourceList> {
    let statuses = now.statuses.0.values().filter_map(|stored| stored.value.as_ref());
    gang::asks_of(statuses, of)
}

fn pod_place(pod: &PodPlacementRecord) -> PodPlace {
    PodPlace {
        pod: pod.pod.clone().unwrap_or_default(),
        node: pod.node.clone(),
        devices: pod.devices.clone(),
        virtual_cell: pod.cell.clone(),
    }
}

fn affected(now: &CellsSnapshot, keys: &[GroupKey]) -> Vec<AffectedGroup> {
    let of = |key: &GroupKey| AffectedGroup {
        group: key.to_string(),
        pod_group: now.holder(key).map(|(id, _)| id.clone()),
    };
    keys.iter().map(of).collect()
}

fn text(answer: &WhatIf) -> String {
    let WhatIf { job, victims, .. } = answer;
    let chain = or_dash(answer.chain.as_ref());
    let stops = match victims.len() {
        0 => String::new(),
        1 => ", once a group has stopped".to_owned(),
        n => format!(", once {n} groups have stopped"),
    };
    let mut text = match (answer.placed, answer.holds) {
        (true, true) => format!("{job}: it has its cells in chain {chain}{stops}\n"),
        (true, false) => format!("{job}: placed in chain {chain}{stops}\n"),
        (false, _) => format!("{job}: not placed\n"),
    };
    for reason in &answer.reasons {
        text.push_str(&format!("  {reason}\n"));
    }
    let others = [
        ("stops", victims),
        ("runs on as opportunistic", &answer.downgraded),
        ("loses its reservation", &answer.reservations_lost),
    ];
    for (what, groups) in others {
        for AffectedGroup { group, pod_group } in groups {
            let of = pod_group.as_ref().map(|id| format!(" (PodGroup {id})")).unwrap_or_default();
            text.push_str(&format!("  {what}: {group}{of}\n"));
        }
    }
    if !answer.pods.is_empty() {
        text.push_str(&table(
            &answer.pods,
            &[
                ("MEMBER", &|pod| pod.pod.clone()),
                ("NODE", &|pod| pod.node.clone()),
                ("DEVICES", &|pod| pod.devices.clone()),
                ("VIRTUAL CELL", &|pod| or_dash(pod.virtual_cell.as_ref())),
            ],
        ));
    }
    text
}
