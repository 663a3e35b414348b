//! Programs that tests run: found, started, signalled, and gone when whoever started them is, however that ends.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// A process, and the guard that ends it when we are gone. Dropping it kills it.
pub struct Process {
    child: Child,
    guard: Child,
    _leash: ChildStdin,
}

impl Process {
    /// Runs `command`. What it says is appended to `dir/<log>`; `dir` is removed if we are killed.
    pub fn start(command: &mut Command, dir: &Path, log: &str) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(dir.join(log)).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {}: {e}", command.get_program().display()));
        let (guard, leash) = guard(child.id(), dir);
        Process { child, guard, _leash: leash }
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(sent.success(), "no {name} for {pid}");
    }

    /// Waits for its end.
    pub async fn ended(mut self) -> ExitStatus {
        tokio::task::spawn_blocking(move || self.child.wait().unwrap()).await.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for child in [&mut self.child, &mut self.guard] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Ends a process when our end of the pipe closes: also after a kill of the tests, and for one in a static. It is in
/// a process group of its own, so that an interrupt from the terminal leaves it alive to do so.
fn guard(child: u32, dir: &Path) -> (Child, ChildStdin) {
    let mut guard = Command::new("sh")
        .args(["-c", r#"read -r _; kill -9 "$1"; rm -rf "$2""#, "guard", &child.to_string()])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("cannot run sh");
    let leash = guard.stdin.take().expect("was piped");
    (guard, leash)
}

/// Ports that tests listen on: below the range from which outgoing connections get theirs (from 32 768 on), so that none of
/// those takes one before its user does, or while its user is down.
const PORTS: Range<u16> = 20_000..32_000;

/// `N` ports in a row that are free for TCP and UDP at this moment, and that this process has given to nobody else.
pub fn free_ports<const N: usize>() -> [u16; N] {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let wanted = u16::try_from(N).unwrap();
    let span = PORTS.end - PORTS.start - wanted;
    // Another process that runs tests at the same time begins elsewhere.
    let begin = std::process::id().wrapping_mul(7919) % u32::from(span);
    let begin = u16::try_from(begin).unwrap();
    for _ in PORTS {
        let given = GIVEN.fetch_add(wanted, Ordering::Relaxed) % span;
        let first = PORTS.start + (begin + given) % span;
        let ports = std::array::from_fn(|n| first + u16::try_from(n).unwrap());
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

/// The Consul program: `CONSUL_BIN`, or the PATH's, or what `.ci/get-consul` has put into the project.
///
/// There is no skip: a suite that passes without the real thing proves nothing.
pub fn consul() -> PathBuf {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> = match std::env::var_os("CONSUL_BIN") {
        Some(named) => vec![named.into()],
        None => std::env::split_paths(&on_path)
            .map(|dir| dir.join("consul"))
            .chain([Path::new(env!("CARGO_MANIFEST_DIR")).join(".consul/consul")])
            .collect(),
    };
    candidates.iter().find(|path| path.is_file()).cloned().unwrap_or_else(|| {
        panic!(
            "this test needs a real Consul: run .ci/get-consul, or set CONSUL_BIN to a Consul program. \
             Looked at {candidates:?}"
        )
    })
}
