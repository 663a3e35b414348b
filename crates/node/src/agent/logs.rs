//! Log files of pods: rotation and reads from the end.
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

fn older(path: &Path, n: u32) -> PathBuf {
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

fn open(path: &Path) -> io::Result<File> {
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

/// Furthest that [`tail`] looks back, in bytes.
const LONGEST_TAIL: u64 = 64 * 1024 * 1024;

/// Files of a log that may be there: the log itself, then its rotated files, the newest first.
pub(super) fn files(path: &Path) -> Vec<PathBuf> {
    std::iter::once(path.to_owned()).chain((1..=KEPT).map(|n| older(path, n))).collect()
}

/// The byte offsets at which the last `lines` lines of a log (0: all of it) begin and end. Of more than 64 MiB only the
/// last are searched. Rotated files are not read.
///
/// # Errors
/// Fails if the log cannot be read.
pub fn tail(path: &Path, lines: usize) -> io::Result<(u64, u64)> {
    let part = part(open(path)?, lines, true)?.0;
    Ok((part.start, part.end))
}

/// A part of a log, or of one of its rotated files.
pub struct LogPart {
    file: File,
    start: u64,
    end: u64,
}

impl LogPart {
    /// Byte offset at which it begins.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The next bytes, at most 1 MiB; empty: there are no more.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        self.file.seek(SeekFrom::Start(self.start))?;
        let mut output = Vec::new();
        let most = (self.end - self.start).min(AT_ONCE);
        let read = Read::by_ref(&mut self.file).take(most).read_to_end(&mut output)?;
        self.start += read as u64;
        if read == 0 {
            self.start = self.end;
        }
        Ok(output)
    }
}

/// The last `lines` lines of a log and its rotated files (0: all of them), the oldest part first.
///
/// # Errors
/// Fails if the log itself cannot be read.
pub fn parts(path: &Path, lines: usize) -> io::Result<Vec<LogPart>> {
    let (mut parts, mut missing, mut is_last) = (Vec::new(), lines, true);
    for (n, path) in files(path).iter().enumerate() {
        let file = match open(path) {
            Err(error) if n == 0 => return Err(error),
            Err(_) => break,
            Ok(file) => file,
        };
        let (part, found) = part(file, missing, is_last)?;
        is_last &= part.end == 0;
        parts.push(part);
        missing -= found;
        if lines > 0 && missing == 0 {
            break;
        }
    }
    parts.reverse();
    Ok(parts)
}

/// The last `lines` lines of a file (0: all of it), and how many of them begin in it. `is_last`: no output follows,
/// so a break at its end begins no line.
fn part(mut file: File, lines: usize, is_last: bool) -> io::Result<(LogPart, usize)> {
    const CHUNK: u64 = 64 * 1024;
    let end = file.metadata()?.len();
    if lines == 0 {
        return Ok((LogPart { file, start: 0, end }, 0));
    }
    let first = end.saturating_sub(LONGEST_TAIL);
    let (mut start, mut breaks) = (end, 0);
    let mut chunk = Vec::new();
    while start > first {
        let from = start.saturating_sub(CHUNK).max(first);
        chunk.resize(usize::try_from(start - from).unwrap_or(usize::MAX), 0);
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut chunk)?;
        for after in (from + 1..=start).rev().filter(|after| *after != end || !is_last) {
            let byte = usize::try_from(after - from - 1).ok().and_then(|n| chunk.get(n));
            breaks += usize::from(byte == Some(&b'\n'));
            if breaks == lines {
                return Ok((LogPart { file, start: after, end }, breaks));
            }
        }
        start = from;
    }
    Ok((LogPart { file, start: first, end }, breaks))
}

/// Largest read, in bytes.
const AT_ONCE: u64 = 1024 * 1024;

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

/// Output after the byte offset `from`, at most 1 MiB, and the offset where it ends. A log that is shorter than `from`
/// was rotated: first comes what is left in the rotated file, then the log from its beginning.
///
/// # Errors
/// Fails if the log cannot be read.
pub fn since(path: &Path, from: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut file = open(path)?;
    let mut from = from;
    if file.metadata()?.len() < from {
        match open(&older(path, 1)) {
            Ok(rotated) if rotated.metadata()?.len() > from => file = rotated,
            _ => from = 0,
        }
    }
    file.seek(SeekFrom::Start(from))?;
    let mut output = Vec::new();
    let read = file.take(AT_ONCE).read_to_end(&mut output)?;
    Ok((output, from + read as u64))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

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

    fn text(path: &Path, lines: usize) -> String {
        let mut output = Vec::new();
        for mut part in parts(path, lines).unwrap() {
            while let Some(read) = Some(part.read().unwrap()).filter(|read| !read.is_empty()) {
                output.extend(read);
            }
        }
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn rotated_files_are_read_before_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        fs::write(&path, "one\ntwo\nth").unwrap();
        let (_, seen) = tail(&path, 1).unwrap();
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert!(rotate(&path, 1).unwrap());
        assert_eq!(text(&path, 0), "one\ntwo\nthree\n");
        assert_eq!(text(&path, 2), "two\nthree\n", "right after a rotation");
        // Who follows it gets the rest, then what is new.
        assert_eq!(since(&path, seen).unwrap(), (b"ree\n".to_vec(), 14));
        fs::write(&path, "four\n").unwrap();
        assert_eq!(since(&path, 14).unwrap(), (b"four\n".to_vec(), 5));
        assert_eq!(text(&path, 1), "four\n");
        assert_eq!(text(&path, 2), "three\nfour\n");
        assert_eq!(text(&path, 9), "one\ntwo\nthree\nfour\n");
    }

    #[test]
    fn since_reads_a_truncated_log_from_its_beginning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        fs::write(&path, "one\ntwo\n").unwrap();
        let (_, end) = tail(&path, 1).unwrap();
        assert_eq!(since(&path, end).unwrap(), (Vec::new(), 8));
        fs::write(&path, "three\n").unwrap();
        assert_eq!(since(&path, end).unwrap(), (b"three\n".to_vec(), 6));
    }

    proptest! {
        #[test]
        fn tail_returns_the_last_lines(text in "[ab\n]{0,60}", lines in 0usize..8) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a.log");
            fs::write(&path, &text).unwrap();
            let all: Vec<&str> = text.split_inclusive('\n').collect();
            let from = if lines == 0 { 0 } else { all.len().saturating_sub(lines) };
            let (start, end) = tail(&path, lines).unwrap();
            let start = usize::try_from(start).unwrap();
            prop_assert_eq!(&text[start..], all[from..].concat());
            prop_assert_eq!(end, text.len() as u64);
        }
    }
}
