//! Labels and selectors, as square/p2's vendored Kubernetes labels have them (`p2.md` §1.11). Pure.
//!
//! Nodes, pods and controllers have labels; a [`Selector`] matches them. A selector that cannot be parsed is an error.
//! p2 drops an invalid requirement in one of its code paths, which makes the selector match more.

mod encoding;
mod names;
mod parse;
mod selector;

use std::collections::BTreeMap;

pub use encoding::{LabelError, decode_labels, encode_labels};
pub use names::{check_label_key, check_label_value};
pub use parse::SelectorError;
pub use selector::{LabelCondition, Requirement, Selector};

/// The labels of one thing, by key.
pub type Labels = BTreeMap<String, String>;
