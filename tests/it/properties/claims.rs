//! Claim plans of one farm, and of all farms together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rcfarm::farm::plan::{ClaimPlan, ClaimsObserved, GRACE, plan};
use rcfarm::farm::record_labels::{OwnLabels, SelectedBy};
use rcfarm::farm::records::{Locks, PeerFarm, Peers, Record, RecordLabels, RecordLocks, Records};
use rcfarm_api::Index;
use rcfarm_api::ids::RecordId;
use rcfarm_api::ids::{FarmName, SessionId};
use rcfarm_api::labels::Selector;
use rcfarm_store::Versioned;

const SELECTORS: [&str; 3] = ["", "tier=web", "tier!=web"];

/// State of a record.
#[derive(Debug, Clone)]
struct RecordCase {
    tier: Option<bool>,
    /// Number of a session: a farm's or an unknown one.
    owner: Option<usize>,
    held: bool,
    barred_for: Option<i64>,
    unowned_for: Option<u64>,
    is_listed: bool,
}

/// Input of the farm `f0`.
#[derive(Debug, Clone)]
struct ClaimsCase {
    records: Vec<RecordCase>,
    /// Selector, whether it is leaving, and seconds since it was first seen.
    farms: Vec<(usize, bool, u64)>,
    suspicious: bool,
}

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

fn seen() -> impl Strategy<Value = RecordCase> {
    let owner = prop::option::of(0..6usize);
    let barred = prop::option::weighted(0.2, -1_000..1_000i64);
    let unowned = prop::option::of(0..2_000u64);
    (any::<Option<bool>>(), owner, any::<bool>(), barred, unowned, prop::bool::weighted(0.9))
        .prop_map(|(tier, owner, held, barred_for, unowned_for, is_listed)| RecordCase {
            tier,
            owner,
            held,
            barred_for,
            unowned_for,
            is_listed,
        })
}

fn world() -> impl Strategy<Value = ClaimsCase> {
    let farm = (0..SELECTORS.len(), prop::bool::weighted(0.15), 0..5_000u64);
    (prop::collection::vec(seen(), 0..30), prop::collection::vec(farm, 1..5), any::<bool>())
        .prop_map(|(records, farms, suspicious)| ClaimsCase { records, farms, suspicious })
}

fn id(n: usize) -> RecordId {
    RecordId::from(format!("r{n:04}").as_str())
}

fn name(n: usize) -> FarmName {
    format!("f{n}").parse().unwrap()
}

fn session(n: usize) -> SessionId {
    SessionId::from(format!("s{n}").as_str())
}

/// A [`ClaimsCase`] as input of the plan.
struct View {
    records: Records,
    labels: RecordLabels,
    own_labels: OwnLabels,
    locks: Locks,
    peers: Peers,
    peers_since: BTreeMap<FarmName, Duration>,
    held: BTreeSet<RecordId>,
    barred: BTreeMap<RecordId, Duration>,
    unowned_since: BTreeMap<RecordId, Duration>,
    selectors: Vec<Selector>,
    suspicious: bool,
    now: Duration,
}

impl ClaimsCase {
    fn view(&self) -> View {
        let now = Duration::from_secs(3_600);
        let record = Arc::new(Record { index: Index(1), created: Index(1), value: "".into() });
        let selectors: Vec<Selector> =
            self.farms.iter().map(|(s, ..)| SELECTORS[*s].parse().unwrap()).collect();
        let mut view = View {
            records: Records::default(),
            labels: RecordLabels::default(),
            own_labels: OwnLabels::default(),
            locks: Locks::default(),
            peers: Peers::default(),
            peers_since: BTreeMap::new(),
            held: BTreeSet::new(),
            barred: BTreeMap::new(),
            unowned_since: BTreeMap::new(),
            selectors,
            suspicious: self.suspicious,
            now,
        };
        for (n, (_, leaving, seen_for)) in self.farms.iter().enumerate() {
            let value = PeerFarm {
                session: session(n),
                selector: view.selectors[n].clone(),
                leaving: *leaving,
            };
            let peer = Versioned { index: Index(1), created: Index(1), value };
            view.peers.0.insert(name(n), Arc::new(peer));
            view.peers_since.insert(name(n), now - MILLIS(*seen_for));
        }
        for (n, seen) in self.records.iter().enumerate() {
            if seen.is_listed {
                view.records.0.insert(id(n), record.clone());
            }
            if let Some(is_web) = seen.tier {
                let tier = if is_web { "web" } else { "batch" };
                let labels = Arc::new([("tier".to_owned(), tier.to_owned())].into());
                view.labels.0.0.insert(
                    id(n),
                    Arc::new(Versioned { index: Index(1), created: Index(1), value: Some(labels) }),
                );
            }
            if let Some(owner) = seen.owner {
                view.own(&id(n), session(owner));
            }
            if seen.held {
                view.held.insert(id(n));
            }
            if let Some(rest) = seen.barred_for {
                let rest_abs = MILLIS(rest.unsigned_abs());
                let until = if rest < 0 { now - rest_abs } else { now + rest_abs };
                view.barred.insert(id(n), until);
            }
            if let Some(unowned_for) = seen.unowned_for {
                view.unowned_since.insert(id(n), now - MILLIS(unowned_for));
            }
        }
        view
    }
}

