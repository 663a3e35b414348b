//! `rcfarm job delete`
//!
//! Key written: the job's record, marked for deletion; its owner farm then deletes pods, group and record. If the record
//! was deleted by hand, the command deletes the pods, and once they have stopped, status and group. A crash between the
//! two leaves status and group, which the same command deletes when repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal as _;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::commands::{job_change, write};
use super::find::{FoundJob, FoundPod, all, find, pods};
use crate::cli::apply::described;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::{Progress, duration};
use rcfarm_api::Stored;
use rcfarm_api::audit::{Details, ORPHANS_REMOVED};
use rcfarm_api::ids::{Namespace, Namespaced};
use rcfarm_api::job::identity::identity_in;
use rcfarm_api::key;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Entry, Op, Query};

#[derive(clap::Args)]
pub struct JobDeleteArgs {
    /// The jobs: their names, or <namespace>/<name>
    #[arg(value_name = "JOB", required_unless_present_any = ["filename", "all"])]
    jobs: Vec<Namespaced>,
    /// All jobs of the namespace of --in; asks before, unless --yes is given
    #[arg(long, conflicts_with_all = ["jobs", "filename"])]
    all: bool,
    /// Do not ask before all jobs are deleted
    #[arg(long, short, requires = "all")]
    yes: bool,
    /// A file with the documents of jobs, or a directory of such files; - reads standard input; may be repeated
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<String>,
    /// Namespace of --all, and of jobs whose document has none (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE", default_value = "default")]
    within: Namespace,
    /// Do not wait until it is gone
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting for all of them after this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
}

/// Jobs that the question before `--all` names.
const MOST_NAMED: usize = 10;
const READ_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(context: &CommandContext, args: &JobDeleteArgs) -> anyhow::Result<CliExit> {
    let mut ids = args.jobs.clone();
    ids.extend(names(&args.filename, &args.within)?);
    if args.all {
        ids = of_namespace(context, args).await?;
        if ids.is_empty() {
            context.note(format!("there are no jobs in {}", args.within));
            return Ok(CliExit::Ok);
        }
    }
    if ids.is_empty() {
        let why = format!("there is no job in {}", args.filename.join(", "));
        return Err(failure(why, "name the jobs, or other files"));
    }
    let give_up = monotonic() + args.timeout;
    let mut deleted = BTreeSet::new();
    ids.retain(|id| deleted.insert(id.clone()));
    // One that cannot be deleted does not keep the others.
    let (mut marked, mut failed) = (Vec::new(), Vec::new());
    for id in &ids {
        let marking = async {
            if context.get(&key::job(id)).await?.is_none() {
                return Ok(None);
            }
            let found = find(context, id).await?;
            mark_for_deletion(context, &found).await?;
            anyhow::Ok(Some(found))
        };
        match marking.await {
            Ok(found) => marked.push((id, found)),
            Err(error) => failed.push(error),
        }
    }
    let (mut shown, mut text) = (Vec::new(), String::new());
    for (id, found) in marked {
        let done = match &found {
            None => {
                let until = if args.no_wait { monotonic() } else { give_up };
                collect_orphans(context, id, until).await
            }
            Some(_) if args.no_wait => {
                Ok((json!({"job": id, "deleted": false}), format!("{id}: is being deleted")))
            }
            Some(found) => gone(context, found, args.timeout, give_up)
                .await
                .map(|()| (json!({"job": id, "deleted": true}), format!("{id}: deleted"))),
        };
        match done {
            Ok((value, line)) => {
                shown.push(value);
                text.push_str(&(line + "\n"));
            }
            Err(error) => failed.push(error),
        }
    }
    let one = (ids.len() == 1).then(|| shown.pop()).flatten();
    if !text.is_empty() {
        match one {
            Some(one) => context.out.show(&one, || text)?,
            None => context.out.show(&shown, || text)?,
        }
    }
    let Some(last) = failed.pop() else { return Ok(CliExit::Ok) };
    for error in failed {
        context.report(&error);
    }
    Err(last)
}

/// All jobs of the namespace, once the user has agreed.
async fn of_namespace(
    context: &CommandContext,
    args: &JobDeleteArgs,
) -> anyhow::Result<Vec<Namespaced>> {
    let found = all(context).await?.into_iter().map(|found| found.id);
    let ids: Vec<Namespaced> = found.filter(|id| id.namespace == args.within).collect();
    if args.yes || ids.is_empty() {
        return Ok(ids);
    }
    let names: Vec<&str> = ids.iter().map(|id| id.name.as_str()).take(MOST_NAMED).collect();
    let more = if ids.len() > names.len() { ", …" } else { "" };
    let question = format!(
        "this deletes the {} jobs in {}: {}{more}",
        ids.len(),
        args.within,
        names.join(", ")
    );
    if !std::io::stdin().is_terminal() {
        return Err(failure(question, "nothing was deleted; to delete them, give --yes"));
    }
    eprint!("{question}\nType yes to delete them: ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "yes" => Ok(ids),
        _ => Err(failure("nothing was deleted", "it was not answered with yes")),
    }
}

/// Marks the record for deletion. The owner farm then deletes pods, group and record.
async fn mark_for_deletion(context: &CommandContext, found: &FoundJob) -> anyhow::Result<()> {
    if found.document.pointer("/metadata/deletionTimestamp").is_some() {
        return Ok(());
    }
    if let Err(problems) = &found.read {
        let why = format!(
            "no farm can work on {}, so nobody removes its pods: {}",
            found.id, problems[0]
        );
        let hint = format!(
            "correct the record, or delete it: consul kv delete {}; then run this again",
            context.stored_key(&key::job(&found.id))
        );
        return Err(failure(why, hint));
    }
    let mut document = found.document.clone();
    document["metadata"]["deletionTimestamp"] = json!(context.now());
    write(context, found, &document, "Deleted").await
}

