//! The layering rules of `src/lib.rs`, checked on the sources.

use std::collections::BTreeSet;
use std::path::Path;

const LONGEST_FILE: usize = 650;

/// File names whose code is pure, wherever they are; everything under the directories is, too.
const PURE_FILES: &[&str] = &["plan.rs", "machine.rs", "spec.rs", "status.rs"];
const PURE_DIRS: &[&str] = &["labels", "topology", "capacity"];

/// I/O, clocks, chance and hash order. A moment that is handed in (`tokio::time::Instant`) is none of them; to read
/// the clock (`now`, `elapsed`) is.
const IMPURE: &[&str] = &[
    "tokio",
    "reqwest",
    "consulrs",
    "SystemTime",
    "SystemClock",
    "HashMap",
    "HashSet",
    "rand",
    "thread_rng",
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
];

const FORBIDDEN_MODULES: &[&str] = &[
    "util", "utils", "common", "helper", "helpers", "manager", "handler", "types", "core",
    "service",
];

/// How the keys of the layout begin.
const LAYOUT: &[&str] = &[
    "replication_controllers/",
    "labels/",
    "intent/",
    "pods/",
    "reality/",
    "status/",
    "health/",
    "lock/",
    "rolls/",
    "audit_logs/",
    "rcfarm/",
];

/// Who may name the adapters: the commands choose one, the simulated world builds one, and each names itself.
const ADAPTERS: &[&str] = &["consul", "embedded"];
const MAY_NAME_ADAPTERS: &[&str] = &["cli", "sim"];

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Mark(char),
}

/// One file of `src/`: its path there, its length, and its tokens with their lines, `#[cfg(test)]` parts left out.
struct Source {
    path: String,
    lines: usize,
    tokens: Vec<(Token, usize)>,
}

impl Source {
    fn parse(path: &str, text: &str) -> Source {
        let tokens = without_tests(&tokens(text));
        Source { path: path.to_owned(), lines: text.lines().count(), tokens }
    }

