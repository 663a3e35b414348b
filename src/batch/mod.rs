//! The order of the queues: who is admitted next, and where it goes. One scheduler record is claimed like any other
//! record, so exactly one farm orders the queues that name it; when it dies, another takes over.
//!
//! Keys read: `rcfarm/schedulers/<name>`, `rcfarm/queues/`, `rcfarm/pod_groups/`, their statuses, and what nodes have
//! and have allocated.
//! Keys written: `rcfarm/scheduler_status/<name>` (in every transaction: the chain), `rcfarm/queue_status/<queue>`,
//! `rcfarm/pod_group_status/<ns>/<name>`, `rcfarm/allocations/<node>`, `audit_logs/<uuid v7>`;
//! `rcfarm/queues/default` when it is missing.
//! Who else writes them: people the records; jobs' controllers their groups' records; other controllers the
//! allocations, by CAS.
//! A crash between two writes leaves: groups each before or after its change, whole. A gang that touches more nodes
//! than fit into a transaction is written ahead: first its whole place into its status (`Reserving`), then the
//! allocations of the nodes, in parts, then `Bound`. Nothing of it starts before `Bound`, and whoever owns the scheduler
//! next goes on where the last one stopped, forward or back.
//!
//! | part | is |
//! |---|---|
//! | `spec`, `status` | the scheduler's own record and status |
//! | [`queues`] | which queues take work, and what each has left |
//! | [`plan`](mod@plan), [`reconcile_existing`] | one pass: what has become of the groups, and who goes next |
//! | [`placing`] | a group's members as pods on nodes |
//! | [`writes`] | changes packed into transactions |
//! | [`caches`] | the trees that it watches |

pub mod caches;
mod controller;
pub mod kind;
pub mod placing;
pub mod plan;
#[cfg(test)]
mod plan_tests;
pub mod pod_group_machine;
#[cfg(test)]
mod property_tests;
pub mod queue_machine;
pub mod queues;
pub mod reconcile_existing;
#[cfg(test)]
mod waiting_tests;
pub mod writes;
