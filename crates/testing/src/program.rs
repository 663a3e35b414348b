//! The built program as a child process, connected to a Consul.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A program with the address of its Consul, its working directory and its environment.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    dir: PathBuf,
    env: BTreeMap<String, OsString>,
}

impl Program {
    /// The program at `path`, run in `dir` by the user `alice`. It inherits only `PATH`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, consul: &str, dir: &Path) -> Program {
        let mut env = BTreeMap::from([
            ("CONSUL_HTTP_ADDR".to_owned(), consul.into()),
            ("USER".to_owned(), "alice".into()),
        ]);
        if let Some(search) = std::env::var_os("PATH") {
            env.insert("PATH".to_owned(), search);
        }
        Program { path: path.into(), dir: dir.into(), env }
    }

    /// The same with an ACL token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Program {
        self.with_env("CONSUL_HTTP_TOKEN", token)
    }

    /// The same with another environment variable.
    #[must_use]
    pub fn with_env(&self, name: &str, value: &str) -> Program {
        let mut program = self.clone();
        program.env.insert(name.to_owned(), value.into());
        program
    }

    /// A command with these arguments, not started.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments).current_dir(&self.dir).stdin(Stdio::null());
        command.env_clear().envs(&self.env);
        command
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    /// When the program does not start.
    pub async fn run(&self, arguments: &[&str]) -> Ran {
        let output = tokio::process::Command::from(self.command(arguments)).output().await;
        output.unwrap_or_else(|e| panic!("cannot run {}: {e}", self.path.display())).into()
    }
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Ran { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ran {
    /// Standard output.
    ///
    /// # Panics
    /// When the run did not end with 0.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// Parses standard output as JSON.
    ///
    /// # Panics
    /// When the run did not end with 0, or printed something else than JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Standard error of a run that ended with 1 and printed no result.
    ///
    /// # Panics
    /// When it ended otherwise.
    #[track_caller]
    pub fn failed(self) -> String {
        self.failed_with(1)
    }

    /// As [`Ran::failed`], for a plan, where exit code 1 means changes and errors have another code.
    ///
    /// # Panics
    /// When it ended otherwise.
    #[track_caller]
    pub fn plan_failed(self) -> String {
        self.failed_with(2)
    }

    #[track_caller]
    fn failed_with(self, code: i32) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{self:?}");
        self.stderr
    }
}
