//! Checks that each measured fact of Volcano (`volcano.md` §5.4) and each table of Kubeflow (`kubeflow.md` §1 and §2)
//! has a test. The test's name or doc comment contains the number of the fact (`f_j7_…`) or the section of the table.

use std::collections::BTreeSet;
use std::path::Path;

/// Names of all test functions, with their doc comments.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for dir in ["src/job", "src/batch", "src/flow", "crates/api/src"] {
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut names);
    }
    names
}

fn read(dir: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, names);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let parts: Vec<&str> = text.split("#[test]").collect();
        for pair in parts.windows(2) {
            let name = pair[1].split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
            let Some((name, _)) = name else { continue };
            // The doc comment.
            let above = pair[0].trim_end().rsplit_once("\n\n").map_or("", |(_, above)| above);
            let about: String =
                above.lines().filter(|line| line.trim().starts_with("///")).collect();
            names.insert(format!("{name} {about}"));
        }
    }
}

#[test]
fn every_fact_has_its_test() {
    let tests = tests();
    let facts = [("j", 26), ("a", 9), ("p", 7), ("f", 6)];
    let wanted =
        facts.iter().flat_map(|(letter, last)| (1..=*last).map(move |n| format!("f_{letter}{n}_")));
    let missing: Vec<String> =
        wanted.filter(|fact| !tests.iter().any(|test| test.contains(fact.as_str()))).collect();
    assert_eq!(missing, Vec::<String>::new(), "of {} tests", tests.len());
}

/// Sections with tables that apply. Expectations and the outer loop have no counterpart
/// (`docs/reference/differences-kubeflow.md`).
const TABLES: [&str; 11] =
    ["§1.3", "§1.4", "§1.5", "§1.6", "§1.7", "§1.8", "§1.10", "§1.12", "§2.1", "§2.2", "§2.3"];

#[test]
fn every_measured_table_has_its_test() {
    let tests = tests();
    let tells = |test: &String, table: &str| {
        let told = test.split("`kubeflow.md`").nth(1).unwrap_or_default();
        told.match_indices(table).any(|(at, _)| {
            !told[at + table.len()..].starts_with(|next: char| next.is_ascii_digit())
        })
    };
    let missing = TABLES.iter().filter(|table| !tests.iter().any(|test| tells(test, table)));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new(), "{tests:#?}");
}
