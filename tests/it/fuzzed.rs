//! Plays the seeds of the fuzz targets that run a whole farm or agent, and changes of them that the fuzzer would try
//! first. `.ci/fuzz` goes on from them.

use std::path::PathBuf;

use proptest::prelude::*;
use proptest::sample::Index;

#[path = "../../fuzz/src/agent.rs"]
mod agent;
#[path = "../../fuzz/src/reconcile.rs"]
mod reconcile;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/fuzz").join(target);
    let entries = std::fs::read_dir(directory).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn fuzzed_records_harm_no_others() {
    for seed in seeds("reconcile") {
        reconcile::run(&seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn fuzzed_manifests_harm_no_other_pod() {
    for seed in seeds("agent") {
        agent::run(&seed).await;
    }
}

/// One change of an input.
#[derive(Debug, Clone)]
enum Edit {
    /// Some bytes are left out.
    Cut(Index, usize),
    /// Some bytes come twice.
    Repeat(Index, usize),
    /// A number becomes another one.
    Number(Index, &'static str),
    /// A part goes to another key.
    Move(Index, u8),
    /// A part of another seed is added.
    Splice(Index, Index),
}

const NUMBERS: [&str; 8] =
    ["-1", "0", "1e400", "4294967295", "18446744073709551615", "0.5", "null", "\"\""];

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    prop_oneof![
        (at(), 1..40_usize).prop_map(|(at, length)| Edit::Cut(at, length)),
        (at(), 1..400_usize).prop_map(|(at, length)| Edit::Repeat(at, length)),
        (at(), prop::sample::select(&NUMBERS[..])).prop_map(|(at, text)| Edit::Number(at, text)),
        (at(), b'0'..b'S').prop_map(|(at, key)| Edit::Move(at, key)),
        (at(), at()).prop_map(|(seed, part)| Edit::Splice(seed, part)),
    ]
}

fn changed(seeds: &[Vec<u8>], of: Index, edits: &[Edit]) -> Vec<u8> {
    let mut input = of.get(seeds).clone();
    for edit in edits {
        if input.len() < 2 {
            break;
        }
        let end = |at: usize, length: usize, all: usize| (at + length).min(all);
        match edit {
            Edit::Cut(at, length) => {
                let at = at.index(input.len());
                input.drain(at..end(at, *length, input.len()));
            }
            Edit::Repeat(at, length) => {
                let at = at.index(input.len());
                let again = input[at..end(at, *length, input.len())].to_vec();
                input.splice(at..at, again);
            }
            Edit::Number(at, text) => {
                let from = at.index(input.len());
                let digit = |at: &usize| input[*at].is_ascii_digit();
                let Some(first) = (from..input.len()).find(digit) else { continue };
                let last = (first..input.len()).find(|at| !digit(at)).unwrap_or(input.len());
                input.splice(first..last, text.bytes());
            }
            Edit::Move(at, key) => {
                let starts = input.iter().enumerate().filter(|(_, byte)| **byte == 0);
                let starts: Vec<usize> = std::iter::once(0)
                    .chain(starts.map(|(at, _)| at + 1))
                    .filter(|at| *at < input.len())
                    .collect();
                input[*at.get(&starts)] = *key;
            }
            Edit::Splice(seed, part) => {
                let parts: Vec<&[u8]> = seed.get(seeds).split(|byte| *byte == 0).collect();
                input.push(0);
                input.extend_from_slice(parts[part.index(parts.len())]);
            }
        }
    }
    input
}

/// Each case runs a farm, so there are few. `FUZZED_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("FUZZED_CASES").ok().map_or(12, |count| count.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn changed_seeds_harm_no_other_record(
        of in any::<Index>(),
        edits in prop::collection::vec(edit(), 1..6),
    ) {
        let input = changed(&seeds("reconcile"), of, &edits);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(reconcile::run(&input));
    }
}
