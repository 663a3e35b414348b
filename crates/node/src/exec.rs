//! Programs of pods: started as the pod's user, in its cgroup, without privileges and descriptors of the agent.
//!
//! A shim starts the process of a launchable this way. `rcfarm node exec` becomes the program of a health check.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior, setsid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::agent::cgroup;
use super::agent::driver::{Launch, StartFailure};

/// Keeps other processes of this user from reading this process's memory and environment, which may hold a token.
pub fn hide() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Leaves the session of the agent, and with it the agent's terminal, which a pod could otherwise write input to. This
/// process becomes the leader of a process group.
pub fn leave_session() {
    // Refused to the leader of a process group, as which agents from before start this program.
    let _ = setsid();
}

/// Marks every open descriptor but the standard three: programs that this process starts do not inherit them.
pub fn close_on_exec() {
    close_fds::set_fds_cloexec(3, &[]);
}

/// Gives up protection against the kernel's out-of-memory killer, which programs that this process starts would inherit:
/// one that takes all memory must not be spared at the expense of others.
pub fn give_up_oom_protection() {
    let _ = raise_oom_score(Path::new("/proc/self/oom_score_adj"));
}

/// Raises a negative score to 0, which needs no right.
fn raise_oom_score(path: &Path) -> io::Result<()> {
    let is_protected = fs::read_to_string(path)?.trim_start().starts_with('-');
    if is_protected { fs::write(path, "0") } else { Ok(()) }
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
    thread::scope(|scope| {
        let started = thread::Builder::new().spawn_scoped(scope, || start(launch, &mut command));
        let started = started.map_err(|error| format!("no thread can be started: {error}"))?;
        started.join().unwrap_or_else(|_| Err("the thread that starts the process panicked".into()))
    })
}

fn start(launch: &Launch, command: &mut Command) -> Result<Child, StartFailure> {
    drop_privileges(launch)?;
    let home = launch.cgroup.as_deref().map(|group| enter(group, cgroup::own())).transpose()?;
    let started = command.spawn();
    if let Some(home) = home {
        // The process inherited the cgroup. The shim leaves it again, so that limits do not apply to the shim.
        let _ = fs::write(home.join("cgroup.procs"), "0");
    }
    started.map_err(|error| {
        let program = launch.command.first().map_or("", String::as_str);
        let why = cannot_start(program, launch, &error);
        match is_of_the_program(&error) {
            true => StartFailure::Program(why),
            false => StartFailure::Node(why),
        }
    })
}

/// Whether a start fails because of its program, arguments or working directory. All other errors are the machine's,
/// such as one that lacks memory, processes or rights.
fn is_of_the_program(error: &io::Error) -> bool {
    match Errno::from_io_error(error) {
        Some(errno) => [
            Errno::NOENT,
            Errno::ACCESS,
            Errno::NOEXEC,
            Errno::TOOBIG,
            Errno::NOTDIR,
            Errno::LOOP,
            Errno::NAMETOOLONG,
        ]
        .contains(&errno),
        // A zero byte in a text.
        None => error.kind() == io::ErrorKind::InvalidInput,
    }
}

/// Becomes the program of the launch on standard input, without output. Returns only if that fails, with an error
/// that was also written to standard error.
#[must_use]
pub fn replace_process() -> io::Error {
    leave_session();
    close_on_exec();
    give_up_oom_protection();
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
    match prepared(launch, cgroup::own()) {
        Ok(mut command) => {
            let error = command.stdout(Stdio::null()).stderr(Stdio::null()).exec();
            // The caller names it as in the manifest: the values of its variables may be secrets.
            cannot_start("it", launch, &error)
        }
        Err(failure) => failure.why().to_owned(),
    }
}

/// The command of a launch, in whose cgroup this process then is. `home`: the cgroup that it is in.
fn prepared(launch: &Launch, home: Option<PathBuf>) -> Result<Command, StartFailure> {
    drop_privileges(launch)?;
    launch.cgroup.as_deref().map(|group| enter(group, home)).transpose()?;
    command(launch)
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

fn cannot_start(program: &str, launch: &Launch, error: &io::Error) -> String {
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
    let none = CapabilitySet::empty();
    if !own.permitted.contains(CapabilitySet::SETPCAP) {
        return match launch.run_as {
            // It loses the rest when it starts its program.
            Some((uid, _)) if uid != 0 => Ok(()),
            None if !geteuid().is_root() => Ok(()),
            _ if own.permitted.is_empty() => Ok(()),
            // Root would keep them. As it may gain none, it has none if it has none before.
            None => {
                let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
                set_capabilities(None, none).map_err(message)
            }
            Some(_) => Err("privileges cannot be dropped: the agent has capabilities without CAP_SETPCAP, so a process \
                of root would keep them; give the agent that capability, or --privileged-pods"
                .to_owned()),
        };
    }
    set_capabilities(None, CapabilitySets { inheritable: none, ..own }).map_err(message)?;
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            // This kernel does not have it.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(message(error)),
        }
    }
    Ok(())
}

