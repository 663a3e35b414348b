//! Documents of jobs, all kinds that `apply` takes: by people, as Volcano and Kubeflow write them, by hand in the store.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcfarm::job::document;
use rcfarm::job::frameworks::{self, Cluster, ClusterPeer};
use rcfarm_api::job::spec::Slot;

fuzz_target!(|text: &str| {
    let Ok(document) = document::from_yaml(text) else { return };
    let Ok(id) = document::name(&document) else { return };
    let read = match document::read(&id, &document) {
        Ok(read) => read,
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a word");
            assert!(problems.iter().all(|p| !p.path.is_empty() && !p.problem.is_empty()));
            return;
        }
    };
    let text = document.to_string();
    let (stored, again) = document::decode(&id, text.as_bytes()).expect("its own text");
    // A fraction may differ in its last digit when JSON is read back.
    let is_fraction = |pair: &[u8]| pair[0].is_ascii_digit() && matches!(pair[1], b'.' | b'e');
    if !text.as_bytes().windows(2).any(is_fraction) {
        assert_eq!(again, read, "what is stored means what was applied");
    }
    let _ = (document::immutable_hash(&document), document::immutable_hash(&stored));
    let job = &read.spec;
    let peer = |slot: &Slot| ClusterPeer { host: slot.to_string(), offset: 1, assigned: None };
    let cluster = Cluster { id: &id, job, peer: &peer };
    for task in job.tasks.iter().filter(|_| job.replicas() <= 100) {
        for slot in (0..task.replicas).map(|index| Slot::new(&task.name, index)) {
            slot.pod_id(&id, rcfarm_api::pod_group::pod_ids::PodIdFormat::Hashed)
                .expect("a pod's name");
            frameworks::of(job.framework).environment(&cluster, &slot);
        }
    }
});
