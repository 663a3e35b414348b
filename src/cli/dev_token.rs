//! The token that writes to the store of `rcfarm dev` need, in a file of its user.
//!
//! The file is `<ip>-<port>-<pid>-<start>.token` in a directory that no other user may enter: the program of the same
//! user finds it by the address, and sees by the process whether it is still good. The address is matched exactly, so
//! that the token is not sent to another program on the same port of another loopback address.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcfarm_node::agent::users::own_uid;
use rcfarm_node::procfs::start_ticks;

/// Default address, as of a Consul agent.
pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:8500";

/// The file with a token; deleted when dropped.
pub(super) struct DevToken {
    pub(super) path: PathBuf,
    pub(super) token: String,
}

impl DevToken {
    /// Writes the token of the server at `address`, which this process runs.
    ///
    /// # Errors
    /// The directory is another user's, or cannot be written.
    pub(super) fn write(address: SocketAddr, token: String) -> io::Result<DevToken> {
        let dir = directory();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        if !is_private(&dir) {
            let why = format!("{} must be yours alone, with mode 0700", dir.display());
            return Err(io::Error::other(why));
        }
        let pid = std::process::id();
        let ticks = i32::try_from(pid).ok().and_then(start_ticks).unwrap_or_default();
        delete_dead(&dir);
        let path = dir.join(format!("{}-{}-{pid}-{ticks}.token", address.ip(), address.port()));
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(token.as_bytes())?;
        Ok(DevToken { path, token })
    }
}

impl Drop for DevToken {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Directory of the tokens of this user.
fn directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("rcfarm-dev"),
        None => std::env::temp_dir().join(format!("rcfarm-dev-{}", own_uid())),
    }
}

/// Whether a directory belongs to this user, and nobody else may use it.
fn is_private(dir: &Path) -> bool {
    let found = fs::symlink_metadata(dir);
    found.is_ok_and(|found| found.is_dir() && found.uid() == own_uid() && found.mode() & 0o077 == 0)
}

/// A `rcfarm dev` that this user runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundDev {
    /// The file with its token.
    pub(super) token: PathBuf,
    /// The address to send requests to: what `localhost` stands for.
    pub(super) address: SocketAddr,
}

/// The `rcfarm dev` that this user runs at `address` of this machine, if there is one.
pub(super) fn find(address: Option<&str>) -> Option<FoundDev> {
    find_below(&directory(), address.unwrap_or(DEFAULT_ADDRESS))
}

fn find_below(dir: &Path, address: &str) -> Option<FoundDev> {
    let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let asked: Vec<IpAddr> = match host.trim_matches(['[', ']']) {
        "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        ip => ip.parse().into_iter().filter(IpAddr::is_loopback).collect(),
    };
    if asked.is_empty() || !is_private(dir) {
        return None;
    }
    let entries = fs::read_dir(dir).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let alive: Vec<(PathBuf, TokenFile)> = paths
        .filter_map(|path| Some((path.clone(), TokenFile::parse(&path)?)))
        .filter(|(_, file)| file.is_alive())
        .collect();
    asked.into_iter().find_map(|ip| {
        let (token, _) = alive.iter().find(|(_, file)| file.serves(ip, port))?;
        Some(FoundDev { token: token.clone(), address: SocketAddr::new(ip, port) })
    })
}

/// Name of a file with a token.
struct TokenFile {
    /// `None`: written by an older version.
    bound: Option<SocketAddr>,
    pid: i32,
    /// Start of the process, which tells it from a later one with its number.
    ticks: u64,
}

