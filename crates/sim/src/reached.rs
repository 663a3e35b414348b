//! Counts occasions in which an invariant could have been violated: an invariant without occasions is not tested.
//!
//! A check or the world reports an occasion with [`met`]. Each occasion must occur in a minimum number of a thousand
//! worlds, which the suite checks for its own number of worlds.

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
    pub scenario: Scenario,
    pub occasion: Occasion,
    /// The invariant that it tests.
    pub invariant: u32,
    /// Description.
    pub what: &'static str,
    /// Fewest of a thousand worlds in which it must occur.
    pub least: u64,
}

macro_rules! occasions {
    ($($scenario:ident: { $($invariant:literal $occasion:ident = $what:literal, $least:literal;)* })*
        ; both: { $($bi:literal $both:ident = $bw:literal, $bl:literal;)* }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    3 RelabelledAway = "a record was relabelled so that its owner must release it", 100;
    4 LockEnded = "a session ended that held a record's lock", 500;
    6 CountReached = "pods were added up to the count", 500;
    6 Deallocated = "a user took a pod away and lowered the count in one breath", 50;
    7 DownPassedOver = "a pod was placed while a free matching node was down", 20;
    7 DrainedPassedOver = "a pod was placed while a free matching node was drained", 25;
    7 OthersPassedOver = "a pod was placed while another node's labels did not match", 80;
    8 PodRemoved = "a pod was removed", 300;
    9 PodGivenAway = "a pod was relabelled to another record while its own had too many", 150;
    9 TakenOver = "a pod of a disabled record was taken over", 3;
    10 DisabledAmiss = "a disabled record had a wrong number of pods", 80;
    11 ChoiceOfRemoval = "one of several pods was removed, and the others certainly ranked higher", 100;
    11 AtTheMinimum = "pods were removed down to the minimum of healthy ones", 50;
    11 MoveWhileOthersAil = "a healthy pod was on an unfit node while others were unhealthy", 30;
    12 BadBesideGood = "a record was reconciled beside an invalid one", 50;
    13 MovedOff = "a pod was moved to another node", 200;
    14 NodeFull = "a node had no room for one more pod with requests", 500;
    28 OwnerEnded = "a farm that owned records ended for good", 300;
    29 PoisonedAtRest = "a record kept failing while everything else was idle", 80;
    31 ScaledOffNode = "a user relabelled the node of a pod and lowered the count in one breath", 50;
    32 StoppedByAgent = "an agent stopped a process", 40;
    32 KeptLost = "at rest a pod ran that only a restored snapshot lacked", 1;
    35 Adopted = "an agent found processes of the agent before it", 25;
    36 UnwantedRuns = "when the faults ended, a process ran that was not intended", 3;
    38 UpdatedInOrder = "an update in order restarted a healthy pod", 60;
    38 UpdatedToTheMinimum = "an update in order left as many healthy pods as the minimum", 20;
    37 ExitReported = "an agent reported a process that ended for good", 10;
} Batch: {
    14 NodeFilled = "a node had no room for one more member", 150;
    16 GangBound = "a gang of several members was bound", 500;
    16 WrittenAhead = "a gang's placement was written before its allocations", 100;
    17 AtTheLimit = "a group was charged and filled its queue", 50;
    18 LowerWaited = "in a strict queue a lower, smaller group waited behind a higher one for long", 30;
    19 KeptAnyway = "a gang kept its placement although its queue would not admit it now", 3;
    20 OneOfMany = "one member was restarted while others ran", 150;
    20 BornAgain = "a job was created again while pods of the earlier one existed", 3;
    21 Ended = "a job ended", 500;
    22 Retried = "a retry was counted", 200;
    22 LastRetry = "the last allowed retry was made", 60;
    22 CommandCarriedOut = "a command was executed", 100;
    22 MemberLost = "a member was lost with its node or deleted by a user", 250;
    23 DependentMade = "a member that depends on others was created", 300;
    23 DependentWaits = "a job was placed while members had to wait for others", 300;
    24 PausedMade = "a member was created after a pause", 200;
    24 DeadlinePassed = "a job failed at its deadline", 80;
    25 TimeUp = "a job was deleted after its TTL", 120;
    25 Farewell = "a job was deleted by a user", 30;
    30 HostileReported = "at rest a job of a hostile tenant was reported as not valid", 10;
} Flows: {
    23 StepMade = "a step ran after others", 600;
    23 StepProbed = "a step ran when a probe passed, while its target was active", 20;
    39 RunMade = "a scheduled time made a job", 700;
    39 RunAtChange = "a job was made at the minute of a change of summer time", 200;
    39 RunAtSecondChange = "a job was made at the second change of summer time that a world saw", 40;
    39 RunBesideOther = "a job was made while another one of its CronJob was active", 50;
    40 StepRetried = "a step was made again after a failure", 100;
    40 FlowSucceeded = "a flow succeeded", 400;
    40 FlowFailed = "a flow failed", 300;
    23 DependentJobBegan = "a job began that had waited for others", 150;
    47 NextTaskMade = "a member of an array went on with another task", 150;
    47 TaskRepeated = "a task of an array started again after a failure or a loss", 100;
    48 DispatchedAgain = "a token was dispatched again", 80;
} Cells: {
    41 ReservationUsed = "a group was placed on devices that it had reserved", 300;
    42 PromiseKept = "a virtual cluster held all that it was promised", 200;
    43 KeptThroughChange = "a bound group's status changed after the configuration had", 100;
    44 GroupEvicted = "a group was evicted", 500;
    45 EvictionCalledOff = "an eviction was taken back", 20;
    46 ReservedAtDeath = "a farm ended while cells were reserved", 100;
} ; both: {
    1 FenceRefused = "a transaction was refused because its sender's lock was gone", 200;
    2 DeadlineOver = "a process continued after its session's deadline", 150;
    12 WrittenOver = "a record of a newer version was rewritten", 80;
    13 PartRead = "one part of a prefix was read alone", 150;
    13 ChangesAsked = "the entries of a prefix were compared by index", 50;
    13 PartMissed = "a read of a part of a prefix failed", 100;
    13 TreeHidden = "a list of a prefix with keys was empty", 40;
    14 PromiseRefused = "a transaction was refused because a node's allocations had changed", 8;
    15 AnswerLost = "a controller's transaction was applied and its answer lost", 100;
    15 LateWrite = "a controller's transaction was applied after the controller gave it up", 3;
    30 HostileWritten = "a hostile tenant wrote a record that stayed", 60;
    30 SettledBesideHostile = "everything else settled beside records of a hostile tenant", 60;
    27 FoundUnsettled = "something was not settled when the faults ended", 300;
} }
