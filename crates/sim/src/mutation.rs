//! Switches safety layers off, alone or together, to test that the checks notice.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::facts::Violation;
use crate::mix::Scenario;
use crate::report::Options;
use crate::run::run;
use rcfarm_store::failpoints::Failpoint;

/// Layers that are switched off together.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub scenario: Scenario,
    /// Failpoints that are enabled together.
    pub without: &'static [Failpoint],
    /// Effect of the failpoints.
    pub what: &'static str,
}

/// How the checks noticed a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caught {
    /// The first seed that noticed it.
    pub seed: u64,
    pub violation: Violation,
}

/// A case must be noticed within this many seeds.
pub const WITHIN: u64 = 1_000;

macro_rules! cases {
    ($($scenario:ident: { $($($layer:ident)+ = $what:literal,)* })*) => {
        /// Every case.
        pub const CASES: &[Case] = &[$($(Case {
            scenario: Scenario::$scenario,
            without: &[$(Failpoint::$layer),+],
            what: $what,
        },)*)*];
    };
}

cases! { Services: {
    NoFence = "transactions carry no fence",
    NoDeadline = "the local deadline never passes",
    NoFence NoDeadline = "neither fence nor deadline",
    DeadSessionKept = "a refused renewal counts as acknowledged",
    LockOutlivesSession = "locks stay when their session ends",
    ClaimKept = "a record whose labels no longer match is kept",
    NoRecordGuard = "the record may differ from the one that the plan saw",
    NoChain = "the status is written without CAS",
    RepeatUnknown NoChain = "a write whose answer was lost is repeated, and the status is written without CAS",
    NoLabelGuard = "pods' labels are written without CAS",
    NoIntentGuard = "intents are written without CAS",
    NoOwnIdCheck = "a pod is removed without a check of its owner",
    OwnWritesForgotten = "caches older than the owner's own writes are used",
    StaleTakeOver NoChain = "pods are not read again after a claim or a refusal, and the status is written without CAS",
    NoEmptinessGuard = "a prefix that shrank suddenly is trusted",
    DisabledIgnored = "disabled records are reconciled",
    TransferBlind = "a healthy pod is moved although others are not",
    NoMinimumHealth = "the declared minimum of healthy pods is ignored",
    UpdateUnordered = "a changed manifest is written to all pods at once",
    RestartsUncounted = "pods that are being restarted count as healthy",
    RemovalUnordered = "pods are removed in the order of their nodes' names",
    UnfitTaken = "pods are added on nodes that are down or drained",
    PromiseUnguarded = "allocations are written without CAS",
    NoAudit = "changes leave no audit record",
    AuditApart = "the audit record is written after the transaction",
    NoQuarantine = "a record that keeps failing is retried at once, without limit",
    PanicEscapes = "a controller's panic is not contained",
    ListIsProof = "an agent stops a pod because its last list of intents lacks it",
    UnreadIsEmpty ListIsProof = "an agent takes intents that it has not read for none",
    NothingAdopted = "an agent adopts no processes of the agent before it",
    UnintendedKept = "an agent keeps pods whose intent is gone",
    ReportedOnce = "an agent reports the processes of a pod once, and no change of them",
} Batch: {
    CommandRepeated = "a command is deleted without a check that it exists",
    PlaceUnchecked = "members start without a check that their gang is bound",
    PlacePulled = "a gang's placement is released although it may have pods",
    PromiseSkipped = "a placement counts before its allocations exist",
    CountedTwice = "one restart counts as two",
    DependenciesIgnored = "members do not wait for the tasks that they depend on",
    PausesIgnored = "members restart without a pause",
    LimitsIgnored = "limits of queues are ignored",
    OrderIgnored = "in a strict queue a group that fits overtakes one that does not",
    InvalidGroupFailsPass = "a group with an invalid record fails the pass of all",
} Flows: {
    RunsForgotten = "a CronJob forgets which times are done with",
    PolicyIgnored = "every CronJob's concurrencyPolicy is Allow",
    ZoneIgnored = "schedules are read in UTC",
    RunsEarly = "a CronJob's clock is 90 s ahead",
    StepsUnordered = "steps do not wait for those that they depend on",
    StepsForgotten = "a flow forgets steps whose job has ended",
    FailureIgnored = "a flow takes failed jobs for completed ones",
    JobsUnordered = "jobs do not wait for those that they depend on",
    TaskEndsAssumed = "a task of an array counts as completed when it starts",
    TaskEndsForgotten = "an array forgets which tasks have completed",
} Cells: {
    HoldersHidden = "a pass does not see which cells groups hold",
    ReservationHidden = "a pass does not see reservations of cells",
    QuotaIgnored = "one virtual cluster has all cells",
    VirtualsRepeated = "virtual cells are given from the first leaf on",
    PlaceMoved = "the devices of a bound group change",
    ReservationUnwritten = "reservations of cells are not written",
    RanksIgnored = "every group that holds cells counts as opportunistic",
    VictimsUntold = "groups that have to make room are not told",
    EvictionIgnored = "jobs do not stop when their group is evicted",
    DrainedPulled = "a group that has to leave a node loses its cells before its members have stopped",
} }

