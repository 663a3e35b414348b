//! Files that tell members of jobs where their peers are, in the members' homes.
//!
//! The agent reads `rcfarm/peers/<node>/` with one blocking query, and only while a pod of it has `peers` in its
//! manifest. The first start of such a pod waits until its files are there, for at most [`LONGEST_WAIT_FOR_PEERS`]; then
//! it starts with what its environment says. A pod of a job with ssh keys waits for as long as these are not there
//! ([`super::ssh_files`]). Files are replaced atomically when the record changes. What running
//! processes are told then: [`super::peer_change`].
//!
//! A home belongs to the pod's user, who may put links there. So the directories above a file are opened one after the
//! other without following links, and the file is made and renamed inside the last one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, mkdirat, openat, renameat, unlinkat};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;
use tracing::debug;

use super::event::AgentEvent;
use super::plan::AgentPodState;
use super::pod::PodTask;
use super::pods::NodePods;
use super::ssh_files::SshMember;
use super::state::make_dir;
use super::users::{UserError, UserIds};
use rcfarm_api::Stored;
use rcfarm_api::ids::{Namespaced, NodeName, PodId};
use rcfarm_api::job::peers::PeersRecord;
use rcfarm_api::key;
use rcfarm_api::manifest::PeersStanza;
use rcfarm_store::watch::LONGEST_WAIT;
use rcfarm_store::{Env, Index, Query};

/// How long the first start of a pod waits for its files.
pub(super) const LONGEST_WAIT_FOR_PEERS: Duration = Duration::from_secs(10);
/// Pause before each read but the first. The query returns at a change of this node's records alone.
const EVERY: Duration = Duration::from_millis(100);
/// The same while the node has none: other nodes' records wake it then (`consul-semantics.md` §0 #9).
const EMPTY_EVERY: Duration = Duration::from_secs(1);
/// Pause after a read that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Pause before ssh keys that could not be written are written again: without them no process is started.
const KEYS_AGAIN: Duration = Duration::from_secs(2);

/// Records of this node by job.
pub(super) type NodePeers = BTreeMap<Namespaced, Arc<PeersRecord>>;

/// What a read of the records found.
#[derive(Debug)]
pub(super) struct PeersRead {
    pub(super) records: NodePeers,
    index: Index,
    /// The agent has no right to read them.
    is_hidden: bool,
}

/// State of the watch in the agent's loop.
#[derive(Debug, Default)]
pub(super) struct PeersWatch {
    is_reading: bool,
    /// Index of the last list. 0: the next read returns at once.
    index: Index,
    records: NodePeers,
}

impl PeersWatch {
    /// The next read, if a pod needs one and none is under way. It waits for a change, and sends
    /// [`AgentEvent::PeersListed`].
    pub(super) fn read(
        &mut self,
        is_needed: bool,
        env: &Env,
        node: &NodeName,
        events: &UnboundedSender<AgentEvent>,
    ) -> Option<impl Future<Output = ()> + use<>> {
        if self.is_reading || !is_needed {
            return None;
        }
        self.is_reading = true;
        let (store, events, after) = (env.store.clone(), events.clone(), self.index);
        let pause = if self.records.is_empty() { EMPTY_EVERY } else { EVERY };
        let prefix = key::node_peers(node);
        Some(async move {
            let query = match after {
                Index::ZERO => Query::CONSISTENT,
                after => {
                    sleep(pause).await;
                    Query::after(after, LONGEST_WAIT)
                }
            };
            let read = match store.list(&prefix, query).await {
                Ok(answer) => {
                    let records = answer.value.iter().filter_map(|entry| {
                        let job = key::namespaced(&prefix, &entry.key)?;
                        Some((job, Arc::new(PeersRecord::decode(&entry.value).ok()?)))
                    });
                    let (index, is_hidden) = (answer.index, answer.filtered);
                    Some(PeersRead { records: records.collect(), index, is_hidden })
                }
                Err(error) => {
                    debug!(tree = %prefix, %error, "the addresses of peers cannot be read");
                    sleep(AFTER_FAILURE).await;
                    None
                }
            };
            let _ = events.send(AgentEvent::PeersListed(read));
        })
    }

