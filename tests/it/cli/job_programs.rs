//! Programs of jobs as real processes on `rcfarm dev`.

use super::dev::DevProcess;
use crate::harness::program;
use rcfarm_testing::process::free_ports;
use rcfarm_testing::program::Ran;
use rcfarm_testing::wait::in_time;

/// `rcfarm dev` with one node, killed when dropped.
pub struct OneNode {
    dev: DevProcess,
    dir: tempfile::TempDir,
}

impl OneNode {
    pub async fn start() -> OneNode {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("nodes").to_str().unwrap().to_owned();
        let [first] = free_ports::<1>().map(|port| port.to_string());
        let arguments = ["dev", "--nodes", "1", "--first-port", &first, "--data-dir", &data];
        let mut dev = program("127.0.0.1:0", dir.path()).command(&arguments);
        dev.env("PATH", std::env::var_os("PATH").unwrap());
        OneNode { dev: DevProcess::start(dev.into()).await, dir }
    }

    pub async fn run(&self, arguments: &[&str]) -> Ran {
        in_time("an answer", program(&self.dev.address, self.dir.path()).run(arguments)).await
    }

    pub async fn apply(&self, document: &str) -> Ran {
        std::fs::write(self.dir.path().join("job.yaml"), document).unwrap();
        self.run(&["apply", "-f", "job.yaml"]).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shells_get_their_own_dollars() {
    let dev = OneNode::start().await;
    let job = r#"
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: shell}
spec:
  plugins: {env: []}
  tasks:
    - name: a
      replicas: 1
      template:
        spec:
          restartPolicy: Never
          containers:
            - name: c
              env: [{name: X, value: old}, {name: FULL, value: "$(X)-$(NOPE)-$$(X)"}]
              command: [sh, -c]
              args:
                - >-
                  echo $(date +%s) $((1+2)); for X in 1 2; do echo ${X}; done;
                  echo "$FULL"; echo $(X) $(echo "$VC_TASK_INDEX") $(VC_TASK_INDEX)
"#;
    dev.apply(job).await.ok();
    let waited = dev.run(&["job", "wait", "shell"]).await;
    let log = dev.run(&["job", "logs", "shell"]).await.ok();
    assert_eq!(waited.code, 0, "{waited:?} {log}");
    let lines: Vec<&str> = log.lines().collect();
    let (time, sum) = lines[0].split_once(' ').unwrap();
    assert!(time.parse::<u64>().is_ok_and(|time| time > 1_700_000_000) && sum == "3", "{log}");
    assert_eq!(lines[1..], ["1", "2", "old-$(NOPE)-$(X)", "old 0 0"]);
}
