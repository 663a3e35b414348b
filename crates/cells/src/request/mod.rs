//! What a group asks for: the two schemas of HiveD's annotation, and the form in which the algorithm reads them.

#[cfg(test)]
mod tests;
mod v1;
mod v2;

pub use self::v1::{AffinityGroupMemberSpec, AffinityGroupSpec, PodSchedulingSpec};
pub use self::v2::{
    PodGroupMemberCellSpec, PodGroupMemberSpec, PodGroupSchedulingSpec, PodRootGroupSpec,
};
pub use rcfarm_api::cells::{GroupRequest, Members, NestedGroup};

use crate::model::{
    CellModel, CellPriority, MAX_GUARANTEED_PRIORITY, MIN_GUARANTEED_PRIORITY,
    OPPORTUNISTIC_PRIORITY,
};

/// The annotation that carries the request of a pod.
pub const ANNOTATION_POD_SCHEDULING_SPEC: &str = "hivedscheduler.microsoft.com/pod-scheduling-spec";

/// Most pods of a group, and most devices of a pod.
const MAX_COUNT: i64 = 100_000;

/// A request that is refused, with the reference's code and text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadRequest {
    /// What is wrong.
    pub message: String,
}

impl BadRequest {
    /// HTTP status of all of them.
    pub const CODE: u16 = 400;

    pub(crate) fn new(message: impl Into<String>) -> BadRequest {
        BadRequest { message: message.into() }
    }

    fn annotation(message: impl std::fmt::Display) -> BadRequest {
        BadRequest::new(format!("Pod annotation {ANNOTATION_POD_SCHEDULING_SPEC}: {message}"))
    }
}

/// A pod's request: its group's, and which of its members the pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRequest {
    /// The group's.
    pub group: GroupRequest,
    /// Index into [`GroupRequest::members`].
    pub member: usize,
}

impl PodRequest {
    /// Reads the annotation of the pod `namespace/name`, V1 or V2.
    ///
    /// # Errors
    ///
    /// What HiveD answers with 400, with its texts.
    pub fn parse(annotation: &str, namespace: &str, name: &str) -> Result<PodRequest, BadRequest> {
        if annotation.trim().is_empty() {
            return Err(BadRequest::annotation("Annotation does not exist or is empty"));
        }
        let text = v1::with_new_names(annotation);
        let version: v2::VersionOnly = read(&text)?;
        match version.version.as_str() {
            "" | "v1" => read::<PodSchedulingSpec>(&text)?.request(namespace, name),
            "v2" => read::<PodGroupSchedulingSpec>(&text)?.request(namespace, name),
            other => Err(BadRequest::annotation(format!("Unknown Version {other}"))),
        }
    }
}

fn read<T: serde::de::DeserializeOwned + Default>(text: &str) -> Result<T, BadRequest> {
    crate::yaml::read(text).map_err(|error| {
        BadRequest::new(format!("Failed to unmarshal YAML: {}: {}", error.path, error.problem))
    })
}

/// Checks against a configuration.
pub trait CheckedRequest {
    /// Checks the request against the configuration.
    ///
    /// # Errors
    ///
    /// What HiveD answers with 400 when a group is new, with its texts; `pod` names the pod.
    fn check(&self, model: &CellModel, pod: &str) -> Result<(), BadRequest>;
}