    /// Notes the result of a read. An index that went backwards counts as 0. After a failure the records stay.
    fn finished(&mut self, read: Option<&PeersRead>) {
        self.is_reading = false;
        let index = read.map_or(Index::ZERO, |read| read.index);
        self.index = if index < self.index { Index::ZERO } else { index };
        if let Some(read) = read {
            self.records.clone_from(&read.records);
        }
    }
}

/// The files of one pod.
#[derive(Debug)]
pub(super) struct PodPeers {
    stanza: Arc<PeersStanza>,
    /// The record that the files are to show.
    wanted: Option<Arc<PeersRecord>>,
    /// The record that was last written, or tried to be.
    tried: Option<Arc<PeersRecord>>,
    is_writing: bool,
    /// Time since the agent's start until which the first start waits.
    waits_until: Duration,
    /// Why the files do not show the record.
    pub(super) problem: Option<String>,
}

impl PodPeers {
    pub(super) fn new(stanza: PeersStanza, now: Duration) -> PodPeers {
        PodPeers {
            stanza: Arc::new(stanza),
            wanted: None,
            tried: None,
            is_writing: false,
            waits_until: now.saturating_add(LONGEST_WAIT_FOR_PEERS),
            problem: None,
        }
    }

    /// Until when no process is started. Where processes are told of changes, each is started with files that nobody
    /// writes meanwhile, so that it is known what it has read.
    pub(super) fn waits_until(&self) -> Duration {
        match self.tried {
            _ if self.is_writing && self.stanza.on_change.is_some() => Duration::MAX,
            Some(_) => Duration::ZERO,
            // Without its keys a member cannot do what the job asks for.
            None if self.stanza.ssh.is_some() => Duration::MAX,
            None => self.waits_until,
        }
    }

    /// Whether no process is started, because its keys cannot be written.
    pub(super) fn lacks_keys(&self) -> bool {
        self.stanza.ssh.is_some() && self.problem.is_some()
    }

    /// What its files hold, for people.
    fn subject(&self) -> &'static str {
        match self.stanza.ssh {
            Some(_) => "the ssh keys and the addresses of its peers",
            None => "the addresses of its peers",
        }
    }

    pub(super) fn stanza(&self) -> &Arc<PeersStanza> {
        &self.stanza
    }

    /// The record that the files show. `None`: they are not there, or are being written.
    pub(super) fn shown(&self) -> Option<&Arc<PeersRecord>> {
        self.tried.as_ref().filter(|_| self.problem.is_none() && !self.is_writing)
    }

    /// Whether the files are there.
    pub(super) fn are_written(&self) -> bool {
        self.tried.is_some() && self.problem.is_none()
    }
}

impl NodePods {
    /// Writes files that are due, and waits for the next change of the records while a pod has such files.
    pub(super) fn follow_peers(&mut self, watch: &mut PeersWatch) {
        self.write_peers(watch);
        self.tell_peers();
        let is_needed = self.by_id.values().any(PodTask::follows_peers);
        let read = watch.read(is_needed, &self.env, &self.settings.name, &self.events);
        if let Some(read) = read {
            self.tasks.spawn(read);
        }
    }

    /// Takes in a read of the records.
    pub(super) fn peers_listed(&mut self, watch: &mut PeersWatch, read: Option<PeersRead>) {
        watch.finished(read.as_ref());
        if read.is_some_and(|read| read.is_hidden && read.records.is_empty()) {
            let none = self.by_id.values_mut().filter_map(|pod| pod.peers.as_mut());
            none.for_each(|peers| {
                peers.waits_until = Duration::ZERO;
                peers.problem =
                    Some("the agent has no right to read where its peers are".to_owned());
            });
        }
    }

    /// Begins to write the files of pods whose record has changed, or that are new.
    fn write_peers(&mut self, watch: &PeersWatch) {
        let due: Vec<PodId> = self
            .by_id
            .iter_mut()
            .filter_map(|(id, pod)| pod.peers_are_due(&watch.records).then(|| id.clone()))
            .collect();
        for id in due {
            self.catching(&id, |pods| pods.write_files(&id));
        }
    }

