//! The commands. Only this module prints.
//!
//! A command reads and writes Consul directly, without a server in between. Each change is one transaction with its audit
//! record (`context`), guarded by the indexes of what the command has read. Each command's module names its keys. A
//! command that was killed has applied a change completely or not at all.
//!
//! Results go to standard output in the format of `-o`, notes and progress to standard error.

mod apply;
mod argv;
mod audit;
mod cell;
mod complete;
mod connect;
mod context;
mod cron;
mod delete_documents;
mod demo_server;
mod dev;
mod dev_token;
mod doctor;
#[cfg(test)]
mod documented;
mod documents;
mod failure;
mod farm;
mod farm_run;
mod files;
mod flow;
mod job;
mod job_type;
mod label;
mod node;
mod node_run;
mod output;
mod pod;
mod priority_class;
mod queue;
mod rc;
mod terminal;
mod wanted;

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser};

use connect::Global;
use context::CommandContext;
use failure::{CliExit, EXIT_CODES};
use terminal::ColorWhen;

/// Replication controllers and batch jobs on machines that already run Consul
#[derive(Parser)]
#[command(name = "rcfarm", version = rcfarm_api::VERSION, after_help = EXIT_CODES)]
#[command(max_term_width = 120, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    #[command(subcommand)]
    Rc(rc::RcCommand),
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    #[command(subcommand)]
    PriorityClass(priority_class::PriorityClassCommand),
    #[command(subcommand)]
    Job(job::JobCommand),
    #[command(subcommand)]
    Cron(cron::CronCommand),
    #[command(subcommand)]
    Flow(flow::FlowCommand),
    /// Create or update jobs, queues and controllers from files: Volcano's Job, CronJob, JobFlow, JobTemplate, PodGroup
    /// and Queue, Kubeflow's TFJob, PyTorchJob, MPIJob, XGBoostJob, Pod, PriorityClass, JobType, Scheduler, HiveD's
    /// configuration of cells, and replication_controllers
    Apply(apply::FileArgs),
    /// Show what apply would change; exit code 0 nothing, 1 something, 2 an error
    Plan(apply::FileArgs),
    #[command(subcommand)]
    Cell(cell::CellCommand),
    #[command(subcommand)]
    Label(label::LabelCommand),
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    #[command(subcommand)]
    Farm(FarmCommand),
    #[command(subcommand)]
    Node(NodeCommand),
    #[command(subcommand)]
    Pod(pod::PodCommand),
    /// Run a store, a farm and some nodes in this process, to try things out without Consul
    Dev(dev::DevArgs),
    /// Serve a page that names its pod and node, for use as an example workload
    #[command(alias = "hello")]
    DemoServer(demo_server::DemoServerArgs),
    /// Check that Consul has everything rcfarm needs, and say how to fix what is missing
    Doctor(doctor::DoctorArgs),
    /// Print the version, as --version does
    Version,
    /// Print the completions of a shell, as in: source <(rcfarm completion bash)
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the names that may follow these words; the scripts of the shells ask this
    #[command(hide = true)]
    Complete {
        /// The words after rcfarm, without the one that is being written
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Write the manual pages into a directory, as in: rcfarm man /usr/local/share/man/man1
    Man {
        /// The directory
        #[arg(value_name = "DIR")]
        dir: std::path::PathBuf,
    },
}

/// Farms: the daemons that keep controllers as they should be
#[derive(clap::Subcommand)]
enum FarmCommand {
    /// Run a farm, until SIGTERM or SIGINT
    Run(Box<farm_run::FarmRunArgs>),
    #[command(flatten)]
    Other(farm::FarmCommand),
}

/// Nodes: the machines that run pods
#[derive(clap::Subcommand)]
enum NodeCommand {
    /// Run this machine's agent, until SIGTERM or SIGINT; its pods go on without it
    Run(Box<node_run::NodeRunArgs>),
    /// Run one process of a pod; only agents start this
    #[command(hide = true)]
    Shim {
        /// Directory of the process
        dir: std::path::PathBuf,
    },
    /// Become the program of the launch on standard input; only agents start this
    #[command(hide = true)]
    Exec,
    #[command(flatten)]
    Other(node::NodeCommand),
}

