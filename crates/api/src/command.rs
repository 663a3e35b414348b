//! Commands to jobs and queues, each executed once (Volcano's bus, `volcano.md` §1.2).
//!
//! Keys read: `rcfarm/commands/<ns>/<uuid v7>`, `rcfarm/commands/<uuid v7>`. Keys written: none here. Who else writes
//! them: `rcfarm job …`, `rcfarm queue …` and people create them; the owner of the target deletes each one in the
//! transaction that executes it. A crash between two writes leaves: nothing half done.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Index;
use crate::Stored;
use crate::ids::{Namespace, Namespaced, QueueName};

/// Action of a command or of a job's policy. The names are Volcano's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CommandAction {
    /// Stops all pods; finished ones stay. The job can be resumed.
    AbortJob,
    /// Removes all pods and starts them again.
    RestartJob,
    /// The same for the pods of one task.
    RestartTask,
    /// The same for one pod.
    RestartPod,
    /// Stops all pods for good.
    TerminateJob,
    /// Stops all pods; the job counts as completed.
    CompleteJob,
    /// Resumes an aborted job.
    ResumeJob,
    /// Opens a queue again.
    OpenQueue,
    /// Closes a queue: it admits nothing more.
    CloseQueue,
}

impl CommandAction {
    /// All actions on jobs.
    pub const OF_JOBS: [CommandAction; 7] = [
        CommandAction::AbortJob,
        CommandAction::RestartJob,
        CommandAction::RestartTask,
        CommandAction::RestartPod,
        CommandAction::TerminateJob,
        CommandAction::CompleteJob,
        CommandAction::ResumeJob,
    ];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CommandAction::AbortJob => "AbortJob",
            CommandAction::RestartJob => "RestartJob",
            CommandAction::RestartTask => "RestartTask",
            CommandAction::RestartPod => "RestartPod",
            CommandAction::TerminateJob => "TerminateJob",
            CommandAction::CompleteJob => "CompleteJob",
            CommandAction::ResumeJob => "ResumeJob",
            CommandAction::OpenQueue => "OpenQueue",
            CommandAction::CloseQueue => "CloseQueue",
        }
    }
}

impl fmt::Display for CommandAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Target of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum Target {
    Job {
        /// Its name, as `<namespace>/<name>`.
        job: Namespaced,
        /// Its uid: a command for a job that was deleted is not executed on a later job of the same name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<Index>,
        /// Task, for [`CommandAction::RestartTask`] and [`CommandAction::RestartPod`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
        /// Index of the pod, for [`CommandAction::RestartPod`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u32>,
    },
    Queue {
        /// Name of the queue.
        queue: QueueName,
    },
}

/// The value of a key below `rcfarm/commands/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    pub action: CommandAction,
    pub target: Target,
    /// The reason, for people.
    #[serde(default)]
    pub reason: String,
    /// Name of the issuer.
    #[serde(default)]
    pub issued_by: String,
}

impl Stored for Command {}

impl Command {
    /// Whether a command below `rcfarm/commands/<namespace>/` may have its target: a job of that namespace. Rights to
    /// write there are given to those who own the namespace. One that is in no namespace may have any target.
    #[must_use]
    pub fn is_allowed_in(&self, namespace: Option<&Namespace>) -> bool {
        match (&self.target, namespace) {
            (_, None) => true,
            (Target::Job { job, .. }, Some(namespace)) => job.namespace == *namespace,
            (Target::Queue { .. }, Some(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_by_hand_needs_an_action_and_a_target() {
        let text = r#"{"action":"AbortJob","target":{"kind":"Job","job":"default/mnist"}}"#;
        let command = Command::decode(text.as_bytes()).unwrap();
        assert_eq!(command.action, CommandAction::AbortJob);
        assert_eq!(Command::decode(&command.encode()).unwrap(), command);
        let text = r#"{"action":"CloseQueue","target":{"kind":"Queue","queue":"research"}}"#;
        assert_eq!(Command::decode(text.as_bytes()).unwrap().action, CommandAction::CloseQueue);
        assert!(
            Command::decode(br#"{"action":"Dance","target":{"kind":"Queue","queue":"a"}}"#)
                .is_err()
        );
        for action in CommandAction::OF_JOBS {
            assert_eq!(serde_json::to_value(action).unwrap(), action.as_str());
        }
    }
}
