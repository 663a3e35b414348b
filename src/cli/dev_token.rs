//! The token that writes to the store of `rcfarm dev` need, in a file of its user.
//!
//! The file is `<port>-<pid>-<start>.token` in a directory that no other user may enter: the program of the same user
//! finds it by the port, and sees by the process whether it is still good.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcfarm_node::agent::users::own_uid;
use rcfarm_node::shim::start_ticks;

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
        let path = dir.join(format!("{}-{pid}-{ticks}.token", address.port()));
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

/// The file with the token of the `rcfarm dev` that this user runs at `address` of this machine, if there is one.
pub(super) fn find(address: Option<&str>) -> Option<PathBuf> {
    find_below(&directory(), address.unwrap_or(super::dev::DEFAULT_ADDRESS))
}

fn find_below(dir: &Path, address: &str) -> Option<PathBuf> {
    let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !is_here || !is_private(dir) {
        return None;
    }
    let entries = fs::read_dir(dir).ok()?;
    entries.filter_map(|entry| Some(entry.ok()?.path())).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut parts = name.strip_suffix(".token").unwrap_or_default().splitn(3, '-');
        let of_port = parts.next() == Some(port);
        let pid = parts.next().and_then(|pid| pid.parse().ok());
        let ticks = parts.next().and_then(|ticks| ticks.parse().ok());
        of_port && pid.and_then(start_ticks).is_some_and(|started| Some(started) == ticks)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_found_while_its_process_runs_and_in_a_private_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode));
        mode(0o700).unwrap();
        let pid = std::process::id();
        let ticks = start_ticks(i32::try_from(pid).unwrap()).unwrap();
        fs::write(dir.path().join(format!("8501-{pid}-{}.token", ticks + 1)), "old").unwrap();
        assert_eq!(find_below(dir.path(), "127.0.0.1:8501"), None, "another process had this pid");
        let path = dir.path().join(format!("8501-{pid}-{ticks}.token"));
        fs::write(&path, "new").unwrap();
        for (address, is_found) in [
            ("127.0.0.1:8501", true),
            ("http://localhost:8501/", true),
            ("[::1]:8501", true),
            ("127.0.0.1:8500", false),
            ("10.0.0.1:8501", false),
            ("https://127.0.0.1:8501", false),
            ("consul", false),
        ] {
            let found = find_below(dir.path(), address);
            assert_eq!(found, is_found.then(|| path.clone()), "{address}");
        }
        mode(0o755).unwrap();
        assert_eq!(find_below(dir.path(), "127.0.0.1:8501"), None, "others may enter it");
    }
}
