//! Farm processes, each connected to a server of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcfarm_testing::process::Process;

/// Farms that should all run.
pub struct Farms {
    program: PathBuf,
    scratch: PathBuf,
    slots: Vec<Slot>,
}

struct Slot {
    letter: char,
    /// Number of starts. Each start has its own farm name, so that the audit log distinguishes them.
    lives: usize,
    consul: SocketAddr,
    selector: &'static str,
    process: Option<Process>,
}

impl Farms {
    /// Starts one farm per server. The last one does not claim records labelled `tier=batch`.
    pub fn start(program: &Path, scratch: &Path, servers: &[SocketAddr]) -> Farms {
        let slot = |(n, consul): (usize, &SocketAddr)| {
            let selector = if n + 1 == servers.len() { "tier!=batch" } else { "" };
            let letter = ['a', 'b', 'c', 'd'][n];
            Slot { letter, lives: 0, consul: *consul, selector, process: None }
        };
        let slots: Vec<Slot> = servers.iter().enumerate().map(slot).collect();
        let mut farms = Farms { program: program.into(), scratch: scratch.into(), slots };
        for n in 0..servers.len() {
            farms.start_one(n);
        }
        farms
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Present name of a farm.
    pub fn name(&self, n: usize) -> String {
        let Slot { letter, lives, .. } = &self.slots[n];
        format!("{letter}-{lives}")
    }

    /// Starts a farm that is down.
    pub fn start_one(&mut self, n: usize) {
        self.slots[n].lives += 1;
        let name = self.name(n);
        let slot = &mut self.slots[n];
        let mut command = Command::new(&self.program);
        command.env("CONSUL_HTTP_ADDR", slot.consul.to_string());
        command.args(["farm", "run", "--session-ttl", "10s", "--log", "info,rcfarm=debug"]);
        command.args(["--name", &name, "--selector", slot.selector]);
        slot.process =
            Some(Process::start(&mut command, &self.scratch, &format!("farm-{name}.log")));
    }

    /// `kill -9`.
    pub fn kill(&mut self, n: usize) {
        self.slots[n].process = None;
    }

    /// Sends SIGTERM and waits for the end; returns whether it exited with 0.
    pub async fn stop(&mut self, n: usize) -> bool {
        let Some(process) = self.slots[n].process.take() else { return false };
        process.signal("TERM");
        process.ended().await.success()
    }

    pub fn signal(&self, n: usize, name: &str) {
        self.slots[n].process.as_ref().expect("it runs").signal(name);
    }

    /// Whether it still runs. A farm never ends by itself.
    pub fn runs(&mut self, n: usize) -> bool {
        self.slots[n].process.as_mut().is_some_and(Process::runs)
    }
}
