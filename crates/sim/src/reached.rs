//! Counts occasions in which an invariant could have been violated: an invariant without occasions is not tested.
//!
//! A check or the world reports an occasion with [`met`]. Each occasion must occur in a minimum number of the suite's
//! thousand worlds, which the suite checks.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::mix::Scenario;

thread_local! {
    static MET: RefCell<BTreeMap<Occasion, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts an occasion in this thread's world.
pub fn met(occasion: Occasion) {
    MET.with_borrow_mut(|met| *met.entry(occasion).or_default() += 1);
}

/// Counts an occasion if `is` holds.
pub fn met_if(is: bool, occasion: Occasion) {
    if is {
        met(occasion);
    }
}

/// Takes the counts of this thread's world; the next starts from 0.
#[must_use]
pub fn take() -> BTreeMap<Occasion, u64> {
    MET.take()
}

/// An occasion in one of the worlds.
#[derive(Debug, Clone, Copy)]
pub struct ReachedRow {
    /// Its scenario.
    pub scenario: Scenario,
    /// The occasion.
    pub occasion: Occasion,
    /// The invariant that it tests.
    pub invariant: u32,
    /// Description.
    pub what: &'static str,
    /// Fewest of the suite's thousand worlds in which it must occur.
    pub least: u64,
}

macro_rules! occasions {
    ($($scenario:ident: { $($invariant:literal $occasion:ident = $what:literal, $least:literal;)* })*
        ; both: { $($bi:literal $both:ident = $bw:literal, $bl:literal;)* }) => {
        /// Occasions.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Occasion { $($($occasion,)*)* $($both,)* }

        /// All occasions, by scenario in the order of the invariants.
        pub const TABLE: &[ReachedRow] = &[
            $($(ReachedRow {
                scenario: Scenario::$scenario, occasion: Occasion::$occasion,
                invariant: $invariant, what: $what, least: $least,
            },)*)*
            $(ReachedRow {
                scenario: Scenario::Services, occasion: Occasion::$both,
                invariant: $bi, what: $bw, least: $bl,
            },
            ReachedRow {
                scenario: Scenario::Batch, occasion: Occasion::$both,
                invariant: $bi, what: $bw, least: $bl,
            },)*
        ];
    };
}

occasions! { Services: {
    3 RelabelledAway = "a record was labelled so that its owner must let it go", 100;
    4 LockEnded = "a session ended that held a record's lock", 500;
    6 CountReached = "pods were added up to the count", 500;
    7 DownPassedOver = "a pod was placed while a node that it could have had was down", 20;
    7 DrainedPassedOver = "a pod was placed while a node that it could have had was drained", 25;
    7 OthersPassedOver = "a pod was placed while another node's labels did not match", 80;
    8 PodRemoved = "a pod was removed", 300;
    9 PodGivenAway = "a pod was given to another record while its own had too many", 150;
    10 DisabledAmiss = "a disabled record had too many pods or too few", 80;
    11 ChoiceOfRemoval = "of several pods one was removed, and the others were certainly better", 100;
    11 AtTheMinimum = "pods were removed, and no more healthy ones stayed than the minimum", 50;
    11 MoveWhileOthersAil = "a healthy pod was on an unfit node while others ailed", 30;
    12 BadBesideGood = "a record was worked on beside one that could not be read", 50;
    13 MovedOff = "a pod was moved to another node", 200;
    14 NodeFull = "a node had no room for one more of those that ask", 500;
    28 OwnerEnded = "a farm that owned records ended for good", 300;
    29 PoisonedAtRest = "a record failed all the time while everything else was at rest", 80;
} Batch: {
    14 NodeFilled = "a node had no room for one more member", 150;
    16 GangBound = "a gang of several members got its place", 500;
    16 WrittenAhead = "a gang's place was written before its nodes had promised it", 100;
    17 AtTheLimit = "a group was charged, and nothing more fitted into its queue", 50;
    18 LowerWaited = "in a strict queue a higher group waited for long, and a lower one that asks for less", 30;
    19 KeptAnyway = "a gang kept its place although its queue would not admit it now", 3;
    20 OneOfMany = "one member was restarted while others ran", 150;
    20 BornAgain = "a job was made anew while pods of its earlier life were there", 3;
    21 Ended = "a job ended", 500;
    22 Retried = "a retry was counted", 200;
    22 LastRetry = "the last retry that is allowed was made", 60;
    22 CommandCarriedOut = "a command was carried out", 100;
    22 MemberLost = "a member was lost with its node, or taken away by somebody", 250;
    23 DependentMade = "a member was made that depends on others", 300;
    23 DependentWaits = "a job had its place while members had to wait for others", 300;
    24 PausedMade = "a member was made that had had to wait for its time", 200;
    24 DeadlinePassed = "a job failed because its time was up", 80;
    25 TimeUp = "a job was deleted because its time was up", 120;
    25 Farewell = "a job was deleted because a person said so", 30;
} ; both: {
    1 FenceRefused = "a transaction was refused because its sender's lock was gone", 200;
    2 DeadlineOver = "a process went on after its session's deadline", 150;
    12 WrittenOver = "what a newer version had written was written again", 80;
    13 PartRead = "a part of a tree was looked at alone", 150;
    13 ChangesAsked = "it was asked which entries of a tree had changed", 50;
    13 PartMissed = "a look at a part of a tree failed", 100;
    13 TreeHidden = "a list came back empty of a tree that is not", 40;
    14 PromiseRefused = "a transaction was refused because a node's promises had changed", 8;
    15 AnswerLost = "a controller's transaction was applied and its answer lost", 100;
    15 LateWrite = "a controller's transaction was applied after it had been given up", 3;
    27 FoundUnsettled = "when the faults ended, something was not as asked for", 300;
} }
