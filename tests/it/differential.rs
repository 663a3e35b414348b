//! Runs random operations on the emulator and on a real Consul; all answers must be equal.
//!
//! Session ids and indexes differ. Sessions are compared by the order of their creation, indexes by their order.
//!
//! `DIFFERENTIAL_SEED=n` replays one sequence; `DIFFERENTIAL_STEPS=n` sets the length of each.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rcfarm_api::ids::SessionId;
use rcfarm_emulator::Emulator;
use rcfarm_store::time::IdSource;
use rcfarm_store::{
    Answer, Behavior, BlockingWait, Consistency, DeleteMode, Entry, Index, Key, NewSession, Op,
    Prefix, Prefixed, PutMode, Query, SessionInfo, Store, StoreError, TxnOutcome,
};

use rcfarm_testing::consul_server::ConsulServer;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;
const STEPS: u64 = 3_000;

/// Small sets, so that operations interact.
const KEYS: &[&str] =
    &["a", "a/b", "a/b/c", "a/d", "ab", "b/a", "b/b", "b/b/b", "c", "lock/a", "lock/b", "lock/c"];
const PREFIXES: &[&str] = &["", "a", "a/b", "b", "lock", "none"];
const VALUES: &[&str] = &["", "x", "y", "longer"];
const OPEN_SESSIONS: usize = 6;

/// Unknown sessions. The empty id is valid only in operations on keys.
const NO_SESSIONS: [&str; 3] = ["", "00000000-0000-4000-8000-000000000000", "no-uuid"];

/// An index of the emulator and of Consul.
type Both = [u64; 2];

