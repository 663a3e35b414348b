//! The audit log: records, folding, retention.
