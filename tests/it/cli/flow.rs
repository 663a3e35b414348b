//! `rcfarm flow …`, and flows and templates in `apply -f`.

use rcfarm_testing::wait::until;

use crate::harness::HttpCluster;

const TEMPLATE: &str = "\
apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {name: a}
spec:
  tasks: [{name: w, replicas: 1, template: {spec: {restartPolicy: Never, containers: [{name: c, command: [sleep, '60']}]}}}]
";

const FLOW: &str = "\
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: test}
spec:
  jobRetainPolicy: retain
  flows:
    - name: a
    - name: b
      dependsOn: {targets: [a]}
    - name: c
      template: a
      dependsOn: {targets: [a, b]}
      patch: {jobSpec: {tasks: [{name: w, replicas: 2}]}}
";

fn write(cluster: &HttpCluster, name: &str, text: &str) {
    std::fs::write(cluster.dir.path().join(name), text).unwrap();
}

#[tokio::test]
async fn flow_is_planned_applied_shown_and_deleted() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "flow.yaml", &format!("{FLOW}---\n{TEMPLATE}"));
    let plan = cluster.run(&["plan", "-f", "flow.yaml"]).await;
    assert!(
        plan.code == 1 && plan.stdout.contains("JobFlow default/test: would be created"),
        "{plan:?}"
    );
    let applied = cluster.run(&["apply", "-f", "flow.yaml"]).await;
    let lines: Vec<&str> = applied.stdout.lines().collect();
    assert_eq!(
        lines,
        ["JobTemplate default/a: created", "JobFlow default/test: created"],
        "templates come first"
    );
    let note = "spec.flows[1]: there is no JobTemplate b; the step waits for it";
    assert!(applied.stderr.contains(note), "{}", applied.stderr);
    assert_eq!(cluster.run(&["plan", "-f", "flow.yaml"]).await.code, 0);

    let list = cluster.json(&["flow", "list"]).await;
    assert_eq!((&list[0]["steps"], list[0]["phase"].as_str()), (&3.into(), None));
    let why = cluster.run(&["flow", "explain", "test"]).await.ok();
    assert!(why.contains("no farm has looked at default/test yet"), "{why}");
    assert!(why.contains("step c waits for a, b"), "{why}");
    let tree = cluster.run(&["flow", "tree", "test"]).await.ok();
    assert_eq!(tree, "a Waiting\n  b Waiting\n    c Waiting, and after 1 more\n");

    let _farm = cluster.start("f1");
    until("its first job is made", async || {
        cluster.get("rcfarm/jobs/default/test-a").await.is_some()
    })
    .await;
    let shown = cluster.run(&["flow", "status", "test"]).await.ok();
    assert!(shown.contains("test-a") && shown.contains("JobsActive"), "{shown}");
    let templates = cluster.json(&["flow", "template", "list"]).await;
    assert_eq!(templates[0]["jobDependsOnList"][0], "test-a");
    assert!(cluster.run(&["job", "get", "test-a"]).await.ok().contains("test-a"));

    let deleted = cluster.run(&["flow", "delete", "-f", "flow.yaml"]).await.ok();
    assert!(deleted.contains("default/test: deleted"), "{deleted}");
    assert!(cluster.get("rcfarm/job_flows/default/test").await.is_none());
    let deleted = cluster.run(&["flow", "template", "delete", "a"]).await.ok();
    assert!(deleted.contains("default/a: deleted"), "{deleted}");
    let why = cluster.run(&["flow", "template", "get", "a"]).await.failed();
    assert!(why.contains("rcfarm flow template list"), "{why}");
    let log = cluster.run(&["audit", "list", "--job", "default/test"]).await.ok();
    assert!(log.contains("JobFlow default/test Created"), "{log}");
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));
}

#[tokio::test]
async fn wrong_flows_and_templates_are_refused_by_path() {
    let cluster = HttpCluster::new().await;
    for (text, why) in [
        (FLOW.replace("targets: [a]", "targets: [c]"), "field spec.flows[1].dependsOn.targets"),
        (FLOW.replace("name: b", "name: a"), "field spec.flows[1].name"),
        (
            FLOW.replace("targets: [a, b]", "targets: [x]"),
            "field spec.flows[2].dependsOn.targets[0]",
        ),
        (
            format!("{FLOW}---\n{TEMPLATE}").replace("replicas: 2", "replicas: -2"),
            "field spec.flows[2]: JobTemplate a makes no valid job: field spec.tasks[0].replicas",
        ),
        (
            TEMPLATE.replace("replicas: 1", "replicas: x"),
            "JobTemplate default/a: field spec.tasks[0].replicas",
        ),
    ] {
        write(&cluster, "flow.yaml", &text);
        let said = cluster.run(&["apply", "-f", "flow.yaml"]).await.failed();
        assert!(said.contains(why), "{why}: {said}");
    }
    assert!(cluster.events().await.is_empty());
}

