//! Farm processes, each connected to a server of its own.

use std::path::{Path, PathBuf};

use rcfarm_testing::process::Process;
use rcfarm_testing::program::Program;

/// Farms that should all run.
pub struct Farms {
    scratch: PathBuf,
    slots: Vec<Slot>,
}

struct Slot {
    letter: char,
    /// Number of starts. Each start has its own farm name, so that the audit log distinguishes them.
    lives: usize,
    program: Program,
    selector: &'static str,
    process: Option<Process>,
}

impl Farms {
    /// Starts one farm per server. The last one does not claim records labelled `tier=batch`.
    pub fn start(scratch: &Path, programs: &[Program]) -> Farms {
        let slot = |(n, program): (usize, &Program)| {
            let selector = if n + 1 == programs.len() { "tier!=batch" } else { "" };
            let letter = ['a', 'b', 'c', 'd'][n];
            Slot { letter, lives: 0, program: program.clone(), selector, process: None }
        };
        let slots: Vec<Slot> = programs.iter().enumerate().map(slot).collect();
        let mut farms = Farms { scratch: scratch.into(), slots };
        for n in 0..programs.len() {
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
        let run = ["farm", "run", "--session-ttl", "10s", "--log", "info,rcfarm=debug"];
        let mut command = slot.program.command(&run);
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
