//! Checks the Dockerfile without Docker: `.dockerignore` admits what it copies, and cargo can load that package.

use std::path::Path;
use std::process::Command;

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Sources of each `COPY` that refers to no other stage.
fn copied() -> Vec<String> {
    let dockerfile = read("Dockerfile");
    let copies = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY "));
    let own = copies.filter(|rest| !rest.starts_with("--from="));
    own.flat_map(|rest| {
        let words: Vec<&str> = rest.split_whitespace().collect();
        words[..words.len() - 1].iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn the_dockerfile_copies_only_what_the_context_has() {
    let ignore = read(".dockerignore");
    let allowed: Vec<&str> = ignore.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for source in copied() {
        assert!(allowed.contains(&source.as_str()), "{source} is not in {allowed:?}");
    }
}

#[test]
fn what_the_dockerfile_copies_is_a_whole_package() {
    let context = tempfile::tempdir().unwrap();
    for source in copied() {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(&source);
        let done = Command::new("cp").arg("-r").arg(from).arg(context.path()).status().unwrap();
        assert!(done.success(), "{source}");
    }
    // `cargo check` loads the whole package before it looks for the program; `cargo metadata` ignores missing examples.
    let cargo = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--locked", "--bin", "no-such-program"])
        .current_dir(context.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&cargo.stderr);
    assert!(said.contains("no bin target named `no-such-program`"), "{said}");
}