/// A change that the farm would refuse, and the flow with it, is refused when it is applied.
#[tokio::test]
async fn change_of_a_running_flow_is_refused_by_field() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "flow.yaml", &format!("{FLOW}---\n{TEMPLATE}"));
    cluster.run(&["apply", "-f", "flow.yaml"]).await.ok();
    let farm = cluster.start("f1");
    until("its first job is made", async || {
        cluster.get("rcfarm/jobs/default/test-a").await.is_some()
    })
    .await;
    let stored = cluster.get("rcfarm/job_flows/default/test").await;
    for (changed, why) in [
        (
            FLOW.replace("- name: a\n", "- name: a\n      patch: {jobSpec: {minAvailable: 1}}\n"),
            "field spec.flows[0]: template, dependsOn or patch of step a was changed after its job test-a was made",
        ),
        (
            FLOW.replace("- name: a\n", "- name: d\n")
                .replace("[a]", "[d]")
                .replace("[a, b]", "[b]"),
            "field spec.flows: step a was removed after its job test-a was made",
        ),
    ] {
        write(&cluster, "changed.yaml", &changed);
        for verb in ["plan", "apply"] {
            let ran = cluster.run(&[verb, "-f", "changed.yaml"]).await;
            assert_ne!(ran.code, 0, "{ran:?}");
            assert!(ran.stderr.contains(why) && ran.stderr.contains("undo it"), "{verb}: {ran:?}");
        }
    }
    assert_eq!(cluster.get("rcfarm/job_flows/default/test").await, stored);
    // What the farm follows is accepted.
    write(&cluster, "changed.yaml", &FLOW.replace("replicas: 2", "replicas: 3"));
    let said = cluster.run(&["apply", "-f", "changed.yaml"]).await.ok();
    assert!(said.contains("JobFlow default/test: changed"), "{said}");
    farm.stop().await;
    // The status of a flow that is gone says nothing about a new one of its name.
    cluster.delete("rcfarm/job_flows/default/test").await;
    write(&cluster, "changed.yaml", FLOW);
    cluster.run(&["apply", "-f", "changed.yaml"]).await.ok();
    let patch = "- name: a\n      patch: {jobSpec: {minAvailable: 1}}\n";
    write(&cluster, "changed.yaml", &FLOW.replace("- name: a\n", patch));
    cluster.run(&["apply", "-f", "changed.yaml"]).await.ok();
}

#[tokio::test]
async fn missing_queue_of_a_template_or_a_patch_is_refused() {
    let cluster = HttpCluster::new().await;
    let template = TEMPLATE.replace("spec:\n", "spec:\n  queue: nowhere\n");
    write(&cluster, "template.yaml", &template);
    let flow = FLOW.replace("{tasks: [{name: w, replicas: 2}]}", "{queue: elsewhere}");
    write(&cluster, "flow.yaml", &flow);
    let refused = cluster.run(&["apply", "-f", "template.yaml", "-f", "flow.yaml"]).await.failed();
    for words in [
        "JobTemplate default/a: spec.queue: there is no queue nowhere",
        "JobFlow default/test: spec.flows[2].patch.jobSpec.queue: there is no queue elsewhere",
    ] {
        assert!(refused.contains(words), "{refused}");
    }
    assert!(cluster.get("rcfarm/job_templates/default/a").await.is_none());
    let queues =
        "kind: Queue\nmetadata: {name: nowhere}\n---\nkind: Queue\nmetadata: {name: elsewhere}\n";
    write(&cluster, "queues.yaml", queues);
    let files = ["queues.yaml", "template.yaml", "flow.yaml"].map(|file| ["-f", file]).concat();
    cluster.run(&[&["apply"][..], &files].concat()).await.ok();
}

#[tokio::test]
async fn missing_priority_class_of_templates_patches_and_cron_jobs_is_refused() {
    let cluster = HttpCluster::new().await;
    let template = TEMPLATE.replace("spec:\n", "spec:\n  priorityClassName: high\n");
    let flow = FLOW.replace("{tasks: [{name: w, replicas: 2}]}", "{priorityClassName: higher}");
    let (_, spec) = template.split_once("spec:\n").unwrap();
    let spec = spec.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let cron = format!(
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: CronJob\nmetadata: {{name: nightly}}\n\
         spec:\n  schedule: '@daily'\n  jobTemplate:\n    spec:\n{spec}"
    );
    write(&cluster, "all.yaml", &[template, flow, cron].join("---\n"));
    let refused = cluster.run(&["apply", "-f", "all.yaml"]).await.failed();
    for words in [
        "JobTemplate default/a: spec.priorityClassName: there is no priority class high",
        "JobFlow default/test: spec.flows[2].patch.jobSpec.priorityClassName: there is no priority class higher",
        "CronJob default/nightly: spec.jobTemplate.spec.priorityClassName: there is no priority class high",
    ] {
        assert!(refused.contains(words), "{refused}");
    }
    assert!(cluster.events().await.is_empty());
    let class = |name: &str| format!("kind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: 7\n");
    write(&cluster, "classes.yaml", &format!("{}---\n{}", class("high"), class("higher")));
    cluster.run(&["apply", "-f", "classes.yaml", "-f", "all.yaml"]).await.ok();
}
