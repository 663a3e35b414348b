//! Output of results, and its formats.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde::Serialize;

use super::terminal::{ColorWhen, is_control, printable, say};
use rcfarm_api::Timestamp;

/// Format of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Table,
    /// JSON for programs; field names are stable.
    Json,
    /// YAML with the fields of JSON.
    Yaml,
}

/// Standard output in the chosen format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    pub(super) format: Format,
    pub(super) color: ColorWhen,
}

impl Output {
    /// Prints a result: `text` as text, `value` as JSON or YAML.
    pub(super) fn show<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        match self.format {
            Format::Table => self.line(&self.coloured(&printable(&text()))),
            Format::Json => self.line(&json(serde_json::to_string_pretty(value)?)),
            Format::Yaml => self.line(&yaml(value)?),
        }
    }

    /// Prints one of a stream of results: a line, a line of JSON, or a YAML document.
    pub(super) fn show_next<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        match self.format {
            Format::Table => self.line(&self.coloured(&printable(&text()))),
            Format::Json => self.line(&json(serde_json::to_string(value)?)),
            Format::Yaml => self.line(&format!("---\n{}", yaml(value)?)),
        }
    }

    fn coloured(self, text: &str) -> String {
        match self.color.is_on(io::stdout().is_terminal()) {
            true => painted(text),
            false => text.to_owned(),
        }
    }

    fn line(self, text: &str) -> anyhow::Result<()> {
        let text = text.trim_end_matches('\n');
        if !text.is_empty() {
            let mut stdout = io::stdout().lock();
            writeln!(stdout, "{text}")?;
            stdout.flush()?;
        }
        Ok(())
    }

    /// Prints a note on stderr.
    pub(super) fn note(self, text: &str) {
        say("note", "33", text, self.color);
    }
}

/// Words of states and reasons that mean a failure, or something that stays so until somebody sees to it.
const FAILED: [&str; 38] = [
    "Aborted",
    "Backoff",
    "BackoffLimitExceeded",
    "Bad",
    "CannotStart",
    "ChangeRefused",
    "DeadlineExceeded",
    "Down",
    "ExceedsCapability",
    "Failed",
    "HookFailed",
    "Invalid",
    "InvalidRecord",
    "LeaseEnded",
    "Lost",
    "MaxRetryReached",
    "MemberFailed",
    "MinAvailableMissed",
    "MinSuccessMissed",
    "NodeDown",
    "NodesLost",
    "Quarantined",
    "QueueHasChildren",
    "QueueInvalid",
    "QueueMissing",
    "ShapeChanged",
    "StartError",
    "StepFailed",
    "SuspiciousTree",
    "TaskMinAvailableMissed",
    "TemplateInvalid",
    "Terminated",
    "TransferFailed",
    "Unfit",
    "critical",
    "down",
    "fail",
    "unreadable",
];
/// Words that mean that something is not as it should be, or not yet.
const UNFINISHED: [&str; 56] = [
    "Aborting",
    "BackedOff",
    "BehindInQueue",
    "BudgetExhausted",
    "Closing",
    "ControllerGone",
    "Deleting",
    "DiscoveryNotSynced",
    "Draining",
    "Evicted",
    "IneligibleNodes",
    "InsufficientCapacity",
    "InsufficientNodes",
    "JobAlreadyActive",
    "JobMoves",
    "JobNameTaken",
    "JobRuns",
    "LockHeld",
    "MembersLost",
    "MembersUnplaced",
    "MissedDeadline",
    "NoController",
    "NoEligibleNodes",
    "NoOwner",
    "NotSeenYet",
    "Pending",
    "PlaceTaken",
    "PodsRestarting",
    "PodsUnhealthy",
    "Preempting",
    "ProbeWaiting",
    "QueueClosed",
    "QueueFull",
    "Releasing",
    "ReservationFailed",
    "Reserved",
    "Reserving",
    "RestartDelayed",
    "Restarting",
    "Scaling",
    "SshKeysRefused",
    "Starting",
    "Stopping",
    "TemplateMissing",
    "Terminating",
    "TooManyActive",
    "TooManyMissedTimes",
    "TransferUnderWay",
    "Unknown",
    "UpdateUnderWay",
    "WaitingForAdmission",
    "WaitingForDependency",
    "WaitingForOldMembers",
    "draining",
    "warn",
    "warning",
];

