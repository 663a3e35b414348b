//! Checks the documentation against the program: links, citations, generated lists, and the format of pages.

mod measured_facts;
mod quoted;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcfarm_api::audit::EventType;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files below `directory` with the extension; none if it is absent.
fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Pages in the root and below docs/.
fn pages() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|it| it == "md")).collect();
    pages.extend(files(&root().join("docs"), "md"));
    pages.sort();
    assert!(pages.len() > 50, "the pages are no longer found where they stand: {pages:?}");
    pages
}

/// Sources of the product and of its crates.
fn sources() -> Vec<PathBuf> {
    let mut sources = files(&root().join("src"), "rs");
    sources.extend(files(&root().join("crates"), "rs"));
    sources
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Targets of a page's links, outside of code.
fn links(text: &str) -> Vec<String> {
    let prose = text.lines().filter(|line| !line.starts_with("    "));
    let pieces = prose.flat_map(|line| line.split("](").skip(1));
    pieces.filter_map(|piece| Some(piece.split_once(')')?.0.to_owned())).collect()
}

/// GitHub's anchors of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let has_anchor = || anchors(&read(&target)).contains(anchor);
            if !target.exists() || (!anchor.is_empty() && !has_anchor()) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Output of `--help`.
fn help(command: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_rcfarm"));
    let output = program.args(command).arg("--help").env_clear().output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Commands and descriptions in a help text; continuation lines are indented further.
fn listed(help: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in lines.take_while(|line| !line.is_empty()) {
        let entry = line.strip_prefix("  ").unwrap();
        match (entry.split_once(' '), all.last_mut()) {
            (Some((name, about)), _) if !name.is_empty() => {
                all.push((name.to_owned(), about.trim().to_owned()));
            }
            (_, Some((_, about))) => *about = format!("{about} {}", entry.trim()),
            (_, None) => panic!("no command: {line}"),
        }
    }
    all.retain(|(name, _)| name != "help");
    all
}

/// Table of all commands, from their help texts.
fn table() -> String {
    let mut table = String::from("| command | does |\n|---|---|\n");
    let mut open: Vec<(Vec<String>, String)> = vec![(Vec::new(), String::new())];
    while let Some((path, about)) = open.pop() {
        let help = help(&path.iter().map(String::as_str).collect::<Vec<_>>());
        let below = listed(&help);
        if below.is_empty() {
            let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap();
            let usage = usage.replace(" [OPTIONS]", "").replace('|', "\\|");
            table.push_str(&format!("| `{usage}` | {about} |\n"));
        }
        for (name, about) in below.into_iter().rev() {
            open.push(([path.clone(), vec![name]].concat(), about));
        }
    }
    table
}

#[test]
fn the_list_of_commands_is_the_programs_own() {
    const BEGIN: &str = "<!-- commands: UPDATE_DOCS=1 cargo test --test it documents -->\n";
    const END: &str = "<!-- end -->";
    let path = root().join("docs/guide/cli.md");
    let text = read(&path);
    let (before, rest) = text.split_once(BEGIN).expect("docs/guide/cli.md has a list of commands");
    let (written, after) =
        rest.split_once(END).expect("docs/guide/cli.md says where the list ends");
    let table = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, [before, BEGIN, &table, END, after].concat()).unwrap();
        return;
    }
    assert_eq!(written, table, "docs/guide/cli.md: UPDATE_DOCS=1 cargo test --test it documents");
}

fn page(name: &str) -> String {
    read(&root().join("docs").join(name))
}