/// Moves this process from the cgroup `home`, which is returned, into another one, which its next child inherits.
fn enter(group: &Path, home: Option<PathBuf>) -> Result<PathBuf, String> {
    let message = |error| format!("the cgroup {} cannot be entered: {error}", group.display());
    let home = home.ok_or_else(|| "no cgroup v2 is mounted".to_owned())?;
    fs::write(group.join("cgroup.procs"), "0").map_err(message)?;
    Ok(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_program_are_those_of_its_files_and_arguments() {
        for (errno, of_program) in [
            (Errno::NOENT, true),
            (Errno::ACCESS, true),
            (Errno::NOEXEC, true),
            (Errno::TOOBIG, true),
            (Errno::PERM, false),
            (Errno::IO, false),
            (Errno::NOSPC, false),
            (Errno::MFILE, false),
            (Errno::AGAIN, false),
            (Errno::STALE, false),
            (Errno::TXTBSY, false),
        ] {
            assert_eq!(is_of_the_program(&errno.into()), of_program, "{errno:?}");
        }
        let zero = Command::new("a\0b").spawn().unwrap_err();
        assert!(is_of_the_program(&zero), "{zero:?}");
    }

    #[test]
    fn protection_against_the_oom_killer_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("oom_score_adj");
        for (score, raised) in [("-500\n", "0"), ("0\n", "0\n"), ("300\n", "300\n")] {
            fs::write(&path, score).unwrap();
            raise_oom_score(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), raised);
        }
    }

    #[test]
    fn program_of_a_check_begins_in_the_cgroup_of_its_pod() {
        let group = tempfile::tempdir().unwrap();
        let launch = Launch {
            command: vec!["true".to_owned()],
            cwd: group.path().to_owned(),
            cgroup: Some(group.path().to_owned()),
            privileged: true,
            ..Launch::default()
        };
        let home = Some(PathBuf::from("/home"));
        prepared(&launch, home.clone()).unwrap();
        let entered = fs::read_to_string(group.path().join("cgroup.procs")).unwrap();
        assert_eq!(entered, "0", "the process that writes it");
        assert_eq!(enter(group.path(), home).unwrap(), Path::new("/home"), "to go back");

        let none = prepared(&launch, None).unwrap_err();
        assert!(none.why().contains("no cgroup v2 is mounted"), "{}", none.why());
        let gone = Launch { cgroup: Some(group.path().join("gone")), ..launch };
        let gone = prepared(&gone, Some(PathBuf::new())).unwrap_err();
        assert!(gone.why().contains("gone cannot be entered"), "{}", gone.why());
    }

    /// As root without CAP_SETPCAP, or as the user of the tests.
    #[test]
    fn process_of_an_agent_that_cannot_bound_capabilities_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let command = ["grep", "^Cap\\(Eff\\|Prm\\)", "/proc/self/status"].map(str::to_owned);
        let env = std::env::var("PATH").map(|path| ("PATH".to_owned(), path));
        let launch = Launch {
            command: command.to_vec(),
            cwd: directory.path().to_owned(),
            env: env.into_iter().collect(),
            ..Launch::default()
        };
        let log = File::create(&path).unwrap();
        let started = thread::scope(|scope| {
            let limited = || {
                let mut own = capabilities(None).unwrap();
                own.permitted -= CapabilitySet::SETPCAP;
                own.effective -= CapabilitySet::SETPCAP;
                set_capabilities(None, own).unwrap();
                spawn(&launch, log)
            };
            scope.spawn(limited).join().unwrap()
        });
        assert!(started.unwrap().wait().unwrap().success());
        let shown = fs::read_to_string(&path).unwrap();
        let values: Vec<&str> = shown.lines().filter_map(|line| line.split('\t').nth(1)).collect();
        assert_eq!(values, ["0000000000000000"; 2], "{shown}");
    }
}
