//! Child processes of tests: they end when the process that started them ends, however it ends.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// A child process, killed when dropped, and the guard process that kills it when this process is gone.
pub struct Process {
    child: Child,
    guard: Child,
    /// The guard reads from this pipe; it acts when the pipe closes.
    _pipe: ChildStdin,
}

impl Process {
    /// Runs `command`. Its output is appended to `dir/<log>`. If this process is killed, the guard removes `dir`.
    ///
    /// # Panics
    /// When the program does not start.
    pub fn start(command: &mut Command, dir: &Path, log: &str) -> Self {
        let log =
            OpenOptions::new().create(true).append(true).open(dir.join(log)).expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {}: {e}", command.get_program().display()));
        let (guard, pipe) = guard(child.id(), dir);
        Process { child, guard, _pipe: pipe }
    }

    /// Runs `command` with the output of this process.
    ///
    /// # Panics
    /// When the program does not start.
    pub fn start_logging_here(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {}: {e}", command.get_program().display()));
        let (guard, pipe) = guard(child.id(), Path::new(""));
        Process { child, guard, _pipe: pipe }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is running.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }

    /// Sends a signal, by its name without `SIG`.
    ///
    /// # Panics
    /// When `kill` fails.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(sent.success(), "no {name} for {pid}");
    }

    /// `kill -9`, if it still runs.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// When the operating system does not tell how it ended.
    pub async fn wait(&mut self) -> ExitStatus {
        loop {
            if let Some(ended) = self.child.try_wait().expect("an exit status") {
                return ended;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// As [`Process::wait`], by value.
    pub async fn ended(mut self) -> ExitStatus {
        self.wait().await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = self.guard.kill();
        let _ = self.guard.wait();
    }
}

/// Starts a shell that kills `child` and removes `dir` when our end of the pipe closes: also when the tests are killed,
/// and for a process in a static. The shell has its own process group, so that an interrupt at the terminal does not end it.
fn guard(child: u32, dir: &Path) -> (Child, ChildStdin) {
    let mut guard = Command::new("sh")
        .args([
            "-c",
            r#"read -r _; kill -9 "$1"; [ -z "$2" ] || rm -rf "$2""#,
            "guard",
            &child.to_string(),
        ])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("cannot run sh");
    let pipe = guard.stdin.take().expect("a pipe");
    (guard, pipe)
}

/// Ports that tests listen on: below the range of outgoing connections (from 32 768 on), so that no connection takes one
/// before its server does, or while its server is down.
const PORTS: Range<u16> = 20_000..32_000;

/// `N` ports in a row that are free for TCP and UDP, and that this process has not returned before.
///
/// # Panics
/// When there are none.
#[must_use]
pub fn free_ports<const N: usize>() -> [u16; N] {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let wanted = u16::try_from(N).expect("a small number");
    let span = PORTS.end - PORTS.start - wanted;
    // Another process that runs tests at the same time begins elsewhere.
    let begin = std::process::id().wrapping_mul(7919) % u32::from(span);
    let begin = u16::try_from(begin).expect("below the span");
    for _ in PORTS {
        let given = GIVEN.fetch_add(wanted, Ordering::Relaxed) % span;
        let first = PORTS.start + (begin + given) % span;
        let ports = std::array::from_fn(|n| first + u16::try_from(n).expect("below N"));
        if ports.iter().all(|port| is_free(*port)) {
            return ports;
        }
    }
    panic!("no {N} ports in a row are free in {PORTS:?}");
}

fn is_free(port: u16) -> bool {
    let at = (Ipv4Addr::LOCALHOST, port);
    TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
}

/// Whether tests may start processes as other users. `false` leaves a test out.
///
/// # Panics
/// When the tests do not run as root, unless `RCFARM_TESTS_WITHOUT_ROOT` is set: a test that is left out must be noticed.
#[must_use]
pub fn may_change_users() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let is_told = std::env::var_os("RCFARM_TESTS_WITHOUT_ROOT").is_some();
    assert!(
        is_root || is_told,
        "this test changes users: run it as root, or set RCFARM_TESTS_WITHOUT_ROOT=1 to leave such tests out"
    );
    if !is_root {
        eprintln!("LEFT OUT: this test changes users, and needs root");
    }
    is_root
}

/// The Consul program: `CONSUL_BIN`, or the PATH's, or the one that `.ci/get-consul` has put into the project.
///
/// # Panics
/// When there is none. Tests that need a real Consul are not skipped.
#[must_use]
pub fn consul_program() -> PathBuf {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> = match std::env::var_os("CONSUL_BIN") {
        Some(named) => vec![named.into()],
        None => std::env::split_paths(&on_path)
            .map(|dir| dir.join("consul"))
            .chain([Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.consul/consul")])
            .collect(),
    };
    candidates.iter().find(|path| path.is_file()).cloned().unwrap_or_else(|| {
        panic!(
            "this test needs a real Consul: run .ci/get-consul, or set CONSUL_BIN to a Consul program. \
             Looked at {candidates:?}"
        )
    })
}