#[test]
fn the_page_of_keys_has_every_event() {
    let page = page("reference/keys.md");
    // A row may abbreviate further events to their last word.
    let stands = |event: &str| {
        let last = event.rsplit('_').next().unwrap();
        page.contains(&format!("`{event}`")) || page.contains(&format!("`…_{last}`"))
    };
    let missing: Vec<&str> =
        EventType::OURS.iter().map(EventType::as_str).filter(|event| !stands(event)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_page_of_keys_has_every_path() {
    let layouts = sources().into_iter().filter(|path| path.ends_with("key.rs"));
    let source: String = layouts.map(|path| read(&path)).collect();
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = code.filter_map(|line| {
        let (_, path) =
            [" -> Prefix = \"", " -> Key = \""].iter().find_map(|at| line.split_once(at))?;
        Some(path.split(['{', '"']).next().unwrap().to_owned())
    });
    let (page, paths) = (page("reference/keys.md"), paths.collect::<BTreeSet<String>>());
    assert!(paths.len() > 20, "the paths are no longer found where they stand: {paths:?}");
    let missing: Vec<&String> =
        paths.iter().filter(|path| !page.contains(&format!("`{path}"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Messages of log calls with `alert = true`: the last string of each call.
fn alerts(source: &str) -> Vec<String> {
    let calls = source.split("alert = true").skip(1);
    let message = |call: &str| {
        let texts: Vec<&str> = call.split('"').collect();
        let is_last = |n: &usize| texts[n + 1].trim_start().starts_with(')');
        let last = (1..texts.len() - 1).step_by(2).find(is_last).expect("a call ends");
        texts[last].split("\\\n").map(str::trim_start).collect::<String>()
    };
    calls.map(message).collect()
}

#[test]
fn the_page_of_alerts_has_every_alert() {
    let page = page("operate/alerts.md");
    let all: BTreeSet<String> = sources().iter().flat_map(|path| alerts(&read(path))).collect();
    assert!(all.len() > 10, "the alerts are no longer found where they stand: {all:?}");
    // The page may shorten a long message.
    let begin = |text: &str| text.chars().take(60).collect::<String>();
    let missing: Vec<&String> =
        all.iter().filter(|text| !page.contains(&format!("`{}", begin(text)))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Variants of stored enums (deserialized ones) whose names end in `Reason`.
fn reasons(source: &str) -> Vec<String> {
    let parts: Vec<&str> = source.split("pub enum ").collect();
    let bodies = parts.windows(2).filter_map(|pair| {
        let above = pair[0].rsplit("\n\n").next().unwrap_or_default();
        let (name, rest) = pair[1].split_once('{')?;
        let is_stored = name.trim().ends_with("Reason") && above.contains("Deserialize");
        is_stored.then(|| rest.split('}').next().unwrap_or_default())
    });
    let variant = |line: &str| {
        let name = line.trim().strip_suffix(',')?;
        name.chars().all(|c| c.is_ascii_alphanumeric()).then(|| name.to_owned())
    };
    bodies.flat_map(|body| body.lines().filter_map(variant).collect::<Vec<_>>()).collect()
}

#[test]
fn the_page_of_reasons_has_every_reason() {
    let page = page("reference/reasons.md");
    let all: BTreeSet<String> = sources().iter().flat_map(|path| reasons(&read(path))).collect();
    assert!(all.len() > 40, "the reasons are no longer found where they stand: {all:?}");
    let missing: Vec<&String> =
        all.iter().filter(|reason| !page.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Names of the metrics, without prefix and suffix, as they are registered.
fn metrics() -> BTreeSet<String> {
    let files = ["src/http/mod.rs", "src/http/node.rs", "src/farm/metrics.rs"];
    let source: String = files.iter().map(|file| read(&root().join(file))).collect();
    let calls = source.split("registry, \"").skip(1).chain(
        source.split("registry.register").skip(1).filter_map(|rest| Some(rest.split_once('"')?.1)),
    );
    let names = calls.filter_map(|rest| rest.split('"').next());
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    names.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn the_page_of_metrics_has_every_metric() {
    let (page, names) = (page("operate/metrics.md"), metrics());
    assert!(names.len() > 12, "the metrics are no longer found where they stand: {names:?}");
    let missing: Vec<&String> =
        names.iter().filter(|name| !page.contains(&format!("`rcfarm_{name}"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn alert_rules_and_dashboard_name_metrics_that_are_exported() {
    let names = metrics();
    for file in ["rules.yaml", "dashboard.json"] {
        let text = page(&format!("operate/monitoring/{file}"));
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        let used: BTreeSet<String> = text
            .split("rcfarm_")
            .skip(1)
            .map(|rest| rest.chars().take_while(|c| is_part(*c)).collect())
            .collect();
        assert!(used.len() > 6, "{file} names few metrics: {used:?}");
        let suffixes = ["_seconds_bucket", "_seconds", "_total", ""];
        let is_exported = |name: &&String| {
            suffixes
                .iter()
                .any(|suffix| name.strip_suffix(suffix).is_some_and(|n| names.contains(n)))
        };
        let unknown: Vec<&String> = used.iter().filter(|name| !is_exported(name)).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let dashboard: Result<serde_json::Value, _> =
        serde_json::from_str(&page("operate/monitoring/dashboard.json"));
    assert!(dashboard.is_ok_and(|dashboard| dashboard["panels"].is_array()));
}

#[test]
fn the_page_of_alerts_has_every_rule_and_its_severity() {
    let (rules, page) = (page("operate/monitoring/rules.yaml"), page("operate/alerts.md"));
    let mut count = 0;
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        let severity = rule.split("severity: ").nth(1).and_then(|rest| rest.split('}').next());
        let severity = severity.unwrap_or_else(|| panic!("{name} has no severity"));
        let row = page.lines().find(|line| line.contains(&format!("`{name}`")));
        let row = row.unwrap_or_else(|| panic!("{name} is not on the page"));
        assert_eq!(row.split('|').nth(2).map(str::trim), Some(severity), "{name}");
        count += 1;
    }
    assert!(count > 12, "{count} rules");
    let named = page.matches("`Rcfarm").count();
    assert_eq!(named, count, "the page names rules that do not exist");
}

/// Comments of a source as one text, since a citation may be broken between lines.
fn comments(source: &str) -> String {
    let comment = |line: &str| {
        Some(line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']).to_owned())
    };
    source.lines().filter_map(comment).collect::<Vec<_>>().join(" ").replace("  ", " ")
}

/// Citations of a page: sections, or rows of its list of findings as `#12`.
fn citations(text: &str, page: &str) -> BTreeSet<String> {
    let mut cited = BTreeSet::new();
    for rest in text.split(page).skip(1) {
        let rest = rest.trim_start_matches('`').trim_start();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || " §#.,".contains(c)));
        let mut section = "";
        for word in rest[..end.unwrap_or(rest.len())].split([' ', ',']) {
            let word = word.trim_end_matches('.');
            match (word.strip_prefix('§'), word.strip_prefix('#')) {
                (Some(number), _) if number.starts_with(|c: char| c.is_ascii_digit()) => {
                    section = number;
                    _ = cited.insert(number.to_owned());
                }
                (_, Some(row)) if section == "0" => _ = cited.insert(format!("#{row}")),
                _ if matches!(word, "" | "and" | "to" | "no") => {}
                _ => break,
            }
        }
    }
    cited
}

#[test]
fn every_citation_leads_to_a_section() {
    let mut sources = sources();
    sources.extend(files(&root().join("tests"), "rs"));
    sources.extend(files(&root().join("examples"), "rs"));
    let comments: String = sources.iter().map(|path| comments(&read(path)) + "\n").collect();
    let (mut count, mut missing) = (0, Vec::new());
    for name in
        ["consul-semantics.md", "p2.md", "volcano.md", "kubeflow.md", "hived.md", "peers.md"]
    {
        let text = page(&format!("reference/{name}"));
        for cited in citations(&comments, &format!("`{name}")) {
            count += 1;
            let stands = match cited.strip_prefix('#') {
                Some(row) => text.lines().any(|line| line.starts_with(&format!("| {row} |"))),
                None => text.lines().filter_map(|line| line.strip_prefix("##")).any(|heading| {
                    let heading = heading.trim_start_matches('#').trim();
                    heading
                        .split([' ', '.'])
                        .collect::<Vec<_>>()
                        .join(".")
                        .starts_with(&(cited.clone() + "."))
                }),
            };
            if !stands {
                missing.push(format!("{name} {cited}"));
            }
        }
    }
    assert!(count > 50, "the citations are no longer found where they stand: {count}");
    assert!(missing.is_empty(), "{missing:?}");
}

/// Pages generated from code.
const GENERATED: [&str; 2] = ["state-machines/queue.md", "state-machines/pod_group.md"];

#[test]
fn prose_keeps_to_120_columns() {
    let mut long = Vec::new();
    for path in pages().iter().filter(|path| !GENERATED.iter().any(|page| path.ends_with(page))) {
        let mut fenced = false;
        for (n, line) in read(path).lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            let is_prose = !fenced && !line.starts_with('|') && !line.starts_with("    ");
            if is_prose && line.chars().count() > 120 {
                long.push(format!("{}:{}", path.display(), n + 1));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn the_glossary_has_at_most_60_entries() {
    let page = page("glossary.md");
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let words: Vec<&str> = rows.filter_map(|row| row.split('|').nth(1)).map(str::trim).collect();
    assert!((1..=60).contains(&words.len()), "{} entries", words.len());
    let mut sorted = words.clone();
    sorted.sort_by_key(|word| word.to_lowercase());
    sorted.dedup();
    assert_eq!(words, sorted, "in the order of the alphabet, each word once");
}

#[test]
fn the_invariants_are_numbered_without_a_gap() {
    let page = page("invariants.md");
    let first = |line: &str| line.strip_prefix("| ")?.split(' ').next()?.parse::<usize>().ok();
    let mut numbers: Vec<usize> = page.lines().filter_map(first).collect();
    // Numbers never change, so later ones stand among earlier ones of their section.
    numbers.sort_unstable();
    assert!(numbers.len() >= 46, "{}", numbers.len());
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
}

#[test]
fn every_decision_has_a_date_and_a_status_and_is_listed() {
    let list = page("decisions/README.md");
    let mut wrong = Vec::new();
    for path in files(&root().join("docs/decisions"), "md") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some((number, _)) = name.split_once('-') else { continue };
        let text = read(&path);
        let is_dated = text.lines().nth(2).is_some_and(|line| {
            line.strip_prefix("Date: 20").is_some_and(|rest| rest.contains(" · Status: "))
        });
        let is_titled = text.starts_with(&format!("# {}. ", number.trim_start_matches('0')));
        if !is_dated || !is_titled || !list.contains(&format!("({name})")) {
            wrong.push(name.to_owned());
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What a unit starts are commands and flags that exist.
#[test]
fn commands_of_units_exist() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib");
    let mut checked = 0;
    for unit in std::fs::read_dir(units).unwrap().map(|entry| entry.unwrap().path()) {
        let text = read(&unit);
        let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let arguments = start.strip_prefix("/usr/local/bin/rcfarm ").unwrap().split_whitespace();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rcfarm"));
        // Flags before --help are parsed.
        let output = command.args(arguments).arg("--help").output().unwrap();
        assert!(output.status.success(), "{start}: {output:?}");
        checked += 1;
    }
    assert!(checked >= 2);
}
