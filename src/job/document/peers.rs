//! Size of the variables that tell members of their peers, before any of them has a node. Pure.
//!
//! The kernel bounds each variable. Addresses are those of nodes, which are not known yet: with the shortest ones a
//! variable has its least size, with the longest IPv4 addresses the size to expect at most. The controller checks the
//! exact size when the nodes are known ([`writes::check_strings`](crate::job::writes::check_strings)).

use std::cmp::Reverse;

use serde_json::Value;

use super::fields::FieldIssues;
use super::kubeflow::task_path;
use super::payload::annotation;
use crate::job::frameworks::{self, Cluster, ClusterPeer, Variable};
use crate::job::peers;
use rcfarm_api::FieldError;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::spec::{Framework, JobSpec, OnPeerChange, Plugin, Slot};
use rcfarm_api::manifest::PeerSignal;
use rcfarm_api::manifest::command_line::LONGEST_STRING;

/// Addresses of the least and of the greatest length that IPv4 has.
const ADDRESSES: [&str; 2] = ["1.1.1.1", "111.111.111.111"];
/// Jobs with fewer members are not examined: 40 bytes for each fit into a variable. No framework needs more for one.
const FEW: usize = LONGEST_STRING / 40;
/// Tasks of which a member is examined. Roles that are told different things are fewer; members of further tasks are told
/// the same but for their own name and index.
const EXAMINED_TASKS: usize = 8;

/// Annotation of a job, `files`, `signal`, `signal=<name>`, `restart` or `none`: what its members have when one of them
/// moves.
pub const PEER_CHANGE_ANNOTATION: &str = "rcfarm/on-peer-change";
/// Its path in a document.
const PEER_CHANGE_PATH: &str = "metadata.annotations.rcfarm/on-peer-change";

/// What the annotation says; without it, files follow.
pub(super) fn on_change(document: &Value, issues: &mut FieldIssues) -> OnPeerChange {
    let Some(value) = annotation(document, PEER_CHANGE_ANNOTATION) else {
        return OnPeerChange::default();
    };
    let word = value.as_str().unwrap_or_default();
    let signal = word.strip_prefix("signal=").map(PeerSignal::of);
    match (word, signal) {
        ("files", _) => OnPeerChange::Files,
        ("none", _) => OnPeerChange::Nothing,
        ("restart", _) => OnPeerChange::Restart,
        ("signal", _) => OnPeerChange::Signal(PeerSignal::Hup),
        (_, Some(Some(signal))) => OnPeerChange::Signal(signal),
        _ => {
            let signals = PeerSignal::ALL.map(PeerSignal::name).join(", ");
            let why = format!("write files, signal=<one of {signals}>, restart or none");
            issues.problem(PEER_CHANGE_PATH, why);
            OnPeerChange::default()
        }
    }
}

/// What the members of a job have when one of them moves, for people. `None`: they are told of no peer.
#[must_use]
pub fn peer_change_in_words(job: &JobSpec) -> Option<String> {
    let told = "the files of their peers follow";
    let words = match job.on_peer_change {
        OnPeerChange::Nothing => "nothing: their files are left out".to_owned(),
        _ if !peers::has_files(job) => return None,
        OnPeerChange::Files => told.to_owned(),
        OnPeerChange::Signal(signal) => format!("{told}, then they get SIG{}", signal.name()),
        OnPeerChange::Restart => {
            format!("{told}, then those that know an old address are restarted in place")
        }
    };
    Some(words)
}

/// Warns of a signal or restarts that members never get.
fn warn_if_untold(job: &JobSpec, issues: &mut FieldIssues) {
    let asks = matches!(job.on_peer_change, OnPeerChange::Signal(_) | OnPeerChange::Restart);
    if asks && !peers::has_files(job) {
        issues
            .warning(PEER_CHANGE_PATH, "its members have no files of their peers: nothing is told");
    }
}

/// Refuses a job whose members cannot be told of all their peers; warns where that depends on the addresses.
pub(super) fn check(id: &Namespaced, job: &JobSpec, issues: &mut FieldIssues) {
    warn_if_untold(job, issues);
    // The texts of a described kind may repeat addresses.
    if (job.replicas() as usize) < FEW && job.framework != Framework::Described {
        return;
    }
    let [shortest, longest] = ADDRESSES.map(|address| too_long(id, job, address));
    let is_certain = shortest.is_some();
    let Some((variable, bytes)) = shortest.or(longest) else { return };
    let largest = (0..job.tasks.len()).max_by_key(|n| job.tasks[*n].replicas).unwrap_or_default();
    let field = format!("{}.replicas", task_path(job, largest));
    let least = ADDRESSES[usize::from(!is_certain)].len();
    let problem = format!(
        "with addresses of {least} bytes {variable} has {bytes} bytes: the kernel allows {LONGEST_STRING} \
         (MAX_ARG_STRLEN)"
    );
    let issue = FieldError::new(field, problem, remedy(job));
    match is_certain {
        true => issues.problems.push(issue),
        false => issues.warnings.push(issue),
    }
}

