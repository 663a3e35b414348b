//! Consul's JSON: requests and answers.

use std::fmt;
use std::time::Duration;

use base64::display::Base64Display;
use base64::engine::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use rcfarm_api::ids::SessionId;
use rcfarm_store::{Behavior, Entry, Index, Op, Refusal, ServiceHealth, SessionInfo};

/// A value in Consul's JSON: base64, or `null` if empty.
struct Value<'a>(&'a [u8]);

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    struct Decode;
    impl<'de> Visitor<'de> for Decode {
        type Value = Bytes;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("base64 or null")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
            STANDARD.decode(text).map(Bytes::from).map_err(E::custom)
        }
        fn visit_unit<E: de::Error>(self) -> Result<Bytes, E> {
            Ok(Bytes::new())
        }
    }
    deserializer.deserialize_any(Decode)
}

/// A key in Consul's JSON.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct WireEntry {
    key: String,
    #[serde(default, deserialize_with = "value")]
    value: Bytes,
    #[serde(default)]
    flags: u64,
    #[serde(default)]
    session: Option<SessionId>,
    #[serde(default)]
    lock_index: u64,
    create_index: Index,
    modify_index: Index,
}

impl From<WireEntry> for Entry {
    fn from(wire: WireEntry) -> Entry {
        Entry {
            key: wire.key,
            value: wire.value,
            flags: wire.flags,
            session: wire.session.filter(|id| !id.as_str().is_empty()),
            lock_index: wire.lock_index,
            create_index: wire.create_index,
            modify_index: wire.modify_index,
        }
    }
}

// ---- transactions ------------------------------------------------------------------------------------

/// Namespace and partition of a transaction's keys (Consul Enterprise). Unlike in other requests, each operation has them.
#[derive(Debug, Clone, Default)]
pub(super) struct Scope {
    pub(super) namespace: Option<String>,
    pub(super) partition: Option<String>,
}

#[derive(Serialize)]
struct WireOp<'a> {
    #[serde(rename = "KV")]
    kv: WireKv<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct WireKv<'a> {
    verb: &'static str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<Index>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<&'a str>,
}

pub(super) fn txn_body(ops: &[Op], scope: &Scope) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = Vec::with_capacity(2 + ops.iter().map(Op::body_bytes).sum::<usize>());
    let wire = ops.iter().map(|op| WireOp { kv: wire_kv(op, scope) });
    serde_json::Serializer::new(&mut body).collect_seq(wire)?;
    Ok(body)
}

fn wire_kv<'a>(op: &'a Op, scope: &'a Scope) -> WireKv<'a> {
    let bare = |verb| WireKv {
        verb,
        key: op.subject(),
        value: None,
        flags: None,
        index: None,
        session: None,
        namespace: scope.namespace.as_deref(),
        partition: scope.partition.as_deref(),
    };
    let verb = verb(op);
    match op {
        Op::Set { value, flags, .. } => {
            WireKv { value: Some(Value(value)), flags: Some(*flags), ..bare(verb) }
        }
        Op::Cas { value, flags, index, .. } => WireKv {
            value: Some(Value(value)),
            flags: Some(*flags),
            index: Some(*index),
            ..bare(verb)
        },
        Op::Lock { value, session, .. } | Op::Unlock { value, session, .. } => {
            WireKv { value: Some(Value(value)), session: Some(session.as_str()), ..bare(verb) }
        }
        Op::CheckSession { session, .. } => {
            WireKv { session: Some(session.as_str()), ..bare(verb) }
        }
        Op::CheckIndex { index, .. } | Op::DeleteCas { index, .. } => {
            WireKv { index: Some(*index), ..bare(verb) }
        }
        Op::Get { .. }
        | Op::GetTree { .. }
        | Op::CheckNotExists { .. }
        | Op::Delete { .. }
        | Op::DeleteTree { .. } => bare(verb),
    }
}

/// An operation's name in Consul.
pub(super) fn verb(op: &Op) -> &'static str {
    match op {
        Op::Set { .. } => "set",
        Op::Cas { .. } => "cas",
        Op::Lock { .. } => "lock",
        Op::Unlock { .. } => "unlock",
        Op::Get { .. } => "get",
        Op::GetTree { .. } => "get-tree",
        Op::CheckIndex { .. } => "check-index",
        Op::CheckSession { .. } => "check-session",
        Op::CheckNotExists { .. } => "check-not-exists",
        Op::Delete { .. } => "delete",
        Op::DeleteTree { .. } => "delete-tree",
        Op::DeleteCas { .. } => "delete-cas",
    }
}

/// The answer to a transaction: results, or all refusals.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct TxnAnswer {
    #[serde(default)]
    results: Option<Vec<TxnResult>>,
    #[serde(default)]
    errors: Option<Vec<TxnError>>,
}

