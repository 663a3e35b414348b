//! The ACL token of requests. Its file is read again when it changes, so that tokens are rotated without a restart.
//!
//! A request looks at the file at most once a second. A refused request reads it at once, and is sent again if the token
//! is another one.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderValue;
use tokio::time::Instant;
use tracing::{info, warn};

use super::config::{ConfigError, ConsulConfig};
use rcfarm_store::time::monotonic;

/// Shortest interval between two looks at an unchanged file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What differs after a change of a file: inode, size, and time of the change in seconds and nanoseconds.
type FileVersion = (u64, u64, i64, i64);

/// The ACL token of requests. A file of it is looked at again at most once per [`LOOK_EVERY`], and after a refusal.
pub(super) struct RequestToken {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    token: Option<HeaderValue>,
    looked_at: Instant,
    version: Option<FileVersion>,
    /// Why the file could not be used when it was last read. Logged once.
    problem: Option<String>,
}

impl RequestToken {
    /// Reads the token.
    ///
    /// # Errors
    /// The file cannot be read, or the token cannot be put into a header.
    pub(super) fn read(config: &ConsulConfig) -> Result<RequestToken, ConfigError> {
        let file = config.token_file.clone();
        let version = file.as_deref().and_then(version);
        let token = config.effective_token()?.as_deref().map(header).transpose()?;
        let state = State { token, looked_at: monotonic(), version, problem: None };
        Ok(RequestToken { file, state: Mutex::new(state) })
    }

    /// The token for the next request.
    pub(super) fn current(&self) -> Option<HeaderValue> {
        let mut state = self.state();
        if let Some(file) = &self.file
            && monotonic() - state.looked_at >= LOOK_EVERY
        {
            state.looked_at = monotonic();
            if version(file) != state.version {
                state.take_from(file);
            }
        }
        state.token.clone()
    }

    /// Reads the file after a request with the token `sent` was refused. Returns whether the token is another one now.
    pub(super) fn differs_from(&self, sent: Option<&HeaderValue>) -> bool {
        let mut state = self.state();
        if let Some(file) = &self.file
            && state.token.as_ref() == sent
        {
            state.take_from(file);
        }
        state.token.as_ref() != sent
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the file's token. Keeps the last one if the file cannot be used, and reads it again at the next look. An
    /// empty file counts as one that is being written.
    fn take_from(&mut self, file: &Path) {
        let version = version(file);
        let read =
            ConsulConfig::token_in(file).and_then(|text| text.as_deref().map(header).transpose());
        let problem = match read {
            Ok(Some(token)) => {
                if self.token.as_ref() != Some(&token) {
                    info!(file = %file.display(), "the ACL token has changed: requests have the new one");
                    self.token = Some(token);
                }
                self.version = version;
                None
            }
            Ok(None) => Some("the file is empty".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if problem.is_some() && problem != self.problem {
            let (file, why) = (file.display(), problem.as_deref());
            warn!(alert = true, %file, why, "the ACL token cannot be read again: requests have the last one");
        }
        self.problem = problem;
    }
}

fn version(file: &Path) -> Option<FileVersion> {
    let data = std::fs::metadata(file).ok()?;
    Some((data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
}

fn header(token: &str) -> Result<HeaderValue, ConfigError> {
    let setting = "CONSUL_HTTP_TOKEN";
    let mut token =
        HeaderValue::from_str(token).map_err(|_| ConfigError::NotAHeader { setting })?;
    token.set_sensitive(true);
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn token_of_a_changed_file_is_taken_within_a_second() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let replace = |text: &str| {
            // As tools do that replace secrets: another file under the same name.
            let new = directory.path().join("new");
            std::fs::write(&new, text).unwrap();
            std::fs::rename(&new, &path).unwrap();
        };
        replace("first\n");
        let config = ConsulConfig { token_file: Some(path.clone()), ..ConsulConfig::default() };
        let token = RequestToken::read(&config).unwrap();
        for (text, sent) in [
            ("second\n", "second"),
            ("not\u{1}a header", "second"),
            ("third", "third"),
            ("", "third"),
            ("fourth", "fourth"),
        ] {
            replace(text);
            tokio::time::advance(LOOK_EVERY).await;
            assert_eq!(token.current().unwrap(), sent, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(token.current().unwrap(), "fourth");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_request_reads_the_file_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "first").unwrap();
        let config = ConsulConfig { token_file: Some(path.clone()), ..ConsulConfig::default() };
        let token = RequestToken::read(&config).unwrap();
        let first = token.current();
        assert!(!token.differs_from(first.as_ref()), "the file is the same");
        std::fs::write(&path, "second").unwrap();
        assert_eq!(token.current(), first, "no second has passed");
        assert!(token.differs_from(first.as_ref()));
        assert!(token.differs_from(first.as_ref()), "for another request that was refused, too");
        assert_eq!(token.current().unwrap(), "second");
        assert!(!token.differs_from(token.current().as_ref()));
    }

    #[tokio::test]
    async fn token_that_was_given_stays() {
        let config = ConsulConfig { token: Some("given".to_owned()), ..ConsulConfig::default() };
        let token = RequestToken::read(&config).unwrap();
        assert!(!token.differs_from(token.current().as_ref()));
        assert_eq!(token.current().unwrap(), "given");
    }
}
