//! `rcfarm job dispatch`.

use rcfarm_testing::program::Ran;

use super::job_programs::JobsDev;
use crate::harness::HttpCluster;

const TEMPLATE: &str = "
apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {name: resize}
spec:
  parameterized: {metaRequired: [input], metaOptional: [max-size]}
  tasks:
    - name: t
      replicas: 1
      template:
        spec:
          restartPolicy: Never
          containers:
            - name: c
              env: [{name: RCFARM_META_MAX_SIZE, value: '10'}]
              command: [sh, -c, 'echo \"$RCFARM_META_INPUT\" $RCFARM_META_MAX_SIZE $1; cat \"$RCFARM_PAYLOAD\"', sh,
                $(RCFARM_META_INPUT)]
";

async fn with_template(template: &str) -> HttpCluster {
    let cluster = HttpCluster::new().await;
    std::fs::write(cluster.dir.path().join("template.yaml"), template).unwrap();
    cluster.run(&["apply", "-f", "template.yaml"]).await.ok();
    cluster
}

async fn dispatch(cluster: &HttpCluster, arguments: &[&str]) -> Ran {
    cluster.run(&[&["job", "dispatch", "resize"], arguments].concat()).await
}

#[tokio::test]
async fn same_token_makes_one_job_however_often_it_is_dispatched() {
    let cluster = with_template(TEMPLATE).await;
    let once = ["--meta", "input=a", "--token", "order-7"];
    let first = dispatch(&cluster, &once).await.ok();
    let job = first.strip_suffix(": created\n").unwrap_or_else(|| panic!("{first}"));
    let (_, name) = job.split_once('/').unwrap();
    let entry = cluster.entry(format!("rcfarm/jobs/{job}")).await.unwrap();
    for spelled in ["--token", "--idempotency-token"] {
        let again = dispatch(&cluster, &["--meta", "input=a", spelled, "order-7"]).await.ok();
        assert_eq!(again, format!("{job}: this dispatch has been made before\n"));
    }
    let stored = cluster.entry(format!("rcfarm/jobs/{job}")).await.unwrap();
    assert_eq!(stored.modify_index, entry.modify_index);
    let shown = cluster.run(&["job", "get", name, "-o", "json"]).await.json();
    let annotations = &shown["record"]["metadata"]["annotations"];
    assert_eq!(annotations["rcfarm/dispatch-token"], "order-7", "{shown}");
    let made = cluster.events().await.into_iter().filter(|event| event == "JOB_CHANGED");
    assert_eq!(made.count(), 1);

    let other = dispatch(&cluster, &["--meta", "input=b", "--token", "order-7"]).await.failed();
    assert!(other.contains("is there, with another metadata"), "{other}");
    let next = dispatch(&cluster, &["--meta", "input=b", "--token", "order-8"]).await.ok();
    assert!(next.ends_with(": created\n") && !next.contains(job), "{next}");
    // Without a token each one is another.
    for _ in 0..2 {
        let json = cluster.json(&["job", "dispatch", "resize", "--meta", "input=b"]).await;
        assert_eq!((&json["created"], &json["template"]), (&true.into(), &"default/resize".into()));
    }
    let all = cluster.json(&["job", "list"]).await;
    assert_eq!(all.as_array().unwrap().len(), 4);
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));
}

/// The answer to a repetition must not depend on what became of the template.
#[tokio::test]
async fn token_is_known_after_its_template_was_changed_or_deleted() {
    let cluster = with_template(&TEMPLATE.replace("replicas: 1", "replicas: 9")).await;
    let once = ["--meta", "input=a", "--token", "order-7"];
    let first = dispatch(&cluster, &once).await.ok();
    let job = first.strip_suffix(": created\n").unwrap_or_else(|| panic!("{first}"));
    let changed =
        TEMPLATE.replace("replicas: 1", "replicas: 11").replace("[input]", "[input, more]");
    std::fs::write(cluster.dir.path().join("template.yaml"), changed).unwrap();
    cluster.run(&["apply", "-f", "template.yaml"]).await.ok();
    let known = format!("{job}: this dispatch has been made before\n");
    assert_eq!(dispatch(&cluster, &once).await.ok(), known);
    cluster.delete("rcfarm/job_templates/default/resize").await;
    assert_eq!(dispatch(&cluster, &once).await.ok(), known);
    let other = dispatch(&cluster, &["--meta", "input=b", "--token", "order-7"]).await.failed();
    assert!(other.contains("is there, with another metadata"), "{other}");
    let new = dispatch(&cluster, &["--meta", "input=a", "--token", "order-8"]).await.failed();
    assert!(new.contains("there is no JobTemplate default/resize"), "{new}");
    assert_eq!(cluster.json(&["job", "list"]).await.as_array().unwrap().len(), 1);
}

