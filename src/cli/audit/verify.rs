//! `rcfarm audit verify`, `acknowledge`: the folded log beside what is stored.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::accept::{accept, unchanged};
use super::{AcknowledgeArgs, controller, jobs, logged, records};
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::rc::allocations;
use crate::cluster::snapshot::ClusterSnapshot;
use crate::placement::capacity::OrphanedAllocation;
use rcfarm_api::Stored;
use rcfarm_api::audit::{
    Actual, ChangeAcknowledged, Details, Difference, Folded, JobDifference, Logged, LoggedRecord,
    QueueChange, RecordDifference, StoredJob, compare, compare_jobs, compare_queues,
    compare_records, fold, record_hash,
};
use rcfarm_api::ids::{Namespaced, QueueName, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::queue::spec::{QueueRecord, QueueSpec};
use rcfarm_api::rc::spec::RcRecord;
use rcfarm_store::{Entry, Op};

/// The log and the state at one moment.
struct LogAndState {
    entries: Vec<Entry>,
    log: Vec<Logged>,
    folded: Folded,
    actual: BTreeMap<RcId, Actual>,
    /// Hash of each controller's record.
    hashes: BTreeMap<RcId, String>,
    differences: Vec<Difference>,
    /// Specifications of the queues.
    queues: BTreeMap<QueueName, QueueSpec>,
    queue_differences: BTreeSet<QueueName>,
    jobs: BTreeMap<Namespaced, StoredJob>,
    job_differences: BTreeSet<JobDifference>,
    /// CronJobs, flows and their templates, groups, schedulers, priority classes, cells, drains.
    record_differences: BTreeSet<RecordDifference>,
}

async fn log_and_state(context: &CommandContext) -> anyhow::Result<LogAndState> {
    // In one transaction: prefixes read one after the other differ while a farm writes.
    let logs = [key::audit_logs(), key::namespaced_audit_logs()];
    let records = [key::rcs(), key::rc_statuses(), key::queues()];
    let trees = logs.iter().cloned().chain(records).chain(jobs::trees());
    let trees = trees.chain(LoggedRecord::prefixes()).chain(allocations::trees());
    let entries = allocations::snapshot(context, trees).await?;
    let under = |prefix: &rcfarm_store::Prefix| {
        let entries = entries.iter().filter(|entry| prefix.tail(&entry.key).is_some());
        entries.cloned().collect::<Vec<Entry>>()
    };
    let records = under(&key::rcs());
    let pods = under(&key::labels(LabelKind::Pod));
    let log = logged(context, logs.iter().flat_map(under).collect::<Vec<_>>().iter());
    let folded = fold(&log);
    let actual = actual(&records, &pods);
    let mut differences = compare(&folded, &actual);
    let told: BTreeSet<RcId> = differences.iter().map(Difference::controller).collect();
    let hashes = hashes(&records);
    let edited = compare_records(&folded, &hashes).into_iter();
    differences.extend(edited.filter(|difference| !told.contains(&difference.controller())));
    let queues = stored_queues(&under(&key::queues()));
    let queue_differences = compare_queues(&folded, &queues);
    let jobs = jobs::stored_jobs(&entries);
    let job_differences = compare_jobs(&folded.jobs, &jobs);
    let record_differences = records::differing(&folded.records, &entries);
    Ok(LogAndState {
        entries,
        log,
        folded,
        actual,
        hashes,
        differences,
        queues,
        queue_differences,
        jobs,
        job_differences,
        record_differences,
    })
}

pub(super) async fn verify(context: &CommandContext) -> anyhow::Result<CliExit> {
    let LogAndState {
        entries,
        log,
        folded,
        differences,
        queue_differences,
        job_differences,
        record_differences,
        ..
    } = log_and_state(context).await?;
    let (unknown, differences): (Vec<_>, Vec<_>) = differences
        .into_iter()
        .partition(|difference| matches!(difference, Difference::NotInLog { .. }));
    let orphaned_allocations = allocations::allocations_of(&entries).orphaned_allocations;
    let leaked = |orphaned: &OrphanedAllocation| json!({"node": orphaned.node, "pod_id": orphaned.pod, "replication_controller_id": orphaned.owner});
    let shown = json!({
        "records": log.len(),
        "leaked_promises": orphaned_allocations.iter().map(leaked).collect::<Vec<_>>(),
        "controllers": folded.controllers.len(),
        "differences": differences,
        "queues": folded.queues.len(),
        "queue_differences": queue_differences,
        "jobs": folded.jobs.len(),
        "job_differences": job_differences,
        "other_records": folded.records.len(),
        "record_differences": record_differences,
        "gaps": folded.gaps,
        "not_in_log": unknown,
        "records_without_controller": folded.unattributed,
    });
    let is_same = differences.is_empty()
        && queue_differences.is_empty()
        && job_differences.is_empty()
        && record_differences.is_empty();
    let is_clean = is_same && folded.gaps.is_empty() && orphaned_allocations.is_empty();
    context.show(&shown, || {
        let mut text: String = differences.iter().map(|d| format!("differs: {d}\n")).collect();
        for queue in &queue_differences {
            text.push_str(&format!("differs: {}\n", queue_words(queue)));
        }
        for job in &job_differences {
            text.push_str(&format!("differs: {}\n", jobs::describe(job)));
        }
        for difference in &record_differences {
            text.push_str(&format!("differs: {difference}\n"));
        }
        if !is_same {
            text.push_str(
                "what differs was changed by another program or by hand; to accept it: rcfarm audit acknowledge\n",
            );
        }
        for gap in &folded.gaps {
            text.push_str(&format!("gap: audit_logs/{}: {}\n", gap.record, gap.what));
        }
        for orphaned in &orphaned_allocations {
            text.push_str(&format!(
                "orphaned: {}: rcfarm rc orphans --remove\n",
                allocations::describe(orphaned)
            ));
        }
        if !unknown.is_empty() {
            let count = unknown.len();
            text.push_str(&format!("{count} controllers were not placed by rcfarm yet\n"));
        }
        let (log, controllers) = (log.len(), folded.controllers.len());
        let verdict = if is_clean { "agree" } else { "do not agree" };
        let (queues, jobs) = (folded.queues.len(), folded.jobs.len());
        let others = folded.records.len();
        text.push_str(&format!(
            "{log} records and the state of {controllers} controllers, {queues} queues, {jobs} jobs and \
             {others} other records {verdict}\n"
        ));
        text
    })?;
    Ok(if is_clean { CliExit::Ok } else { CliExit::Found })
}

fn queue_words(queue: &QueueName) -> String {
    format!("queue {queue}: its spec is not the one that was logged last")
}

/// Writes a record for each controller, queue, job and other record whose state the log does not give: from then on the log has it. Each
/// is guarded by what it is about.
pub(super) async fn acknowledge(
    context: &CommandContext,
    args: &AcknowledgeArgs,
) -> anyhow::Result<CliExit> {
    let only = controller(context, args.rc.as_deref(), !args.dry_run).await?;
    let LogAndState {
        entries,
        folded,
        actual,
        hashes,
        differences,
        queues,
        mut queue_differences,
        jobs: stored_jobs,
        mut job_differences,
        mut record_differences,
        ..
    } = log_and_state(context).await?;
    let mut found: BTreeMap<RcId, Vec<String>> = BTreeMap::new();
    for difference in differences {
        if !matches!(difference, Difference::NotInLog { .. }) {
            found.entry(difference.controller()).or_default().push(difference.to_string());
        }
    }
    for gap in folded.gaps {
        if let Some(controller) = gap.controller {
            found.entry(controller).or_default().push(gap.what);
        }
    }
    found.retain(|controller, _| only.is_none_or(|only| only == *controller));
    for (controller, differences) in &found {
        if args.dry_run {
            break;
        }
        let Actual { nodes, desired } = actual.get(controller).cloned().unwrap_or_default();
        let details = Details::ChangeAcknowledged(ChangeAcknowledged {
            replication_controller_id: *controller,
            actor: context.actor(),
            reason: "Requested".to_owned(),
            nodes,
            desired_after: desired,
            record: hashes.get(controller).cloned(),
            differences: shortened(differences),
        });
        accept(context, controller.to_string(), guards(*controller, &entries), &details).await?;
    }
    if only.is_some() {
        queue_differences.clear();
        job_differences.clear();
        record_differences.clear();
    }
    if !args.dry_run {
        for queue in &queue_differences {
            let details = Details::QueueChanged(QueueChange {
                queue: queue.clone(),
                actor: context.actor(),
                reason: "Acknowledged".to_owned(),
                farm: None,
                before: folded.queues.get(queue).cloned().flatten(),
                after: queues.get(queue).and_then(|spec| serde_json::to_value(spec).ok()),
            });
            let guards = [unchanged(key::queue(queue), &entries)];
            accept(context, format!("queue {queue}"), guards, &details).await?;
        }
        for difference in &job_differences {
            let job = &difference.job;
            let change = jobs::acknowledged(context, difference, &stored_jobs);
            let guards = [key::job(job), key::job_status(job)].map(|key| unchanged(key, &entries));
            accept(context, format!("job {job}"), guards, &Details::JobChanged(change)).await?;
        }
        records::acknowledge(context, &record_differences, &entries).await?;
    }
    let shown = json!({
        "acknowledged": found, "queues": queue_differences, "jobs": job_differences,
        "other_records": record_differences, "dry_run": args.dry_run,
    });
    context.show(&shown, || {
        let would = if args.dry_run { "would accept" } else { "accepted" };
        let mut text = String::new();
        for words in found.values().flatten() {
            text.push_str(&format!("{would}: {words}\n"));
        }
        for queue in &queue_differences {
            text.push_str(&format!("{would}: {}\n", queue_words(queue)));
        }
        for job in &job_differences {
            text.push_str(&format!("{would}: {}\n", jobs::describe(job)));
        }
        for difference in &record_differences {
            text.push_str(&format!("{would}: {difference}\n"));
        }
        let (controllers, queues) = (found.len(), queue_differences.len());
        let (jobs, others) = (job_differences.len(), record_differences.len());
        text.push_str(&format!(
            "{would} the state of {controllers} controllers, {queues} queues, {jobs} jobs and {others} other records"
        ));
        text
    })
}

/// The operations that fail if a controller has changed since these entries were read. A farm replaces the status in
/// each transaction that changes the controller's pods.
pub(super) fn guards(controller: RcId, entries: &[Entry]) -> [Op; 2] {
    [key::rc(controller), key::rc_status(controller)].map(|key| unchanged(key, entries))
}

/// Differences listed in an audit record. A record that names one per pod would not fit into a transaction.
const DIFFERENCES_LISTED: usize = 32;

/// The first differences, and the number of the others.
pub(super) fn shortened(differences: &[String]) -> Vec<String> {
    let more = differences.len().saturating_sub(DIFFERENCES_LISTED);
    let more = (more > 0).then(|| format!("and {more} more"));
    differences.iter().take(DIFFERENCES_LISTED).cloned().chain(more).collect()
}

/// The state of each controller in its record and its pods' labels.
fn actual(records: &[Entry], pods: &[Entry]) -> BTreeMap<RcId, Actual> {
    let mut actual: BTreeMap<RcId, Actual> = BTreeMap::new();
    for entry in records {
        let Some(Ok(id)) = key::rcs().tail(&entry.key).map(str::parse) else { continue };
        let desired = RcRecord::decode(&entry.value).ok().map(|record| record.replicas_desired);
        actual.entry(id).or_default().desired = desired;
    }
    for (place, pod) in ClusterSnapshot::of(pods).pods.iter() {
        if let Some(rc) = pod.value.rc {
            actual.entry(rc).or_default().nodes.insert(place.node.clone());
        }
    }
    actual
}

/// Hash of each controller's record.
fn hashes(records: &[Entry]) -> BTreeMap<RcId, String> {
    let hash = |entry: &Entry| {
        Some((key::rcs().tail(&entry.key)?.parse().ok()?, record_hash(&entry.value)))
    };
    records.iter().filter_map(hash).collect()
}

fn stored_queues(entries: &[Entry]) -> BTreeMap<QueueName, QueueSpec> {
    let spec = |entry: &Entry| {
        let name = key::queues().tail(&entry.key)?.parse().ok()?;
        Some((name, QueueRecord::decode(&entry.value).ok()?.spec))
    };
    entries.iter().filter_map(spec).collect()
}
