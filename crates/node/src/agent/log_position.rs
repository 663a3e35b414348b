//! Positions in a log that stay good when it is rotated.
//!
//! A rotation copies the log to a new file `.log.1` and truncates it. The inode and the modification time of that copy
//! tell which rotation it was: they stay the same when it becomes `.log.2` and when all files are moved. So what was
//! written since a rotation is named by the copy that this rotation made, whatever file it is in now.
//!
//! Holes are left out: a pod can make its log as long as it likes at no cost. Offsets count them, so what follows a hole
//! has a position of its own.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::logs::{KEPT, end_of_data, next_data, next_hole, older, open};
use rcfarm_store::time::{Clock as _, SystemClock};

/// Largest read, in bytes.
const AT_ONCE: u64 = 1024 * 1024;
/// Furthest that the last lines are looked for, in bytes of one file.
const LONGEST_TAIL: u64 = 64 * 1024 * 1024;
/// A rotation that began within this time may not have truncated the log yet.
const ROTATION: Duration = Duration::from_secs(1);
/// Reads of one log in a row that rotations may spoil.
const TRIES: u32 = 8;

/// A rotated file, whatever its path is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    inode: u64,
    /// Time of its last modification, in seconds and nanoseconds.
    modified: (i64, i64),
}

/// What was written to a log between two rotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// Before the first rotation.
    First,
    /// After the rotation that made this copy.
    After(FileId),
    /// The contents of this copy; the one before it is deleted.
    Copied(FileId),
}

/// A place in a log. Its text form is a parameter and a header of the agent's HTTP API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LogPosition {
    pub generation: Generation,
    /// In bytes.
    pub offset: u64,
}

impl LogPosition {
    /// The beginning of a log that was never rotated.
    pub const START: LogPosition = LogPosition { generation: Generation::First, offset: 0 };

    /// The position so many bytes later, in the same generation.
    #[must_use]
    pub fn plus(self, bytes: usize) -> LogPosition {
        LogPosition { offset: self.offset.saturating_add(bytes as u64), ..self }
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = self.offset;
        let (word, FileId { inode, modified: (seconds, nanos) }) = match self.generation {
            Generation::First => return write!(f, "first.{offset}"),
            Generation::After(copy) => ("after", copy),
            Generation::Copied(copy) => ("copied", copy),
        };
        write!(f, "{word}.{inode}.{seconds}.{nanos}.{offset}")
    }
}

impl FromStr for LogPosition {
    type Err = String;

    fn from_str(text: &str) -> Result<LogPosition, String> {
        let parse = || {
            let (generation, offset) = text.rsplit_once('.')?;
            let id = |text: &str| {
                let mut parts = text.split('.');
                let mut next = || parts.next();
                let inode = next()?.parse().ok()?;
                let modified = (next()?.parse().ok()?, next()?.parse().ok()?);
                next().is_none().then_some(FileId { inode, modified })
            };
            let generation = match generation.split_once('.') {
                None if generation == "first" => Generation::First,
                Some(("after", copy)) => Generation::After(id(copy)?),
                Some(("copied", copy)) => Generation::Copied(id(copy)?),
                _ => return None,
            };
            Some(LogPosition { generation, offset: offset.parse().ok()? })
        };
        parse().ok_or_else(|| format!("{text:?} is no position in a log"))
    }
}

impl From<LogPosition> for String {
    fn from(position: LogPosition) -> String {
        position.to_string()
    }
}

impl TryFrom<String> for LogPosition {
    type Error = String;

    fn try_from(text: String) -> Result<LogPosition, String> {
        text.parse()
    }
}

/// Output of one generation.
#[derive(Debug, PartialEq, Eq)]
pub struct LogChunk {
    /// Where it begins. Not where it was asked for if a hole is there, or if that generation has ended there, is gone, or
    /// was truncated.
    pub from: LogPosition,
    pub output: Vec<u8>,
    /// Inode of the log itself, which stays the same. The log of a later pod has another one.
    pub inode: u64,
}

