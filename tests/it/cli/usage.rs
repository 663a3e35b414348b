//! Help, exit codes, flags and errors of all commands.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use rcfarm_testing::program::Ran;
use tokio::process::Command;

use crate::harness::{HttpCluster, program};

#[tokio::test]
async fn help_lists_the_commands_and_the_exit_codes() {
    let cluster = HttpCluster::new().await;
    let help = cluster.run(&["--help"]).await.ok();
    for words in ["rc ", "label ", "audit ", "farm ", "doctor ", "completion ", "Exit codes:"] {
        assert!(help.contains(words), "{words} is not in:\n{help}");
    }
    assert!(help.contains("CONSUL_HTTP_TOKEN_FILE"), "{help}");
    assert_eq!(cluster.run(&["-help"]).await.ok(), help, "one dash is as good as two");
    assert!(cluster.run(&["--version"]).await.ok().starts_with("rcfarm "));
}

#[tokio::test]
async fn colours_are_for_terminals_unless_asked_for() {
    let cluster = HttpCluster::new().await;
    cluster.put("rcfarm/nodes/n1", r#"{"state":"draining"}"#).await;
    let yellow = "\u{1b}[33mdraining\u{1b}[0m";
    let always = cluster.run(&["node", "list", "--color", "always"]).await.ok();
    assert!(always.contains(yellow), "{always}");
    let plain = cluster.run(&["node", "list"]).await.ok();
    assert!(plain.contains("draining") && !plain.contains('\u{1b}'), "{plain}");
    let both = ["node", "list", "--color", "always", "--no-color"];
    assert_eq!(cluster.run(&both).await.ok(), plain);
    let program = cluster.program.with_env("NO_COLOR", "1");
    assert_eq!(program.run(&["node", "list"]).await.ok(), plain);
    assert_eq!(program.run(&["node", "list", "--color=always"]).await.ok(), always);
    let json = cluster.run(&["node", "list", "--color", "always", "-o", "json"]).await.ok();
    assert!(!json.contains('\u{1b}'), "{json}");
    let wrong = cluster.run(&["nonsense", "--color", "always"]).await;
    assert!(wrong.stderr.contains('\u{1b}'), "{wrong:?}");
}

#[tokio::test]
async fn wrong_usage_is_an_error_and_says_what_is_right() {
    let cluster = HttpCluster::new().await;
    for (arguments, words) in [
        (&["rc", "list", "--sideways"][..], "--sideways"),
        (&["rc", "scale", "web"], "<N>"),
        (&["rc", "scale", "web", "three"], "three"),
        (&["rc", "list", "-l", "a b"], "at character 3"),
        (&["label", "set", "moon", "x", "a=b"], "possible values"),
        (&["audit", "prune"], "--keep"),
        (&["audit", "list", "--since", "yesterday"], "15m"),
        (&["rc", "create", "-f", "web.yaml", "--pod-label", "a b=c"], "label key"),
        (&["nonsense"], "nonsense"),
        (&[], "Usage"),
    ] {
        let stderr = cluster.run(arguments).await.failed();
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    assert_eq!(cluster.everything(), Vec::<String>::new());
}

#[tokio::test]
async fn an_agent_that_is_not_there_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing listens on port 1.
    let stderr = program("127.0.0.1:1", dir.path()).run(&["rc", "list"]).await.failed();
    assert!(stderr.starts_with("error: Consul cannot be reached"), "{stderr}");
    let hint = stderr.lines().find(|line| line.starts_with("hint: ")).unwrap();
    assert!(hint.contains("http://127.0.0.1:1/") && hint.contains("CONSUL_HTTP_ADDR"), "{hint}");
}

#[tokio::test]
async fn settings_come_from_flags_and_variables_in_both_spellings() {
    let cluster = HttpCluster::new().await;
    cluster.put("team/a/labels/node/n1", r#"{"role":"web"}"#).await;
    let address = cluster.address.to_string();
    for arguments in [
        &["-http-addr", &address, "-root=team/a", "label", "list", "node"][..],
        &["label", "list", "node", "--http-addr", &address, "--root", "team/a"],
    ] {
        let ran = program("127.0.0.1:1", cluster.dir.path()).run(arguments).await;
        assert_eq!(ran.ok(), "NODE   LABELS\nn1     role=web\n");
    }
    let mut by_variable = cluster.command(&["label", "list", "node"]);
    by_variable.env("RCFARM_ROOT", "team/a");
    assert!(run(by_variable).await.ok().contains("n1"));
    assert!(cluster.run(&["label", "list", "node"]).await.ok().contains("nothing matches"));
}

#[tokio::test]
async fn bad_setting_is_named_and_secrets_are_hidden() {
    let cluster = HttpCluster::new().await;
    let mut wrong = cluster.command(&["rc", "list"]);
    wrong.env("CONSUL_HTTP_ADDR", "ftp://h:1").env("CONSUL_HTTP_TOKEN", "s3cret");
    let stderr = run(wrong).await.failed();
    assert!(stderr.contains("CONSUL_HTTP_ADDR") && stderr.contains("\"ftp\""), "{stderr}");
    assert!(!stderr.contains("s3cret"), "{stderr}");

    let mut odd = cluster.command(&["rc", "list"]);
    odd.env("CONSUL_HTTP_SSL", "perhaps");
    let ran: Ran = run(odd).await;
    assert!(ran.stderr.contains("CONSUL_HTTP_SSL"), "{ran:?}");
    assert_eq!(ran.code, 0, "Consul's own tools only warn");
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(30).await;
    let mut child = cluster
        .command(&["label", "list", "node"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
}

#[tokio::test]
async fn a_manifest_may_come_from_standard_input() {
    let cluster = HttpCluster::new().await;
    let arguments = ["rc", "create", "-f", "-", "--node-selector", ""];
    let mut child =
        cluster.command(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"id: piped\n").await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success());
    assert_eq!(cluster.json(&["rc", "list"]).await[0]["pod_id"], "piped");
}

#[tokio::test]
async fn completions_name_the_commands() {
    let cluster = HttpCluster::new().await;
    for shell in ["bash", "zsh", "fish"] {
        let script = cluster.run(&["completion", shell]).await.ok();
        assert!(script.contains("orphans") && script.contains("node-selector"), "{shell}");
    }
}

#[tokio::test]
async fn completion_of_bash_names_records() {
    let cluster = HttpCluster::new().await;
    cluster.create(&[]).await;
    cluster.put("rcfarm/nodes/n1", "{}").await;
    cluster.put("rcfarm/nodes/n2", "{}").await;
    let complete = async |line: &str| {
        let script = format!(
            "rcfarm() {{ {} \"$@\"; }}; source <(rcfarm completion bash); COMP_WORDS=(rcfarm {line}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _rcfarm_names rcfarm \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\" 2>/dev/null; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            env!("CARGO_BIN_EXE_rcfarm")
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).env("CONSUL_HTTP_ADDR", &cluster.address);
        run(bash).await.ok()
    };
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let nodes = lines(complete("node drain ''").await);
    assert!(nodes.contains(&"n1".to_owned()) && nodes.contains(&"n2".to_owned()), "{nodes:?}");
    assert!(lines(complete("rc scale w").await).contains(&"web".to_owned()));
    let words = lines(complete("rc sca").await);
    assert_eq!(words, ["scale"], "as before");
    // Without a Consul there are no names, and no errors.
    let silent = program("127.0.0.1:1", cluster.dir.path());
    let ran = silent.run(&["complete", "--", "rc", "get"]).await;
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""));
}

/// Whoever may write a key chooses its name. Neither the program nor the script of the shell may run it.
#[tokio::test]
async fn completion_of_bash_runs_nothing_that_stands_in_a_key() {
    let cluster = HttpCluster::new().await;
    let made = cluster.dir.path().join("made");
    let name = format!("$(touch${{IFS}}{})", made.display());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    // As by consul kv put: such a key is outside the grammar of ours.
    let put = async |key: String| {
        let url = format!("http://{}/v1/kv/{key}", cluster.address);
        let answer = client.put(url).body("{}").send().await.unwrap();
        assert_eq!(answer.text().await.unwrap().trim(), "true");
    };
    cluster.put("rcfarm/nodes/n1", "{}").await;
    for tree in ["nodes", "farms", "queues", "jobs/team-a"] {
        put(format!("rcfarm/{tree}/{name}")).await;
        put(format!("rcfarm/{tree}/a;reboot")).await;
    }
    put(format!("status/pods/{name}/n1")).await;
    for line in ["node drain", "farm confirm", "queue get", "job get", "pod logs"] {
        let words: Vec<&str> = ["complete", "--"].into_iter().chain(line.split(' ')).collect();
        let names = cluster.run(&words).await.ok();
        assert!(!names.contains(['$', ';']), "{line}: {names}");
    }
    let script = format!(
        "rcfarm() {{ [ \"$1\" = complete ] && echo '{name}' || {} \"$@\"; }}; source <(rcfarm completion bash); \
         COMP_WORDS=(rcfarm node drain ''); COMP_CWORD=3; _rcfarm_names rcfarm '' drain; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        env!("CARGO_BIN_EXE_rcfarm")
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]);
    let completed = run(bash).await.ok();
    assert!(completed.lines().any(|line| line == name), "{completed}");
    assert!(!made.exists(), "the shell has run the name");
}

#[tokio::test]
async fn manual_pages_are_written_for_every_command() {
    let cluster = HttpCluster::new().await;
    cluster.run(&["man", "pages"]).await.ok();
    let read = |name: &str| std::fs::read_to_string(cluster.dir.path().join("pages").join(name));
    let page = read("rcfarm-rc-scale.1").unwrap();
    assert!(page.contains(".TH") && page.contains("desired pods"), "{page}");
    assert!(read("rcfarm.1").unwrap().contains("CONSUL_HTTP_ADDR"));
    assert!(read("rcfarm-node-shim.1").is_err(), "only agents start this");
}

async fn run(mut command: Command) -> Ran {
    command.output().await.unwrap().into()
}
