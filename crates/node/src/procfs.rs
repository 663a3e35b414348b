//! Processes and boots as the kernel names them. A pid and a start time identify a process, so a pid that was reused is
//! never taken for another.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// Interval of polls where the kernel has no pidfd.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Milliseconds since boot, including suspension. Leases use this clock.
pub fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec) * 1_000 + part(now.tv_nsec) / 1_000_000
}

/// Id of this boot of the machine.
pub fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Start time of a process, in clock ticks since boot. `None` if the process is gone or a zombie.
pub fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain spaces and parentheses. The state is the first field after it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Whether the process with this pid and start time exists.
pub(crate) fn is_alive(pid: i32, ticks: u64) -> bool {
    start_ticks(pid) == Some(ticks)
}

/// Whether a process catches a signal, or blocks it to read it by itself. One that ignores it does not handle it: a
/// process inherits that.
pub(crate) fn handles(pid: i32, signal: Signal) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let has = |line: &str, name: &str| {
        let mask = line.strip_prefix(name).map(str::trim);
        let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
    };
    status.lines().any(|line| has(line, "SigCgt:") || has(line, "SigBlk:"))
}

/// A descriptor that becomes readable when the process ends. `None` if the kernel has no pidfds.
#[expect(
    deprecated,
    reason = "its successor is unsafe; nothing else can close an owned descriptor"
)]
fn end_of(pid: i32) -> Option<AsyncFd<OwnedFd>> {
    let fd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    AsyncFd::new(fd).ok()
}

/// Resolves when the process has ended. Its parent may not have reaped it yet.
pub(crate) async fn gone(pid: i32, ticks: u64) {
    // The start time is checked after the descriptor was opened: until then the pid may be reused.
    if let Some(end) = end_of(pid).filter(|_| is_alive(pid, ticks)) {
        let _ = end.readable().await;
        return;
    }
    while is_alive(pid, ticks) {
        sleep(POLL_INTERVAL).await;
    }
}
