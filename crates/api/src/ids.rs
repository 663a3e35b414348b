//! Names and identifiers. Each is checked when it is parsed, so paths can be built from it without further checks.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::InvalidText;
use crate::text::{converts_as_text, displays_as_text};

/// Checks one segment of a key: `[A-Za-z0-9_-][A-Za-z0-9_.,-]*`, at most 200 bytes.
///
/// Every Consul version stores this alphabet, and every HTTP client sends it unchanged (`consul-semantics.md` §0 #17).
///
/// # Errors
/// [`InvalidText`] with the first rule broken.
pub fn check_segment(text: &str) -> Result<(), InvalidText> {
    let bad = |why| Err(InvalidText { text: text.to_owned(), what: "name", why });
    if text.is_empty() {
        return bad("it is empty");
    }
    if text.len() > 200 {
        return bad("it is longer than 200 bytes");
    }
    if text.starts_with(['.', ',']) {
        return bad("it starts with '.' or ','");
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b',')) {
        return bad("only letters, digits, '_', '-', '.' and ',' are allowed");
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Arc<str>);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $type {
            type Err = InvalidText;
            fn from_str(text: &str) -> Result<Self, InvalidText> {
                check_segment(text)?;
                Ok(Self(text.into()))
            }
        }
        converts_as_text!($type);
        displays_as_text!($type);
    };
}

name!(
    /// A machine: the `<node>` of `intent/<node>/` and `labels/node/<node>`.
    NodeName
);
name!(
    /// The `id:` of a pod manifest; at most one pod of an id runs per node.
    PodId
);
name!(
    /// Name of a farm daemon, unique among those that share a tree.
    FarmName
);

name!(
    /// The `<ns>` of `rcfarm/jobs/<ns>/<name>`: what a team owns.
    Namespace
);
name!(
    /// The `<name>` of a record within its namespace.
    ObjectName
);

/// A record of a namespace, written `<namespace>/<name>`: a job, a PodGroup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespaced {
    pub namespace: Namespace,
    pub name: ObjectName,
}

/// The queue of records that name none; the farm creates it if it is missing.
pub const DEFAULT_QUEUE: &str = "default";
/// The namespace of records that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

impl FromStr for Namespaced {
    type Err = InvalidText;
    /// A text without a slash is a name in [`DEFAULT_NAMESPACE`].
    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
        Ok(Namespaced { namespace: namespace.parse()?, name: name.parse()? })
    }
}
converts_as_text!(Namespaced);
impl fmt::Display for Namespaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.namespace, self.name))
    }
}

name!(
    /// A queue: the `<name>` of `rcfarm/queues/<name>`.
    QueueName
);

/// A replication controller's id: the UUID of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RcId(pub Uuid);

impl fmt::Display for RcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.as_hyphenated(), f)
    }
}
impl FromStr for RcId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        // Only the form with hyphens, which keys use: 32 bare hex digits would be a second name of the same record.
        if text.len() != 36 {
            return Err(Uuid::parse_str("").unwrap_err());
        }
        Uuid::parse_str(text).map(RcId)
    }
}

/// A Consul session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub Arc<str>);

impl SessionId {
    /// The id as Consul writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl From<&str> for SessionId {
    fn from(text: &str) -> Self {
        SessionId(text.into())
    }
}
impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A record's name below its kind's prefix: an RC's UUID, `<namespace>/<name>` of a job.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(Arc<str>);

impl RecordId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl From<&str> for RecordId {
    fn from(text: &str) -> Self {
        RecordId(text.into())
    }
}
displays_as_text!(RecordId);

/// Identity of a pod in the cluster: node and pod id. The keys of its labels and intent contain both.
/// As text, `<node>/<pod>`; neither can contain a slash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PodRef {
    /// The machine.
    pub node: NodeName,
    /// The pod's id; one pod of an id runs per node.
    pub pod: PodId,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.pod)
    }
}

impl FromStr for PodRef {
    type Err = InvalidText;
    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let (node, pod) = text.split_once('/').unwrap_or((text, ""));
        Ok(PodRef { node: node.parse()?, pod: pod.parse()? })
    }
}
converts_as_text!(PodRef);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_keeps_to_what_every_consul_stores() {
        for good in ["a", "n1.example.com", "A_b-c,d", "-x", "_"] {
            assert!(check_segment(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".a", ",a", "a/b", "a b", "ü", "a%", "a:b"] {
            assert!(check_segment(bad).is_err(), "{bad}");
        }
        assert!(check_segment(&"a".repeat(201)).is_err());
    }

    #[test]
    fn an_rc_id_has_one_spelling_length() {
        let text = "f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0";
        assert_eq!(text.parse::<RcId>().unwrap().to_string(), text);
        assert!("f7fe0fb734b84a649ae25ac1f4d5b8a0".parse::<RcId>().is_err());
    }
}