#[derive(Deserialize)]
struct TxnResult {
    #[serde(rename = "KV", default)]
    kv: Option<WireEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TxnError {
    op_index: usize,
    what: String,
}

impl TxnAnswer {
    pub(super) fn entries(self) -> Vec<Entry> {
        self.results.unwrap_or_default().into_iter().filter_map(|r| r.kv).map(Entry::from).collect()
    }

    pub(super) fn refusals(self) -> Vec<Refusal> {
        let errors = self.errors.unwrap_or_default();
        errors.into_iter().map(|e| Refusal { op: e.op_index, what: e.what }).collect()
    }
}

// ---- sessions and health -----------------------------------------------------------------------------

/// A session in Consul's JSON.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct WireSession {
    #[serde(rename = "ID")]
    id: SessionId,
    #[serde(default)]
    name: String,
    #[serde(default)]
    node: String,
    /// TTL as the client wrote it.
    #[serde(rename = "TTL", default)]
    ttl: String,
    /// Lock-delay in nanoseconds. A client may have made it negative, which means none.
    #[serde(default)]
    lock_delay: i64,
    #[serde(default)]
    behavior: String,
    create_index: Index,
}

impl From<WireSession> for SessionInfo {
    fn from(wire: WireSession) -> SessionInfo {
        SessionInfo {
            id: wire.id,
            name: wire.name,
            node: wire.node,
            ttl: parse_duration(&wire.ttl).filter(|ttl| !ttl.is_zero()),
            lock_delay: Duration::from_nanos(u64::try_from(wire.lock_delay).unwrap_or(0)),
            behavior: match wire.behavior.as_str() {
                "delete" => Behavior::Delete,
                _ => Behavior::Release,
            },
            create_index: wire.create_index,
        }
    }
}

/// One instance of a service.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct WireInstance {
    node: WireNode,
    #[serde(default)]
    checks: Option<Vec<WireCheck>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireNode {
    node: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireCheck {
    #[serde(default)]
    status: String,
}

impl From<WireInstance> for ServiceHealth {
    fn from(wire: WireInstance) -> ServiceHealth {
        let passing = wire.checks.iter().flatten().all(|check| check.status == "passing");
        ServiceHealth { node: wire.node.node, passing }
    }
}

// ---- durations ---------------------------------------------------------------------------------------

/// A duration in Go's notation, rounded up to milliseconds: Consul often takes 0 for its default.
pub(super) fn go_duration(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_nanos().div_ceil(1_000_000))
    }
}

