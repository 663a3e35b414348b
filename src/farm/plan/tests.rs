use super::super::record_labels::OwnLabels;
use super::super::records::{PeerFarm, Record, RecordLabels, RecordLocks};
use super::*;
use rcfarm_api::Index;
use rcfarm_store::{Versioned, VersionedIndex};
use std::sync::Arc;

struct Fixture {
    records: Records,
    labels: RecordLabels,
    locks: Locks,
    peers: Peers,
    peers_since: BTreeMap<FarmName, Duration>,
    held: BTreeSet<RecordId>,
    barred: BTreeMap<RecordId, Duration>,
    unowned_since: BTreeMap<RecordId, Duration>,
    selector: Selector,
    doubtful: bool,
    suspicious: bool,
    left_behind: BTreeSet<RecordId>,
    now: Duration,
}

fn id(n: usize) -> RecordId {
    RecordId::from(format!("r{n:04}").as_str())
}

impl Fixture {
    fn new(records: usize, farms: &[&str]) -> Fixture {
        let now = Duration::from_secs(3_600);
        let record = Arc::new(Record { index: Index(1), created: Index(1), value: "".into() });
        let peer = |name: &&str| {
            let value = PeerFarm {
                session: SessionId::from(*name),
                selector: Selector::everything(),
                leaving: false,
            };
            let peer = Versioned { index: Index(1), created: Index(1), value };
            (name.parse().unwrap(), Arc::new(peer))
        };
        Fixture {
            records: VersionedIndex((0..records).map(|n| (id(n), record.clone())).collect()),
            labels: RecordLabels::default(),
            locks: Locks::default(),
            peers: VersionedIndex(farms.iter().map(peer).collect()),
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
            labels: SelectedBy { keys: &self.labels, own: &OwnLabels::default() },
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
    let fixture = Fixture::new(1000, &["a", "b"]);
    let (a, b) = (fixture.plan("a").claim, fixture.plan("b").claim);
    let all: BTreeSet<_> = a.iter().chain(&b).collect();
    assert_eq!((all.len(), a.len() + b.len()), (1000, 1000));
    assert!((400..=600).contains(&a.len()), "{} of 1000", a.len());
}

#[test]
fn after_the_grace_a_record_is_anybodys() {
    let mut fixture = Fixture::new(100, &["a", "b"]);
    fixture.unowned_since = (0..100).map(|n| (id(n), fixture.now)).collect();
    let first = fixture.plan("a");
    assert!(first.claim.len() < 100);
    assert_eq!(first.again_at, Some(fixture.now + GRACE));
    fixture.now += GRACE;
    assert_eq!(fixture.plan("a").claim.len(), 100);
}

#[test]
fn sole_or_unlisted_farm_claims_everything_free() {
    assert_eq!(Fixture::new(10, &[]).plan("a").claim.len(), 10);
    assert_eq!(Fixture::new(10, &["a"]).plan("a").claim.len(), 10);
}

#[test]
fn a_newcomer_is_handed_its_share_once_it_has_settled() {
    let mut fixture = Fixture::new(100, &["a", "b"]);
    for n in 0..100 {
        fixture.own(&id(n), "a");
        fixture.held.insert(id(n));
    }
    let before = fixture.plan("a");
    assert!(before.hand_over.is_empty());
    fixture.now += SETTLED;
    let plan = fixture.plan("a");
    assert!((30..=70).contains(&plan.hand_over.len()));
    assert!(plan.hand_over.iter().all(|(_, farm, _)| farm.as_str() == "b"));
    assert!(plan.release.is_empty() && plan.claim.is_empty());
}

#[test]
fn a_leaving_farm_gets_nothing() {
    let mut fixture = Fixture::new(100, &["a", "b"]);
    let peer = fixture.peers.0.get_mut(&"b".parse().unwrap()).unwrap();
    Arc::make_mut(peer).value.leaving = true;
    assert_eq!(fixture.plan("a").claim.len(), 100);
}

#[test]
fn handed_over_record_is_adopted_and_taken_one_dropped() {
    let mut fixture = Fixture::new(2, &["a"]);
    fixture.own(&id(0), "a");
    fixture.own(&id(1), "x");
    fixture.held.insert(id(1));
    let plan = fixture.plan("a");
    assert_eq!((plan.adopt, plan.drop), (vec![id(0)], vec![id(1)]));
    fixture.doubtful = true;
    assert_eq!(fixture.plan("a").adopt, [], "not while the locks are doubtful");
}

#[test]
fn a_claim_that_its_tree_never_shows_is_dropped() {
    let mut fixture = Fixture::new(1, &["a"]);
    fixture.held.insert(id(0));
    fixture.unowned_since.insert(id(0), fixture.now);
    let plan = fixture.plan("a");
    assert_eq!((plan.drop.len(), plan.again_at), (0, Some(fixture.now + SURELY_SHOWN)));
    fixture.now += SURELY_SHOWN;
    assert_eq!(fixture.plan("a").drop, [id(0)]);
}

#[test]
fn a_record_relabelled_away_or_deleted_is_released() {
    let mut fixture = Fixture::new(2, &["a"]);
    for n in 0..2 {
        fixture.own(&id(n), "a");
        fixture.held.insert(id(n));
    }
    fixture.selector = "tier=batch".parse().unwrap();
    let labels = Arc::new([("tier".to_owned(), "batch".to_owned())].into());
    fixture.labels.0.0.insert(
        id(0),
        Arc::new(Versioned { index: Index(1), created: Index(1), value: Some(labels) }),
    );
    assert_eq!(fixture.plan("a").release, vec![id(1)]);
    fixture.selector = Selector::everything();
    fixture.records.0.remove(&id(0));
    assert_eq!(fixture.plan("a").release, vec![id(0)]);
    fixture.suspicious = true;
    assert!(fixture.plan("a").release.is_empty(), "an unbelievable tree releases nothing");
}

#[test]
fn locks_left_behind_are_given_up() {
    let mut fixture = Fixture::new(2, &["a"]);
    for n in 0..3 {
        fixture.own(&id(n), if n == 1 { "x" } else { "a" });
        let session = SessionId::from("a");
        let locks = fixture.locks.0.get_mut(&id(n)).unwrap();
        locks.others.insert("update".to_owned(), session);
    }
    fixture.held.insert(id(0));
    let plan = fixture.plan("a");
    assert_eq!(plan.stray, [(id(1), "update".to_owned())], "the first is at work with it");
    assert_eq!(plan.release, [id(2)], "there is no such record any more");
    fixture.suspicious = true;
    assert!(fixture.plan("a").release.is_empty());
}

#[test]
fn leftovers_of_a_record_are_claimed_until_none_remain() {
    let mut fixture = Fixture::new(1, &["a"]);
    fixture.left_behind.insert(id(7));
    assert_eq!(fixture.plan("a").claim, [id(0), id(7)]);
    fixture.held.insert(id(7));
    fixture.own(&id(7), "a");
    assert!(fixture.plan("a").release.is_empty());
    fixture.left_behind.clear();
    assert_eq!(fixture.plan("a").release, [id(7)]);
}

#[test]
fn a_barred_record_waits() {
    let mut fixture = Fixture::new(1, &["a"]);
    let until = fixture.now + Duration::from_secs(1);
    fixture.barred.insert(id(0), until);
    let plan = fixture.plan("a");
    assert_eq!((plan.claim.len(), plan.again_at), (0, Some(until)));
}