/// Whatever is dispatched at once with one token, one job comes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dispatches_at_the_same_time_with_one_token_make_one_job() {
    let cluster = with_template(TEMPLATE).await;
    let arguments = ["--meta", "input=a", "--token", "order-7"];
    let all = std::iter::repeat_with(|| dispatch(&cluster, &arguments)).take(6);
    let said: Vec<String> =
        futures_util::future::join_all(all).await.into_iter().map(Ran::ok).collect();
    let created = said.iter().filter(|line| line.ends_with(": created\n")).count();
    assert_eq!(created, 1, "{said:?}");
    assert_eq!(cluster.json(&["job", "list"]).await.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn wrong_metadata_and_payloads_are_refused_by_key() {
    let cluster = with_template(TEMPLATE).await;
    std::fs::write(cluster.dir.path().join("large"), vec![b'x'; 16 * 1024 + 1]).unwrap();
    for (arguments, why) in [
        (&[][..], "field meta.input: the template requires it"),
        (
            &["--meta", "input=a", "--meta", "size=7"],
            "field meta.size: the template does not know it",
        ),
        (&["--meta", "input=a", "--meta", "input=b"], "--meta input is there twice"),
        (
            &["--meta", "input=a", "--payload", "large"],
            "large (--payload): it has more than 16384 bytes",
        ),
        (&["--meta", "input=a", "--payload", "nowhere"], "nowhere (--payload)"),
        (&["--meta", "input=a", "--token", ""], "field token: it has 0 bytes"),
    ] {
        let said = dispatch(&cluster, arguments).await.failed();
        assert!(said.contains(why), "{why}: {said}");
    }
    let said = cluster.run(&["job", "dispatch", "nothing"]).await.failed();
    assert!(said.contains("there is no JobTemplate default/nothing"), "{said}");
    let flow = "apiVersion: flow.volcano.sh/v1alpha1\nkind: JobFlow\nmetadata: {name: f}\nspec: {flows: [{name: resize}]}\n";
    std::fs::write(cluster.dir.path().join("flow.yaml"), flow).unwrap();
    let said = cluster.run(&["apply", "-f", "flow.yaml"]).await.failed();
    assert!(said.contains("its jobs are given input"), "{said}");
    let bad = TEMPLATE.replace("max-size]", "Input]");
    std::fs::write(cluster.dir.path().join("bad.yaml"), bad).unwrap();
    let said = cluster.run(&["apply", "-f", "bad.yaml"]).await.failed();
    assert!(
        said.contains("field spec.parameterized.metaOptional[0]: Input has the variable"),
        "{said}"
    );
    assert_eq!(cluster.json(&["job", "list"]).await.as_array().unwrap().len(), 0);
}

#[tokio::test]
async fn template_whose_queue_is_gone_dispatches_nothing() {
    let queue = "kind: Queue\nmetadata: {name: q}\n---";
    let template = TEMPLATE.replace("spec:\n  parameterized", "spec:\n  queue: q\n  parameterized");
    let cluster = with_template(&format!("{queue}{template}")).await;
    cluster.delete("rcfarm/queues/q").await;
    let said = dispatch(&cluster, &["--meta", "input=a"]).await.failed();
    assert!(said.contains("there is no queue q"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_find_metadata_and_payload() {
    let dev = JobsDev::one_node().await;
    dev.apply(TEMPLATE).await.ok();
    std::fs::write(dev.dir.path().join("payload"), b"\xff\x00 and $(this)\n").unwrap();
    let meta = ["--meta", "input=$(HOME) b", "--meta", "max-size=7"];
    let arguments = [&["job", "dispatch", "resize", "--payload", "payload"][..], &meta].concat();
    let job = dev.run(&arguments).await.ok();
    let job = job.strip_suffix(": created\n").unwrap();
    assert_eq!(dev.wait(job).await.code, 0);
    let log = dev.run(&["job", "logs", job]).await;
    assert!(log.stdout.contains("$(HOME) b 7 $(HOME) b\n"), "{log:?}");
    assert!(log.stdout.ends_with(" and $(this)\n"), "{log:?}");
}
