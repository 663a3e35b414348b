//! Users that pods run as, and which of them the node's operator allows.
//!
//! Whoever may write an intent chooses the pod's user, so the agent decides which users there are to choose from.

use std::path::Path;
use std::{fs, io};

use rustix::process::{getegid, geteuid};

/// Users and privileges that pods of this node may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPermits {
    /// Users that `run_as` may name: names, `uid`, `uid:gid`, or `*` for every user but root.
    pub users: Vec<String>,
    /// User of pods whose manifest names none; `None`: the agent's own.
    pub default_user: Option<String>,
    /// Whether pods keep the agent's capabilities and may gain others from set-user-ID programs.
    pub privileged: bool,
    /// Names of services that pods may register; one that ends with `*` permits all that begin so.
    pub services: Vec<String>,
}

/// Every service.
pub const ANY_SERVICE: &str = "*";

/// Every user but root.
pub const ANY_BUT_ROOT: &str = "*";

impl Default for PodPermits {
    fn default() -> Self {
        PodPermits {
            users: vec![ANY_BUT_ROOT.to_owned()],
            default_user: None,
            privileged: false,
            services: vec![ANY_SERVICE.to_owned()],
        }
    }
}

impl PodPermits {
    /// The user of a pod; `None`: the agent's own.
    ///
    /// # Errors
    /// [`UserError`].
    pub fn user(&self, run_as: Option<&str>) -> Result<Option<UserIds>, UserError> {
        match (run_as, &self.default_user) {
            (Some(run_as), _) => find(run_as, &self.users),
            (None, Some(user)) => find(user, std::slice::from_ref(user)),
            (None, None) => Ok(None),
        }
    }

    /// Whether pods may register services of this name.
    #[must_use]
    pub fn may_register(&self, service: &str) -> bool {
        self.services.iter().any(|permitted| match permitted.strip_suffix('*') {
            Some(prefix) => service.starts_with(prefix),
            None => service == permitted,
        })
    }
}

/// The user of this process.
pub fn own_uid() -> u32 {
    geteuid().as_raw()
}

/// User and group ids.
pub type UserIds = (u32, u32);

/// Why a pod does not get a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserError {
    /// This node has no such user. That counts as an error of the manifest, because the nodes of a farm mostly have the
    /// same users.
    Unknown(String),
    /// This node does not allow it.
    Refused(String),
    /// This node cannot tell now who may run.
    Unreadable(String),
}

impl UserError {
    /// Text for the pod's status.
    pub fn into_text(self) -> String {
        match self {
            UserError::Unknown(why) | UserError::Refused(why) | UserError::Unreadable(why) => {
                format!("run_as: {why}")
            }
        }
    }
}

/// `/etc/passwd` and `/etc/group`.
#[derive(Debug, Clone, Default)]
struct Accounts {
    passwd: String,
    group: String,
}

/// Third field of a line of either file.
fn number(line: &str, n: usize) -> Option<u32> {
    line.split(':').nth(n)?.parse().ok()
}

impl Accounts {
    /// Reads the accounts below `root`. A file that is missing has no entries.
    fn read(root: &Path) -> Result<Accounts, UserError> {
        let text = |name: &str| match fs::read(root.join(name)) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => {
                let path = root.join(name);
                Err(UserError::Unreadable(format!("{} cannot be read: {error}", path.display())))
            }
        };
        Ok(Accounts { passwd: text("passwd")?, group: text("group")? })
    }

    fn named(&self, name: &str) -> Option<UserIds> {
        let line = self.passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        Some((number(line, 2)?, number(line, 3)?))
    }

    /// The group of a user id by `/etc/passwd`.
    fn group_of(&self, uid: u32) -> Option<u32> {
        let line = self.passwd.lines().find(|line| number(line, 2) == Some(uid))?;
        number(line, 3)
    }

    /// The ids that a text names: a name, `uid`, or `uid:gid`.
    fn resolve(&self, text: &str) -> Option<UserIds> {
        if let Some((uid, gid)) = text.split_once(':') {
            return Some((uid.parse().ok()?, gid.parse().ok()?));
        }
        match text.parse() {
            Ok(uid) => Some((uid, self.group_of(uid).unwrap_or(uid))),
            Err(_) => self.named(text),
        }
    }

    /// Whether a user is not root and has the group that it has anyway, not one that opens the files of others.
    fn is_ordinary(&self, (uid, gid): UserIds) -> bool {
        let has_name = || self.group.lines().any(|line| number(line, 2) == Some(gid));
        uid != 0 && gid != 0 && self.group_of(uid).map_or_else(|| !has_name(), |own| own == gid)
    }
}