/// The longest variable of any member and its size, if it is too long when all peers have this address.
fn too_long(id: &Namespaced, job: &JobSpec, address: &str) -> Option<(String, usize)> {
    let peer = |_: &Slot| ClusterPeer { host: address.to_owned(), offset: 0, assigned: None };
    let cluster = Cluster { id, job, peer: &peer };
    let of_member = |slot: Slot| frameworks::of(job.framework).environment(&cluster, &slot);
    let all = examined(job).into_iter().flat_map(of_member);
    let size = |one: &Variable| one.name.len() + 1 + one.value.len();
    let longest = all.max_by_key(size)?;
    (size(&longest) > LONGEST_STRING).then(|| (longest.name.clone(), size(&longest)))
}

/// The last member of each task, which differs from the others in the digits of its index. Of many tasks those with the
/// longest names.
fn examined(job: &JobSpec) -> Vec<Slot> {
    let tasks = job.tasks.iter().filter(|task| task.replicas > 0);
    let mut last: Vec<Slot> = tasks.map(|task| Slot::new(&task.name, task.replicas - 1)).collect();
    last.sort_by_key(|slot| Reverse(slot.to_string().len()));
    last.truncate(EXAMINED_TASKS);
    last
}

fn remedy(job: &JobSpec) -> &'static str {
    match job.framework {
        Framework::TensorFlow => "use fewer replicas, or enableDynamicWorker",
        Framework::Volcano if job.plugins.contains_key(&Plugin::Svc) => {
            "use fewer replicas, or the argument --inject-hosts-env=false of the plugin svc"
        }
        _ => "use fewer replicas",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::job::document::read;

    /// Problems, and warnings about sizes.
    fn issues(document: &Value) -> (Vec<FieldError>, Vec<FieldError>) {
        let id: Namespaced = "default/t".parse().unwrap();
        match read(&id, document) {
            Ok(mut read) => {
                read.warnings.retain(|warning| warning.problem.contains("MAX_ARG_STRLEN"));
                (Vec::new(), read.warnings)
            }
            Err(problems) => (problems, Vec::new()),
        }
    }

    fn template(name: &str) -> Value {
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": name, "command": ["x"]}]}})
    }

    fn tensorflow(workers: u32, is_dynamic: bool) -> Value {
        let worker = json!({"replicas": workers, "template": template("tensorflow")});
        json!({"kind": "TFJob", "spec": {
            "enableDynamicWorker": is_dynamic, "tfReplicaSpecs": {"Worker": worker}}})
    }

    fn volcano(members: u32, arguments: Value) -> Value {
        let task = json!({"name": "w", "replicas": members, "template": template("c")});
        json!({"spec": {"plugins": {"svc": arguments}, "tasks": [task]}})
    }

    #[test]
    fn job_whose_members_cannot_be_told_of_their_peers_is_refused() {
        for (document, field, words) in [
            (
                tensorflow(9_000, false),
                "spec.tfReplicaSpecs.Worker.replicas",
                ["TF_CONFIG has 135094 bytes", "enableDynamicWorker"],
            ),
            (
                volcano(17_000, json!([])),
                "spec.tasks[0].replicas",
                ["VC_W_HOSTS has 136010 bytes", "--inject-hosts-env=false"],
            ),
        ] {
            let (problems, _) = issues(&document);
            let [problem] = &problems[..] else { panic!("{problems:?}") };
            assert_eq!(problem.path, field);
            let text = problem.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            assert!(text.contains("131071") && text.contains("fewer replicas"), "{text}");
        }
    }

    /// Each task would be told of all members: the work would grow with tasks times members.
    #[test]
    fn job_whose_status_is_too_large_is_not_examined() {
        let task = |n| json!({"name": format!("t{n}"), "replicas": 50, "template": template("c")});
        let tasks: Vec<Value> = (0..2_000).map(task).collect();
        let (problems, _) = issues(&json!({"spec": {"plugins": {"svc": []}, "tasks": tasks}}));
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert!(problem.to_string().contains("status of 100000 members"), "{problem}");
    }

    /// Below that limit, too, the work grows with the members alone.
    #[test]
    fn few_members_of_many_tasks_are_examined() {
        let task = |n| json!({"name": format!("t{n}"), "replicas": 2, "template": template("c")});
        let tasks: Vec<Value> = (0..201).map(task).collect();
        let job = read(&"default/t".parse().unwrap(), &json!({"spec": {"tasks": tasks}})).unwrap();
        let examined = examined(&job.spec);
        assert_eq!(examined.len(), EXAMINED_TASKS);
        assert_eq!(examined[0], Slot::new("t100", 1));
    }

    #[test]
    fn job_is_warned_of_where_the_addresses_decide() {
        for document in [tensorflow(6_300, false), volcano(9_400, json!([]))] {
            let (problems, warnings) = issues(&document);
            assert_eq!(problems, []);
            assert!(warnings[0].problem.contains("addresses of 15 bytes"), "{warnings:?}");
        }
    }

    #[test]
    fn job_whose_variables_fit_is_accepted() {
        for document in [
            tensorflow(5_600, false),
            tensorflow(9_000, true),
            volcano(8_000, json!([])),
            volcano(17_000, json!(["--inject-hosts-env=false"])),
        ] {
            let (problems, warnings) = issues(&document);
            assert_eq!((problems, warnings), (vec![], vec![]), "{document}");
        }
    }

    #[test]
    fn annotation_says_what_members_have_when_one_moves() {
        let id: Namespaced = "default/t".parse().unwrap();
        let of = |word: Value| {
            let mut document = tensorflow(2, false);
            document["metadata"]["annotations"][PEER_CHANGE_ANNOTATION] = word;
            read(&id, &document).map(|read| read.spec.on_peer_change)
        };
        assert_eq!(of(Value::Null).unwrap(), OnPeerChange::Files);
        assert_eq!(of(json!("files")).unwrap(), OnPeerChange::Files);
        assert_eq!(of(json!("none")).unwrap(), OnPeerChange::Nothing);
        assert_eq!(of(json!("restart")).unwrap(), OnPeerChange::Restart);
        for (word, signal) in [
            ("signal", PeerSignal::Hup),
            ("signal=HUP", PeerSignal::Hup),
            ("signal=SIGUSR1", PeerSignal::Usr1),
        ] {
            assert_eq!(of(json!(word)).unwrap(), OnPeerChange::Signal(signal), "{word}");
        }
        for word in ["", "signal=", "signal=KILL", "signal=TERM", "signal=usr1", "restart=1"] {
            let problems = of(json!(word)).unwrap_err();
            assert_eq!(problems[0].path, "metadata.annotations.rcfarm/on-peer-change");
            assert!(problems[0].problem.contains("HUP, USR1, USR2, WINCH"), "{problems:?}");
        }
        assert_eq!(of(json!(1)).unwrap_err().len(), 1);
    }

    #[test]
    fn signal_that_nobody_gets_is_warned_about() {
        let id: Namespaced = "default/t".parse().unwrap();
        let warned = |mut document: Value, word: &str| {
            document["metadata"]["annotations"][PEER_CHANGE_ANNOTATION] = json!(word);
            let read = read(&id, &document).unwrap();
            let is_warned = read.warnings.iter().any(|warning| warning.path == PEER_CHANGE_PATH);
            (is_warned, peer_change_in_words(&read.spec))
        };
        let (of_two, alone) = (tensorflow(2, false), tensorflow(1, false));
        for (word, words) in [
            ("files", "follow"),
            ("signal", "then they get SIGHUP"),
            ("restart", "restarted in place"),
        ] {
            let (is_warned, text) = warned(of_two.clone(), word);
            assert!(!is_warned && text.as_ref().unwrap().contains(words), "{text:?}");
            assert_eq!(warned(alone.clone(), word), (word != "files", None));
        }
        assert!(warned(of_two, "none").1.unwrap().starts_with("nothing"));
    }

    /// The limit below which jobs are not examined leaves none out.
    #[test]
    fn variables_of_small_jobs_fit_whatever_the_framework() {
        let few = u32::try_from(FEW).unwrap();
        let member = |name: &str, n: u32| json!({"replicas": n, "template": template(name)});
        let operator = |kind: &str, specs: &str, name: &str, first: &str| {
            let members = json!({first: member(name, 1), "Worker": member(name, few - 2)});
            json!({"kind": kind, "spec": {specs: members}})
        };
        for document in [
            tensorflow(few - 1, false),
            volcano(few - 1, json!([])),
            operator("XGBoostJob", "xgbReplicaSpecs", "xgboost", "Master"),
            operator("MPIJob", "mpiReplicaSpecs", "mpi", "Launcher"),
            operator("PyTorchJob", "pytorchReplicaSpecs", "pytorch", "Master"),
        ] {
            let id: Namespaced = "default/t".parse().unwrap();
            let job = read(&id, &document).unwrap().spec;
            assert_eq!(too_long(&id, &job, ADDRESSES[1]), None, "{document}");
        }
    }
}
