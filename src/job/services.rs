//! Services of a job's members: Kubeflow's service half (`kubeflow.md` §1.10). Pure.
//!
//! | Kubeflow | here |
//! |---|---|
//! | `GetServicesForJob` | [`services_of_job`]: the claim table of [`super::adoption`] |
//! | `FilterServicesForReplicaType` | [`of_type`] |
//! | `GetServiceSlices` | [`ServiceSlices::of`] |
//! | `ReconcileServices` | [`reconcile`] |
//! | `CreateNewService` | `new_service` |
//! | `cleanPodPolicy` for services | [`is_cleaned`] |
//!
//! A service is an entry of the manifest of its member's pod, which the node's agent registers while the pod runs. So a
//! service has the owner, the labels and the end of its pod, and each pod is made with what [`reconcile`] creates for it.
//! A registration that somebody removes or changes is put right by the agent (D13).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::adoption::{AdoptionVerdict, Reference, verdict};
use super::frameworks::{self, ClusterPeer};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::spec::{CleanPods, JobSpec, JobTask, Slot};
use rcfarm_api::job::status::PodPhase;
use rcfarm_api::manifest::{ServicePort, ServiceStanza, check_service_name};

/// A named port of the default container stands in the metadata under this and its name.
const PORT_META: &str = "port-";
/// Ports of a member that its service names.
const MOST_PORTS: usize = 16;
/// Longer names of ports are left out. Kubernetes allows 15 characters.
const LONGEST_PORT: usize = 63;

/// A service that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundService {
    /// Its name.
    pub name: String,
    /// Job, type and index in its labels. Somebody may have written anything there.
    pub job: Namespaced,
    pub task: String,
    pub index: String,
    /// Its owner.
    pub owner: Reference,
    /// It is being deleted.
    pub is_deleting: bool,
}

/// Services of a job after the claim.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClaimedServices<'f> {
    /// Those of the job, with adopted ones.
    pub own: Vec<&'f FoundService>,
    /// Those of `own` that get the job's uid.
    pub adopt: Vec<&'f FoundService>,
    /// They lose the job's uid.
    pub release: Vec<&'f FoundService>,
}

/// Claims services as pods are claimed. Another owner's are left alone.
#[must_use]
pub fn services_of_job<'f>(
    id: &Namespaced,
    owner_deleting: bool,
    found: &'f [FoundService],
) -> ClaimedServices<'f> {
    let mut claimed = ClaimedServices::default();
    for service in found {
        match verdict(service.owner, service.job == *id, owner_deleting, service.is_deleting) {
            AdoptionVerdict::Member => claimed.own.push(service),
            AdoptionVerdict::Adopt => {
                claimed.own.push(service);
                claimed.adopt.push(service);
            }
            AdoptionVerdict::Release => claimed.release.push(service),
            AdoptionVerdict::Ignore => {}
        }
    }
    claimed
}

/// The services of a replica type, regardless of its case.
#[must_use]
pub fn of_type<'f>(services: &[&'f FoundService], task: &str) -> Vec<&'f FoundService> {
    let own = services.iter().filter(|service| service.task.eq_ignore_ascii_case(task));
    own.copied().collect()
}

/// What becomes of the services of a replica type.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServiceSlices<'f> {
    /// Indexes without a service.
    pub create: BTreeSet<u32>,
    /// One service per index.
    pub keep: BTreeMap<u32, &'f FoundService>,
    /// Duplicates, and those whose index is out of range or none.
    pub remove: Vec<&'f FoundService>,
}

impl<'f> ServiceSlices<'f> {
    /// Created is what `wanted` has and nobody is; removed is everything else, each once (D1, D2, D3). Of duplicates the
    /// first by name stays.
    #[must_use]
    pub fn of(services: &[&'f FoundService], wanted: Range<u32>) -> ServiceSlices<'f> {
        let mut slices = ServiceSlices::default();
        let mut sorted = services.to_vec();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        for service in sorted {
            let index = service.index.parse().ok().filter(|index| wanted.contains(index));
            match index {
                Some(index) if !slices.keep.contains_key(&index) => {
                    slices.keep.insert(index, service);
                }
                _ => slices.remove.push(service),
            }
        }
        slices.create = wanted.filter(|index| !slices.keep.contains_key(index)).collect();
        slices
    }
}

/// Input of [`reconcile`].
pub struct ServicesObserved<'a> {
    pub id: &'a Namespaced,
    pub job: &'a JobSpec,
    pub task: &'a JobTask,
    /// Indexes whose members have a pod, or get one now.
    pub wanted: Range<u32>,
    /// The services of [`services_of_job`].
    pub own: &'a [&'a FoundService],
    /// Address and port of a member.
    pub peer: &'a dyn Fn(&Slot) -> Option<ClusterPeer>,
}

