//! Resource limits of pods: one cgroup (v2) per pod, if the machine permits.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rcfarm_api::ids::PodId;
use rcfarm_api::resource_list::{CPU, MEMORY, ResourceList};

/// Mount point of cgroup v2.
fn mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = |line: &str| {
        let mut fields = line.split(' ');
        let (at, kind) = (fields.nth(1)?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(at))
    };
    mounts.lines().find_map(mount)
}

/// The cgroup of this process.
pub fn own() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(mount()?.join(path))
}

/// Creates the cgroup `rcfarm.slice/<pod>` with the pod's limits.
///
/// # Errors
/// Why the limits are not enforced, for the notes of the pod's status.
pub fn make(pod: &PodId, limits: &ResourceList) -> Result<PathBuf, String> {
    let mount = mount().ok_or("limits are not enforced: no cgroup v2 is mounted")?;
    make_below(&mount, pod, limits)
}

fn make_below(mount: &Path, pod: &PodId, limits: &ResourceList) -> Result<PathBuf, String> {
    let message =
        |what: &str, error: &io::Error| format!("limits are not enforced: {what}: {error}");
    let offered = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
    let (cpu, memory) = (limits.amount(CPU), limits.amount(MEMORY));
    let wanted = || limits.iter().filter(|(_, amount)| *amount > 0).map(|(name, _)| name);
    if let Some(missing) = wanted().find(|name| !offered.split_whitespace().any(|o| o == *name)) {
        return Err(format!("limits are not enforced: cgroup v2 has no {missing} controller here"));
    }
    let slice = mount.join("rcfarm.slice");
    let group = slice.join(pod.as_str());
    fs::create_dir_all(&group).map_err(|error| message("the cgroup cannot be created", &error))?;
    for name in wanted() {
        for parent in [mount, &slice] {
            let enabled = fs::write(parent.join("cgroup.subtree_control"), format!("+{name}"));
            enabled.map_err(|error| message(&format!("controller {name}"), &error))?;
        }
    }
    let set = |file: &str, value: String| {
        fs::write(group.join(file), value).map_err(|error| message(file, &error))
    };
    if cpu > 0 {
        set("cpu.max", format!("{} 100000", cpu * 100))?;
    }
    if memory > 0 {
        set("memory.max", memory.to_string())?;
    }
    Ok(group)
}

/// Removes the cgroup of a pod that has ended, if there is one. What is left in it, such as a process that left its
/// group with `setsid`, is killed.
pub fn remove(pod: &PodId) {
    if let Some(mount) = mount() {
        remove_below(&mount, pod);
    }
}

fn remove_below(mount: &Path, pod: &PodId) {
    let group = mount.join("rcfarm.slice").join(pod.as_str());
    if fs::remove_dir(&group).is_ok() || !group.is_dir() {
        return;
    }
    let _ = fs::write(group.join("cgroup.kill"), "1");
    // While the processes end it stays, and the pod's next launch uses it again.
    let _ = fs::remove_dir(&group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn make_writes_limits_if_the_mount_has_the_controllers() {
        let directory = tempfile::tempdir().unwrap();
        let (pod, root): (PodId, _) = ("web".parse().unwrap(), directory.path());
        let limits: ResourceList = "cpu=1.5,memory=1Mi".parse().unwrap();
        let error = make_below(root, &pod, &limits).unwrap_err();
        assert!(error.contains("no cpu controller"), "{error}");
        fs::write(root.join("cgroup.controllers"), "cpuset cpu memory\n").unwrap();
        let group = make_below(root, &pod, &limits).unwrap();
        assert_eq!(group, root.join("rcfarm.slice/web"));
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        assert_eq!(read("rcfarm.slice/web/cpu.max").unwrap(), "150000 100000");
        assert_eq!(read("rcfarm.slice/web/memory.max").unwrap(), "1048576");
        // The controllers are enabled one after the other. A real `subtree_control` has both, this file the last.
        for parent in ["cgroup.subtree_control", "rcfarm.slice/cgroup.subtree_control"] {
            assert_eq!(read(parent).unwrap(), "+memory");
        }
        assert_eq!(read("rcfarm.slice/web/cgroup.subtree_control"), None, "it has processes");

        remove_below(root, &pod);
        assert_eq!(read("rcfarm.slice/web/cgroup.kill").unwrap(), "1", "it is not empty");
        let other: PodId = "small".parse().unwrap();
        make_below(root, &other, &"cpu=50m".parse().unwrap()).unwrap();
        assert_eq!(read("rcfarm.slice/small/cpu.max").unwrap(), "5000 100000");
        assert_eq!(read("rcfarm.slice/small/memory.max"), None, "nothing was asked for");
        assert_eq!(read("cgroup.subtree_control").unwrap(), "+cpu");
    }

    /// On this machine's own hierarchy. Without permission, the error is checked in place of the limits.
    #[test]
    fn make_sets_limits_in_the_kernel_or_returns_why_not() {
        let pod: PodId = format!("rcfarm-test-{}", std::process::id()).parse().unwrap();
        match make(&pod, &"cpu=500m,memory=64Mi".parse().unwrap()) {
            Ok(group) => {
                let read = |file| fs::read_to_string(group.join(file)).unwrap();
                assert_eq!(read("cpu.max").trim(), "50000 100000");
                assert_eq!(read("memory.max").trim(), (64 << 20).to_string());
                remove(&pod);
                assert!(!group.exists());
            }
            Err(why) => {
                assert!(why.starts_with("limits are not enforced: "), "{why}");
                remove(&pod);
            }
        }
    }
}
