//! Capacity of nodes, allocations, and placement by capacity. Pure.
//!
//! | part | is |
//! |---|---|
//! | `record` | `rcfarm/allocations/<node>`: what is allocated on a node, and to whom |
//! | [`node_capacity`] | one node: what is free, why something does not fit, allocations and releases |
//! | `named_ports` | ports of manifests: the numbers that a pod gets |
//! | [`ledger`] | changes of several nodes that go into one transaction |
//! | [`gang`], [`mod@place`] | pods that are placed together or not at all |
//! | [`index`] | nodes by what is free on them, kept between placements |
//! | [`orphaned`] | allocations that no pod has any more |
//!
//! Whoever places pods adds [`Booking::op`] of each node to the transaction that writes the pods. The operation is a
//! CAS on the node's record, so any number of farms may place at once and no capacity is allocated twice. After a
//! refusal, read again: another farm was faster.
//!
//! Placing a gang, from the question to the transaction:
//!
//! ```
//! use rcfarm::placement::NodeLabels;
//! use rcfarm::placement::capacity::{Decision, Fleet, Gang, Ledger, NodeCapacity, place};
//! use rcfarm_api::allocation::AllocationOwner;
//! use rcfarm_api::pod_group::spec::TaskSpec;
//! use rcfarm_api::scheduler::Packing;
//! # let mut fleet = Fleet::default();
//! # let labels = [("pool".to_owned(), "gpu".to_owned())].into();
//! # fleet.labels = std::sync::Arc::new(NodeLabels { nodes: [("n1".parse().unwrap(), labels)].into() });
//! # let capacity = "cpu=8,memory=64Gi,gpu=8".parse().unwrap();
//! # fleet.node_capacities.insert("n1".parse().unwrap(), NodeCapacity { capacity, ..NodeCapacity::default() });
//! let gang = Gang {
//!     name: "default/mnist".to_owned(),
//!     packing: Packing::BinPack,
//!     tasks: vec![TaskSpec {
//!         name: "worker".to_owned(),
//!         replicas: 4,
//!         resources: "cpu=1,memory=4Gi,gpu=2".parse().unwrap(),
//!         node_selector: "pool=gpu".to_owned(),
//!         ports: 0,
//!     }],
//! };
//! // The fleet comes from the farm's cluster view.
//! let Decision::Bind(placement) = place(&gang, &fleet) else { panic!("it waits") };
//! assert_eq!(placement.tasks["worker"].len(), 4);
//!
//! // The allocations, in the same transaction as the pods. Devices get their numbers here.
//! let owner: AllocationOwner = "job/default/mnist/5f0c".parse().unwrap();
//! let mut ledger = Ledger::on(&fleet.node_capacities);
//! for (task, n, node) in placement.pods(&gang) {
//!     let pod = format!("mnist-{}-{n}", task.name).parse().unwrap();
//!     ledger.allocate(node, &pod, &owner, &task.resources).expect("it was just seen to fit");
//! }
//! let operations: Vec<_> = ledger.bookings().iter().map(|booking| booking.op()).collect();
//! assert_eq!(operations.len(), 1, "one per node, however many pods it gets");
//! ```

pub mod gang;
pub mod index;
pub mod ledger;
mod named_ports;
pub mod node_capacity;
pub mod orphaned;
pub mod place;

pub use gang::{Decision, Fleet, Gang, GangPlacement, TaskWait, WaitReason};
pub use index::{FleetIndex, IndexVersion};
pub use ledger::{Booking, Ledger, NodeCapacities};
pub use node_capacity::{Insufficient, NodeCapacity, PodResources, Short};
pub use orphaned::{OrphanedAllocation, freeing, orphaned_allocations};
pub use place::{place, ranked};

#[cfg(test)]
mod tests;
