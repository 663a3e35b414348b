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
    assert_eq!((log.after(seen), log.after(four)), ("ree\nfour\nfive\n".into(), "five\n".into()));
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
    let mut from = |tail, lines| last_lines_within(tail, &mut file, 200_000, lines, true).unwrap();
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
    for text in ["", "1", "first", "first.", "last.1", "after.1.2.3", "after.1.2.3.4.5", "first.-1"]
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

#[test]
fn section_between_two_positions_survives_rotations() {
    let log = Log::new();
    log.append("zero\n");
    let from = log.end();
    log.append("one\ntwo\n");
    let between = |lines, from, to| {
        let LogSection { start, end, next, .. } =
            log.settled(|| section_between(&log.path(), lines, from, to));
        assert_eq!(next, None);
        let all = log.after(start);
        all.strip_suffix(&log.after(end)).unwrap().to_owned()
    };
    let rotated_within = {
        let to = log.end();
        assert_eq!(between(0, from, to), "one\ntwo\n");
        assert_eq!(between(1, from, to), "two\n");
        assert_eq!(between(5, from, to), "one\ntwo\n", "not what was written before");
        log.rotate();
        log.append("three\n");
        log.end()
    };
    log.append("four\n");
    assert_eq!(between(0, from, rotated_within), "one\ntwo\nthree\n");
    assert_eq!(between(2, from, rotated_within), "two\nthree\n");
    assert_eq!(between(9, from, rotated_within), "one\ntwo\nthree\n");
    assert_eq!(between(0, rotated_within, rotated_within), "");
    // The beginning is gone, then all of it.
    for (n, kept) in ["three\n", "three\n", ""].into_iter().enumerate() {
        log.rotate();
        // Shorter than what was rotated: the log was truncated.
        log.append(&"later\n"[n..]);
        let all = between(0, from, rotated_within);
        assert!(all.ends_with(kept) && !all.contains("four"), "{all}");
    }
    assert_eq!(between(0, from, rotated_within), "");
}
