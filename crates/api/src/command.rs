//! Commands: what a person asks of a job or a queue, once. Volcano's bus (`volcano.md` §1.2).
//!
//! Keys read: `rcfarm/commands/<uuid v7>`. Keys written: none here. Who else writes them: `rcfarm job …`, `rcfarm
//! queue …` and people create them; the owner of the target deletes each one in the transaction that carries it out.
//! A crash between two writes leaves: nothing half done; a command is either there or carried out. Volcano deletes
//! first and acts later, and loses a command in a crash (`volcano.md` §10 no. 5).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Index;
use crate::Stored;
use crate::ids::{Namespaced, QueueName};

/// What a command, or a policy of a job, asks for. The words are Volcano's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CommandAction {
    /// Stop everything; finished pods stay. The job can be resumed.
    AbortJob,
    /// Remove all pods and start again.
    RestartJob,
    /// The same for the pods of one task.
    RestartTask,
    /// The same for one pod.
    RestartPod,
    /// Stop everything for good.
    TerminateJob,
    /// Stop everything; the job counts as done.
    CompleteJob,
    /// Go on with an aborted job.
    ResumeJob,
    /// Admit work to a queue again.
    OpenQueue,
    /// Admit no more work to a queue.
    CloseQueue,
}

impl CommandAction {
    /// All that may be asked of a job.
    pub const OF_JOBS: [CommandAction; 7] = [
        CommandAction::AbortJob,
        CommandAction::RestartJob,
        CommandAction::RestartTask,
        CommandAction::RestartPod,
        CommandAction::TerminateJob,
        CommandAction::CompleteJob,
        CommandAction::ResumeJob,
    ];

    /// Its word.
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

/// Of what something is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum Target {
    /// A job.
    Job {
        /// Which, as `<namespace>/<name>`.
        job: Namespaced,
        /// Which of that name: a command for a job that was deleted is not carried out on the one that came after it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<Index>,
        /// Which task, for [`CommandAction::RestartTask`] and [`CommandAction::RestartPod`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
        /// Which pod of the task, for [`CommandAction::RestartPod`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u32>,
    },
    /// A queue.
    Queue {
        /// Name of the queue.
        queue: QueueName,
    },
}

/// The value of `rcfarm/commands/<uuid v7>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// What is asked for.
    pub action: CommandAction,
    /// Of what.
    pub target: Target,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
    /// By whom.
    #[serde(default)]
    pub issued_by: String,
}

impl Stored for Command {}

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
