use super::super::records::{PeerFarm, Record, RecordLocks};
use super::*;
use crate::store::Index;
use std::sync::Arc;

/// A world that a test bends.
struct World {
    records: Records,
    labels: RecordLabels,
    locks: Locks,
    peers: Peers,
    peers_since: BTreeMap<FarmName, Instant>,
    held: BTreeSet<RecordId>,
    barred: BTreeMap<RecordId, Instant>,
    unowned_since: BTreeMap<RecordId, Instant>,
    selector: Selector,
    doubtful: bool,
    suspicious: bool,
    left_behind: BTreeSet<RecordId>,
    now: Instant,
}

fn id(n: usize) -> RecordId {
    RecordId::from(format!("r{n:04}").as_str())
}

impl World {
    fn new(records: usize, farms: &[&str]) -> World {
        let now = Instant::now();
        let record = Arc::new(Record { value: "".into(), index: Index(1), created: Index(1) });
        let peer = |name: &&str| {
            let peer = PeerFarm {
                session: SessionId::from(*name),
                selector: Selector::everything(),
                leaving: false,
                index: Index(1),
                created: Index(1),
            };
            (name.parse().unwrap(), peer)
        };
        World {
            records: Records((0..records).map(|n| (id(n), record.clone())).collect()),
            labels: RecordLabels::default(),
            locks: Locks::default(),
            peers: Peers(farms.iter().map(peer).collect()),
            peers_since: farms.iter().map(|f| (f.parse().unwrap(), now)).collect(),
            held: BTreeSet::new(),
            barred: BTreeMap::new(),
            unowned_since: BTreeMap::new(),
            selector: Selector::everything(),
            doubtful: false,
            suspicious: false,
            left_behind: BTreeSet::new(),
            now,
        }
    }

    fn own(&mut self, id: &RecordId, session: &str) {
        let owner = Some(SessionId::from(session));
        self.locks.0.insert(id.clone(), RecordLocks { owner, others: BTreeMap::new() });
    }

    fn plan(&self, me: &str) -> ClaimPlan {
        plan(&ClaimsObserved {
            records: &self.records,
            labels: &self.labels,
            locks: &self.locks,
            peers: &self.peers,
            peers_since: &self.peers_since,
            me: &me.parse().unwrap(),
            session: &SessionId::from(me),
            selector: &self.selector,
            held: &self.held,
            barred: &self.barred,
            unowned_since: &self.unowned_since,
            doubtful: self.doubtful,
            suspicious: self.suspicious,
            left_behind: &self.left_behind,
            now: self.now,
        })
    }
}

#[test]
fn two_farms_share_the_records_without_overlap_and_evenly() {
    let world = World::new(1000, &["a", "b"]);
    let (a, b) = (world.plan("a").claim, world.plan("b").claim);
    let all: BTreeSet<_> = a.iter().chain(&b).collect();
    assert_eq!((all.len(), a.len() + b.len()), (1000, 1000));
    assert!((400..=600).contains(&a.len()), "{} of 1000", a.len());
}

#[test]
fn after_the_grace_a_record_is_anybodys() {
    let mut world = World::new(100, &["a", "b"]);
    world.unowned_since = (0..100).map(|n| (id(n), world.now)).collect();
    let first = world.plan("a");
    assert!(first.claim.len() < 100);
    assert_eq!(first.again_at, Some(world.now + GRACE));
    world.now += GRACE;
    assert_eq!(world.plan("a").claim.len(), 100);
}

#[test]
fn a_farm_that_is_alone_or_not_listed_yet_claims_everything_free() {
    assert_eq!(World::new(10, &[]).plan("a").claim.len(), 10);
    assert_eq!(World::new(10, &["a"]).plan("a").claim.len(), 10);
}

