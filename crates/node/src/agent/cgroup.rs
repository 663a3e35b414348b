//! Resource limits of pods: one cgroup (v2) per pod, if the machine permits.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rcfarm_api::ids::{NodeName, PodId};
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

/// Shortest quota that the kernel takes, in microseconds of each [`PERIOD`].
const SHORTEST_QUOTA: u64 = 1_000;
/// Period of the quota of `cpu.max`, in microseconds.
const PERIOD: u64 = 100_000;

/// The limits of a pod, as far as they are enforced.
#[derive(Debug, Default)]
pub struct LimitedGroup {
    /// The pod's cgroup. `None`: nothing is enforced.
    pub group: Option<PathBuf>,
    /// Which limits are not enforced and why, for the notes of the pod's status.
    pub notes: Vec<String>,
}

/// Creates the cgroup `rcfarm.slice/<node>/<pod>` with the pod's limits. Several nodes of a machine may have pods of one
/// id.
pub fn make(node: &NodeName, pod: &PodId, limits: &ResourceList) -> LimitedGroup {
    match (limits.is_zero(), mount()) {
        (true, _) => LimitedGroup::default(),
        (false, Some(mount)) => make_below(&mount, node, pod, limits),
        (false, None) => {
            let why = "limits are not enforced: no cgroup v2 is mounted";
            LimitedGroup { group: None, notes: vec![why.to_owned()] }
        }
    }
}

fn make_below(mount: &Path, node: &NodeName, pod: &PodId, limits: &ResourceList) -> LimitedGroup {
    let offered = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
    let slice = mount.join("rcfarm.slice");
    let of_node = slice.join(node.as_str());
    let group = of_node.join(pod.as_str());
    let mut made = LimitedGroup::default();
    for (name, amount) in limits.iter().filter(|(_, amount)| *amount > 0) {
        let limit = match name {
            CPU => Ok(("cpu.max", format!("{} {PERIOD}", quota(amount)))),
            MEMORY => Ok(("memory.max", amount.to_string())),
            _ => Err("no limit of the node".to_owned()),
        };
        let enforced = limit.and_then(|(file, value)| {
            if !offered.split_whitespace().any(|controller| controller == name) {
                return Err(format!("cgroup v2 has no {name} controller here"));
            }
            let said = |what: &str, error: io::Error| format!("{what}: {error}");
            fs::create_dir_all(&group).map_err(|error| said("the cgroup cannot be made", error))?;
            for parent in [mount, &slice, &of_node] {
                let enabled = fs::write(parent.join("cgroup.subtree_control"), format!("+{name}"));
                enabled.map_err(|error| said(&format!("controller {name}"), error))?;
            }
            fs::write(group.join(file), value).map_err(|error| said(file, error))
        });
        match enforced {
            Ok(()) => made.group = Some(group.clone()),
            Err(why) => made.notes.push(format!("limits are not enforced: {why}")),
        }
    }
    made
}

/// Microseconds of each period for thousandths of a processor.
fn quota(cpu: u64) -> u64 {
    cpu.saturating_mul(PERIOD / 1_000).max(SHORTEST_QUOTA)
}

/// Removes the cgroup of a pod that has ended, if there is one. What is left in it, such as a process that left its
/// group with `setsid`, is killed.
pub fn remove(node: &NodeName, pod: &PodId) {
    if let Some(mount) = mount() {
        remove_below(&mount, node, pod);
    }
}

