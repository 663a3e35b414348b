//! Grammar of keys against a second implementation, and paths built from names.

use proptest::prelude::*;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key::{self, node_and_pod, split_lock};
use rcfarm_store::{Key, Prefix};
use uuid::Uuid;

/// `[A-Za-z0-9_-][A-Za-z0-9_.,-]*`, at most 200 bytes, joined by single slashes.
fn is_legal(text: &str) -> bool {
    let alphabet = |first: bool| {
        move |c: char| c.is_ascii_alphanumeric() || "_-".contains(c) || (!first && ".,".contains(c))
    };
    text.split('/').all(|segment| {
        segment.len() <= 200
            && segment.chars().next().is_some_and(alphabet(true))
            && segment.chars().all(alphabet(false))
    })
}

fn segment() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[A-Za-z0-9_-][A-Za-z0-9_.,-]{0,12}", 1 => "[a-z]{199,200}"]
}

/// Keys, and strings that are nearly keys.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::collection::vec(segment(), 1..5).prop_map(|segments| segments.join("/")),
        "[a-b/.,_-]{0,10}",
        "[a-c]{0,3}(/|//|\\.|,| |%|ü|\0|:)[a-c]{0,3}",
        "[a-z]{199,202}",
        any::<String>(),
    ]
}

proptest! {
    #[test]
    fn a_key_is_what_the_grammar_says(text in text()) {
        let key = Key::parse(&text);
        prop_assert_eq!(key.is_ok(), is_legal(&text), "{:?}", key);
        match key {
            Ok(key) => prop_assert_eq!(key.as_str(), text),
            Err(bad) => prop_assert!(!bad.to_string().is_empty() && text.contains(&bad.text)),
        }
    }

    #[test]
    fn a_prefix_is_a_key_and_a_slash_or_nothing(text in text()) {
        let trimmed = text.strip_suffix('/').unwrap_or(&text);
        let prefix = Prefix::parse(&text);
        prop_assert_eq!(prefix.is_ok(), trimmed.is_empty() || is_legal(trimmed));
        if let Ok(prefix) = prefix {
            prop_assert_eq!(Prefix::parse(prefix.as_str()).unwrap(), prefix.clone());
            let whole = if trimmed.is_empty() { String::new() } else { format!("{trimmed}/") };
            prop_assert_eq!(prefix.as_str(), whole);
        }
    }

    #[test]
    fn what_is_put_below_a_prefix_is_found_below_it(root in text(), tail in text()) {
        let (Ok(root), Ok(key)) = (Prefix::parse(&root), Key::parse(&tail)) else { return Ok(()) };
        let below = root.join(&key);
        prop_assert_eq!(root.tail(below.as_str()), Some(tail.as_str()));
        prop_assert_eq!(root.key_of(&tail), Some(below.clone()));
        prop_assert!(Key::parse(below.as_str()).is_ok());
    }

    #[test]
    fn a_pods_key_gives_its_node_and_its_id_back(node in segment(), pod in segment()) {
        let (node, pod): (NodeName, PodId) = (node.parse().unwrap(), pod.parse().unwrap());
        for (prefix, key) in [
            (key::intents(), key::intent(&node, &pod)),
            (key::realities(), key::reality(&node, &pod)),
            (key::labels(key::LabelKind::Pod), key::pod_labels(&node, &pod)),
        ] {
            prop_assert!(Key::parse(key.as_str()).is_ok());
            prop_assert_eq!(node_and_pod(&prefix, key.as_str()), Some((node.clone(), pod.clone())));
        }
    }

    #[test]
    fn only_a_pods_key_is_one(text in text()) {
        let listed = format!("intent/{text}");
        match node_and_pod(&key::intents(), &listed) {
            Some((node, pod)) => prop_assert_eq!(key::intent(&node, &pod), Key::parse(&listed).unwrap()),
            None => prop_assert!(!is_legal(&text) || text.matches('/').count() != 1),
        }
    }

    #[test]
    fn a_lock_says_of_which_record_and_which_lock(id: u128, text in text()) {
        let id = RcId(Uuid::from_u128(id));
        let tail = |key: &Key| key::rc_locks().tail(key.as_str()).unwrap().to_owned();
        let name = id.to_string();
        for (key, other) in [
            (key::rc_lock(id), None),
            (key::rc_mutation_lock(id), Some("update")),
            (key::rc_transfer_lock(id), Some("node_transfer")),
        ] {
            let tail = tail(&key);
            prop_assert_eq!(split_lock(&key::rc_locks(), &tail), (name.as_str(), other));
        }
        prop_assert_eq!(name.parse::<RcId>().unwrap(), id);
        let (record, other) = split_lock(&key::rc_locks(), &text);
        let joined = other.map_or(record.to_owned(), |other| format!("{record}/{other}"));
        prop_assert_eq!(joined, text);
    }
}
