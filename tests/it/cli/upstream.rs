//! Runs documents with the fields of Volcano's and Kubeflow's own examples (`testdata/upstream/`) on `rcfarm dev`, as
//! real processes. Each runs to its right end, or is refused with the path of a field.

use std::collections::BTreeMap;
use std::path::Path;

use super::job_programs::JobsDev;
use rcfarm_testing::wait::until;

/// Those that are refused, with words of the message.
const REFUSED: [(&str, &str); 2] = [
    // Upstream refuses it, too: no container is called mpi.
    ("kubeflow/tensorflow-mnist-elastic", "there is no container named \"mpi\""),
    // A misspelled priorityClassName.
    ("volcano/elastic-job", "spec.tasks[0].template.spec.priorityClass: there is no such field"),
];
/// Documents that run at once.
const AT_ONCE: usize = 6;

/// Text of each document, by directory and name.
fn documents() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/upstream");
    let mut all = BTreeMap::new();
    for set in ["kubeflow", "volcano"] {
        for entry in std::fs::read_dir(root.join(set)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            all.insert(format!("{set}/{name}"), std::fs::read_to_string(path).unwrap());
        }
    }
    all
}

/// The job's name, with its namespace.
fn job_of(text: &str) -> String {
    let field = |name: &str| {
        let rest = text.split_once(&format!("metadata: {{{name}: "))?.1;
        rest.split([',', '}']).next().map(str::to_owned)
    };
    let name = field("name").expect("metadata begin with the name");
    match text.split_once(&format!("{name}, namespace: ")) {
        Some((_, rest)) => format!("{}/{name}", rest.split('}').next().unwrap()),
        None => name,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_like_upstreams_run_to_their_end() {
    let dev = JobsDev::start(&["--nodes", "2", "--capacity", "cpu=64,memory=512Gi,gpu=16"]).await;
    for node in ["node-1", "node-2"] {
        dev.run(&["label", "set", "node", node, "kubernetes.io/os=linux"]).await.ok();
    }
    for queue in ["eng-prod", "eng-dev", "sci-prod", "sci-dev"] {
        dev.run(&["queue", "create", &format!("root-{queue}")]).await.ok();
    }
    let documents = documents();
    let (mut refused, mut ran) = (BTreeMap::new(), 0);
    let all: Vec<_> = documents.iter().collect();
    for some in all.chunks(AT_ONCE) {
        let mut applied = Vec::new();
        for (name, text) in some {
            let answer = dev.apply(text).await;
            if answer.code == 0 {
                applied.push((*name, job_of(text)));
            } else {
                refused.insert((*name).clone(), answer.stderr);
            }
        }
        for (name, job) in applied {
            let ended = dev.wait(&job).await;
            let why = dev.run(&["job", "explain", &job]).await;
            assert_eq!(ended.code, 0, "{name}: {ended:?} {why:?}");
            ran += 1;
        }
    }
    println!("{ran} of {} ran to their end", documents.len());
    for (name, why) in &refused {
        println!("{name} is refused: {why}");
    }
    let expected: Vec<&str> = REFUSED.iter().map(|(name, _)| *name).collect();
    assert_eq!(refused.keys().map(String::as_str).collect::<Vec<_>>(), expected, "{refused:?}");
    for (name, words) in REFUSED {
        assert!(refused[name].contains(words), "{name}: {}", refused[name]);
    }
    assert!(ran >= 37, "{ran}");
}

/// Volcano's JobFlow with its templates, and its CronJob, whose schedule is played in virtual time by
/// `tests/it/farm/cron.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_and_cron_job_like_upstreams_run_to_their_end() {
    let dev = JobsDev::start(&["--nodes", "1", "--capacity", "cpu=4,memory=8Gi"]).await;
    dev.run(&["priority-class", "create", "high-priority", "--value", "10"]).await.ok();
    let text = |name: &str| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/upstream/volcano-flows");
        std::fs::read_to_string(root.join(name)).unwrap()
    };
    let applied = dev.apply(&format!("{}---\n{}", text("flow.yaml"), text("templates.yaml"))).await;
    assert!(applied.stderr.contains("spec.flows[0].maxRetry: Volcano drops"), "{applied:?}");
    applied.ok();
    let status = async || dev.run(&["flow", "status", "test", "-o", "json"]).await.json();
    until("the flow has succeeded", async || {
        status().await["status"]["state"]["phase"] == "Succeed"
    })
    .await;
    let flow = status().await["status"].clone();
    let listed = flow["jobStatusList"].as_array().unwrap();
    let order: Vec<&str> = listed.iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(order, ["test-a", "test-b", "test-c", "test-d", "test-e"]);
    assert!(listed.iter().all(|job| job["state"] == "Completed"), "{flow}");
    until("its jobs are deleted", async || {
        dev.run(&["job", "list", "-o", "json"]).await.json() == serde_json::json!([])
    })
    .await;

    dev.apply(&text("cronjob.yaml")).await.ok();
    let made = dev.run(&["cron", "run", "volcano-cronjob-example", "-o", "json"]).await.json();
    let job = made["job"].as_str().unwrap().to_owned();
    assert_eq!(dev.wait(&job).await.code, 0);
    let log = dev.run(&["job", "logs", &job]).await.ok();
    assert!(log.contains("Hello from Volcano CronJob"), "{log}");
}
