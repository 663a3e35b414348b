//! The version that the program says of itself. A build script, because a constant cannot be joined from two variables.

use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=RCFARM_BUILD");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let build = env::var("RCFARM_BUILD").unwrap_or_default();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    if build.len() > 40 || !build.chars().all(is_part) {
        println!("cargo:error=RCFARM_BUILD: at most 40 letters, digits, dots and hyphens");
        std::process::exit(1);
    }
    let version = if build.is_empty() { version } else { format!("{version}+{build}") };
    println!("cargo:rustc-env=RCFARM_VERSION={version}");
}
