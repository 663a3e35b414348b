//! The documentation against the program: links lead somewhere, and the list of commands is the program's own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcfarm_api::audit::EventType;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README.md and everything below docs/.
fn pages() -> Vec<PathBuf> {
    let (mut pages, mut directories) = (vec![root().join("README.md")], vec![root().join("docs")]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// The targets of a page's links. Code is no link.
fn links(text: &str) -> Vec<String> {
    let prose = text.lines().filter(|line| !line.starts_with("    "));
    let pieces = prose.flat_map(|line| line.split("](").skip(1));
    pieces.filter_map(|piece| Some(piece.split_once(')')?.0.to_owned())).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
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
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let has_anchor =
                || anchors(&std::fs::read_to_string(&target).unwrap()).contains(anchor);
            if !target.exists() || (!anchor.is_empty() && !has_anchor()) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// What `--help` of a command says.
fn help(command: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_rcfarm"));
    let output = program.args(command).arg("--help").env_clear().output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Names and descriptions in a help text's list of commands; a long description goes on in lines further in.
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

/// The table of commands, as the program describes them.
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
    let path = root().join("docs/cli.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("docs/cli.md has a list of commands");
    let (written, after) = rest.split_once(END).expect("docs/cli.md says where the list ends");
    let table = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, [before, BEGIN, &table, END, after].concat()).unwrap();
        return;
    }
    assert_eq!(written, table, "docs/cli.md: UPDATE_DOCS=1 cargo test --test it documents");
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

#[test]
fn the_page_of_keys_has_every_event() {
    let page = page("keys.md");
    // A row may begin with one in full and go on with the last words of others.
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
    let source = std::fs::read_to_string(root().join("src/store/key.rs")).unwrap();
    let paths = source.lines().filter_map(|line| {
        let line = line.trim();
        let path = ["Prefix::fixed(\"", "Key::of(format!(\"", "Prefix(format!(\"", "Key::of(\""]
            .iter()
            .find_map(|begin| line.strip_prefix(begin))?;
        Some(path.split(['{', '"']).next().unwrap().to_owned())
    });
    let (page, paths) = (page("keys.md"), paths.collect::<BTreeSet<String>>());
    assert!(paths.len() > 20, "the paths are no longer found where they stand: {paths:?}");
    let missing: Vec<&String> =
        paths.iter().filter(|path| !page.contains(&format!("`{path}"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Every file below `directory`.
fn sources(directory: PathBuf) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(path) } else { vec![path] }).collect()
}

/// The messages of log lines with `alert = true`: the last text of each such call, without the breaks of its lines.
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
fn the_page_of_operating_has_every_alert() {
    let page = page("operating.md");
    let all: BTreeSet<String> = sources(root().join("src"))
        .iter()
        .flat_map(|path| alerts(&std::fs::read_to_string(path).unwrap()))
        .collect();
    assert!(all.len() > 10, "the alerts are no longer found where they stand: {all:?}");
    // The page leaves out the end of a long one.
    let begin = |text: &str| text.chars().take(60).collect::<String>();
    let missing: Vec<&String> =
        all.iter().filter(|text| !page.contains(&format!("`{}", begin(text)))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
