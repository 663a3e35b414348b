//! Any order of answers, lost answers, late transactions and foreign writes against a model of one key of Consul.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{CommitAnswer, Machine, Next, RefusedParts, Revisioned, StatusWrite};
use rcfarm_store::Index;

#[derive(Debug, Clone, Default, PartialEq)]
struct Status {
    revision: u64,
    /// Plans applied since somebody else wrote the status.
    plans: u64,
    /// Differs between plans, but not always: two attempts may write the same status.
    note: u8,
}

impl Revisioned for Status {
    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }
}

/// Fate of a transaction in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    NeverSent,
    /// Handled at once, without an answer.
    ReplyLost,
    /// Handled by a later [`Move::Deliver`], if at all.
    Late,
}

#[derive(Debug, Clone)]
enum Move {
    Plan {
        note: u8,
        fate: Fate,
        can_read: bool,
    },
    Delete {
        fate: Fate,
    },
    Dependents(Vec<Fate>),
    /// A late transaction arrives.
    Deliver(usize),
    Foreign(Option<u8>),
    Refresh,
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Answered),
        1 => Just(Fate::NeverSent),
        3 => Just(Fate::ReplyLost),
        3 => Just(Fate::Late),
    ]
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let plan = (0u8..2, fates(), prop::bool::weighted(0.7));
    let plan = plan.prop_map(|(note, fate, can_read)| Move::Plan { note, fate, can_read });
    let one = prop_oneof![
        8 => plan,
        1 => fates().prop_map(|fate| Move::Delete { fate }),
        2 => prop::collection::vec(fates(), 1..4).prop_map(Move::Dependents),
        5 => (0usize..4).prop_map(Move::Deliver),
        1 => prop::option::of(0u8..2).prop_map(Move::Foreign),
        1 => Just(Move::Refresh),
    ];
    prop::collection::vec(one, 1..60)
}

/// A transaction of the owner.
#[derive(Debug, Clone)]
struct Sent {
    id: usize,
    at: Index,
    /// `None`: it only checks the status.
    write: Option<StatusWrite<Status>>,
    is_seal: bool,
}

#[derive(Debug, Default)]
struct Consul {
    last: u64,
    status: Option<(Index, Status)>,
    applied: BTreeSet<usize>,
    late: Vec<Sent>,
    /// Transactions that the owner considers settled: none of them may be applied any more.
    closed: BTreeSet<usize>,
}

impl Consul {
    fn read(&self) -> (Index, Status) {
        self.status.clone().unwrap_or_default()
    }

    fn put(&mut self, status: Option<Status>) -> Index {
        self.last += 1;
        if status.is_none() {
            // A late creation finds the key absent once more. In a farm the guards of the record and of the pods refuse
            // it, which the model does not have.
            self.late.retain(|late| late.at != Index::ZERO);
        }
        self.status = status.map(|status| (Index(self.last), status));
        Index(self.last)
    }

    /// The index of the transaction, unless it is refused.
    fn handle(&mut self, sent: &Sent) -> Option<Index> {
        let (index, before) = self.read();
        if sent.at != index {
            return None;
        }
        assert!(!self.closed.contains(&sent.id), "applied after the owner planned without it");
        assert!(self.applied.insert(sent.id), "applied twice");
        match sent.write.clone() {
            None | Some(StatusWrite::Leave) => {
                self.last += 1;
                Some(Index(self.last))
            }
            Some(StatusWrite::Delete) => Some(self.put(None)),
            Some(StatusWrite::Replace(after)) => {
                assert_eq!(after.revision, before.revision + 1, "a revision is lost or doubled");
                let plans = before.plans + u64::from(!sent.is_seal);
                assert_eq!(after.plans, plans, "a plan is lost or doubled");
                Some(self.put(Some(after)))
            }
        }
    }

    fn send(&mut self, sent: &Sent, fate: Fate) -> CommitAnswer {
        let handled = match fate {
            Fate::NeverSent => return CommitAnswer::NotApplied,
            Fate::Late => {
                self.late.push(sent.clone());
                return CommitAnswer::Unknown;
            }
            Fate::Answered | Fate::ReplyLost => self.handle(sent),
        };
        match (fate, handled) {
            (Fate::ReplyLost, _) => CommitAnswer::Unknown,
            (_, Some(index)) => CommitAnswer::Applied(index),
            (_, None) => {
                CommitAnswer::Refused(RefusedParts { own: true, ..RefusedParts::default() })
            }
        }
    }
}