async fn gone(
    context: &CommandContext,
    found: &FoundJob,
    timeout: Duration,
    give_up: Instant,
) -> anyhow::Result<()> {
    let mut progress = Progress::default();
    let mut query = Query::PLAIN;
    let mut said = "its record is there".to_owned();
    loop {
        let read = async || {
            let answer = context.store.get(&key::job(&found.id), query).await?;
            let left = answer.value.filter(|entry| entry.create_index == found.uid());
            let pods = if left.is_some() { Some(pods(context, &found.id).await?) } else { None };
            Ok((answer.index, pods.map(|pods| pods.len())))
        };
        // The time is that of all jobs: one that is looked at late may be gone already.
        let limit = give_up.max(monotonic() + READ_EVERY);
        if let Ok(read) = timeout_at(limit, context.persist(read)).await {
            let (index, left) = read?;
            let Some(count) = left else { return Ok(()) };
            said = format!("{count} pods left");
            progress.say(&said);
            query = Query::after(index, READ_EVERY);
        }
        if monotonic() >= give_up {
            let waited = humantime::format_duration(timeout);
            let why = format!("gave up waiting after {waited}: {said}");
            let hint =
                format!("it goes on being deleted; see by whom: rcfarm job explain {}", found.id);
            return Err(failure(why, hint));
        }
    }
}

/// Deletes pods, status and group of a job whose record was deleted by hand.
async fn collect_orphans(
    context: &CommandContext,
    id: &Namespaced,
    give_up: Instant,
) -> anyhow::Result<(Value, String)> {
    let left = pods(context, id).await?;
    let status = context.get(&key::job_status(id)).await?;
    // A group of this name that belongs to no job stays.
    let group = context.get(&key::pod_group(id)).await?.filter(|entry| {
        let record = PodGroupRecord::decode(&entry.value).ok();
        let owner = record.and_then(|record| record.spec.owner);
        owner.is_some_and(|o| o.kind == "Job" && o.name == id.name.as_str())
    });
    if left.is_empty() && status.is_none() && group.is_none() {
        return Err(failure(
            format!("there is no job {id}"),
            "see which there are: rcfarm job list",
        ));
    }
    let count = left.len();
    for batch in left.chunks((context.limits.ops - 4) / 3) {
        let ops = batch.iter().flat_map(remove).collect();
        commit(context, id, ops).await?;
    }
    if group.is_some() {
        stopped(context, id, give_up).await?;
    }
    let rest = [status, group].into_iter().flatten();
    let ops = rest.filter_map(|entry| {
        let key = rcfarm_store::Key::parse(&entry.key).ok()?;
        Some(Op::DeleteCas { key, index: entry.modify_index })
    });
    commit(context, id, ops.collect()).await?;
    let shown = json!({"job": id, "deleted": true, "orphans": count});
    Ok((shown, format!("{id}: its record was gone; removed {count} pods that it left")))
}

/// Waits until no node has a pod of the job. Deleting the group earlier would free resources that are still in use.
async fn stopped(
    context: &CommandContext,
    id: &Namespaced,
    give_up: Instant,
) -> anyhow::Result<()> {
    let mut progress = Progress::default();
    loop {
        let real = context.list(&key::realities()).await?;
        let intents = context.list(&key::intents()).await?;
        let intents: BTreeMap<&str, &Entry> = intents
            .iter()
            .filter_map(|intent| Some((key::intents().tail(&intent.key)?, intent)))
            .collect();
        // A pod that is still intended was released from the job: nobody stops it.
        let is_intended = |entry: &Entry| {
            let place = key::realities().tail(&entry.key);
            let intent = place.and_then(|place| intents.get(place));
            intent.is_some_and(|intent| intent.value == entry.value)
        };
        let of_job =
            real.iter().filter(|entry| identity_in(&entry.value).is_some_and(|pod| pod.job == *id));
        let count = of_job.filter(|entry| !is_intended(entry)).count();
        if count == 0 {
            return Ok(());
        }
        progress.say(&format!("{count} pods are still being stopped"));
        if monotonic() >= give_up {
            let why = format!("{}: {count} of its pods are still being stopped", id);
            return Err(failure(why, "their resources stay allocated; run the command again"));
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}

fn remove(pod: &FoundPod) -> [Op; 3] {
    let (node, id) = (&pod.place.node, &pod.place.pod);
    let labels = key::pod_labels(node, id);
    [
        Op::CheckIndex { key: labels.clone(), index: pod.label_index },
        Op::Delete { key: labels },
        Op::Delete { key: key::intent(node, id) },
    ]
}

async fn commit(context: &CommandContext, id: &Namespaced, mut ops: Vec<Op>) -> anyhow::Result<()> {
    if ops.is_empty() {
        return Ok(());
    }
    // A job that was created meanwhile manages the pods of its name itself.
    ops.push(Op::CheckNotExists { key: key::job(id) });
    let change = Details::JobChanged(job_change(context, id, ORPHANS_REMOVED));
    context.commit(ops, &change, None).await?.map_err(|_| {
        let why = format!("{id}: something changed meanwhile; not everything was removed");
        failure(why, "run the command again")
    })?;
    Ok(())
}

/// Names of the jobs in files. Objects of other kinds are left out.
fn names(files: &[String], within: &Namespace) -> anyhow::Result<Vec<Namespaced>> {
    let described = described(files, within)?;
    Ok(described.jobs.into_iter().map(|one| one.id).collect())
}