/// The text with the cells in colour that say that something is not well. Cells end at two blanks or at the end of a line.
fn painted(text: &str) -> String {
    let line = |line: &str| -> String {
        let mut shown = String::new();
        let mut rest = line;
        while !rest.is_empty() {
            let blanks = rest.len() - rest.trim_start_matches(' ').len();
            let (gap, from) = rest.split_at(blanks);
            let (cell, next) = from.split_at(from.find("  ").unwrap_or(from.len()));
            let colour = match cell {
                cell if FAILED.contains(&cell) => Some("31"),
                cell if UNFINISHED.contains(&cell) => Some("33"),
                _ => None,
            };
            shown.push_str(gap);
            match colour {
                Some(colour) => shown.push_str(&format!("\x1b[{colour}m{cell}\x1b[0m")),
                None => shown.push_str(cell),
            }
            rest = next;
        }
        shown
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// JSON in which all control characters are escaped; serde leaves DEL and those from U+0080 on as they are.
fn json(text: String) -> String {
    if !text.chars().any(|c| is_control(c) && c != '\n') {
        return text;
    }
    let escaped = |c: char| match is_control(c) && c != '\n' {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

fn yaml<T: Serialize>(value: &T) -> anyhow::Result<String> {
    // Through JSON, so that both formats have the same fields.
    let value = serde_json::to_value(value)?;
    let text = serde_saphyr::to_string(&value)?;
    if text.chars().any(|c| is_control(c) && c != '\n') {
        // YAML reads an escape between double quotes alone. All text of JSON stands there, and JSON is YAML.
        return Ok(json(serde_json::to_string_pretty(&value)?));
    }
    Ok(text)
}

/// A column of a table: its header, and the text of a row's cell.
pub(super) type Column<'c, R> = (&'c str, &'c dyn Fn(&R) -> String);

/// Blanks between two columns.
const GAP: usize = 3;
/// No column is made narrower than this.
const NARROWEST: usize = 8;

/// Columns that a narrow terminal loses, the first of these before the others.
const DROPPED_FIRST: [&str; 12] = [
    "OWNER",
    "PARENT",
    "PRIORITY",
    "ORDER",
    "KIND",
    "RETRIES",
    "RESTARTS",
    "CONTROLLER",
    "UP",
    "AGE",
    "SUCCEEDED",
    "BY",
];
/// Columns whose cells are names that other commands take, besides the first of a table. They are cut only if all others
/// are cut or gone.
const NAMES: [&str; 4] = ["POD", "QUEUE", "NODE", "WAITING"];

/// Columns without borders, as `consul`, `nomad` and `kubectl` print them. On a terminal the widest cells are cut so that
/// lines fit, names last, and columns are left out ([`DROPPED_FIRST`]); `-o json`, and output into a file or another
/// program, have everything.
pub(super) fn table<R>(rows: &[R], columns: &[Column<'_, R>]) -> String {
    table_within(rows, columns, screen_width())
}

fn table_within<R>(rows: &[R], columns: &[Column<'_, R>], screen: Option<usize>) -> String {
    let cells = rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect());
    let mut lines: Vec<Vec<String>> = cells.collect();
    lines.insert(0, columns.iter().map(|(header, _)| (*header).to_owned()).collect());
    if let Some(screen) = screen {
        let width = |n: usize| {
            let parts = lines.iter().flat_map(|line| line[n].lines());
            parts.map(|part| part.chars().count()).max().unwrap_or(0)
        };
        let headers: Vec<&str> = columns.iter().map(|(header, _)| *header).collect();
        let widths = fitted(&headers, (0..columns.len()).map(width).collect(), screen);
        for line in &mut lines {
            let cut = |(cell, width): (&String, &Option<usize>)| {
                let parts = cell.lines().map(|part| shortened(part, (*width)?).into());
                parts.collect::<Option<Vec<String>>>().map(|parts| parts.join("\n"))
            };
            let kept = line.iter().zip(&widths).filter(|(_, width)| width.is_some());
            *line = kept.filter_map(cut).collect();
        }
    }
    let mut lines = lines.into_iter();
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(lines.next().unwrap_or_default());
    table.add_rows(lines);
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Columns of the terminal; `None` if standard output is none.
fn screen_width() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(stdout).ok()?.ws_col;
    (columns > 0).then_some(usize::from(columns))
}

/// The widths of columns so that they fit the screen. `None`: the column is left out. Columns without names are made
/// narrower, the widest first and none below [`NARROWEST`]; then columns are left out; then names are cut as well.
fn fitted(headers: &[&str], widths: Vec<usize>, screen: usize) -> Vec<Option<usize>> {
    let is_name = |n: usize| n == 0 || NAMES.contains(&headers[n]);
    let whole = widths;
    let mut widths: Vec<Option<usize>> = whole.iter().copied().map(Some).collect();
    let is_wide = |widths: &[Option<usize>]| {
        let shown = widths.iter().flatten();
        shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1) > screen
    };
    let narrow = |widths: &mut [Option<usize>], may_cut: &dyn Fn(usize) -> bool| {
        while is_wide(widths) {
            let some = widths.iter_mut().enumerate().filter(|(n, _)| may_cut(*n));
            match some.filter_map(|(_, width)| width.as_mut()).max() {
                Some(widest) if *widest > NARROWEST => *widest -= 1,
                _ => break,
            }
        }
    };
    let mut dropped = DROPPED_FIRST.iter();
    loop {
        narrow(&mut widths, &|n| !is_name(n));
        if !is_wide(&widths) {
            return widths;
        }
        let next = dropped.find_map(|header| headers.iter().position(|one| one == header));
        let Some(next) = next.filter(|n| *n > 0) else { break };
        // What is left may have its whole width again.
        for (width, whole) in widths.iter_mut().zip(&whole) {
            *width = width.map(|_| *whole);
        }
        widths[next] = None;
    }
    narrow(&mut widths, &|_| true);
    widths
}

/// The text, or its beginning with an ellipsis, of at most `width` characters.
fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Rows of `name  value`, the names padded to one width; a value may have several lines.
pub(super) fn fields<'f>(fields: impl IntoIterator<Item = (&'f str, String)>) -> String {
    let fields: Vec<_> = fields.into_iter().collect();
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in fields {
        let mut lines = value.lines();
        let first = lines.next().unwrap_or("-");
        text.push_str(format!("{name:width$}   {first}").trim_end());
        text.push('\n');
        for line in lines {
            text.push_str(format!("{:width$}   {line}", "").trim_end());
            text.push('\n');
        }
    }
    text
}

/// `text`, or `-` for `None`.
pub(super) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

/// Age in its largest unit: `14s`, `3m`, `5h`, `12d`.
pub(super) fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Parses a duration: `90s`, `1h`, `30d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it like 90s, 15m, 1h or 30d"))
}

/// Progress of a wait: one line on stderr, which on a terminal replaces the previous one.
#[derive(Default)]
pub(super) struct Progress {
    last: String,
}

impl Progress {
    /// Prints a note above the progress.
    pub(super) fn note(&mut self, out: Output, text: &str) {
        let stderr = io::stderr();
        if stderr.is_terminal() && !self.last.is_empty() {
            // A failure to write to stderr cannot be reported.
            let _ = write!(stderr.lock(), "\r\x1b[2K");
        }
        self.last.clear();
        out.note(text);
    }

    /// Prints `text`, unless it was printed last.
    pub(super) fn say(&mut self, text: &str) {
        if self.last == text {
            return;
        }
        let shown = printable(text);
        let mut stderr = io::stderr().lock();
        // A failure to write to stderr cannot be reported.
        let _ = if stderr.is_terminal() {
            write!(stderr, "\r\x1b[2K{shown}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{shown}")
        };
        text.clone_into(&mut self.last);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut stderr = io::stderr().lock();
        if !self.last.is_empty() && stderr.is_terminal() {
            let _ = writeln!(stderr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_have_no_borders_or_trailing_blanks() {
        let columns: [Column<'_, [&str; 2]>; 2] =
            [("ID", &|row| row[0].to_owned()), ("COUNT", &|row| row[1].to_owned())];
        let text = table(&[["a", "12"], ["bcd", ""]], &columns);
        assert_eq!(text, "ID    COUNT\na     12\nbcd\n");
    }

    #[test]
    fn tables_fit_the_screen_and_only_the_widest_cells_are_cut() {
        let columns: [Column<'_, [&str; 2]>; 2] =
            [("ID", &|row| row[0].to_owned()), ("WHAT", &|row| row[1].to_owned())];
        let rows = [["984dfa15", "a text of more than twenty characters"], ["1", "short"]];
        let text = table_within(&rows, &columns, Some(30));
        assert_eq!(text, "ID         WHAT\n984dfa15   a text of more tha…\n1          short\n");
        assert!(text.lines().all(|line| line.chars().count() <= 30), "{text}");
        assert!(table_within(&rows, &columns, None).contains("twenty characters"));
        let fitted = |widths, screen| super::fitted(&["ID", "A", "B"], widths, screen);
        assert_eq!(fitted(vec![3, 50, 40], 60), [3, 26, 25].map(Some));
        assert_eq!(fitted(vec![50, 50, 50], 5), [8, 8, 8].map(Some), "it cannot fit");
    }

    /// As `job list` and `queue list` with 80 columns.
    #[test]
    fn names_of_a_table_are_cut_last() {
        let headers = ["JOB", "KIND", "PHASE", "QUEUE", "RUNNING", "SUCCEEDED", "RETRIES", "AGE"];
        let widths = vec![24, 10, 7, 20, 7, 9, 7, 3];
        let fitted = |screen| super::fitted(&headers, widths.clone(), screen);
        assert_eq!(fitted(120), widths.iter().copied().map(Some).collect::<Vec<_>>());
        let shown = fitted(80);
        assert_eq!((shown[0], shown[3]), (Some(24), Some(20)), "{shown:?}");
        assert_eq!((shown[1], shown[6]), (None, None), "{shown:?}");
        assert!(shown[2].is_some() && shown[4].is_some(), "{shown:?}");
        let total = |shown: &[Option<usize>]| {
            let kept = shown.iter().flatten();
            kept.clone().sum::<usize>() + GAP * (kept.count() - 1)
        };
        assert!(total(&shown) <= 80, "{shown:?}");
        let narrow = fitted(40);
        assert!(total(&narrow) <= 40 && narrow[0].is_some_and(|width| width < 24), "{narrow:?}");
    }

    #[test]
    fn cells_that_are_not_well_are_coloured() {
        let text = "web   n1   critical   a critical look\nok    n2   draining\nfail  x\n\
                    NODE  Reserving  Bad\nNODE  Reserved  Healthy\nNODE  Used\n";
        let red = |word: &str| format!("\x1b[31m{word}\x1b[0m");
        let yellow = |word: &str| format!("\x1b[33m{word}\x1b[0m");
        let shown = painted(text);
        let expected = format!(
            "web   n1   {}   a critical look\nok    n2   {}\n{}  x\n\
             NODE  {}  {}\nNODE  {}  Healthy\nNODE  Used\n",
            red("critical"),
            yellow("draining"),
            red("fail"),
            yellow("Reserving"),
            red("Bad"),
            yellow("Reserved"),
        );
        assert_eq!(shown, expected);
    }

    /// Words of states and reasons that are not coloured: all is well, or somebody wants it so.
    const FINE: [&str; 22] = [
        "AllStepsEnded",
        "AsDesired",
        "Closed",
        "CommandIssued",
        "Completed",
        "Completing",
        "Disabled",
        "EnoughRunning",
        "EnoughSucceeded",
        "Inqueue",
        "JobsActive",
        "LeaderSucceeded",
        "NoMembers",
        "NotMatching",
        "NotNamed",
        "Open",
        "Other",
        "PolicyAction",
        "Running",
        "Scheduled",
        "Stopped",
        "Suspended",
    ];

    /// The words of the page of reasons, and of phases.
    fn words_of_states() -> std::collections::BTreeSet<String> {
        use rcfarm_api::job::phase::JobPhase;
        use rcfarm_api::pod_group::status::PodGroupPhase;
        use rcfarm_api::queue::status::QueueState;
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/reasons.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let first = rows.flat_map(|row| row.split(" |").next().unwrap_or_default().split('`'));
        let is_word =
            |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphabetic());
        let reasons: Vec<&str> = first.filter(is_word).collect();
        assert!(reasons.len() > 80, "the reasons are no longer found: {reasons:?}");
        let phases = JobPhase::ALL.iter().map(ToString::to_string);
        let phases = phases.chain(PodGroupPhase::ALL.iter().map(ToString::to_string));
        let phases = phases.chain(QueueState::ALL.iter().map(ToString::to_string));
        reasons.into_iter().map(str::to_owned).chain(phases).collect()
    }

    #[test]
    fn each_word_of_a_state_is_red_or_yellow_or_known_to_be_fine() {
        let words = words_of_states();
        let lists: [&[&str]; 3] = [&FAILED, &UNFINISHED, &FINE];
        for word in &words {
            let found = lists.iter().filter(|list| list.contains(&word.as_str())).count();
            assert_eq!(found, 1, "{word} is in {found} of the lists of FAILED, UNFINISHED, FINE");
        }
        let stale = |word: &&&str| !words.contains(**word);
        assert_eq!(FINE.iter().filter(stale).collect::<Vec<_>>(), Vec::<&&str>::new());
        for list in lists {
            assert!(list.is_sorted_by(|one, next| one < next), "{list:?}");
        }
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let text = "\x1b[31mPWNED\x1b]0;title\x07\u{9b}2J\r\u{202e}\x7f ü\tx\n";
        let shown = printable(text);
        assert!(!shown.chars().any(|c| is_control(c) && c != '\n' && c != '\t'), "{shown:?}");
        assert!(shown.starts_with("\\u{1b}[31mPWNED"), "{shown}");
        assert!(shown.ends_with(" ü\tx\n"), "{shown}");
        assert_eq!(printable("plain ü\n"), "plain ü\n");
        let escaped = json(serde_json::to_string(text).unwrap());
        assert!(!escaped.chars().any(is_control), "{escaped:?}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        for text in [text, "plain \u{202e}txt.exe", "\u{2066}", "a\u{85}b"] {
            let value = serde_json::json!({"a": [text], text: 1});
            let shown = yaml(&value).unwrap();
            assert!(!shown.chars().any(|c| is_control(c) && c != '\n'), "{shown:?}");
            assert_eq!(
                serde_saphyr::from_str::<serde_json::Value>(&shown).unwrap(),
                value,
                "{shown}"
            );
        }
    }

    #[test]
    fn fields_are_aligned_line_by_line() {
        let text = fields([("id", "x".to_owned()), ("manifest", "a\nb".to_owned())]);
        assert_eq!(text, "id         x\nmanifest   a\n           b\n");
    }

    #[test]
    fn ages_have_one_unit() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (seconds, text) in
            [(-5, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")]
        {
            assert_eq!(age(at(1_000_000), at(1_000_000 + seconds)), text);
        }
    }

    #[test]
    fn yaml_and_json_have_the_same_fields() {
        #[derive(Serialize)]
        struct Row {
            a_b: Option<u8>,
            text: &'static str,
        }
        let row = Row { a_b: None, text: "1" };
        let read: serde_json::Value = serde_saphyr::from_str(&yaml(&row).unwrap()).unwrap();
        assert_eq!(read, serde_json::to_value(&row).unwrap());
    }
}
