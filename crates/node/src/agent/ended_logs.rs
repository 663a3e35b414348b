//! Logs of pods of jobs that are gone, kept for a while.
//!
//! When such a pod is deleted, its logs move to `ended/<pod>/<uid of the job>.<attempt>/`. The oldest go first when all
//! of them take more than `LogRetention::bytes` or there are more than `MOST_ATTEMPTS`, and those that are older than
//! `LogRetention::age`. That lists all of them, so it is done beside the agent's loop, at most once a minute: see
//! [`DataDir::empty_trash`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tracing::warn;

use super::logs;
use super::state::{DataDir, StoredPod, make_dir, read};
use crate::procfs::since_boot;
use rcfarm_api::ids::PodId;
use rcfarm_api::job::identity::identity_in;
use rcfarm_store::time::{Clock as _, SystemClock};

/// Attempts whose logs are kept at most, so that the list of them stays short.
const MOST_ATTEMPTS: usize = 10_000;
/// A file takes whole blocks of the disk, and one at least.
const BLOCK: u64 = 4_096;
/// Milliseconds between two expiries.
const EXPIRY_INTERVAL: u64 = 60_000;

/// Directory with the logs of one attempt of a job's pod.
#[must_use]
pub fn of_attempt(root: &Path, pod: &PodId, uid: u64, attempt: u32) -> PathBuf {
    root.join("ended").join(pod.as_str()).join(format!("{uid}.{attempt}"))
}

impl DataDir {
    /// Moves the logs of a job's pod to where they are kept. Those of other pods stay.
    ///
    /// # Errors
    /// What the file system says.
    pub(super) fn keep_logs(&self, pod: &PodId) -> io::Result<()> {
        let stored: Option<StoredPod> = read(&self.pod(pod).join("pod.json"));
        let identity = stored.and_then(|stored| identity_in(stored.manifest.as_bytes()));
        let Some(identity) = identity.filter(|_| self.retention.bytes > 0) else { return Ok(()) };
        let to = of_attempt(self.root(), pod, identity.uid.0.0, identity.attempt);
        let mut is_made = false;
        for launchable in self.launchables(pod) {
            for from in logs::files(&self.log(pod, &launchable)) {
                let Some(name) = from.file_name() else { continue };
                // What is at the path may be a link of the pod's: it is not followed.
                if !fs::symlink_metadata(&from).is_ok_and(|found| found.is_file()) {
                    continue;
                }
                if !is_made {
                    make_dir(&to)?;
                    is_made = true;
                }
                fs::rename(&from, to.join(name))?;
            }
        }
        Ok(())
    }

    /// Whether the last expiry is long ago.
    pub(super) fn is_expiry_due(&self) -> bool {
        let last = self.expired_at.load(Ordering::SeqCst);
        last == 0 || since_boot() >= last.saturating_add(EXPIRY_INTERVAL)
    }

    /// Deletes logs beyond the retention, the oldest first. What cannot be deleted stays for the next time.
    pub(super) fn expire_logs(&self) {
        self.expired_at.store(since_boot(), Ordering::SeqCst);
        self.expire_logs_at(SystemClock.wall().into(), MOST_ATTEMPTS);
    }

    fn expire_logs_at(&self, now: SystemTime, most: usize) {
        let mut kept = self.kept_logs();
        kept.sort();
        let (mut bytes, mut count) = (kept.iter().map(|one| one.bytes).sum::<u64>(), kept.len());
        for KeptLogs { last, bytes: own, dir } in kept {
            let is_old = now.duration_since(last).is_ok_and(|age| age > self.retention.age);
            if !is_old && bytes <= self.retention.bytes && count <= most {
                continue;
            }
            if let Err(error) = fs::remove_dir_all(&dir) {
                warn!(path = %dir.display(), %error, "logs of a pod that is gone cannot be deleted");
                continue;
            }
            // Fails while there are others.
            let _ = dir.parent().map(fs::remove_dir);
            (bytes, count) = (bytes - own, count - 1);
        }
    }