    /// The directory or file right below `src/`.
    fn slice(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn is_pure(&self) -> bool {
        let file = self.path.rsplit('/').next().unwrap_or_default();
        PURE_FILES.contains(&file) || self.path.split('/').any(|dir| PURE_DIRS.contains(&dir))
    }

    fn is_word(&self, at: usize, word: &str) -> bool {
        matches!(self.tokens.get(at), Some((Token::Word(w), _)) if w == word)
    }

    fn is_mark(&self, at: usize, mark: char) -> bool {
        self.tokens.get(at).is_some_and(|(t, _)| *t == Token::Mark(mark))
    }

    /// Whether a path (`a::b`) stands at this token.
    fn is_path(&self, at: usize, path: &str) -> bool {
        path.split("::").enumerate().all(|(n, word)| {
            let at = at + 3 * n;
            let joined = n == 0 || (self.is_mark(at - 2, ':') && self.is_mark(at - 1, ':'));
            joined && self.is_word(at, word)
        })
    }

    fn finding(&self, at: usize, what: &str) -> String {
        format!("src/{}:{}: {what}", self.path, self.tokens[at].1)
    }

    /// Places where the words are named as modules: in a path, or in a list of a `use`.
    fn names_module<'a>(&'a self, modules: &'a [&str]) -> impl Iterator<Item = usize> + 'a {
        let mut in_use = false;
        let named = self.tokens.iter().enumerate().map(move |(at, (token, _))| {
            match token {
                Token::Word(word) if word == "use" => in_use = true,
                Token::Mark(';') => in_use = false,
                Token::Word(word) if modules.contains(&word.as_str()) => {
                    let before = at >= 2 && self.is_mark(at - 1, ':') && self.is_mark(at - 2, ':');
                    let after = self.is_mark(at + 1, ':') && self.is_mark(at + 2, ':');
                    return (in_use || before || after).then_some(at);
                }
                _ => {}
            }
            None
        });
        named.flatten()
    }
}

fn impure_words(source: &Source) -> Vec<String> {
    if !source.is_pure() {
        return Vec::new();
    }
    let at = 0..source.tokens.len();
    at.filter_map(|at| {
        let call = |name| source.is_word(at + 1, name) && source.is_mark(at + 2, '(');
        let now = source.is_mark(at, ':') && call("now");
        let elapsed = source.is_mark(at, '.') && call("elapsed");
        let word = IMPURE.iter().find(|path| source.is_path(at, path)).copied();
        let word = word.filter(|_| !source.is_path(at, "tokio::time::Instant"));
        let word = word.or((now || elapsed).then_some("a clock"))?;
        Some(source.finding(at, &format!("pure code names {word}")))
    })
    .collect()
}

fn layout_strings(source: &Source) -> Vec<String> {
    if source.path == "store/key.rs" {
        return Vec::new();
    }
    let tokens = source.tokens.iter().enumerate();
    tokens
        .filter_map(|(at, (token, _))| {
            let Token::Text(text) = token else { return None };
            // Consul's own API has paths that begin so, too.
            let adapter = ADAPTERS.contains(&source.slice());
            let key = LAYOUT
                .iter()
                .find(|start| text.starts_with(**start) && text.len() > start.len())?;
            (!adapter).then(|| {
                source.finding(at, &format!("a key under {key} is spelled outside store/key.rs"))
            })
        })
        .collect()
}

fn adapters_named(source: &Source) -> Vec<String> {
    let own = source.slice();
    if MAY_NAME_ADAPTERS.contains(&own) || own == "main" {
        return Vec::new();
    }
    let others: Vec<&str> = ADAPTERS.iter().copied().filter(|a| *a != own).collect();
    source
        .names_module(&others)
        .map(|at| source.finding(at, "an adapter is named outside the commands"))
        .collect()
}

/// `slices` are the directories that have a controller.
fn foreign_controllers(source: &Source, slices: &BTreeSet<String>) -> Vec<String> {
    if ["farm", "sim"].contains(&source.slice()) {
        return Vec::new();
    }
    let others: Vec<&str> =
        slices.iter().map(String::as_str).filter(|s| *s != source.slice()).collect();
    source
        .names_module(&others)
        .filter(|at| {
            // `rc::controller`, or `controller` somewhere in the group of `rc::{…}`.
            let group = at + 3..source.tokens.len();
            match source.is_mark(at + 3, '{') {
                true => group
                    .take_while(|at| !source.is_mark(*at, ';'))
                    .any(|at| source.is_word(at, "controller")),
                false => source.is_word(at + 3, "controller"),
            }
        })
        .map(|at| source.finding(at, "another slice's controller is named"))
        .collect()
}

fn unbiased_selects(source: &Source) -> Vec<String> {
    let at = 0..source.tokens.len();
    at.filter(|at| source.is_word(*at, "select") && source.is_mark(at + 1, '!'))
        .filter(|at| !(source.is_word(at + 3, "biased") && source.is_mark(at + 4, ';')))
        .map(|at| source.finding(at, "select! without biased;"))
        .collect()
}

fn forbidden_modules(source: &Source) -> Vec<String> {
    let stem = source.path.strip_suffix(".rs").unwrap_or(&source.path);
    let by_path = stem.split('/').find(|part| FORBIDDEN_MODULES.contains(part));
    let by_path = by_path.map(|part| format!("src/{}: a module called {part}", source.path));
    let inline = (0..source.tokens.len()).filter(|at| source.is_word(*at, "mod"));
    let inline = inline.filter_map(|at| match source.tokens.get(at + 1) {
        Some((Token::Word(name), _)) if FORBIDDEN_MODULES.contains(&name.as_str()) => {
            Some(source.finding(at, &format!("a module called {name}")))
        }
        _ => None,
    });
    by_path.into_iter().chain(inline).collect()
}

fn long_files(source: &Source) -> Vec<String> {
    let Source { path, lines, .. } = source;
    (*lines > LONGEST_FILE)
        .then(|| format!("src/{path}: {lines} lines, at most {LONGEST_FILE}"))
        .into_iter()
        .collect()
}

fn findings(sources: &[Source]) -> Vec<String> {
    let controllers = sources.iter().filter(|s| s.path.contains("/controller"));
    let slices: BTreeSet<String> = controllers.map(|s| s.slice().to_owned()).collect();
    let rules = [
        impure_words,
        layout_strings,
        adapters_named,
        unbiased_selects,
        forbidden_modules,
        long_files,
    ];
    sources
        .iter()
        .flat_map(|s| {
            let simple = rules.iter().flat_map(|rule| rule(s));
            simple.chain(foreign_controllers(s, &slices)).collect::<Vec<_>>()
        })
        .collect()
}

fn tokens(text: &str) -> Vec<(Token, usize)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let line = 1 + text[..text.len() - rest.len()].matches('\n').count();
        let (token, length) = next_token(rest, c);
        found.extend(token.map(|token| (token, line)));
        rest = &rest[length..];
    }
    found
}