    fn write_files(&mut self, id: &PodId) {
        let Some(pod) = self.by_id.get_mut(id) else { return };
        let hash = pod.intended.hash;
        let Ok(run_as) = pod.spec.as_ref().map(|spec| spec.run_as.clone()) else { return };
        let job = pod.intended.job.clone();
        let Some(peers) = &mut pod.peers else { return };
        let Some(record) = peers.wanted.clone() else { return };
        peers.is_writing = true;
        let stanza = peers.stanza.clone();
        let (data, settings, events) =
            (self.data.clone(), self.settings.clone(), self.events.clone());
        let pod = id.clone();
        self.spawn_for(id, None, async move {
            let files = stanza.rendered(&record);
            let written = settings.permits.user(run_as.as_deref()).map_err(UserError::into_text);
            let written = written.and_then(|user| {
                let home = data.home(&pod, user);
                match user {
                    Some(user) => data.make_home(&pod, user)?,
                    None => make_dir(&home).map_err(|error| error.to_string())?,
                }
                write_all(&home, &files, user, FOR_ALL)?;
                let (Some(stanza), Some((job, uid))) = (&stanza.ssh, &job) else { return Ok(()) };
                let member = SshMember { job, uid: *uid, stanza, home: &home };
                let keys = settings.ssh_keys.files(&member, &record)?;
                write_all(&home, &keys, user, FOR_OWNER)
            });
            if written.is_err() && stanza.ssh.is_some() {
                sleep(KEYS_AGAIN).await;
            }
            let _ = events.send(AgentEvent::PeersWritten { pod, hash, record, written });
        });
    }

    /// Notes that the files of a pod were written, or why not. `hash`: of the intent for which they were.
    pub(super) fn peers_written(
        &mut self,
        id: &PodId,
        hash: u64,
        record: Arc<PeersRecord>,
        written: Result<(), String>,
    ) {
        let Some(pod) = self.by_id.get_mut(id) else { return };
        let is_of_this = pod.intended.hash == hash;
        let Some(peers) = &mut pod.peers else { return };
        peers.is_writing = false;
        // Files of the pod before it may have been written after those of this one.
        let is_tried = is_of_this && (written.is_ok() || peers.stanza.ssh.is_none());
        peers.tried = is_tried.then_some(record);
        peers.problem =
            written.err().map(|why| format!("{} cannot be written: {why}", peers.subject()));
    }
}

impl PodTask {
    /// Whether it has files that follow its peers, and a process that runs or will.
    fn follows_peers(&self) -> bool {
        let is_over = |state| matches!(state, AgentPodState::Ended | AgentPodState::Unfit);
        self.peers.is_some() && !self.processes.values().all(|process| is_over(process.state))
    }

    /// Notes the record of the pod's job. Returns whether its files are to be written now.
    fn peers_are_due(&mut self, records: &NodePeers) -> bool {
        if !self.follows_peers() {
            return false;
        }
        let holds_files = self.holds_files();
        let (Some(peers), Some((job, uid))) = (&mut self.peers, &self.intended.job) else {
            return false;
        };
        let needs_keys = peers.stanza.ssh.is_some();
        // A farm from before sends none.
        let is_usable = |record: &&Arc<PeersRecord>| {
            record.uid == *uid && (record.ssh.is_some() || !needs_keys)
        };
        let record = records.get(job).filter(is_usable);
        if let Some(record) = record {
            peers.wanted = Some(record.clone());
        }
        let is_held = holds_files && peers.stanza.on_change.is_some();
        peers.wanted.is_some() && peers.wanted != peers.tried && !peers.is_writing && !is_held
    }
}

/// Permissions of files, and of directories that are made for them.
#[derive(Debug, Clone, Copy)]
struct FileModes {
    file: u32,
    dir: u32,
}

const FOR_ALL: FileModes = FileModes { file: 0o644, dir: 0o755 };
/// The owner alone may read them.
const FOR_OWNER: FileModes = FileModes { file: 0o600, dir: 0o700 };

