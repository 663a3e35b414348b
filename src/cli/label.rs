//! `rcfarm label …`: labels of nodes, pods, controllers and rolling updates.
//!
//! Keys read and written: `labels/<kind>/<id>`, by CAS. Farms write labels of pods, agents those of nodes. With a
//! selector each key is a transaction of its own, so a crash leaves the rest unchanged.

use serde_json::{Value, json};

use super::context::CommandContext;
use super::failure::{CliExit, failure};
use super::output::table;
use super::rc::find;
use rcfarm_api::audit::{Details, LabelsChange};
use rcfarm_api::budget::BudgetAmount;
use rcfarm_api::ids::{NodeName, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{
    Labels, Selector, check_label_key, check_label_value, decode_labels, encode_labels,
};
use rcfarm_api::rc::spec::{POD_ID, RC_ID};
use rcfarm_store::{Entry, Index, Key, Op};

/// Labels, which selectors match
#[derive(clap::Subcommand)]
pub enum LabelCommand {
    /// Set labels of one thing, or of all that match a selector
    Set(SetArgs),
    /// Remove labels of one thing, or of all that match a selector
    #[command(visible_alias = "rm")]
    Remove(LabelRemoveArgs),
    /// Show the labels of one thing
    Get(LabelGetArgs),
    /// List things with their labels
    #[command(visible_alias = "ls")]
    List(LabelListArgs),
}

#[derive(clap::Args)]
pub struct SetArgs {
    /// node, pod, replication_controller (rc) or rolls
    #[arg(value_enum)]
    kind: LabelKind,
    /// ID and labels (a pod's id is NODE/POD), or with --selector labels alone: KEY=VALUE …
    #[arg(value_name = "ID KEY=VALUE", required = true)]
    words: Vec<String>,
    /// Everything of the kind whose labels match
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
}

#[derive(clap::Args)]
pub struct LabelRemoveArgs {
    /// node, pod, replication_controller (rc) or rolls
    #[arg(value_enum)]
    kind: LabelKind,
    /// ID and keys (a pod's id is NODE/POD), or with --selector keys alone: KEY …
    #[arg(value_name = "ID KEY", required = true)]
    words: Vec<String>,
    /// Everything of the kind whose labels match
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
}

#[derive(clap::Args)]
pub struct LabelGetArgs {
    /// node, pod, replication_controller (rc) or rolls
    #[arg(value_enum)]
    kind: LabelKind,
    /// ID; a pod's id is NODE/POD
    id: String,
}

#[derive(clap::Args)]
pub struct LabelListArgs {
    /// node, pod, replication_controller (rc) or rolls
    #[arg(value_enum)]
    kind: LabelKind,
    /// Only those whose labels match
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
}

/// Change of a set of labels.
#[derive(Debug, Default)]
pub(super) struct LabelEdit {
    pub(super) set: Labels,
    pub(super) remove: Vec<String>,
}

impl LabelEdit {
    /// Reads words like kubectl's: `key=value` sets a label, `key-` removes one.
    ///
    /// # Errors
    /// The first word that is neither.
    pub(super) fn parse(words: &[String], example: &str) -> anyhow::Result<LabelEdit> {
        let mut edit = LabelEdit::default();
        for word in words {
            match word.strip_suffix('-').filter(|_| !word.contains('=')) {
                Some(key) => {
                    check_label_key(key)?;
                    edit.remove.push(key.to_owned());
                }
                None => {
                    let (key, value) = pair_of(word, example)?;
                    edit.set.insert(key, value);
                }
            }
        }
        match edit.remove.iter().find(|key| edit.set.contains_key(*key)) {
            Some(key) => Err(failure(format!("label {key} is both set and removed"), example)),
            None => Ok(edit),
        }
    }

    /// The labels after the change.
    pub(super) fn applied_to(&self, labels: &Labels) -> Labels {
        let mut after = labels.clone();
        after.retain(|key, _| !self.remove.contains(key));
        after.extend(self.set.clone());
        after
    }

    pub(super) fn touches(&self, key: &str) -> bool {
        self.set.contains_key(key) || self.remove.iter().any(|other| other == key)
    }
}

/// How labels are given to `label set`.
const EXAMPLE: &str = "as in: rcfarm label set node n1 role=web";

pub(super) async fn run(
    context: &CommandContext,
    command: LabelCommand,
) -> anyhow::Result<CliExit> {
    match command {
        LabelCommand::Set(args) => {
            let (id, pairs) = subject(args.words, args.selector.is_some())?;
            let set =
                pairs.iter().map(|pair| pair_of(pair, EXAMPLE)).collect::<anyhow::Result<_>>()?;
            let wanted = LabelEdit { set, remove: Vec::new() };
            edit(context, args.kind, id, args.selector.as_ref(), &wanted).await
        }
        LabelCommand::Remove(args) => {
            let (id, keys) = subject(args.words, args.selector.is_some())?;
            for key in &keys {
                check_label_key(key)?;
            }
            let wanted = LabelEdit { set: Labels::new(), remove: keys };
            edit(context, args.kind, id, args.selector.as_ref(), &wanted).await
        }
        LabelCommand::Get(args) => get(context, &args).await,
        LabelCommand::List(args) => list(context, &args).await,
    }
}

/// Splits the id from the labels. With a selector there is no id.
fn subject(
    mut words: Vec<String>,
    has_selector: bool,
) -> anyhow::Result<(Option<String>, Vec<String>)> {
    let id = if has_selector { None } else { Some(words.remove(0)) };
    if words.is_empty() {
        return Err(failure(
            "no label is given",
            "say of what and which, as in: rcfarm label set node n1 role=web",
        ));
    }
    Ok((id, words))
}

fn pair_of(text: &str, example: &str) -> anyhow::Result<(String, String)> {
    pair(text).map_err(|why| failure(format!("label {text:?}: {why}"), example))
}

/// Reads `key=value`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as key=value")?;
    check_label_key(key).map_err(|error| error.to_string())?;
    // A part of the pods, `60%`: no selector can name it, and none has to.
    let is_part = key == key::MIN_HEALTH_LABEL && value.parse::<BudgetAmount>().is_ok();
    if !is_part {
        check_label_value(value).map_err(|error| error.to_string())?;
    }
    Ok((key.to_owned(), value.to_owned()))
}