fn find(run_as: &str, users: &[String]) -> Result<Option<UserIds>, UserError> {
    let accounts = Accounts::read(Path::new("/etc"))?;
    let own = (geteuid().as_raw(), getegid().as_raw());
    decide(run_as, users, &accounts, own)
}

fn decide(
    run_as: &str,
    users: &[String],
    accounts: &Accounts,
    own: UserIds,
) -> Result<Option<UserIds>, UserError> {
    let ids = accounts.resolve(run_as).ok_or_else(|| {
        UserError::Unknown(format!("this node has no user {run_as:?} in /etc/passwd"))
    })?;
    let allows = |entry: &String| match entry.as_str() {
        ANY_BUT_ROOT => accounts.is_ordinary(ids),
        entry => accounts.resolve(entry) == Some(ids),
    };
    // What a pod is without `run_as` needs no permission, unless it is root.
    let is_own = ids == own && ids.0 != 0;
    if !is_own && !users.iter().any(allows) {
        let (uid, gid) = ids;
        return Err(UserError::Refused(format!(
            "pods of this node may not run as {run_as} ({uid}:{gid}); its operator can allow it with --allow-user"
        )));
    }
    Ok((ids != own).then_some(ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0::/root:/bin/sh\nwww:x:33:33::/:\nadm:x:500:100::/:\n".to_owned(),
            group: "root:x:0:\nshadow:x:42:\nwww:x:33:\nusers:x:100:\n".to_owned(),
        }
    }

    fn found(run_as: &str, users: &[&str]) -> Result<Option<UserIds>, UserError> {
        let users: Vec<String> = users.iter().map(|user| (*user).to_owned()).collect();
        decide(run_as, &users, &accounts(), (7, 7))
    }

    #[test]
    fn any_user_but_root_is_allowed_with_its_own_group() {
        for (run_as, ids) in [
            ("www", (33, 33)),
            ("33", (33, 33)),
            ("33:33", (33, 33)),
            ("adm", (500, 100)),
            ("500", (500, 100)),
            ("1000", (1000, 1000)),
            ("1000:2000", (1000, 2000)),
        ] {
            assert_eq!(found(run_as, &["*"]), Ok(Some(ids)), "{run_as}");
        }
        assert_eq!(found("7", &["*"]), Ok(None), "the agent's own");
        // 42 is the group of /etc/shadow.
        for run_as in ["root", "0", "0:0", "0:33", "33:0", "33:42", "1000:42", "42", "+0", "00"] {
            let refused = found(run_as, &["*"]);
            assert!(matches!(refused, Err(UserError::Refused(_))), "{run_as}: {refused:?}");
        }
        for run_as in ["nobody-here", "", "-1", "4294967296", "33:", "www:33"] {
            let unknown = found(run_as, &["*"]);
            assert!(matches!(unknown, Err(UserError::Unknown(_))), "{run_as}: {unknown:?}");
        }
    }

    /// Otherwise every group would look like one that opens no files of others.
    #[test]
    fn nobody_is_allowed_while_the_accounts_cannot_be_read() {
        let etc = tempfile::tempdir().unwrap();
        let files = ["passwd", "group"].map(|name| etc.path().join(name));
        assert_eq!(Accounts::read(etc.path()).unwrap().passwd, "", "a machine without accounts");
        // In Latin-1.
        fs::write(&files[0], b"www:x:33:33:J\xfcrgen:/:\n").unwrap();
        fs::create_dir(&files[1]).unwrap();
        let failed = Accounts::read(etc.path()).unwrap_err();
        assert!(
            matches!(&failed, UserError::Unreadable(why) if why.contains("group")),
            "{failed:?}"
        );
        fs::remove_dir(&files[1]).unwrap();
        fs::write(&files[1], b"j\xfcrgens:x:42:\n").unwrap();
        let accounts = Accounts::read(etc.path()).unwrap();
        assert_eq!(accounts.named("www"), Some((33, 33)));
        assert!(!accounts.is_ordinary((1000, 42)));
    }

    #[test]
    fn a_list_allows_what_it_names_and_nothing_else() {
        for (run_as, users, is_allowed) in [
            ("root", &["root"][..], true),
            ("0:0", &["root"], true),
            ("0:33", &["root"], false),
            ("www", &["root"], false),
            ("www", &["root", "*"], true),
            ("33", &["www"], true),
            ("33:42", &["33:42"], true),
            ("33:33", &["33:42"], false),
            ("adm", &["nobody-here"], false),
            ("www", &[], false),
        ] {
            assert_eq!(found(run_as, users).is_ok(), is_allowed, "{run_as} of {users:?}");
        }
        assert_eq!(found("7:7", &["root"]), Ok(None), "what a pod is without run_as");
    }
}