/// The token at the start of `rest` (none for space and comments), and its length.
fn next_token(rest: &str, first: char) -> (Option<Token>, usize) {
    let word_end = || rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    if rest.starts_with("//") {
        return (None, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (None, rest.find("*/").map_or(rest.len(), |end| end + 2));
    }
    let prefix = ["r", "br", "b", "c", ""].iter().find(|p| {
        let after = rest.strip_prefix(**p).unwrap_or_default();
        after.starts_with('"')
            || (p.ends_with('r')
                && after.trim_start_matches('#').starts_with('"')
                && after.starts_with('#'))
    });
    if let Some(prefix) = prefix {
        return text_token(rest, prefix);
    }
    if first == '\'' {
        // A lifetime unless a quote closes it: 'x' or '\n'.
        let escaped = rest[1..].starts_with('\\');
        let inner = rest[1..].chars().nth(usize::from(escaped)).map_or(0, char::len_utf8)
            + usize::from(escaped);
        let closed = rest[1 + inner..].find('\'').filter(|gap| *gap == 0 || escaped);
        return closed.map_or((Some(Token::Mark('\'')), 1), |gap| (None, 1 + inner + gap + 1));
    }
    if first.is_alphanumeric() || first == '_' {
        return (Some(Token::Word(rest[..word_end()].to_owned())), word_end());
    }
    ((!first.is_whitespace()).then_some(Token::Mark(first)), first.len_utf8())
}

fn text_token(rest: &str, prefix: &str) -> (Option<Token>, usize) {
    let after = &rest[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    let start = prefix.len() + hashes + 1;
    let close = format!("\"{}", "#".repeat(hashes));
    let raw = prefix.ends_with('r');
    let mut end = start;
    while end < rest.len() && !rest[end..].starts_with(&close) {
        let escape = !raw && rest[end..].starts_with('\\');
        end += usize::from(escape);
        end += rest[end..].chars().next().map_or(1, char::len_utf8);
    }
    let end = end.min(rest.len());
    (Some(Token::Text(rest[start..end].to_owned())), (end + close.len()).min(rest.len()))
}

/// Leaves out every item under `#[cfg(test)]`.
fn without_tests(tokens: &[(Token, usize)]) -> Vec<(Token, usize)> {
    let mark = |c| Token::Mark(c);
    let word = |w: &str| Token::Word(w.to_owned());
    let cfg = [mark('#'), mark('['), word("cfg"), mark('('), word("test"), mark(')'), mark(']')];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let here = tokens[at..].iter().map(|(t, _)| t);
        if !here.take(cfg.len()).eq(cfg.iter()) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += cfg.len();
        let mut depth = 0;
        while at < tokens.len() {
            depth += i32::from(tokens[at].0 == mark('{')) - i32::from(tokens[at].0 == mark('}'));
            let ended = tokens[at].0 == mark('}') || tokens[at].0 == mark(';');
            at += 1;
            if depth == 0 && ended {
                break;
            }
        }
    }
    kept
}

fn read_sources(dir: &Path, below: &str, into: &mut Vec<Source>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = format!("{below}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            read_sources(&path, &format!("{name}/"), into);
        } else if name.ends_with(".rs") {
            into.push(Source::parse(&name, &std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn the_sources_keep_to_the_layers() {
    let mut sources = Vec::new();
    read_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut sources);
    assert!(sources.iter().any(|s| s.path == "store/key.rs"), "the sources were not found");
    let findings = findings(&sources);
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[test]
fn each_rule_finds_its_breach() {
    let found = |path: &str, text: &str| {
        let controller = Source::parse("rc/controller.rs", "");
        findings(&[controller, Source::parse(path, text)]).len()
    };
    for (path, breach) in [
        ("rc/plan.rs", "use tokio::time::sleep;"),
        ("job/machine.rs", "let m: std::collections::HashMap<u8, u8>;"),
        ("labels/set.rs", "let t = jiff::Timestamp::now();"),
        ("rc/plan.rs", "fn f(since: Instant) { since.elapsed(); }"),
        ("rc/plan.rs", "use tokio::time::Instant; fn f() { Instant::now(); }"),
        ("labels/set.rs", "std::fs::read(p)"),
        ("rc/status.rs", "use rand::Rng;"),
        ("rc/controller.rs", r#"get("intent/n1/web")"#),
        ("farm/claims.rs", r##"format!(r#"lock/replication_controllers/{id}"#)"##),
        ("farm/claims.rs", "use crate::consul::Client;"),
        ("rc/controller.rs", "fn f(e: &crate::embedded::Embedded) {}"),
        ("rc/controller.rs", "use crate::{embedded, store};"),
        ("consul/mod.rs", "use crate::embedded::Embedded;"),
        ("job/controller.rs", "use crate::rc::controller::Rc;"),
        ("job/controller.rs", "use crate::rc::{plan, controller::Rc};"),
        ("farm/mod.rs", "tokio::select! { x = y => {} }"),
        ("farm/util.rs", ""),
        ("farm/mod.rs", "mod helpers { }"),
        ("farm/mod.rs", &"\n".repeat(651)),
    ] {
        assert_eq!(found(path, breach), 1, "{path}: {breach}");
    }
}

#[test]
fn what_only_looks_like_a_breach_is_none() {
    let found = |path: &str, text: &str| {
        let controller = Source::parse("rc/controller.rs", "");
        findings(&[controller, Source::parse(path, text)])
    };
    for (path, text) in [
        (
            "rc/plan.rs",
            "// tokio::spawn\n/* rand */ fn plan(now: Timestamp) { let s = \"HashMap\"; }",
        ),
        ("rc/plan.rs", "#[cfg(test)]\nmod tests { use tokio::time; fn f() { g(\"intent/a\"); } }"),
        ("rc/plan.rs", "fn f<'a>(c: &'a str) { let q = '\"'; let e = '\\''; let n = '\\u{1F}'; }"),
        ("farm/plan.rs", "use tokio::time::Instant;\nfn plan(now: Instant) { now + 1; }"),
        ("store/key.rs", r#"format!("intent/{node}/{pod}")"#),
        ("consul/read.rs", r#"get("health/service/web")"#),
        ("farm/mod.rs", r#"let agent = "rcfarm/"; warn!("no labels/ here");"#),
        ("farm/mod.rs", "let consul = x; consul.get(); fn f(embedded: bool) {}"),
        ("cli/mod.rs", "use crate::consul::Client;"),
        ("farm/kinds.rs", "use crate::rc::controller::Rc;"),
        ("job/plan.rs", "use crate::rc::{spec, status}; fn f() { controller() }"),
        ("farm/mod.rs", "tokio::select! { biased; x = y => {} }"),
        ("farm/mod.rs", &"\n".repeat(650)),
    ] {
        assert_eq!(found(path, text), [""; 0], "{path}: {text}");
    }
}
