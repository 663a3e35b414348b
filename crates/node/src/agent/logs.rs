//! Log files of pods: kept small, and read from the end.
//!
//! A process writes to its file directly, so that it depends on nobody. A file that has grown too large is therefore
//! copied and cut, as logrotate's `copytruncate` does: what is written between the two is lost.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A log is cut at this many bytes.
pub const MAX_BYTES: u64 = 10 * 1024 * 1024;
/// This many older files are kept.
pub const KEPT: u32 = 3;

fn older(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}

/// Cuts the log at `path` if it is larger than `max_bytes`. Whether it was.
///
/// # Errors
/// What the file system says; the log is then as it was.
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

/// The last `lines` lines of a log (0: all of it) and where they end.
///
/// # Errors
/// What the file system says.
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

/// Where the last `lines` lines begin, when there are more.
fn last_lines(text: &[u8], lines: usize) -> Option<usize> {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    breaks.map(|(at, _)| at + 1).nth(lines - 1)
}

/// What was written after `from`, and where that ends. A log that was cut begins anew.
///
/// # Errors
/// What the file system says.
pub fn since(path: &Path, from: u64) -> io::Result<(Vec<u8>, u64)> {
    const AT_ONCE: u64 = 1024 * 1024;
    let mut file = File::open(path)?;
    let from = if file.metadata()?.len() < from { 0 } else { from };
    file.seek(SeekFrom::Start(from))?;
    let mut news = Vec::new();
    let read = file.take(AT_ONCE).read_to_end(&mut news)?;
    Ok((news, from + read as u64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_large_log_is_cut_and_the_oldest_goes() {
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
    fn a_cut_log_is_followed_from_its_beginning() {
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
        fn the_tail_is_the_last_lines(text in "[ab\n]{0,60}", lines in 0usize..8) {
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