/// Change of the services of a replica type.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServicePlan<'f> {
    /// New services by index. A member whose name is none of a service has none.
    pub create: BTreeMap<u32, ServiceStanza>,
    pub remove: Vec<&'f FoundService>,
}

/// Makes a replica type's services those of its members. A job without services, or one that is being deleted, creates
/// none; what is there is removed.
#[must_use]
pub fn reconcile<'a>(seen: &ServicesObserved<'a>) -> ServicePlan<'a> {
    let own = of_type(seen.own, &seen.task.name);
    let has_services = seen.job.services && !seen.job.deleting;
    let below = seen.wanted.end.min(seen.task.replicas);
    let wanted = if has_services { seen.wanted.start.min(below)..below } else { 0..0 };
    let ServiceSlices { create, remove, .. } = ServiceSlices::of(&own, wanted);
    let create = create.into_iter().filter_map(|index| Some((index, new_service(seen, index)?)));
    ServicePlan { create: create.collect(), remove }
}

/// Name of a member's service: that of its pod, in lower case.
#[must_use]
pub fn name_of(id: &Namespaced, slot: &Slot) -> String {
    format!("{}-{slot}", id.name).to_lowercase()
}

/// The service of a member. Its port is the one that the member listens at by its framework; without one, the first of
/// its default container. A container without ports has a service without a port, as in Kubeflow. `None`: the name is
/// none of a service: it is too long.
fn new_service(seen: &ServicesObserved<'_>, index: u32) -> Option<ServiceStanza> {
    let slot = Slot::new(&seen.task.name, index);
    let name = name_of(seen.id, &slot);
    check_service_name(&name).ok()?;
    let listens = frameworks::of(seen.job.framework).listens(seen.job, seen.task);
    let peer = (seen.peer)(&slot);
    // Where members share an address, a port of the framework is moved.
    let moved = |port: u16| match (&peer, listens == Some(port)) {
        (Some(peer), true) => peer.port(port),
        _ => port,
    };
    let default = frameworks::counting_container(seen.job, seen.task);
    let containers = &seen.task.template.containers;
    let container = containers.iter().find(|one| Some(one.name.as_str()) == default);
    let ports = container.map(|container| container.ports.as_slice()).unwrap_or_default();
    let port = listens.or_else(|| ports.first().map(|(_, port)| *port)).map(moved);
    let named = ports.iter().filter_map(|(name, port)| Some((name.as_deref()?, moved(*port))));
    let named = named.filter(|(name, _)| is_key(name));
    let named = named.map(|(name, port)| (format!("{PORT_META}{name}"), port.to_string()));
    let Namespaced { namespace, name: job } = seen.id;
    Some(ServiceStanza {
        name,
        port: port.map(ServicePort::Number),
        tags: vec![namespace.to_string(), job.to_string(), slot.task, index.to_string()],
        meta: named.take(MOST_PORTS).collect(),
    })
}

/// Whether a port's name may stand in the key of a service's metadata.
fn is_key(name: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=LONGEST_PORT).contains(&name.len()) && name.chars().all(is_legal)
}

/// Whether a job's end removes the service of a member in this phase (`kubeflow.md` §1.5). A service is cleaned because
/// the job owns it, not because a pod of its name is there (D8).
#[must_use]
pub fn is_cleaned(policy: CleanPods, member: PodPhase) -> bool {
    match policy {
        CleanPods::None => false,
        CleanPods::Running => !member.has_ended(),
        CleanPods::All => true,
    }
}

#[cfg(test)]
mod tests;
