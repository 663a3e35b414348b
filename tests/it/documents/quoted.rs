//! What pages quote of the program exists: fields of what is stored, and messages of logs.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, page, pages, read, root, sources};

/// Text between backticks, outside of blocks of code.
fn quotes(text: &str) -> Vec<String> {
    let mut fenced = false;
    let prose = text.lines().filter(|line| {
        fenced ^= line.trim_start().starts_with("```");
        !fenced && !line.trim_start().starts_with("```") && !line.starts_with("    ")
    });
    // A quote may be broken between lines, but not between paragraphs.
    let paragraphs = prose.collect::<Vec<_>>().join("\n");
    let of_paragraph = |paragraph: &str| -> Vec<String> {
        let pieces = paragraph.split('`').skip(1).step_by(2);
        pieces.map(|quote| quote.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    paragraphs.split("\n\n").flat_map(of_paragraph).collect()
}

fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_part)
}

/// All sources as one text, with strings that are broken between lines put together.
fn program() -> String {
    let all: String = sources().iter().map(|path| read(path)).collect();
    let mut lines = all.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}

/// A stored type: its fields as they are written, and the types of its flattened fields.
#[derive(Debug, Default)]
struct Stored {
    fields: BTreeSet<String>,
    flattened: Vec<String>,
}

/// `name` as serde's `rename_all` writes it.
fn renamed(name: &str, all: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    match all {
        "camelCase" => {
            let mut words = name.split('_');
            let first = words.next().unwrap_or_default().to_owned();
            words.fold(first, |text, word| text + &capital(word))
        }
        "PascalCase" => name.split('_').map(capital).collect(),
        _ => name.to_owned(),
    }
}

/// The value of `name = "…"` in serde's attributes.
fn attribute<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split(&format!("{name} = \"")).nth(1)?.split('"').next()
}

/// Structs of the sources that are serialized.
fn stored_types() -> BTreeMap<String, Stored> {
    let mut types = BTreeMap::new();
    for source in sources().iter().map(|path| read(path)) {
        let parts: Vec<&str> = source.split("struct ").collect();
        for pair in parts.windows(2) {
            let above = pair[0].rsplit("\n\n").next().unwrap_or_default();
            if !above.contains("Serialize") && !above.contains("Deserialize") {
                continue;
            }
            let Some((name, rest)) = pair[1].split_once(" {\n") else { continue };
            let body = rest.split("\n}").next().unwrap_or_default();
            let all = attribute(above, "rename_all").unwrap_or_default();
            let mut found = Stored::default();
            let mut serde = String::new();
            for line in body.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
                let field = line.split_once(": ").filter(|_| !line.starts_with('#'));
                let Some((field, kind)) = field else {
                    serde.push_str(line);
                    continue;
                };
                let field = field.trim_start_matches("pub ").trim_start_matches("pub(super) ");
                if serde.contains("flatten") {
                    found.flattened.push(kind.trim_end_matches(',').to_owned());
                } else if is_name(field) {
                    let given = attribute(&serde, "rename").map(str::to_owned);
                    found.fields.insert(given.unwrap_or_else(|| renamed(field, all)));
                }
                serde.clear();
            }
            types.insert(name.trim().to_owned(), found);
        }
    }
    types
}

/// Fields of the types, and of what is flattened into them.
fn fields_of(types: &BTreeMap<String, Stored>, names: &[&str]) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    for name in names {
        let found = types.get(*name).unwrap_or_else(|| panic!("no stored type {name}"));
        assert!(!found.fields.is_empty(), "{name}: the fields are no longer found");
        fields.extend(found.fields.iter().cloned());
        for below in found.flattened.iter().filter_map(|below| types.get(below)) {
            fields.extend(below.fields.iter().cloned());
        }
    }
    fields
}

/// Cells of the rows of the tables below a heading.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, section) =
        page.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let section = section.split("\n## ").next().unwrap_or_default().replace("\\|", "/");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    rows.map(|row| row.split(" | ").map(|cell| cell.trim_end_matches(" |").to_owned()).collect())
        .collect()
}

