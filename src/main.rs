//! `rcfarm`: see [`rcfarm::cli`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    rcfarm::cli::main()
}
