//! What running processes are told when their peers are elsewhere: a signal, or a restart in place (decision 40).
//!
//! A process is compared with the record that its files show. What it knows stands in `peers.json` of its launchable,
//! which is written before its start, before it is stopped, and after it got a signal. So an agent that was killed
//! between the files and the signal leaves a process that knows less than its files: the next agent tells it. A process
//! that was started with the files knows them and is told nothing. A signal may come twice, and is not lost.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tracing::warn;

use super::driver::{ProcessExit, Signalled};
use super::event::AgentEvent;
use super::plan::AgentPodState;
use super::pod::PodTask;
use super::pods::NodePods;
use super::state::{make_dir, read, write};
use rcfarm_api::Timestamp;
use rcfarm_api::ids::PodId;
use rcfarm_api::job::peers::PeersRecord;
use rcfarm_api::manifest::{PeerChange, PeerSignal, PeersStanza};

/// Pause before a process that does not handle the signal is asked again. It may have just been started.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// File of a launchable with [`KnownPeers`].
pub(super) const KNOWN_PEERS: &str = "peers.json";

/// What a process knows of its peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct KnownPeers {
    /// The start that knows it.
    attempt: u64,
    /// The addresses that it was started with, or of which a signal told it. `None`: those of its environment.
    peers: Option<PeersRecord>,
    /// The start that was stopped because a peer moved. Its end is no failure.
    stopped: Option<PeerStop>,
}

/// A stop because a peer moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct PeerStop {
    attempt: u64,
    /// Before the stop signal. What ended earlier ended by itself.
    at: Timestamp,
}

impl KnownPeers {
    /// What the start `attempt` of a launchable knows, and which start before it was stopped.
    pub(super) fn read(dir: &Path, attempt: u64) -> KnownPeers {
        let known: KnownPeers = read(&dir.join(KNOWN_PEERS)).unwrap_or_default();
        let peers = known.peers.filter(|_| known.attempt == attempt);
        KnownPeers { attempt, peers, stopped: known.stopped }
    }

    /// Stores it with the launchable.
    ///
    /// # Errors
    /// Text for the pod's status.
    pub(super) fn store(&self, dir: &Path) -> Result<(), String> {
        let stored = make_dir(dir).and_then(|()| write(&dir.join(KNOWN_PEERS), self));
        stored.map_err(|error| format!("{}: {error}", dir.join(KNOWN_PEERS).display()))
    }
}

/// State of a process in memory.
#[derive(Debug, Default)]
pub(super) struct ProcessPeers {
    known: KnownPeers,
    /// The record for which it was last decided.
    seen: Option<Arc<PeersRecord>>,
    /// The start to which a signal is being sent.
    telling: Option<u64>,
    /// It was stopped because a peer moved, and does not run again yet.
    pub(super) is_restarting: bool,
    /// Why it is not told.
    problem: Option<String>,
}

impl ProcessPeers {
    pub(super) fn new(known: KnownPeers) -> ProcessPeers {
        ProcessPeers { known, ..ProcessPeers::default() }
    }

    pub(super) fn started(&mut self) {
        (self.is_restarting, self.seen, self.problem) = (false, None, None);
    }

    /// Notes an end. Returns whether it follows from a stop because a peer moved.
    pub(super) fn ended(&mut self, exit: &ProcessExit) -> bool {
        let was_asked = |stop: &PeerStop| stop.attempt == exit.attempt && exit.at >= stop.at;
        let is_restarting = self.known.stopped.as_ref().is_some_and(was_asked);
        (self.is_restarting, self.telling, self.problem) = (is_restarting, None, None);
        is_restarting
    }
}

/// What is due for a running process.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PeerStep {
    Nothing,
    /// It knows the addresses; that is to be stored.
    Note,
    Signal(PeerSignal),
    /// The text says which address has changed.
    Restart(String),
}