/// A part of a log that is in one file, without a hole.
#[derive(Debug, PartialEq, Eq)]
pub struct LogSection {
    pub start: LogPosition,
    /// Its present end.
    pub end: LogPosition,
    /// What follows; `None`: this is the end of the log itself.
    pub next: Option<LogPosition>,
    /// As [`LogChunk::inode`].
    pub inode: u64,
}

struct OpenFile {
    file: File,
    id: FileId,
    bytes: u64,
    changed: SystemTime,
}

impl OpenFile {
    fn open(path: &Path) -> io::Result<OpenFile> {
        let file = open(path)?;
        let found = file.metadata()?;
        let id = FileId { inode: found.ino(), modified: (found.mtime(), found.mtime_nsec()) };
        let seconds = u64::try_from(found.ctime()).unwrap_or_default();
        let nanos = u32::try_from(found.ctime_nsec()).unwrap_or_default();
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        Ok(OpenFile { file, id, bytes: found.len(), changed })
    }

    /// As [`next_data`], of what the file had when it was opened.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(next_data(&self.file, offset)?.filter(|found| *found < self.bytes))
    }
}

/// A log, then its rotated files, the newest first.
struct LogFiles(Vec<OpenFile>);

impl LogFiles {
    /// Opens the files of a log.
    ///
    /// # Errors
    /// The log itself cannot be read. `WouldBlock`: it may be rotated at this moment.
    fn open(path: &Path, now: SystemTime) -> io::Result<LogFiles> {
        LogFiles::open_while(path, now, || ())
    }

    /// [`LogFiles::open`]. `meanwhile` runs between the log and the rotated files.
    fn open_while(path: &Path, now: SystemTime, meanwhile: impl FnOnce()) -> io::Result<LogFiles> {
        let newest = newest_rotated(path);
        let log = OpenFile::open(path)?;
        meanwhile();
        let rotated: Vec<_> = (1..=KEPT).map(|n| OpenFile::open(&older(path, n)).ok()).collect();
        // The log was copied, with output newer than `log.bytes`.
        if newest != rotated[0].as_ref().map(|file| file.id) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // A rename may be newer than `now`.
        let is_recent = |file: &OpenFile| match now.duration_since(file.changed) {
            Ok(age) => age < ROTATION,
            Err(ahead) => ahead.duration() < ROTATION,
        };
        let is_recent = rotated.iter().flatten().any(is_recent);
        // The renames of a rotation leave a gap, and only then the log is truncated.
        let first_gap = rotated.iter().position(Option::is_none).unwrap_or(rotated.len());
        let has_gap = rotated[first_gap..].iter().any(Option::is_some);
        let is_full = matches!(rotated.first(), Some(Some(newest)) if log.bytes >= newest.bytes);
        if is_recent && (has_gap || is_full) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut files = vec![log];
        files.extend(rotated.into_iter().map_while(|file| file));
        Ok(LogFiles(files))
    }

    fn generation(&self, n: usize) -> Generation {
        match self.0.get(n + 1) {
            Some(before) => Generation::After(before.id),
            None if n < KEPT as usize => Generation::First,
            None => Generation::Copied(self.0[n].id),
        }
    }

    fn find(&self, generation: Generation) -> Option<usize> {
        (0..self.0.len()).find(|n| match generation {
            Generation::Copied(copy) => *n > 0 && self.0[*n].id == copy,
            other => self.generation(*n) == other,
        })
    }