/// Names between backticks, alone or in a list within braces.
fn names(text: &str) -> Vec<String> {
    let quoted = quotes(text);
    let lists = quoted.iter().flat_map(|quote| match quote.starts_with('{') {
        true => quote.split(['{', '}', ',', ':', '"']).map(str::trim).collect(),
        false => vec![quote.as_str()],
    });
    lists.filter(|name| is_name(name)).map(str::to_owned).collect()
}

/// Sections of the page of keys, with the types of the fields in the first column of their tables, and of those that the
/// other columns name.
const SECTIONS: [(&str, &[&str], &[&str]); 7] = [
    ("Record", &["RcRecord"], &[]),
    ("Status", &["RcStatus"], &["Replicas", "RcOwner", "Transfer", "Quarantine", "RcCondition"]),
    ("Presence", &["FarmPresence"], &[]),
    ("Node", &["NodeRecord"], &[]),
    (
        "Queues and groups",
        &["QueueStatus", "Counters", "PodGroupStatus"],
        &["GroupPlacement", "Waiting"],
    ),
    (
        "A job's status",
        &["JobStatus", "JobMembers"],
        &["JobState", "TaskMemory", "MemberFailure", "Delayed", "PhaseNote", "PhaseRecord"],
    ),
    ("Audit records", &["AuditCause", "AuditRecord"], &[]),
];

#[test]
fn the_page_of_keys_names_fields_that_are_stored() {
    let (page, types, program) = (page("reference/keys.md"), stored_types(), program());
    let mut wrong = Vec::new();
    let mut count = 0;
    for (heading, own, below) in SECTIONS {
        let own = fields_of(&types, own);
        let all: BTreeSet<String> = fields_of(&types, below).union(&own).cloned().collect();
        for row in rows(&page, heading) {
            let first = names(&row[0]);
            // Rows of events have their own test.
            if first.iter().all(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')) {
                continue;
            }
            count += first.len();
            wrong.extend(first.iter().filter(|name| !own.contains(*name)).cloned());
            let others = row[1..].iter().flat_map(|cell| names(cell));
            // Names of states and the like are in the program, as text or as variants.
            let is_known = |name: &String| {
                all.contains(name)
                    || [format!("\"{name}\""), format!(" {name},"), format!(" {name}(")]
                        .iter()
                        .any(|text| program.contains(text))
            };
            wrong.extend(others.filter(|name| !is_known(name)).map(|n| format!("{heading}: {n}")));
        }
    }
    assert!(count > 60, "the tables are no longer found: {count}");
    assert_eq!(wrong, Vec::<String>::new());
}

/// The types of the details of events, by the event that begins a row.
const DETAILS: [(&str, &[&str]); 19] = [
    ("REPLICATION_CONTROLLER_RETARGET", &["Retarget"]),
    ("NODE_TRANSFER_START", &["NodeTransfer"]),
    ("REPLICATION_CONTROLLER_CREATED", &["ControllerChange"]),
    ("LABELS_CHANGED", &["LabelsChange"]),
    ("ORPHANS_REMOVED", &["OrphansRemoved"]),
    ("QUEUE_CREATED", &["QueueChange"]),
    ("PRIORITY_CLASS_CHANGED", &["PriorityClassChange"]),
    ("JOB_TYPE_CHANGED", &["JobTypeChange"]),
    ("CELLS_CHANGED", &["CellsChange"]),
    ("NODE_DRAINED", &["NodeChange"]),
    ("MASS_DELETION_CONFIRMED", &["DeletionConfirmed"]),
    ("EXTERNAL_CHANGE_ACKNOWLEDGED", &["ChangeAcknowledged"]),
    ("JOB_STEP", &["JobStep"]),
    ("JOB_CHANGED", &["JobChange", "FoldedStep"]),
    ("POD_GROUPS_ORDERED", &["GroupsOrdered", "GroupChange"]),
    ("RECORD_STEP", &["RecordStep"]),
    ("RECORD_CHANGED", &["RecordChange"]),
    ("AUDIT_CHECKPOINT", &["Checkpoint"]),
    ("AUDIT_CHECKPOINT", &["FoldedController"]),
];