fn remove_below(mount: &Path, node: &NodeName, pod: &PodId) {
    let slice = mount.join("rcfarm.slice");
    // Older agents made it without the node, so other nodes' pods may be in it: it goes only if it is empty.
    let _ = fs::remove_dir(slice.join(pod.as_str()));
    let group = slice.join(node.as_str()).join(pod.as_str());
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

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn id(name: &str) -> PodId {
        name.parse().unwrap()
    }

    #[test]
    fn make_writes_limits_if_the_mount_has_the_controllers() {
        let directory = tempfile::tempdir().unwrap();
        let (n1, pod, root) = (node("n1"), id("web"), directory.path());
        let limits: ResourceList = "cpu=1.5,memory=1Mi".parse().unwrap();
        let made = make_below(root, &n1, &pod, &limits);
        assert_eq!(made.group, None);
        assert!(made.notes[0].contains("no cpu controller"), "{made:?}");
        fs::write(root.join("cgroup.controllers"), "cpuset cpu memory\n").unwrap();
        let made = make_below(root, &n1, &pod, &limits);
        assert_eq!(made.group, Some(root.join("rcfarm.slice/n1/web")));
        assert_eq!(made.notes, [""; 0]);
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        assert_eq!(read("rcfarm.slice/n1/web/cpu.max").unwrap(), "150000 100000");
        assert_eq!(read("rcfarm.slice/n1/web/memory.max").unwrap(), "1048576");
        // The controllers are enabled one after the other. A real `subtree_control` has both, this file the last.
        for parent in ["", "rcfarm.slice/", "rcfarm.slice/n1/"] {
            assert_eq!(read(&format!("{parent}cgroup.subtree_control")).unwrap(), "+memory");
        }
        assert_eq!(read("rcfarm.slice/n1/web/cgroup.subtree_control"), None, "it has processes");

        remove_below(root, &n1, &pod);
        assert_eq!(read("rcfarm.slice/n1/web/cgroup.kill").unwrap(), "1", "it is not empty");
        make_below(root, &n1, &id("small"), &"cpu=50m".parse().unwrap());
        assert_eq!(read("rcfarm.slice/n1/small/cpu.max").unwrap(), "5000 100000");
        assert_eq!(read("rcfarm.slice/n1/small/memory.max"), None, "nothing was asked for");
        assert_eq!(read("cgroup.subtree_control").unwrap(), "+cpu");
    }

    #[test]
    fn remove_kills_nothing_of_another_node() {
        let directory = tempfile::tempdir().unwrap();
        let (root, limits) = (directory.path(), "memory=1Mi".parse().unwrap());
        fs::write(root.join("cgroup.controllers"), "memory\n").unwrap();
        let groups = ["n1", "n2"].map(|name| {
            let made = make_below(root, &node(name), &id("web"), &limits);
            made.group.unwrap()
        });
        // As older agents of both nodes made it.
        let shared = root.join("rcfarm.slice/web");
        fs::create_dir(&shared).unwrap();
        fs::write(shared.join("memory.max"), "1").unwrap();
        remove_below(root, &node("n1"), &id("web"));
        let killed = |group: &Path| group.join("cgroup.kill").exists();
        assert_eq!(groups.each_ref().map(|group| killed(group)), [true, false]);
        assert!(!killed(&shared));
    }

    #[test]
    fn each_limit_is_enforced_without_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let (n1, root) = (node("n1"), directory.path());
        fs::write(root.join("cgroup.controllers"), "memory\n").unwrap();
        let made = make_below(root, &n1, &id("web"), &"cpu=1,memory=1Mi".parse().unwrap());
        assert_eq!(made.group, Some(root.join("rcfarm.slice/n1/web")));
        assert_eq!(made.notes, ["limits are not enforced: cgroup v2 has no cpu controller here"]);
        let limit = fs::read_to_string(root.join("rcfarm.slice/n1/web/memory.max")).unwrap();
        assert_eq!(limit, "1048576");
    }

    /// The kernel refuses a quota below a millisecond.
    #[test]
    fn quota_is_one_the_kernel_takes() {
        for (cpu, expected) in [(1, 1_000), (10, 1_000), (11, 1_100), (1_500, 150_000)] {
            assert_eq!(quota(cpu), expected, "{cpu}");
        }
        assert_eq!(quota(u64::MAX), u64::MAX);
    }

    /// On this machine's own hierarchy. Without permission, the error is checked in place of the limits.
    #[test]
    fn make_sets_limits_in_the_kernel_or_returns_why_not() {
        let n1 = node("rcfarm-test-node");
        let pod = id(&format!("rcfarm-test-{}", std::process::id()));
        let made = make(&n1, &pod, &"cpu=5m,memory=64Mi".parse().unwrap());
        assert!(made.group.is_some() || made.notes.len() == 2 || mount().is_none(), "{made:?}");
        for why in &made.notes {
            assert!(why.starts_with("limits are not enforced: "), "{why}");
        }
        if let (Some(group), []) = (&made.group, made.notes.as_slice()) {
            let read = |file| fs::read_to_string(group.join(file)).unwrap();
            assert_eq!(read("cpu.max").trim(), "1000 100000");
            assert_eq!(read("memory.max").trim(), (64 << 20).to_string());
        }
        remove(&n1, &pod);
        assert!(made.group.as_ref().is_none_or(|group| !group.exists()));
        // The agent leaves the node's own cgroup for its next pods.
        let of_node = made.group.as_deref().and_then(Path::parent);
        assert!(of_node.is_none_or(|group| fs::remove_dir(group).is_ok()));
    }
}