#[test]
fn a_newcomer_is_handed_its_share_once_it_has_settled() {
    let mut world = World::new(100, &["a", "b"]);
    for n in 0..100 {
        world.own(&id(n), "a");
        world.held.insert(id(n));
    }
    let before = world.plan("a");
    assert!(before.hand_over.is_empty());
    world.now += SETTLED;
    let plan = world.plan("a");
    assert!((30..=70).contains(&plan.hand_over.len()));
    assert!(plan.hand_over.iter().all(|(_, farm, _)| farm.as_str() == "b"));
    assert!(plan.release.is_empty() && plan.claim.is_empty());
}

#[test]
fn a_leaving_farm_gets_nothing() {
    let mut world = World::new(100, &["a", "b"]);
    world.peers.0.get_mut(&"b".parse().unwrap()).unwrap().leaving = true;
    assert_eq!(world.plan("a").claim.len(), 100);
}

#[test]
fn a_record_handed_to_us_is_adopted_and_one_taken_from_us_dropped() {
    let mut world = World::new(2, &["a"]);
    world.own(&id(0), "a");
    world.own(&id(1), "x");
    world.held.insert(id(1));
    let plan = world.plan("a");
    assert_eq!((plan.adopt, plan.drop), (vec![id(0)], vec![id(1)]));
    world.doubtful = true;
    assert_eq!(world.plan("a").adopt, [], "not while the locks are doubtful");
}

#[test]
fn a_claim_that_its_tree_never_shows_is_dropped() {
    let mut world = World::new(1, &["a"]);
    world.held.insert(id(0));
    world.unowned_since.insert(id(0), world.now);
    let plan = world.plan("a");
    assert_eq!((plan.drop.len(), plan.again_at), (0, Some(world.now + SURELY_SHOWN)));
    world.now += SURELY_SHOWN;
    assert_eq!(world.plan("a").drop, [id(0)]);
}

#[test]
fn a_record_relabelled_away_or_deleted_is_released() {
    let mut world = World::new(2, &["a"]);
    for n in 0..2 {
        world.own(&id(n), "a");
        world.held.insert(id(n));
    }
    world.selector = "tier=batch".parse().unwrap();
    let labels = Arc::new([("tier".to_owned(), "batch".to_owned())].into());
    world.labels.0.insert(id(0), (Index(1), Some(labels)));
    assert_eq!(world.plan("a").release, vec![id(1)]);
    world.selector = Selector::everything();
    world.records.0.remove(&id(0));
    assert_eq!(world.plan("a").release, vec![id(0)]);
    world.suspicious = true;
    assert!(world.plan("a").release.is_empty(), "an unbelievable tree releases nothing");
}

#[test]
fn locks_left_behind_are_given_up() {
    let mut world = World::new(2, &["a"]);
    for n in 0..3 {
        world.own(&id(n), if n == 1 { "x" } else { "a" });
        let session = SessionId::from("a");
        let locks = world.locks.0.get_mut(&id(n)).unwrap();
        locks.others.insert("update".to_owned(), session);
    }
    world.held.insert(id(0));
    let plan = world.plan("a");
    assert_eq!(plan.stray, [(id(1), "update".to_owned())], "the first is at work with it");
    assert_eq!(plan.release, [id(2)], "there is no such record any more");
    world.suspicious = true;
    assert!(world.plan("a").release.is_empty());
}

#[test]
fn what_a_record_left_behind_is_claimed_and_kept_until_nothing_is_left() {
    let mut world = World::new(1, &["a"]);
    world.left_behind.insert(id(7));
    assert_eq!(world.plan("a").claim, [id(0), id(7)]);
    world.held.insert(id(7));
    world.own(&id(7), "a");
    assert!(world.plan("a").release.is_empty());
    world.left_behind.clear();
    assert_eq!(world.plan("a").release, [id(7)]);
}

#[test]
fn a_barred_record_waits() {
    let mut world = World::new(1, &["a"]);
    let until = world.now + Duration::from_secs(1);
    world.barred.insert(id(0), until);
    let plan = world.plan("a");
    assert_eq!((plan.claim.len(), plan.again_at), (0, Some(until)));
}
