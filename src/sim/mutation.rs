//! Which safety layers are switched off to see whether their absence is noticed, alone or together.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Options, Violation, run};
use crate::probe::Mutation;

/// Layers that are switched off together.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Which.
    pub without: &'static [Mutation],
    /// What is different then.
    pub what: &'static str,
}

/// How a case was caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caught {
    /// By the first seed that does.
    pub seed: u64,
    /// By what.
    pub violation: Violation,
}

/// A case must be caught within so many seeds.
pub const WITHIN: u64 = 200;

macro_rules! cases {
    ($($($layer:ident)+ = $what:literal,)*) => {
        /// Every case.
        pub const CASES: &[Case] =
            &[$(Case { without: &[$(Mutation::$layer),+], what: $what }),*];
    };
}

cases! {
    NoFence = "transactions carry no fence",
    NoDeadline = "the local deadline never passes",
    NoFence NoDeadline = "neither fence nor deadline",
    DeadSessionKept = "a refused renewal is taken for a good one",
    LockOutlivesSession = "locks stay when their session ends",
    ClaimKept = "a record relabelled away is kept",
    NoRecordGuard = "the record may be another than the plan saw",
    NoChain = "the status is replaced whatever stands there",
    RepeatUnknown NoChain = "a write whose answer was lost is made again, and its status replaces any",
    NoLabelGuard = "pods' labels are written whatever stands there",
    NoIntentGuard = "intents are written whatever stands there",
    NoOwnIdCheck = "a pod is removed without a check that it is still the record's own",
    OwnWritesForgotten = "trees count although they are older than the owner's own writes",
    StaleTakeOver NoChain = "pods are not read again after a claim or a refusal, and no status is compared",
    NoEmptinessGuard = "a tree that became suddenly much smaller is believed",
    DisabledIgnored = "disabled records are worked on",
    TransferBlind = "a healthy pod is moved although others are not",
    NoMinimumHealth = "the declared minimum of healthy pods is ignored",
    NoAudit = "changes leave no audit record",
    AuditApart = "the audit record is written after the transaction",
    NoQuarantine = "a record that keeps failing is tried again at once, for ever",
    PanicEscapes = "a controller's panic is not contained",
}

impl Case {
    /// The layers by name.
    #[must_use]
    pub fn name(&self) -> String {
        let names: Vec<String> = self.without.iter().map(|layer| format!("{layer:?}")).collect();
        names.join(" + ")
    }

    /// Lives through one seed without the layers.
    #[must_use]
    pub fn try_seed(&self, seed: u64) -> Option<Caught> {
        let options = Options { without: self.without.to_vec(), ..Options::default() };
        let violation = run(seed, &options).violation?;
        // It counts only if it is the layer's absence that was noticed.
        let plain = run(seed, &Options::default()).violation;
        plain.is_none().then_some(Caught { seed, violation })
    }

    /// The first of the seeds that notices.
    #[must_use]
    pub fn catch(&self) -> Option<Caught> {
        (0..WITHIN).find_map(|seed| self.try_seed(seed))
    }
}

/// Catches every case, on two threads, and makes the page of it; `told` hears of each. Gives the page, and how many
/// were not caught.
///
/// # Panics
/// If a thread does.
#[must_use]
pub fn catch_all(told: impl Fn(&Case, &Option<Caught>) + Sync) -> (String, usize) {
    let next = AtomicUsize::new(0);
    let caught = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((n, case)) = numbered(next.fetch_add(1, Ordering::SeqCst)) {
                    let how = case.catch();
                    told(case, &how);
                    caught.lock().expect("no thread panics").insert(n, how);
                }
            });
        }
    });
    let caught = caught.into_inner().expect("no thread panics");
    let missed = caught.values().filter(|how| how.is_none()).count();
    (page(&CASES.iter().zip(caught.into_values()).collect::<Vec<_>>()), missed)
}

fn numbered(n: usize) -> Option<(usize, &'static Case)> {
    Some((n, CASES.get(n)?))
}

/// The seed that a page names for a case.
#[must_use]
pub fn named(page: &str, case: &Case) -> Option<u64> {
    let start = format!("| {} |", case.name());
    let row = page.lines().find(|line| line.starts_with(&start))?;
    row.split('|').nth(4)?.trim().parse::<u64>().ok()?.checked_sub(1)
}

fn page(rows: &[(&Case, Option<Caught>)]) -> String {
    let mut page = String::from(HEAD);
    for (case, caught) in rows {
        let (invariant, seeds) = match caught {
            Some(caught) => (caught.violation.invariant.to_string(), (caught.seed + 1).to_string()),
            None => ("none".to_owned(), format!("more than {WITHIN}")),
        };
        page.push_str(&format!("| {} | {} | {invariant} | {seeds} |\n", case.name(), case.what));
    }
    page
}

const HEAD: &str = "\
# Mutations

Each safety layer is switched off in turn, and the simulation lives through seeds from 0 on until an invariant is
violated. A layer whose absence nothing notices would be of no use, or the simulation would be blind. Generated by
`cargo run --features sim --example sim -- --mutations`; the suite lives through the named seed of each row again.

Where a layer alone is covered by others, it stands here together with them.

| without | so that | invariant | seeds |
|---|---|---|---|
";
