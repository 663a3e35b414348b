//! The ACL policies of `docs/operate/acl/` on a real Consul that denies whatever is not granted: each is enough for
//! what it says, and the viewer's for nothing else.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::pod_processes;
use rcfarm_testing::process::Process;
use rcfarm_testing::wait::until;

const MASTER: &str = "9b4b1b76-5b3c-4cf8-9c23-8a2fb8d0c5d1";

/// Who comes without a token may do everything, so the harness sees when the server is ready; whoever comes with
/// one may do what its policy grants and no more.
fn denying() -> String {
    format!(
        r#"acl {{
            enabled = true
            default_policy = "deny"
            tokens {{ master = "{MASTER}" default = "{MASTER}" agent = "{MASTER}" }}
        }}"#
    )
}

struct Scene {
    consul: ConsulServer,
    dir: TempDir,
}

impl Scene {
    /// A token with the policy in `docs/operate/acl/<name>.hcl` and `more` rules.
    async fn token(&self, name: &str, more: &str) -> String {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/operate/acl/{name}.hcl"));
        let rules = std::fs::read_to_string(file).unwrap() + more;
        let name = format!("{name}{}", more.len());
        self.put("policy", &json!({"Name": name, "Rules": rules})).await;
        let token = self.put("token", &json!({"Policies": [{"Name": name}]})).await;
        token["SecretID"].as_str().unwrap().to_owned()
    }

    async fn put(&self, what: &str, body: &Value) -> Value {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{}/v1/acl/{what}", self.consul.http());
        let answer = client.put(url).header("X-Consul-Token", MASTER).json(body).send().await;
        let text = answer.unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{what}: {text}"))
    }

    fn command(&self, token: &str, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rcfarm"));
        command
            .args(words.split(' '))
            .env_clear()
            .env("CONSUL_HTTP_ADDR", self.consul.http().to_string())
            .env("CONSUL_HTTP_TOKEN", token)
            .current_dir(self.dir.path());
        command
    }

    async fn run(&self, token: &str, words: &str) -> Output {
        let mut command = self.command(token, words);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    #[track_caller]
    fn ok(words: &str, output: &Output) -> String {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rcfarm {words}: {said}");
        String::from_utf8(output.stdout.clone()).unwrap()
    }

    #[track_caller]
    fn must_not_be_denied(&self, log: &str) {
        let text = std::fs::read_to_string(self.dir.path().join(log)).unwrap();
        assert!(
            !text.to_lowercase().contains("denied"),
            "{log}: the rights are not enough:\n{text}"
        );
    }

    async fn all(&self, token: &str, commands: &[&str]) {
        for words in commands {
            Self::ok(words, &self.run(token, words).await);
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        pod_processes::kill(&self.dir.path().join("data"));
    }
}

#[tokio::test]
async fn the_documented_policies_are_enough() {
    let scene = Scene {
        consul: ConsulServer::with_config(&denying()).await,
        dir: tempfile::tempdir().unwrap(),
    };
    std::fs::write(scene.dir.path().join("web.yaml"), "id: web\n").unwrap();
    let single = "id: single\nsingle_instance: true\nlaunchables:\n  \
                  main: {launchable_type: process, command: sleep 600}\n";
    std::fs::write(scene.dir.path().join("single.yaml"), single).unwrap();
    let farm = scene.token("farm", "").await;
    let user = scene.token("user", "").await;
    let viewer = scene.token("viewer", "").await;
    let node = scene.token("node", "").await;

    let mut agent = scene.command(&node, "node run --name n1 --label pool=a --data-dir data");
    let mut agent =
        Process::start(agent.env("PATH", "/usr/bin:/bin"), scene.dir.path(), "node.log");
    let mut daemon = scene.command(&farm, "farm run --name f1");
    let mut daemon = Process::start(&mut daemon, scene.dir.path(), "farm.log");
    let create = "rc create -f web.yaml --node-selector role=web --replicas 2 --wait";
    let life = ["label set node n1 role=web", "label set node n2 role=web", create];
    scene.all(&user, &life).await;
    scene.all(&user, &["rc scale web 1 --wait", "rc disable web", "rc enable web"]).await;

    scene
        .all(&user, &["rc create -f single.yaml --node-selector pool=a --replicas 1 --wait"])
        .await;
    until("it runs", async || {
        scene.must_not_be_denied("node.log");
        let pods = scene.run(&viewer, "-o json pod list single").await;
        let pods: Value = serde_json::from_slice(&pods.stdout).unwrap();
        pods[0]["phase"] == "Running"
    })
    .await;

    let looks = [
        "rc list",
        "rc get web",
        "rc status web",
        "rc pods web",
        "rc plan web",
        "rc explain web",
        "rc orphans",
        "label list node",
        "label list pod",
        "label get rc web",
        "audit list",
        "audit verify",
        "farm list",
        "doctor",
        "node list",
        "node get n1",
        "pod get single",
    ];
    scene.all(&viewer, &looks).await;
    let pods = scene.run(&viewer, "-o json rc pods web").await;
    let pods: Value = serde_json::from_slice(&pods.stdout).unwrap();
    assert_eq!(pods[0]["intent"], "same", "a viewer who may not read intents would see none");
    for words in ["rc scale web 2", "label set node n1 a=b", "farm confirm f1", create] {
        let refused = scene.run(&viewer, words).await;
        assert!(!refused.status.success(), "a viewer may {words}");
    }

    // Its process goes with it, and what it said of that.
    scene.all(&user, &["rc delete single"]).await;
    until("nothing runs", async || {
        scene.must_not_be_denied("node.log");
        scene.run(&viewer, "-o json pod list single").await.stdout == b"[]\n"
    })
    .await;
    scene.all(&user, &["farm confirm f1", "rc delete web", "audit prune --keep 30d"]).await;
    assert!(daemon.runs() && agent.runs());
    scene.must_not_be_denied("farm.log");
    scene.must_not_be_denied("node.log");
    for process in [daemon, agent] {
        process.signal("TERM");
        assert!(process.ended().await.success());
    }
}

/// What the comments in `user.hcl` offer.
#[tokio::test]
async fn who_may_write_pods_may_remove_orphans() {
    let scene = Scene {
        consul: ConsulServer::with_config(&denying()).await,
        dir: tempfile::tempdir().unwrap(),
    };
    let more = "key_prefix \"labels/pod/\" { policy = \"write\" }\n\
                key_prefix \"intent/\" { policy = \"write\" }";
    let user = scene.token("user", more).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let labels = json!({"pod_id": "web", "replication_controller_id": MASTER});
    for (key, value) in
        [("labels/pod/n1/web", labels.to_string()), ("intent/n1/web", "id: web".into())]
    {
        let url = format!("http://{}/v1/kv/{key}", scene.consul.http());
        client.put(url).body(value).send().await.unwrap().error_for_status().unwrap();
    }
    let words = "rc orphans --remove";
    assert!(Scene::ok(words, &scene.run(&user, words).await).contains("removed"));
    let words = "rc orphans";
    assert_eq!(Scene::ok(words, &scene.run(&user, words).await), "there are no orphans\n");
}
