//! Documents of single pods.

use super::*;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: probe
  labels: {app: probe}
  annotations: {scheduling.volcano.sh/queue-name: research, team: a}
spec:
  schedulerName: volcano
  restartPolicy: Never
  priorityClassName: "7"
  activeDeadlineSeconds: 60
  nodeSelector: {pool: gpu}
  containers: [{name: c, command: [sleep, "9"], resources: {requests: {cpu: 2}}}]
"#;

#[test]
fn single_pod_is_a_job_of_one_member_in_its_queue() {
    let read = accepted(POD);
    let job = &read.spec;
    assert_eq!((job.framework, job.replicas(), job.min_available), (Framework::Pod, 1, 1));
    assert_eq!((job.queue.as_str(), job.priority_class.as_deref()), ("research", Some("7")));
    assert_eq!(job.active_deadline, Some(Duration::from_secs(60)));
    let task = &job.tasks[0];
    assert_eq!((task.restart, task.template.labels["app"].as_str()), (Restart::Never, "probe"));
    assert_eq!(task.template.resources(), "cpu=2".parse().unwrap());
    assert_eq!(fields(&read.warnings), ["spec.schedulerName"]);

    let document = yaml(POD);
    let with = |at: &str, value: Value| {
        let mut other = document.clone();
        set(&mut other, at, value);
        other
    };
    let id = name(&document).unwrap();
    let gated = with("/spec/schedulingGates", json!([{"name": "wait"}]));
    assert!(super::read(&id, &gated).unwrap().spec.suspend);
    assert_eq!(immutable_hash(&gated), immutable_hash(&document));
    let elsewhere = json!({"volcano.sh/queue-name": "other"});
    assert_ne!(
        immutable_hash(&with("/metadata/annotations", elsewhere)),
        immutable_hash(&document)
    );
    for (at, value, field) in [
        ("/spec/containers/0/command", json!([]), "spec.containers[0].command"),
        ("/spec/nodeName", json!("n1"), "spec.nodeName"),
        ("/spec/replicas", json!(2), "spec.replicas"),
        ("/apiVersion", json!("v2"), "apiVersion"),
        (
            "/metadata/annotations",
            json!({"scheduling.k8s.io/group-name": "g"}),
            "metadata.annotations.scheduling.k8s.io/group-name",
        ),
        (
            "/metadata/annotations",
            json!({"scheduling.volcano.sh/group-min-member": "3"}),
            "metadata.annotations.scheduling.volcano.sh/group-min-member",
        ),
        (
            "/metadata/annotations",
            json!({"scheduling.volcano.sh/queue-name": "a/b"}),
            "metadata.annotations.scheduling.volcano.sh/queue-name",
        ),
    ] {
        let problems = super::read(&id, &with(at, value)).unwrap_err();
        assert_eq!(fields(&problems), [field]);
    }
}

#[test]
fn template_larger_than_a_manifest_may_be_is_refused() {
    let id: Namespaced = "default/j".parse().unwrap();
    let document = |bytes: usize| {
        let containers = json!([{"name": "c", "command": ["true", "x".repeat(bytes)]}]);
        json!({"kind": "Pod", "spec": {"containers": containers}})
    };
    assert!(read(&id, &document(100_000)).is_ok());
    // Each string is below the kernel's limit.
    let mut large = document(100_000);
    large["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "x".repeat(100_000)}]);
    let problems = read(&id, &large).unwrap_err();
    assert!(problems[0].to_string().contains("at most 131072"), "{problems:?}");
}
