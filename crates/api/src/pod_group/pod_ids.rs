//! Ids of the pods of a group's members. Pure.

use serde::{Deserialize, Serialize};

use crate::InvalidText;
use crate::content_hash;
use crate::ids::{Namespaced, PodId, check_segment};

/// Letters of the hash in a pod id. Without digits no hash is taken for an index; without vowels it is no word.
const LETTERS: &[u8; 20] = b"bcdfghjklmnpqrstvwxz";
/// Letters of a hash: 20^8 values, about 34 bits.
const HASH_LENGTH: usize = 8;
/// Longest pod id, in bytes ([`check_segment`]).
const LONGEST: usize = 200;

/// How the pods of a group are named. Decided when the group is made; kept as long as it exists.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum PodIdFormat {
    /// `<group>-<task>-<index>`. Groups of one name in two namespaces have the same ids, and so have group `a` with
    /// task `b-c` and group `a-b` with task `c`. Groups written by users, and groups of jobs made before `Hashed`.
    #[default]
    Plain,
    /// `<group>-<task>-<index>-<hash>`, with a hash of namespace, group and task: unique in the cluster.
    Hashed,
}

impl PodIdFormat {
    /// Both formats.
    pub const ALL: [PodIdFormat; 2] = [PodIdFormat::Plain, PodIdFormat::Hashed];

    /// Whether it is the format of groups that name none.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == PodIdFormat::Plain
    }

    /// Id of a member's pod: the same after each restart and on each node. `Hashed` has the limits of `Plain`: the name
    /// before the index is cut where the hash would make the id too long.
    ///
    /// # Errors
    /// [`InvalidText`] if group, task and index make no legal id.
    pub fn pod_id(self, group: &Namespaced, task: &str, index: u32) -> Result<PodId, InvalidText> {
        let name = format!("{}-{task}", group.name);
        let plain = format!("{name}-{index}");
        if self == PodIdFormat::Plain {
            return plain.parse();
        }
        check_segment(&plain)?;
        let tail = format!("-{index}-{}", hash(group, task));
        let name = name.get(..name.len().min(LONGEST - tail.len())).unwrap_or(&name);
        format!("{name}{tail}").parse()
    }

    /// Index of the member whose pod has this id; `None`: the id is not of this task.
    #[must_use]
    pub fn index_of(self, group: &Namespaced, task: &str, pod: &PodId) -> Option<u32> {
        let plain = match self {
            PodIdFormat::Plain => pod.as_str(),
            PodIdFormat::Hashed => without_hash(pod)?,
        };
        let index = plain.rsplit_once('-')?.1.parse().ok()?;
        (self.pod_id(group, task, index).ok()? == *pod).then_some(index)
    }
}

/// `<group>-<task>-<index>` of an id that ends with a hash; `None`: it does not.
#[must_use]
pub fn without_hash(pod: &PodId) -> Option<&str> {
    let (plain, hash) = pod.as_str().rsplit_once('-')?;
    let is_hash = hash.len() == HASH_LENGTH && hash.bytes().all(|byte| LETTERS.contains(&byte));
    is_hash.then_some(plain)
}

fn hash(group: &Namespaced, task: &str) -> String {
    // No name contains a slash, so no two triples have the same text.
    let mut rest = content_hash(format!("{group}/{task}").as_bytes());
    let mut letter = || {
        let letter = LETTERS[(rest % 20) as usize];
        rest /= 20;
        char::from(letter)
    };
    (0..HASH_LENGTH).map(|_| letter()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn id(format: PodIdFormat, group: &str, task: &str, index: u32) -> String {
        format.pod_id(&group.parse().unwrap(), task, index).unwrap().to_string()
    }

    #[test]
    fn ids_are_stable_between_versions() {
        assert_eq!(id(PodIdFormat::Plain, "team-a/train", "worker", 3), "train-worker-3");
        assert_eq!(id(PodIdFormat::Hashed, "team-a/train", "worker", 3), "train-worker-3-dvhtsvcr");
        assert_eq!(id(PodIdFormat::Hashed, "team-b/train", "worker", 3), "train-worker-3-mgcfnbxs");
    }

    #[test]
    fn splits_of_one_text_have_different_ids() {
        let ids = [("ns/a", "b-c"), ("ns/a-b", "c")].map(|(g, t)| id(PodIdFormat::Hashed, g, t, 0));
        assert_ne!(ids[0], ids[1]);
        assert_eq!(
            id(PodIdFormat::Plain, "ns/a", "b-c", 0),
            id(PodIdFormat::Plain, "ns/a-b", "c", 0)
        );
    }

    #[test]
    fn what_is_legal_without_the_hash_is_legal_with_it() {
        let longest = format!("ns/{}", "g".repeat(196));
        assert_eq!(id(PodIdFormat::Hashed, &longest, "w", 9).len(), LONGEST);
        let group: Namespaced = longest.parse().unwrap();
        for format in PodIdFormat::ALL {
            assert!(format.pod_id(&group, "w", 10).is_err(), "{format:?}");
        }
    }

    /// Few names, so that equal texts are frequent.
    fn any_member() -> impl Strategy<Value = (String, String, String, u32)> {
        let name = || "[ab](-[a0])?(-[bz0]{1,2})?".prop_map(|text| text);
        ("[nm]", name(), name(), 0..3u32)
    }

    proptest! {
        /// No two members of the cluster have the same id, and an id names its member.
        #[test]
        fn invariant_20_an_id_belongs_to_one_member(
            members in prop::collection::btree_set(any_member(), 2..40),
        ) {
            let mut seen = BTreeMap::new();
            for (namespace, name, task, index) in &members {
                let group: Namespaced = format!("{namespace}/{name}").parse().unwrap();
                let pod = PodIdFormat::Hashed.pod_id(&group, task, *index).unwrap();
                let plain = PodIdFormat::Plain.pod_id(&group, task, *index).unwrap();
                prop_assert_eq!(without_hash(&pod), Some(plain.as_str()));
                prop_assert_eq!(without_hash(&plain), None);
                for format in PodIdFormat::ALL {
                    let own = format.pod_id(&group, task, *index).unwrap();
                    prop_assert_eq!(format.index_of(&group, task, &own), Some(*index));
                }
                prop_assert_eq!(PodIdFormat::Plain.index_of(&group, task, &pod), None);
                let other = seen.insert(pod, (namespace, name, task, index));
                prop_assert_eq!(other, None);
            }
        }
    }
}