    fn kept_logs(&self) -> Vec<KeptLogs> {
        let attempts =
            entries(&self.root().join("ended")).into_iter().flat_map(|pod| entries(&pod));
        let measured = attempts.filter(|dir| dir.is_dir()).map(|dir| {
            let (mut bytes, mut last) = (0, SystemTime::UNIX_EPOCH);
            for file in entries(&dir) {
                let Ok(found) = fs::symlink_metadata(file) else { continue };
                bytes += found.len().max(1).div_ceil(BLOCK) * BLOCK;
                last = found.modified().unwrap_or(last).max(last);
            }
            KeptLogs { last, bytes, dir }
        });
        measured.collect()
    }
}

/// The logs of one attempt.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct KeptLogs {
    /// When the last output was written.
    last: SystemTime,
    bytes: u64,
    dir: PathBuf,
}

/// What is in a directory; nothing if it cannot be read.
fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::state::LogRetention;
    use super::*;

    /// A pod of a job with a log of this size.
    fn pod(data: &DataDir, index: u32, attempt: u32, bytes: usize) -> PodId {
        let pod: PodId = format!("j-a-{index}").parse().unwrap();
        let manifest = format!(
            r#"{{"job":{{"id":"default/j","uid":7,"task":"a","index":{index},"version":0,"attempt":{attempt}}}}}"#
        );
        assert!(identity_in(manifest.as_bytes()).is_some());
        let kept = StoredPod { manifest, ..StoredPod::default() };
        data.keep(&pod, &kept).unwrap();
        make_dir(&data.launchable(&pod, "c")).unwrap();
        fs::write(data.launchable(&pod, "c").join("launch.json"), "{}").unwrap();
        fs::write(data.log(&pod, "c"), vec![b'x'; bytes]).unwrap();
        pod
    }

    fn is_kept(data: &DataDir, pod: &PodId, attempt: u32) -> bool {
        of_attempt(data.root(), pod, 7, attempt).join("c.log").exists()
    }

    #[test]
    fn logs_of_ended_pods_are_kept_up_to_a_size_and_an_age() {
        let directory = tempfile::tempdir().unwrap();
        let mut data = DataDir::open(directory.path()).unwrap();
        // An empty file takes a block, too.
        data.retention = LogRetention { bytes: 5 * BLOCK, age: Duration::from_secs(3_600) };
        for attempt in 0..3 {
            let pod = pod(&data, 0, attempt, 100);
            fs::write(data.pod(&pod).join("c.log.1"), "").unwrap();
            data.forget(&pod).unwrap();
            assert!(!data.pod(&pod).exists());
        }
        let first: PodId = "j-a-0".parse().unwrap();
        assert!([0, 1, 2].into_iter().all(|n| is_kept(&data, &first, n)), "not in forget");
        // What else is there is left alone.
        fs::write(data.root().join("ended/file"), "").unwrap();
        fs::write(data.root().join("ended/j-a-0/file"), "").unwrap();
        assert!(data.is_expiry_due());
        data.expire_logs();
        assert!(!data.is_expiry_due());
        assert_eq!([0, 1, 2].map(|n| is_kept(&data, &first, n)), [false, true, true]);
        let second = pod(&data, 1, 0, 10);
        for name in ["c.log.1", "c.log.2"] {
            fs::write(data.pod(&second).join(name), "").unwrap();
        }
        data.forget(&second).unwrap();
        let now = SystemTime::from(SystemClock.wall());
        data.expire_logs_at(now, 2);
        assert!(!is_kept(&data, &first, 1), "there are too many, and too much");
        assert!(is_kept(&data, &first, 2) && is_kept(&data, &second, 0));
        data.expire_logs_at(now, 1);
        assert!(!is_kept(&data, &first, 2) && is_kept(&data, &second, 0));
        data.expire_logs_at(now + Duration::from_secs(7_200), 1);
        assert!(!data.root().join("ended/j-a-1").exists());
    }

    #[test]
    fn logs_of_pods_of_no_job_and_links_are_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDir::open(directory.path()).unwrap();
        let linked = pod(&data, 0, 0, 1);
        fs::remove_file(data.log(&linked, "c")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", data.log(&linked, "c")).unwrap();
        let plain: PodId = "web".parse().unwrap();
        let manifest = "id: web".to_owned();
        let kept = StoredPod { manifest, ..StoredPod::default() };
        data.keep(&plain, &kept).unwrap();
        for pod in [linked, plain] {
            data.forget(&pod).unwrap();
        }
        assert!(!data.root().join("ended").exists());
    }
}