/// Replaces files below a home, by path.
///
/// # Errors
/// Text: the path and why; files before it are replaced.
fn write_all(
    home: &Path,
    files: &BTreeMap<String, String>,
    user: Option<UserIds>,
    modes: FileModes,
) -> Result<(), String> {
    let opened = open_dir(CWD, home).map_err(|error| format!("{}: {error}", home.display()))?;
    for (path, text) in files {
        write_below(&opened, path, text.as_bytes(), user, modes)
            .map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

fn open_dir(at: impl std::os::fd::AsFd, path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?)
}

/// Replaces one file. Directories above it are made. A link in their place is an error.
fn write_below(
    home: &OwnedFd,
    path: &str,
    text: &[u8],
    user: Option<UserIds>,
    modes: FileModes,
) -> io::Result<()> {
    // Each writer has a temporary file of its own.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut dir = home.try_clone()?;
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    for segment in above.split('/').filter(|segment| !segment.is_empty()) {
        let is_new = match mkdirat(&dir, segment, Mode::from_raw_mode(modes.dir)) {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        dir = open_dir(&dir, segment)?;
        if let (true, Some((uid, gid))) = (is_new, user) {
            fchown(&dir, Some(uid), Some(gid))?;
        }
    }
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let beside = format!(".{name}.{}-{next}.new", std::process::id());
    let written = write_new(&dir, &beside, text, user, modes.file)
        .and_then(|()| Ok(renameat(&dir, &*beside, &dir, name)?));
    if written.is_err() {
        let _ = unlinkat(&dir, &*beside, AtFlags::empty());
    }
    written
}

fn write_new(
    dir: &OwnedFd,
    name: &str,
    text: &[u8],
    user: Option<UserIds>,
    mode: u32,
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(dir, name, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(text)?;
    fchmod(&file, Mode::from_raw_mode(mode))?;
    if let Some((uid, gid)) = user {
        fchown(&file, Some(uid), Some(gid))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn files_are_replaced_by_new_ones() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("etc/volcano/w.host");
        write_all(home.path(), &files(&[("etc/volcano/w.host", "a\n"), ("x", "1")]), None, FOR_ALL)
            .unwrap();
        let opened = fs::File::open(&path).unwrap();
        write_all(home.path(), &files(&[("etc/volcano/w.host", "b\n")]), None, FOR_ALL).unwrap();
        assert_eq!(io::read_to_string(opened).unwrap(), "a\n", "a reader has the old one, whole");
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    /// The pod's user owns its home: a link there must not lead the agent to another directory, or to another file.
    #[test]
    fn links_in_a_home_are_not_followed() {
        let [home, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let secret = other.path().join("volcano");
        fs::create_dir(&secret).unwrap();
        symlink(other.path(), home.path().join("etc")).unwrap();
        let error = write_all(home.path(), &files(&[("etc/volcano/w.host", "a")]), None, FOR_ALL)
            .unwrap_err();
        assert!(error.starts_with("etc/volcano/w.host: "), "{error}");
        assert_eq!(fs::read_dir(&secret).unwrap().count(), 0);
        // A link in place of the file is replaced, not written through.
        let target = other.path().join("target");
        fs::write(&target, "old").unwrap();
        symlink(&target, home.path().join("hostfile")).unwrap();
        write_all(home.path(), &files(&[("hostfile", "new")]), None, FOR_ALL).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        assert_eq!(fs::read_to_string(home.path().join("hostfile")).unwrap(), "new");
        // The home itself.
        let link = other.path().join("home");
        symlink(home.path(), &link).unwrap();
        assert!(write_all(&link, &files(&[("a", "")]), None, FOR_ALL).is_err());
    }

    #[test]
    fn file_that_cannot_be_replaced_leaves_nothing_behind() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("hostfile/full")).unwrap();
        let error =
            write_all(home.path(), &files(&[("hostfile", "a")]), None, FOR_ALL).unwrap_err();
        assert!(error.starts_with("hostfile: "), "{error}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn secret_files_are_for_their_owner() {
        let home = tempfile::tempdir().unwrap();
        let of = |text| files(&[(".ssh/id_ed25519", text)]);
        for text in ["one", "another"] {
            write_all(home.path(), &of(text), None, FOR_OWNER).unwrap();
            let path = home.path().join(".ssh/id_ed25519");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
            assert_eq!([mode(&path), mode(&home.path().join(".ssh"))], [0o600, 0o700]);
        }
        let other = tempfile::tempdir().unwrap();
        fs::remove_dir_all(home.path().join(".ssh")).unwrap();
        symlink(other.path(), home.path().join(".ssh")).unwrap();
        assert!(write_all(home.path(), &of("secret"), None, FOR_OWNER).is_err());
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
    }
}
