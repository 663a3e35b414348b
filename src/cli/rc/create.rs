//! `rcfarm rc create`
//!
//! Keys written in one transaction: the controller's record, its labels, the audit record, the doorbell.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::json;

use super::find::{FoundRc, all, title};
use super::wait;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::files::check_not_described;
use crate::cli::label::pair;
use crate::cli::output::duration;
use rcfarm_api::audit::{ControllerChange, Details, record_hash};
use rcfarm_api::ids::RcId;
use rcfarm_api::key::LabelKind;
use rcfarm_api::labels::{Labels, Selector, check_label_value, decode_labels, encode_labels};
use rcfarm_api::manifest::{Manifest, check_for_p2};
use rcfarm_api::rc::spec::{POD_ID, RC_ID, RcRecord, RcSpec, RcStrategy, check_count};
use rcfarm_api::{Stored, key};
use rcfarm_node::spec::check_new;
use rcfarm_store::{Index, Op};

#[derive(clap::Args)]
pub struct RcCreateArgs {
    /// File with the pod manifest (YAML, signed or not); - reads it from standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Which nodes may run the pods, as in role=web,zone in (a,b); '' for all nodes
    #[arg(long, value_name = "SELECTOR")]
    node_selector: Selector,
    /// Number of desired pods
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true)]
    replicas: i64,
    /// Create it disabled: nothing is scheduled until `rc enable`
    #[arg(long)]
    disabled: bool,
    /// What happens to pods on nodes that no longer match: static leaves them, dynamic moves them
    #[arg(long, value_enum, default_value = "static")]
    strategy: RcStrategy,
    /// Pod label availability_zone
    #[arg(long, value_name = "ZONE")]
    availability_zone: Option<String>,
    /// Pod label cluster_name
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// Label for every pod; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pod_label: Vec<(String, String)>,
    /// Label for the controller itself, for the selectors of farms; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    rc_label: Vec<(String, String)>,
    /// Wait until all pods are scheduled
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
}

pub(super) async fn run(context: &CommandContext, args: RcCreateArgs) -> anyhow::Result<CliExit> {
    let manifest = read_manifest(&args.file)?;
    check_manifest(context, &manifest)?;
    let id = RcId(context.ids.uuid());
    let rc_labels = rc_labels(&args, &manifest)?;
    let record = record(id, &args, &manifest)?;
    RcSpec::check(id, &record)?;

    let (stored, _) = all(context).await?;
    for note in same_pod_notes(context, &stored, id, &manifest, &args.node_selector).await? {
        context.note(note);
    }
    let index = write(context, &record, &rc_labels, &manifest).await?;
    if let Err(bad) = check_for_p2(&manifest.fields()?) {
        context.note(format!("p2's programs cannot read this manifest: {bad}"));
    }
    context.show(
        &json!({
            "id": id,
            "pod_id": manifest.id(),
            "replicas_desired": record.replicas_desired,
            "disabled": record.disabled,
            "node_selector": record.node_selector,
        }),
        || id.to_string(),
    )?;
    if args.disabled {
        context.note(format!("it is disabled; to begin: rcfarm rc enable {id}"));
    } else if args.wait {
        wait::scheduled(context, id, index, args.timeout).await?;
    }
    Ok(CliExit::Ok)
}

/// What to say of other enabled controllers whose pods have the same id and match some of the same nodes: a node runs one
/// pod of an id, so each takes places from the other.
pub(super) async fn same_pod_notes(
    context: &CommandContext,
    stored: &[FoundRc],
    id: RcId,
    manifest: &Manifest,
    selector: &Selector,
) -> anyhow::Result<Vec<String>> {
    let is_same =
        |spec: &RcSpec| spec.id != id && !spec.disabled && spec.manifest.id() == manifest.id();
    let same = stored.iter().filter_map(|found| found.spec().ok().filter(is_same));
    let same: Vec<RcSpec> = same.collect();
    if same.is_empty() {
        return Ok(Vec::new());
    }
    let prefix = key::labels(LabelKind::Node);
    let entries = context.list(&prefix).await?;
    let nodes: Vec<(&str, Labels)> = entries
        .iter()
        .filter_map(|entry| Some((prefix.tail(&entry.key)?, decode_labels(&entry.value).ok()?)))
        .filter(|(_, labels)| selector.matches(labels))
        .collect();
    let note = |other: &RcSpec| {
        let both = nodes.iter().filter(|(_, labels)| other.node_selector.matches(labels));
        let both: Vec<&str> = both.map(|(node, _)| *node).collect();
        let is_equal = other.node_selector == *selector;
        let named = match both.len() {
            0 if is_equal => "has the same node selector".to_owned(),
            0 => return None,
            1..=3 => format!("also matches {}", both.join(", ")),
            n => format!("also matches {} and {} more nodes", both[..3].join(", "), n - 3),
        };
        let pod = manifest.id();
        Some(format!(
            "another controller has the pod {pod}: {} {named}; a node runs one pod of an id, so give this one another id or other nodes",
            title(Some(pod), other.id)
        ))
    };
    Ok(same.iter().filter_map(note).collect())
}