impl CheckedRequest for GroupRequest {
    fn check(&self, model: &CellModel, pod: &str) -> Result<(), BadRequest> {
        let refuse = |message: String| Err(BadRequest::new(format!("[{pod}]: {message}")));
        let vc_name = &self.key.virtual_cluster;
        let Some(vc) = model.vcs.get(vc_name) else {
            return refuse(format!("VC {vc_name} does not exists!"));
        };
        if let Some(id) = &self.pinned_cell_id {
            let Some(&(physical, _)) = model.pinned.get(id).filter(|_| vc.pinned.contains_key(id))
            else {
                return refuse(format!("VC {vc_name} does not have pinned cell {id}"));
            };
            if self.priority == OPPORTUNISTIC_PRIORITY {
                return refuse(format!("opportunistic pod not supported to use pinned cell {id}"));
            }
            let chain = model.chain_of(&model.physical, physical);
            return match types(self).find(|cell_type| chain.level_of(cell_type).is_none()) {
                Some(cell_type) => refuse(format!(
                    "Pod requesting leaf cell type {cell_type} which pinned cell {id} does not have"
                )),
                None => Ok(()),
            };
        }
        // The type that most chains lack says best what is wrong.
        let with = |cell_type: &&str| {
            let has = |chain: &u16| has_type(self, model, *chain, cell_type);
            model.search_order.iter().copied().filter(has).count()
        };
        let Some(cell_type) = types(self).min_by_key(with) else { return Ok(()) };
        let chains: Vec<u16> = chains(self, model).collect();
        if chains.is_empty() && with(&cell_type) > 0 {
            let types: std::collections::BTreeSet<&str> = types(self).collect();
            let types: Vec<&str> = types.into_iter().collect();
            return refuse(format!(
                "Pods requesting cell types that no chain has together: {}",
                types.join(", ")
            ));
        }
        if chains.is_empty() {
            return refuse(format!(
                "Pod requesting leaf cell type {cell_type} which the whole cluster does not have"
            ));
        }
        let has = |chain: &u16| vc.preassigned.contains_key(chain);
        if self.priority >= MIN_GUARANTEED_PRIORITY && !chains.iter().any(has) {
            return refuse(format!(
                "Pod requesting leaf cell type {cell_type} which VC {vc_name} does not have"
            ));
        }
        Ok(())
    }
}

/// Types of cells that the group's chain must have: the group's, and those of its members.
fn types(request: &GroupRequest) -> impl Iterator<Item = &str> {
    let of_members = request.members.iter().filter_map(|member| member.cell_type.as_deref());
    request.cell_type.as_deref().into_iter().chain(of_members)
}

/// Whether a chain has cells of a type: up to the node level in V2, as devices in V1.
fn has_type(request: &GroupRequest, model: &CellModel, chain: u16, wanted: &str) -> bool {
    let chain = model.chain(chain);
    match request.nested {
        Some(_) => chain.level_of(wanted).is_some_and(|level| level <= chain.node_level),
        None => chain.leaf_type() == wanted,
    }
}

/// Chains that have the wanted types, in the order in which they are tried.
pub(crate) fn chains<'a>(
    request: &'a GroupRequest,
    model: &'a CellModel,
) -> impl Iterator<Item = u16> + 'a {
    model
        .search_order
        .iter()
        .copied()
        .filter(move |&chain| types(request).all(|wanted| has_type(request, model, chain, wanted)))
}

/// The rules that both versions share. Errors have the reference's texts.
fn check_priority(virtual_cluster: &str, priority: i64) -> Result<CellPriority, BadRequest> {
    if virtual_cluster.is_empty() {
        return Err(BadRequest::annotation("VirtualCluster is empty"));
    }
    if priority < i64::from(OPPORTUNISTIC_PRIORITY) {
        let least = OPPORTUNISTIC_PRIORITY;
        return Err(BadRequest::annotation(format!("Priority is less than {least}")));
    }
    if priority > i64::from(MAX_GUARANTEED_PRIORITY) {
        let most = MAX_GUARANTEED_PRIORITY;
        return Err(BadRequest::annotation(format!("Priority is greater than {most}")));
    }
    Ok(priority as CellPriority)
}

/// A positive number that is not absurd.
fn count(number: i64, what: &str) -> Result<u32, BadRequest> {
    if number > MAX_COUNT {
        return Err(BadRequest::annotation(format!("{what} is greater than {MAX_COUNT}")));
    }
    Ok(number.max(0) as u32)
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