async fn edit(
    context: &CommandContext,
    kind: LabelKind,
    id: Option<String>,
    selector: Option<&Selector>,
    edit: &LabelEdit,
) -> anyhow::Result<CliExit> {
    check_reserved(kind, edit)?;
    let targets = match (id, selector) {
        (Some(id), _) => vec![target(context, kind, &id, true).await?],
        (None, Some(selector)) => {
            let all = labelled(context, kind).await?;
            let matching = all.into_iter().filter(|(_, labels)| selector.matches(labels));
            matching.map(|(id, _)| parse_id(kind, &id)).collect::<anyhow::Result<_>>()?
        }
        (None, None) => Vec::new(),
    };
    let mut rows = Vec::new();
    for target in &targets {
        let labels = change(context, kind, target, edit).await?;
        if kind == LabelKind::Node && !labels.is_empty() {
            note_unknown_node(context, &target.id).await?;
        }
        rows.push((target.id.clone(), labels));
    }
    show(context, kind, &rows)
}

/// Says if no agent has registered a node. Its labels may be set before it comes, and p2's nodes have no record.
async fn note_unknown_node(context: &CommandContext, node: &str) -> anyhow::Result<()> {
    let name: NodeName = node.parse()?;
    if context.get(&key::node(&name)).await?.is_none() {
        context.note(format!(
            "no agent of ours runs as node {node} yet: the labels count once it does (rcfarm node list)"
        ));
    }
    Ok(())
}

/// Refuses changes of the two labels of pods that name their owner. Without them, a pod is lost to its controller.
fn check_reserved(kind: LabelKind, edit: &LabelEdit) -> anyhow::Result<()> {
    match [RC_ID, POD_ID].into_iter().find(|key| kind == LabelKind::Pod && edit.touches(key)) {
        None => Ok(()),
        Some(key) => Err(failure(
            format!("pod label {key} says whose pod it is; only farms write it"),
            "to hand a pod to nobody: rcfarm rc delete --force; by hand: consul kv put",
        )),
    }
}

/// An object with labels.
struct Target {
    /// The rest of the labels' key.
    id: String,
    key: Key,
    rc: Option<RcId>,
}

/// The object that `text` names. A controller or pod must exist. `changes`: its labels are to be changed.
async fn target(
    context: &CommandContext,
    kind: LabelKind,
    text: &str,
    changes: bool,
) -> anyhow::Result<Target> {
    match kind {
        LabelKind::ReplicationController => {
            let id = match changes {
                true => find::find_to_change(context, text).await?.id,
                false => find::find(context, text).await?.id,
            };
            parse_id(kind, &id.to_string())
        }
        LabelKind::Pod => {
            let target = parse_id(kind, text)?;
            if context.get(&target.key).await?.is_none() {
                return Err(failure(
                    format!("there is no pod {text}"),
                    "see which there are: rcfarm label list pod",
                ));
            }
            Ok(target)
        }
        LabelKind::Node | LabelKind::Rolls => parse_id(kind, text),
    }
}

fn parse_id(kind: LabelKind, text: &str) -> anyhow::Result<Target> {
    let bad = |why: String| {
        let form = match kind {
            LabelKind::Pod => "a pod is named NODE/POD",
            LabelKind::Node => "a node is named as in labels/node/",
            LabelKind::ReplicationController | LabelKind::Rolls => "its id is a UUID",
        };
        failure(format!("{} {text:?}: {why}", kind.segment()), form)
    };
    let (key, rc) = match kind {
        LabelKind::Node => {
            let node: NodeName = text.parse().map_err(|e| bad(format!("{e}")))?;
            (key::node_labels(&node), None)
        }
        LabelKind::Pod => {
            let prefix = key::labels(kind);
            let (node, pod) = key::node_and_pod(&prefix, &format!("{prefix}{text}"))
                .ok_or_else(|| bad("it is not NODE/POD".to_owned()))?;
            (key::pod_labels(&node, &pod), None)
        }
        LabelKind::ReplicationController => {
            let id: RcId = text.parse().map_err(|e| bad(format!("{e}")))?;
            (key::rc_labels(id), Some(id))
        }
        LabelKind::Rolls => {
            let id: RcId = text.parse().map_err(|e| bad(format!("{e}")))?;
            let key = key::labels(kind).key_of(&id.to_string());
            (key.ok_or_else(|| bad("it is no part of a key".to_owned()))?, None)
        }
    };
    Ok(Target { id: text.to_owned(), key, rc })
}

