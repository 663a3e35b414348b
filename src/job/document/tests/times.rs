//! Limits in seconds.

use super::*;

#[test]
fn deadline_is_positive_and_has_63_bits() {
    let container = |name: &str| json!({"name": name, "command": ["true"]});
    let template = |name: &str| json!({"spec": {"containers": [container(name)]}});
    let volcano = json!({"metadata": {"name": "j"},
        "spec": {"tasks": [{"name": "t", "replicas": 1, "template": template("c")}]}});
    let kubeflow = json!({"kind": "TFJob", "metadata": {"name": "j"},
        "spec": {"tfReplicaSpecs": {"Worker": {"template": template("tensorflow")}}}});
    let pod = json!({"kind": "Pod", "metadata": {"name": "j"},
        "spec": {"restartPolicy": "Never", "containers": [container("c")]}});
    for (document, at) in [
        (&volcano, "spec.activeDeadlineSeconds"),
        (&volcano, "spec.runPolicy.activeDeadlineSeconds"),
        (&kubeflow, "spec.runPolicy.activeDeadlineSeconds"),
        (&pod, "spec.activeDeadlineSeconds"),
    ] {
        let with = |seconds: Value| {
            let mut document = document.clone();
            if at.contains("runPolicy") {
                document["spec"]["runPolicy"] = json!({"activeDeadlineSeconds": seconds});
            } else {
                document["spec"]["activeDeadlineSeconds"] = seconds;
            }
            read(&id(), &document)
        };
        for seconds in [1, i64::from(i32::MAX) + 1, i64::MAX] {
            let limit = with(json!(seconds)).unwrap().spec.active_deadline;
            assert_eq!(limit, Some(Duration::from_secs(seconds.unsigned_abs())), "{at}");
        }
        for wrong in [json!(0), json!(-1), json!(u64::MAX), json!(1.5), json!("1")] {
            assert_eq!(fields(&with(wrong.clone()).unwrap_err()), [at], "{wrong}");
        }
    }
}
