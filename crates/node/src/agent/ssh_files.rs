//! Files with which the members of a job reach each other by ssh: `.ssh` in their homes (Volcano's plugin `ssh`).
//!
//! The key pair comes from the job's record of this node, and is opened with the key file of this agent. The public key
//! is computed from the private one, so a record cannot bring a pair that does not match. No error names a key.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::peers::PeersRecord;
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::job::ssh_keys::{PrivateKey, SshKeyPair, sealing_context};
use rcfarm_api::manifest::SshStanza;
use rcfarm_store::sealing::SealingKey;

/// Directory of the files below a pod's home.
const DIR: &str = ".ssh";
/// The client's configuration, below a pod's home.
pub(super) const CONFIG: &str = ".ssh/config";
/// Length of a line of a private key file.
const LINE: usize = 70;
const ALGORITHM: &[u8] = b"ssh-ed25519";

/// Which key pairs an agent gives to its pods.
#[derive(Debug, Clone, Default)]
pub struct SshKeyAccess {
    /// Keys of its key files. An encrypted pair is opened with the one that its record names.
    pub keys: Vec<SealingKey>,
    /// Whether it takes pairs that are not encrypted although it has key files. Without key files it takes them in any
    /// case.
    pub takes_unencrypted: bool,
}

/// A member whose files are made.
pub(super) struct SshMember<'a> {
    pub(super) job: &'a Namespaced,
    pub(super) uid: JobUid,
    pub(super) stanza: &'a SshStanza,
    pub(super) home: &'a Path,
}

impl SshKeyAccess {
    /// The files of a member, by their path below its home.
    ///
    /// # Errors
    /// Text without a key: the record has none, or it cannot be opened here.
    pub(super) fn files(
        &self,
        member: &SshMember<'_>,
        record: &PeersRecord,
    ) -> Result<BTreeMap<String, String>, String> {
        let pair = record.ssh.as_ref().ok_or("the farm has not sent the job's keys")?;
        let seed = self.seed(member, pair)?;
        let public = BASE64_STANDARD.decode(&pair.public).unwrap_or_default();
        let pair = Ed25519KeyPair::from_seed_and_public_key(&seed, &public)
            .map_err(|_| "the job's public key does not belong to its private key")?;
        let (public, comment) = (pair.public_key().as_ref(), member.job.to_string());
        let public_line =
            format!("ssh-ed25519 {} {comment}\n", BASE64_STANDARD.encode(blob(public)));
        let files = [
            ("id_ed25519", private_text(&seed, public, &comment)),
            ("id_ed25519.pub", public_line.clone()),
            ("authorized_keys", public_line),
            ("config", config(member, record)),
        ];
        Ok(files.map(|(name, text)| (format!("{DIR}/{name}"), text)).into())
    }

    /// The private half of a pair.
    fn seed(&self, member: &SshMember<'_>, pair: &SshKeyPair) -> Result<[u8; 32], String> {
        let broken = || "the job's private key is not one".to_owned();
        let seed = match &pair.private {
            PrivateKey::Sealed(text) => {
                let key = self.keys.iter().find(|key| key.id() == text.key_id);
                let key = key.ok_or_else(|| {
                    format!(
                        "the job's private key is encrypted with a key file that this agent was not given \
                         (--ssh-key-file, id {})",
                        text.key_id
                    )
                })?;
                key.open(&sealing_context(member.job, member.uid), text)
                    .ok_or("the job's private key was changed, or is that of another job")?
            }
            PrivateKey::Plain { .. } if !self.keys.is_empty() && !self.takes_unencrypted => {
                let why = "the job's private key is not encrypted, and this agent has a key file: \
                     give it --unencrypted-ssh-keys, too, if that is meant";
                return Err(why.to_owned());
            }
            PrivateKey::Plain { seed } => BASE64_STANDARD.decode(seed).map_err(|_| broken())?,
        };
        seed.try_into().map_err(|_| broken())
    }
}

/// The client's configuration: a host per member, with the names that Volcano gives them. What stands above the first
/// host is for hosts that are named by address, too.
fn config(member: &SshMember<'_>, record: &PeersRecord) -> String {
    let SshMember { job, stanza, home, .. } = member;
    let (home, port) = (literal(&home.display().to_string()), stanza.port);
    let mut text = format!(
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n\
         IdentityFile \"{home}/{DIR}/id_ed25519\"\nIdentitiesOnly yes\nPort {port}\n"
    );
    for (task, members) in &record.tasks {
        for (index, peer) in members.iter().enumerate() {
            if let Some(peer) = peer.as_ref().filter(|peer| peer.is_legal()) {
                let host = literal(peer.host.trim_matches(['[', ']']));
                let name = format!("{}-{task}-{index}", job.name);
                text.push_str(&format!("Host {name}\n  HostName {host}\n  Port {port}\n"));
            }
        }
    }
    text
}

