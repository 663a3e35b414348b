//! Stored form of a placement's members: by task a list of nodes, `null` for a member without one.
//!
//! A list of more than [`PLAIN_BYTES`] is stored as runs: `{"node": "n1", "count": 40}` stands for 40 neighbours on
//! `n1`, and one without `node` for members without a node. Both forms are read.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::spec::MOST_MEMBERS;
use crate::ids::NodeName;

/// Up to this size a placement is stored without runs, as every version reads it.
pub(super) const PLAIN_BYTES: usize = 128 * 1024;

pub(super) type MemberNodes = BTreeMap<String, Vec<Option<NodeName>>>;

/// Upper bound of the size without runs.
pub(super) fn plain_bytes(members: &MemberNodes) -> usize {
    let size = |node: &Option<NodeName>| node.as_ref().map_or(5, |node| node.as_str().len() + 3);
    members.iter().map(|(task, nodes)| task.len() + 8 + nodes.iter().map(size).sum::<usize>()).sum()
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Node(NodeName),
    Run {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
        count: u32,
    },
}

pub(super) fn serialize<S: Serializer>(members: &MemberNodes, to: S) -> Result<S::Ok, S::Error> {
    if plain_bytes(members) <= PLAIN_BYTES {
        return members.serialize(to);
    }
    let runs = members.iter().map(|(task, nodes)| {
        let runs = nodes.chunk_by(|one, next| one == next).map(|run| match (run, &run[0]) {
            ([Some(node)], _) => Some(Entry::Node(node.clone())),
            ([None], _) => None,
            (run, node) => {
                let count = u32::try_from(run.len()).unwrap_or(u32::MAX);
                Some(Entry::Run { node: node.clone(), count })
            }
        });
        (task, runs.collect())
    });
    runs.collect::<BTreeMap<&String, Vec<Option<Entry>>>>().serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MemberNodes, D::Error> {
    let stored = BTreeMap::<String, Vec<Option<Entry>>>::deserialize(from)?;
    let (mut members, mut all) = (MemberNodes::new(), 0);
    for (task, entries) in stored {
        let mut nodes = Vec::with_capacity(entries.len());
        for entry in entries {
            let (node, count) = match entry {
                None => (None, 1),
                Some(Entry::Node(node)) => (Some(node), 1),
                Some(Entry::Run { node, count }) => (node, count),
            };
            all += u64::from(count);
            // A count written by hand must not exhaust the memory.
            if all > MOST_MEMBERS {
                return Err(de::Error::custom(format!("more than {MOST_MEMBERS} members")));
            }
            nodes.extend(std::iter::repeat_n(node, count as usize));
        }
        members.insert(task, nodes);
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Stored;
    use crate::pod_group::status::{GroupPlacement, PlacementState, PodGroupStatus};

    fn status(nodes: impl Iterator<Item = usize>) -> PodGroupStatus {
        let name = |n: usize| (n > 0).then(|| format!("node-{n:010}").parse().unwrap());
        let members = [("worker".to_owned(), nodes.map(name).collect())].into();
        let placement = GroupPlacement {
            state: PlacementState::Bound,
            members,
            asks: [].into(),
            then: None,
            pod_ids: Default::default(),
            ports: [].into(),
            ended: [].into(),
            cells: None,
        };
        PodGroupStatus { placement: Some(placement), ..PodGroupStatus::default() }
    }

    #[test]
    fn small_placement_is_stored_as_before() {
        let text = status([1, 1, 0, 2].into_iter()).encode();
        let members = br#"{"worker":["node-0000000001","node-0000000001",null,"node-0000000002"]}"#;
        assert!(text.windows(members.len()).any(|part| part == members), "{text:?}");
    }

    #[test]
    fn large_placement_is_stored_as_runs_and_read_back() {
        let packed = status((0..60_000).map(|n| n / 100));
        assert!(packed.encode().len() < 40_000, "{}", packed.encode().len());
        let single = status((0..9_000).map(|n| n % 3));
        for status in [packed, single] {
            assert_eq!(PodGroupStatus::decode(&status.encode()).unwrap(), status);
        }
    }

    #[test]
    fn runs_of_more_members_than_a_group_may_have_are_refused() {
        let run = json!({"node": "n1", "count": 60_000});
        let text = json!({"placement": {"state": "Bound", "members": {"w": [run, run]}}});
        let bad = PodGroupStatus::decode(text.to_string().as_bytes()).unwrap_err();
        assert!(bad.problem.contains("members"), "{bad}");
    }
}