/// Refuses a manifest that no agent can run.
pub(super) fn check_manifest(context: &CommandContext, manifest: &Manifest) -> anyhow::Result<()> {
    check_new(manifest)?;
    if manifest.launchables().is_empty() {
        let note = "the manifest has no launchables: agents of ours report its pods as Unfit";
        context.note(note);
    }
    Ok(())
}

pub(super) fn read_manifest(path: &Path) -> anyhow::Result<Manifest> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        text
    } else {
        std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the manifest {}", path.display()))?
    };
    check_not_described(&path.display().to_string(), &text)?;
    Manifest::parse(&text).with_context(|| path.display().to_string())
}

fn rc_labels(args: &RcCreateArgs, manifest: &Manifest) -> anyhow::Result<Labels> {
    let mut labels: Labels = args.rc_label.iter().cloned().collect();
    if labels.insert(POD_ID.to_owned(), manifest.id().to_string()).is_some() {
        return Err(failure(
            format!("--rc-label {POD_ID}: the label is set from the manifest"),
            "leave it out",
        ));
    }
    Ok(labels)
}

fn record(id: RcId, args: &RcCreateArgs, manifest: &Manifest) -> anyhow::Result<RcRecord> {
    check_count(args.replicas).map_err(|bad| {
        failure(format!("--replicas: {}", bad.problem), "give a number from 0 up")
    })?;
    let mut pod_labels: Labels = args.pod_label.iter().cloned().collect();
    for reserved in [POD_ID, RC_ID] {
        if pod_labels.contains_key(reserved) {
            return Err(failure(
                format!(
                    "--pod-label {reserved}: the label says whose pod it is, and is set by farms"
                ),
                "leave it out",
            ));
        }
    }
    for (name, flag, value) in [
        ("availability_zone", "--availability-zone", &args.availability_zone),
        ("cluster_name", "--cluster-name", &args.cluster_name),
    ] {
        let Some(value) = value else { continue };
        check_label_value(value).with_context(|| flag.to_owned())?;
        pod_labels.insert(name.to_owned(), value.clone());
    }
    Ok(RcRecord {
        id,
        manifest: manifest.text().to_owned(),
        node_selector: args.node_selector.to_string(),
        pod_labels: Some(pod_labels),
        replicas_desired: args.replicas,
        disabled: args.disabled,
        allocation_strategy: args.strategy.as_str().to_owned(),
        other: serde_json::Map::new(),
    })
}

/// Writes record, labels, audit record and doorbell in one transaction.
pub(in crate::cli) async fn write(
    context: &CommandContext,
    record: &RcRecord,
    labels: &Labels,
    manifest: &Manifest,
) -> anyhow::Result<Index> {
    let pod_label = |name: &str| {
        record.pod_labels.as_ref().and_then(|labels| labels.get(name)).cloned().unwrap_or_default()
    };
    let details = Details::ControllerCreated(ControllerChange {
        replication_controller_id: record.id,
        pod_id: Some(manifest.id().clone()),
        availability_zone: pod_label("availability_zone"),
        cluster_name: pod_label("cluster_name"),
        actor: context.actor(),
        reason: "Requested".to_owned(),
        desired_before: None,
        desired_after: Some(record.replicas_desired),
        record: Some(record_hash(&record.encode())),
        changed: Vec::new(),
        orphans: Vec::new(),
    });
    let new = |key, value| Op::Cas { key, value, flags: 0, index: Index::ZERO };
    let ops = [
        new(key::rc(record.id), record.encode()),
        new(key::rc_labels(record.id), encode_labels(labels)),
    ];
    context.commit(ops, &details, Some(record.id)).await?.map_err(|refusals| {
        let what: Vec<String> = refusals.into_iter().map(|refusal| refusal.what).collect();
        let title = title(Some(manifest.id()), record.id);
        anyhow::anyhow!("Consul refused to create {title}: {}", what.join("; "))
    })
}