/// Runs the command in this process's arguments.
pub fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(exit) => return exit.into(),
    };
    let out = cli.global.output();
    let mut address = None;
    let is_plan = matches!(
        cli.command,
        Command::Plan(_)
            | Command::Rc(rc::RcCommand::Plan(_))
            | Command::Cell(cell::CellCommand::Config(cell::CellConfigCommand::Plan(_)))
            | Command::Cell(cell::CellCommand::WhatIf(_))
    );
    let exit = run(cli, &mut address)
        .unwrap_or_else(|error| failure::report(&error, address.as_deref(), out.color));
    if is_plan { exit.of_plan().into() } else { exit.into() }
}

/// Parses the arguments. Prints help, version, or what is wrong with them.
fn parse() -> Result<Cli, CliExit> {
    // Arguments may be wrong, so that colours are looked for before they are parsed.
    let words: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let command = Cli::command().color(ColorWhen::in_arguments(&words).into());
    let arguments = argv::with_double_dashes(&command, std::env::args_os());
    let parsed = command.try_get_matches_from(arguments);
    parsed.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| {
        // A failure to write to stderr cannot be reported.
        let _ = error.print();
        let exit = if error.use_stderr() { CliExit::Error } else { CliExit::Ok };
        // The command is unknown if parsing failed, so a word `plan` or `what-if` decides which exit codes apply.
        let is_plan = std::env::args_os().any(|arg| arg == "plan" || arg == "what-if");
        if is_plan { exit.of_plan() } else { exit }
    })
}

fn run(cli: Cli, address: &mut Option<String>) -> anyhow::Result<CliExit> {
    // A shim runs as long as its process, one per process of the node. It needs no async runtime.
    if let Command::Node(NodeCommand::Shim { dir }) = &cli.command {
        return node_run::run_shim(dir);
    }
    if let Command::Node(NodeCommand::Exec) = &cli.command {
        return node_run::run_exec();
    }
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(dispatch(cli, address))
}

/// Runs a command. Daemons set up logging and their own client; all others get a context.
async fn dispatch(cli: Cli, address: &mut Option<String>) -> anyhow::Result<CliExit> {
    let Cli { global, command } = cli;
    let mut context = || -> anyhow::Result<CommandContext> {
        let (store, reached, root) = global.connect()?;
        *address = Some(reached);
        Ok(CommandContext::new(store, global.output()).below(root))
    };
    match command {
        Command::Rc(command) => rc::run(&context()?, command).await,
        Command::Queue(command) => queue::run(&context()?, command).await,
        Command::PriorityClass(command) => priority_class::run(&context()?, command).await,
        Command::Job(command) => job::run(&context()?, command).await,
        Command::Cron(command) => cron::run(&context()?, command).await,
        Command::Flow(command) => flow::run(&context()?, command).await,
        Command::Apply(args) => apply::apply(&context()?, &args).await,
        Command::Plan(args) => apply::plan(&context()?, &args).await,
        Command::Cell(command) => cell::run(&context()?, command).await,
        Command::Label(command) => label::run(&context()?, command).await,
        Command::Audit(command) => audit::run(&context()?, command).await,
        Command::Farm(FarmCommand::Run(args)) => {
            let clients = global.daemon_clients()?;
            *address = Some(clients.address().to_owned());
            farm_run::run(*args, clients).await
        }
        Command::Farm(FarmCommand::Other(command)) => farm::run(&context()?, command).await,
        Command::Node(NodeCommand::Run(args)) => {
            let clients = global.daemon_clients()?;
            *address = Some(clients.address().to_owned());
            node_run::run(*args, clients).await
        }
        Command::Node(NodeCommand::Shim { .. } | NodeCommand::Exec) => {
            unreachable!("they run without an async runtime")
        }
        Command::Node(NodeCommand::Other(command)) => node::run(&context()?, command).await,
        Command::Pod(command) => pod::run(&context()?, command).await,
        Command::Dev(args) => dev::run(args, global.listen_address(), global.output()).await,
        Command::DemoServer(args) => demo_server::run(args).await,
        Command::Doctor(args) => {
            let context = context()?;
            doctor::run(&context, &args, address.as_deref().unwrap_or_default()).await
        }
        Command::Version => {
            let version = rcfarm_api::VERSION;
            let shown = || format!("rcfarm {version}");
            global.output().show(&serde_json::json!({"version": version}), shown)?;
            Ok(CliExit::Ok)
        }
        Command::Completion { shell } => complete::script(shell, &mut Cli::command()),
        Command::Complete { words } => complete::names(&context()?, &Cli::command(), &words).await,
        Command::Man { dir } => {
            std::fs::create_dir_all(&dir)?;
            clap_mangen::generate_to(Cli::command(), &dir)
                .with_context(|| format!("cannot write into {}", dir.display()))?;
            Ok(CliExit::Ok)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
