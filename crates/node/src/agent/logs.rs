//! Log files of pods, and their rotation. [`super::log_position`] reads them.
//!
//! A process writes to its file directly, so its output does not depend on agent or shim. A file that is too large is
//! therefore copied and truncated, as with logrotate's `copytruncate`. Output between copy and truncation is lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Size in bytes above which a log is rotated.
pub const MAX_BYTES: u64 = 10 * 1024 * 1024;
/// Number of rotated files that are kept, as `.log.1` (newest) to `.log.3`.
pub const KEPT: u32 = 3;
/// Holes of copies are multiples of this, in bytes: of the blocks of usual file systems.
const HOLE_UNIT: u64 = 64 * 1024;

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
/// directory chooses what is at the paths, so the log is opened once, and its copy is a new file. Of a log that grew
/// faster than it is looked at, only the end is copied. The log is truncated even if it cannot be copied: a full disk
/// stays full otherwise. The rotated files then make room first, the oldest before the others.
///
/// # Errors
/// Fails if there is no regular file at `path`, or if it cannot be truncated.
pub fn rotate(path: &Path, max_bytes: u64) -> io::Result<bool> {
    rotate_with(path, max_bytes, keep_copy)
}

/// As [`rotate`], with the function that keeps a copy.
fn rotate_with(
    path: &Path,
    max_bytes: u64,
    mut keep_copy: impl FnMut(&mut File, &Path, u64) -> io::Result<()>,
) -> io::Result<bool> {
    if fs::symlink_metadata(path)?.len() <= max_bytes {
        return Ok(false);
    }
    let mut log = open_with(File::options().read(true).write(true), path)?;
    if log.metadata()?.len() <= max_bytes {
        return Ok(false);
    }
    let mut room = (1..=KEPT).rev();
    while let Err(error) = keep_copy(&mut log, path, max_bytes) {
        let _ = fs::remove_file(beside(path, ".new"));
        match room.next() {
            Some(oldest) if error.kind() == io::ErrorKind::StorageFull => {
                let _ = fs::remove_file(older(path, oldest));
            }
            _ => break,
        }
    }
    log.set_len(0)?;
    Ok(true)
}

/// Copies the end of a log to `.log.1`, after the files from there on have moved.
fn keep_copy(log: &mut File, path: &Path, max_bytes: u64) -> io::Result<()> {
    let copy = beside(path, ".new");
    copy_end(log, &copy, max_bytes)?;
    for n in (1..KEPT).rev() {
        unless_missing(fs::rename(older(path, n), older(path, n + 1)))?;
    }
    fs::rename(&copy, older(path, 1))
}

/// Copies the last `max_bytes` of what a log has, or a little more, to a new file; what was left at its path is deleted.
/// The copy has a hole instead of what is left out and where the log has one, so that offsets are those of the log.
fn copy_end(log: &mut File, path: &Path, max_bytes: u64) -> io::Result<()> {
    unless_missing(fs::remove_file(path))?;
    let mut copy = File::options().write(true).create_new(true).mode(0o640).open(path)?;
    let bytes = log.metadata()?.len();
    copy.set_len(bytes)?;
    let before = end_of_data(log, bytes).saturating_sub(max_bytes.max(1));
    let mut at = before - before % HOLE_UNIT;
    while let Some(from) = next_data(log, at)? {
        at = next_hole(log, from)?;
        log.seek(SeekFrom::Start(from))?;
        copy.seek(SeekFrom::Start(from))?;
        io::copy(&mut Read::by_ref(log).take(at.saturating_sub(from)), &mut copy)?;
    }
    Ok(())
}

/// Offset of the first byte at or after `offset` that a file has, that is, which is in no hole; `offset` itself where the
/// file system cannot tell. A file may be much longer than what it has: `truncate -s 4T` costs its writer nothing.
pub(super) fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        Err(_) => Ok((offset < file.metadata()?.len()).then_some(offset)),
    }
}

/// Offset of the first hole after the data at `offset`: the file's end if there is none.
pub(super) fn next_hole(file: &File, offset: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(offset)) {
        Ok(found) => Ok(found),
        Err(_) => Ok(file.metadata()?.len()),
    }
}

