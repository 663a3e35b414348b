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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
mod tests {
    use proptest::prelude::*;
    use std::fs;

    use super::super::logs::rotate;
    use super::*;

    struct Log {
        dir: tempfile::TempDir,
    }

    impl Log {
        fn new() -> Log {
            Log { dir: tempfile::tempdir().unwrap() }
        }

        fn path(&self) -> std::path::PathBuf {
            self.dir.path().join("a.log")
        }

        fn append(&self, text: &str) {
            use std::io::Write as _;
            let mut file = File::options().create(true).append(true).open(self.path()).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        fn rotate(&self) {
            assert!(rotate(&self.path(), 0).unwrap());
        }

        /// All that follows a position, read as the agent's server reads it.
        fn after(&self, mut at: LogPosition) -> String {
            let mut all = Vec::new();
            loop {
                let LogChunk { from, output, .. } = self.settled(|| chunk_at(&self.path(), at));
                if output.is_empty() {
                    return String::from_utf8(all).unwrap();
                }
                at = from.plus(output.len());
                all.extend(output);
            }
        }

        /// The end of the log, after its text form was written and read.
        fn end(&self) -> LogPosition {
            let end = self.settled(|| end_of(&self.path()));
            assert_eq!(end.to_string().parse(), Ok(end));
            end
        }

        /// Waits while the log may be rotated.
        fn settled<T>(&self, read: impl Fn() -> io::Result<T>) -> T {
            loop {
                match read() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done.unwrap(),
                }
            }
        }

        fn last(&self, lines: usize) -> String {
            self.after(self.settled(|| last_section(&self.path(), lines)).start)
        }
    }

    #[test]
    fn position_survives_rotations_while_its_file_is_kept() {
        let log = Log::new();
        log.append("one\ntwo\nth");
        let seen = log.end();
        assert_eq!(seen, LogPosition { offset: 10, ..LogPosition::START });
        log.append("ree\n");
        log.rotate();
        assert_eq!(log.after(seen), "ree\n");
        assert_eq!(log.after(log.end()), "");
        log.append("four\n");
        assert_eq!(log.after(seen), "ree\nfour\n", "nothing twice, nothing lost");
        let four = log.end();
        log.rotate();
        log.append("five\n");
        assert_eq!(
            (log.after(seen), log.after(four)),
            ("ree\nfour\nfive\n".into(), "five\n".into())
        );
        assert_eq!(
            (log.last(2), log.last(0)),
            ("four\nfive\n".into(), "one\ntwo\nthree\nfour\nfive\n".into())
        );
        // Its files move when the pod is gone.
        let other = Log::new();
        for name in ["a.log", "a.log.1", "a.log.2"] {
            fs::rename(log.dir.path().join(name), other.dir.path().join(name)).unwrap();
        }
        assert_eq!(other.after(four), "five\n");
    }

    #[test]
    fn log_that_is_rotated_while_it_is_opened_is_opened_again() {
        for rotations in 0..2 {
            let log = Log::new();
            log.append("one\n");
            (0..rotations).for_each(|_| log.rotate());
            log.append("two\n");
            log.settled(|| end_of(&log.path()));
            let opened = LogFiles::open_while(&log.path(), SystemClock.wall().into(), || {
                log.append("three\n");
                log.rotate();
            });
            let error = opened.err().map(|error| error.kind());
            assert_eq!(error, Some(io::ErrorKind::WouldBlock), "after {rotations} rotations");
        }
    }

    #[test]
    fn position_that_is_kept_no_longer_begins_at_the_oldest_output() {
        let log = Log::new();
        log.append("0\n");
        let seen = log.end();
        for n in 1..=5 {
            log.rotate();
            log.append(&format!("{n}\n"));
        }
        assert_eq!(log.after(seen), "2\n3\n4\n5\n");
        let oldest = log.settled(|| last_section(&log.path(), 0));
        assert!(matches!(oldest.start.generation, Generation::Copied(_)));
        assert_eq!(log.after(oldest.start.plus(1)), "\n3\n4\n5\n");
        assert_eq!(log.after(oldest.next.unwrap()), "3\n4\n5\n");
    }

    #[test]
    fn log_that_its_program_truncates_is_read_from_its_beginning() {
        let log = Log::new();
        log.append("one\ntwo\n");
        let end = log.end();
        assert_eq!(log.after(end), "");
        fs::write(log.path(), "three\n").unwrap();
        assert_eq!(log.after(end), "three\n");
    }