    /// Number of the file that has the first byte at or after a position, and the offset of that byte in it. A position
    /// that is in no file begins at the oldest one, one that the log does not reach at its beginning.
    fn locate(&self, at: LogPosition) -> io::Result<(usize, u64)> {
        let found = self.find(at.generation).map(|n| (n, at.offset));
        let (mut n, mut offset) = found.unwrap_or((self.0.len() - 1, 0));
        loop {
            let file = &self.0[n];
            if n == 0 && offset > file.bytes {
                offset = 0;
            }
            match file.next_data(offset)? {
                Some(data) => return Ok((n, data)),
                None if n == 0 => return Ok((0, offset)),
                None => (n, offset) = (n - 1, 0),
            }
        }
    }

    fn position(&self, n: usize, offset: u64) -> LogPosition {
        LogPosition { generation: self.generation(n), offset }
    }

    fn section(&self, at: LogPosition) -> io::Result<LogSection> {
        let (n, start) = self.locate(at)?;
        let file = &self.0[n];
        let end = match start < file.bytes {
            true => next_hole(&file.file, start)?.clamp(start, file.bytes),
            false => start,
        };
        let next = match file.next_data(end)? {
            Some(data) => Some(self.position(n, data)),
            None => n.checked_sub(1).map(|next| self.position(next, 0)),
        };
        let inode = self.0[0].id.inode;
        Ok(LogSection { start: self.position(n, start), end: self.position(n, end), next, inode })
    }

    /// Where the last `lines` lines begin; 0: all of them.
    fn last_lines(&mut self, lines: usize) -> io::Result<(usize, u64)> {
        let (mut missing, mut is_last, mut start) = (lines, true, (0, 0));
        for (n, file) in self.0.iter_mut().enumerate() {
            let (offset, found) = last_lines(file, missing, is_last)?;
            is_last &= file.bytes == 0;
            start = (n, offset);
            missing -= found;
            if lines > 0 && missing == 0 {
                break;
            }
        }
        Ok(start)
    }
}

impl LogFiles {
    /// Where the last `lines` lines between two places begin (0: all of them). `from` is not in a newer file than `to`.
    fn last_lines_between(
        &mut self,
        lines: usize,
        from: (usize, u64),
        to: (usize, u64),
    ) -> io::Result<(usize, u64)> {
        let (mut missing, mut is_last, mut start) = (lines, true, to);
        for n in to.0..=from.0 {
            let file = &mut self.0[n];
            let end = if n == to.0 { to.1 } else { file.bytes };
            let first = if n == from.0 { from.1 } else { 0 };
            let (offset, found) = match lines {
                0 => (0, 0),
                _ => last_lines_within(LONGEST_TAIL, &mut file.file, end, missing, is_last)?,
            };
            is_last &= end == 0;
            start = (n, offset.max(first));
            missing -= found;
            if lines > 0 && missing == 0 {
                break;
            }
        }
        Ok(start)
    }
}

/// Where the last `lines` lines of a file begin (0: all of it), and how many of them begin in it. `is_last`: no output
/// follows, so a break at its end begins no line.
fn last_lines(file: &mut OpenFile, lines: usize, is_last: bool) -> io::Result<(u64, usize)> {
    match lines {
        0 => Ok((0, 0)),
        _ => last_lines_within(LONGEST_TAIL, &mut file.file, file.bytes, lines, is_last),
    }
}

/// As [`last_lines`], by reading `tail` bytes at most: the first line found may begin anywhere. Holes are not read.
fn last_lines_within(
    tail: u64,
    file: &mut File,
    end: u64,
    lines: usize,
    is_last: bool,
) -> io::Result<(u64, usize)> {
    const CHUNK: u64 = 64 * 1024;
    let end = end_of_data(file, end);
    let (mut start, mut rest, mut breaks) = (end, tail, 0);
    let mut chunk = Vec::new();
    while start > 0 && rest > 0 {
        let from = start.saturating_sub(CHUNK.min(rest));
        chunk.resize(usize::try_from(start - from).unwrap_or(usize::MAX), 0);
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut chunk)?;
        for after in (from + 1..=start).rev().filter(|after| *after != end || !is_last) {
            let byte = usize::try_from(after - from - 1).ok().and_then(|n| chunk.get(n));
            breaks += usize::from(byte == Some(&b'\n'));
            if breaks == lines {
                return Ok((after, breaks));
            }
        }
        rest -= start - from;
        start = end_of_data(file, from);
    }
    Ok((start, breaks))
}

