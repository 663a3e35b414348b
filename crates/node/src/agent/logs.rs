//! Log files of pods, and their rotation. [`super::log_position`] reads them.
//!
//! A process writes to its file directly, so its output does not depend on agent or shim. A file that is too large is
//! therefore copied and truncated, as with logrotate's `copytruncate`. Output between copy and truncation is lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Size in bytes above which a log is rotated.
pub const MAX_BYTES: u64 = 10 * 1024 * 1024;
/// Number of rotated files that are kept, as `.log.1` (newest) to `.log.3`.
pub const KEPT: u32 = 3;

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

pub(super) fn older(path: &Path, n: u32) -> PathBuf {
    beside(path, &format!(".{n}"))
}

/// Opens a log. The pod may have put something else at its path: a link is not followed, a pipe is not waited for, and
/// nothing but a file is used.
pub(crate) fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = options.custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    open_with(File::options().read(true), path)
}

/// Rotates the log at `path` if it is larger than `max_bytes`. Returns whether it was. Whoever may write to the pod's
/// directory chooses what is at the paths, so the log is opened once, and its copy is a new file.
///
/// # Errors
/// Fails if the file system does, or if there is no regular file at `path`; the log itself is then unchanged.
pub fn rotate(path: &Path, max_bytes: u64) -> io::Result<bool> {
    if fs::symlink_metadata(path)?.len() <= max_bytes {
        return Ok(false);
    }
    let mut log = open_with(File::options().read(true).write(true), path)?;
    if log.metadata()?.len() <= max_bytes {
        return Ok(false);
    }
    let copy = beside(path, ".new");
    let rotated = copy_to(&mut log, &copy).and_then(|()| {
        for n in (1..KEPT).rev() {
            unless_missing(fs::rename(older(path, n), older(path, n + 1)))?;
        }
        fs::rename(&copy, older(path, 1))
    });
    if let Err(error) = rotated {
        let _ = fs::remove_file(&copy);
        return Err(error);
    }
    log.set_len(0)?;
    Ok(true)
}

/// Copies a log to a new file. What was left at its path is deleted.
fn copy_to(log: &mut File, path: &Path) -> io::Result<()> {
    unless_missing(fs::remove_file(path))?;
    let mut copy = File::options().write(true).create_new(true).mode(0o640).open(path)?;
    io::copy(log, &mut copy)?;
    Ok(())
}

fn unless_missing(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

/// Files of a log that may be there: the log itself, then its rotated files, the newest first.
pub(super) fn files(path: &Path) -> Vec<PathBuf> {
    std::iter::once(path.to_owned()).chain((1..=KEPT).map(|n| older(path, n))).collect()
}

/// The last `bytes` of a log, for people; empty if it cannot be read.
pub fn last_output(path: &Path, bytes: usize) -> String {
    let read = || {
        let mut file = open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(end.saturating_sub(bytes as u64)))?;
        let mut output = Vec::new();
        file.take(bytes as u64).read_to_end(&mut output)?;
        Ok::<_, io::Error>(output)
    };
    let output = read().unwrap_or_default();
    // A character that was cut has no beginning.
    let whole = output.iter().position(|byte| byte & 0xC0 != 0x80).unwrap_or(output.len());
    let text = String::from_utf8_lossy(&output[whole..]);
    text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..].to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn rotate_truncates_a_large_log_and_drops_the_oldest() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.log");
        for n in 0..6 {
            fs::write(&path, format!("{n}{n}")).unwrap();
            assert!(!rotate(&path, 2).unwrap());
            assert!(rotate(&path, 1).unwrap());
        }
        let read = |n| fs::read_to_string(older(&path, n)).ok();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(
            [read(1), read(2), read(3), read(4)],
            [Some("55".into()), Some("44".into()), Some("33".into()), None]
        );
        assert!(rotate(&directory.path().join("none"), 1).is_err());
    }

    /// A pod that shares the agent's user could otherwise have any file of the agent copied, truncated or replaced.
    #[test]
    fn rotate_follows_no_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, foreign) = (directory.path().join("web.log"), directory.path().join("foreign"));
        fs::write(&foreign, "foreign").unwrap();
        symlink(&foreign, &path).unwrap();
        assert!(rotate(&path, 1).is_err());
        assert!(!older(&path, 1).exists(), "the other file is not copied");

        fs::remove_file(&path).unwrap();
        fs::write(&path, "output").unwrap();
        for at in [older(&path, 1), older(&path, 2), beside(&path, ".new")] {
            symlink(&foreign, at).unwrap();
        }
        assert!(rotate(&path, 1).unwrap());
        assert_eq!(fs::read(&foreign).unwrap(), b"foreign");
        assert_eq!(fs::read(older(&path, 1)).unwrap(), b"output");
        assert!(!older(&path, 1).is_symlink() && !beside(&path, ".new").is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"");

        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(rotate(&path, 1).is_err());
    }

    #[test]
    fn last_output_is_bounded_and_whole_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        assert_eq!(last_output(&path, 4), "");
        fs::write(&path, "aäöü").unwrap();
        assert_eq!(
            (last_output(&path, 5).as_str(), last_output(&path, 100).as_str()),
            ("öü", "aäöü")
        );
        fs::write(&path, [0xFF; 100]).unwrap();
        assert!(last_output(&path, 50).len() <= 50);
    }
}
