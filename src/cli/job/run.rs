//! `rcfarm job run`: a job from a command, without a file.
//!
//! Key written: the job's record, which must not exist.

use serde_json::{Map, Value, json};

use super::apply::create;
use super::follow::{Followed, follow};
use super::member_log::JobLogsArgs;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::pod::LogReadArgs;
use crate::job::dependencies::{self, DependencyType};
use crate::job::document::ARRAY_ANNOTATION;
use rcfarm_api::ids::{Namespace, Namespaced, ObjectName};
use rcfarm_api::job::array::ArraySpec;
use rcfarm_api::job::phase::JobPhase;

/// Name of the only task.
const TASK: &str = "task";
/// Name of the only container.
const CONTAINER: &str = "main";

#[derive(clap::Args)]
pub struct JobRunArgs {
    /// Name of the job; default: run- and a random part
    #[arg(long)]
    name: Option<ObjectName>,
    /// Namespace of the job (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE", default_value = "default")]
    within: Namespace,
    /// Number of pods, which start together
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// Make an array: a task for each index, as in 0-999%50 (50 at a time), each with its RCFARM_ARRAY_INDEX
    #[arg(long, value_name = "SPEC", conflicts_with = "replicas")]
    array: Option<ArraySpec>,
    /// Start it after another job of its namespace has completed: its name, or a text like afterany:JOB; may be repeated
    #[arg(long = "depends-on", value_name = "JOB")]
    depends_on: Vec<String>,
    /// CPUs of each pod, as in 2 or 500m
    #[arg(long)]
    cpu: Option<String>,
    /// Memory of each pod, as in 4Gi
    #[arg(long)]
    memory: Option<String>,
    /// GPUs of each pod
    #[arg(long)]
    gpu: Option<u32>,
    /// The queue
    #[arg(short, long, default_value = "default")]
    queue: String,
    /// Environment variable; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Label that nodes must have; may be repeated
    #[arg(long = "node-selector", value_name = "NAME=VALUE", value_parser = pair)]
    node_selector: Vec<(String, String)>,
    /// Working directory; default: the pod's own
    #[arg(long, value_name = "DIR")]
    chdir: Option<String>,
    /// When a pod's command is started again: Never, OnFailure or Always
    #[arg(long, default_value = "Never")]
    restart: String,
    /// Print the pods' output until the job has ended; exit code 2 unless it succeeded
    #[arg(short, long)]
    follow: bool,
    /// File with the token of agents that serve logs on the network
    #[arg(long, env = "RCFARM_LOG_TOKEN_FILE", value_name = "FILE")]
    log_token_file: Option<std::path::PathBuf>,
    /// The command and its arguments; no shell is used, and nothing in them is replaced
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like NAME=VALUE")?;
    if name.is_empty() {
        Err("the name is missing".to_owned())
    } else {
        Ok((name.to_owned(), value.to_owned()))
    }
}

pub(super) async fn run(context: &CommandContext, args: &JobRunArgs) -> anyhow::Result<CliExit> {
    let id = Namespaced { namespace: args.within.clone(), name: name(context, args)? };
    create(context, &id, document(&id, args)).await?;
    if !args.follow {
        let shown = json!({"job": id, "created": true});
        return context.show(&shown, || format!("{id}: created"));
    }
    context.note(format!("{id}: created"));
    let logs = JobLogsArgs {
        attempt: None,
        previous: false,
        array_index: None,
        job: id,
        task: None,
        index: None,
        container: None,
        read: LogReadArgs { follow: true, lines: 0, log_token_file: args.log_token_file.clone() },
    };
    let Followed { status, .. } = follow(context, &logs).await?;
    if let Some(status) = &status {
        context.note(format!("{}: {}", logs.job, super::wait::summary(status)));
    }
    let phase = status.map(|status| status.state.phase);
    Ok(if phase == Some(JobPhase::Completed) { CliExit::Ok } else { CliExit::Found })
}

fn name(context: &CommandContext, args: &JobRunArgs) -> anyhow::Result<ObjectName> {
    if let Some(name) = &args.name {
        return Ok(name.clone());
    }
    let random = context.ids.ordered_uuid(context.now()).simple().to_string();
    let name = format!("run-{}", &random[random.len() - 8..]);
    name.parse().map_err(|error| failure(format!("{name}: {error}"), "give it a --name"))
}

/// `$` is written as `$$`: in a document `$(NAME)` would be replaced.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn document(id: &Namespaced, args: &JobRunArgs) -> Value {
    let amounts = [("cpu", args.cpu.clone()), ("memory", args.memory.clone())];
    let gpu = ("gpu", args.gpu.map(|count| count.to_string()));
    let requests: Map<String, Value> = amounts
        .into_iter()
        .chain([gpu])
        .filter_map(|(name, amount)| Some((name.to_owned(), json!(amount?))))
        .collect();
    let env: Vec<Value> = args
        .env
        .iter()
        .map(|(name, value)| json!({"name": name, "value": literal(value)}))
        .collect();
    let selector: Map<String, Value> =
        args.node_selector.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let mut container = json!({
        "name": CONTAINER,
        "command": args.command.iter().map(|word| literal(word)).collect::<Vec<_>>(),
        "env": env,
        "resources": {"requests": requests},
    });
    if let Some(dir) = &args.chdir {
        container["workingDir"] = json!(dir);
    }
    let template = json!({"spec": {
        "restartPolicy": args.restart, "nodeSelector": selector, "containers": [container],
    }});
    let mut annotations = Map::new();
    let mut plugins = json!({"env": [], "svc": []});
    if let Some(array) = &args.array {
        annotations.insert(ARRAY_ANNOTATION.to_owned(), json!(array.to_string()));
        // Its tasks do not meet.
        plugins = json!({"env": []});
    }
    if !args.depends_on.is_empty() {
        let all = args.depends_on.iter().map(|job| match job.contains(':') {
            true => job.clone(),
            false => format!("{}:{job}", DependencyType::AfterOk),
        });
        let all: Vec<String> = all.collect();
        annotations.insert(dependencies::ANNOTATION.to_owned(), json!(all.join(";")));
    }
    json!({
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": id.name, "namespace": id.namespace, "annotations": annotations},
        "spec": {
            "queue": args.queue,
            "plugins": plugins,
            "tasks": [{"name": TASK, "replicas": args.replicas, "template": template}],
        },
    })
}