/// Parses a duration in Go's notation (`1h0m0s`, `10.5s`). `None`: invalid or negative.
fn parse_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 7] = [
        ("ms", 1e-3), // before "m"
        ("us", 1e-6),
        ("µs", 1e-6),
        ("ns", 1e-9),
        ("h", 3600.0),
        ("m", 60.0),
        ("s", 1.0),
    ];
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let (unit, factor) = UNITS.iter().find(|(unit, _)| rest[end..].starts_with(unit))?;
        seconds += number * factor;
        rest = &rest[end + unit.len()..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_store::{Key, Prefix};

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    #[test]
    fn each_verb_carries_what_consul_needs_of_it() {
        let session = SessionId::from("s");
        let value = Bytes::from_static(b"\xff\x00v");
        let index = Index(7);
        let (k, prefix) = (key("a/b"), Prefix::parse("a").unwrap());
        let ops = [
            Op::Set { key: k.clone(), value: value.clone(), flags: 3 },
            Op::Cas { key: k.clone(), value: Bytes::new(), flags: 0, index: Index::ZERO },
            Op::Lock { key: k.clone(), value: value.clone(), session: session.clone() },
            Op::Unlock { key: k.clone(), value, session: session.clone() },
            Op::Get { key: k.clone() },
            Op::GetTree { prefix: prefix.clone() },
            Op::CheckIndex { key: k.clone(), index },
            Op::CheckSession { key: k.clone(), session },
            Op::CheckNotExists { key: k.clone() },
            Op::Delete { key: k.clone() },
            Op::DeleteTree { prefix },
            Op::DeleteCas { key: k, index },
        ];
        let body = txn_body(&ops, &Scope::default()).unwrap();
        let expected = [
            r#"{"KV":{"Verb":"set","Key":"a/b","Value":"/wB2","Flags":3}}"#,
            r#"{"KV":{"Verb":"cas","Key":"a/b","Value":"","Flags":0,"Index":0}}"#,
            r#"{"KV":{"Verb":"lock","Key":"a/b","Value":"/wB2","Session":"s"}}"#,
            r#"{"KV":{"Verb":"unlock","Key":"a/b","Value":"/wB2","Session":"s"}}"#,
            r#"{"KV":{"Verb":"get","Key":"a/b"}}"#,
            r#"{"KV":{"Verb":"get-tree","Key":"a/"}}"#,
            r#"{"KV":{"Verb":"check-index","Key":"a/b","Index":7}}"#,
            r#"{"KV":{"Verb":"check-session","Key":"a/b","Session":"s"}}"#,
            r#"{"KV":{"Verb":"check-not-exists","Key":"a/b"}}"#,
            r#"{"KV":{"Verb":"delete","Key":"a/b"}}"#,
            r#"{"KV":{"Verb":"delete-tree","Key":"a/"}}"#,
            r#"{"KV":{"Verb":"delete-cas","Key":"a/b","Index":7}}"#,
        ];
        assert_eq!(String::from_utf8(body).unwrap(), format!("[{}]", expected.join(",")));
    }

    #[test]
    fn a_body_is_never_longer_than_the_port_allocations() {
        let id = SessionId::from("adf4238a-882b-9ddc-4a9d-5b6758e4159e");
        let (k, index) = (key("some/key"), Index(u64::MAX));
        for len in 0..8 {
            let value = Bytes::from(vec![0xff; len]);
            for op in [
                Op::Set { key: k.clone(), value: value.clone(), flags: u64::MAX },
                Op::Cas { key: k.clone(), value: value.clone(), flags: u64::MAX, index },
                Op::Lock { key: k.clone(), value: value.clone(), session: id.clone() },
                Op::CheckSession { key: k.clone(), session: id.clone() },
            ] {
                let promised = 1 + op.body_bytes();
                let body = txn_body(std::slice::from_ref(&op), &Scope::default()).unwrap();
                assert!(body.len() <= promised, "{op:?}: {} > {promised}", body.len());
            }
        }
    }

    #[test]
    fn an_enterprise_scope_goes_with_each_operation() {
        let scope = Scope { namespace: Some("team".into()), partition: Some("p".into()) };
        let body = txn_body(&[Op::Get { key: key("a") }], &scope).unwrap();
        let expected = r#"[{"KV":{"Verb":"get","Key":"a","Namespace":"team","Partition":"p"}}]"#;
        assert_eq!(String::from_utf8(body).unwrap(), expected);
    }

    #[test]
    fn entries_are_read_as_consul_writes_them() {
        let json = r#"{"LockIndex":1,"Key":"a\u003cb","Flags":18446744073709551615,"Value":"/wB2",
            "Session":"s","CreateIndex":3,"ModifyIndex":4}"#;
        let entry = Entry::from(serde_json::from_str::<WireEntry>(json).unwrap());
        let expected = Entry {
            key: "a<b".into(),
            value: Bytes::from_static(b"\xff\x00v"),
            flags: u64::MAX,
            session: Some(SessionId::from("s")),
            lock_index: 1,
            create_index: Index(3),
            modify_index: Index(4),
        };
        assert_eq!(entry, expected);
        let json = r#"{"Key":"a","Value":null,"CreateIndex":3,"ModifyIndex":4,"New":[]}"#;
        let entry = Entry::from(serde_json::from_str::<WireEntry>(json).unwrap());
        assert_eq!((entry.value, entry.session), (Bytes::new(), None));
        let json = r#"{"Key":"a","Value":"*","CreateIndex":3,"ModifyIndex":4}"#;
        assert!(serde_json::from_str::<WireEntry>(json).is_err());
    }

    #[test]
    fn durations_are_written_and_read_as_gos() {
        let ms = Duration::from_millis;
        assert_eq!(go_duration(ms(30_000)), "30s");
        assert_eq!(go_duration(ms(1_500)), "1500ms");
        assert_eq!(go_duration(Duration::from_nanos(1)), "1ms");
        assert_eq!(go_duration(Duration::ZERO), "0s");
        for (text, expected) in [
            ("10s", Some(ms(10_000))),
            ("10000ms", Some(ms(10_000))),
            ("10.5s", Some(ms(10_500))),
            ("24h0m0s", Some(ms(86_400_000))),
            ("1m30s", Some(ms(90_000))),
            ("", Some(ms(0))),
            ("10", None),
            ("-10s", None),
            ("1x", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }

    #[test]
    fn a_session_of_anybody_can_be_read() {
        let json = r#"{"ID":"s","Name":"","Node":"n","LockDelay":-5,"Behavior":"","TTL":"",
            "NodeChecks":null,"ServiceChecks":null,"CreateIndex":9,"ModifyIndex":9}"#;
        let info = SessionInfo::from(serde_json::from_str::<WireSession>(json).unwrap());
        assert_eq!((info.ttl, info.lock_delay), (None, Duration::ZERO));
        assert_eq!(info.behavior, Behavior::Release);
    }

    #[test]
    fn the_worst_check_counts() {
        for (statuses, passing) in [
            (vec![], true),
            (vec!["passing", "passing"], true),
            (vec!["passing", "warning"], false),
            (vec!["critical", "passing"], false),
        ] {
            let checks: Vec<_> =
                statuses.iter().map(|s| serde_json::json!({ "Status": s })).collect();
            let json = serde_json::json!({ "Node": { "Node": "n1" }, "Checks": checks });
            let health = ServiceHealth::from(serde_json::from_value::<WireInstance>(json).unwrap());
            assert_eq!(health, ServiceHealth { node: "n1".into(), passing });
        }
    }
}