/// Compares what a process knows with the record that its files show. `env`: what it was started with, if that is known.
/// Pure.
fn step(
    stanza: &PeersStanza,
    change: PeerChange,
    known: &KnownPeers,
    env: Option<&BTreeMap<String, String>>,
    now: &PeersRecord,
) -> PeerStep {
    // An agent that was killed may have sent the stop signal, or not.
    if known.stopped.is_some_and(|stop| stop.attempt == known.attempt) {
        return PeerStep::Restart("its restart was begun: one of its peers has moved".to_owned());
    }
    let Some(before) = &known.peers else {
        let differs =
            |(name, value): (String, String)| env.is_some_and(|env| env.get(&name) != Some(&value));
        return match (stanza.values(now).into_iter().any(differs), change) {
            (false, _) => PeerStep::Note,
            (true, PeerChange::Signal(signal)) => PeerStep::Signal(signal),
            (true, PeerChange::Restart) => {
                PeerStep::Restart("its peers are not where its environment says".to_owned())
            }
        };
    };
    match change {
        PeerChange::Signal(signal) => {
            let is_same =
                before.tasks == now.tasks || stanza.rendered(before) == stanza.rendered(now);
            if is_same { PeerStep::Nothing } else { PeerStep::Signal(signal) }
        }
        PeerChange::Restart => match stanza.moved(before, now) {
            Some((task, index)) => PeerStep::Restart(format!("its peer {task}-{index} has moved")),
            None => PeerStep::Nothing,
        },
    }
}

impl PodTask {
    /// What is told of moves, if files show a record.
    fn told(&self) -> Option<(Arc<PeersStanza>, PeerChange, Arc<PeersRecord>)> {
        let peers = self.peers.as_ref()?;
        let change = peers.stanza().on_change?;
        Some((peers.stanza().clone(), change, peers.shown()?.clone()))
    }

    /// Whether no file is written now, because a process is being started and reads them.
    pub(super) fn holds_files(&self) -> bool {
        self.processes.values().any(|process| process.state == AgentPodState::Starting)
    }

    /// Processes for which is to be decided whether they are told.
    fn untold(&self) -> Vec<String> {
        let Some((_, _, shown)) = self.told() else { return Vec::new() };
        let is_due = |process: &super::pod::PodProcess| {
            let peers = &process.peers;
            process.state == AgentPodState::Running
                && peers.telling.is_none()
                && peers.seen.as_ref() != Some(&shown)
        };
        let due = self.processes.iter().filter(|(_, process)| is_due(process));
        due.map(|(name, _)| name.clone()).collect()
    }

    /// Notes what the next start of a process knows. Returns what is to be stored before it. Members that are to be
    /// restarted when a peer moves know the last address of one without a node: they are restarted when it has another.
    pub(super) fn knows_at_start(&mut self, name: &str) -> Option<KnownPeers> {
        let change = self.peers.as_ref()?.stanza().on_change?;
        let shown = self.peers.as_ref()?.shown().cloned();
        let process = self.processes.get_mut(name)?;
        let known = &mut process.peers.known;
        known.attempt = process.attempt + 1;
        if let Some(shown) = shown {
            known.peers = Some(match (change, &known.peers) {
                (PeerChange::Restart, Some(before)) => shown.without_keys().or(before),
                _ => shown.without_keys(),
            });
        }
        Some(known.clone())
    }

    /// The variables with which a process that is restarted when a peer moves is started, in place of its manifest's.
    pub(super) fn peer_variables(&self, name: &str) -> BTreeMap<String, String> {
        let known = self.processes.get(name).and_then(|process| process.peers.known.peers.as_ref());
        let stanza = self.peers.as_ref().map(|peers| peers.stanza());
        match (stanza, known) {
            (Some(stanza), Some(known)) if stanza.on_change == Some(PeerChange::Restart) => {
                stanza.values(known)
            }
            _ => BTreeMap::new(),
        }
    }

    /// Why processes are not told of moves, for the pod's status.
    pub(super) fn peer_notes(&self) -> impl Iterator<Item = String> {
        let notes = self.processes.iter();
        notes.filter_map(|(name, process)| {
            Some(format!("{name}: {}", process.peers.problem.as_ref()?))
        })
    }
}

impl NodePods {
    /// Tells processes whose files show another record than they know.
    pub(super) fn tell_peers(&mut self) {
        let due = self.by_id.iter().map(|(id, pod)| (id.clone(), pod.untold()));
        let due: Vec<(PodId, Vec<String>)> = due.filter(|(_, names)| !names.is_empty()).collect();
        for (id, names) in due {
            for name in names {
                self.catching(&id, |pods| pods.tell(&id, &name));
            }
        }
    }

