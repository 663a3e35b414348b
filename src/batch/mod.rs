//! Queueing of PodGroups: admits groups and binds their members to nodes. A scheduler record is claimed like any other
//! record, so exactly one farm works on the queues that name it; after its failure another farm claims it.
//!
//! Keys read: `rcfarm/schedulers/<name>`, `rcfarm/queues/`, `rcfarm/priority_classes/`, `rcfarm/cells/config`,
//! `rcfarm/pod_groups/`, their statuses, `rcfarm/commands/`, `rcfarm/nodes/`, `labels/node/`, `rcfarm/allocations/`.
//! Keys written: `rcfarm/scheduler_status/<name>` in every transaction, `rcfarm/queue_status/<queue>`,
//! `rcfarm/pod_group_status/<ns>/<name>`, `rcfarm/allocations/<node>`, `audit_logs/<uuid v7>`. A queue's record,
//! `rcfarm/queues/<queue>`, is written in two cases: a command opens or closes it, and is deleted in the same
//! transaction; or `default` is missing.
//! Other writers: users write scheduler and queue records and commands; job controllers write PodGroup records; other
//! controllers write allocations, by CAS.
//! A crash between two transactions leaves each group before or after its change. A gang on more nodes than fit into
//! one transaction is written ahead: its placement with state `Reserving`, then the nodes' allocations in parts, then
//! `Bound`. No member starts before `Bound`. The next owner completes the reservation or releases it.
//!
//! Gangs are placed by room ([`capacity::place`](fn@crate::placement::capacity::place)), or where a scheduler over HTTP says
//! ([`Scheduler::place`](crate::placement::Scheduler::place)): the controller asks it between two passes, without the
//! farm's lock of plans, and the next pass checks and uses the answer.
//!
//! | module | contents |
//! |---|---|
//! | `controller` | start here: reads statuses and caches, plans, commits; commands and statuses of queues |
//! | [`plan`](mod@plan) | one pass: updates known groups, then admits waiting ones. Pure |
//! | `plan/cells.rs` | groups that ask for cells: placed by [`rcfarm_cells`], rebuilt from configuration and statuses. Pure |
//! | [`queues`] | the tree of queues: which are open, and their remaining capability. Pure |
//! | [`pod_group_machine`], [`queue_machine`] | phases of a group, states of a queue. Pure |
//! | [`answers`] | what a scheduler over HTTP has said about gangs. Pure |
//! | [`placing`] | members of a group as pods on nodes. Pure |
//! | [`ports`] | ports of members on nodes that give some. Pure |
//! | [`writes`], [`bounds`] | packs changes into transactions; how much one pass may change. Pure |
//! | `waits` | how long groups wait, for metrics. Pure |
//! | [`caches`] | watched prefixes |
//! | [`kind`] | the kind `scheduler`: prefixes, rights, subscriptions |
//! | `failpoints` | change input or output of the plan in tests |

pub mod answers;
pub mod bounds;
pub mod caches;
mod controller;
mod failpoints;
pub mod kind;
pub mod placing;
pub mod plan;
pub mod pod_group_machine;
pub mod ports;
pub mod queue_machine;
pub mod queues;
mod waits;
pub mod writes;