/// A text in which ssh expands nothing.
fn literal(text: &str) -> String {
    text.replace('%', "%%")
}

/// A text of the ssh protocol: its length and its bytes (RFC 4251 §5).
fn put(out: &mut Vec<u8>, text: &[u8]) {
    out.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(text);
}

/// A public key as it goes over the wire (RFC 8709 §4).
fn blob(public: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, ALGORITHM);
    put(&mut out, public);
    out
}

/// A private key in OpenSSH's format (`PROTOCOL.key`), without a passphrase.
fn private_text(seed: &[u8; 32], public: &[u8], comment: &str) -> String {
    // Twice the same number: with a passphrase it would show whether it was right.
    let check = &public[..4];
    let mut private = [check, check].concat();
    put(&mut private, ALGORITHM);
    put(&mut private, public);
    put(&mut private, &[seed, public].concat());
    put(&mut private, comment.as_bytes());
    let padding = private.len().next_multiple_of(8) - private.len();
    private.extend((1..=u8::MAX).take(padding));
    let mut out = b"openssh-key-v1\0".to_vec();
    for text in [b"none".as_slice(), b"none", b""] {
        put(&mut out, text);
    }
    out.extend(1u32.to_be_bytes());
    put(&mut out, &blob(public));
    put(&mut out, &private);
    let text = BASE64_STANDARD.encode(out);
    let lines = text.as_bytes().chunks(LINE).map(String::from_utf8_lossy);
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}-----END OPENSSH PRIVATE KEY-----\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;
    use rcfarm_api::Index;
    use rcfarm_api::job::peers::PeerAddress;
    use rcfarm_api::job::ssh_keys::SealedText;

    const SEED: [u8; 32] = [7; 32];

    fn key(secret: u8) -> SealingKey {
        SealingKey::of(&[secret; 32]).unwrap()
    }

    fn access(keys: &[u8], takes_unencrypted: bool) -> SshKeyAccess {
        SshKeyAccess { keys: keys.iter().map(|n| key(*n)).collect(), takes_unencrypted }
    }

    fn public() -> String {
        let pair = Ed25519KeyPair::from_seed_unchecked(&SEED).unwrap();
        BASE64_STANDARD.encode(pair.public_key().as_ref())
    }

    fn record(private: PrivateKey) -> PeersRecord {
        let peer = |host: &str| Some(PeerAddress { host: host.to_owned(), port: None });
        let members = vec![peer("10.0.0.1"), None, peer("[fe80::1%eth0]"), peer("x\ny")];
        let ssh = Some(SshKeyPair { public: public(), private });
        PeersRecord { ssh, tasks: [("w".to_owned(), members)].into(), ..PeersRecord::default() }
    }

    fn plain() -> PrivateKey {
        PrivateKey::Plain { seed: BASE64_STANDARD.encode(SEED) }
    }

    fn sealed(secret: u8, job: &str, uid: u64) -> PrivateKey {
        let context = sealing_context(&job.parse().unwrap(), JobUid(Index(uid)));
        PrivateKey::Sealed(key(secret).seal(&context, &SEED).unwrap())
    }

    fn files(
        access: &SshKeyAccess,
        record: &PeersRecord,
        home: &Path,
    ) -> Result<BTreeMap<String, String>, String> {
        let (job, stanza) = ("team/j".parse().unwrap(), SshStanza { port: 2222 });
        let uid = JobUid(Index(7));
        access.files(&SshMember { job: &job, uid, stanza: &stanza, home }, record)
    }

    fn run(program: &str, arguments: &[&str]) -> String {
        let ran = Command::new(program).args(arguments).output().unwrap();
        let said = String::from_utf8(ran.stdout).unwrap();
        assert!(ran.status.success(), "{program} {arguments:?}: {said}{:?}", ran.stderr);
        said
    }

    /// OpenSSH's own programs read the files.
    #[test]
    fn openssh_reads_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home of 100%");
        fs::create_dir_all(home.join(DIR)).unwrap();
        let record = record(sealed(1, "team/j", 7));
        let files = files(&access(&[1], false), &record, &home).unwrap();
        for (path, text) in &files {
            fs::write(home.join(path), text).unwrap();
            fs::set_permissions(home.join(path), fs::Permissions::from_mode(0o600)).unwrap();
        }
        let path = |name: &str| home.join(DIR).join(name).display().to_string();
        let (private, line) = (path("id_ed25519"), &files[".ssh/id_ed25519.pub"]);
        assert_eq!(run("ssh-keygen", &["-y", "-f", &private]), *line);
        let shown = run("ssh-keygen", &["-l", "-f", &private]);
        assert_eq!(shown, run("ssh-keygen", &["-l", "-f", &path("authorized_keys")]));
        assert!(
            shown.starts_with("256 SHA256:") && shown.ends_with(" team/j (ED25519)\n"),
            "{shown}"
        );
        for (host, address) in
            [("j-w-0", "10.0.0.1"), ("j-w-2", "fe80::1%eth0"), ("10.0.0.9", "10.0.0.9")]
        {
            let said = run("ssh", &["-G", "-F", &path("config"), host]);
            let said: BTreeSet<&str> = said.lines().collect();
            let hostname = format!("hostname {address}");
            let identity = format!("identityfile {}", private.replace('%', "%%"));
            for wanted in [
                &*hostname,
                "port 2222",
                "stricthostkeychecking false",
                "userknownhostsfile /dev/null",
                "identitiesonly yes",
                &*identity,
            ] {
                assert!(said.contains(wanted), "{host}: {wanted} is not in {said:?}");
            }
        }
    }

    #[test]
    fn config_names_the_members_that_have_a_node() {
        let files = files(&access(&[], false), &record(plain()), Path::new("/h")).unwrap();
        assert_eq!(
            files[CONFIG],
            "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nIdentityFile \"/h/.ssh/id_ed25519\"\n\
             IdentitiesOnly yes\nPort 2222\nHost j-w-0\n  HostName 10.0.0.1\n  Port 2222\n\
             Host j-w-2\n  HostName fe80::1%%eth0\n  Port 2222\n"
        );
        assert_eq!(files[".ssh/authorized_keys"], files[".ssh/id_ed25519.pub"]);
        assert_eq!(files.len(), 4);
    }

    #[test]
    fn key_opens_by_the_file_that_it_is_encrypted_with() {
        let of = |access: &SshKeyAccess, private: PrivateKey| {
            files(access, &record(private), Path::new("/h"))
        };
        let wanted = of(&access(&[], false), plain()).unwrap();
        // While key files are replaced, agents have both.
        for keys in [&[1][..], &[2, 1], &[1, 2]] {
            assert_eq!(of(&access(keys, false), sealed(1, "team/j", 7)), Ok(wanted.clone()));
        }
        assert_eq!(of(&access(&[1], true), plain()), Ok(wanted));
        for (keys, private, reason) in [
            (&[2][..], sealed(1, "team/j", 7), "a key file that this agent was not given"),
            (&[], sealed(1, "team/j", 7), "a key file that this agent was not given"),
            (&[1], sealed(1, "team/i", 7), "is that of another job"),
            (&[1], sealed(1, "team/j", 8), "is that of another job"),
            (&[1], plain(), "is not encrypted"),
            (&[], PrivateKey::Plain { seed: "c2hvcnQ=".to_owned() }, "is not one"),
            (&[], PrivateKey::Plain { seed: "?".to_owned() }, "is not one"),
            (
                &[],
                PrivateKey::Plain { seed: BASE64_STANDARD.encode([8; 32]) },
                "does not belong to its private key",
            ),
        ] {
            let error = of(&access(keys, false), private).unwrap_err();
            assert!(error.contains(reason), "{error}");
            assert!(!error.contains("c2hvcnQ"), "{error}");
        }
        let cut = |text: SealedText| SealedText { sealed: text.sealed[4..].to_owned(), ..text };
        let PrivateKey::Sealed(text) = sealed(1, "team/j", 7) else { unreachable!() };
        let error = of(&access(&[1], false), PrivateKey::Sealed(cut(text))).unwrap_err();
        assert!(error.contains("was changed"), "{error}");
        let none = PeersRecord { ssh: None, ..record(plain()) };
        assert!(files(&access(&[], false), &none, Path::new("/h")).is_err());
    }
}
