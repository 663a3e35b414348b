//! Log files of pods: rotation and reads from the end.
//!
//! A process writes to its file directly, so its output does not depend on agent or shim. A file that is too large is
//! therefore copied and truncated, as with logrotate's `copytruncate`. Output between copy and truncation is lost.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Size in bytes above which a log is rotated.
pub const MAX_BYTES: u64 = 10 * 1024 * 1024;
/// Number of rotated files that are kept, as `.log.1` (newest) to `.log.3`.
pub const KEPT: u32 = 3;

fn older(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}

/// Rotates the log at `path` if it is larger than `max_bytes`. Returns whether it was.
///
/// # Errors
/// Fails if the file system does; the log itself is then unchanged.
pub fn rotate(path: &Path, max_bytes: u64) -> io::Result<bool> {
    if fs::metadata(path)?.len() <= max_bytes {
        return Ok(false);
    }
    for n in (1..KEPT).rev() {
        if older(path, n).exists() {
            fs::rename(older(path, n), older(path, n + 1))?;
        }
    }
    fs::copy(path, older(path, 1))?;
    File::options().write(true).open(path)?.set_len(0)?;
    Ok(true)
}

/// The last `lines` lines of a log (0: all of it), and the byte offset where they end.
///
/// # Errors
/// Fails if the log cannot be read.
pub fn tail(path: &Path, lines: usize) -> io::Result<(Vec<u8>, u64)> {
    const CHUNK: u64 = 64 * 1024;
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    let mut start = end;
    let mut found = Vec::new();
    while start > 0 {
        let from = if lines == 0 { 0 } else { start.saturating_sub(CHUNK) };
        let mut chunk = vec![0; usize::try_from(start - from).unwrap_or(usize::MAX)];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut chunk)?;
        chunk.extend_from_slice(&found);
        found = chunk;
        start = from;
        if lines > 0
            && let Some(at) = last_lines(&found, lines)
        {
            found.drain(..at);
            break;
        }
    }
    Ok((found, end))
}

/// Offset at which the last `lines` lines begin; `None` if there are not more than that.
fn last_lines(text: &[u8], lines: usize) -> Option<usize> {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    breaks.map(|(at, _)| at + 1).nth(lines - 1)
}

/// Output after the byte offset `from`, at most 1 MiB, and the offset where it ends. A log that is shorter than `from`
/// was truncated and is read from its beginning.
///
/// # Errors
/// Fails if the log cannot be read.
pub fn since(path: &Path, from: u64) -> io::Result<(Vec<u8>, u64)> {
    const AT_ONCE: u64 = 1024 * 1024;
    let mut file = File::open(path)?;
    let from = if file.metadata()?.len() < from { 0 } else { from };
    file.seek(SeekFrom::Start(from))?;
    let mut output = Vec::new();
    let read = file.take(AT_ONCE).read_to_end(&mut output)?;
    Ok((output, from + read as u64))
}

#[cfg(test)]
mod tests {
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
            let (found, end) = tail(&path, lines).unwrap();
            prop_assert_eq!(String::from_utf8(found).unwrap(), all[from..].concat());
            prop_assert_eq!(end, text.len() as u64);
        }
    }
}
