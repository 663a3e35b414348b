//! Health checks of processes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::LazyLock;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::driver::Launch;
use super::health_check::{HealthCheck, Probe};
use crate::procfs::{gone, start_ticks};
use rcfarm_api::manifest::command_line::{Expanded, Expansion, LONGEST_STRING, Variables};
use rcfarm_api::node::Health;

/// Runs the check once. Its command is started by `program node exec`, as `launch` says. Returns the result and a
/// message for the pod's status. More people may read that than the pod's variables, so it names the target as it is in
/// the manifest.
pub async fn check(
    health_check: &HealthCheck,
    launch: &Launch,
    program: &Path,
) -> (Health, String) {
    let (env, how) = (&launch.env, health_check.expansion);
    let result = match &health_check.probe {
        Probe::Http(url) => timeout(health_check.timeout, http(url, target(url, env, how))).await,
        Probe::Tcp(address) => {
            timeout(health_check.timeout, tcp(address, target(address, env, how))).await
        }
        Probe::Exec(command) => {
            timeout(health_check.timeout, exec(command, how, launch, program)).await
        }
    };
    result.unwrap_or_else(|_| {
        (Health::Critical, format!("no answer within {:?}", health_check.timeout))
    })
}

/// A URL of the manifest for a message: without what may be a secret.
fn shown(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = &url[..end];
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{}{path}", host.rsplit_once('@').map_or(host, |(_, host)| host))
}

/// The URL or address of a check. A text that is too long is used as it stands, and the check fails.
fn target(text: &str, env: &BTreeMap<String, String>, expansion: Expansion) -> String {
    let expanded = match expansion {
        Expansion::Braces => expansion.expand(text, env, LONGEST_STRING),
        // Kubernetes expands nothing in these.
        Expansion::Kubernetes => None,
    };
    expanded.unwrap_or_else(|| text.to_owned())
}

/// The client of all HTTP checks. Farms use the same one for the probes of flows.
///
/// # Errors
/// Why there is none, for people.
pub fn http_client() -> Result<&'static reqwest::Client, String> {
    CLIENT.as_ref().map_err(ToString::to_string)
}

/// The client of all HTTP checks: to make one reads and parses every trusted certificate of the machine. It uses no
/// proxy, follows no redirect, which could lead to another host, and opens a connection for each check, as Consul does.
static CLIENT: LazyLock<Result<reqwest::Client, reqwest::Error>> = LazyLock::new(new_client);

fn new_client() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .build()
}

async fn http(text: &str, url: String) -> (Health, String) {
    let client = match http_client() {
        Ok(client) => client,
        Err(error) => return (Health::Critical, error),
    };
    match client.get(&url).send().await {
        Ok(answer) => {
            let status = answer.status();
            let health = match status.as_u16() {
                200..=399 => Health::Passing,
                429 => Health::Warning,
                _ => Health::Critical,
            };
            (health, format!("{}: {status}", shown(text)))
        }
        Err(error) => (Health::Critical, format!("{}: {}", shown(text), error.without_url())),
    }
}

async fn tcp(text: &str, address: String) -> (Health, String) {
    match tokio::net::TcpStream::connect(&address).await {
        Ok(_) => (Health::Passing, format!("{text}: open")),
        Err(error) => (Health::Critical, format!("{text}: {error}")),
    }
}

async fn exec(
    command: &[String],
    expansion: Expansion,
    launch: &Launch,
    program: &Path,
) -> (Health, String) {
    let variables = Variables { list: Vec::new(), expansion };
    let words = match Expanded::of(command, &variables, launch.env.clone()) {
        Ok(expanded) => expanded.command,
        Err(error) => return (Health::Critical, error.to_string()),
    };
    let name = command.first().map_or("", String::as_str);
    match run(program, &Launch { command: words, ..launch.clone() }).await {
        Ok(status) => {
            let health = match status.code() {
                Some(0) => Health::Passing,
                Some(1) => Health::Warning,
                _ => Health::Critical,
            };
            (health, format!("{name}: {status}"))
        }
        Err(error) => (Health::Critical, format!("{name}: {error}")),
    }
}