    fn tell(&mut self, id: &PodId, name: &str) {
        let Some(pod) = self.by_id.get_mut(id) else { return };
        let Some((stanza, change, record)) = pod.told() else { return };
        let Some(process) = pod.processes.get_mut(name) else { return };
        let Some(running) = process.running.clone() else { return };
        let env = process.launch.as_ref().map(|launch| &launch.env);
        process.peers.seen = Some(record.clone());
        process.peers.known.attempt = running.attempt;
        match step(&stanza, change, &process.peers.known, env, &record) {
            PeerStep::Nothing => {}
            PeerStep::Note => self.known(id, name, &record),
            PeerStep::Signal(signal) => {
                process.peers.telling = Some(running.attempt);
                let (driver, events) = (self.driver.clone(), self.events.clone());
                let (pod, launchable) = (id.clone(), name.to_owned());
                self.spawn_for(id, None, async move {
                    let outcome = driver.signal(&running, signal.name()).await;
                    if outcome == Signalled::Unhandled {
                        sleep(ASK_AGAIN).await;
                    }
                    let told = PeersSignalled { attempt: running.attempt, record, signal, outcome };
                    let _ = events.send(AgentEvent::PeersSignalled { pod, launchable, told });
                });
            }
            PeerStep::Restart(why) => {
                let stop = PeerStop { attempt: running.attempt, at: self.env.clock.wall() };
                let known = &mut process.peers.known;
                let begun = known.stopped.filter(|begun| begun.attempt == stop.attempt);
                let before = known.stopped.replace(begun.unwrap_or(stop));
                // Otherwise an agent that is killed now leaves a member that seems to have failed.
                if let Err(why) = known.store(&self.data.launchable(id, name)) {
                    known.stopped = before;
                    let problem = format!("its peers have moved, but it is not restarted: {why}");
                    process.peers.problem = Some(problem);
                    return;
                }
                self.stop(id, name, &why);
            }
        }
    }

    /// Stores what a process knows. If that fails, the next agent may tell it again.
    fn known(&mut self, id: &PodId, name: &str, record: &PeersRecord) {
        let process = self.by_id.get_mut(id).and_then(|pod| pod.processes.get_mut(name));
        let Some(process) = process else { return };
        process.peers.known.peers = Some(record.without_keys());
        if let Err(why) = process.peers.known.store(&self.data.launchable(id, name)) {
            warn!(pod = %id, launchable = name, why, "what a process knows of its peers is not stored");
        }
    }

    /// Takes in what came of a signal.
    pub(super) fn peers_told(&mut self, id: &PodId, name: &str, told: &PeersSignalled) {
        let process = self.by_id.get_mut(id).and_then(|pod| pod.processes.get_mut(name));
        let is_of_this = |peers: &ProcessPeers| peers.telling == Some(told.attempt);
        let Some(process) = process.filter(|process| is_of_this(&process.peers)) else { return };
        process.peers.telling = None;
        match told.outcome {
            Signalled::Gone => {}
            Signalled::Sent => {
                process.peers.problem = None;
                self.known(id, name, &told.record);
            }
            Signalled::Unhandled => {
                let signal = told.signal.name();
                let problem = format!(
                    "its peers have moved, but it does not handle SIG{signal}, which would end it: it is told when it does"
                );
                (process.peers.seen, process.peers.problem) = (None, Some(problem));
            }
        }
    }
}

/// What came of a signal.
pub(super) struct PeersSignalled {
    /// The start that got it.
    attempt: u64,
    /// The record that its files show.
    record: Arc<PeersRecord>,
    signal: PeerSignal,
    outcome: Signalled,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_api::job::peers::PeerAddress;
    use rcfarm_api::manifest::{PeerForm, PeerPart, PeersForm};

    fn record(hosts: &[Option<&str>]) -> PeersRecord {
        let peer = |host: &&str| PeerAddress { host: (*host).to_owned(), port: None };
        let hosts = hosts.iter().map(|host| host.as_ref().map(peer)).collect();
        PeersRecord { tasks: [("w".to_owned(), hosts)].into(), ..PeersRecord::default() }
    }

    fn stanza() -> PeersStanza {
        PeersStanza {
            files: [("w.host".to_owned(), vec![PeerPart::all("w", PeersForm::Lines)])].into(),
            variables: [("M".to_owned(), vec![PeerPart::one("w", 0, PeerForm::Host)])].into(),
            ..PeersStanza::default()
        }
    }

    fn exit(attempt: u64, at: i64) -> ProcessExit {
        let at = Timestamp::from_second(at).unwrap();
        ProcessExit { attempt, at, code: Some(143), ..ProcessExit::unknown("") }
    }

    fn stopped(attempt: u64, at: i64) -> Option<PeerStop> {
        Some(PeerStop { attempt, at: Timestamp::from_second(at).unwrap() })
    }