    #[test]
    fn log_that_is_being_rotated_is_not_read() {
        let log = Log::new();
        log.append("one\n");
        let end = log.end();
        fs::copy(log.path(), older(&log.path(), 1)).unwrap();
        let now = SystemTime::from(SystemClock.wall());
        let opened = LogFiles::open(&log.path(), now).map(|files| files.0.len());
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::WouldBlock, "not truncated yet");
        // Its rotation was broken off.
        assert_eq!(LogFiles::open(&log.path(), now + 2 * ROTATION).unwrap().0.len(), 2);
        fs::rename(older(&log.path(), 1), older(&log.path(), 2)).unwrap();
        let opened = LogFiles::open(&log.path(), now).map(|files| files.0.len());
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::WouldBlock, "renamed in part");
        fs::rename(older(&log.path(), 2), older(&log.path(), 1)).unwrap();
        fs::write(log.path(), "").unwrap();
        assert_eq!(log.after(end), "");
    }

    /// `lines=100000000` of a request costs no more than this.
    #[test]
    fn last_lines_are_looked_for_in_a_bounded_tail() {
        let log = Log::new();
        log.append(&"line\n".repeat(40_000));
        let mut file = File::open(log.path()).unwrap();
        let mut from =
            |tail, lines| last_lines_within(tail, &mut file, 200_000, lines, true).unwrap();
        assert_eq!(from(100_000, 10), (199_950, 10), "within the tail it makes no difference");
        assert_eq!(from(100_000, 100_000_000), (100_000, 19_999));
        assert_eq!(from(200_000, 100_000_000), (0, 39_999));
    }

    /// Of a log that grew fast only the end is kept.
    #[test]
    fn what_a_copy_lacks_is_left_out() {
        let log = Log::new();
        log.append("one\n");
        let seen = log.end();
        File::options().append(true).open(log.path()).unwrap().set_len(1024 * 1024).unwrap();
        log.append("two\n");
        assert!(rotate(&log.path(), 1).unwrap());
        log.append("three\n");
        // The hole ends where the second line begins.
        for kept in [log.after(seen), log.last(0), log.last(2)] {
            assert_eq!(kept, "two\nthree\n");
        }
    }

    /// As with `truncate -s 4T`, before and after more output. Blocks of the file system that are not full are read.
    #[test]
    fn holes_of_a_log_are_left_out() {
        let log = Log::new();
        log.append("one\ntwo\n");
        let seen = log.end();
        File::options().append(true).open(log.path()).unwrap().set_len(4 << 40).unwrap();
        let text = |output: String| output.replace('\0', "");
        let read = |lines| {
            let output = log.last(lines);
            assert!(output.len() < 1024 * 1024, "{lines} lines have {} bytes", output.len());
            text(output)
        };
        assert_eq!((read(0), read(100)), ("one\ntwo\n".into(), "one\ntwo\n".into()));
        let section = last_section(&log.path(), 0).unwrap();
        assert_eq!((section.start, section.next), (LogPosition::START, None));
        assert!(section.end.offset <= 1024 * 1024, "{section:?}");

        log.append("three\n");
        assert_eq!(read(0), "one\ntwo\nthree\n");
        assert_eq!((read(2), read(1)), ("two\nthree\n".into(), "three\n".into()));
        assert_eq!(text(log.after(seen)), "three\n");
        // An answer without a hole, and then another one.
        let first = last_section(&log.path(), 0).unwrap();
        let second = section_at(&log.path(), first.next.unwrap()).unwrap();
        assert_eq!(second.start, first.next.unwrap());
        assert!(second.start.offset > 3 << 40 && second.end == log.end(), "{second:?}");
        assert_eq!(second.next, None);
    }

    #[test]
    fn text_of_a_position_is_its_own() {
        for text in ["first.1", "after.1.2.3.4", "copied.1.-2.3.4"] {
            assert_eq!(text.parse::<LogPosition>().unwrap().to_string(), text);
        }
        for text in
            ["", "1", "first", "first.", "last.1", "after.1.2.3", "after.1.2.3.4.5", "first.-1"]
        {
            assert!(text.parse::<LogPosition>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn last_lines_are_found_in_all_files(
            texts in proptest::collection::vec("[ab\n]{1,30}", 1..4),
            lines in 0usize..8,
        ) {
            let log = Log::new();
            for (n, text) in texts.iter().enumerate() {
                if n > 0 {
                    log.rotate();
                }
                log.append(text);
            }
            let text = texts.concat();
            let all: Vec<&str> = text.split_inclusive('\n').collect();
            let from = if lines == 0 { 0 } else { all.len().saturating_sub(lines) };
            let mut files = LogFiles::open(&log.path(), SystemTime::UNIX_EPOCH).unwrap();
            let (n, offset) = files.last_lines(lines).unwrap();
            let mut found = texts[texts.len() - 1 - n..].concat();
            found.drain(..usize::try_from(offset).unwrap());
            prop_assert_eq!(found, all[from..].concat());
        }
    }
}
