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