#[test]
fn the_page_of_keys_names_details_that_are_stored() {
    let (page, types) = (page("reference/keys.md"), stored_types());
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for row in rows(&page, "Audit records") {
        let events = names(&row[0]);
        let of = |(event, _): &&(&str, &[&str])| events.iter().any(|name| name == event);
        let kinds: Vec<&str> =
            DETAILS.iter().filter(of).flat_map(|(_, kinds)| kinds.iter().copied()).collect();
        if kinds.is_empty() {
            assert!(
                !events.iter().any(|name| name.contains('_') && name.to_uppercase() == *name),
                "{events:?}"
            );
            continue;
        }
        seen.insert(events[0].clone());
        let fields = fields_of(&types, &kinds);
        let named = names(&row[2]).into_iter();
        // Reasons are words of their own page, actions those of commands.
        let named = named.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
        wrong.extend(
            named.filter(|name| !fields.contains(name)).map(|n| format!("{}: {n}", events[0])),
        );
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(seen.len(), 18, "{seen:?}");
}

/// Begin of a message up to what differs from time to time.
fn fixed_begin(piece: &str) -> String {
    let is_fixed = |word: &&str| word.chars().all(|c| c.is_alphabetic() || "',.;:-()".contains(c));
    piece.split(' ').take_while(is_fixed).take(8).collect::<Vec<_>>().join(" ")
}

/// What follows names of things that begin a message, as in `main: killed by signal 9`.
fn after_names(message: &str) -> &str {
    match message.split_once(": ") {
        Some((name, rest)) if !name.contains(' ') => after_names(rest),
        _ => message,
    }
}

/// Whether the program has the begin of a piece of a message, with or without names before it. Two words or fewer may be
/// anything.
fn is_known_piece(program: &str, piece: &str) -> bool {
    let words = |text: &str| fixed_begin(text).split(' ').count();
    let has = |text: &str| {
        let begin = fixed_begin(text);
        words(text) > 2 && program.contains(begin.trim_end_matches([':', ',', '.', ';']))
    };
    words(piece) < 3 || has(piece) || has(after_names(piece))
}

/// Pages for operators and users quote messages: they stand in the program, word for word up to a value.
#[test]
fn pages_quote_messages_that_the_program_has() {
    let program = program();
    let mut quoting = files(&root().join("docs/operate"), "md");
    quoting.extend(files(&root().join("docs/guide"), "md"));
    assert!(quoting.iter().all(|path| pages().contains(path)));
    let (mut count, mut wrong) = (0, Vec::new());
    for path in quoting {
        let text = read(&path);
        for quote in quotes(&text) {
            let message = ["error: ", "warning: ", "note: ", "hint: "]
                .iter()
                .find_map(|word| quote.strip_prefix(word))
                .unwrap_or(&quote);
            // What Consul's own programs and p2's print or take is theirs.
            let first = message.split(' ').next().unwrap_or_default();
            let is_command =
                ["consul", "rcfarm", "p2", "cargo", "systemctl", "node", "service", "curl"]
                    .iter()
                    .any(|word| first.starts_with(word));
            if is_command || message.contains(['{', '$']) {
                continue;
            }
            // A log line: a message, then fields with values.
            if let Some((begin, _)) = message.split_once('=') {
                let begin = begin.rsplit_once(' ').map_or("", |(begin, _)| begin);
                let is_message = begin.contains(' ');
                if is_message && !program.contains(&format!("\"{begin}\"")) {
                    wrong.push(format!("{}: {quote}", path.file_name().unwrap().display()));
                }
                count += usize::from(is_message);
                continue;
            }
            if message.split(' ').count() < 4 {
                continue;
            }
            count += 1;
            if !message.split('…').map(str::trim).all(|piece| is_known_piece(&program, piece)) {
                wrong.push(format!("{}: {quote}", path.file_name().unwrap().display()));
            }
        }
    }
    assert!(count > 30, "the quotes are no longer found: {count}");
    assert_eq!(wrong, Vec::<String>::new());
}
