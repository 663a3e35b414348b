//! Farm processes, each pointed at a server of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcfarm_testing::process::Process;

/// Farms that are always meant to run.
pub struct Farms {
    program: PathBuf,
    scratch: PathBuf,
    slots: Vec<Slot>,
}

struct Slot {
    letter: char,
    /// How often it was started: each life has its own name, so that the audit log tells the lives apart.
    lives: usize,
    consul: SocketAddr,
    selector: &'static str,
    process: Option<Process>,
}

impl Farms {
    /// One farm per server. The last one claims only what is not labelled `tier=batch`.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The name of a farm's present life.
    pub fn name(&self, n: usize) -> String {
        let Slot { letter, lives, .. } = &self.slots[n];
        format!("{letter}-{lives}")
    }

    /// Starts one that is down.
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

    /// SIGTERM, and waits for the end; whether it said that it ended well.
    pub async fn stop(&mut self, n: usize) -> bool {
        let Some(process) = self.slots[n].process.take() else { return false };
        process.signal("TERM");
        process.ended().await.success()
    }

    /// Sends one a signal.
    pub fn signal(&self, n: usize, name: &str) {
        self.slots[n].process.as_ref().expect("it runs").signal(name);
    }

    /// Whether it runs: a farm never ends by itself.
    pub fn runs(&mut self, n: usize) -> bool {
        self.slots[n].process.as_mut().is_some_and(Process::runs)
    }
}
