//! Logs of pods of jobs that are gone, kept for a while.
//!
//! When such a pod is deleted, its logs move to `ended/<pod>/<uid of the job>.<attempt>/`. The oldest go first when all
//! of them take more than [`LogRetention::bytes`], and those that are older than [`LogRetention::age`]. Both are looked
//! at when the agent starts and each time that logs are moved.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::logs;
use super::state::{DataDir, StoredPod, make_dir, read};
use rcfarm_api::ids::PodId;
use rcfarm_api::job::identity::identity_in;
use rcfarm_store::time::{Clock as _, SystemClock};

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
        let mut made = false;
        for launchable in self.launchables(pod) {
            for from in logs::files(&self.log(pod, &launchable)) {
                let Some(name) = from.file_name() else { continue };
                // What is at the path may be a link of the pod's: it is not followed.
                if !fs::symlink_metadata(&from).is_ok_and(|found| found.is_file()) {
                    continue;
                }
                if !made {
                    make_dir(&to)?;
                    made = true;
                }
                fs::rename(&from, to.join(name))?;
            }
        }
        if made { self.expire_logs() } else { Ok(()) }
    }

    /// Deletes logs beyond the retention, the oldest first.
    ///
    /// # Errors
    /// What the file system says.
    pub(super) fn expire_logs(&self) -> io::Result<()> {
        self.expire_logs_at(SystemClock.wall().into())
    }

    fn expire_logs_at(&self, now: SystemTime) -> io::Result<()> {
        let mut kept: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for pod in entries(&self.root().join("ended"))? {
            for attempt in entries(&pod)? {
                let files = entries(&attempt)?;
                let found = files.iter().filter_map(|file| fs::symlink_metadata(file).ok());
                let (mut bytes, mut last) = (0, SystemTime::UNIX_EPOCH);
                for file in found {
                    bytes += file.len();
                    last = file.modified().unwrap_or(last).max(last);
                }
                kept.push((last, bytes, attempt));
            }
        }
        kept.sort();
        let mut all: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        for (last, bytes, attempt) in kept {
            let is_old = now.duration_since(last).is_ok_and(|age| age > self.retention.age);
            if !is_old && all <= self.retention.bytes {
                continue;
            }
            fs::remove_dir_all(&attempt)?;
            // Fails while there are others.
            let _ = attempt.parent().map(fs::remove_dir);
            all -= bytes;
        }
        Ok(())
    }
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
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
        data.retention = LogRetention { bytes: 250, age: Duration::from_secs(3_600) };
        for attempt in 0..3 {
            let pod = pod(&data, 0, attempt, 100);
            fs::write(data.pod(&pod).join("c.log.1"), "").unwrap();
            data.forget(&pod).unwrap();
            assert!(!data.pod(&pod).exists());
        }
        let first: PodId = "j-a-0".parse().unwrap();
        assert_eq!([0, 1, 2].map(|n| is_kept(&data, &first, n)), [false, true, true]);
        let second = pod(&data, 1, 0, 10);
        data.forget(&second).unwrap();
        assert!(is_kept(&data, &second, 0));
        let later = SystemTime::from(SystemClock.wall()) + Duration::from_secs(7_200);
        data.expire_logs_at(later).unwrap();
        assert!(entries(&data.root().join("ended")).unwrap().is_empty());
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