impl Case {
    /// The layers by name.
    #[must_use]
    pub fn name(&self) -> String {
        let names: Vec<String> = self.without.iter().map(|layer| format!("{layer:?}")).collect();
        names.join(" + ")
    }

    /// Runs one seed without the layers.
    #[must_use]
    pub fn try_seed(&self, seed: u64) -> Option<Caught> {
        let plain = Options { scenario: self.scenario, ..Options::default() };
        let options = Options { without: self.without.to_vec(), ..plain.clone() };
        let violation = run(seed, &options).violation?;
        // A violation that also occurs with the layers does not count.
        let plain = run(seed, &plain).violation;
        plain.is_none().then_some(Caught { seed, violation })
    }

    /// Runs seeds until one notices.
    #[must_use]
    pub fn catch(&self) -> Option<Caught> {
        (0..WITHIN).find_map(|seed| self.try_seed(seed))
    }
}

/// Runs the cases `of` on two threads, and builds the page; `told` receives each result. The seed that the old page names
/// is tried first. Rows of other cases are taken from the old page. Returns the page, and the number of cases that were
/// not noticed.
///
/// # Panics
/// If a thread does.
#[must_use]
pub fn catch_all(
    of: impl Fn(&Case) -> bool + Sync,
    old: &str,
    told: impl Fn(&Case, &Option<Caught>) + Sync,
) -> (String, usize) {
    let next = AtomicUsize::new(0);
    let caught = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((n, case)) = numbered(next.fetch_add(1, Ordering::SeqCst)) {
                    if !of(case) {
                        continue;
                    }
                    let again = named(old, case).and_then(|seed| case.try_seed(seed));
                    let how = again.or_else(|| case.catch());
                    told(case, &how);
                    caught.lock().expect("no thread panics").insert(n, how);
                }
            });
        }
    });
    let caught = caught.into_inner().expect("no thread panics");
    let missed = caught.values().filter(|how| how.is_none()).count();
    let row = |(n, case): (usize, &'static Case)| match caught.get(&n) {
        Some(how) => (case, row(case, how)),
        None => (case, line_of(old, case).unwrap_or_default().to_owned()),
    };
    (page(&CASES.iter().enumerate().map(row).collect::<Vec<_>>()), missed)
}

fn numbered(n: usize) -> Option<(usize, &'static Case)> {
    Some((n, CASES.get(n)?))
}

/// The seed that a page names for a case.
#[must_use]
pub fn named(page: &str, case: &Case) -> Option<u64> {
    line_of(page, case)?.split('|').nth(4)?.trim().parse::<u64>().ok()?.checked_sub(1)
}

fn line_of<'p>(page: &'p str, case: &Case) -> Option<&'p str> {
    let start = format!("| {} |", case.name());
    page.lines().find(|line| line.starts_with(&start))
}

fn row(case: &Case, caught: &Option<Caught>) -> String {
    let (invariant, seeds) = match caught {
        Some(caught) => (caught.violation.invariant.to_string(), (caught.seed + 1).to_string()),
        None => ("none".to_owned(), format!("more than {WITHIN}")),
    };
    format!("| {} | {} | {invariant} | {seeds} |", case.name(), case.what)
}

fn page(rows: &[(&Case, String)]) -> String {
    let mut page = String::from(HEAD);
    let mut world = Scenario::Services;
    for (case, row) in rows {
        if world != case.scenario {
            world = case.scenario;
            page.push_str(match world {
                Scenario::Flows => FLOWS,
                Scenario::Cells => CELLS,
                _ => JOBS,
            });
        }
        page.push_str(row);
        page.push('\n');
    }
    page
}

const HEAD: &str = "\
# Failpoints

Each safety layer is switched off in turn, and the simulator runs seeds from 0 until an invariant is violated. If
nothing notices, the layer is useless or the simulation misses its faults. Generated by
`cargo run -p rcfarm-sim --example sim -- --mutations`. It and the suite try the named seed of each row first, and
others if the program has changed since. A seed counts only if nothing is violated with the layer in place.

Layers that cover each other are switched off together. What each number means: [invariants](../invariants.md).

| without | so that | invariant | seeds |
|---|---|---|---|
";

const JOBS: &str = "
In the world of jobs, queues and commands:

| without | so that | invariant | seeds |
|---|---|---|---|
";

const FLOWS: &str = "
In the world of CronJobs and JobFlows:

| without | so that | invariant | seeds |
|---|---|---|---|
";

const CELLS: &str = "
In the world of cells:

| without | so that | invariant | seeds |
|---|---|---|---|
";
