//! `rcfarm completion`, the shells' scripts, and `rcfarm complete`, which they ask for names of records.
//!
//! Keys read: the names of records, nodes, farms and pods of the kind that the command line expects next. Keys written:
//! none.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use clap::{Arg, ArgAction, Command};
use clap_complete::Shell;
use tokio::time::timeout;

use super::cell;
use super::context::CommandContext;
use super::failure::CliExit;
use super::rc::find::FoundRc;
use rcfarm_api::ids::{FarmName, NodeName, ObjectName, PodId, QueueName, RcId};
use rcfarm_api::key;
use rcfarm_store::Prefix;

/// What follows in the scripts: names are added to the words that the script itself knows. Bash gets no word list with
/// names: `compgen -W` expands each of its words, command substitutions included.
const BASH: &str = r#"
_rcfarm_names() {
    _rcfarm "$@"
    local cur="${COMP_WORDS[COMP_CWORD]}" name
    if [[ $cur != -* ]]; then
        while IFS= read -r name; do
            if [[ $name == "$cur"* ]]; then COMPREPLY+=("$name"); fi
        done < <(rcfarm complete -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
    fi
}
complete -F _rcfarm_names -o bashdefault -o default rcfarm
"#;
const ZSH: &str = r#"
_rcfarm_names() {
    local -a names
    names=(${(f)"$(rcfarm complete -- ${words[2,CURRENT-1]} 2>/dev/null)"})
    (( $#names )) && compadd -a names
    _rcfarm "$@"
}
(( $+functions[compdef] )) && compdef _rcfarm_names rcfarm
"#;
const FISH: &str = r#"
complete -c rcfarm -f -a '(rcfarm complete -- (commandline -opc)[2..] 2>/dev/null)'
"#;

/// Prints the script of a shell.
pub(super) fn script(shell: Shell, command: &mut Command) -> anyhow::Result<CliExit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "rcfarm", &mut script);
    script.extend_from_slice(match shell {
        Shell::Bash => BASH.as_bytes(),
        Shell::Zsh => ZSH.as_bytes(),
        Shell::Fish => FISH.as_bytes(),
        _ => b"",
    });
    io::stdout().lock().write_all(&script)?;
    Ok(CliExit::Ok)
}

/// Limit of the time that pressing the Tab key takes while Consul does not answer.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Things whose names can be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Controller,
    CronJob,
    Farm,
    Flow,
    Group,
    Job,
    JobType,
    Node,
    Pod,
    PriorityClass,
    Queue,
    Scheduler,
    Template,
    VirtualCluster,
}

impl Named {
    /// By the name of the argument's value. `path`: the subcommands before it.
    fn of(arg: &Arg, path: &[String]) -> Option<Named> {
        let name = arg.get_value_names()?.first()?.as_str();
        Some(match name {
            "RC" => Named::Controller,
            "JOB" | "NS/NAME" => Named::Job,
            "CRON" => Named::CronJob,
            "FLOW" => Named::Flow,
            "GROUP" => Named::Group,
            "SCHEDULER" if path.first().is_some_and(|first| first == "queue") => Named::Scheduler,
            "TEMPLATE" => Named::Template,
            "NODE" => Named::Node,
            "POD" => Named::Pod,
            "QUEUE" => Named::Queue,
            "CLASS" if path != ["priority-class", "create"] => Named::PriorityClass,
            "KIND" if path == ["job", "type", "get"] || path == ["job", "type", "delete"] => {
                Named::JobType
            }
            "VC" => Named::VirtualCluster,
            "NAME" if path == ["farm", "confirm"] => Named::Farm,
            _ => return None,
        })
    }
}

/// What the word after `words` names; `None`: nothing that is in Consul. Pure.
fn expected(command: &Command, words: &[String]) -> Option<Named> {
    let (mut command, mut path, mut position) = (command, Vec::new(), 0);
    let mut words = words.iter();
    let globals: Vec<&Arg> = command.get_arguments().filter(|arg| arg.is_global_set()).collect();
    while let Some(word) = words.next() {
        if let Some(flag) = word.strip_prefix('-').filter(|flag| !flag.is_empty()) {
            let name = flag.trim_start_matches('-');
            let mut known = command.get_arguments().chain(globals.iter().copied());
            let is_it = |arg: &&Arg| {
                arg.get_long() == Some(name)
                    || arg.get_short().is_some_and(|short| name == short.to_string())
            };
            let takes_value =
                |arg: &Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
            let found = known.find(is_it).filter(|arg| takes_value(arg));
            if let Some(arg) = found
                && words.next().is_none()
            {
                return Named::of(arg, &path);
            }
            continue;
        }
        match command.find_subcommand(word).filter(|_| position == 0) {
            Some(below) => {
                path.push(below.get_name().to_owned());
                command = below;
            }
            None => position += 1,
        }
    }
    let positionals: Vec<&Arg> = command.get_positionals().collect();
    let is_repeated = |arg: &&&Arg| matches!(arg.get_action(), ArgAction::Append);
    let last = positionals.last().filter(is_repeated);
    Named::of(positionals.get(position).or(last)?, &path)
}