struct Owner {
    machine: Machine<Status>,
    sent: usize,
    /// Dependent transactions, until one that replaces the status was applied.
    dependents: BTreeSet<usize>,
    is_disturbed: bool,
}

impl Owner {
    fn next_id(&mut self) -> usize {
        self.sent += 1;
        self.sent
    }

    /// Reads as the shell does, until the owner may plan.
    fn refresh(&mut self, consul: &mut Consul) {
        let (index, status) = consul.read();
        self.machine.refreshed(index, status);
        self.is_disturbed = false;
        if self.machine.is_open() {
            let seal = StatusWrite::Replace(self.machine.status().clone());
            assert!(self.commit(consul, seal, (Fate::Answered, true), true), "the seal is applied");
        }
        self.machine.caught_up();
    }

    /// Whether the transaction is known to be applied.
    fn commit(
        &mut self,
        consul: &mut Consul,
        write: StatusWrite<Status>,
        (fate, can_read): (Fate, bool),
        is_seal: bool,
    ) -> bool {
        let write = self.machine.next(write);
        let (id, at) = (self.next_id(), self.machine.index());
        let sent = Sent { id, at, write: Some(write.clone()), is_seal };
        let answer = consul.send(&sent, fate);
        let next = self.machine.answered(write, &answer);
        let applied = match next {
            Next::Applied(_) => true,
            Next::NotApplied => false,
            Next::ReadBack if can_read => {
                let (index, status) = consul.read();
                self.machine.read_back(index, &status)
            }
            Next::ReadBack => false,
        };
        assert!(!applied || consul.applied.contains(&id), "taken for applied, but it is not");
        if applied {
            let earlier = consul.late.iter().map(|late| late.id).filter(|late| *late != id);
            consul.closed.extend(earlier);
        }
        applied
    }

    fn plan(&mut self, consul: &mut Consul, write: StatusWrite<Status>, fate: (Fate, bool)) {
        if self.machine.is_behind() || self.machine.is_open() {
            self.refresh(consul);
        }
        // The plan relies on it that missing ones will never exist.
        let open = self.dependents.difference(&consul.applied).copied().collect::<Vec<_>>();
        consul.closed.extend(open);
        self.dependents.clear();
        self.commit(consul, write, fate, false);
    }
}

fn run(moves: Vec<Move>) {
    let mut consul = Consul::default();
    let mut owner = Owner {
        machine: Machine::new(None),
        sent: 0,
        dependents: BTreeSet::new(),
        is_disturbed: false,
    };
    for one in moves {
        match one {
            Move::Plan { note, fate, can_read } => {
                if owner.machine.is_behind() || owner.machine.is_open() {
                    owner.refresh(&mut consul);
                }
                let plans = owner.machine.status().plans + 1;
                let status = Status { plans, note, ..owner.machine.status().clone() };
                owner.plan(&mut consul, StatusWrite::Replace(status), (fate, can_read));
            }
            Move::Delete { fate } => owner.plan(&mut consul, StatusWrite::Delete, (fate, true)),
            Move::Dependents(fates) if !owner.machine.is_behind() => {
                owner.machine.set_open(true);
                let mut unknown = false;
                for fate in fates {
                    let (id, at) = (owner.next_id(), owner.machine.index());
                    let answer = consul.send(&Sent { id, at, write: None, is_seal: false }, fate);
                    owner.dependents.insert(id);
                    match &answer {
                        CommitAnswer::Applied(_) => {}
                        CommitAnswer::Refused(refused) => owner.machine.refuse(refused),
                        CommitAnswer::NotApplied => owner.machine.fall_behind(),
                        CommitAnswer::Unknown => {
                            unknown = true;
                            owner.machine.fall_behind();
                        }
                    }
                }
                owner.machine.set_open(unknown);
            }
            Move::Dependents(_) => {}
            Move::Deliver(n) if n < consul.late.len() => {
                let sent = consul.late.remove(n);
                owner.is_disturbed |= consul.handle(&sent).is_some();
            }
            Move::Deliver(_) => {}
            Move::Foreign(status) => {
                let before = consul.read().1;
                consul.put(status.map(|note| Status { note, ..before }));
                owner.is_disturbed = true;
            }
            Move::Refresh => owner.refresh(&mut consul),
        }
        if !owner.machine.is_behind() && !owner.is_disturbed {
            let known = (owner.machine.index(), owner.machine.status().clone());
            assert_eq!(known, consul.read(), "the owner knows what stands there");
        }
    }
    // Without faults the second attempt is applied at the latest.
    let mut attempts = 0;
    loop {
        if owner.machine.is_behind() || owner.machine.is_open() {
            owner.refresh(&mut consul);
        }
        let plans = owner.machine.status().plans + 1;
        let write = StatusWrite::Replace(Status { plans, ..owner.machine.status().clone() });
        attempts += 1;
        if owner.commit(&mut consul, write, (Fate::Answered, true), false) {
            break;
        }
    }
    assert!(attempts <= 2, "{attempts} attempts");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn no_revision_is_lost_or_doubled(moves in moves()) {
        run(moves);
    }
}

