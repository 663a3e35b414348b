//! The grammar of keys and prefixes.

use std::sync::Arc;

use crate::InvalidText;
use crate::ids::check_segment;
use crate::text::displays_as_text;

/// A valid key: segments of the portable alphabet joined by single slashes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// A prefix to list or watch: empty, or a path that ends in a slash. Consul's prefixes are string prefixes: `n1` would
/// also match `n10`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(pub(super) Arc<str>);

impl Key {
    /// A key from text, checked against the grammar.
    ///
    /// # Errors
    /// [`InvalidText`] naming the segment that breaks the grammar.
    pub fn parse(text: &str) -> Result<Key, InvalidText> {
        text.split('/').try_for_each(check_segment)?;
        Ok(Key(text.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn of(text: String) -> Key {
        debug_assert!(Key::parse(&text).is_ok(), "key outside the grammar: {text}");
        Key(text.into())
    }
}

impl Prefix {
    /// A prefix from text, checked against the grammar; a missing final slash is added.
    ///
    /// # Errors
    /// [`InvalidText`] naming the segment that breaks the grammar.
    pub fn parse(text: &str) -> Result<Prefix, InvalidText> {
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        if trimmed.is_empty() {
            return Ok(Prefix("".into()));
        }
        Key::parse(trimmed)?;
        Ok(Prefix(format!("{trimmed}/").into()))
    }

    /// The prefix as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part of a listed key after this prefix; `None` if the key is not below it.
    pub fn tail<'k>(&self, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(&*self.0)
    }

    /// The key `tail` below this prefix; `None` if that is no valid key.
    pub fn key_of(&self, tail: &str) -> Option<Key> {
        Key::parse(&format!("{}{tail}", self.0)).ok()
    }

    /// This prefix below the configured root.
    pub fn join(&self, key: &Key) -> Key {
        Key::of(format!("{}{key}", self.0))
    }

    /// A prefix below this prefix.
    pub fn join_prefix(&self, below: &Prefix) -> Prefix {
        Prefix(format!("{}{below}", self.0).into())
    }

    /// All keys that begin with the first `end` bytes of `key`: the only prefix that need not end in a slash, and that
    /// need not keep to the grammar, since others may write other keys. `None`: a URL might not carry it unchanged.
    pub fn beginning(key: &str, end: usize) -> Option<Prefix> {
        let text = key.get(..end)?;
        let (parents, _) = text.rsplit_once('/').unwrap_or_default();
        let is_carried = !text.starts_with('/')
            && !text.contains("//")
            && !text.contains(char::is_control)
            && text.split('/').all(|segment| !matches!(segment, "." | ".."))
            && parents.split('/').all(|segment| segment.trim() == segment);
        is_carried.then(|| Prefix(text.into()))
    }

    /// A key that keeps the prefix from being empty: a watch on an empty prefix wakes on unrelated writes
    /// (`consul-semantics.md` §0 #9). No record can have its name.
    pub fn sentinel(&self) -> Key {
        Key::of(format!("{}{SENTINEL}", self.0))
    }

    /// Whether a listed key is this prefix's sentinel.
    pub fn is_sentinel(&self, key: &str) -> bool {
        self.tail(key) == Some(SENTINEL)
    }

    pub(super) fn of(text: String) -> Prefix {
        Prefix(text.into())
    }
}

/// One more segment than any record's name.
const SENTINEL: &str = "_/_/_";

displays_as_text!(Key);
displays_as_text!(Prefix);
