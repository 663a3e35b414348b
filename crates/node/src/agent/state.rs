//! State of an agent on disk, so that the next agent knows what runs.
//!
//! Below the data directory:
//!
//! | path | is |
//! |---|---|
//! | `lock` | held by the agent: one per directory |
//! | `agent.json` | [`Memory`]: the last sessions, to be ended by the next agent |
//! | `agent.sock` | where the agent serves logs to its user |
//! | `lease` | until when the node may count as alive, in milliseconds since boot |
//! | `pods/<pod>/pod.json` | [`StoredPod`]: what was last intended |
//! | `pods/<pod>/config.yaml` | its configuration |
//! | `pods/<pod>/payload.data` | its payload |
//! | `pods/<pod>/<launchable>/` | `launch.json`, `running.json`, `exit.json`, `lock`: see [`crate::shim`]; `starts.json`: [`super::log_starts`]; `peers.json`: what its process knows of its peers |
//! | `pods/<pod>/<launchable>.log` | its output, and `.log.1` … |
//! | `ended/<pod>/<uid>.<attempt>/` | logs of a job's pod that is gone: see [`super::ended_logs`] |
//! | `work/<pod>/home/` | home of a pod with another user than the agent, which owns it |
//! | `work/<pod>/config.yaml`, `payload.data` | configuration and payload of such a pod, which it may read |
//! | `trash/` | files of forgotten pods that are being deleted |
//!
//! `pods/` belongs to the agent alone: who may replace a `launch.json` chooses the user of a process. A pod that has the
//! agent's user has its home, configuration and payload there too.
//!
//! Every record is written to a temporary file and renamed, so that a reader finds the old one or the new one, even if
//! the writer is killed. It is not synced: a sync would cost each start of a pod two disk latencies, and a power failure
//! ends the processes that the files describe. A file that cannot be decoded counts as missing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::peer_change::KNOWN_PEERS;
use super::users::UserIds;
use rcfarm_api::ids::{PodId, RcId, SessionId, check_segment};
use rcfarm_api::node::status::IntentIndex;

/// State that survives a restart of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Sessions that may still exist.
    pub sessions: Vec<SessionId>,
}

/// A pod as last intended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPod {
    /// Its manifest, byte for byte.
    pub manifest: String,
    /// The controller that it belongs to.
    pub owner: Option<RcId>,
    /// Its allocated devices.
    #[serde(default)]
    pub devices: BTreeMap<String, std::collections::BTreeSet<u32>>,
    /// Its allocated ports, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, u16>,
    /// The intent, as last read.
    #[serde(default)]
    pub intent_index: Option<IntentIndex>,
    /// The intent that the last report names, if that may be another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<IntentIndex>,
    /// It was forgotten: its deletion was proved, and no process is left. Its files stay until its reports are deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forgotten: bool,
}

/// How long the logs of pods that are gone are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRetention {
    /// All of them together.
    pub bytes: u64,
    /// Since the last output.
    pub age: Duration,
}

