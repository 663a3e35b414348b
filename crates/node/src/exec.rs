//! Programs of pods: started as the pod's user, in its cgroup, without privileges and descriptors of the agent.
//!
//! A shim starts the process of a launchable this way. `rcfarm node exec` becomes the program of a health check.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use super::agent::cgroup;
use super::agent::driver::{Launch, StartFailure};

/// Too many open files: of a process, of the machine.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// Keeps other processes of this user from reading this process's memory and environment, which may hold a token.
pub fn hide() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Marks every open descriptor but the standard three: programs that this process starts do not inherit them.
pub fn close_on_exec() {
    close_fds::set_fds_cloexec(3, &[]);
}

/// Starts the program of a launch as the leader of a process group, with its output in `log`.
///
/// # Errors
/// Why it cannot be started, for the pod's status.
pub(super) fn spawn(launch: &Launch, log: File) -> Result<Child, StartFailure> {
    let errors = log.try_clone().map_err(|error| format!("the log file: {error}"))?;
    let mut command = command(launch)?;
    command.stdout(log).stderr(errors).process_group(0);
    // Privileges belong to a thread and to what it starts. The shim needs its own, to signal the process.
    let started = thread::scope(|scope| scope.spawn(|| start(launch, &mut command)).join());
    started.unwrap_or_else(|_| Err("the thread that starts the process panicked".into()))
}

fn start(launch: &Launch, command: &mut Command) -> Result<Child, StartFailure> {
    drop_privileges(launch)?;
    let home = launch.cgroup.as_deref().map(enter).transpose()?;
    let started = command.spawn();
    if let Some(home) = home {
        // The process inherited the cgroup. The shim leaves it again, so that limits do not apply to the shim.
        let _ = fs::write(home.join("cgroup.procs"), "0");
    }
    started.map_err(|error| {
        let why = cannot_start(launch, &error);
        match is_of_the_program(&error) {
            true => StartFailure::Program(why),
            false => StartFailure::Node(why),
        }
    })
}

/// Whether a start fails again wherever the program is started; otherwise the machine lacks memory or processes.
fn is_of_the_program(error: &io::Error) -> bool {
    use io::ErrorKind::{OutOfMemory, ResourceBusy, WouldBlock};
    let of_node = [OutOfMemory, ResourceBusy, WouldBlock];
    !of_node.contains(&error.kind()) && !matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

/// Becomes the program of the launch on standard input, without output. Returns only if that fails, with an error
/// that was also written to standard error.
#[must_use]
pub fn replace_process() -> io::Error {
    close_on_exec();
    // The copy closes when the program begins, so that the reader of the messages sees their end.
    let errors = fcntl_dupfd_cloexec(io::stderr(), 3);
    let why = match read_launch() {
        Ok(launch) => replace(&launch),
        Err(error) => error.to_string(),
    };
    if let Ok(errors) = errors {
        let _ = File::from(errors).write_all(why.as_bytes());
    }
    io::Error::other(why)
}

fn read_launch() -> io::Result<Launch> {
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn replace(launch: &Launch) -> String {
    let prepared = || {
        drop_privileges(launch)?;
        launch.cgroup.as_deref().map(enter).transpose()?;
        command(launch)
    };
    match prepared() {
        Ok(mut command) => {
            let error = command.stdout(Stdio::null()).stderr(Stdio::null()).exec();
            cannot_start(launch, &error)
        }
        Err(failure) => failure.why().to_owned(),
    }
}

fn command(launch: &Launch) -> Result<Command, StartFailure> {
    if !launch.cwd.is_dir() {
        let why = format!("the working directory {} does not exist", launch.cwd.display());
        return Err(StartFailure::Program(why));
    }
    let (program, arguments) = launch.command.split_first().ok_or("the command is empty")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&launch.env)
        .current_dir(&launch.cwd)
        .stdin(Stdio::null());
    if let Some((uid, gid)) = launch.run_as {
        // Groups of the agent go with its user.
        command.gid(gid).uid(uid);
    }
    Ok(command)
}

fn cannot_start(launch: &Launch, error: &io::Error) -> String {
    let program = launch.command.first().map_or("", String::as_str);
    match launch.run_as {
        Some((uid, gid)) => format!(
            "{program} cannot be started as {uid}:{gid} in {}: {error}",
            launch.cwd.display()
        ),
        None => format!("{program} cannot be started: {error}"),
    }
}

/// Takes from this thread, and from what it starts, the right to gain privileges: by set-user-ID programs, by file
/// capabilities, or by being root. Its own rights stay until it starts a program, so that it can change its user.
fn drop_privileges(launch: &Launch) -> Result<(), String> {
    if launch.privileged {
        return Ok(());
    }
    let message = |error| format!("privileges cannot be dropped: {error}");
    set_no_new_privs(true).map_err(message)?;
    clear_ambient_capability_set().map_err(message)?;
    let own = capabilities(None).map_err(message)?;
    if !own.permitted.contains(CapabilitySet::SETPCAP) {
        // It has nothing that a program without file capabilities could keep.
        return Ok(());
    }
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, rustix::thread::CapabilitySets { inheritable, ..own })
        .map_err(message)?;
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            // This kernel does not have it.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(message(error)),
        }
    }
    Ok(())
}

/// Moves this process into a cgroup, which its next child inherits. Returns the cgroup that it left.
fn enter(group: &Path) -> Result<PathBuf, String> {
    let message = |error| format!("the cgroup {} cannot be entered: {error}", group.display());
    let home = cgroup::own().ok_or_else(|| "no cgroup v2 is mounted".to_owned())?;
    fs::write(group.join("cgroup.procs"), "0").map_err(message)?;
    Ok(home)
}