/// Prints the names that may follow `words`, one per line. Prints nothing where there are none, or no answer in time.
pub(super) async fn names(
    context: &CommandContext,
    command: &Command,
    words: &[String],
) -> anyhow::Result<CliExit> {
    let Some(named) = expected(command, words) else { return Ok(CliExit::Ok) };
    let Ok(Ok(names)) = timeout(LONGEST_WAIT, list(context, named)).await else {
        return Ok(CliExit::Ok);
    };
    context.show(&names, || names.iter().map(|name| format!("{name}\n")).collect())
}

async fn list(context: &CommandContext, named: Named) -> anyhow::Result<BTreeSet<String>> {
    let prefix = match named {
        Named::Controller => return controllers(context).await,
        Named::CronJob => key::cron_jobs(),
        Named::Farm => key::farms(),
        Named::Flow => key::job_flows(),
        Named::Group => key::pod_groups(),
        Named::Job => key::jobs(),
        Named::JobType => key::job_types(),
        Named::Node => key::nodes(),
        Named::Pod => key::pod_statuses(),
        Named::PriorityClass => key::priority_classes(),
        Named::VirtualCluster => return virtual_clusters(context).await,
        Named::Queue => key::queues(),
        Named::Scheduler => key::schedulers(),
        Named::Template => key::job_templates(),
    };
    let keys = context.keys(&prefix).await?;
    let keys = keys.iter().filter(|key| !prefix.is_sentinel(key));
    Ok(keys.filter_map(|key| name(named, &prefix, key)).collect())
}

/// The name in a key. `None`: it is not a legal one. A shell puts it on the command line as it is, and anybody who may
/// write below the prefix chooses the key.
fn name(named: Named, prefix: &Prefix, key: &str) -> Option<String> {
    let tail = prefix.tail(key)?;
    match named {
        Named::Controller => tail.parse::<RcId>().ok().map(|id| id.to_string()),
        Named::Farm => tail.parse::<FarmName>().ok().map(String::from),
        Named::Job | Named::CronJob | Named::Flow | Named::Group | Named::Template => {
            key::namespaced(prefix, key).map(String::from)
        }
        Named::Node => tail.parse::<NodeName>().ok().map(String::from),
        Named::Pod => tail.split('/').next()?.parse::<PodId>().ok().map(String::from),
        Named::JobType | Named::PriorityClass | Named::Scheduler => {
            tail.parse::<ObjectName>().ok().map(String::from)
        }
        Named::Queue => tail.parse::<QueueName>().ok().map(String::from),
        // They are in one record.
        Named::VirtualCluster => None,
    }
}

/// Names of virtual clusters that need no quotes in a shell.
async fn virtual_clusters(context: &CommandContext) -> anyhow::Result<BTreeSet<String>> {
    let is_plain = |name: &&str| {
        let is_safe = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_safe)
    };
    let model = cell::model(context).await?;
    Ok(model.virtual_clusters().filter(is_plain).map(str::to_owned).collect())
}

/// Ids of the pods of controllers; where two have the same, the ids of the controllers.
async fn controllers(context: &CommandContext) -> anyhow::Result<BTreeSet<String>> {
    let entries = context.list(&key::rcs()).await?;
    let found: Vec<FoundRc> = entries
        .into_iter()
        .filter_map(|entry| Some(FoundRc::of(key::rcs().tail(&entry.key)?.parse().ok()?, entry)))
        .collect();
    let count = |name: &str| {
        found.iter().filter(|one| one.pod_id().is_some_and(|pod| pod.as_str() == name)).count()
    };
    let name = |one: &FoundRc| match one.pod_id() {
        Some(pod) if count(pod.as_str()) == 1 => pod.to_string(),
        _ => one.id.to_string(),
    };
    Ok(found.iter().map(name).collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn next_word_is_known_by_subcommand_position_and_flag() {
        let command = crate::cli::Cli::command();
        for (line, named) in [
            ("rc scale", Some(Named::Controller)),
            ("rc scale web", None),
            ("-o json rc get", Some(Named::Controller)),
            ("job get --root", None),
            ("job delete a", Some(Named::Job)),
            ("node drain n1", Some(Named::Node)),
            ("node drain --deadline 1h", Some(Named::Node)),
            ("pod logs", Some(Named::Pod)),
            ("pod logs web --node", Some(Named::Node)),
            ("queue get", Some(Named::Queue)),
            ("cron run", Some(Named::CronJob)),
            ("flow tree", Some(Named::Flow)),
            ("queue group get", Some(Named::Group)),
            ("queue scheduler delete", Some(Named::Scheduler)),
            ("flow template delete a", Some(Named::Template)),
            ("audit list --job", Some(Named::Job)),
            ("audit list --rc", Some(Named::Controller)),
            ("farm confirm", Some(Named::Farm)),
            ("priority-class get", Some(Named::PriorityClass)),
            ("priority-class create", None),
            ("job type get", Some(Named::JobType)),
            ("cell status", Some(Named::VirtualCluster)),
            ("node run --name", None),
            ("rc", None),
            ("", None),
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(expected(&command, &words), named, "{line}");
        }
    }
}