impl View {
    fn own(&mut self, id: &RecordId, session: SessionId) {
        let locks = RecordLocks { owner: Some(session), others: BTreeMap::new() };
        self.locks.0.insert(id.clone(), locks);
    }

    fn owner(&self, id: &RecordId) -> Option<&SessionId> {
        self.locks.0.get(id)?.owner.as_ref()
    }

    fn selected_by(&self) -> SelectedBy<'_> {
        SelectedBy { keys: &self.labels, own: &self.own_labels }
    }

    fn wants(&self, farm: usize, id: &RecordId) -> bool {
        self.selected_by().matches(id, &self.selectors[farm])
    }

    fn plan(&self, me: usize) -> ClaimPlan {
        plan(&ClaimsObserved {
            records: &self.records,
            labels: self.selected_by(),
            locks: &self.locks,
            peers: &self.peers,
            peers_since: &self.peers_since,
            me: &name(me),
            session: &session(me),
            selector: &self.selectors[me],
            held: &self.held,
            barred: &self.barred,
            unowned_since: &self.unowned_since,
            doubtful: false,
            left_behind: &BTreeSet::new(),
            suspicious: self.suspicious,
            now: self.now,
        })
    }

    /// The view after Consul has executed the plan.
    fn after(mut self, plan: &ClaimPlan) -> View {
        for id in plan.claim.iter().chain(&plan.adopt) {
            self.own(id, session(0));
            self.held.insert(id.clone());
        }
        for id in &plan.release {
            if self.owner(id) == Some(&session(0)) {
                self.locks.0.remove(id);
            }
            self.held.remove(id);
        }
        for id in &plan.drop {
            self.held.remove(id);
        }
        for (id, _, to) in &plan.hand_over {
            self.own(id, to.clone());
            self.held.remove(id);
        }
        self
    }
}

