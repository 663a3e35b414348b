//! Checks the image and the demo without Docker: `.dockerignore` admits what is copied, cargo can load that package, and
//! the demo is on the Consul that is tested. `src/cli/documented.rs` checks what both run.

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

#[test]
fn the_image_has_a_stripped_release_build() {
    let dockerfile = read("Dockerfile");
    assert!(dockerfile.contains("cargo build --release --locked --bin rcfarm"), "{dockerfile}");
    let manifest = read("Cargo.toml");
    let (_, release) = manifest.split_once("\n[profile.release]\n").unwrap();
    let release = release.split("\n[").next().unwrap();
    assert!(release.lines().any(|line| line == "strip = \"symbols\""), "{release}");
    // An agent runs as this user, with its default directory.
    assert!(dockerfile.lines().any(|line| line == "USER rcfarm"));
    let directory = dockerfile.lines().find(|line| line.contains("/var/lib/rcfarm")).unwrap();
    assert!(directory.contains("install --directory --owner=rcfarm"), "{directory}");
}

#[test]
fn the_demo_is_on_the_consul_that_is_tested() {
    let compose: serde_json::Value = serde_saphyr::from_str(&read("docker-compose.yml")).unwrap();
    let image = compose["x-consul"]["image"].as_str().unwrap();
    let version = image.strip_prefix("consul:").unwrap();
    let fetched = read(".ci/get-consul");
    assert!(
        fetched.contains(&format!("package of Debian's bullseye suite ({version})")),
        "{version}"
    );
    let fact = read("docs/contribute/testing.md");
    assert!(fact.contains(&format!("Every figure in these pages is of {version}.")), "{version}");
    for (name, service) in compose["services"].as_object().unwrap() {
        // Each service has the base of its role, a command, and no port open to other machines.
        assert!(service["command"].is_array(), "{name}: {service}");
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port}");
        }
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let volume = volume.as_str().unwrap().split(':').next().unwrap();
            assert!(compose["volumes"].get(volume).is_some(), "{name}: {volume}");
        }
    }
}
