//! Where the output of the last two starts of a launchable begins, for `rcfarm pod logs --previous`.
//!
//! All starts append to one log. `starts.json` beside the `launch.json` of a launchable names the places, so that what
//! the start before the present one wrote can be told from the rest. It survives the agent.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::driver::Launch;
use super::log_position::{LogPosition, end_of};
use super::state::{read, write};

/// Looks at a log that is being rotated, and the interval between them. A start does not wait longer for it.
const LOOKS: u32 = 5;
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// `starts.json`. A position is missing where it could not be told, or where there was no such start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogStarts {
    /// Number of the present start, or of the last one.
    attempt: u64,
    present: Option<LogPosition>,
    previous: Option<LogPosition>,
}

impl LogStarts {
    /// The starts after one more, whose output begins at `at`. One that is repeated, because the node could not make it,
    /// is one start.
    fn next(&self, attempt: u64, at: Option<LogPosition>) -> LogStarts {
        let is_repeated = attempt == self.attempt;
        let previous = if is_repeated { self.previous } else { self.present };
        LogStarts { attempt, present: at, previous }
    }
}

/// Notes in the directory of a launchable where the output of the start begins that is about to be made.
///
/// # Errors
/// What the file system says.
pub(super) async fn note(dir: &Path, launch: &Launch) -> io::Result<()> {
    let path = dir.join("starts.json");
    let starts: LogStarts = read(&path).unwrap_or_default();
    let mut at = None;
    for look in 1..=LOOKS {
        match end_of(&launch.log) {
            Ok(end) => at = Some(end),
            Err(error) if error.kind() == io::ErrorKind::NotFound => at = Some(LogPosition::START),
            // It may be rotated at this moment.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && look < LOOKS => {
                sleep(LOOK_INTERVAL).await;
                continue;
            }
            // The pod has put something else at its path.
            Err(_) => {}
        }
        break;
    }
    write(&path, &starts.next(launch.attempt, at))
}

/// Where the output of the start before the present one begins and ends. `None`: there was none, or it is not known.
pub(super) fn previous(dir: &Path) -> Option<(LogPosition, LogPosition)> {
    let starts: LogStarts = read(&dir.join("starts.json"))?;
    Some((starts.previous?, starts.present?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u64) -> LogPosition {
        LogPosition { offset, ..LogPosition::START }
    }

    #[tokio::test]
    async fn output_of_the_last_start_but_one_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("main.log");
        let mut launch = Launch { attempt: 1, log: log.clone(), ..Launch::default() };
        note(dir.path(), &launch).await.unwrap();
        assert_eq!(previous(dir.path()), None, "there was no start before");
        std::fs::write(&log, "one\n").unwrap();
        launch.attempt = 2;
        // The second time because the node could not start it.
        for _ in 0..2 {
            note(dir.path(), &launch).await.unwrap();
            assert_eq!(previous(dir.path()), Some((at(0), at(4))));
        }
        std::fs::write(&log, "one\ntwo\n").unwrap();
        launch.attempt = 3;
        note(dir.path(), &launch).await.unwrap();
        assert_eq!(previous(dir.path()), Some((at(4), at(8))));
        // No log can be read there: nothing is said of it, nor of the next start.
        std::fs::remove_file(&log).unwrap();
        std::fs::create_dir(&log).unwrap();
        for (attempt, known) in [(4, None), (5, None)] {
            launch.attempt = attempt;
            note(dir.path(), &launch).await.unwrap();
            assert_eq!(previous(dir.path()), known, "{attempt}");
        }
    }
}
