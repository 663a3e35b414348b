//! `rcfarm/job_keys/<ns>/<job>`: the key pair with which the members of a job reach each other by ssh.
//!
//! The job's owner makes the pair once and keeps it here. The records of the job's members on each node
//! ([`PeersRecord`](super::peers::PeersRecord)) have a copy, because a node's agent may read those of its own node alone.
//! Nothing here prints a private key: [`PrivateKey`] has a `Debug` of its own.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::spec::JobUid;
use crate::Stored;
use crate::ids::Namespaced;

/// The value of `rcfarm/job_keys/<ns>/<job>`: the ssh keys of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobKeysRecord {
    /// Uid of the job. Another job of the name gets a pair of its own.
    pub uid: JobUid,
    /// The pair that all members share.
    pub ssh: SshKeyPair,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Stored for JobKeysRecord {}

/// An ed25519 key pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshKeyPair {
    /// The public key in base64, 32 bytes. Agents compare it with the private one.
    pub public: String,
    /// The private key, which agents write into the homes of members.
    pub private: PrivateKey,
}

/// A private key as it is stored.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PrivateKey {
    /// Encrypted with a key file.
    Sealed(SealedText),
    /// Not encrypted: the operator has allowed it.
    Plain {
        /// The seed of the pair in base64, 32 bytes.
        seed: String,
    },
}

/// An encrypted text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedText {
    /// Which key file it is encrypted with; says nothing about the file's content.
    pub key_id: String,
    /// Nonce in base64, 12 bytes.
    pub nonce: String,
    /// Ciphertext and tag in base64.
    pub sealed: String,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrivateKey::Sealed(text) => text.fmt(f),
            PrivateKey::Plain { .. } => f.write_str("Plain"),
        }
    }
}

impl fmt::Debug for SealedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedText({})", self.key_id)
    }
}

/// What an encrypted pair is bound to: with the data of another job it cannot be opened.
#[must_use]
pub fn sealing_context(job: &Namespaced, uid: JobUid) -> Vec<u8> {
    format!("rcfarm ssh key of job {job} {uid}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Index;

    #[test]
    fn debug_shows_no_private_key() {
        let plain = PrivateKey::Plain { seed: "c2VjcmV0".to_owned() };
        let [key_id, nonce, sealed] = ["ab", "bm9uY2U=", "Y2lwaGVy"].map(str::to_owned);
        let sealed = PrivateKey::Sealed(SealedText { key_id, nonce, sealed });
        for private in [plain, sealed] {
            let ssh = SshKeyPair { public: "cHVibGlj".to_owned(), private };
            let record = JobKeysRecord { uid: JobUid(Index(7)), ssh, other: Map::new() };
            let shown = format!("{record:?}");
            assert!(shown.contains("cHVibGlj"), "{shown}");
            assert!(!shown.contains("c2VjcmV0") && !shown.contains("Y2lwaGVy"), "{shown}");
            assert_eq!(JobKeysRecord::decode(&record.encode()).unwrap(), record);
        }
    }

    #[test]
    fn context_differs_by_job() {
        let context = |job: &str, uid| sealing_context(&job.parse().unwrap(), JobUid(Index(uid)));
        let all = [context("a/b", 1), context("a/c", 1), context("b/b", 1), context("a/b", 2)];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }
}
