//! Arguments of Volcano's plugins.

use super::*;
use rcfarm_api::job::spec::Plugin;

#[test]
fn arguments_of_ssh_are_taken_or_refused() {
    let with = |arguments: Value| {
        bent(|document| set(document, "/spec/plugins", json!({"ssh": arguments})))
    };
    let read = with(json!(["--ssh-port=2222", "--ssh-key-file-path=/root/.ssh"])).unwrap();
    assert_eq!(read.spec.plugins[&Plugin::Ssh], ["--ssh-port=2222"]);
    assert_eq!(fields(&read.warnings), ["spec.plugins.ssh[0]", "spec.plugins.ssh[1]"][1..]);
    for (argument, problem) in [
        ("--x=1", "there is no argument \"x\""),
        ("--ssh-port=0", "is no port"),
        ("--ssh-port", "write it as --ssh-port=VALUE"),
        ("--ssh-private-key=x", "whoever reads the job would have the key"),
        ("--ssh-public-key=x", "whoever reads the job would have the key"),
    ] {
        let problems = with(json!([argument])).unwrap_err();
        assert_eq!(fields(&problems), ["spec.plugins.ssh[0]"], "{argument}");
        assert!(problems[0].problem.contains(problem), "{argument}: {problems:?}");
    }
}

#[test]
fn ray_needs_a_head_and_no_commands() {
    let with = |arguments: Value, command: Value| {
        bent(|document| {
            set(document, "/spec/plugins", json!({"ray": arguments}));
            set(document, "/spec/tasks/0/template/spec/containers/0/command", command);
        })
    };
    let named = json!(["--head=a", "--headContainer=c"]);
    let command = "spec.tasks[0].template.spec.containers[0].command";
    let own = with(named.clone(), json!(["mine"])).unwrap();
    assert_eq!(fields(&own.warnings), [command], "it is replaced");
    let none = with(named, json!([])).unwrap();
    assert_eq!(fields(&none.warnings), [""; 0]);
    assert_eq!(none.spec.tasks[0].template.containers[0].command[..2], ["sh", "-c"]);
    // A container with another name keeps its own, and needs one.
    let other = with(json!(["--head=a"]), json!([])).unwrap_err();
    assert_eq!(fields(&other), [command]);
    for (argument, path, problem) in [
        ("--worker=b", "spec.plugins.ray", "no task of the head"),
        ("--clientPort=x", "spec.plugins.ray[0]", "is no port"),
        ("--x=1", "spec.plugins.ray[0]", "there is no argument \"x\""),
    ] {
        let problems = with(json!([argument]), json!(["mine"])).unwrap_err();
        let found = problems.iter().any(|one| one.path == path && one.problem.contains(problem));
        assert!(found, "{argument}: {problems:?}");
    }
}
