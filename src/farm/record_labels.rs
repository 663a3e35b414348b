//! The labels that farms select records by: those in a record's own value, and over them those of its labels key.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kind::KindSpec;
use super::records::{RecordLabels, Records};
use rcfarm_api::ids::RecordId;
use rcfarm_api::labels::{Labels, Selector};
use rcfarm_store::{Index, Op};

/// Labels in the records' own values, with the ModifyIndex of the record that they were read from.
#[derive(Debug, Clone, Default)]
pub struct OwnLabels(BTreeMap<RecordId, (Index, Arc<Labels>)>);

impl OwnLabels {
    /// Reads the labels of records that are new or have changed.
    pub fn update(&mut self, records: &Records, labels_in: fn(&[u8]) -> Labels) {
        self.0.retain(|id, _| records.0.contains_key(id));
        for (id, record) in &records.0 {
            if self.0.get(id).is_none_or(|(index, _)| *index != record.index) {
                let labels = Arc::new(labels_in(&record.value));
                self.0.insert(id.clone(), (record.index, labels));
            }
        }
    }
}

/// Labels of all records of a kind, from both places.
#[derive(Debug, Clone, Copy)]
pub struct SelectedBy<'a> {
    /// Those of the labels keys.
    pub keys: &'a RecordLabels,
    /// Those of the records' values.
    pub own: &'a OwnLabels,
}

impl SelectedBy<'_> {
    /// Whether `selector` matches the labels of `id`. Labels that cannot be decoded match no selector but the one that
    /// matches everything.
    pub fn matches(&self, id: &RecordId, selector: &Selector) -> bool {
        if selector.is_everything() {
            return true;
        }
        let own = self.own.0.get(id).map(|(_, labels)| labels.as_ref());
        match (self.keys.0.get(id).map(|labels| &labels.value), own) {
            (Some(None), _) => false,
            (None, None) => selector.matches(&Labels::new()),
            (None, Some(labels)) => selector.matches(labels),
            (Some(Some(labels)), None) => selector.matches(labels),
            (Some(Some(over)), Some(own)) => {
                let mut labels = own.clone();
                labels.extend(over.iter().map(|(key, value)| (key.clone(), value.clone())));
                selector.matches(&labels)
            }
        }
    }

    /// Operations that Consul refuses unless the labels of `id` are still those.
    pub fn guards(&self, spec: &KindSpec, id: &RecordId) -> Vec<Op> {
        let own = self.own.0.get(id).and_then(|(index, _)| {
            Some(Op::CheckIndex { key: spec.records.key_of(id.as_str())?, index: *index })
        });
        self.keys.guard(&spec.labels, id).into_iter().chain(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::farm::records::Record;
    use rcfarm_api::labels::decode_labels;
    use rcfarm_store::VersionedIndex;
    use rcfarm_store::cache::CacheIndex;
    use rcfarm_store::{Entry, Prefix};

    fn id() -> RecordId {
        RecordId::from("default/j")
    }

    fn records(index: u64, labels: &str) -> Records {
        let value = labels.to_owned().into();
        let record = Record { index: Index(index), created: Index(1), value };
        VersionedIndex([(id(), Arc::new(record))].into())
    }

    fn keys(value: &str) -> RecordLabels {
        let prefix = Prefix::parse("labels/job/").unwrap();
        let entry = Entry {
            key: "labels/job/default/j".into(),
            value: value.to_owned().into(),
            flags: 0,
            create_index: Index(5),
            modify_index: Index(6),
            lock_index: 0,
            session: None,
        };
        RecordLabels::build(&RecordLabels::default(), &prefix, vec![entry])
    }

    #[test]
    fn labels_of_the_key_go_over_those_of_the_record() {
        let mut own = OwnLabels::default();
        let labels_in = |value: &[u8]| decode_labels(value).unwrap();
        own.update(&records(2, r#"{"team":"a","tier":"x"}"#), labels_in);
        let matches = |keys: &RecordLabels, own: &OwnLabels, selector: &str| {
            SelectedBy { keys, own }.matches(&id(), &selector.parse().unwrap())
        };
        let none = RecordLabels::default();
        assert!(matches(&none, &own, "team=a,tier=x") && !matches(&none, &own, "team=b"));
        assert!(matches(&keys(r#"{"team":"b"}"#), &own, "team=b,tier=x"));
        assert!(!matches(&keys("no labels"), &own, "team=a"), "they cannot be decoded");

        let spec = crate::job::kind::spec();
        let (with_key, no_key) = (keys("{}"), RecordLabels::default());
        assert_eq!(SelectedBy { keys: &with_key, own: &own }.guards(&spec, &id()).len(), 2);
        let guards = SelectedBy { keys: &no_key, own: &own }.guards(&spec, &id());
        assert!(
            matches!(&guards[..], [Op::CheckIndex { key, index: Index(2) }]
                if key.as_str() == "rcfarm/jobs/default/j"),
            "{guards:?}"
        );

        own.update(&records(3, r#"{"team":"b"}"#), labels_in);
        assert!(matches(&none, &own, "team=b") && !matches(&none, &own, "tier"));
        own.update(&VersionedIndex::default(), labels_in);
        assert!(!matches(&none, &own, "team"));
    }
}