impl TokenFile {
    fn parse(path: &Path) -> Option<TokenFile> {
        let name = path.file_name()?.to_str()?.strip_suffix(".token")?;
        let mut parts = name.rsplitn(4, '-');
        let (ticks, pid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let port = parts.next()?.parse().ok()?;
        let ip: Option<IpAddr> = parts.next().and_then(|ip| ip.parse().ok());
        Some(TokenFile { bound: ip.map(|ip| SocketAddr::new(ip, port)), pid, ticks })
    }

    fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.ticks)
    }

    /// Whether its process listens there. One that listens on all addresses of a family leaves none to others.
    fn serves(&self, ip: IpAddr, port: u16) -> bool {
        self.bound.is_some_and(|bound| {
            let is_any = bound.ip().is_unspecified() && bound.is_ipv4() == ip.is_ipv4();
            bound.port() == port && (bound.ip() == ip || is_any)
        })
    }
}

/// Deletes the files of processes that were killed.
fn delete_dead(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if TokenFile::parse(&path).is_some_and(|file| !file.is_alive()) {
            // It is good for nothing; a later start deletes it.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Dir {
        dir: tempfile::TempDir,
        ticks: u64,
    }

    impl Dir {
        fn new() -> Dir {
            let dir = tempfile::tempdir().unwrap();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
            let ticks = start_ticks(i32::try_from(std::process::id()).unwrap()).unwrap();
            Dir { dir, ticks }
        }

        /// Writes the file of a process that started `later` than this one and has its number.
        fn write(&self, address: &str, later: u64) -> PathBuf {
            let (pid, ticks) = (std::process::id(), self.ticks + later);
            let path = self.dir.path().join(format!("{address}-{pid}-{ticks}.token"));
            fs::write(&path, "token").unwrap();
            path
        }

        fn find(&self, address: &str) -> Option<(PathBuf, String)> {
            let found = find_below(self.dir.path(), address)?;
            Some((found.token, found.address.to_string()))
        }
    }

    #[test]
    fn a_token_is_found_while_its_process_runs_and_in_a_private_directory() {
        let dir = Dir::new();
        dir.write("127.0.0.1-8501", 1);
        assert_eq!(dir.find("127.0.0.1:8501"), None, "another process had this pid");
        let path = dir.write("127.0.0.1-8501", 0);
        for (address, is_found) in [
            ("127.0.0.1:8501", true),
            ("http://localhost:8501/", true),
            ("127.0.0.1:8500", false),
            ("10.0.0.1:8501", false),
            ("https://127.0.0.1:8501", false),
            ("consul", false),
        ] {
            let expected = is_found.then(|| (path.clone(), "127.0.0.1:8501".to_owned()));
            assert_eq!(dir.find(address), expected, "{address}");
        }
        fs::set_permissions(dir.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(dir.find("127.0.0.1:8501"), None, "others may enter it");
    }

    #[test]
    fn a_token_is_not_sent_to_another_address_of_its_port() {
        let dir = Dir::new();
        let path = dir.write("127.0.0.2-8501", 0);
        for other in ["127.0.0.1:8501", "localhost:8501", "[::1]:8501"] {
            assert_eq!(dir.find(other), None, "{other}");
        }
        assert_eq!(dir.find("127.0.0.2:8501"), Some((path, "127.0.0.2:8501".to_owned())));
        let path = dir.write("::1-8501", 0);
        for address in ["[::1]:8501", "http://localhost:8501"] {
            assert_eq!(dir.find(address), Some((path.clone(), "[::1]:8501".to_owned())));
        }
        let path = dir.write("0.0.0.0-8502", 0);
        assert_eq!(dir.find("localhost:8502"), Some((path, "127.0.0.1:8502".to_owned())));
        assert_eq!(dir.find("[::1]:8502"), None);
    }

    #[test]
    fn files_of_killed_processes_are_deleted() {
        let dir = Dir::new();
        let (dead, of_older) = (dir.write("127.0.0.1-8501", 1), dir.write("8501", 1));
        let alive = dir.write("127.0.0.1-8502", 0);
        let other = dir.dir.path().join("notes.txt");
        fs::write(&other, "").unwrap();
        delete_dead(dir.dir.path());
        assert_eq!(
            [dead, of_older, alive, other].map(|path| path.exists()),
            [false, false, true, true]
        );
    }
}
