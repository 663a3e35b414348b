//! The data model of Consul's KV tree: ids, keys, and the records below them. No I/O, no clock, no runtime.
//!
//! | module | is |
//! |---|---|
//! | [`key`] | the key grammar and every path of the layout: the only file with path strings |
//! | [`ids`] | names and identifiers |
//! | [`labels`], [`manifest`] | label sets and selectors; pod manifests |
//! | [`rc`], [`job`], [`cron`], [`flow`], [`queue`], [`pod_group`], [`priority_class`], [`scheduler`], [`cells`], [`command`], [`node`], [`allocation`] | records by kind |
//! | [`resource_list`] | amounts of processor, memory and devices |
//! | [`audit`] | audit records, and the fold of a log to the state that it describes |
#![forbid(unsafe_code)]

pub mod allocation;
pub mod audit;
mod backoff;
pub mod budget;
pub mod carried;
pub mod cells;
pub mod command;
pub mod cron;
mod field_error;
pub mod flow;
mod hash;
pub mod ids;
mod index;
pub mod job;
pub mod key;
pub mod labels;
pub mod manifest;
pub mod node;
pub mod pod_group;
pub mod priority_class;
pub mod queue;
pub mod rc;
pub mod resource_list;
pub mod scheduler;
mod slots;
mod stored;
mod text;

pub use backoff::backoff;
pub use field_error::{FieldError, InvalidText};
pub use hash::{Fnv1a, content_hash};
pub use index::Index;
pub use jiff::Timestamp;
pub use resource_list::ResourceList;
pub use slots::Slots;
pub use stored::{Stored, from_object};

/// Version of the program. After a `+` comes the build, if `RCFARM_BUILD` named one when it was compiled, such as the
/// commit: records of the audit log then say which code decided.
pub const VERSION: &str = env!("RCFARM_VERSION");
