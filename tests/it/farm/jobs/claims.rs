//! The claim table of `kubeflow.md` §1.12 from labels to pods: what becomes of a member whose labels are edited.

use super::*;
use rcfarm_api::ids::PodRef;

/// What happens to the labels of a member.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Edit {
    /// `None`: the label is removed.
    Label(&'static str, Option<&'static str>),
    Deleted,
}

const OTHER_NAME: Edit = Edit::Label("volcano.sh/job-name", Some("other"));
const OTHER_INDEX: Edit = Edit::Label("volcano.sh/task-index", Some("5"));
const NO_UID: Edit = Edit::Label("rcfarm/job_uid", None);
const OTHER_UID: Edit = Edit::Label("rcfarm/job_uid", Some("1"));

/// A job of two members, of which one was edited.
struct Edited {
    cluster: Arc<Cluster>,
    nodes: FakeNodes,
    farm: crate::harness::RunningFarm,
    place: PodRef,
}

impl Edited {
    async fn new(edit: Edit) -> Edited {
        let cluster = Arc::new(Cluster::new(4).await);
        let nodes = nodes(&cluster, |_, _| None);
        let farm = cluster.start("a");
        submit(&cluster, "default/j", json!({"tasks": [task("w", 2)]})).await;
        within(10 * SECOND, "both run", || async {
            status(&cluster, "default/j").await.members.running == 2
        })
        .await;
        let key = keys(&cluster, "labels/pod/").await.remove(0);
        let (pod, node) = (key.rsplit('/').next().unwrap(), key.split('/').nth(2).unwrap());
        let place = PodRef { node: node.parse().unwrap(), pod: pod.parse().unwrap() };
        let edited = Edited { cluster, nodes, farm, place };
        edited.edit(edit).await;
        edited
    }

    async fn edit(&self, edit: Edit) {
        let key = key::pod_labels(&self.place.node, &self.place.pod);
        match edit {
            Edit::Deleted => self.cluster.delete(key).await,
            Edit::Label(name, value) => {
                let mut labels = self.cluster.value(key.clone()).await;
                match value {
                    Some(value) => {
                        drop(labels.as_object_mut().unwrap().insert(name.into(), json!(value)))
                    }
                    None => drop(labels.as_object_mut().unwrap().remove(name)),
                }
                self.cluster.put(key, labels.to_string()).await;
            }
        }
    }

    async fn status(&self) -> JobStatus {
        status(&self.cluster, "default/j").await
    }

    async fn uid(&self) -> Option<String> {
        let key = key::pod_labels(&self.place.node, &self.place.pod);
        let labels = self.cluster.get(key).await?;
        let labels: Value = serde_json::from_str(&labels).unwrap();
        Some(labels.get("rcfarm/job_uid")?.as_str().unwrap().to_owned())
    }

    async fn is_intended(&self) -> bool {
        let key = key::intent(&self.place.node, &self.place.pod);
        self.cluster.get(key).await.is_some()
    }

    fn starts(&self) -> usize {
        self.nodes.starts().values().sum()
    }

    /// Deletes the job and waits until no key of it is left.
    async fn delete(&self, what: &str) {
        let spec = json!({"tasks": [task("w", 2)]});
        let deleted =
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec});
        self.cluster.put("rcfarm/jobs/default/j", deleted.to_string()).await;
        within(60 * SECOND, &format!("deletion ends: {what}"), || async {
            let mut left = Vec::new();
            for tree in ["rcfarm/jobs/", "rcfarm/job_status/", "rcfarm/pod_groups/"] {
                left.extend(keys(&self.cluster, tree).await);
            }
            left.is_empty()
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn relabelled_member_is_released_and_its_place_is_said_to_be_taken() {
    for edit in [OTHER_NAME, OTHER_INDEX] {
        let job = Edited::new(edit).await;
        within(20 * SECOND, "the uid is removed", || async { job.uid().await.is_none() }).await;
        within(20 * SECOND, "the status says so", || async {
            let status = job.status().await;
            status.state.reason == "PlaceTaken" && status.members.running == 1
        })
        .await;
        assert!(job.is_intended().await, "it goes on running: {edit:?}");
        assert_eq!(job.starts(), 2, "{edit:?}");
        // Removed, it is replaced.
        job.edit(Edit::Deleted).await;
        job.cluster.delete(key::intent(&job.place.node, &job.place.pod)).await;
        within(20 * SECOND, "both run again", || async {
            job.status().await.members.running == 2 && job.starts() == 3
        })
        .await;
        job.delete("replaced").await;
        job.farm.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn member_without_uid_is_adopted_again() {
    let job = Edited::new(NO_UID).await;
    within(20 * SECOND, "the uid is back", || async { job.uid().await.is_some() }).await;
    within(20 * SECOND, "both run", || async { job.status().await.members.running == 2 }).await;
    assert_eq!(job.starts(), 2, "no process was started or ended");
    job.delete("adopted").await;
    nothing_is_left(&job.cluster).await;
    job.farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn member_of_an_older_uid_is_replaced() {
    let job = Edited::new(OTHER_UID).await;
    within(20 * SECOND, "it is replaced", || async {
        job.status().await.members.running == 2 && job.starts() == 3
    })
    .await;
    job.delete("replaced").await;
    nothing_is_left(&job.cluster).await;
    job.farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_waits_for_a_taken_place_and_deletion_ends() {
    for edit in [OTHER_NAME, OTHER_INDEX, NO_UID, OTHER_UID, Edit::Deleted] {
        let job = Edited::new(edit).await;
        command(&job.cluster, 1, "default/j", "RestartJob").await;
        within(60 * SECOND, &format!("the restart, {edit:?}"), || async {
            let status = job.status().await;
            let waits = status.state.reason == "PlaceTaken";
            status.version == 1 && (waits || status.members.running == 2)
        })
        .await;
        job.delete(&format!("{edit:?}")).await;
        let released = matches!(edit, OTHER_NAME | OTHER_INDEX);
        within(20 * SECOND, "the pod", || async { job.is_intended().await == released }).await;
        job.farm.stop().await;

        let job = Edited::new(edit).await;
        job.delete(&format!("{edit:?} at once")).await;
        job.farm.stop().await;
    }
}