    const SIGNAL: PeerChange = PeerChange::Signal(PeerSignal::Hup);

    /// Which of the two policies acts on a change.
    fn acts(before: &[Option<&str>], now: &[Option<&str>]) -> (bool, bool) {
        let known = KnownPeers { attempt: 1, peers: Some(record(before)), stopped: None };
        let of = |change| step(&stanza(), change, &known, None, &record(now));
        let signalled = match of(SIGNAL) {
            PeerStep::Signal(PeerSignal::Hup) => true,
            PeerStep::Nothing => false,
            other => panic!("{other:?}"),
        };
        let restarted = match of(PeerChange::Restart) {
            PeerStep::Restart(_) => true,
            PeerStep::Nothing => false,
            other => panic!("{other:?}"),
        };
        (signalled, restarted)
    }

    #[test]
    fn change_of_files_is_signalled_and_a_moved_peer_restarts() {
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        for (before, now, signalled, restarted) in [
            (vec![a, b], vec![a, b], false, false),
            (vec![a, b], vec![a, c], true, true),
            (vec![a, b], vec![c, b], true, true),
            // It has no node for now, or is gone.
            (vec![a, b], vec![a, None], true, false),
            (vec![a, b], vec![a], true, false),
            // A new member.
            (vec![a], vec![a, b], true, false),
            (vec![a, None], vec![a, b], true, false),
            // The variable had no address.
            (vec![None, b], vec![a, b], true, true),
        ] {
            assert_eq!(acts(&before, &now), (signalled, restarted), "{before:?} {now:?}");
        }
    }

    #[test]
    fn without_a_record_the_environment_says_what_is_known() {
        let known = KnownPeers { attempt: 1, peers: None, stopped: None };
        let env = |host: &str| Some(BTreeMap::from([("M".to_owned(), host.to_owned())]));
        let now = record(&[Some("a")]);
        for (env, is_right) in [(env("a"), true), (env("b"), false), (Some(BTreeMap::new()), false)]
        {
            let of = |change| step(&stanza(), change, &known, env.as_ref(), &now);
            assert_eq!(of(SIGNAL) == PeerStep::Note, is_right);
            assert_eq!(of(PeerChange::Restart) == PeerStep::Note, is_right);
            assert_eq!(of(SIGNAL) == PeerStep::Signal(PeerSignal::Hup), !is_right);
            assert_eq!(matches!(of(PeerChange::Restart), PeerStep::Restart(_)), !is_right);
        }
        assert_eq!(step(&stanza(), SIGNAL, &known, None, &now), PeerStep::Note);
    }

    #[test]
    fn restart_that_was_begun_is_completed() {
        let now = record(&[Some("a")]);
        let known = KnownPeers { attempt: 2, peers: Some(now.clone()), stopped: stopped(2, 5) };
        let begun = step(&stanza(), PeerChange::Restart, &known, None, &now);
        assert!(matches!(begun, PeerStep::Restart(_)), "{begun:?}");
        let next = KnownPeers { attempt: 3, ..known };
        assert_eq!(step(&stanza(), PeerChange::Restart, &next, None, &now), PeerStep::Nothing);
    }

    #[test]
    fn end_before_the_stop_and_of_another_start_is_its_own() {
        let known = KnownPeers { attempt: 2, peers: None, stopped: stopped(2, 5) };
        for (exit, is_asked) in
            [(exit(2, 5), true), (exit(2, 9), true), (exit(2, 4), false), (exit(3, 9), false)]
        {
            let mut peers = ProcessPeers::new(known.clone());
            assert_eq!((peers.ended(&exit), peers.is_restarting), (is_asked, is_asked));
        }
        assert!(!ProcessPeers::default().ended(&exit(0, 9)));
    }

    #[test]
    fn what_is_known_belongs_to_one_start() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("main");
        let known =
            KnownPeers { attempt: 4, peers: Some(record(&[Some("a")])), stopped: stopped(3, 5) };
        known.store(&dir).unwrap();
        assert_eq!(KnownPeers::read(&dir, 4), known);
        // It was killed before the start: the last one is the one that was stopped.
        let before = KnownPeers { attempt: 3, peers: None, stopped: stopped(3, 5) };
        assert_eq!(KnownPeers::read(&dir, 3), before);
        assert!(ProcessPeers::new(before).ended(&exit(3, 6)));
        assert_eq!(KnownPeers::read(&dir.join("other"), 0), KnownPeers::default());
    }
}