/// Runs the program of a launch to its end. Its process group is killed then, or when this is dropped.
async fn run(program: &Path, launch: &Launch) -> io::Result<ExitStatus> {
    let mut child = Command::new(program)
        .args(["node", "exec"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or_default();
    // The program makes a session, and so a group, of its own. Declared after the child: it is dropped first, and the pid
    // cannot be reused before the child is reaped.
    let group = ProcessGroup(Pid::from_raw(pid));
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    if let Some(mut stdin) = stdin {
        stdin.write_all(&serde_json::to_vec(launch)?).await?;
    }
    // It closes when the program begins.
    let mut why = String::new();
    if let Some(stderr) = stderr {
        stderr.take(LONGEST_STRING as u64).read_to_string(&mut why).await?;
    }
    if !why.is_empty() {
        return Err(io::Error::other(why));
    }
    if let Some(ticks) = start_ticks(pid) {
        gone(pid, ticks).await;
    }
    drop(group);
    child.wait().await
}

/// A process group that is killed when dropped. Its leader must not have been reaped.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
            // It may not have made its group yet.
            let _ = kill_process(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::health_check::Thresholds;
    use super::*;

    #[tokio::test]
    async fn a_redirect_passes_and_is_not_followed() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let target = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        target.set_nonblocking(true).unwrap();
        let to = target.local_addr().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await.unwrap();
            let head = "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://";
            stream.write_all(format!("{head}{to}/\r\n\r\n").as_bytes()).await.unwrap();
        };
        let (result, ()) = tokio::join!(http(&url, url.clone()), answer);
        assert_eq!(result, (Health::Passing, format!("{url}: 302 Found")));
        let followed = target.accept().map(|_| ());
        assert_eq!(followed.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    /// As Consul does: a connection that is kept would not show that a process accepts no more of them.
    #[tokio::test]
    async fn each_http_check_is_one_request_on_one_connection() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        const CHECKS: usize = 5;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/up", listener.local_addr().unwrap());
        let serve = async {
            for _ in 0..CHECKS {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 1024];
                let read = stream.read(&mut request).await.unwrap();
                assert!(request[..read].starts_with(b"GET /up HTTP/1.1\r\n"));
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                assert_eq!(stream.read(&mut request).await.unwrap(), 0, "nothing more is asked");
            }
        };
        let check = async {
            for _ in 0..CHECKS {
                assert_eq!(http(&url, url.clone()).await.0, Health::Passing);
            }
        };
        tokio::join!(serve, check);
        let more = listener.into_std().unwrap().accept().map(|_| ());
        assert_eq!(more.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    /// To make a client for each check would read the certificates that the machine trusts each time.
    #[tokio::test]
    async fn http_checks_share_one_client() {
        use rustix::time::{ClockId, clock_gettime};
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        const CHECKS: i64 = 200;
        const CLIENTS: i64 = 5;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let serve = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 1024]).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            }
        };
        // Of this thread, which runs the server, too.
        let used = || {
            let used = clock_gettime(ClockId::ThreadCPUTime);
            used.tv_sec * 1_000_000 + used.tv_nsec / 1_000
        };
        let checks = async {
            // The first one makes the client.
            assert_eq!(http(&url, url.clone()).await.0, Health::Passing);
            let before = used();
            for _ in 0..CHECKS {
                assert_eq!(http(&url, url.clone()).await.0, Health::Passing);
            }
            (used() - before) / CHECKS
        };
        let check = tokio::select! {
            biased;
            check = checks => check,
            () = serve => unreachable!("it serves for ever"),
        };
        let before = used();
        for _ in 0..CLIENTS {
            new_client().unwrap();
        }
        let client = (used() - before) / CLIENTS;
        eprintln!("processor time: {check} µs of a check and its answer, {client} µs of a client");
        assert!(check * 2 < client, "{check} µs of a check, {client} µs of a client");
    }

    /// In its own session, as `rcfarm node exec` is, it starts a process that outlives it.
    #[tokio::test]
    async fn what_a_passing_check_leaves_behind_is_killed() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let (program, left) = (directory.path().join("program"), directory.path().join("left"));
        let script = format!("sleep 600 & echo $! > {}", left.display());
        let script = format!(
            "#!/bin/sh\nPATH=/bin:/usr/bin\ncat > /dev/null\nexec setsid sh -c '{script}' 2>&-\n"
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let command = ["true".to_owned()];
        let result = exec(&command, Expansion::Braces, &Launch::default(), &program).await;
        assert_eq!(result.0, Health::Passing, "{result:?}");
        let pid: u32 = std::fs::read_to_string(&left).unwrap().trim().parse().unwrap();
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Its parent, which is no longer this test's child, may not have reaped it.
            stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
        };
        let killed = async {
            while is_running() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), killed).await.expect("it is killed");
    }

    /// The limits of the pod apply to its checks.
    #[tokio::test]
    async fn exec_check_is_started_in_the_cgroup_of_its_pod() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let (program, given) = (directory.path().join("program"), directory.path().join("given"));
        // In place of `rcfarm node exec`, which enters the cgroup of the launch that it is given.
        std::fs::write(&program, format!("#!/bin/sh\n/bin/cat > {}\n", given.display())).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let group = Path::new("/sys/fs/cgroup/rcfarm.slice/n1/web");
        let launch =
            Launch { cgroup: Some(group.to_owned()), run_as: Some((7, 8)), ..Launch::default() };
        let command = ["true".to_owned()];
        let result = exec(&command, Expansion::Braces, &launch, &program).await;
        assert_eq!(result.0, Health::Passing, "{result:?}");
        let given: Launch = serde_json::from_slice(&std::fs::read(&given).unwrap()).unwrap();
        assert_eq!((given.cgroup.as_deref(), given.run_as), (Some(group), Some((7, 8))));
        assert_eq!(given.command, command);
    }

    #[test]
    fn shown_url_has_no_query_and_no_password() {
        for (url, expected) in [
            ("http://127.0.0.1:${PORT}/up", "http://127.0.0.1:${PORT}/up"),
            ("http://user:${PASSWORD}@h/a@b?token=c#d", "http://h/a@b"),
            ("https://h#x", "https://h"),
            ("no address", "no address"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[tokio::test]
    async fn messages_hold_no_value_of_a_variable() {
        let launch = Launch {
            env: [("TOKEN".to_owned(), "0-secret".to_owned())].into(),
            ..Launch::default()
        };
        for probe in [
            Probe::Http("http://127.0.0.1:1/${TOKEN}?token=${TOKEN}".to_owned()),
            Probe::Http("http://${TOKEN}@127.0.0.1:1/".to_owned()),
            Probe::Tcp("${TOKEN}:1".to_owned()),
            Probe::Exec(vec!["/${TOKEN}".to_owned()]),
        ] {
            let limit = Duration::from_secs(30);
            let thresholds =
                Thresholds { passing_after: 1, critical_after: 1, restart_after: None };
            let expansion = Expansion::Braces;
            let (interval, timeout) = (limit, limit);
            let check_once = HealthCheck { probe, expansion, interval, timeout, thresholds };
            let (health, message) = check(&check_once, &launch, Path::new("/nowhere")).await;
            assert_eq!(health, Health::Critical, "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[tokio::test]
    async fn check_reports_ports_and_pages() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap().to_string();
        for (probe, health) in [
            (Probe::Tcp(open), Health::Passing),
            (Probe::Tcp("127.0.0.1:1".to_owned()), Health::Critical),
            (Probe::Http("http://127.0.0.1:1/".to_owned()), Health::Critical),
            (Probe::Http("no address".to_owned()), Health::Critical),
        ] {
            let limit = Duration::from_secs(30);
            let thresholds =
                Thresholds { passing_after: 1, critical_after: 1, restart_after: None };
            let health_check = HealthCheck {
                probe,
                expansion: Expansion::Braces,
                interval: limit,
                timeout: limit,
                thresholds,
            };
            let result = check(&health_check, &Launch::default(), Path::new("/nowhere")).await;
            assert_eq!(result.0, health, "{health_check:?}");
        }
    }
}
