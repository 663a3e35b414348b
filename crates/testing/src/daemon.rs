//! A farm or an agent as a child process.

use std::path::PathBuf;

use crate::pod_processes;
use crate::process::Process;
use crate::wait::in_time;

/// A daemon; killed when dropped, an agent together with its pods.
pub struct Daemon {
    process: Process,
    data: Option<PathBuf>,
}

impl Daemon {
    /// A running farm, or an agent with this data directory.
    #[must_use]
    pub fn new(process: Process, data: Option<PathBuf>) -> Daemon {
        Daemon { process, data }
    }

    /// Whether it is running.
    pub fn runs(&mut self) -> bool {
        self.process.runs()
    }

    /// Sends a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Panics
    /// When the daemon does not exit with 0.
    pub async fn stop(mut self) {
        self.signal("TERM");
        let ended = in_time("the daemon's end", self.process.wait()).await;
        assert!(ended.success(), "a daemon that is told to stop ends with {ended}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.kill();
        if let Some(data) = &self.data {
            pod_processes::kill(data);
        }
    }
}
