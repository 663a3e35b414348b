//! Waiting for the owner farm to do what a record says.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::cli::console::Console;
use crate::cli::failure::failure;
use crate::cli::output::Progress;
use crate::ids::RcId;
use crate::rc::status::{ConditionType, RcStatus, Reason};
use crate::store::{Index, Query, key};

/// One read waits at most this long.
const ONE_WAIT: Duration = Duration::from_secs(20);

/// Waits until all pods that the record at `index` asks for are scheduled.
pub(super) async fn scheduled(
    console: &Console,
    id: RcId,
    index: Index,
    timeout: Duration,
) -> anyhow::Result<()> {
    until(console, id, index, timeout, |status| {
        status.replicas.current == status.replicas.desired
            && status.condition(ConditionType::Scheduled).is_some_and(|condition| condition.status)
    })
    .await
}

/// Waits until the owner has seen the record at `index`, and `done` says so of what it writes.
pub(super) async fn until(
    console: &Console,
    id: RcId,
    index: Index,
    timeout: Duration,
    done: impl Fn(&RcStatus) -> bool,
) -> anyhow::Result<()> {
    let give_up = Instant::now() + timeout;
    let mut progress = Progress::default();
    let mut after = Index::ZERO;
    let mut said = "no farm has looked at it yet".to_owned();
    loop {
        let query = if after == Index::ZERO { Query::PLAIN } else { Query::after(after, ONE_WAIT) };
        let status_key = key::rc_status(id);
        let Ok(answer) = timeout_at(give_up, console.store.get(&status_key, query)).await else {
            return Err(failure(
                format!("gave up waiting after {}: {said}", humantime::format_duration(timeout)),
                format!("the change itself is made; what holds it up: rcfarm rc explain {id}"),
            ));
        };
        let answer = answer?;
        after = if answer.index < after { Index::ZERO } else { answer.index };
        let status = answer.value.and_then(|entry| RcStatus::decode(&entry.value).ok());
        let seen = status.filter(|status| status.observed_index >= index);
        if let Some(status) = &seen {
            said = words(status);
            progress.say(&said);
            if done(status) {
                return Ok(());
            }
            if let Some(invalid) = status
                .condition(ConditionType::Valid)
                .filter(|condition| condition.reason == Reason::InvalidRecord)
            {
                return Err(failure(
                    format!("the farm cannot work on the record: {}", invalid.message),
                    "mend the record, then try again",
                ));
            }
        } else {
            progress.say(&said);
        }
    }
}

/// How far it is, in a line.
fn words(status: &RcStatus) -> String {
    let replicas = status.replicas;
    let mut text = format!(
        "{} of {} pods scheduled, {} healthy",
        replicas.current, replicas.desired, replicas.healthy
    );
    let scheduled = status.condition(ConditionType::Scheduled).filter(|c| !c.status);
    if let Some(condition) = scheduled {
        text.push_str(&format!(" ({})", condition.reason));
    }
    text
}
