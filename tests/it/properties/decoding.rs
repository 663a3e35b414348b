//! Stored values of any content are decoded or refused, without a panic.

use axum::body::Body;
use axum::http::{Method, Request};
use bytes::Bytes;
use proptest::prelude::*;
use rcfarm::farm::records::{Doorbells, Locks, Peers, RecordLabels, Records};
use rcfarm_api::Stored;
use rcfarm_api::audit::{AuditRecord, Logged, fold};
use rcfarm_api::ids::SessionId;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{decode_labels, encode_labels};
use rcfarm_api::manifest::Manifest;
use rcfarm_api::node::Health;
use rcfarm_api::rc::spec::{RcRecord, RcSpec};
use rcfarm_api::rc::status::RcStatus;
use rcfarm_emulator::serve::respond;
use rcfarm_emulator::{Emulator, Tables};
use rcfarm_store::cache::CacheIndex;
use rcfarm_store::{Entry, Index, Prefix};
use uuid::Uuid;

const RECORD: &str = r#"{"id":"f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0","manifest":"id: hello\nlaunchables: {}\n","node_selector":"role=web","pod_labels":{"cluster_name":"prod"},"replicas_desired":3,"disabled":false,"allocation_strategy":"static_strategy"}"#;
const STATUS: &str = r#"{"observed_index":7,"revision":3,"replicas":{"desired":3,"current":2,"healthy":1,"eligible":9},"conditions":[{"type":"Scheduled","status":false,"reason":"Scaling","message":"x","last_transition_time":"2026-01-01T00:00:00Z"}],"owner":{"farm":"a","since":"2026-01-01T00:00:00Z"},"transfer":{"id":"f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0","old_node":"n1","new_node":null,"attempts":1}}"#;
const AUDIT: &str = r#"{"event_type":"REPLICATION_CONTROLLER_RETARGET","event_details":{"pod_id":"web","availability_zone":"","cluster_name":"","nodes":["n1"],"replication_controller_id":"f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0","farm":"a","actor":"farm","reason":"ScaleUp","nodes_added":["n1"],"desired_before":0,"desired_after":1,"count":1},"timestamp":"2026-01-01T00:00:00Z","schema_version":1}"#;
const PRESENCE: &str = r#"{"session":"s","selector":"tier=web","version":"1","since":"2026-01-01T00:00:00Z","claims":{"rc":3},"suspicions":["x"],"leaving":true}"#;
const HEALTH: &str = r#"{"Id":"web","Node":"n1","Service":"web","Status":"passing","Time":"2026-01-01T00:00:00Z","Expires":"2126-01-01T00:00:00Z"}"#;
const MANIFEST: &str = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\nid: hello\nlaunchables:\n  web:\n    launchable_type: hoist\n    launchable_id: x\nconfig:\n- -1\n-----BEGIN PGP SIGNATURE-----\n\nabc\n-----END PGP SIGNATURE-----\n";
const SESSION: &str = r#"{"Name":"farm","TTL":"30s","LockDelay":"0s","Behavior":"delete","Checks":["service:x"],"NodeChecks":null}"#;
const SERVICE: &str = r#"{"Name":"rcfarm-farm","ID":"x","Meta":{"farm":"a"},"Check":{"TTL":"2s","DeregisterCriticalServiceAfter":"2m"}}"#;
const TXN: &str = r#"[{"KV":{"Verb":"check-session","Key":"l","Session":"f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0"}},{"KV":{"Verb":"cas","Key":"a/b","Value":"eHl6","Flags":0,"Index":0}},{"KV":{"Verb":"delete-tree","Key":"a/"}}]"#;