/// Changes one set of labels by CAS and returns the new set.
async fn change(
    context: &CommandContext,
    kind: LabelKind,
    target: &Target,
    edit: &LabelEdit,
) -> anyhow::Result<Labels> {
    let attempt = async || {
        let entry = context.get(&target.key).await?;
        let before = entry.as_ref().map(decode).transpose()?.unwrap_or_default();
        let after = edit.applied_to(&before);
        if after == before {
            return Ok(Some(after));
        }
        let op = write_op(target.key.clone(), entry.as_ref(), &after);
        let (mut set, mut removed) = (after.clone(), before.clone());
        set.retain(|key, value| before.get(key) != Some(value));
        removed.retain(|key, _| !after.contains_key(key));
        let details = Details::LabelsChanged(LabelsChange {
            kind: kind.segment().to_owned(),
            id: target.id.clone(),
            actor: context.actor(),
            reason: "Requested".to_owned(),
            set,
            removed,
        });
        let committed = context.commit([op], &details, target.rc).await?;
        Ok(committed.is_ok().then_some(after))
    };
    context.edit(&target.key, attempt).await
}

/// Writes a key of labels as it was read; one without labels is deleted.
pub(super) fn write_op(key: Key, entry: Option<&Entry>, after: &Labels) -> Op {
    let (index, flags) = entry.map_or((Index::ZERO, 0), |entry| (entry.modify_index, entry.flags));
    match after.is_empty() {
        true => Op::DeleteCas { key, index },
        false => Op::Cas { key, value: encode_labels(after), flags, index },
    }
}

pub(super) fn decode(entry: &Entry) -> anyhow::Result<Labels> {
    decode_labels(&entry.value).map_err(|error| {
        failure(
            format!("{}: {error}", entry.key),
            format!("correct it: consul kv put {} '{{\"key\":\"value\"}}'", entry.key),
        )
    })
}

/// All objects of a kind whose labels can be parsed.
async fn labelled(
    context: &CommandContext,
    kind: LabelKind,
) -> anyhow::Result<Vec<(String, Labels)>> {
    let prefix = key::labels(kind);
    let entries = context.list(&prefix).await?;
    let mut labelled = Vec::new();
    for entry in entries {
        match (prefix.tail(&entry.key), decode_labels(&entry.value)) {
            (Some(id), Ok(labels)) => labelled.push((id.to_owned(), labels)),
            (_, Err(error)) => context.note(format!("{}: {error}", entry.key)),
            (None, _) => {}
        }
    }
    Ok(labelled)
}

async fn get(context: &CommandContext, args: &LabelGetArgs) -> anyhow::Result<CliExit> {
    let target = match args.kind {
        LabelKind::ReplicationController => target(context, args.kind, &args.id, false).await?,
        _ => parse_id(args.kind, &args.id)?,
    };
    let Some(entry) = context.get(&target.key).await? else {
        return Err(failure(
            format!("{} {} has no labels", args.kind.segment(), args.id),
            format!("see what has: rcfarm label list {}", args.kind.segment()),
        ));
    };
    let labels = decode(&entry)?;
    context.show(&labels, || labels.iter().map(|(key, value)| format!("{key}={value}\n")).collect())
}

async fn list(context: &CommandContext, args: &LabelListArgs) -> anyhow::Result<CliExit> {
    let mut rows = labelled(context, args.kind).await?;
    if let Some(selector) = &args.selector {
        rows.retain(|(_, labels)| selector.matches(labels));
    }
    show(context, args.kind, &rows)
}

fn show(
    context: &CommandContext,
    kind: LabelKind,
    rows: &[(String, Labels)],
) -> anyhow::Result<CliExit> {
    let values: Vec<Value> = rows
        .iter()
        .map(|(id, labels)| json!({"kind": kind.segment(), "id": id, "labels": labels}))
        .collect();
    context.show(&values, || {
        if rows.is_empty() {
            return "nothing matches".to_owned();
        }
        let header = kind.segment().to_uppercase();
        let pairs = |labels: &Labels| {
            labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        table(
            rows,
            &[(&header, &|(id, _)| id.clone()), ("LABELS", &|(_, labels)| pairs(labels).join(","))],
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_values_of_the_minimum_health_alone() {
        let label = |text: &str| pair(text).map(|(_, value)| value);
        assert_eq!(label("rcfarm/min_health=60%"), Ok("60%".to_owned()));
        assert_eq!(label("rcfarm/min_health=3"), Ok("3".to_owned()));
        assert!(label("rcfarm/min_health=101%").is_err());
        assert!(label("role=60%").is_err());
    }
}