proptest! {
    #[test]
    fn one_thing_at_most_is_done_about_a_record(world in world()) {
        let view = world.view();
        let plan = view.plan(0);
        let handed = plan.hand_over.iter().map(|(id, ..)| id);
        let all: Vec<&RecordId> = plan.claim.iter().chain(&plan.adopt).chain(&plan.release)
            .chain(&plan.drop).chain(handed).collect();
        let once: BTreeSet<&RecordId> = all.iter().copied().collect();
        prop_assert_eq!(once.len(), all.len(), "{:?}", plan);
    }

    #[test]
    fn only_what_may_be_done_is(world in world()) {
        let view = world.view();
        let plan = view.plan(0);
        let mine = Some(&session(0));
        for id in &plan.claim {
            prop_assert!(view.owner(id).is_none() && view.wants(0, id) && !view.held.contains(id));
            prop_assert!(view.barred.get(id).is_none_or(|until| *until <= view.now));
        }
        for id in &plan.adopt {
            prop_assert!(view.owner(id) == mine && view.wants(0, id) && !view.held.contains(id));
        }
        for id in &plan.release {
            let is_gone = !view.records.0.contains_key(id);
            prop_assert!(!view.wants(0, id) || is_gone);
            prop_assert!(view.held.contains(id) || view.owner(id) == mine);
            prop_assert!(!(is_gone && view.suspicious), "an unbelievable tree releases nothing");
        }
        for id in &plan.drop {
            prop_assert!(view.held.contains(id) && view.owner(id).is_some_and(|o| Some(o) != mine));
        }
        for (id, farm, to) in &plan.hand_over {
            prop_assert!(view.held.contains(id) && view.owner(id) == mine);
            let peer = &view.peers.0[farm].value;
            prop_assert!(*farm != name(0) && !peer.leaving && peer.session == *to);
            prop_assert!(view.selected_by().matches(id, &peer.selector));
        }
    }

    /// A record just claimed may belong to another farm by preference; then only a handover follows.
    #[test]
    fn planning_again_when_it_is_done_finds_nothing_but_hand_overs(world in world()) {
        let view = world.view();
        let first = view.plan(0);
        let view = view.after(&first);
        let second = view.plan(0);
        let taken = |id| first.claim.contains(id) || first.adopt.contains(id);
        prop_assert!(second.hand_over.iter().all(|(id, ..)| taken(id)), "{:?}", second);
        let third = view.after(&second).plan(0);
        let rest = ClaimPlan { again_at: None, hand_over: Vec::new(), ..second };
        prop_assert_eq!(rest, ClaimPlan::default());
        prop_assert_eq!(ClaimPlan { again_at: None, ..third }, ClaimPlan::default());
    }

    #[test]
    fn a_record_that_must_wait_is_looked_at_again(world in world()) {
        let view = world.view();
        let plan = view.plan(0);
        let waits = |id: &&RecordId| {
            view.owner(id).is_none() && view.wants(0, id) && !view.held.contains(*id)
                && !plan.claim.contains(id)
        };
        if view.records.0.keys().any(|id| waits(&id)) {
            prop_assert!(plan.again_at.is_some_and(|at| at > view.now));
        }
    }

    #[test]
    fn farms_that_agree_give_each_free_record_to_exactly_one(world in world()) {
        let mut view = world.view();
        view.locks = Locks::default();
        view.held.clear();
        view.barred.clear();
        view.unowned_since.clear();
        let plans: Vec<ClaimPlan> = (0..world.farms.len()).map(|n| view.plan(n)).collect();
        for id in view.records.0.keys() {
            let claimants: Vec<usize> =
                (0..plans.len()).filter(|n| plans[*n].claim.contains(id)).collect();
            let stays = |n: &usize| view.wants(*n, id) && !world.farms[*n].1;
            if (0..plans.len()).any(|n| stays(&n)) {
                prop_assert!(claimants.len() == 1 && stays(&claimants[0]), "{id}: {claimants:?}");
            } else {
                prop_assert!(claimants.iter().all(|n| view.wants(*n, id)));
            }
        }
    }

    #[test]
    fn after_the_grace_no_free_record_is_left(world in world()) {
        let mut view = world.view();
        view.barred.clear();
        view.unowned_since = view.records.0.keys().map(|id| (id.clone(), view.now - GRACE)).collect();
        let plan = view.plan(0);
        for id in view.records.0.keys() {
            let is_free = view.owner(id).is_none() && !view.held.contains(id);
            prop_assert_eq!(plan.claim.contains(id), is_free && view.wants(0, id));
        }
    }

    #[test]
    fn a_farm_that_comes_moves_only_its_own_share(world in world(), selector in 0..SELECTORS.len()) {
        let preferred = |world: &ClaimsCase| -> BTreeMap<RecordId, Vec<usize>> {
            let mut view = world.view();
            view.locks = Locks::default();
            view.held.clear();
            view.barred.clear();
            view.unowned_since.clear();
            let plans: Vec<ClaimPlan> = (0..world.farms.len()).map(|n| view.plan(n)).collect();
            let claimants = |id: &RecordId| -> Vec<usize> {
                (0..plans.len()).filter(|n| plans[*n].claim.contains(id)).collect()
            };
            view.records.0.keys().map(|id| (id.clone(), claimants(id))).collect()
        };
        let newcomer = world.farms.len();
        let mut grown = world.clone();
        grown.farms.push((selector, false, 0));
        let before = preferred(&world);
        for (id, claimants) in preferred(&grown) {
            prop_assert!(claimants == [newcomer] || claimants == before[&id], "{id}");
        }
    }
}
