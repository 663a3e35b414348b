//! Makes the key pair with which the members of a job reach each other by ssh (Volcano's plugin `ssh`, decision 41).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::digest::{SHA256, digest};
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::job::ssh_keys::{PrivateKey, SshKeyPair, sealing_context};
use rcfarm_store::sealing::{KeySealing, random_bytes};

/// Why a job waits whose farm may not store keys.
pub const REFUSED: &str = "its plugin ssh needs a key pair, and its farm has no key file to encrypt it with: start farms \
     and agents with --ssh-key-file, or farms with --unencrypted-ssh-keys, which lets everybody see the keys who reads \
     rcfarm/job_keys/ or rcfarm/peers/; or leave the plugin out";

/// Makes a new pair for a job.
///
/// # Errors
/// Text without a key: keys may not be stored, or the system has no random numbers.
pub fn make(id: &Namespaced, uid: JobUid, sealing: &KeySealing) -> Result<SshKeyPair, String> {
    let seed: [u8; 32] = random_bytes()?;
    let private = match sealing {
        KeySealing::Refused => return Err(REFUSED.to_owned()),
        KeySealing::Unencrypted => PrivateKey::Plain { seed: BASE64_STANDARD.encode(seed) },
        KeySealing::With(key) => PrivateKey::Sealed(key.seal(&sealing_context(id, uid), &seed)?),
    };
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed)
        .map_err(|_| "the system made no key pair".to_owned())?;
    Ok(SshKeyPair { public: BASE64_STANDARD.encode(pair.public_key().as_ref()), private })
}

/// Fingerprint of the public key, as `ssh-keygen -l` shows it.
#[must_use]
pub fn fingerprint(pair: &SshKeyPair) -> String {
    let public = BASE64_STANDARD.decode(&pair.public).unwrap_or_default();
    let mut blob = Vec::new();
    for part in [&b"ssh-ed25519"[..], &public] {
        blob.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        blob.extend(part);
    }
    let hash = BASE64_STANDARD.encode(digest(&SHA256, &blob));
    format!("SHA256:{}", hash.trim_end_matches('='))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use rcfarm_api::Index;
    use rcfarm_store::sealing::SealingKey;

    #[test]
    fn pair_is_encrypted_unless_asked_for_otherwise() {
        let (id, uid) = ("team/j".parse().unwrap(), JobUid(Index(7)));
        let key = SealingKey::of(&[1; 32]).unwrap();
        let refused = make(&id, uid, &KeySealing::Refused).unwrap_err();
        assert!(refused.contains("--ssh-key-file"), "{refused}");
        let plain = make(&id, uid, &KeySealing::Unencrypted).unwrap();
        let PrivateKey::Plain { seed } = &plain.private else { panic!("{plain:?}") };
        let seed = BASE64_STANDARD.decode(seed).unwrap();
        let public = BASE64_STANDARD.decode(&plain.public).unwrap();
        assert!(Ed25519KeyPair::from_seed_and_public_key(&seed, &public).is_ok());
        let sealed = make(&id, uid, &KeySealing::With(key.clone())).unwrap();
        let PrivateKey::Sealed(text) = &sealed.private else { panic!("{sealed:?}") };
        let seed = key.open(&sealing_context(&id, uid), text).unwrap();
        let public = BASE64_STANDARD.decode(&sealed.public).unwrap();
        assert!(Ed25519KeyPair::from_seed_and_public_key(&seed, &public).is_ok());
        assert_ne!(plain.public, sealed.public);
    }

    #[test]
    fn fingerprint_is_that_of_ssh_keygen() {
        let (id, uid) = ("team/j".parse().unwrap(), JobUid(Index(7)));
        let pair = make(&id, uid, &KeySealing::Unencrypted).unwrap();
        let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
        blob.extend(BASE64_STANDARD.decode(&pair.public).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pub");
        std::fs::write(&path, format!("ssh-ed25519 {} x\n", BASE64_STANDARD.encode(blob))).unwrap();
        let ran = Command::new("ssh-keygen").arg("-lf").arg(&path).output().unwrap();
        let shown = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(shown.split(' ').nth(1), Some(fingerprint(&pair).as_str()), "{shown}");
    }
}
