//! One contract for the emulator, its HTTP server and a real Consul.
//!
//! Wire cases send HTTP to the emulator's server and to a real Consul. Port cases use [`rcfarm_store`] and also run on
//! the emulator itself. Ids are those of `docs/reference/consul-semantics.md`: `K` keys, `L` locks, `T` transactions,
//! `S` sessions, `B` blocking reads, `C` catalog. Ids of port cases start with `p`.
//!
//! Each case is a test named by table, backend, id and statement: `wire::consul::K01_a_new_keys_…`. Cases share a
//! server and run concurrently, each under a key prefix of its own.

#![expect(clippy::disallowed_methods, reason = "cases measure how long calls take")]

mod port;
mod restore;
mod servers;
mod wire;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::LazyLock;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

/// Server that a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    /// Shared by all cases.
    Shared,
    /// New and empty.
    Fresh,
    /// A real Consul only: the emulator refuses the feature.
    Real,
}

/// Time limit of one case; the longest takes 25 s.
const LIMIT: Duration = Duration::from_secs(100);

/// Concurrent cases under `cargo test`. Most of them wait for timers of Consul.
const AT_ONCE: usize = 64;

/// Bytes of the statement in a test's name.
const STATEMENT: usize = 40;

type Run<C> = fn(C) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// One fact about Consul. `C`: client of the backend.
struct Case<C: 'static> {
    id: &'static str,
    says: &'static str,
    on: On,
    run: Run<C>,
}

/// Table of cases: `K01 Shared "statement" => function;`
macro_rules! cases {
    ($($id:ident $on:ident $says:literal => $run:path;)*) => {
        &[$($crate::Case {
            id: stringify!($id),
            says: $says,
            on: $crate::On::$on,
            run: |on| Box::pin($run(on)),
        }),*]
    };
}
use cases;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

/// Test of a case on a backend; `target` connects to it.
fn trial<C: Send + 'static, F>(
    table: &str,
    backend: &str,
    case: &'static Case<C>,
    target: impl FnOnce(On, &'static str) -> F + Send + 'static,
) -> Trial
where
    F: Future<Output = C> + Send + 'static,
{
    let name = format!("{table}::{backend}::{}_{}", case.id, slug(case.says));
    named(name, case.says, move || async move {
        let target = target(case.on, case.id).await;
        (case.run)(target).await;
    })
}

fn named<F>(name: String, says: &'static str, run: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()> + Send + 'static,
{
    Trial::test(name, move || {
        let case = RUNTIME.spawn(async { tokio::time::timeout(LIMIT, run()).await });
        match RUNTIME.block_on(case) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Failed::from(format!("{says}: did not end within {LIMIT:?}"))),
            Err(error) => Err(Failed::from(format!("{says}: {}", panic_message(error)))),
        }
    })
}

/// Converts the start of a statement to words joined by `_`.
fn slug(says: &str) -> String {
    let mut slug = String::new();
    let words = says
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '\'')
        .filter(|word| !word.is_empty());
    for word in words.map(|word| word.replace('\'', "").to_lowercase()) {
        if slug.len() + word.len() >= STATEMENT {
            break;
        }
        if !slug.is_empty() {
            slug.push('_');
        }
        slug.push_str(&word);
    }
    slug
}

fn panic_message(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast::<&str>().map_or("panicked".into(), |s| s.to_string()),
        },
        Err(error) => error.to_string(),
    }
}

/// Checks that names are unique and that every table is listed.
fn complete(trials: &[Trial]) -> Trial {
    let names: Vec<String> = trials.iter().map(|trial| trial.name().to_owned()).collect();
    Trial::test("every_case_is_listed_once", move || {
        let once: BTreeSet<&String> = names.iter().collect();
        if once.len() != names.len() {
            return Err(Failed::from("two cases have the same name"));
        }
        for (lane, least) in [
            ("port::emulator::", 100),
            ("port::emulator_http::", 100),
            ("port::consul::", 100),
            ("wire::emulator::", 120),
            ("wire::consul::", 120),
        ] {
            let count = names.iter().filter(|name| name.starts_with(lane)).count();
            if count < least {
                return Err(Failed::from(format!("{lane} {count} cases, of at least {least}")));
            }
        }
        Ok(())
    })
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(AT_ONCE));
    let mut trials: Vec<Trial> = port::trials();
    trials.extend(wire::trials());
    trials.extend(restore::trials());
    trials.push(complete(&trials));
    libtest_mimic::run(&arguments, trials).exit();
}