/// Where the data of a file before `end` ends: `end`, unless a hole is before it. One look per bit of a length.
pub(super) fn end_of_data(file: &File, end: u64) -> u64 {
    // Whether there is data from `offset` on, and before `end`.
    let has_data = |offset| match next_data(file, offset) {
        Ok(found) => found.is_some_and(|found| found < end),
        Err(_) => true,
    };
    // Data begins before `low`, or `low` is 0; none does at or after `high`.
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = high - (high - low).div_ceil(2);
        match has_data(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
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
        let end = end_of_data(&file, end);
        file.seek(SeekFrom::Start(end.saturating_sub(bytes as u64)))?;
        let mut output = Vec::new();
        file.take(end.min(bytes as u64)).read_to_end(&mut output)?;
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
    use std::io::Write as _;
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

    /// A process wrote more between two looks than all rotated files may have.
    #[test]
    fn rotate_keeps_the_end_of_a_log_that_grew_fast() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.log");
        let bytes = 100 * HOLE_UNIT;
        let log = File::create(&path).unwrap();
        log.set_len(bytes - 4).unwrap();
        File::options().append(true).open(&path).unwrap().write_all(b"last").unwrap();
        assert!(rotate(&path, HOLE_UNIT).unwrap());
        let copy = File::open(older(&path, 1)).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), bytes, "offsets are those of the log");
        assert!(next_data(&copy, 0).unwrap().unwrap() >= 99 * HOLE_UNIT);
        assert_eq!(last_output(&older(&path, 1), 4), "last");
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    /// Of such a log `truncate` says what is longer, and it has hardly anything.
    #[test]
    fn rotate_keeps_what_a_log_with_a_hole_has() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.log");
        fs::write(&path, "output").unwrap();
        let bytes = 1 << 40;
        let log = File::options().append(true).open(&path).unwrap();
        log.set_len(bytes).unwrap();
        assert!(last_output(&path, 8192).starts_with("output"));
        assert!(rotate(&path, HOLE_UNIT).unwrap());
        let copy = File::open(older(&path, 1)).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), bytes, "offsets are those of the log");
        let mut kept = [0; 6];
        (&copy).read_exact(&mut kept).unwrap();
        assert_eq!(&kept, b"output");
        assert_eq!(next_data(&copy, HOLE_UNIT).unwrap(), None);
    }

    #[test]
    fn data_ends_before_the_hole_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("a.log")).unwrap();
        assert_eq!(end_of_data(&file, 0), 0);
        file.set_len(1 << 42).unwrap();
        assert_eq!(end_of_data(&file, 1 << 42), 0, "there is nothing but a hole");
        (&file).write_all(b"output").unwrap();
        let end = end_of_data(&file, 1 << 42);
        assert!((6..=HOLE_UNIT).contains(&end), "{end}");
        assert_eq!(end_of_data(&file, 6), 6);
        assert_eq!(end_of_data(&file, 3), 3);
        assert_eq!(next_hole(&file, 0).unwrap(), end);
    }

    /// As on a full disk, the log cannot be copied.
    #[test]
    fn rotate_truncates_a_log_that_cannot_be_copied() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.log");
        fs::write(&path, "output").unwrap();
        fs::write(older(&path, 1), "before").unwrap();
        fs::create_dir(beside(&path, ".new")).unwrap();
        assert!(rotate(&path, 1).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(fs::read(older(&path, 1)).unwrap(), b"before", "no room was needed");
    }

    /// A disk on which the copy has room once all rotated files but the newest are gone.
    #[test]
    fn rotate_on_a_full_disk_drops_the_oldest_until_there_is_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.log");
        fs::write(&path, "output").unwrap();
        for n in 1..=KEPT {
            fs::write(older(&path, n), n.to_string()).unwrap();
        }
        let left = |n| older(&path, n).exists();
        let mut tries = Vec::new();
        let full = |log: &mut File, path: &Path, max_bytes: u64| {
            tries.push([left(1), left(2), left(3)]);
            if left(2) {
                fs::write(beside(path, ".new"), "par").unwrap();
                return Err(io::ErrorKind::StorageFull.into());
            }
            assert!(!beside(path, ".new").exists(), "what was copied takes no room");
            keep_copy(log, path, max_bytes)
        };
        assert!(rotate_with(&path, 1, full).unwrap());
        assert_eq!(tries, [[true, true, true], [true, true, false], [true, false, false]]);
        assert_eq!(fs::read(older(&path, 1)).unwrap(), b"output");
        assert_eq!(fs::read(older(&path, 2)).unwrap(), b"1");
        assert_eq!((left(3), fs::read(&path).unwrap()), (false, Vec::new()));
    }

    /// Every copy fails: the log is truncated all the same, and nothing is left that takes room.
    #[test]
    fn rotate_on_a_disk_that_stays_full_truncates_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.log");
        fs::write(&path, "output").unwrap();
        for n in 1..=KEPT {
            fs::write(older(&path, n), n.to_string()).unwrap();
        }
        let mut tries = 0;
        let full = |_: &mut File, path: &Path, _: u64| {
            tries += 1;
            fs::write(beside(path, ".new"), "par").unwrap();
            Err(io::ErrorKind::StorageFull.into())
        };
        assert!(rotate_with(&path, 1, full).unwrap());
        assert_eq!((tries, fs::read(&path).unwrap()), (1 + KEPT, Vec::new()));
        let files = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(files, 1, "only the log itself");
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