/// The newest of the rotated files.
fn newest_rotated(path: &Path) -> Option<FileId> {
    OpenFile::open(&older(path, 1)).ok().map(|file| file.id)
}

/// Reads the files of a log. A read that a rotation may have spoiled is repeated.
fn read<T>(path: &Path, read: impl Fn(&mut LogFiles) -> io::Result<T>) -> io::Result<T> {
    for _ in 0..TRIES {
        let mut files = LogFiles::open(path, SystemClock.wall().into())?;
        let done = read(&mut files);
        if newest_rotated(path) == files.0.get(1).map(|file| file.id) {
            return done;
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// The section of a log that begins with its last `lines` lines; 0: with its oldest output.
///
/// # Errors
/// The log cannot be read. `WouldBlock`: it may be rotated at this moment.
pub fn last_section(path: &Path, lines: usize) -> io::Result<LogSection> {
    read(path, |files| {
        let (n, offset) = files.last_lines(lines)?;
        files.section(files.position(n, offset))
    })
}

/// The section of a log that begins at a position. As for [`LogChunk::from`], it may begin elsewhere.
///
/// # Errors
/// As [`last_section`].
pub fn section_at(path: &Path, at: LogPosition) -> io::Result<LogSection> {
    read(path, |files| files.section(at))
}

/// The section of a log that begins with the last `lines` lines (0: all) of what was written between two positions, and
/// ends with them. It may be in several files, and have holes. What was rotated away is left out.
///
/// # Errors
/// As [`last_section`].
pub fn section_between(
    path: &Path,
    lines: usize,
    from: LogPosition,
    to: LogPosition,
) -> io::Result<LogSection> {
    read(path, |files| {
        let place = |files: &LogFiles, at: LogPosition| {
            files.find(at.generation).map(|n| (n, at.offset.min(files.0[n].bytes)))
        };
        let gone = (0, files.0[0].bytes);
        let (start, end) = match place(files, to) {
            Some(end) => {
                let oldest = (files.0.len() - 1, 0);
                let from = place(files, from).unwrap_or(oldest);
                // Its program may have truncated it between the two.
                let is_before = from.0 > end.0 || from.0 == end.0 && from.1 <= end.1;
                let from = if is_before { from } else { end };
                (files.last_lines_between(lines, from, end)?, end)
            }
            None => (gone, gone),
        };
        let (start, end) = (files.position(start.0, start.1), files.position(end.0, end.1));
        Ok(LogSection { start, end, next: None, inode: files.0[0].id.inode })
    })
}

/// The present end of a log.
///
/// # Errors
/// As [`last_section`].
pub fn end_of(path: &Path) -> io::Result<LogPosition> {
    read(path, |files| Ok(files.position(0, files.0[0].bytes)))
}

/// Output from a position on, at most 1 MiB; none: the log ends there.
///
/// # Errors
/// As [`last_section`].
pub fn chunk_at(path: &Path, at: LogPosition) -> io::Result<LogChunk> {
    read(path, |files| {
        let (n, offset) = files.locate(at)?;
        let from = files.position(n, offset);
        let OpenFile { file, bytes, .. } = &mut files.0[n];
        let mut output = Vec::new();
        if offset < *bytes {
            let rest = next_hole(file, offset)?.saturating_sub(offset);
            file.seek(SeekFrom::Start(offset))?;
            Read::by_ref(file).take(rest.min(AT_ONCE)).read_to_end(&mut output)?;
        }
        Ok(LogChunk { from, output, inode: files.0[0].id.inode })
    })
}

#[cfg(test)]
mod tests;
