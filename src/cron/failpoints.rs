//! Failpoints that change the input of the plan, so that the plan itself stays free of them. No-ops without the feature
//! `failpoints`.

use std::borrow::Cow;
use std::time::Duration;

use super::document::{Concurrency, CronSpec};
use rcfarm_api::Timestamp;
use rcfarm_api::cron::{CronReason, CronStatus};
use rcfarm_store::failpoints::{Failpoint, enabled};

/// Changes the CronJob before planning.
pub(super) fn change_spec(mut spec: CronSpec) -> CronSpec {
    if enabled(Failpoint::PolicyIgnored) {
        spec.concurrency = Concurrency::Allow;
    }
    if enabled(Failpoint::ZoneIgnored) {
        spec.schedule = spec.schedule.in_utc();
    }
    spec
}

/// Changes the status before planning.
pub(super) fn change_status(status: &CronStatus) -> Cow<'_, CronStatus> {
    let mut status = Cow::Borrowed(status);
    if enabled(Failpoint::RunsForgotten) && status.reason == CronReason::Scheduled {
        let back = |at: Timestamp| at.checked_sub(Duration::from_secs(60)).ok();
        status.to_mut().considered = status.considered.and_then(back);
    }
    status
}

/// Time passed to the plan.
pub(super) fn change_now(now: Timestamp) -> Timestamp {
    match enabled(Failpoint::RunsEarly) {
        true => now.checked_add(Duration::from_secs(90)).unwrap_or(now),
        false => now,
    }
}
