//! Command lines that pages, units, the image and the demo show: each is one that this program takes.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};

use super::Cli;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Pages in the root and below docs/.
fn pages() -> Vec<PathBuf> {
    let mut open = vec![root().to_owned()];
    let mut found = Vec::new();
    while let Some(directory) = open.pop() {
        for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            let is_docs = path.starts_with(root().join("docs"));
            if path.is_dir() && is_docs {
                open.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 50, "the pages are no longer found where they stand: {found:?}");
    found
}

/// Words of a shell's command, up to a comment, a pipe, or the end of the command.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        let last = words.last_mut().unwrap();
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if last.is_empty() => break,
            (None, '|' | ')' | ';' | '&' | '>') => break,
            (None, ' ') => words.push(String::new()),
            (_, c) => last.push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a line begins with a command of this program. Its output and the name of its crate begin in the same way.
fn is_command(line: &str) -> bool {
    let verb = line.strip_prefix("rcfarm ").and_then(|rest| rest.split(' ').next());
    verb.is_some_and(|verb| !verb.ends_with(':') && !verb.starts_with('('))
}

/// Commands of this program in the blocks of code of a page, as words. In a block with prompts only lines with a prompt
/// are commands.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut blocks = vec![Vec::new()];
    let mut fenced = false;
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        match line.strip_prefix("    ").or(Some(line).filter(|_| fenced && !is_fence)) {
            Some(code) => blocks.last_mut().unwrap().push(code.trim()),
            None if line.is_empty() && !fenced => {}
            None => blocks.push(Vec::new()),
        }
    }
    let of_block = |block: Vec<&str>| -> Vec<Vec<String>> {
        let has_prompts = block.iter().any(|line| line.starts_with("$ "));
        let lines = block.iter().filter(|line| line.starts_with("$ ") || !has_prompts);
        lines
            .filter_map(|line| {
                let line = line.trim_start_matches("$ ");
                let line = ["ID=$(", "source <("]
                    .iter()
                    .find_map(|before| line.strip_prefix(before))
                    .unwrap_or(line);
                is_command(line).then(|| words(line))
            })
            .collect()
    };
    blocks.into_iter().flat_map(of_block).collect()
}

/// Text between backticks that begins with the program's name.
fn quoted(text: &str) -> Vec<Vec<String>> {
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("    ")).collect();
    let paragraphs = text.join("\n").replace("```", "");
    let of_paragraph = |paragraph: &str| -> Vec<Vec<String>> {
        let quotes = paragraph.split('`').skip(1).step_by(2);
        let quotes = quotes.map(|quote| quote.split_whitespace().collect::<Vec<_>>().join(" "));
        quotes.filter(|quote| is_command(quote)).map(|quote| words(&quote)).collect()
    };
    paragraphs.split("\n\n").flat_map(of_paragraph).collect()
}

/// What is wrong with a command that may be shortened: its verbs and flags must exist.
fn unknown(words: &[String]) -> Option<String> {
    let mut cli = Cli::command();
    cli.build();
    let mut command = &cli;
    for word in words.iter().skip(1) {
        if word == "--" || word.contains('…') {
            return None;
        }
        if let Some(flag) = word.strip_prefix("--") {
            let flag = flag.split(['=', '|', '[', '/']).next().unwrap_or_default();
            let has = |command: &clap::Command| {
                command.get_arguments().any(|it| it.get_long() == Some(flag))
            };
            if !has(command) && !has(&cli) {
                return Some(format!("no --{flag} in {words:?}"));
            }
        } else if command.has_subcommands() && !word.starts_with('-') {
            // `rc scale|delete`, and placeholders such as `NOUN`.
            let verbs: Vec<&str> = word.split('|').collect();
            if verbs[0].chars().all(|c| c.is_ascii_uppercase()) {
                return None;
            }
            let verb = verbs.iter().find(|verb| command.find_subcommand(verb).is_none());
            if let Some(verb) = verb {
                return Some(format!("no {verb} in {words:?}"));
            }
            command = command.find_subcommand(verbs[0]).unwrap();
        }
    }
    None
}

#[test]
fn commands_in_blocks_of_pages_are_complete() {
    let (mut count, mut wrong) = (0, Vec::new());
    for path in pages() {
        for words in commands(&std::fs::read_to_string(&path).unwrap()) {
            count += 1;
            if let Err(error) = Cli::try_parse_from(&words) {
                let why = error.to_string();
                let why = why.lines().next().unwrap_or_default();
                wrong.push(format!("{}: {words:?}: {why}", path.display()));
            }
        }
    }
    assert!(count > 60, "the commands are no longer found: {count}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn commands_that_pages_quote_have_verbs_and_flags_that_exist() {
    let (mut count, mut wrong) = (0, Vec::new());
    for path in pages() {
        for words in quoted(&std::fs::read_to_string(&path).unwrap()) {
            count += 1;
            wrong.extend(unknown(&words).map(|why| format!("{}: {why}", path.display())));
        }
    }
    assert!(count > 60, "the commands are no longer found: {count}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A list of the image's or the demo's in one line, as `[farm, run, --name, "farm-a"]`.
fn list(text: &str) -> Vec<String> {
    let text = text.trim().trim_start_matches('[').trim_end_matches(']');
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for c in text.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => words.push(String::new()),
            ' ' if !is_quoted => {}
            c => words.last_mut().unwrap().push(c),
        }
    }
    words
}

#[test]
fn image_and_demo_run_commands_that_are_complete() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let dockerfile = read("Dockerfile");
    let entry = dockerfile.lines().find_map(|line| line.strip_prefix("ENTRYPOINT ")).unwrap();
    assert_eq!(list(entry), ["tini", "--", "rcfarm"]);
    let compose = read("docker-compose.yml");
    let services = compose.lines().filter_map(|line| line.trim().strip_prefix("command: ["));
    let services: Vec<Vec<String>> = services.map(list).collect();
    let roles = services.iter().map(|words| words[0].as_str());
    let agents = roles.clone().filter(|role| *role == "node").count();
    let farms = roles.filter(|role| *role == "farm").count();
    assert!(agents >= 1 && farms >= 2, "the demo runs pods, and a farm takes over: {services:?}");
    let default = dockerfile.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    for words in services.into_iter().chain([list(default)]) {
        let words = [vec!["rcfarm".to_owned()], words].concat();
        let error = Cli::try_parse_from(&words).err();
        let is_wrong = error.filter(|e| e.kind() != clap::error::ErrorKind::DisplayHelp);
        assert!(is_wrong.is_none(), "{words:?}: {}", is_wrong.unwrap());
    }
    // In the comment: commands to be typed.
    let typed = compose.lines().filter_map(|line| {
        let typed = line.strip_prefix('#').filter(|line| line.contains("docker compose exec"))?;
        typed.split_once(" rcfarm ")
    });
    let typed: Vec<Vec<String>> =
        typed.map(|(_, rest)| words(&format!("rcfarm {}", rest.trim()))).collect();
    assert!(typed.len() >= 3, "{typed:?}");
    for words in typed {
        let parsed = Cli::try_parse_from(&words);
        assert!(parsed.is_ok(), "{words:?}: {}", parsed.err().unwrap());
    }
}