/// Random bytes, and `text` with some bytes replaced.
fn nearly(text: &'static str) -> impl Strategy<Value = Bytes> {
    let bytes = prop_oneof![
        "[-0-9eE.\"{}\\[\\]:,a-z]{0,6}".prop_map(String::into_bytes),
        prop::sample::select(vec![
            "null",
            "true",
            "-1",
            "1e999",
            "\"\"",
            "{}",
            "[]",
            "18446744073709551616"
        ])
        .prop_map(|token| token.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    let splice = (any::<prop::sample::Index>(), 0..20usize, bytes);
    let spliced = prop::collection::vec(splice, 0..4).prop_map(move |splices| {
        let mut value = text.as_bytes().to_vec();
        for (at, cut, with) in splices {
            let at = at.index(value.len() + 1);
            value.splice(at..(at + cut).min(value.len()), with);
        }
        value
    });
    let values = prop_oneof![
        6 => spliced,
        1 => token(text),
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ];
    values.prop_map(Bytes::from)
}

/// `text` with one JSON value replaced.
fn token(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let colons: Vec<usize> = text.match_indices(':').map(|(at, _)| at + 1).collect();
    let values = vec![
        "null",
        "true",
        "-1",
        "1.5",
        "1e999",
        "\"\"",
        "{}",
        "[]",
        "[null]",
        "9223372036854775808",
    ];
    (prop::sample::select(colons), prop::sample::select(values)).prop_map(move |(at, value)| {
        let rest = text[at..].find([',', '}']).map_or("", |end| &text[at + end..]);
        format!("{}{value}{rest}", &text[..at]).into_bytes()
    })
}

fn entry(prefix: &Prefix, tail: &str, value: Bytes) -> Entry {
    Entry {
        key: format!("{prefix}{tail}"),
        value,
        flags: 0,
        session: Some(SessionId::from("s")),
        lock_index: 1,
        create_index: Index(1),
        modify_index: Index(1),
    }
}

proptest! {
    #[test]
    fn a_record_is_read_or_the_field_is_named(value in nearly(RECORD)) {
        match RcRecord::decode(&value) {
            Ok(record) => {
                prop_assert_eq!(RcRecord::decode(&record.encode()).unwrap(), record.clone());
                if let Err(bad) = RcSpec::check(record.id, &record) {
                    prop_assert!(!bad.path.is_empty() && !bad.problem.is_empty() && !bad.fix.is_empty());
                }
            }
            Err(bad) => prop_assert!(!bad.path.is_empty() && !bad.problem.is_empty()),
        }
    }

    #[test]
    fn a_status_is_read_or_not(value in nearly(STATUS)) {
        if let Ok(status) = RcStatus::decode(&value) {
            prop_assert_eq!(RcStatus::decode(&status.encode()).unwrap(), status);
        }
    }

    #[test]
    fn an_audit_log_is_read_and_folded_whatever_is_in_it(
        values in prop::collection::vec(nearly(AUDIT), 0..4),
    ) {
        let records = values.iter().filter_map(|value| AuditRecord::decode(value).ok());
        let logged = |(n, record): (u64, AuditRecord)| {
            if let Ok(details) = record.details() {
                let again = AuditRecord::new(&details, record.timestamp);
                assert_eq!(again.details().unwrap(), details);
            }
            Logged { id: Uuid::from_u128(n.into()), index: Index(n), record }
        };
        let log: Vec<Logged> = (1..).zip(records).map(logged).collect();
        let folded = fold(&log);
        prop_assert!(folded.controllers.len() <= log.len());
    }

    #[test]
    fn labels_are_read_or_not(value in nearly(r#"{"role":"web","zone":"a"}"#)) {
        if let Ok(labels) = decode_labels(&value) {
            prop_assert_eq!(decode_labels(&encode_labels(&labels)).unwrap(), labels);
        }
    }

    #[test]
    fn what_is_no_health_is_unknown(value in nearly(HEALTH)) {
        let health = Health::decode(&value);
        if let Ok(value) = serde_json::from_slice::<serde_json::Value>(&value) {
            let expected = match value["Status"].as_str() {
                Some("passing") => Health::Passing,
                Some("warning") => Health::Warning,
                Some("critical") => Health::Critical,
                _ => Health::Unknown,
            };
            prop_assert_eq!(health, expected);
        }
    }

    #[test]
    fn a_manifest_is_read_or_refused(value in nearly(MANIFEST)) {
        let text = String::from_utf8_lossy(&value);
        match Manifest::parse(&text) {
            Ok(manifest) => prop_assert_eq!(manifest.text(), text),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn the_trees_of_a_farm_take_anything(value in nearly(PRESENCE), tail in "[a-c]{0,3}/{0,2}[a-c]{0,3}|\\PC{0,5}") {
        let (farms, rcs, doorbells) = (key::farms(), key::rcs(), key::bells());
        let labels = key::labels(LabelKind::ReplicationController);
        let one = |prefix: &Prefix| vec![entry(prefix, &tail, value.clone())];
        let peers = Peers::build(&Peers::default(), &farms, one(&farms));
        prop_assert!(peers.0.keys().all(|name| name.as_str() == tail));
        prop_assert_eq!(Records::build(&Records::default(), &rcs, one(&rcs)).0.len(), 1);
        prop_assert!(Doorbells::build(&Doorbells::default(), &doorbells, one(&doorbells)).0.len() <= 1);
        prop_assert!(Locks::build(&Locks::default(), &key::rc_locks(), one(&key::rc_locks())).0.len() <= 1);
        prop_assert!(RecordLabels::build(&RecordLabels::default(), &labels, one(&labels)).0.len() <= 1);
    }

    #[test]
    fn emulator_answers_any_body(
        (path, body) in prop_oneof![
            nearly(SESSION).prop_map(|body| ("session/create", body)),
            nearly(SERVICE).prop_map(|body| ("agent/service/register", body)),
            nearly(TXN).prop_map(|body| ("txn", body)),
            nearly(r#"{"Status":"passing","Output":"x"}"#).prop_map(|body| ("agent/check/update/service:x", body)),
        ],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let consul = Emulator::default();
            let before = consul.snapshot();
            let request = Request::builder().method(Method::PUT).uri(format!("/v1/{path}"));
            let answer = respond(&consul, request.body(Body::from(body)).unwrap()).await;
            let status = answer.status().as_u16();
            prop_assert!([200, 400, 404, 409, 413, 500].contains(&status), "{status}");
            if status != 200 {
                // A refused transaction also increments the index.
                let after = Tables { index: before.index, ..consul.snapshot() };
                prop_assert!(after == before, "a refused request changed something");
            }
            Ok(())
        })?;
    }
}