fn planned(machine: &Machine<Status>) -> StatusWrite<Status> {
    machine.next(StatusWrite::Replace(machine.status().clone()))
}

fn replacement(write: &StatusWrite<Status>) -> Status {
    let StatusWrite::Replace(status) = write else { panic!("no replacement") };
    status.clone()
}

#[test]
fn own_write_is_recognised_after_a_lost_answer() {
    let mut machine = Machine::new(Some((Index(3), Status::default())));
    let sent = planned(&machine);
    assert_eq!(machine.answered(sent.clone(), &CommitAnswer::Unknown), Next::ReadBack);
    assert!(machine.is_behind());
    assert!(machine.read_back(Index(7), &replacement(&sent)));
    assert_eq!((machine.index(), machine.is_behind()), (Index(7), false));
}

#[test]
fn unchanged_status_after_lost_answer_is_not_applied() {
    let mut machine = Machine::new(Some((Index(3), Status::default())));
    let sent = planned(&machine);
    machine.answered(sent, &CommitAnswer::Unknown);
    assert!(!machine.read_back(Index(3), &Status::default()));
    assert!(machine.is_behind());
}

#[test]
fn second_attempt_with_the_same_status_is_ambiguous() {
    let mut machine = Machine::new(Some((Index(3), Status::default())));
    let first = planned(&machine);
    machine.answered(first.clone(), &CommitAnswer::Unknown);
    machine.refreshed(Index(3), Status::default());
    machine.caught_up();
    let second = planned(&machine);
    assert_eq!(first, second);
    machine.answered(second.clone(), &CommitAnswer::Unknown);
    assert!(!machine.read_back(Index(7), &replacement(&second)), "either may be applied");
    assert!(machine.is_behind());
}

#[test]
fn refusals_double_the_pause_until_one_is_applied() {
    let mut machine = Machine::new(Some((Index(3), Status::default())));
    let refused = CommitAnswer::Refused(RefusedParts { record: true, ..RefusedParts::default() });
    let pauses: Vec<u128> = (0..10)
        .map(|_| {
            machine.answered(planned(&machine), &refused);
            machine.pause().as_millis()
        })
        .collect();
    assert_eq!(pauses[..4], [50, 100, 200, 400]);
    assert_eq!(pauses[9], 10_000);
    assert!(!machine.is_behind(), "another record does not make the status old");
    machine.answered(planned(&machine), &CommitAnswer::Applied(Index(9)));
    machine.answered(planned(&machine), &refused);
    assert_eq!(machine.pause().as_millis(), 50);
}

#[test]
fn owner_reads_again_only_after_its_own_refused_operation() {
    let mut machine = Machine::new(Some((Index(3), Status::default())));
    machine.refuse(&RefusedParts { shared: vec![0], ..RefusedParts::default() });
    assert!(!machine.is_behind());
    machine.refuse(&RefusedParts { own: true, ..RefusedParts::default() });
    assert!(machine.is_behind());
}
