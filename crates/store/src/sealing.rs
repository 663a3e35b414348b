//! Encryption of what is stored in Consul, with a key that stands in a file beside the daemons.
//!
//! CHACHA20-POLY1305 with a random nonce per text. The key comes from the content of the file by HKDF-SHA256, so the file
//! may hold any secret of 32 bytes or more. The associated data bind a text to its record ([`SealingKey::open`]). No
//! `Debug`, and no error, shows a key or a text.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcfarm_api::job::ssh_keys::SealedText;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};

/// Shortest key file, in bytes.
const SHORTEST_SECRET: usize = 32;
/// Longest key file, in bytes.
const LONGEST_SECRET: u64 = 64 * 1024;

/// A key from a key file.
#[derive(Clone)]
pub struct SealingKey {
    key: Arc<LessSafeKey>,
    id: String,
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealingKey({})", self.id)
    }
}

/// How private keys are stored.
#[derive(Debug, Clone, Default)]
pub enum KeySealing {
    /// Not at all: there is no key file, and nobody has asked for anything else.
    #[default]
    Refused,
    /// Not encrypted.
    Unencrypted,
    /// Encrypted with this key.
    With(SealingKey),
}

impl KeySealing {
    /// Whether private keys can be stored.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        !matches!(self, KeySealing::Refused)
    }
}

/// Random bytes from the operating system, for keys. Identifiers and jitter come from
/// [`IdSource`](crate::time::IdSource), whose seeds repeat them.
///
/// # Errors
/// Text: the operating system gives no random bytes.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| "the system has no random numbers".to_owned())
}

impl SealingKey {
    /// Reads a key file.
    ///
    /// # Errors
    /// Text: it cannot be read, is too short or too long, or others than its owner may read it.
    pub fn read(path: &Path) -> Result<SealingKey, String> {
        let shown = path.display();
        let unread =
            |error: std::io::Error| format!("the key file {shown} cannot be read: {error}");
        let file = File::open(path).map_err(unread)?;
        let found = file.metadata().map_err(unread)?;
        if found.mode() & 0o077 != 0 {
            return Err(format!("others than its owner may read the key file {shown}: chmod 600"));
        }
        let mut secret = Vec::new();
        file.take(LONGEST_SECRET + 1).read_to_end(&mut secret).map_err(unread)?;
        match secret.len() {
            0..SHORTEST_SECRET => {
                Err(format!("the key file {shown} needs {SHORTEST_SECRET} bytes or more"))
            }
            len if len as u64 > LONGEST_SECRET => {
                Err(format!("the key file {shown} has more than {LONGEST_SECRET} bytes"))
            }
            _ => SealingKey::of(&secret),
        }
    }

    /// The key of a secret.
    ///
    /// # Errors
    /// Text: none can be made.
    pub fn of(secret: &[u8]) -> Result<SealingKey, String> {
        let secret = Salt::new(HKDF_SHA256, b"rcfarm key file").extract(secret);
        let key: [u8; 32] = expanded(&secret, b"sealing key")?;
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).map_err(|_| NO_KEY)?;
        let id: [u8; 8] = expanded(&secret, b"id")?;
        let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(SealingKey { key: Arc::new(LessSafeKey::new(key)), id })
    }

    /// Which key file it is from; says nothing about the file's content.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Encrypts a text. Only who has the key and says the same `context` can read it.
    ///
    /// # Errors
    /// Text: the system has no random numbers.
    pub fn seal(&self, context: &[u8], text: &[u8]) -> Result<SealedText, String> {
        let nonce: [u8; NONCE_LEN] = random_bytes()?;
        let mut sealed = text.to_vec();
        let once = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(once, Aad::from(context), &mut sealed)
            .map_err(|_| "it is too long to be encrypted")?;
        Ok(SealedText {
            key_id: self.id.clone(),
            nonce: BASE64_STANDARD.encode(nonce),
            sealed: BASE64_STANDARD.encode(sealed),
        })
    }

    /// Decrypts a text. `None`: it was encrypted with another key or for another `context`, or it was changed.
    #[must_use]
    pub fn open(&self, context: &[u8], text: &SealedText) -> Option<Vec<u8>> {
        let nonce = BASE64_STANDARD.decode(&text.nonce).ok()?;
        let nonce = Nonce::try_assume_unique_for_key(&nonce).ok()?;
        let mut sealed = BASE64_STANDARD.decode(&text.sealed).ok()?;
        let opened = self.key.open_in_place(nonce, Aad::from(context), &mut sealed).ok()?;
        Some(opened.to_vec())
    }
}

const NO_KEY: &str = "no key can be made of the key file";

/// A length of the key derivation.
struct OutputBytes(usize);

impl ring::hkdf::KeyType for OutputBytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn expanded<const N: usize>(secret: &Prk, purpose: &[u8]) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    let purpose = [purpose];
    let expanded = secret.expand(&purpose, OutputBytes(N)).and_then(|okm| okm.fill(&mut bytes));
    expanded.map(|()| bytes).map_err(|_| NO_KEY.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const SECRET: &[u8] = b"a secret of thirty-two bytes, and";

    #[test]
    fn text_opens_with_its_key_and_context_alone() {
        let key = SealingKey::of(SECRET).unwrap();
        let other = SealingKey::of(b"another secret of thirty-two byte").unwrap();
        let sealed = key.seal(b"job a", b"the private key").unwrap();
        assert_eq!(key.open(b"job a", &sealed).as_deref(), Some(&b"the private key"[..]));
        assert_eq!(SealingKey::of(SECRET).unwrap().id(), sealed.key_id);
        assert_ne!(other.id(), key.id());
        let cut = SealedText { sealed: sealed.sealed[4..].to_owned(), ..sealed.clone() };
        let nonce = BASE64_STANDARD.encode([0; NONCE_LEN]);
        let replaced = SealedText { nonce, ..sealed.clone() };
        let garbled = SealedText { nonce: "?".to_owned(), ..sealed.clone() };
        for (key, context, text) in [
            (&other, &b"job a"[..], &sealed),
            (&key, b"job b", &sealed),
            (&key, b"job a", &cut),
            (&key, b"job a", &replaced),
            (&key, b"job a", &garbled),
        ] {
            assert_eq!(key.open(context, text), None, "{text:?}");
        }
    }

    #[test]
    fn each_text_has_a_nonce_of_its_own() {
        let key = SealingKey::of(SECRET).unwrap();
        let [a, b] = [(); 2].map(|()| key.seal(b"job", b"text").unwrap());
        assert_ne!(a.nonce, b.nonce);
        assert_ne!(a.sealed, b.sealed);
    }

    #[test]
    fn key_file_is_long_enough_and_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let read = |text: &[u8], mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            SealingKey::read(&path)
        };
        let key = read(SECRET, 0o600).unwrap();
        assert_eq!(format!("{key:?}"), format!("SealingKey({})", key.id()));
        for (text, mode, reason) in [
            (SECRET, 0o640, "others than its owner"),
            (SECRET, 0o604, "others than its owner"),
            (&SECRET[..31], 0o600, "needs 32 bytes"),
            (&[b'x'; 65_537], 0o600, "more than 65536 bytes"),
        ] {
            let error = read(text, mode).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let none = SealingKey::read(&dir.path().join("none")).unwrap_err();
        assert!(none.contains("cannot be read"), "{none}");
    }
}