impl Default for LogRetention {
    fn default() -> Self {
        LogRetention { bytes: 1024 * 1024 * 1024, age: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// The data directory, held by this agent.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    pub(super) retention: LogRetention,
    memory: Mutex<()>,
    is_emptying_trash: AtomicBool,
    /// When logs were expired last, in milliseconds since boot; 0: never.
    pub(super) expired_at: AtomicU64,
    _lock: File,
}

impl DataDir {
    /// Opens or creates the directory and locks it against other agents.
    ///
    /// # Errors
    /// Text: the directory cannot be created or written, or another agent holds it.
    pub fn open(root: &Path) -> Result<DataDir, String> {
        let say = |error: io::Error| {
            format!("the data directory {} cannot be used: {error}", root.display())
        };
        make_dir(&root.join("pods")).map_err(say)?;
        let lock = private().create(true).open(root.join("lock")).map_err(say)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            format!("another agent runs with the data directory {}", root.display())
        })?;
        let root = fs::canonicalize(root).map_err(say)?;
        let (retention, memory, is_emptying_trash, expired_at) = Default::default();
        Ok(DataDir { root, retention, memory, is_emptying_trash, expired_at, _lock: lock })
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Directory of a pod.
    #[must_use]
    pub fn pod(&self, pod: &PodId) -> PathBuf {
        self.root.join("pods").join(pod.as_str())
    }

    /// Home of a pod: its working directory. `user`: its user, if that is not the agent's.
    #[must_use]
    pub fn home(&self, pod: &PodId, user: Option<UserIds>) -> PathBuf {
        match user {
            Some(_) => self.work(pod).join("home"),
            None => self.pod(pod),
        }
    }

    /// File with the configuration of a pod.
    #[must_use]
    pub fn config(&self, pod: &PodId, user: Option<UserIds>) -> PathBuf {
        self.readable(pod, user).join("config.yaml")
    }

    /// File with the payload of a pod.
    #[must_use]
    pub fn payload(&self, pod: &PodId, user: Option<UserIds>) -> PathBuf {
        self.readable(pod, user).join("payload.data")
    }

    /// Directory of the agent's files that a pod may read.
    fn readable(&self, pod: &PodId, user: Option<UserIds>) -> PathBuf {
        if user.is_some() { self.work(pod) } else { self.pod(pod) }
    }

    fn work(&self, pod: &PodId) -> PathBuf {
        self.root.join("work").join(pod.as_str())
    }

    /// Makes the home of a pod with another user than the agent. Others may pass through the directories above it, and
    /// read nothing there.
    ///
    /// # Errors
    /// Text: the user cannot own its home, or cannot reach it.
    pub fn make_home(&self, pod: &PodId, user: UserIds) -> Result<(), String> {
        let home = self.home(pod, Some(user));
        let say = |error: io::Error| format!("{} cannot be made: {error}", home.display());
        make_dir(&home).map_err(say)?;
        for dir in [&self.root, &self.root.join("work"), &self.work(pod)] {
            let mode = fs::metadata(dir).map_err(say)?.mode();
            fs::set_permissions(dir, fs::Permissions::from_mode(mode | 0o111)).map_err(say)?;
        }
        // The directory itself, not what a link there leads to.
        let flags = (OFlags::NOFOLLOW | OFlags::DIRECTORY).bits().cast_signed();
        let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(&home);
        opened.and_then(|dir| fchown(dir, Some(user.0), Some(user.1))).map_err(|error| {
            format!("{} cannot be given to {}:{}: {error}", home.display(), user.0, user.1)
        })?;
        let closed = home.ancestors().skip(1).find(|dir| !may_pass(dir, user));
        closed.map_or(Ok(()), |dir| {
            Err(format!("{}:{} may not pass through {}", user.0, user.1, dir.display()))
        })
    }

    /// Directory of a launchable.
    #[must_use]
    pub fn launchable(&self, pod: &PodId, launchable: &str) -> PathBuf {
        self.pod(pod).join(launchable)
    }

    /// The output of a launchable.
    #[must_use]
    pub fn log(&self, pod: &PodId, launchable: &str) -> PathBuf {
        self.pod(pod).join(format!("{launchable}.log"))
    }

    /// The file with the lease.
    #[must_use]
    pub fn lease(&self) -> PathBuf {
        self.root.join("lease")
    }

    /// The socket on which the agent serves logs.
    #[must_use]
    pub fn log_socket(&self) -> PathBuf {
        self.root.join("agent.sock")
    }

    /// Reads the memory of the previous agent.
    #[must_use]
    pub fn memory(&self) -> Memory {
        read(&self.root.join("agent.json")).unwrap_or_default()
    }

    /// Changes the memory.
    ///
    /// # Errors
    /// What the file system says.
    pub fn remember(&self, change: impl FnOnce(&mut Memory)) -> io::Result<()> {
        let _alone = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.memory();
        let mut new = old.clone();
        change(&mut new);
        if new == old { Ok(()) } else { write(&self.root.join("agent.json"), &new) }
    }

    /// Pods of the previous agent.
    #[must_use]
    pub fn pods(&self) -> BTreeMap<PodId, StoredPod> {
        let Ok(entries) = fs::read_dir(self.root.join("pods")) else { return BTreeMap::new() };
        let pod = |entry: io::Result<fs::DirEntry>| {
            let pod: PodId = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stored = self.stored(&pod)?;
            Some((pod, stored))
        };
        entries.filter_map(pod).collect()
    }

    /// A pod as it was last stored.
    #[must_use]
    pub fn stored(&self, pod: &PodId) -> Option<StoredPod> {
        read(&self.pod(pod).join("pod.json"))
    }

    /// Stores a pod.
    ///
    /// # Errors
    /// What the file system says.
    pub fn keep(&self, pod: &PodId, kept: &StoredPod) -> io::Result<()> {
        make_dir(&self.pod(pod))?;
        write(&self.pod(pod).join("pod.json"), kept)
    }

    /// Forgets a pod and all its files. They are in the trash then ([`DataDir::empty_trash`]). The logs of a job's pod are
    /// kept for a while.
    ///
    /// # Errors
    /// What the file system says of either of its directories; the other one is gone.
    pub fn forget(&self, pod: &PodId) -> io::Result<()> {
        if let Err(error) = self.keep_logs(pod) {
            warn!(%pod, %error, "its logs are not kept");
        }
        let [work, own] = [self.work(pod), self.pod(pod)].map(|dir| self.discard(&dir));
        work.and(own)
    }

    fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// Moves a directory, if it is there, to the trash: a large one takes long to delete.
    fn discard(&self, dir: &Path) -> io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if !fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir()) {
            return Ok(());
        }
        make_dir(&self.trash())?;
        loop {
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            match fs::rename(dir, self.trash().join(format!("{}-{next}", std::process::id()))) {
                // The name is taken. XFS and others say so in another way than ext4.
                Err(error) if is_taken(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                // It is on another file system.
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    return fs::remove_dir_all(dir);
                }
                moved => return moved,
            }
        }
    }

    /// Deletes what is in the trash, and from time to time old logs, in a thread of its own. What cannot be deleted stays
    /// for the next time.
    pub fn empty_trash(self: &Arc<Self>) {
        let is_needed = self.trash().exists() || self.is_expiry_due();
        if !is_needed || self.is_emptying_trash.swap(true, Ordering::SeqCst) {
            return;
        }
        let data = Arc::clone(self);
        let spawned = thread::Builder::new().spawn(move || {
            let entries = fs::read_dir(data.trash()).into_iter().flatten().flatten();
            for path in entries.map(|entry| entry.path()) {
                if let Err(error) = fs::remove_dir_all(&path) {
                    warn!(path = %path.display(), %error, "files of a forgotten pod cannot be deleted");
                }
            }
            if data.is_expiry_due() {
                data.expire_logs();
            }
            data.is_emptying_trash.store(false, Ordering::SeqCst);
        });
        if let Err(error) = spawned {
            self.is_emptying_trash.store(false, Ordering::SeqCst);
            warn!(%error, "no thread can be started that deletes files of forgotten pods");
        }
    }

    /// Deletes the records of a pod's starts: the next ones are of another manifest, other devices or other ports.
    ///
    /// # Errors
    /// What the file system says.
    pub fn forget_starts(&self, pod: &PodId) -> io::Result<()> {
        for name in self.launchables(pod) {
            // `launch.json` last: without it, the directory is none of a launchable.
            for record in ["running.json", "exit.json", KNOWN_PEERS, "launch.json"] {
                match fs::remove_file(self.launchable(pod, &name).join(record)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                }
            }
        }
        Ok(())
    }

    /// Launchables that have files on disk.
    #[must_use]
    pub fn launchables(&self, pod: &PodId) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.pod(pod)) else { return Vec::new() };
        let name = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let name = entry.file_name().to_str()?.to_owned();
            let is_one = entry.path().join("launch.json").exists() && check_segment(&name).is_ok();
            is_one.then_some(name)
        };
        entries.filter_map(name).collect()
    }
}

