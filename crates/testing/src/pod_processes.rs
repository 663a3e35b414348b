//! Processes of pods, as recorded in a node agent's data directory.

use std::path::{Path, PathBuf};

use rcfarm_node::agent::driver::Started;
use rcfarm_node::procfs::start_ticks;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// The processes that an agent's data directory records as running.
#[must_use]
pub fn running(data: &Path) -> Vec<Started> {
    let read = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let pods = read(data.join("pods"));
    let launchables = pods.flat_map(|pod| read(pod.path()));
    let record = |launchable: std::fs::DirEntry| {
        let text = std::fs::read(launchable.path().join("running.json")).ok()?;
        serde_json::from_slice(&text).ok()
    };
    launchables.filter_map(record).collect()
}

/// Kills them, shims first: pods outlive their agent, but must not outlive the test.
pub fn kill(data: &Path) {
    for running in running(data) {
        let is_same = |pid: i32, ticks| start_ticks(pid) == Some(ticks);
        if is_same(running.shim, running.shim_ticks)
            && let Some(shim) = Pid::from_raw(running.shim)
        {
            let _ = kill_process(shim, Signal::KILL);
        }
        if is_same(running.pid, running.start_ticks)
            && let Some(group) = Pid::from_raw(running.pid)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
