//! CronJobs as documents.

use crate::cli::documents::{Accepted, DocumentKind};
use crate::cron::document::{self, CronSpec};
use rcfarm_api::cron::KIND;
use rcfarm_api::key;

/// CronJobs as documents.
pub(in crate::cli) const CRON_JOB: DocumentKind = DocumentKind {
    kind: KIND,
    is_namespaced: true,
    noun: "cron",
    key: key::cron_job,
    check: |id, document| {
        let CronSpec { warnings, queue, class, .. } = document::read(id, document)?;
        Ok(Accepted { warnings, queues: vec![queue], classes: class.into_iter().collect() })
    },
    references: None,
    changes: None,
    kept: &[],
};