/// Whether a directory cannot be renamed because there is one at the new path, with files in it.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}

fn private() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// Creates a directory that only its owner may read: manifests hold secrets.
///
/// # Errors
/// What the file system says.
pub fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Whether a user without further groups may pass through a directory.
fn may_pass(dir: &Path, (uid, gid): UserIds) -> bool {
    let Ok(found) = fs::metadata(dir) else { return false };
    let bit = match (found.uid() == uid, found.gid() == gid) {
        (true, _) => 0o100,
        (false, true) => 0o010,
        (false, false) => 0o001,
    };
    found.mode() & bit != 0
}

/// Reads a record; `None` if it is missing or cannot be decoded.
#[must_use]
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes a record atomically.
///
/// # Errors
/// What the file system says; the old record then stays.
pub fn write<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    replace(path, &serde_json::to_vec(record).map_err(io::Error::other)?)
}

/// Replaces a file's contents atomically.
///
/// # Errors
/// What the file system says; the old contents then stay.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace_for(path, contents, None)
}

/// As [`replace`]; the file is for `reader` alone.
///
/// # Errors
/// What the file system says; the old contents then stay.
pub fn replace_for(path: &Path, contents: &[u8], reader: Option<UserIds>) -> io::Result<()> {
    // Each writer has a temporary file of its own.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{next}.new", std::process::id()));
    let written = private().create(true).truncate(true).open(&beside).and_then(|mut file| {
        file.write_all(contents)?;
        if let Some((uid, gid)) = reader {
            file.set_permissions(fs::Permissions::from_mode(0o400))?;
            fchown(&file, Some(uid), Some(gid))?;
        }
        fs::rename(&beside, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn kept(manifest: &str) -> StoredPod {
        let (manifest, devices) = (manifest.to_owned(), BTreeMap::new());
        StoredPod {
            manifest,
            owner: None,
            devices,
            ports: BTreeMap::new(),
            intent_index: None,
            reported: None,
            forgotten: false,
        }
    }

    #[test]
    fn what_is_kept_is_found_again_and_what_is_torn_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDir::open(directory.path()).unwrap();
        let [web, torn]: [PodId; 2] = ["web", "torn"].map(|id| id.parse().unwrap());
        data.keep(&web, &kept("id: web")).unwrap();
        data.keep(&torn, &kept("id: torn")).unwrap();
        let path = data.pod(&torn).join("pod.json");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        fs::write(data.pod(&web).join("pod.new"), b"half a rec").unwrap();
        assert_eq!(data.pods(), [(web.clone(), kept("id: web"))].into());
        data.forget(&web).unwrap();
        data.forget(&web).unwrap();
        assert!(data.pods().is_empty());
    }

    #[test]
    fn forget_moves_both_directories_to_the_trash_which_is_emptied() {
        let directory = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open(directory.path()).unwrap());
        let pod: PodId = "web".parse().unwrap();
        let dirs = || [data.pod(&pod), data.work(&pod)];
        for n in 0..2 {
            for dir in dirs() {
                fs::create_dir_all(dir.join(format!("deep/{n}"))).unwrap();
            }
            data.forget(&pod).unwrap();
            assert_eq!(dirs().map(|dir| dir.exists()), [false, false]);
        }
        assert_eq!(fs::read_dir(data.trash()).unwrap().count(), 4);
        data.empty_trash();
        while data.is_emptying_trash.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        assert_eq!(fs::read_dir(data.trash()).unwrap().count(), 0);
    }

    #[test]
    fn forget_that_failed_can_be_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDir::open(directory.path()).unwrap();
        let pod: PodId = "web".parse().unwrap();
        fs::create_dir_all(data.pod(&pod)).unwrap();
        fs::create_dir_all(data.work(&pod)).unwrap();
        fs::write(data.trash(), "").unwrap();
        assert!(data.forget(&pod).is_err());
        fs::remove_file(data.trash()).unwrap();
        data.forget(&pod).unwrap();
        assert!(!data.pod(&pod).exists() && !data.work(&pod).exists());
    }

    #[test]
    fn a_directory_has_one_agent() {
        let directory = tempfile::tempdir().unwrap();
        let first = DataDir::open(directory.path()).unwrap();
        assert!(DataDir::open(directory.path()).unwrap_err().contains("another agent"));
        drop(first);
        DataDir::open(directory.path()).unwrap();
        let file = directory.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(DataDir::open(&file).unwrap_err().contains("cannot be used"));
    }

    #[test]
    fn taken_name_is_known_by_what_each_file_system_says() {
        for (errno, taken) in [(Errno::NOTEMPTY, true), (Errno::EXIST, true), (Errno::NOSPC, false)]
        {
            assert_eq!(is_taken(&errno.into()), taken, "{errno:?}");
        }
    }
}