/// One operation. Sessions are positions in [`Run::sessions`].
#[derive(Debug, Clone)]
enum Step {
    Put { key: &'static str, value: &'static str, flags: u64, mode: Mode },
    Delete { key: &'static str, index: Option<Both> },
    DeleteTree(&'static str),
    Get(&'static str, How),
    List(&'static str, How),
    Keys(&'static str, Option<&'static str>, How),
    Txn(Vec<Verb>),
    CreateSession(Behavior),
    DestroySession(usize),
    RenewSession(usize),
    Session(usize),
    Sessions,
}

#[derive(Debug, Clone)]
enum Mode {
    Set,
    Cas(Both),
    Acquire(usize),
    Release(usize),
}

/// Consistency of a read, and an index for a short blocking read.
#[derive(Debug, Clone)]
struct How(Consistency, Option<Both>);

#[derive(Debug, Clone)]
enum Verb {
    Set(&'static str, &'static str, u64),
    Cas(&'static str, &'static str, Both),
    Lock(&'static str, &'static str, usize),
    Unlock(&'static str, &'static str, usize),
    Get(&'static str),
    GetTree(&'static str),
    CheckIndex(&'static str, Both),
    CheckSession(&'static str, usize),
    CheckNotExists(&'static str),
    Delete(&'static str),
    DeleteTree(&'static str),
    DeleteCas(&'static str, Both),
}

/// A comparable answer; indexes are listed separately.
#[derive(Debug, Default)]
struct StoreAnswer {
    text: String,
    indexes: Vec<u64>,
}

/// One of the two stores, with its session ids.
struct Side {
    which: usize,
    store: Arc<dyn Store>,
    sessions: Vec<SessionId>,
}

struct Run {
    chance: IdSource,
    sides: [Side; 2],
    /// Known indexes, emulator to Consul; both sides must have the same order.
    indexes: BTreeMap<u64, u64>,
    /// Recent indexes, used in conditions.
    recent: VecDeque<Both>,
    open: Vec<usize>,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_answers_as_consul_does() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect(name));
    let seeds = number("DIFFERENTIAL_SEED").map_or(SEEDS, |seed| seed..=seed);
    let steps = number("DIFFERENTIAL_STEPS").unwrap_or(STEPS);
    let server = ConsulServer::dev().await;
    let consul: Arc<dyn Store> = Arc::new(server.client());
    for seed in seeds {
        let chance = IdSource::from_seed(seed);
        let model: Arc<dyn Store> = Arc::new(Emulator::new(&Default::default(), &chance.fork()));
        let mut run = Run::new(chance, seed, model, consul.clone());
        let mut past = VecDeque::new();
        for n in 0..steps {
            let step = run.step().await;
            past.push_back(format!("{n}: {step:?}"));
            if past.len() > 15 {
                past.pop_front();
            }
            if let Err(difference) = run.compare(&step).await {
                let past = past.make_contiguous().join("\n");
                panic!("DIFFERENTIAL_SEED={seed}, after\n{past}\n{difference}");
            }
        }
    }
}

impl Run {
    fn new(chance: IdSource, seed: u64, model: Arc<dyn Store>, consul: Arc<dyn Store>) -> Run {
        let root = Prefix::parse(&format!("seed-{seed}")).unwrap();
        let sessions: Vec<SessionId> = NO_SESSIONS.map(SessionId::from).into();
        let side = |which, store| Side {
            which,
            store: Prefixed::new(store, root.clone()),
            sessions: sessions.clone(),
        };
        let sides = [side(0, model), side(1, consul)];
        Run { chance, sides, indexes: BTreeMap::new(), recent: VecDeque::new(), open: Vec::new() }
    }

    /// Runs a step on both sides.
    async fn compare(&mut self, step: &Step) -> Result<(), String> {
        let [model, consul] = &mut self.sides;
        let (model, consul) = (model.take(step).await, consul.take(step).await);
        if model.text != consul.text || model.indexes.len() != consul.indexes.len() {
            return Err(format!("the model:  {model:?}\nConsul:     {consul:?}"));
        }
        for both in model.indexes.iter().zip(&consul.indexes).map(|(m, c)| [*m, *c]) {
            self.learn(both)
                .map_err(|why| format!("{why}\nthe model:  {model:?}\nConsul:     {consul:?}"))?;
        }
        match step {
            Step::CreateSession(_) => self.open.push(self.sides[0].sessions.len() - 1),
            Step::DestroySession(gone) => self.open.retain(|open| open != gone),
            _ => {}
        }
        Ok(())
    }

    /// Adds two indexes that must correspond.
    fn learn(&mut self, [model, consul]: Both) -> Result<(), String> {
        let before = self.indexes.range(..model).next_back();
        let after = self.indexes.range((Excluded(model), Unbounded)).next();
        let same = self.indexes.get(&model).is_none_or(|known| *known == consul);
        let order =
            before.is_none_or(|(_, c)| *c < consul) && after.is_none_or(|(_, c)| *c > consul);
        if !same || !order {
            let known = self.indexes.get(&model);
            return Err(format!(
                "index {model} of the model and {consul} of Consul: before {before:?}, known {known:?}, after {after:?}"
            ));
        }
        self.indexes.insert(model, consul);
        self.recent.push_back([model, consul]);
        if self.recent.len() > 20 {
            self.recent.pop_front();
        }
        Ok(())
    }

    fn pick<T: Copy>(&self, from: &[T]) -> T {
        let at = self.chance.below(from.len() as u64);
        from[usize::try_from(at).unwrap()]
    }

    fn one_in(&self, n: u64) -> bool {
        self.chance.below(n) == 0
    }

    /// Usually an existing session, sometimes a destroyed or unknown one.
    fn session(&self) -> usize {
        match self.open.is_empty() || self.one_in(6) {
            true => {
                usize::try_from(self.chance.below(self.sides[0].sessions.len() as u64)).unwrap()
            }
            false => self.pick(&self.open),
        }
    }

    /// Usually the key's present index, sometimes none, a past or an unused one.
    async fn index(&mut self, key: &'static str) -> Both {
        match self.chance.below(6) {
            0 => [0, 0],
            1 => [u64::MAX, u64::MAX],
            2 => self.recent.back().copied().unwrap_or_default(),
            _ => {
                let mut now = [0, 0];
                for (side, now) in self.sides.iter().zip(&mut now) {
                    let answer = side.store.get(&side.key(key), Query::PLAIN).await.unwrap();
                    *now = answer.value.map_or(0, |entry| entry.modify_index.0);
                }
                now
            }
        }
    }

    fn how(&self) -> How {
        let consistency =
            self.pick(&[Consistency::Leader, Consistency::Consistent, Consistency::Stale]);
        let recent: Vec<Both> = self.recent.iter().copied().collect();
        How(consistency, (!recent.is_empty() && self.one_in(4)).then(|| self.pick(&recent)))
    }

    async fn step(&mut self) -> Step {
        let (key, value, prefix) = (self.pick(KEYS), self.pick(VALUES), self.pick(PREFIXES));
        match self.chance.below(100) {
            0..30 => {
                let mode = match self.chance.below(8) {
                    0..3 => Mode::Set,
                    3..5 => Mode::Cas(self.index(key).await),
                    5..7 => Mode::Acquire(self.session()),
                    _ => Mode::Release(self.session()),
                };
                Step::Put { key, value, flags: self.chance.below(2), mode }
            }
            30..36 => {
                let index = if self.one_in(2) { Some(self.index(key).await) } else { None };
                Step::Delete { key, index }
            }
            36..38 => Step::DeleteTree(prefix),
            38..50 => Step::Get(key, self.how()),
            50..58 => Step::List(prefix, self.how()),
            58..62 => Step::Keys(prefix, self.pick(&[None, Some("/"), Some("b")]), self.how()),
            62..87 => {
                let mut verbs = Vec::new();
                for _ in 0..=self.chance.below(5) {
                    verbs.push(self.verb().await);
                }
                Step::Txn(verbs)
            }
            87..92 if self.open.len() < OPEN_SESSIONS => {
                Step::CreateSession(self.pick(&[Behavior::Release, Behavior::Delete]))
            }
            87..94 => Step::DestroySession(self.session().max(1)),
            94..96 => Step::RenewSession(self.session().max(1)),
            96..98 => Step::Session(self.session().max(1)),
            _ => Step::Sessions,
        }
    }

    async fn verb(&mut self) -> Verb {
        let (key, value, prefix) = (self.pick(KEYS), self.pick(VALUES), self.pick(PREFIXES));
        match self.chance.below(20) {
            0..4 => Verb::Set(key, value, self.chance.below(2)),
            4..7 => Verb::Cas(key, value, self.index(key).await),
            7..10 => Verb::Lock(key, value, self.session()),
            10 => Verb::Unlock(key, value, self.session()),
            11 => Verb::Get(key),
            12 => Verb::GetTree(prefix),
            13 => Verb::CheckIndex(key, self.index(key).await),
            14 => Verb::CheckSession(key, self.session()),
            15 => Verb::CheckNotExists(key),
            16..18 => Verb::Delete(key),
            18 => Verb::DeleteTree(prefix),
            _ => Verb::DeleteCas(key, self.index(key).await),
        }
    }
}

impl Side {
    async fn take(&mut self, step: &Step) -> StoreAnswer {
        match step {
            Step::Put { key, value, flags, mode } => {
                let mode = match mode {
                    Mode::Set => PutMode::Set,
                    Mode::Cas(index) => PutMode::Cas(self.index(index)),
                    Mode::Acquire(session) => PutMode::Acquire(self.session(*session)),
                    Mode::Release(session) => PutMode::Release(self.session(*session)),
                };
                let value = Bytes::from_static(value.as_bytes());
                self.plain(self.store.put(&self.key(key), value, *flags, mode).await)
            }
            Step::Delete { key, index } => {
                let mode =
                    index.map_or(DeleteMode::Always, |index| DeleteMode::Cas(self.index(&index)));
                self.plain(self.store.delete(&self.key(key), mode).await)
            }
            Step::DeleteTree(prefix) => {
                self.plain(self.store.delete_tree(&self.prefix(prefix)).await)
            }
            Step::Get(key, how) => self
                .entries(self.store.get(&self.key(key), self.query(how)).await.map(Answer::listed)),
            Step::List(prefix, how) => {
                self.entries(self.store.list(&self.prefix(prefix), self.query(how)).await)
            }
            Step::Keys(prefix, separator, how) => {
                let keys = self.store.keys(&self.prefix(prefix), *separator, self.query(how)).await;
                let mut seen = StoreAnswer::default();
                match keys {
                    Ok(answer) => {
                        seen.text = format!("{:?}", answer.value);
                        seen.indexes.push(answer.index.0);
                    }
                    Err(error) => seen.text = self.masked(&format!("{error:?}")),
                }
                seen
            }
            Step::Txn(verbs) => {
                let ops: Vec<Op> = verbs.iter().map(|verb| self.op(verb)).collect();
                self.outcome(self.store.txn(&ops).await)
            }
            Step::CreateSession(behavior) => {
                let new =
                    NewSession { name: "s".into(), behavior: *behavior, ..NewSession::default() };
                let created = self.store.create_session(&new).await.unwrap();
                self.sessions.push(created);
                StoreAnswer::default()
            }
            Step::DestroySession(n) => {
                self.plain(self.store.destroy_session(&self.session(*n)).await)
            }
            Step::RenewSession(n) => self.plain(self.store.renew_session(&self.session(*n)).await),
            Step::Session(n) => {
                self.infos(self.store.session(&self.session(*n)).await.map(Answer::listed))
            }
            Step::Sessions => self.infos(self.store.sessions().await),
        }
    }

    fn op(&self, verb: &Verb) -> Op {
        let value = |text: &'static str| Bytes::from_static(text.as_bytes());
        match verb {
            Verb::Set(key, text, flags) => {
                Op::Set { key: self.key(key), value: value(text), flags: *flags }
            }
            Verb::Cas(key, text, index) => Op::Cas {
                key: self.key(key),
                value: value(text),
                flags: 0,
                index: self.index(index),
            },
            Verb::Lock(key, text, n) => {
                Op::Lock { key: self.key(key), value: value(text), session: self.session(*n) }
            }
            Verb::Unlock(key, text, n) => {
                Op::Unlock { key: self.key(key), value: value(text), session: self.session(*n) }
            }
            Verb::Get(key) => Op::Get { key: self.key(key) },
            Verb::GetTree(prefix) => Op::GetTree { prefix: self.prefix(prefix) },
            Verb::CheckIndex(key, index) => {
                Op::CheckIndex { key: self.key(key), index: self.index(index) }
            }
            Verb::CheckSession(key, n) => {
                Op::CheckSession { key: self.key(key), session: self.session(*n) }
            }
            Verb::CheckNotExists(key) => Op::CheckNotExists { key: self.key(key) },
            Verb::Delete(key) => Op::Delete { key: self.key(key) },
            Verb::DeleteTree(prefix) => Op::DeleteTree { prefix: self.prefix(prefix) },
            Verb::DeleteCas(key, index) => {
                Op::DeleteCas { key: self.key(key), index: self.index(index) }
            }
        }
    }

    fn key(&self, key: &str) -> Key {
        Key::parse(key).unwrap()
    }

    fn prefix(&self, prefix: &str) -> Prefix {
        Prefix::parse(prefix).unwrap()
    }

    fn index(&self, index: &Both) -> Index {
        Index(index[self.which])
    }

    fn session(&self, n: usize) -> SessionId {
        self.sessions[n].clone()
    }

    fn query(&self, How(consistency, after): &How) -> Query {
        let at_most = Duration::from_millis(1);
        let wait = after.map(|after| BlockingWait { after: self.index(&after), at_most });
        Query { consistency: *consistency, wait }
    }

    /// Replaces sessions by their order, and removes numbers.
    fn masked(&self, text: &str) -> String {
        let uuids = self.sessions.iter().enumerate().filter(|(_, id)| id.as_str().len() == 36);
        let named = uuids
            .fold(text.to_owned(), |text, (n, id)| text.replace(id.as_str(), &session_name(n)));
        let mut masked = String::new();
        for c in named.chars() {
            if !c.is_ascii_digit() {
                masked.push(c);
            } else if !masked.ends_with('0') {
                masked.push('0');
            }
        }
        masked
    }

    fn plain<T: std::fmt::Debug>(&self, result: Result<T, StoreError>) -> StoreAnswer {
        StoreAnswer { text: self.masked(&format!("{result:?}")), indexes: Vec::new() }
    }

    fn entry(&self, entry: &Entry, seen: &mut StoreAnswer) {
        let session = entry.session.as_ref();
        let session = session.and_then(|id| self.sessions.iter().position(|known| known == id));
        let Entry { key, value, flags, lock_index, create_index, modify_index, .. } = entry;
        let _ = write!(seen.text, "[{key} {value:?} {flags} {session:?} {lock_index}]");
        seen.indexes.extend([create_index.0, modify_index.0]);
    }

    fn entries(&self, result: Result<Answer<Vec<Entry>>, StoreError>) -> StoreAnswer {
        let mut seen = StoreAnswer::default();
        match result {
            Ok(answer) => {
                answer.value.iter().for_each(|entry| self.entry(entry, &mut seen));
                seen.indexes.push(answer.index.0);
            }
            Err(error) => seen.text = self.masked(&format!("{error:?}")),
        }
        seen
    }

    fn outcome(&self, result: Result<TxnOutcome, StoreError>) -> StoreAnswer {
        let mut seen = StoreAnswer::default();
        match result {
            Ok(TxnOutcome::Committed { index, entries }) => {
                entries.iter().for_each(|entry| self.entry(entry, &mut seen));
                // Index 0 means no change, on both sides.
                let _ = write!(seen.text, "committed, changed: {}", index != Index::ZERO);
                seen.indexes.extend((index != Index::ZERO).then_some(index.0));
            }
            Ok(TxnOutcome::Refused(refusals)) => {
                for refusal in refusals {
                    let _ = write!(seen.text, "[{} {}]", refusal.op, self.masked(&refusal.what));
                }
            }
            Err(error) => seen.text = self.masked(&format!("{error:?}")),
        }
        seen
    }

    fn infos(&self, result: Result<Answer<Vec<SessionInfo>>, StoreError>) -> StoreAnswer {
        let mut seen = StoreAnswer::default();
        match result {
            Ok(answer) => {
                let known = |id| self.sessions.iter().position(|known| known == id);
                let mut infos: Vec<_> =
                    answer.value.iter().filter_map(|i| Some((known(&i.id)?, i))).collect();
                // Consul lists them by random id, together with those of earlier sequences.
                infos.sort_by_key(|(n, _)| *n);
                for (n, info) in infos {
                    let _ =
                        write!(seen.text, "[{n} {} {:?} {:?}]", info.name, info.behavior, info.ttl);
                    seen.indexes.push(info.create_index.0);
                }
                seen.indexes.push(answer.index.0);
            }
            Err(error) => seen.text = self.masked(&format!("{error:?}")),
        }
        seen
    }
}

/// Number of a session in letters, which masking keeps.
fn session_name(n: usize) -> String {
    let letters =
        n.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect::<String>();
    format!("#{letters}")
}

/// Converts an optional entry to a list, to compare both alike.
trait Listed<T> {
    fn listed(self) -> Answer<Vec<T>>;
}

impl<T> Listed<T> for Answer<Option<T>> {
    fn listed(self) -> Answer<Vec<T>> {
        Answer {
            value: self.value.into_iter().collect(),
            index: self.index,
            filtered: self.filtered,
        }
    }
}
