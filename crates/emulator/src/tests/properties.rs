//! Properties of the state machine under random operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// One event. Sessions are numbered in the order of their creation.
#[derive(Debug, Clone)]
enum Event {
    Kv(KvOp, Option<usize>),
    Txn(Vec<(KvOp, Option<usize>)>),
    Create { ttl: bool, delete: bool, lock_delay: i64 },
    Renew(usize),
    Destroy(usize),
    Pass(Duration),
}

fn op() -> impl Strategy<Value = (KvOp, Option<usize>)> {
    let verbs = prop::sample::select(vec![
        "set",
        "set",
        "cas",
        "lock",
        "lock",
        "unlock",
        "delete",
        "delete-tree",
        "delete-cas",
        "check-session",
        "check-not-exists",
        "get",
    ]);
    let keys = prop::sample::select(vec!["a", "a/", "a/b", "a/bc", "a/b/c", "b"]);
    let fields = (verbs, keys, "[xy]{0,1}", 0..2u64, 0..40u64, prop::option::of(0..3usize));
    fields.prop_map(|(verb, key, v, flags, index, session)| {
        let index = if index < 10 { Index::ZERO } else { Index(index) };
        let op = KvOp::new(Verb::parse(verb), key);
        (KvOp { value: value(&v), flags, index, ..op }, session)
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => op().prop_map(|(op, session)| Event::Kv(op, session)),
        4 => prop::collection::vec(op(), 1..4).prop_map(Event::Txn),
        2 => (any::<bool>(), any::<bool>(), -1..2i64).prop_map(|(ttl, delete, delay)| {
            Event::Create { ttl, delete, lock_delay: delay * 1_000_000_000 }
        }),
        1 => (0..3usize).prop_map(Event::Renew),
        1 => (0..3usize).prop_map(Event::Destroy),
        2 => (1..12u64).prop_map(|s| Event::Pass(SEC * u32::try_from(s).unwrap())),
    ]
}

struct Fixture {
    model: Model,
    now: Duration,
    sessions: Vec<SessionId>,
}

impl Fixture {
    fn id(&self, nth: usize) -> String {
        let known = nth.checked_rem(self.sessions.len()).map(|n| self.sessions[n].to_string());
        known.unwrap_or_else(|| "11111111-1111-1111-1111-111111111111".to_owned())
    }

    fn named(&self, (op, session): &(KvOp, Option<usize>)) -> KvOp {
        let session = session.map(|nth| self.id(nth)).unwrap_or_default();
        KvOp { session, ..op.clone() }
    }

    /// Applies the event. Returns the write, and whether the answer was a refusal.
    fn apply(&mut self, event: &Event) -> (Option<Applied>, bool) {
        match event {
            Event::Kv(op, session) => {
                let step = self.model.kv(self.now, self.named(&(op.clone(), *session)));
                let refused = !matches!(step.reply, Ok(true));
                (step.applied, refused)
            }
            Event::Txn(ops) => {
                let ops = ops.iter().map(|op| self.named(op)).collect();
                let step = self.model.txn(self.now, ops);
                let refused = matches!(step.reply, Ok(TxnOutcome::Refused(_)));
                (step.applied, refused)
            }
            Event::Create { ttl, delete, lock_delay } => {
                let request = SessionRequest {
                    node: "embedded".to_owned(),
                    ttl: if *ttl { "10s" } else { "" }.to_owned(),
                    behavior: if *delete { "delete" } else { "" }.to_owned(),
                    lock_delay: *lock_delay,
                    ..SessionRequest::default()
                };
                let step = self.model.create_session(self.now, request);
                self.sessions.push(step.reply.unwrap());
                (step.applied, false)
            }
            Event::Renew(nth) => {
                let id = SessionId::from(self.id(*nth).as_str());
                (None, self.model.renew_session(self.now, &id).is_none())
            }
            Event::Destroy(nth) => {
                let id = SessionId::from(self.id(*nth).as_str());
                (self.model.destroy_session(self.now, &id).applied, false)
            }
            Event::Pass(time) => {
                self.now += *time;
                (None, false)
            }
        }
    }
}

fn entries(tables: &Tables) -> BTreeMap<String, Arc<Entry>> {
    tables.kv.list("").map(|e| (e.key.clone(), e.clone())).collect()
}

/// Whether a tree above `prefix` was deleted: see `indexes::deletion_of_a_wider_tree_may_wake_no_watch`.
fn buries_elsewhere(applied: &Applied, prefix: &str) -> bool {
    let Cause::Kv(ops) = &applied.cause else { return false };
    ops.iter().any(|op| {
        op.verb == Verb::DeleteTree && prefix.starts_with(&op.key) && prefix.len() > op.key.len()
    })
}

/// Checks the invariants of two states and the write between them.
fn check(before: &Tables, after: &Tables, applied: Option<&Applied>) -> Result<(), TestCaseError> {
    let (old, new) = (entries(before), entries(after));
    let mut replayed = old.clone();
    for change in applied.iter().flat_map(|a| &a.changes) {
        prop_assert_eq!(replayed.get(&change.key), change.before.as_ref());
        prop_assert_ne!(&change.before, &change.after);
        match &change.after {
            Some(entry) => {
                prop_assert_eq!(entry.modify_index, after.index, "one index for all");
                replayed.insert(change.key.clone(), entry.clone());
            }
            None => drop(replayed.remove(&change.key)),
        }
    }
    prop_assert_eq!(&replayed, &new, "the changes are all that changed");
    if let Some(applied) = applied {
        prop_assert!(applied.index == after.index && after.index > before.index);
        let mut unwound = after.clone();
        unwound.kv.unwind(applied.index, &applied.changes, "");
        prop_assert_eq!(entries(&unwound), old, "and can be undone");
    }
    for entry in new.values() {
        prop_assert!(entry.create_index <= entry.modify_index);
        if let Some(holder) = &entry.session {
            prop_assert!(after.sessions.get(holder).is_some(), "held by a session that is gone");
            prop_assert!(after.kv.held_by(holder).any(|key| key == entry.key));
        }
    }
    let held: usize = after.sessions.all().map(|s| after.kv.held_by(&s.id).count()).sum();
    prop_assert_eq!(held, new.values().filter(|e| e.session.is_some()).count());
    for prefix in ["a", "a/", "a/b", "b", "none"] {
        let live = new.values().filter(|e| e.key.starts_with(prefix)).map(|e| e.modify_index);
        prop_assert!(live.max().unwrap_or_default() <= after.kv.prefix_index(prefix));
        let touched = applied.iter().flat_map(|a| &a.changes).any(|c| c.key.starts_with(prefix));
        if touched && !applied.is_some_and(|a| buries_elsewhere(a, prefix)) {
            prop_assert_eq!(after.kv.prefix_index(prefix), after.index, "a watch of it must wake");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn write_reports_its_changes_and_refusal_changes_nothing(events in prop::collection::vec(event(), 1..60)) {
        let model = Model::new("embedded", 64, IdSource::from_seed(1));
        let mut fixture = Fixture { model, now: Duration::ZERO, sessions: Vec::new() };
        for event in &events {
            loop {
                let before = fixture.model.tables().clone();
                let Some(expired) = fixture.model.expire_next(fixture.now) else { break };
                prop_assert!(expired.at <= fixture.now);
                check(&before, fixture.model.tables(), Some(&expired))?;
            }
            let before = fixture.model.tables().clone();
            let (applied, refused) = fixture.apply(event);
            prop_assert!(!(refused && applied.is_some()), "{event:?}");
            check(&before, fixture.model.tables(), applied.as_ref())?;
        }
    }
}
