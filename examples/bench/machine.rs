//! Resource use of processes and of the machine, from `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// `USER_HZ`: 100 on every Linux that Consul runs on.
const TICKS: f64 = 100.0;

/// CPU time of a process so far.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in brackets and may hold anything.
    let rest = stat.rsplit_once(')').context("no name in stat")?.1;
    let field = |n: usize| rest.split_whitespace().nth(n - 3)?.parse::<f64>().ok();
    let (user, system) = (field(14).context("utime")?, field(15).context("stime")?);
    Ok(Duration::from_secs_f64((user + system) / TICKS))
}

/// Resident memory of a process in MiB: current, and peak.
pub fn memory(pid: u32) -> anyhow::Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Option<f64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
    };
    Ok((field("VmRSS").context("VmRSS")?, field("VmHWM").context("VmHWM")?))
}

/// TCP connections of a process.
pub fn connections(pid: u32) -> anyhow::Result<usize> {
    const ESTABLISHED: &str = "01";
    let mut established = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let (Some(&ESTABLISHED), Some(inode)) = (fields.get(3), fields.get(9)) {
                established.insert(format!("socket:[{inode}]"));
            }
        }
    }
    let open = fs::read_dir(format!("/proc/{pid}/fd"))?
        .filter_map(|fd| Some(fs::read_link(fd.ok()?.path()).ok()?.to_string_lossy().into_owned()));
    Ok(open.filter(|link| established.contains(link)).count())
}

/// CPU time of the machine, and the part of the benchmark's own processes.
pub struct Busy {
    at: Instant,
    all: Duration,
    ours: Duration,
}

impl Busy {
    /// `pids`: own processes, besides this one and its ended children.
    pub fn now(pids: &[u32]) -> anyhow::Result<Busy> {
        let stat = fs::read_to_string("/proc/stat")?;
        let fields: Vec<f64> = stat
            .lines()
            .next()
            .context("empty /proc/stat")?
            .split_whitespace()
            .skip(1)
            .filter_map(|field| field.parse().ok())
            .collect();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let busy: f64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|n| fields.get(*n)).sum();
        let mut ours = own_cpu()?;
        for pid in pids {
            ours += cpu(*pid)?;
        }
        Ok(Busy { at: Instant::now(), all: Duration::from_secs_f64(busy / TICKS), ours })
    }

    /// Cores that others used since then, on average.
    pub fn others_since(&self, pids: &[u32]) -> anyhow::Result<f64> {
        let now = Busy::now(pids)?;
        let (all, ours) = (now.all - self.all, now.ours.saturating_sub(self.ours));
        Ok(all.saturating_sub(ours).as_secs_f64() / now.at.duration_since(self.at).as_secs_f64())
    }
}

/// This process and its children that were waited for.
fn own_cpu() -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let rest = stat.rsplit_once(')').context("no name in stat")?.1;
    let fields: Vec<f64> =
        rest.split_whitespace().skip(11).take(4).filter_map(|f| f.parse().ok()).collect();
    Ok(Duration::from_secs_f64(fields.iter().sum::<f64>() / TICKS))
}
